"""The jobs of a sweep on this machine, N at a time, each a process of its own, which runs this file as a module: W&B,
peak memory and random state are the run's own.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rpr import progress
from rpr.commands import train
from rpr.compose.messages import format_user_error
from rpr.config.train import config_from_record
from rpr.environment import for_child
from rpr.errors import BusyError, ProcessEnded, RprError, RunError
from rpr.io import resources, stdio
from rpr.records.record import RECORD_NAME, read_record
from rpr.runs import lifecycle, locks
from rpr.signals import die_with_parent, exit_on_sigterm, signals_deferred
from rpr.sweep.gpus import Options, take_slots
from rpr.sweep.status import Job
from rpr.training.launch import TORCHRUN_GRACE_SECONDS, ended, terminate

_POLL_SECONDS = 0.05


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
            while waiting and len(running) < at_once:
                job, command = waiting.pop(0)
                if not sys.stderr.isatty():  # a terminal shows the bars of rpr.sweep.progress instead
                    number = f"job {len(jobs) - len(waiting)} of {len(jobs)}"
                    print(f"sweep {sweep}: {number}: {job.config.run_dir_name}", file=sys.stderr, flush=True)
                with signals_deferred():  # else it could be left without its request, or be forgotten below
                    running[_start(job, command, options, at_once)] = job
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
    request = {
        "parent": os.getpid(),
        "config": job.config.model_dump(mode="json"),
        "command": command,
        "concurrent_jobs": min(options.concurrent_jobs, at_once),
        "gpus": options.gpus,
    }
    environment = for_child()
    # More threads than cores wait for each other: several times slower. As many when few of the sweep's jobs are left:
    # with other threads a resumed run would round otherwise than one that never stopped, and than its other seeds. Each
    # of several ranks has one, as without a sweep.
    if (shared_by := options.jobs or 1) > 1 and job.config.hardware.num_ranks == 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, resources.num_cores() // shared_by)))
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
    stdio.outlive_readers("stdout", "stderr")
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
        taken: dict[str, int] = {}
        if request["gpus"]:
            taken = stack.enter_context(take_slots(request["gpus"], config.hardware.devices))
            # Before CUDA is first used; its own order, where a machine has several kinds, is not that of nvidia-smi.
            os.environ |= {"CUDA_VISIBLE_DEVICES": ",".join(taken), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        job = train.SweepJob(request["concurrent_jobs"], keep_open=[*taken.values()])
        train.run(config, command=request["command"], sweep_job=job)


if __name__ == "__main__":
    sys.exit(main())
