"""rpr-cli generate: prompts from stdin, line by line, or from `prompt=`; their continuations to stdout."""

import json
import os
import re
import sys
from collections.abc import Iterator

from rpr.analysis.trained_run import TrainedRun, load
from rpr.commands.line_streams import Output, batches
from rpr.config.commands import GenerateConfig
from rpr.decode.sampling import Continuation
from rpr.errors import ConfigError
from rpr.io.escape import escape_control_characters, note

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

    within_context = True
    for prompts in _prompts(config):
        on_text = (lambda text, ends: write(_harmless(text) + "\n" * ends)) if streamed else None
        by_prompt = trained.continuations(prompts, config, on_text)
        if within_context:
            within_context = _all_within_context(trained, prompts, by_prompt)
        if streamed:
            continue
        for prompt, samples in zip(prompts, by_prompt, strict=True):
            for number, sample in enumerate(samples):
                about = {"prompt": prompt, "sample": number, "text": sample.text, "tokens": len(sample.pieces)}
                line = json.dumps({**about, "finished": sample.finished}, ensure_ascii=False)
                write(f"{line if config.format == 'json' else sample.text}\n")


def _all_within_context(trained: TrainedRun, prompts: list[str], by_prompt: list[list[Continuation]]) -> bool:
    """Whether no text is longer than the contexts of the training; otherwise a note says so."""
    if (context := trained.config.data.context_length) is None:
        return True
    rows = zip(prompts, by_prompt, strict=True)
    longest = max((len(trained.prompt_ids(prompt)) + len(one.pieces) for prompt, of in rows for one in of), default=0)
    if longest <= context:
        return True
    note(
        f"note: a text of {longest} tokens is longer than the contexts of {context} that this model was "
        "trained on; rpr-cli evaluate RUN context_lengths=[...] shows how it scores there"
    )
    return False


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
    for lines in batches(source, PROMPTS_AT_ONCE):
        yield [line.removesuffix(b"\r").decode("utf-8", "surrogateescape") for line in lines]
