"""How many jobs run on this machine at a time, and its GPUs, which are assigned to the jobs of any command of one user
(with the same TMPDIR). `gpus=0,0,1` has three slots, two of them on GPU 0; a job takes a slot for itself.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, field_validator

from rpr.config.train import HardwareConfig
from rpr.errors import ConfigError
from rpr.io.escape import note
from rpr.io.locks import try_lock
from rpr.validation import StrictModel

Gpu = Annotated[str, Field(pattern=r"^(\d+|(GPU|MIG)-[0-9A-Za-z/-]+)$")]  # as nvidia-smi -L lists them
_POLL_SECONDS = 1.0


class Options(StrictModel):
    """How jobs run on this machine: how many at a time, on which GPUs, each named once for each of its slots; and
    whether failed jobs run again.
    """

    jobs: PositiveInt | None
    gpus: tuple[Gpu, ...]
    retry_failed: bool

    @field_validator("gpus", mode="before")
    @classmethod
    def names(cls, typed: Any) -> Any:
        return typed.strip("[]").split(",") if isinstance(typed, str) else typed

    def for_jobs(self, hardware: Sequence[HardwareConfig]) -> Self:
        """With GPUs and no number of jobs: as many jobs at a time as there are slots; not more than there are in the
        sweep, so that each has as many threads when few are left to do. Raises ConfigError if a job uses no GPU, or
        more than are named.
        """
        named = len({*self.gpus})
        for machine in hardware if self.gpus else ():
            used = machine.devices if machine.accelerator == "gpu" else 0
            if not 0 < used <= named:
                raise ConfigError(
                    f"gpus: {named} named, but a job with hardware={machine.name} uses {used}; change one"
                )
        slots = len(self.gpus) // max(machine.devices for machine in hardware)
        return self.model_copy(update={"jobs": min(self.jobs or slots or 1, len(hardware))})

    @property
    def concurrent_jobs(self) -> int:
        """The most jobs of this command that share a device."""
        return max(map(self.gpus.count, self.gpus)) if self.gpus else self.jobs or 1


@contextmanager
def take_slots(gpus: Sequence[str], count: int, folder: Path | None = None) -> Iterator[dict[str, int]]:
    """Lock slots of `count` different GPUs for one job; waits until that many are free, and says so. Yields the job's
    GPUs with the descriptors of their locks, which its processes inherit: a lock ends with the last process that holds
    it. `folder` has the lock files: by default one folder for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        with ExitStack() as stack:
            taken = _lock_free(gpus, count, folder, stack)
            if len(taken) == count:
                yield taken
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
