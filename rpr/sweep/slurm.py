"""Fills gaps in submitit's SLURM support: whether a job is still queued, how a job ends when one of its nodes fails,
and what submitit's errors mean.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rpr.environment import MEMORY_VARIABLES
from rpr.errors import RunError
from rpr.io.escape import note
from rpr.paths import SCHEMES_DIR

_POLL_SECONDS = 10.0  # between queries of the queue, which one process makes for all of its jobs
_SILENT_SECONDS = 3600.0  # for which squeue may fail: a controller may be restarted


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
        minutes = f"{_SILENT_SECONDS / 60:g} minutes"
        reason = (problem.strip().splitlines() or ["no reason given"])[-1]
        if self._silent_since is None:
            self._silent_since = self._queried
            note(f"squeue does not list the remaining jobs ({reason}); trying again for {minutes}")
        elif self._queried - self._silent_since > _SILENT_SECONDS:
            raise RunError(
                f"squeue has not listed the remaining jobs for {minutes} ({reason}); they may still run: rerun the "
                "same command when SLURM answers"
            )


def follow_jobs() -> None:
    """From now on this process follows its submitted jobs by the queue, a job without a result has failed without
    ending the wait for the others, and a job ends as a whole when one of its nodes fails: otherwise the first node
    would wait for the others. A job runs the code of this process also where SLURM passes no environment on.
    """
    from hydra.core.utils import JobReturn, JobStatus
    from submitit.slurm.slurm import SlurmExecutor, SlurmJob

    job: Any = SlurmJob
    executor: Any = SlurmExecutor
    results = job.results

    def results_or_failure(self: Any) -> list[Any]:
        try:
            return list(results(self))
        except Exception as error:
            return [JobReturn(status=JobStatus.FAILED, _return_value=RunError(format_error(error)))]

    job.results = results_or_failure
    job.watcher = Queue()
    executor._submitit_command_str = property(_job_command)


def _job_command(executor: Any) -> str:
    """What srun runs on each node, where the job's script calls submitit's module by srun and its flags."""
    kept = ("PYTHONPATH", SCHEMES_DIR, *MEMORY_VARIABLES)  # also where SLURM passes no environment on
    own = {"PYTHONSAFEPATH": "1", "SUBMITIT_EXECUTOR": "slurm", **{name: os.environ.get(name) for name in kept}}
    variables = [f"{name}={value}" for name, value in own.items() if value]
    python = [sys.executable, "-u", "-m", "submitit.core._submit", str(executor.folder)]
    # Which srun does not take from the job's request (SLURM 22.05 to 23.02).
    cores = [f"--cpus-per-task={asked}"] if (asked := executor.parameters.get("cpus_per_task")) else []
    return shlex.join(["--kill-on-bad-exit=1", *cores, "/usr/bin/env", *variables, *python])


def format_error(error: Exception) -> str:
    """A launcher's error in one line; for a job without a result, with the last message in its nodes' logs."""
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
