"""GPUs shared out among the jobs of one machine: each has its own, whoever started it, or a share of one with others
that share it alike.
"""

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
from rpr.io.locks import try_lock, try_shared_lock

GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")  # as CUDA_VISIBLE_DEVICES names them
_LOOK_SECONDS = 1.0


class Share(NamedTuple):
    """GPUs that a job has, and the locks that say so: its processes inherit them."""

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
def share(gpus: Sequence[str], count: int, folder: Path | None = None, *, jobs_per_gpu: int = 1) -> Iterator[Share]:
    """`count` of these GPUs that no other job has; waits until so many are free.

    With jobs_per_gpu, GPUs that fewer than so many others have, each of which shares them too; the least used first. A
    job that wants one for itself and jobs that share it wait for each other.

    A lock goes with the last process that holds it, so nothing is left over from one that died. `folder` is where they
    lie: by default one for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    while len(taken := _free(gpus, count, folder, jobs_per_gpu)) < count:
        _close(taken)
        time.sleep(_LOOK_SECONDS)
    try:
        yield Share(tuple(taken), tuple(one for held in taken.values() for one in held))
    finally:
        _close(taken)


def _free(gpus: Sequence[str], count: int, folder: Path, jobs_per_gpu: int) -> dict[str, list[int]]:
    taken: dict[str, list[int]] = {}
    for place in range(jobs_per_gpu):
        for gpu in gpus:
            if len(taken) == count:
                return taken
            if gpu not in taken and (held := _take(gpu, place if jobs_per_gpu > 1 else None, folder)):
                taken[gpu] = held
    return taken


def _take(gpu: str, place: int | None, folder: Path) -> list[int]:
    """The locks on a whole GPU, or on one place among those that share it; none where they are taken."""
    name = gpu.replace("/", "-")
    held = [os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)]
    if place is not None:
        held.append(os.open(folder / f"{name}.{place}.lock", os.O_RDWR | os.O_CREAT, 0o600))
    if try_lock(held[0]) if place is None else try_shared_lock(held[0]) and try_lock(held[1]):
        return held
    _close({gpu: held})
    return []


def _close(taken: dict[str, list[int]]) -> None:
    for held in taken.values():
        for descriptor in held:
            os.close(descriptor)
