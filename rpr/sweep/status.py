"""The jobs of a sweep, their status before and after a launch, and what is printed of it.

Nothing is stored that could become stale: the status of a job, and which runs belong to the sweep, are read each time
from the runs' own records and locks, which the runs themselves write, however they end.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from rpr.compose.composition import train_command
from rpr.config.data import DataConfig
from rpr.config.train import TrainConfig, config_from_record
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, ProcessEnded, RecordError, RprError, RunError
from rpr.io.escape import escape_control_characters, note
from rpr.paths import user_path
from rpr.records.position import check_same_code
from rpr.records.record import LOG_NAME, RECORD_NAME, Record, find_records, read_record
from rpr.runs import lifecycle
from rpr.runs.locks import Holder, current_holder, current_record

State = Literal["new", "finished", "failed", "interrupted", "running"]
_BEFORE: Mapping[State, str] = {
    "new": "new",
    "finished": "finished",
    "interrupted": "interrupted, will resume",
    "failed": "failed before",
    "running": "running in another process",
}
_AFTER: Mapping[State, str] = {**_BEFORE, "new": "never started", "interrupted": "interrupted", "failed": "failed"}
_LAST_LINES = 5


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its overrides, the folder where it is or will be, and its status when it was read. A new one
    has no `record`; `holder` is the process of a running one.
    """

    overrides: tuple[str, ...]
    config: TrainConfig
    run_dir: Path
    state: State = "new"
    record: Record | None = None
    holder: Holder | None = None

    def read(self) -> Job:
        """The job with its status now; raises RecordError if its record is damaged."""
        path = self.run_dir / RECORD_NAME
        if path.exists():
            record, holder = current_record(path)
            return replace(self, state="running" if holder else record.status, record=record, holder=holder)
        holder = current_holder(self.run_dir)
        return replace(self, state="running" if holder else "new", record=None, holder=holder)


def unique_jobs(made: Iterable[tuple[Sequence[str], TrainConfig]]) -> list[Job]:
    """The jobs of a sweep, each run once: settings that apply to all jobs can make two of them identical. Those that
    have finished in another folder, as runs of another name or with the same corpus from another path, have that one,
    but with again=true, which trains in their own.
    """
    jobs: dict[tuple[Path, str], Job] = {}
    for overrides, config in made:
        root = user_path(config.runs_dir).absolute()
        jobs.setdefault((root, config.run_id), Job(tuple(overrides), config, root / config.run_dir_name))
    lacking = {key: job for key, job in jobs.items() if not (job.config.again or job.run_dir.exists())}
    moved = _find_by_id(lacking)
    moved |= _find_by_corpus([job for job in lacking.values() if job.config.data.path and job.run_dir not in moved])
    return [replace(job, run_dir=moved.get(job.run_dir, job.run_dir)) for job in jobs.values()]


def _find_by_id(jobs: Mapping[tuple[Path, str], Job]) -> dict[Path, Path]:
    """Finished runs of another name. A folder's name ends with the run id, so only records that may match are read."""
    moved: dict[Path, Path] = {}
    for root in {root for root, _ in jobs}:
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            if (job := jobs.get((root, folder.name.rpartition("-")[2]))) is None:
                continue
            with contextlib.suppress(RecordError):  # not of this sweep: no reason to stop
                record = read_record(folder / RECORD_NAME)
                if record.status == "finished" and record.run_id == job.config.run_id:
                    moved.setdefault(job.run_dir, folder)
    return moved


def _find_by_corpus(jobs: Iterable[Job]) -> dict[Path, Path]:
    """Finished runs with the same corpus from another path. Only records name the corpus, so all of them are read."""
    key_of = functools.cache(cache_key)
    lacking: dict[str, list[Job]] = {}  # several that differ in nothing but the path of their corpora
    for job in jobs:
        lacking.setdefault(_result_key(job.config), []).append(job)
    moved: dict[Path, Path] = {}
    for root in {job.run_dir.parent for alike in lacking.values() for job in alike}:
        for path, record in find_records(root).records if root.is_dir() else []:
            if record.status != "finished" or record.data is None or path.name != RECORD_NAME:
                continue
            alike: Sequence[Job] = ()
            with contextlib.suppress(RprError):  # another version's
                alike = lacking.get(_result_key(config_from_record(record.config)), ())
            for job in alike:
                with contextlib.suppress(RprError):  # a missing corpus, which the run will report
                    if record.data.key == key_of(job.config.data):
                        moved[job.run_dir] = path.parent.absolute()
    return moved


