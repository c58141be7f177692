"""Starting the processes of a run: a fresh one for each job of a sweep, torchrun for several ranks.

Lightning's own launcher re-runs sys.argv, which in a Hydra multirun is the whole sweep; torchrun is given the one job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from rpr.config import HardwareConfig
from rpr.errors import ConfigError, RunError

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


def run_worker(module: str, job: Path, hardware: HardwareConfig) -> None:
    """Run `python -m <module> <job>` on as many ranks as the hardware has, and wait for it.

    Raises:
        ConfigError: several nodes without torchrun having started this process.
        RunError: a process ended with an error.
    """
    if hardware.num_nodes > 1:
        raise ConfigError(
            f"hardware.num_nodes: {hardware.num_nodes} nodes are started by torchrun, one command on each node: "
            f"torchrun --nnodes {hardware.num_nodes} --nproc-per-node {hardware.devices} --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29500 -m rpr.app train ..."
        )
    command = [sys.executable, "-m", module, str(job)]
    if hardware.devices > 1:
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={hardware.devices}", "--max-restarts=0"]
        command = [sys.executable, "-m", *torchrun, "-m", module, str(job)]
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    if hardware.devices > 1:
        environment.setdefault("OMP_NUM_THREADS", str(hardware.threads or 1))
    code = _wait(command, environment)
    if code:
        raise RunError(f"the training process ended with exit code {code}; its message stands above")


def _wait(command: list[str], environment: dict[str, str]) -> int:
    """Run to the end; whatever ends this process first ends the child too."""
    child = subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent)

    def stop(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread (joblib's threads): the parent's own handler stands
        previous = None
    try:
        return child.wait()
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _die_with_parent() -> None:
    """Linux: SIGTERM when the parent dies, even by SIGKILL. Elsewhere: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
