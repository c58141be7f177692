"""rpr-cli translate: one line in, one line out, in order."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

from rpr.command_config import TranslateConfig
from rpr.data.pairs import normalise
from rpr.evaluation.decoding import TorchEngine, search_of
from rpr.evaluation.translate import translate_split
from rpr.runs import loading, runtime


def run(config: TranslateConfig) -> None:
    """Reads stdin in batches of lines; an empty line stays an empty line. Each batch is written whole."""
    run_dir = Path(config.run).absolute()
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir)
    data, model, _ = loading.load(trained, run_dir, config.average)
    asked = {"beam_size": config.beam_size, "length_penalty": config.length_penalty}
    search = search_of(trained.evaluation.model_copy(update={k: v for k, v in asked.items() if v is not None}))
    engine = TorchEngine(model, runtime.torch_device(trained.hardware))
    lines = iter(sys.stdin.buffer.readline, b"")
    while batch := list(islice(lines, config.lines_per_batch)):
        sources = [normalise(line.decode("utf-8", errors="replace")) for line in batch]
        spoken = [index for index, source in enumerate(sources) if source]
        pieces = data.vocabulary.encode_batch([sources[index] for index in spoken], eos=True)
        translated = translate_split(engine, pieces, data.vocabulary, search)
        targets = [""] * len(batch)
        for index, translation in zip(spoken, translated, strict=True):
            targets[index] = translation
        sys.stdout.write("".join(target + "\n" for target in targets))
        sys.stdout.flush()
