"""The jobs of a sweep in SLURM, by submitit: what they request, whether they are still queued, how a job ends when one
of its nodes fails, and what submitit's errors mean.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpr.compose import hydra_bridge
from rpr.compose.composition import override_key
from rpr.config.train import HardwareConfig, config_from_record
from rpr.environment import MEMORY_VARIABLES
from rpr.errors import BusyError, ConfigError, RunError
from rpr.io.escape import note
from rpr.paths import SCHEMES_DIR, user_path
from rpr.sweep import pool
from rpr.sweep.status import Job

_OF_MACHINE = ("hardware", "hardware.devices", "hardware.num_nodes", "runs_dir")
_POLL_SECONDS = 10.0  # between queries of the queue, which one process makes for all of its jobs
_SILENT_SECONDS = 3600.0  # for which squeue may fail: a controller may be restarted


def request(
    job: Sequence[str], typed: Sequence[str], hardware: Sequence[HardwareConfig], config_dir: Path | None
) -> dict[str, Any]:
    """What each job asks SLURM for, as hydra.launcher has it: by the hardware of a job (hardware=slurm_8xgpu brings its
    launcher) and the settings `typed` for Hydra; empty if the jobs run on this machine. Raises ConfigError for several
    requests.
    """
    from omegaconf import OmegaConf

    words = [word for word in job if override_key(word) in _OF_MACHINE]
    launcher = hydra_bridge.compose("train", [*words, *typed], config_dir, with_hydra=True).hydra.launcher
    if launcher["_target_"].endswith("BasicLauncher"):
        return {}
    if len({(machine.name, machine.devices, machine.num_nodes) for machine in hardware}) > 1:
        raise ConfigError("hardware: all jobs of a sweep request the same SLURM nodes; give one command for each value")
    asked: dict[str, Any] = OmegaConf.to_container(launcher, resolve=True)  # type: ignore[assignment]
    return asked


def executor(asked: Mapping[str, Any]) -> Any:
    """Submitit's executor of such jobs; raises ConfigError without SLURM. A job ends as a whole when one of its nodes
    fails, else the first node would wait for the others. It runs the code of this process also where SLURM passes no
    environment on.
    """
    from submitit.slurm.slurm import SlurmExecutor, SlurmJob

    class Executor(SlurmExecutor):  # type: ignore[misc, unused-ignore]
        @property
        def _submitit_command_str(self) -> str:
            """What srun runs on each node, where the job's script calls submitit's module by srun and its flags."""
            kept = ("PYTHONPATH", SCHEMES_DIR, *MEMORY_VARIABLES)
            own = {"PYTHONSAFEPATH": "1", "SUBMITIT_EXECUTOR": "slurm", **{name: os.environ.get(name) for name in kept}}
            variables = [f"{name}={value}" for name, value in own.items() if value]
            python = [sys.executable, "-u", "-m", "submitit.core._submit", str(self.folder)]
            # Which srun does not take from the job's request (SLURM 22.05 to 23.02).
            cores = [f"--cpus-per-task={number}"] if (number := self.parameters.get("cpus_per_task")) else []
            return shlex.join(["--kill-on-bad-exit=1", *cores, "/usr/bin/env", *variables, *python])

    watched: Any = SlurmJob
    watched.watcher = Queue()
    parameters = {name: value for name, value in asked.items() if value is not None and name != "_target_"}
    folder, limit = user_path(parameters.pop("submitit_folder")), parameters.pop("max_num_timeout")
    try:
        made = Executor(folder, max_num_timeout=limit)
    except RuntimeError as error:
        raise ConfigError(f"hydra/launcher: {error} Start this command there, or choose another hardware=") from None
    made.update_parameters(**made._convert_parameters(parameters))
    return made


@dataclass(frozen=True)
class Task:
    """What a SLURM job runs on each of its nodes; when it is requeued, it is called again, and the run resumes."""

    config: Mapping[str, Any]
    command: str

    def __call__(self) -> RunError | None:
        """Returns the one-line error of a job without a result."""
        from rpr.commands import train

        try:
            config = config_from_record(self.config)
            train.run(config, command=self.command, concurrent_jobs=1, in_launcher=True)
        except Exception as error:
            problem = pool.as_problem(error)
            if self.config["hardware"]["num_nodes"] > 1:
                note(str(problem))
                raise SystemExit(train.FAULT_EXIT) from None  # ends the SLURM job, whose other nodes wait for this one
            # In use by another process: reported at the end, with its holder.
            return None if isinstance(error, BusyError) else problem
        return None

    def checkpoint(self) -> Any:
        """For submitit, before SLURM's time limit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run(jobs: Sequence[Job], commands: Sequence[str], executor: Any) -> dict[tuple[str, ...], RunError]:
    """Submit all jobs, each with its command for its record, and wait for them; a failed or lost job does not stop the
    others. Returns the one-line error of each job that did not succeed. How far a run has come is in its record.
    """
    try:
        with executor.batch():
            tasks = [Task(job.config.model_dump(mode="json"), words) for job, words in zip(jobs, commands, strict=True)]
            submitted = [executor.submit(task) for task in tasks]
    except Exception as error:  # of sbatch
        note(f"SLURM: {format_error(error)}")
        return {}
    problems = {}
    for job, waited in zip(jobs, submitted, strict=True):
        try:
            problem = waited.results()[0]
        except Exception as error:  # of a lost job, or of the queue
            problem = RunError(format_error(error))
        if problem is not None:
            problems[job.overrides] = problem
    return problems


