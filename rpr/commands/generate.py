"""rpr-cli generate: prompts from stdin, line by line, or from `prompt=`; their continuations to stdout."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator

from rpr.analysis.trained_run import load
from rpr.commands.line_streams import Output, batches
from rpr.config.commands import GenerateConfig
from rpr.errors import ConfigError
from rpr.io.escape import escape_control_characters

PROMPTS_AT_ONCE = 64


def run(config: GenerateConfig) -> None:
    """Continues prompts until the input ends, as they arrive.

    Raises:
        ConfigError, DataError, RecordError: unusable settings, run or stdin, before anything is generated; a
            prompt that is too long for the model.
        BrokenPipeError: the reader of stdout is gone.
    """
    if config.prompt is None and sys.stdin is None:
        raise ConfigError("prompt: none given, and stdin is closed; give prompt=TEXT")
    trained = load(
        config.run, average_checkpoints=config.average_checkpoints, hardware=config.hardware, cache_dir=config.cache_dir
    )
    trained.continuations([], config)  # refuses what cannot be continued
    output = Output()
    streamed = config.format == "text" and sys.stdout.isatty()

    def write(text: str) -> None:
        output.write(text.encode("utf-8", "replace"))

    for prompts in _prompts(config):
        if streamed:
            trained.continuations(prompts, config, lambda text, ends: write(_harmless(text) + "\n" * ends))
            continue
        for prompt, samples in zip(prompts, trained.continuations(prompts, config), strict=True):
            for number, sample in enumerate(samples):
                about = {"prompt": prompt, "sample": number, "text": sample.text, "tokens": len(sample.pieces)}
                line = json.dumps({**about, "finished": sample.finished}, ensure_ascii=False)
                write(f"{line if config.format == 'json' else sample.text}\n")


def _harmless(text: str) -> str:
    """Text for a terminal: control characters are escaped, but for tabs and line breaks."""
    return re.sub(r"[^\n\t]+", lambda part: escape_control_characters(part[0]), text)


def _prompts(config: GenerateConfig) -> Iterator[list[str]]:
    if config.prompt is not None:
        yield [config.prompt]
        return
    source = sys.stdin.fileno()
    if os.isatty(source):
        print("rpr-cli: reading from the terminal: press Enter to continue a line, Ctrl-D to quit", file=sys.stderr)
    for lines in batches(source, PROMPTS_AT_ONCE):
        yield [line.removesuffix(b"\r").decode("utf-8", "surrogateescape") for line in lines]
