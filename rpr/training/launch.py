"""Starting the processes of a run: a fresh one for each job of a sweep, torchrun for several ranks.

Lightning's own launcher re-runs sys.argv, which in a Hydra multirun is the whole sweep; torchrun gets one job.
Run as a module, this file is torchrun without its traceback: the failed rank has already printed its message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rpr.config.train import HardwareConfig
from rpr.environment import for_child
from rpr.errors import ConfigError, InterruptedRun, ProcessEnded, TimeLimitReached
from rpr.signals import SIGTERM_EXIT, die_with_parent, exit_on_sigterm, unhandled_sigcont

if TYPE_CHECKING:
    from submitit import JobEnvironment

GRACE_SECONDS = 15
TORCHRUN_GRACE_SECONDS = 45  # torchrun itself kills ranks that have not ended within 30 seconds
NODES_WAIT_SECONDS = 3600  # for each other: the first node may be preparing the corpus
_RESUMES = "the same command resumes from the last checkpoint, if any"


def run_worker(
    module: str, job: Path, hardware: HardwareConfig, *, keep_open: Sequence[int] = (), log: Path | None = None
) -> int:
    """Run `python -m <module> <job>` on as many ranks as the hardware has, and wait for it; if this process exits
    first, it ends the worker, too. Returns 0 or the exit code of the first rank that failed, 128 + N if by signal N.
    The worker inherits the descriptors `keep_open` (locks); its output goes to `log`, or to that of this process.
    Raises ConfigError for several nodes unless SLURM has started this process on each, TimeLimitReached at its limit.
    """
    # 1. One process, or torchrun, which starts one for each rank.
    command, environment, grace = [sys.executable, "-P", "-m", module, str(job)], for_child(), GRACE_SECONDS
    if hardware.num_ranks > 1:
        command[3:3] = ["rpr.training.launch", *_torchrun(hardware), "-m"]
        environment.setdefault("OMP_NUM_THREADS", str(hardware.threads or 1))
        grace = TORCHRUN_GRACE_SECONDS
    # 2. Ctrl-C reaches this process alone, which then ends the worker cleanly.
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        worker = subprocess.Popen(
            command, env=environment, preexec_fn=partial(_in_child, os.getpid()), start_new_session=True,
            pass_fds=tuple(keep_open), stdout=output, stderr=output,
        )  # fmt: skip
    # 3. It ends before this process does.
    try:
        with unhandled_sigcont(), exit_on_sigterm():
            code = worker.wait()
    except Exception as error:  # from submitit's handler of SIGUSR2
        raise TimeLimitReached(f"the SLURM time limit was reached ({error}); {_RESUMES}") from None
    finally:
        if worker.poll() is None:
            terminate([worker], grace)
    return code if code >= 0 else 128 - code


def ended(code: int) -> ProcessEnded:
    """The error for a training process with this exit code: its own, or, negative or above 128, that of a signal."""
    number = -code if code < 0 else code - 128
    if number not in signal.valid_signals():
        return ProcessEnded(f"the training process ended with exit code {code}; {_RESUMES}")
    memory = ", which the system sends when it is out of memory" if number == signal.SIGKILL else ""
    return InterruptedRun(f"the training process was ended by {signal.Signals(number).name}{memory}; {_RESUMES}")


def _torchrun(hardware: HardwareConfig) -> list[str]:
    """torchrun's own flags for one node, or for this node of several."""
    flags = [f"--nproc-per-node={hardware.devices}", "--max-restarts=0"]
    if hardware.num_nodes == 1:
        return ["--standalone", "--local-addr=127.0.0.1", *flags]  # the machine's own name may not resolve
    job = slurm_job(hardware)
    # The first rank is on the first node, which keeps the record, so that this node's torchrun outlasts the scoring.
    return [
        f"--nnodes={hardware.num_nodes}",
        f"--node-rank={job.node}",
        f"--master-addr={job.hostnames[0]}",
        f"--master-port={20000 + int(job.raw_job_id) % 20000}",  # jobs that share a node have different ports
        f"--rdzv-conf=timeout={NODES_WAIT_SECONDS}",
        *flags,
    ]


def slurm_job(hardware: HardwareConfig) -> JobEnvironment:
    """The SLURM job of this process, one of the tasks that submitit started, one on each node. Raises ConfigError
    if submitit did not start it on this number of nodes.
    """
    with contextlib.suppress(ImportError, RuntimeError):  # not installed, or not inside one of its jobs
        import submitit

        if (job := submitit.JobEnvironment()).num_nodes == hardware.num_nodes:
            return job
    raise ConfigError(
        f"hardware.num_nodes: {hardware.num_nodes} nodes must be started by SLURM: rpr-cli train -m "
        "hardware=slurm_8xgpu hardware.num_nodes=..."
    )


def terminate(
    processes: Collection[subprocess.Popen[bytes]], grace: float, number: signal.Signals = signal.SIGTERM
) -> None:
    """End processes by a signal, at which they clean up; those that have not ended after `grace` seconds are killed."""
    for process in processes:
        process.send_signal(number)
    limit = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()  # the kernel ends it


def _in_child(parent: int) -> None:
    # SLURM sends SIGUSR2 at the time limit, and submitit's handler requeues the job; the signal must not end the child.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with_parent(parent)


def _torchrun_without_traceback(arguments: list[str]) -> int:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # no C++ stacks with an error that is caught below
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    del os.environ["TORCH_CPP_LOG_LEVEL"]  # the ranks keep their logs
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main(arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 128 - code
    except SignalException:
        return SIGTERM_EXIT
    except DistError as error:  # before any rank has started
        print(f"rpr-cli: torchrun: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_torchrun_without_traceback(sys.argv[1:]))
