"""rpr-cli translate: one line in, one line out, in order."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

from rpr.commands import loading
from rpr.config import TranslateConfig
from rpr.data.pairs import normalise
from rpr.evaluation.translate import translate_split
from rpr.training import runtime


def run(config: TranslateConfig) -> None:
    """Reads stdin in batches of lines; an empty line stays an empty line. Each batch is written whole."""
    run_dir = Path(config.run).absolute()
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir)
    data, model, _ = loading.load(trained, run_dir, config.average)
    evaluation = trained.evaluation
    lines = iter(sys.stdin.buffer.readline, b"")
    while batch := list(islice(lines, config.lines_per_batch)):
        sources = [normalise(line.decode("utf-8", errors="replace")) for line in batch]
        spoken = [index for index, source in enumerate(sources) if source]
        pieces = data.vocabulary.encode_batch([sources[index] for index in spoken], eos=True)
        translated = translate_split(
            model,
            pieces,
            data.vocabulary,
            beam_size=config.beam_size or evaluation.beam_size,
            length_penalty=evaluation.length_penalty if config.length_penalty is None else config.length_penalty,
            max_extra_length=evaluation.max_extra_length,
            max_tokens_per_batch=evaluation.max_tokens_per_batch,
            device=runtime.torch_device(trained.hardware),
        )
        targets = [""] * len(batch)
        for index, translation in zip(spoken, translated, strict=True):
            targets[index] = translation
        sys.stdout.write("".join(target + "\n" for target in targets))
        sys.stdout.flush()
