"""Settings and line files of small corpora, and the memory that work needs."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rpr.config.train import DataConfig
from rpr.data.cache import PreparedData
from rpr.io.system import resident_peak


def data_config(folder: Path, **changes: Any) -> DataConfig:
    """Settings for the corpus folder/pairs (line files or a folder), cached in folder/cache."""
    settings = {
        "name": "small", "source_language": "en", "target_language": "de", "synthetic": None, "hub": None,
        "hub_config": None, "path": str(folder / "pairs"), "validation_name": "newstest2013",
        "test_name": "newstest2014", "tokenizer": "bpe", "vocabulary_size": 100, "max_length": 100,
        "train_limit": None, "task": None, "text": None, "context_length": None, "cache_dir": str(folder / "cache"),
    }  # fmt: skip
    return DataConfig(**(settings | changes))


def write_lines(stem: Path, pairs: Sequence[tuple[str, str]], end: str = "\n") -> None:
    """Write stem.en and stem.de."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(("en", "de")):
        Path(f"{stem}.{language}").write_bytes("".join(f"{pair[side]}{end}" for pair in pairs).encode())


def files_of(prepared: PreparedData) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.directory.iterdir()}


def memory_growth(work: Callable[[], object]) -> int:
    """The bytes by which `work` raises the peak memory of a forked child, which needs no imports."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not a handler in Python, which a child that hangs never runs
        signal.alarm(120)
        torch.set_num_threads(1)  # the parent's pool of threads is not there after a fork
        with contextlib.suppress(BaseException):
            before = resident_peak()
            work()
            os.write(writer, str(resident_peak() - before).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        growth = answer.read()
    assert os.waitpid(child, 0)[1] == 0 and growth, "the child failed"
    return int(growth)
