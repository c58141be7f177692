"""rpr-cli generate: prompts from stdin, line by line, or from `prompt=`; their continuations to stdout."""

import json
import os
import re
import sys
from collections.abc import Iterator

from rpr.api import load
from rpr.commands.line_streams import batches
from rpr.config.commands import GenerateConfig
from rpr.errors import ConfigError
from rpr.io.escape import escape_control_characters, note

PROMPTS_AT_ONCE = 64


def run(config: GenerateConfig) -> None:
    """Continues prompts until the input ends, as they arrive. Raises ConfigError, DataError or RecordError for unusable
    settings, run or stdin, before anything is generated, and for a prompt that is too long for the model;
    BrokenPipeError if the reader of stdout is gone.
    """
    if config.prompt is None and sys.stdin is None:
        raise ConfigError("prompt: none given, and stdin is closed; give prompt=TEXT")
    trained = load(
        config.run, average_checkpoints=config.average_checkpoints, hardware=config.hardware, cache_dir=config.cache_dir
    )
    trained.continuations([], config)  # refuses what cannot be continued
    streamed = config.format == "text" and sys.stdout.isatty()

    context = trained.config.data.context_length
    for prompts in _prompts(config):
        on_text = (lambda text, ends: _write(_harmless(text) + "\n" * ends)) if streamed else None
        by_prompt = trained.continuations(prompts, config, on_text)
        if context is not None:
            lengths = [len(trained.prompt_ids(prompt)) for prompt in prompts]
            rows = zip(lengths, by_prompt, strict=True)
            longest = max(length + sample.num_read for length, samples in rows for sample in samples)
            if longest > context:
                note(
                    f"note: the model read {longest} tokens of a text, more than the {context} of its contexts in "
                    "training; rpr-cli evaluate RUN context_lengths=[...] shows how it scores there"
                )
                context = None  # said once
        if streamed:
            continue
        for prompt, samples in zip(prompts, by_prompt, strict=True):
            for number, sample in enumerate(samples):
                about = {"prompt": prompt, "sample": number, "text": sample.text, "tokens": len(sample.pieces)}
                line = json.dumps({**about, "finished": sample.finished}, ensure_ascii=False)
                _write(f"{line if config.format == 'json' else sample.text}\n")


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def _harmless(text: str) -> str:
    """Text for a terminal: control characters are escaped, but for tabs and line breaks."""
    return re.sub(r"[^\n\t]+", lambda part: escape_control_characters(part[0]), text)


def _prompts(config: GenerateConfig) -> Iterator[list[str]]:
    if config.prompt is not None:
        yield [config.prompt]
        return
    source = sys.stdin.fileno()
    if os.isatty(source):
        note("reading from the terminal: press Enter to continue a line, Ctrl-D to quit")
    mark = b"\xef\xbb\xbf"  # of the first line alone: a byte order mark
    for lines in batches(source, PROMPTS_AT_ONCE):
        lines = [lines[0].removeprefix(mark), *lines[1:]]
        mark = b""
        yield [line.removesuffix(b"\r").decode("utf-8", "surrogateescape") for line in lines]
