"""Settings and line files of small corpora; and work in a copy of this process, which costs no import: killed at a
moment, or measured for memory.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.config.train import DataConfig
from rpr.data.token_split import TokenSplit
from rpr.io.resources import resident_peak


def data_config(folder: Path, **changes: Any) -> DataConfig:
    """Of a corpus `pairs` in the folder, as line files or a folder, with the cache next to it."""
    settings = {
        "name": "tried", "source_language": "en", "target_language": "de", "synthetic": None, "hub": None,
        "hub_config": None, "path": str(folder / "pairs"), "validation_name": "newstest2013",
        "test_name": "newstest2014", "tokenizer": "bpe", "vocabulary_size": 100, "max_length": 100,
        "train_limit": None, "task": None, "cache_dir": str(folder / "cache"),
    }  # fmt: skip
    return DataConfig(**(settings | changes))


def write_lines(stem: Path, pairs: Sequence[tuple[str, str]], end: str = "\n") -> None:
    """As stem.en and stem.de."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(("en", "de")):
        Path(f"{stem}.{language}").write_bytes("".join(f"{pair[side]}{end}" for pair in pairs).encode())


def fork(work: Callable[[], object]) -> int:
    """The wait status of a child that does this work and ends."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        signal.alarm(120)
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def memory_growth(work: Callable[[], object]) -> int:
    """By how many bytes the work raises the peak memory of a process that begins with what this one has."""
    reader, writer = os.pipe()

    def measured() -> None:
        before = resident_peak()
        work()
        os.write(writer, str(resident_peak() - before).encode())

    status = fork(measured)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert status == 0, "the child failed"
        return int(answer.read())


def padding_waste(batches: Iterable[NDArray[np.int64]], split: TokenSplit) -> float:
    """The fraction of source and target positions that are padding."""
    real = padded = 0
    for batch in filter(len, batches):
        for lengths in (split.source_lengths[batch], split.target_lengths[batch]):
            real, padded = real + int(lengths.sum()), padded + len(batch) * int(lengths.max())
    return 1 - real / padded