def _result_key(config: TrainConfig) -> str:
    """The run's id without the path of its corpus."""
    return config.model_copy(update={"data": config.data.model_copy(update={"path": None})}).run_id


def load_status(sweep: str, made: Sequence[tuple[Sequence[str], TrainConfig]]) -> list[Job]:
    """Read the status of every job; check that its corpus exists, and that its record, if any, can be read. Raises
    ConfigError if a record is damaged, a corpus has changed since its run, or several jobs have one name; RecordError
    if the code of a run's positions has changed; DataError if a corpus on disk cannot be read.
    """
    _check_names([config for _, config in made])
    key_of = functools.cache(cache_key)  # once for a corpus, which may have many files
    for _, config in made:  # one on the hub is checked by the first job that needs it
        if config.data.path:
            key_of(config.data)
    jobs = unique_jobs(made)
    if repeated := len(made) - len(jobs):
        _print(f"sweep {sweep}: {repeated} of its {len(made)} jobs are duplicates of others")
    return [_checked(job, key_of) for job in jobs]


def _checked(job: Job, key_of: Callable[[DataConfig], str]) -> Job:
    try:
        now = job.read()
    except RecordError as error:
        raise ConfigError(f"{error}; or move {job.run_dir} away to start its job from scratch") from None
    if job.config.again and now.state != "running":
        return job
    if now.record is not None:
        check_same_code(job.config.position, now.record)
        if now.record.status == "finished":
            lifecycle.check_same_corpus(job.config, job.run_dir, now.record, key_of)
    return now


def print_cautions(jobs: Sequence[Job]) -> None:
    """Of the unfinished jobs, each line once."""
    configs = {job.run_dir: job.config for job in jobs if job.state != "finished"}
    for line, number in Counter(line for config in configs.values() for line in lifecycle.cautions(config)).items():
        note(f"warning: {line} ({number} of {len(configs)} jobs)")
    if alike := [*filter(None, (lifecycle.trained_alike(config, run_dir) for run_dir, config in configs.items()))]:
        note(
            f"{len(alike)} of {len(configs)} jobs differ from finished runs in their evaluation alone; to score those "
            f"again instead, the first by: {alike[0]}"
        )


def _check_names(configs: Sequence[TrainConfig]) -> None:
    jobs = {config.run_id: config.name for config in configs}
    for name, count in Counter(name for name in jobs.values() if name is not None).items():
        if count > 1:
            raise ConfigError(
                f"name: {name} would be shared by {count} of the {len(jobs)} jobs, but run names must be unique; leave "
                "name out to name each job after its settings"
            )


def prepare_launch(sweep: str, jobs: Sequence[Job], *, retry_failed: bool) -> list[Job]:
    """Print the status of the sweep and add finished runs to it; returns the jobs to launch."""
    _print(f"sweep {sweep}: {_counts(jobs, _BEFORE)}")
    if former := sum(_runs_of_no_job(root, sweep, jobs) for root in _roots(jobs)):
        _print(f"  {former} of its runs are not among these jobs; they stay, and in its reports")
    _add_finished_runs(sweep, jobs)
    finished = [(job, job.record) for job in _in_state(jobs, "finished") if job.record is not None]
    by_job = [(job, record, lifecycle.reported_otherwise(job.config, record)) for job, record in finished]
    if otherwise := [differing for differing in by_job if differing[2]]:
        names = sorted({f"evaluation.{name}" for *_, differing in otherwise for name in differing})
        job, record, _ = otherwise[0]
        _print(
            f"  {len(otherwise)} of the finished runs were scored with other {' and '.join(names)}; to score the first "
            f"again: {lifecycle.score_again(job.config, job.run_dir, record)}"
        )
    return _to_launch(jobs, retry_failed=retry_failed)


def _command(job: Job, of_launcher: Sequence[str], config_dir: Path | None) -> str:
    """The command that runs this job alone where the sweep runs it, also after it has failed: `of_launcher` are the
    launcher's words, with which it is a sweep of its own.
    """
    again = ["retry_failed=true"] if of_launcher and job.state == "failed" else []
    return train_command([*of_launcher, *job.overrides, *again], config_dir)


