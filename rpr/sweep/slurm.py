"""What submitit leaves open where it submits jobs to SLURM: whether a job is still there, how one ends of which a node
fails, and what its errors mean.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_ASK_SECONDS = 10.0  # between looks at the queue, which one process takes for all of its jobs


class Queue:
    """Whether jobs are still in SLURM's queue, as submitit asks it (its `InfoWatcher`). A job that has a result is told
    by its file; this tells the others: cancelled, out of time, lost with their node.

    submitit itself asks sacct. Where SLURM keeps no accounts it would warn at every look, and wait for a cancelled job
    without end.
    """

    def __init__(self) -> None:
        self._there: frozenset[str] | None = None  # None: not known
        self._asked = float("-inf")
        self._told = False

    def register_job(self, job_id: str) -> None:
        """A job has been submitted, after what is known of the queue."""
        self._there, self._asked = None, float("-inf")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether the job has left the queue; False as long as that is not known. `mode`: "force" looks now, "cache"
        does not look.
        """
        if mode == "force" or (mode == "standard" and time.monotonic() - self._asked > _ASK_SECONDS):
            self._ask()
        return self._there is not None and job_id not in self._there

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """In words, for a message."""
        return "no longer queued" if self.is_done(job_id, mode) else "queued"

    def _ask(self) -> None:
        self._asked = time.monotonic()
        # --array: each job of an array in a line of its own, also those that wait
        asked = ["squeue", "--me", "--all", "--array", "--noheader", "--format=%i"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=60)
            problem = answer.stderr if answer.returncode else None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is None:
            self._there = frozenset(answer.stdout.split())
        elif not self._told:
            self._told = True
            reason = (problem.strip().splitlines() or ["no reason given"])[-1]
            print(f"rpr-cli: squeue does not say which jobs are left ({reason}); still waiting", file=sys.stderr)


def follow_jobs() -> None:
    """From now on this process follows the jobs that it submits by the queue, and a job whose second node fails ends as
    a whole: its first would wait for the second.
    """
    from submitit.slurm.slurm import SlurmJob

    job: Any = SlurmJob
    job.watcher = Queue()
    os.environ.setdefault("SLURM_KILL_BAD_EXIT", "1")  # read by srun in the job, which has this environment


def in_one_line(error: Exception) -> str:
    """What a launcher raised; of a job that left no result, what it said last, on whichever of its nodes."""
    lines = str(error).splitlines()
    if len(lines) < 2 or not lines[1].startswith("has not produced any output"):
        return " ".join(str(error).split())[:300]
    job, _, result = lines[0].partition(" with path ")
    logs = [log.read_text("utf-8", "replace") for log in sorted(Path(result).parent.glob("*_log.err"))]
    said = [line for log in logs for line in log.splitlines() if line.startswith("rpr-cli: ")]
    last = f"; it said: {said[-1].removeprefix('rpr-cli: ')}" if said else ""
    return (
        f"{job} left no result, as if cancelled, out of time or lost with its node{last}; its logs are in "
        f"{Path(result).parent}, and the same command again resumes"
    )
