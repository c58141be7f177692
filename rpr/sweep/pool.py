"""The jobs of a sweep on this machine, N at a time, each a process of its own, which runs this file as a module: W&B,
peak memory and random state are the run's own.

Its GPUs are assigned to the jobs of any command of one user (with the same TMPDIR). `gpus=0,0,1` has three slots, two
of them on GPU 0; a job takes a slot for itself.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Self

from filelock import FileLock, Timeout
from pydantic import Field, PositiveInt

from rpr import progress
from rpr.commands import train
from rpr.compose.messages import format_user_error
from rpr.config.train import HardwareConfig, config_from_record
from rpr.environment import for_child
from rpr.errors import BusyError, ConfigError, ProcessEnded, RprError, RunError
from rpr.io import system
from rpr.io.escape import note
from rpr.records.record import RECORD_NAME, read_record
from rpr.runs import lifecycle, locks
from rpr.signals import die_with_parent, exit_on_sigterm, signals_deferred
from rpr.sweep.status import Job
from rpr.training.launch import TORCHRUN_GRACE_SECONDS, ended, terminate
from rpr.validation import StrictModel

_POLL_SECONDS = 0.05
_GPU_SECONDS = 1.0  # between looks for a free GPU
Gpu = Annotated[str, Field(pattern=r"^(\d+|(GPU|MIG)-[0-9A-Za-z/-]+)$")]  # as nvidia-smi -L lists them


class Options(StrictModel):
    """How jobs run on this machine: how many at a time, on which GPUs, each named once for each of its slots; and
    whether failed jobs run again.
    """

    jobs: PositiveInt | None
    gpus: tuple[Gpu, ...]
    retry_failed: bool

    def for_jobs(self, hardware: Sequence[HardwareConfig]) -> Self:
        """With GPUs and no number of jobs: as many jobs at a time as there are slots; not more than there are in the
        sweep, so that each has as many threads when few are left to do. Raises ConfigError if a job uses no GPU, or
        more than are named.
        """
        named, used = len({*self.gpus}), [one.devices if one.accelerator == "gpu" else 0 for one in hardware]
        if self.gpus and not 0 < min(used) <= max(used) <= named:
            wrong = max(used) if all(used) else 0
            raise ConfigError(f"gpus: {named} named, but a job uses {wrong}; name others, or choose hardware=1xgpu")
        slots = len(self.gpus) // max(*used, 1)
        return self.model_copy(update={"jobs": min(self.jobs or slots or 1, len(hardware))})


def run(jobs: Sequence[Job], commands: Sequence[str], options: Options, sweep: str) -> dict[tuple[str, ...], RunError]:
    """Run all jobs in the given order, each with its command for its record, and wait for them; a failed job does not
    stop the others. If this process is interrupted, all jobs are, and if it dies, they end as at SIGTERM. Returns the
    one-line error of each job that did not succeed. How far a run has come is in its record.
    """
    at_once = min(options.jobs or 1, len(jobs))
    waiting = list(zip(jobs, commands, strict=True))
    running: dict[subprocess.Popen[bytes], Job] = {}
    problems, stop = {}, signal.SIGTERM
    try:
        while waiting or running:
            # 1. As many jobs as may run at once.
            while waiting and len(running) < at_once:
                job, command = waiting.pop(0)
                if not sys.stderr.isatty():  # a terminal shows the bars of rpr.sweep.status instead
                    number = f"job {len(jobs) - len(waiting)} of {len(jobs)}"
                    print(f"sweep {sweep}: {number}: {job.config.run_dir_name}", file=sys.stderr, flush=True)
                with signals_deferred():  # else it could be left without its request, or be forgotten below
                    running[_start(job, command, options, at_once)] = job
            # 2. Those that have ended, and what was wrong with them.
            if not (finished := [process for process in running if process.poll() is not None]):
                time.sleep(_POLL_SECONDS)
            for process in finished:
                if (problem := _problem(process, running[process], ended(process.returncode))) is not None:
                    problems[running[process].overrides] = problem
                del running[process]
    except KeyboardInterrupt:
        stop = signal.SIGINT
        raise
    finally:
        terminate(running, TORCHRUN_GRACE_SECONDS, stop)
        for process, job in running.items():
            _problem(process, job, ended(-stop))
    return problems


def _start(job: Job, command: str, options: Options, at_once: int) -> subprocess.Popen[bytes]:
    """Start a job; Ctrl-C reaches only this process, as the job has a session of its own."""
    # 1. What the job is told.
    sharing = max(map(options.gpus.count, options.gpus), default=options.jobs or 1)  # at most, a device
    request = {
        "parent": os.getpid(),
        "config": job.config.model_dump(mode="json"),
        "command": command,
        "concurrent_jobs": min(sharing, at_once),
        "gpus": options.gpus,
    }
    environment = for_child()
    # 2. More threads than cores wait for each other: several times slower. As many when few of the jobs are left: with
    # other threads a resumed run would round otherwise than one that never stopped, and than its other seeds. Each of
    # several ranks has one, as without a sweep.
    if (shared_by := options.jobs or 1) > 1 and job.config.hardware.num_ranks == 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, system.num_cores() // shared_by)))
    # 3. The process, which reads its request from stdin.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rpr.sweep.pool"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stderr is not None
    threading.Thread(target=_relay, args=(process.stderr,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended already
        process.stdin.write(json.dumps(request).encode())
    return process


def _relay(lines: IO[bytes]) -> None:
    with lines:
        for line in lines:
            with progress.above_bars(), contextlib.suppress(OSError):
                print(line.decode(errors="replace"), end="", file=sys.stderr, flush=True)


def _problem(process: subprocess.Popen[bytes], job: Job, otherwise: RunError) -> RunError | None:
    """Why a job that has ended did not succeed: as it reported, else as given, which is recorded unless the record has
    a reason, of this attempt and not of an earlier one.
    """
    assert process.stdout is not None
    with process.stdout:
        os.set_blocking(process.stdout.fileno(), False)  # a process that outlives it may have the pipe, too
        reported = process.stdout.read()
    if process.returncode == 0:
        return None
    if reported:
        return RunError(reported.decode())
    is_earlier = False
    if (job.run_dir / RECORD_NAME).exists():
        with contextlib.suppress(RprError), locks.acquire(job.run_dir):
            is_earlier = read_record(job.run_dir / RECORD_NAME) == job.record
            lifecycle.mark_stopped(job.run_dir, otherwise, is_earlier=is_earlier)
    return RunError(str(otherwise)) if is_earlier else otherwise


def main() -> int:
    """The process of one job, which reads what it is from stdin, and writes the one-line error, if any, to stdout."""
    request = json.load(sys.stdin)
    die_with_parent(request["parent"])
    answers = os.dup(1)
    os.dup2(2, 1)
    system.outlive_readers("stdout", "stderr")
    try:
        with exit_on_sigterm():
            _train(request)
    except BusyError:  # in use by another process: reported at the end, with its holder
        return 0
    except Exception as error:
        problem = as_problem(error)
        if not isinstance(problem, ProcessEnded):  # else the record has the reason
            os.write(answers, str(problem).encode())
        return train.FAULT_EXIT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def as_problem(error: Exception) -> RunError:
    """Why a job has no result, in one line; the traceback of a bug is printed. A new error: not every one pickles."""
    line = format_user_error(error)
    if line is None:
        traceback.print_exc()
    kind = ProcessEnded if isinstance(error, ProcessEnded) else RunError
    return kind(line or f"{type(error).__name__}: {error}")


def _train(request: Mapping[str, Any]) -> None:
    config = config_from_record(request["config"])
    with contextlib.ExitStack() as stack:
        if request["gpus"]:
            taken = stack.enter_context(take_slots(request["gpus"], config.hardware.devices))
            # Before CUDA is first used; its own order, where a machine has several kinds, is not that of nvidia-smi.
            os.environ |= {"CUDA_VISIBLE_DEVICES": ",".join(taken), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        train.run(config, command=request["command"], concurrent_jobs=request["concurrent_jobs"])


@contextmanager
def take_slots(gpus: Sequence[str], count: int, folder: Path | None = None) -> Iterator[list[str]]:
    """Lock slots of `count` different GPUs for one job; waits until that many are free, and says so. Yields the GPUs.
    `folder` has the lock files: by default one folder for each user of the machine.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"rpr-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        with contextlib.ExitStack() as stack:
            taken = _lock_free(gpus, count, folder, stack)
            if len(taken) == count:
                yield taken
                return
        if attempt == 0:
            note(f"gpus: waiting for {count} of the GPUs {', '.join(dict.fromkeys(gpus))}, which other jobs use")
        time.sleep(_GPU_SECONDS)


def _lock_free(gpus: Sequence[str], count: int, folder: Path, stack: contextlib.ExitStack) -> list[str]:
    """The GPUs with a slot that was free and is locked now, at most `count`."""
    taken: list[str] = []
    for number, _, gpu in sorted((gpus[:at].count(gpu), at, gpu) for at, gpu in enumerate(gpus)):  # first slots first
        if gpu not in taken and len(taken) < count:
            lock = FileLock(folder / f"{gpu.replace('/', '-')}.{number}.lock")
            with contextlib.suppress(Timeout):
                stack.enter_context(lock.acquire(blocking=False))
                taken.append(gpu)
    return taken


if __name__ == "__main__":
    sys.exit(main())