def commands(jobs: Sequence[Job], of_launcher: Sequence[str], config_dir: Path | None) -> list[str]:
    """The commands of the jobs, below a comment each with its status; at the end the tokens of those not finished."""
    lines = []
    for number, job in enumerate(jobs, start=1):
        lines.append(f"# {number} of {len(jobs)}, {_BEFORE[job.state]}")
        lines.append(_command(job, of_launcher, config_dir))
    left = [job.config for job in jobs if job.state != "finished"]
    recipes = [config.optim for config in left]
    tokens = sum(one.max_steps * one.microbatches_per_step * one.max_tokens_per_microbatch for one in recipes)
    side = " a side" if any(config.model.architecture == "encoder_decoder" for config in left) else ""
    amount = f"; to train: at most {tokens / 1e6:,.2f} M tokens{side}" if left else ""
    return [*lines, f"# {_counts(jobs, _BEFORE)}{amount}"]


def print_summary(
    sweep: str,
    before: Sequence[Job],
    problems: Mapping[tuple[str, ...], RunError],
    of_launcher: Sequence[str],
    config_dir: Path | None,
) -> int:
    """Print a line and the last output of each unfinished job, then the counts. Returns the exit code of the sweep: 0
    when every job is finished. `problems` are the launcher's errors of jobs, by their overrides.
    """
    jobs = [job.read() for job in before]
    _add_finished_runs(sweep, jobs)  # those that another process has finished in the meantime
    failures = 0
    for job in jobs:
        problem = problems.get(job.overrides)
        if job.state == "running":
            note(f"{job.run_dir.name}: in use by {job.holder}")
        elif job.state != "finished" or problem is not None:
            failures += 1
            how = "interrupted" if job.state == "interrupted" else "failed"
            note(f"{how}: {job.run_dir.name}: {_failure_reason(job.record, problem)}")
            for line in last_lines(job.run_dir):
                _print(f"    {line}")
            _print(f"  to retry: {_command(job, of_launcher, config_dir)}")
    _print(f"sweep {sweep}: {_counts(jobs, _AFTER)}")
    if _in_state(jobs, "failed"):
        _print("  retry_failed=true runs failed jobs again, from their last checkpoint")
    elsewhere = len(_in_state(jobs, "running"))
    if elsewhere:
        _print(
            f"  the sweep is incomplete: {elsewhere} of its jobs {'is' if elsewhere == 1 else 'are'} running in "
            "another process; rerun the command later to check again"
        )
    return 1 if failures or elsewhere else 0


def last_lines(run_dir: Path) -> list[str]:
    """The last lines that a job's process printed; empty if it printed nothing."""
    try:
        with (run_dir / LOG_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return [escape_control_characters(line.expandtabs()) for line in lines if line][-_LAST_LINES:]


def _failure_reason(record: Record | None, problem: RunError | None) -> str:
    """Why a job has no result: what the launcher reports now, rather than what its record says of an earlier attempt.
    If the process ended without a result, the launcher knows only its exit status; the record has the reason, if it
    could still be written.
    """
    reasons = [str(problem) if problem else None, record.error if record else None]
    if isinstance(problem, ProcessEnded):
        reasons.reverse()
    return next((text for text in reasons if text), "never started")


def _in_state(jobs: Sequence[Job], *states: State) -> list[Job]:
    return [job for job in jobs if job.state in states]


def _to_launch(jobs: Sequence[Job], *, retry_failed: bool) -> list[Job]:
    return _in_state(jobs, "new", "interrupted", *(("failed",) if retry_failed else ()))


def _counts(jobs: Sequence[Job], names: Mapping[State, str]) -> str:
    """`9 jobs: 3 finished, 6 new`."""
    counts = [(len(_in_state(jobs, state)), state) for state in get_args(State)]
    parts = [f"{count} {names[state]}" for count, state in counts if count]
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}: {', '.join(parts)}"


def _roots(jobs: Sequence[Job]) -> list[Path]:
    """The folders of their runs."""
    return sorted({user_path(job.config.runs_dir) for job in jobs})


def _runs_of_no_job(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> int:
    """How many runs of this sweep are not among these jobs: its definition has changed, or the command narrows it."""
    folders, ids = {job.run_dir for job in jobs}, {job.config.run_id for job in jobs}
    runs = find_records(runs_dir, sweep).records
    return sum(path.parent.absolute() not in folders and run.run_id not in ids for path, run in runs)


def _add_finished_runs(sweep: str, jobs: Sequence[Job]) -> None:
    for job in _in_state(jobs, "finished"):
        if job.record is not None and sweep not in job.record.sweeps:
            lifecycle.add_to_sweep(job.run_dir, sweep)


def _print(line: str) -> None:
    print(line, file=sys.stderr)
