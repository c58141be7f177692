"""GPUs shared out among the jobs of one machine: each has its own, whoever started it."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rpr.errors import ConfigError
from rpr.io.locks import try_lock

GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")  # as CUDA_VISIBLE_DEVICES names them
_LOOK_SECONDS = 1.0


class Share(NamedTuple):
    """GPUs that a job has for itself, and the locks that say so: its processes inherit them."""

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...]


def named(words: str) -> tuple[str, ...]:
    """`0,1,3` as names of GPUs.

    Raises:
        ConfigError: they are none, or one stands there twice.
    """
    gpus = tuple(word.strip() for word in words.strip("[]").split(","))
    if not all(GPU.fullmatch(gpu) for gpu in gpus) or len(set(gpus)) < len(gpus):
        raise ConfigError(f"gpus: {words} does not name GPUs; give each once, as nvidia-smi -L lists them: gpus=0,1")
    return gpus


@contextmanager
def share(gpus: Sequence[str], count: int, folder: Path | None = None) -> Iterator[Share]:
    """`count` of these GPUs that no other job has; waits until so many are free.

    A lock goes with the last process that holds it, so nothing is left over from one that died. `folder` is where they
    lie: by default one for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    while len(taken := _free(gpus, count, folder)) < count:
        for descriptor in taken.values():
            os.close(descriptor)
        time.sleep(_LOOK_SECONDS)
    try:
        yield Share(tuple(taken), tuple(taken.values()))
    finally:
        for descriptor in taken.values():
            os.close(descriptor)


def _free(gpus: Sequence[str], count: int, folder: Path) -> dict[str, int]:
    taken: dict[str, int] = {}
    for gpu in gpus:
        if len(taken) == count:
            break
        descriptor = os.open(folder / f"{gpu.replace('/', '-')}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(descriptor):
            taken[gpu] = descriptor
        else:
            os.close(descriptor)
    return taken
