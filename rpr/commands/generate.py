"""rpr-cli generate: prompts from stdin, line by line, or from `prompt=`; their continuations to stdout."""

import json
import re
import sys
from collections.abc import Sequence

from rpr.api import load
from rpr.commands.translate import batches, stdin
from rpr.config.commands import GenerateConfig
from rpr.io.escape import escape_control_characters

PROMPTS_AT_ONCE = 64


def run(config: GenerateConfig) -> None:
    """Continues prompts until the input ends, as they arrive. Raises ConfigError, DataError or RecordError for unusable
    settings, run or stdin, before anything is generated, and for a prompt that is too long for the model;
    BrokenPipeError if the reader of stdout is gone.
    """
    given = map(_texts, batches(stdin(), PROMPTS_AT_ONCE)) if config.prompt is None else [[config.prompt]]
    trained = load(
        config.run, average_checkpoints=config.average_checkpoints, hardware=config.hardware, cache_dir=config.cache_dir
    )
    trained.continuations([], config)  # refuses what cannot be continued
    streamed = config.format == "text" and sys.stdout.isatty()
    on_text = (lambda text, ends: _write(_harmless(text) + "\n" * ends)) if streamed else None
    for prompts in given:
        by_prompt = trained.continuations(prompts, config, on_text)
        for prompt, samples in () if streamed else zip(prompts, by_prompt, strict=True):
            for number, sample in enumerate(samples):
                line = sample.text
                if config.format == "json":
                    about = {"prompt": prompt, "sample": number, "text": line, "tokens": len(sample.pieces)}
                    line = json.dumps({**about, "finished": sample.finished}, ensure_ascii=False)
                _write(f"{line}\n")


def _texts(lines: Sequence[bytes]) -> list[str]:
    return [line.removesuffix(b"\r").decode("utf-8-sig", "surrogateescape") for line in lines]


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def _harmless(text: str) -> str:
    return re.sub(r"[^\n\t]+", lambda part: escape_control_characters(part[0]), text)