class Queue:
    """Whether jobs are still in SLURM's queue, with the interface of submitit's `InfoWatcher`. A job with a result is
    recognised by its file; this finds those without: cancelled, timed out, lost with their node.

    submitit's own watcher asks sacct. Where SLURM has no accounting it would warn at every query, and wait for ever for
    a cancelled job. A job that is in the queue is waited for however long that takes: SLURM has its limits.
    """

    def __init__(self) -> None:
        self._queued: frozenset[str] | None = None  # None: unknown
        self._queried = float("-inf")
        self._silent_since: float | None = None

    def register_job(self, job_id: str) -> None:
        """A job has been submitted since the last query."""
        self._queued, self._queried = None, float("-inf")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether the job has left the queue; False while that is unknown. `mode`: "force" queries now, "cache" does
        not query.

        Raises RunError when squeue has failed for _SILENT_SECONDS.
        """
        if mode == "force" or (mode == "standard" and time.monotonic() - self._queried > _POLL_SECONDS):
            self._query()
        return self._queued is not None and job_id not in self._queued

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """In words, for a message."""
        return "no longer queued" if self.is_done(job_id, mode) else "queued"

    def _query(self) -> None:
        self._queried = time.monotonic()
        # --array: one line for each job of an array, pending ones included
        command = ["squeue", "--me", "--all", "--array", "--noheader", "--format=%i"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
            problem = answer.stderr if answer.returncode else None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is None:
            self._queued, self._silent_since = frozenset(answer.stdout.split()), None
            return
        said = f"squeue does not list the remaining jobs ({' '.join(problem.split())[-200:]})"
        if self._silent_since is None:
            self._silent_since = self._queried
            note(f"{said}; trying again for {_SILENT_SECONDS / 60:g} minutes")
        elif self._queried - self._silent_since > _SILENT_SECONDS:
            raise RunError(f"{said}; they may still run: rerun the same command when SLURM answers")


def format_error(error: Exception) -> str:
    """An error of submitit's in one line; for a job without a result, with the last message in its nodes' logs."""
    lines = str(error).splitlines()
    if len(lines) < 2 or not lines[1].startswith("has not produced any output"):
        return " ".join(str(error).split())[:300]
    job, _, result = lines[0].partition(" with path ")
    logs = [log.read_text("utf-8", "replace") for log in sorted(Path(result).parent.glob("*_log.err"))]
    messages = [line for log in logs for line in log.splitlines() if line.startswith("rpr-cli: ")]
    last = f"; its last message: {messages[-1].removeprefix('rpr-cli: ')}" if messages else ""
    return (
        f"{job} left no result: cancelled, timed out or lost with its node{last}; its logs are in "
        f"{Path(result).parent}; rerun the same command to resume"
    )
