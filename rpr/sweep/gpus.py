"""How many jobs run on this machine at a time, and its GPUs, which are assigned to the jobs of any command of one user
(with the same TMPDIR). `gpus=0,0,1` has three slots, two of them on GPU 0; a job takes a slot for itself.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rpr.errors import ConfigError, Problem
from rpr.io.escape import note
from rpr.io.locks import try_lock

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import HardwareConfig

GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")  # as CUDA_VISIBLE_DEVICES names them
_POLL_SECONDS = 1.0


class Options(NamedTuple):
    """How jobs run on this machine: how many at a time, and on which GPUs, each named once for each of its slots."""

    jobs: int | None = None
    gpus: tuple[str, ...] = ()

    def with_jobs_of(self, hardware: Sequence[HardwareConfig]) -> Options:
        """With GPUs named and no number of jobs: as many jobs at a time as there are slots. Raises ConfigError if a job
        uses no GPU, or more than are named.
        """
        if not self.gpus:
            return self
        without = next((machine for machine in hardware if machine.accelerator != "gpu"), None)
        if without is not None:
            raise ConfigError(f"gpus: hardware={without.name} uses none; leave gpus out, or choose hardware=1xgpu")
        devices, named = max(machine.devices for machine in hardware), len({*self.gpus})
        if devices > named:
            raise ConfigError(f"gpus: {named} named, but a job needs {devices}; name more, or hardware=1xgpu")
        return self if self.jobs is not None else self._replace(jobs=len(self.gpus) // devices)

    @property
    def concurrent_jobs(self) -> int:
        """The most jobs of this command that share a device."""
        return max(map(self.gpus.count, self.gpus)) if self.gpus else self.jobs or 1


ALONE = Options()


class Slots(NamedTuple):
    """A job's GPUs, and the descriptors of their locks, which its processes inherit."""

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...]


def parse_gpus(typed: str) -> tuple[str, ...]:
    """`0,0,1` as names of GPUs; raises ConfigError if one is invalid."""
    gpus = tuple(word.strip() for word in typed.strip("[]").split(","))
    if not all(map(GPU.fullmatch, gpus)):
        raise ConfigError(Problem("gpus", typed, "expected GPUs as nvidia-smi -L lists them", "e.g. gpus=0,1"))
    return gpus


@contextmanager
def take_slots(gpus: Sequence[str], count: int, folder: Path | None = None) -> Iterator[Slots]:
    """Lock slots of `count` different GPUs for one job; waits until that many are free, and says so. A lock ends with
    the last process that holds it. `folder` has the lock files: by default one folder for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        with ExitStack() as stack:
            taken = _lock_free(gpus, count, folder, stack)
            if len(taken) == count:
                yield Slots(tuple(taken), tuple(taken.values()))
                return
        if attempt == 0:
            note(f"gpus: waiting for {count} of the GPUs {', '.join(dict.fromkeys(gpus))}, which other jobs use")
        time.sleep(_POLL_SECONDS)


def _lock_free(gpus: Sequence[str], count: int, folder: Path, stack: ExitStack) -> dict[str, int]:
    """The descriptor of a lock for each GPU, at most `count`."""
    taken: dict[str, int] = {}
    slots = sorted((gpus[:at].count(gpu), at, gpu) for at, gpu in enumerate(gpus))  # the first slot of each GPU first
    for number, _, gpu in slots:
        if gpu in taken or len(taken) == count:
            continue
        lock = folder / f"{gpu.replace('/', '-')}.{number}.lock"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(descriptor):
            stack.callback(os.close, descriptor)
            taken[gpu] = descriptor
        else:
            os.close(descriptor)
    return taken
