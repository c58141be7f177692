"""How many jobs run on this machine at a time, and its GPUs, which are assigned to the jobs of any command of one user
(with the same TMPDIR): each job has GPUs of its own, or shares one with other jobs that share it too.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rpr.errors import ConfigError, RunError
from rpr.io.escape import note
from rpr.io.locks import try_lock, try_shared_lock

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import HardwareConfig

GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")  # as CUDA_VISIBLE_DEVICES names them
_POLL_SECONDS = 1.0
_LONGEST_WAIT_DAYS = 14.0  # others may train for days


@dataclass(frozen=True)
class Options:
    """How jobs run on this machine: how many at a time, on which GPUs, and how many share one GPU."""

    jobs: int | None = None
    gpus: tuple[str, ...] = ()
    jobs_per_gpu: int = 1

    def with_gpus_shared(self, hardware: Sequence[HardwareConfig]) -> Options:
        """With GPUs named and no number of jobs: as many jobs at a time as the GPUs allow. Raises ConfigError if a job
        uses no GPU, or more than are named, and for jobs_per_gpu without gpus.
        """
        if not self.gpus:
            if self.jobs_per_gpu > 1:
                raise ConfigError(f"jobs_per_gpu: {self.jobs_per_gpu} jobs share each GPU of gpus=...; add gpus=0")
            return self
        without = next((machine for machine in hardware if machine.accelerator != "gpu"), None)
        if without is not None:
            raise ConfigError(f"gpus: hardware={without.name} uses none; leave gpus out, or choose hardware=1xgpu")
        devices = max(machine.devices for machine in hardware)
        if devices > len(self.gpus):
            raise ConfigError(f"gpus: {len(self.gpus)} named, but a job needs {devices}; name more, or hardware=1xgpu")
        return self if self.jobs is not None else replace(self, jobs=self.jobs_per_gpu * (len(self.gpus) // devices))


class Share(NamedTuple):
    """A job's GPUs, and the descriptors of their locks, which its processes inherit."""

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...]


def parse_gpus(typed: str) -> tuple[str, ...]:
    """`0,1,3` as names of GPUs; raises ConfigError if one is invalid or there twice."""
    gpus = tuple(word.strip() for word in typed.strip("[]").split(","))
    if not all(GPU.fullmatch(gpu) for gpu in gpus) or len(set(gpus)) < len(gpus):
        raise ConfigError(f"gpus: invalid value {typed}: expected distinct GPUs as nvidia-smi -L lists them: gpus=0,1")
    return gpus


def check_present(gpus: Sequence[str]) -> None:
    """Raises ConfigError if this machine lacks one of them, or CUDA_VISIBLE_DEVICES leaves it to others. Without
    nvidia-smi only the first job will tell.
    """
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        visible = [name for word in given.split(",") if (name := word.strip())]
        others = [gpu for gpu in gpus if not any(_is_same(gpu, name) for name in visible)]
        if others:
            raise ConfigError(
                f"gpus: {', '.join(others)} not in CUDA_VISIBLE_DEVICES={given}; name GPUs as there, or unset it"
            )
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    # CUDA_VISIBLE_DEVICES accepts a UUID's beginning.
    lacking = [gpu for gpu in gpus if not re.search(rf"^GPU {gpu}:|UUID: {gpu}", listed, re.MULTILINE)]
    if lacking:
        numbers = ", ".join(re.findall(r"^GPU (\d+):", listed, re.MULTILINE)) or "none"
        raise ConfigError(f"gpus: this machine has no GPU {', '.join(lacking)} (nvidia-smi -L lists: {numbers})")


def _is_same(gpu: str, other: str) -> bool:
    """Of two names, of which UUIDs may be cut short."""
    return gpu == other or (not (gpu + other).isdigit() and (gpu.startswith(other) or other.startswith(gpu)))


@contextmanager
def share(gpus: Sequence[str], count: int, folder: Path | None = None, *, jobs_per_gpu: int = 1) -> Iterator[Share]:
    """Lock `count` of these GPUs for one job; waits until that many are free, and says so. Raises RunError if other
    jobs use them for _LONGEST_WAIT_DAYS.

    With jobs_per_gpu above 1, GPUs that fewer than that many jobs share, the least used first. A job that wants a GPU
    for itself and jobs that share it wait for each other.

    A lock ends with the last process that holds it, so a dead job leaves nothing behind. `folder` has the lock files:
    by default one folder for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    since: float | None = None
    wanted = f"{count} of the GPUs {', '.join(gpus)}"
    while len(taken := _lock_free(gpus, count, folder, jobs_per_gpu)) < count:
        _close(taken)
        if since is None:
            since = time.monotonic()
            note(f"gpus: waiting for {wanted}, which other jobs use")
        elif time.monotonic() - since > _LONGEST_WAIT_DAYS * 24 * 3600:
            raise RunError(
                f"gpus: other jobs have used {wanted} for {_LONGEST_WAIT_DAYS:g} days; nvidia-smi shows them; "
                "rerun the same command when they have ended"
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield Share(tuple(taken), tuple(descriptor for held in taken.values() for descriptor in held))
    finally:
        _close(taken)


def _lock_free(gpus: Sequence[str], count: int, folder: Path, jobs_per_gpu: int) -> dict[str, list[int]]:
    taken: dict[str, list[int]] = {}
    for slot in range(jobs_per_gpu):
        for gpu in gpus:
            if len(taken) == count:
                return taken
            if gpu not in taken and (held := _lock_gpu(gpu, slot if jobs_per_gpu > 1 else None, folder)):
                taken[gpu] = held
    return taken


def _lock_gpu(gpu: str, slot: int | None, folder: Path) -> list[int]:
    """The locks on a whole GPU, or on one slot of a shared one; empty if they are taken."""
    name = gpu.replace("/", "-")
    held = [os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)]
    if slot is not None:
        held.append(os.open(folder / f"{name}.{slot}.lock", os.O_RDWR | os.O_CREAT, 0o600))
    if try_lock(held[0]) if slot is None else try_shared_lock(held[0]) and try_lock(held[1]):
        return held
    _close({gpu: held})
    return []


def _close(taken: dict[str, list[int]]) -> None:
    for held in taken.values():
        for descriptor in held:
            os.close(descriptor)
