"""The status of a sweep before and after a launch, and what is printed of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

from rpr.compose.composition import train_command
from rpr.config.train import TrainConfig
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, ProcessEnded, RecordError, RunError
from rpr.paths import user_path
from rpr.records.record import Record, find_records
from rpr.runs import lifecycle
from rpr.runs.schemes import check_same_code
from rpr.sweep import ledger
from rpr.sweep.ledger import Job, JobStatus, State

_BEFORE: Mapping[State, str] = {
    "new": "new",
    "finished": "finished",
    "interrupted": "interrupted, will resume",
    "failed": "failed before",
    "running": "running in another process",
}
_AFTER: Mapping[State, str] = {
    **_BEFORE,
    "new": "never started",
    "interrupted": "interrupted",
    "failed": "failed",
}


@dataclass(frozen=True)
class SweepStatus:
    """The jobs of a sweep, each with its status when it was read."""

    sweep: str
    jobs: tuple[tuple[Job, JobStatus], ...]
    config_dir: Path | None = None  # of --config-dir, for the commands of single jobs

    @property
    def roots(self) -> list[Path]:
        """The folders of its runs."""
        return sorted({user_path(job.config.runs_dir) for job, _ in self.jobs})

    def of(self, *states: State) -> list[tuple[Job, JobStatus]]:
        return [(job, own) for job, own in self.jobs if own.state in states]

    def todo(self, *, retry_failed: bool) -> list[tuple[Job, JobStatus]]:
        """The jobs to launch."""
        return self.of("new", "interrupted", *(("failed",) if retry_failed else ()))

    def counts(self, names: Mapping[State, str]) -> str:
        """`9 jobs: 3 finished, 6 new`."""
        counts = [(len(self.of(state)), state) for state in get_args(State)]
        parts = [f"{count} {names[state]}" for count, state in counts if count]
        return f"{len(self.jobs)} job{'s' if len(self.jobs) > 1 else ''}: {', '.join(parts)}"


def load_status(
    sweep: str, made: Sequence[tuple[Sequence[str], TrainConfig]], config_dir: Path | None = None
) -> SweepStatus:
    """Read the status of every job; check that its corpus exists, and that its record, if any, can be read.

    Raises:
        ConfigError: a record is damaged, a corpus has changed since its run, or several jobs have one name.
        RecordError: the code of a run's positions has changed.
        DataError: a corpus on disk cannot be read.
    """
    _check_names([config for _, config in made])
    corpora = {config.data.model_dump_json(): config.data for _, config in made if config.data.path}
    for data in corpora.values():  # one on the hub is checked by the first job that needs it
        cache_key(data)
    jobs = ledger.unique_jobs(made)
    if repeated := len(made) - len(jobs):
        print(f"sweep {sweep}: {repeated} of its {len(made)} jobs are duplicates of others", file=sys.stderr)
    statuses = []
    for job in jobs:
        try:
            own = ledger.job_status(job.run_dir)
        except RecordError as error:
            raise ConfigError(f"{error}; or move {job.run_dir} away to start its job from scratch") from None
        if job.config.again and own.state != "running":
            own = ledger.JobStatus("new", None, None)
        if (record := own.record) is not None:
            check_same_code(job.config.position, record)
        if record is not None and record.status == "finished":
            lifecycle.check_same_corpus(job.config, job.run_dir, record)
        statuses.append((job, own))
    return SweepStatus(sweep, tuple(statuses), config_dir)


def _check_names(configs: Sequence[TrainConfig]) -> None:
    jobs = {config.run_id: config.name for config in configs}
    for name, count in Counter(name for name in jobs.values() if name is not None).items():
        if count > 1:
            raise ConfigError(
                f"name: {name} would be shared by {count} of the {len(jobs)} jobs, but run names must be unique; leave "
                "name out to name each job after its settings"
            )


def prepare_launch(status: SweepStatus, *, retry_failed: bool) -> list[Job]:
    """Print the status of the sweep and add finished runs to it; returns the jobs to launch."""
    print(f"sweep {status.sweep}: {status.counts(_BEFORE)}", file=sys.stderr)
    jobs = [job for job, _ in status.jobs]
    if former := sum(len(ledger.runs_of_no_job(root, status.sweep, jobs)) for root in status.roots):
        print(f"  {former} of its runs are not among these jobs; they stay, and in its reports", file=sys.stderr)
    _add_finished_runs(status)
    otherwise = [
        lifecycle.reported_otherwise(job.config, own.record) for job, own in status.of("finished") if own.record
    ]
    if names := sorted({f"evaluation.{name}" for differing in otherwise for name in differing}):
        print(
            f"  {sum(map(bool, otherwise))} of the finished runs were scored with other {' and '.join(names)}; "
            "rpr-cli evaluate RUN scores a run again",
            file=sys.stderr,
        )
    return [job for job, _ in status.todo(retry_failed=retry_failed)]


def _add_finished_runs(status: SweepStatus) -> None:
    for job, own in status.of("finished"):
        assert own.record is not None
        if status.sweep not in own.record.sweeps:
            lifecycle.add_to_sweep(job.run_dir, status.sweep)


def commands(status: SweepStatus, *, retry_failed: bool) -> list[str]:
    """The jobs as commands, each below a comment with its status and estimated cost."""
    from rpr.runs.checkpoints import checkpoints
    from rpr.sweep.cost import costs

    records = [record for root in status.roots for _, record in find_records(root).records]
    estimates = costs([job.config for job, _ in status.jobs], records)
    lines, remaining, todo = [], [], status.todo(retry_failed=retry_failed)
    for number, ((job, own), cost) in enumerate(zip(status.jobs, estimates, strict=True), start=1):
        lines.append(f"# {number} of {len(status.jobs)}, {_BEFORE[own.state]}: {cost.text}")
        lines.append(train_command(job.overrides, status.config_dir))
        if (job, own) in todo:
            saved = checkpoints(job.run_dir / "checkpoints") if own.state != "new" else []
            left = 1 - saved[-1][0] / job.config.optim.max_steps if saved else 1.0
            remaining.append(None if cost.seconds is None else left * cost.seconds)
    known = [seconds for seconds in remaining if seconds is not None]
    total = f"about {timedelta(seconds=round(sum(known)))} of training, one after another" if known else "time unknown"
    if 0 < len(known) < len(remaining):
        total += f", plus {len(remaining) - len(known)} of unknown time"
    return [*lines, f"# {status.counts(_BEFORE)}" + (f"; remaining: {total}" if remaining else "")]


def print_summary(before: SweepStatus, problems: Mapping[tuple[str, ...], RunError]) -> int:
    """Print a line and the last output of each unfinished job, then the counts. Returns the exit code of the sweep: 0
    when every job is finished.

    Args:
        before: the status before the launch.
        problems: the launcher's error of a job, by its overrides.
    """
    after = replace(before, jobs=tuple((job, ledger.job_status(job.run_dir)) for job, _ in before.jobs))
    _add_finished_runs(after)  # those that another process has finished in the meantime
    failures = 0
    for job, own in after.jobs:
        problem = problems.get(job.overrides)
        if own.state == "running":
            print(f"rpr-cli: {job.run_dir.name}: in use by {own.holder}", file=sys.stderr)
        elif own.state != "finished" or problem is not None:
            failures += 1
            how = "interrupted" if own.state == "interrupted" else "failed"
            print(f"rpr-cli: {how}: {job.run_dir.name}: {failure_reason(own.record, problem)}", file=sys.stderr)
            for line in ledger.last_lines(job.run_dir):
                print(f"    {line}", file=sys.stderr)
            print(f"  to retry: {train_command(job.overrides, before.config_dir)}", file=sys.stderr)
    print(f"sweep {after.sweep}: {after.counts(_AFTER)}", file=sys.stderr)
    if after.of("failed"):
        print("  retry_failed=true runs failed jobs again, from their last checkpoint", file=sys.stderr)
    elsewhere = len(after.of("running"))
    if elsewhere:
        print(
            f"  the sweep is incomplete: {elsewhere} of its jobs {'is' if elsewhere == 1 else 'are'} running in "
            "another process; rerun the command later to check again",
            file=sys.stderr,
        )
    return 1 if failures or elsewhere else 0


def failure_reason(record: Record | None, problem: RunError | None) -> str:
    """Why a job has no result: what the launcher reports now, rather than what its record says of an earlier attempt.
    If the process ended without a result, the launcher knows only its exit status; the record has the reason, if it
    could still be written.
    """
    reasons = [str(problem) if problem else None, record.error if record else None]
    if isinstance(problem, ProcessEnded):
        reasons.reverse()
    return next((text for text in reasons if text), "never started")
