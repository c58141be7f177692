"""Starting the processes of a run: a fresh one for each job of a sweep, torchrun for several ranks.

Lightning's own launcher re-runs sys.argv, which in a Hydra multirun is the whole sweep; torchrun is given the one job.
Run as a module, this file is torchrun without its traceback: the message of the rank that failed stands above it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rpr.config.train import HardwareConfig
from rpr.errors import ConfigError, InterruptedRun
from rpr.signals import SIGTERM_EXIT, die_with_parent, exit_on_sigterm

_RANK_VARIABLES = (
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
GRACE_SECONDS = 15
NODES_WAIT_SECONDS = 3600  # for each other: the first may be preparing the corpus


class Output(NamedTuple):
    """Where a worker's words go: onto the end of a file, and, if `shown`, to this process's stderr as they come."""

    log: Path
    shown: bool


def run_worker(
    module: str,
    job: Path,
    hardware: HardwareConfig,
    *,
    keep_open: Sequence[int] = (),
    output: Output | None = None,
    gpus: Sequence[str] = (),
) -> int:
    """Run `python -m <module> <job>` on as many ranks as the hardware has, and wait for it: the exit code, that of the
    rank that failed first, as a shell counts them (above 128: by a signal).

    Args:
        keep_open: file descriptors that the worker inherits (locks, which are held as long as it lives).
        output: where its stdout and stderr go; None: where this process's do.
        gpus: the only ones that it is to see, as CUDA_VISIBLE_DEVICES names them; none: as this process.

    Raises:
        ConfigError: several nodes, and neither torchrun nor SLURM has started this process on each.
    """
    command = [sys.executable, "-m", module, str(job)]
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if hardware.num_ranks > 1:
        command = [sys.executable, "-m", "rpr.training.launch", *_torchrun(hardware), "-m", module, str(job)]
        environment.setdefault("OMP_NUM_THREADS", str(hardware.threads or 1))
    with contextlib.nullcontext() if output is None else _written(output) as file:
        code = _wait(command, environment, keep_open, file)
    return code if code >= 0 else 128 - code


def _torchrun(hardware: HardwareConfig) -> list[str]:
    """torchrun's own flags for one node, or for this node of several."""
    flags = [f"--nproc-per-node={hardware.devices}", "--max-restarts=0"]
    if hardware.num_nodes == 1:
        return ["--standalone", *flags]
    place = slurm_place(hardware)
    waiting = f"join_timeout={NODES_WAIT_SECONDS},read_timeout={NODES_WAIT_SECONDS}"
    return [
        f"--nnodes={hardware.num_nodes}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={place.job}",
        f"--rdzv-endpoint={place.hosts[0]}:{20000 + place.job % 20000}",  # jobs that share a node have other numbers
        f"--rdzv-conf=is_host={int(place.node == 0)},{waiting}",
        f"--local-addr={place.hosts[place.node]}",  # where the ranks meet, on whichever node torchrun counts first
        *flags,
    ]


class SlurmPlace(NamedTuple):
    """This node's number in its SLURM job, the names of all nodes, and the job's number."""

    node: int
    hosts: tuple[str, ...]
    job: int


def slurm_place(hardware: HardwareConfig) -> SlurmPlace:
    """Where this process is, if submitit started a task on each node.

    Raises:
        ConfigError: it did not.
    """
    try:
        import submitit

        place = submitit.JobEnvironment()
    except (ImportError, RuntimeError):  # not installed, or not in one of its jobs
        place = None
    if place is None or place.num_nodes != hardware.num_nodes:
        raise ConfigError(
            f"hardware.num_nodes: {hardware.num_nodes} nodes are started by SLURM (rpr-cli train -m "
            "hardware=slurm_8xgpu hardware.num_nodes=...), or by torchrun, one command on each node: "
            f"torchrun --nnodes {hardware.num_nodes} --nproc-per-node {hardware.devices} --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29500 -m rpr train ..."
        )
    return SlurmPlace(place.node, tuple(place.hostnames), int(place.raw_job_id))


def check_hosts(place: SlurmPlace) -> None:
    """Refuse nodes whose names mean nothing here: torchrun would try them for an hour, in silence.

    Raises:
        ConfigError: one has no address.
    """
    for host in place.hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            raise ConfigError(
                f"hardware.num_nodes: {socket.gethostname()} knows no address of node {host} ({error.strerror}); the "
                "nodes of a job meet by the names that SLURM gives them: enter them in DNS, or in /etc/hosts of every "
                "node"
            ) from None


@contextmanager
def _written(output: Output) -> Iterator[BinaryIO]:
    """The file, open at its end. Shown is what it grows by: so the child needs nobody to read what it writes."""
    with output.log.open("ab") as file:
        end = threading.Event()
        follower = threading.Thread(target=_follow, args=(output.log, file.tell(), end), name="log", daemon=True)
        if output.shown:
            follower.start()
        try:
            yield file
        finally:
            end.set()
            if output.shown:
                follower.join()


def _follow(log: Path, start: int, end: threading.Event) -> None:
    with log.open("rb") as file:
        file.seek(start)
        last = False
        while not last:
            last = end.wait(0.2)  # and read once more after the end
            if text := file.read():
                sys.stderr.write(text.decode("utf-8", errors="replace"))
                sys.stderr.flush()


def _wait(
    command: list[str], environment: dict[str, str], keep_open: Sequence[int] = (), output: BinaryIO | None = None
) -> int:
    """Run to the end; whatever ends this process first ends the child too.

    The child has a session of its own: Ctrl-C reaches this process alone, which then ends the child in order.
    """
    prepare_child = partial(_in_child, os.getpid())
    child = subprocess.Popen(
        command,
        env=environment,
        preexec_fn=prepare_child,
        start_new_session=True,
        pass_fds=tuple(keep_open),
        stdout=output,
        stderr=output,
    )
    try:
        with exit_on_sigterm():
            return child.wait()
    except Exception as error:  # of submitit's handler of SIGUSR2
        raise InterruptedRun(
            f"SLURM's time is up ({error}); the same command resumes from the last checkpoint"
        ) from None
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _in_child(parent: int) -> None:
    # SLURM tells submitit by SIGUSR2 that time is up; what it starts anew ends the child, the signal must not.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with_parent()
    if os.getppid() != parent:  # it was gone already
        os.kill(os.getpid(), signal.SIGTERM)


def _torchrun_without_traceback(arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main(arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 128 - code
    except SignalException:
        return SIGTERM_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(_torchrun_without_traceback(sys.argv[1:]))
