"""The ledger of a sweep: its jobs and their status.

No status is stored that could become stale. The status of a job is read each time from its run's own record and lock,
which the run itself writes, however it ends. Only the list of jobs of the last start is stored
(`<runs_dir>/.sweeps/<name>.json`), so that changes of the sweep are noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rpr.config.train import TrainConfig, config_from_record
from rpr.data.cache import cache_key
from rpr.errors import RecordError, RprError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters
from rpr.io.locks import exclusive
from rpr.paths import user_path
from rpr.records.record import (
    LOG_NAME,
    RECORD_NAME,
    Record,
    find_records,
    read_record,
)
from rpr.runs.lifecycle import unwritable
from rpr.runs.locks import Holder, current_holder

State = Literal["new", "finished", "failed", "interrupted", "running"]
SWEEPS = ".sweeps"
_LAST_LINES = 5


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its overrides, and the folder where it is or will be."""

    overrides: tuple[str, ...]
    config: TrainConfig
    run_dir: Path


class JobStatus(NamedTuple):
    """The status of a job. `record` is None for a new one; `holder` is set for a running one."""

    state: State
    record: Record | None
    holder: Holder | None


def unique_jobs(made: Iterable[tuple[Sequence[str], TrainConfig]]) -> list[Job]:
    """The jobs of a sweep, each run once: settings that apply to all jobs can make two of them identical."""
    jobs: dict[tuple[Path, str], Job] = {}
    for overrides, config in made:
        root = user_path(config.runs_dir).absolute()
        jobs.setdefault((root, config.run_id), Job(tuple(overrides), config, root / config.run_dir_name))
    return _locate_runs(list(jobs.values()))


def _locate_runs(jobs: list[Job]) -> list[Job]:
    """Point jobs to their finished runs in other folders: runs of another name, or with the same corpus read from
    another path.
    """
    lacking = [job for job in jobs if not job.run_dir.exists()]
    moved = _find_by_id(lacking)
    moved |= _find_by_corpus([job for job in lacking if job.config.data.path and job.run_dir not in moved])
    return [Job(job.overrides, job.config, moved.get(job.run_dir, job.run_dir)) for job in jobs]


def _find_by_id(jobs: Iterable[Job]) -> dict[Path, Path]:
    """Finished runs of another name. A folder's name ends with the run id, so only records that may match are read."""
    lacking: dict[Path, dict[str, Job]] = {}
    for job in jobs:
        lacking.setdefault(job.run_dir.parent, {})[job.config.run_id] = job
    moved: dict[Path, Path] = {}
    for root, wanted in lacking.items():
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            run_id = folder.name.rpartition("-")[2]
            if run_id in wanted and _is_finished(folder / RECORD_NAME, run_id):
                moved.setdefault(wanted[run_id].run_dir, folder)
    return moved


def _is_finished(path: Path, run_id: str) -> bool:
    try:
        record = read_record(path)
    except RecordError:  # not of this sweep: no reason to stop
        return False
    return record.status == "finished" and record.run_id == run_id


def _find_by_corpus(jobs: Iterable[Job]) -> dict[Path, Path]:
    """Finished runs with the same corpus from another path. Only records name the corpus, so all of them are read."""
    lacking = {_result_key(job.config): job for job in jobs}
    moved: dict[Path, Path] = {}
    for root in {job.run_dir.parent for job in lacking.values()}:
        for path, record in find_records(root).records if root.is_dir() else []:
            if record.status != "finished" or record.data is None or path.name != RECORD_NAME:
                continue
            try:
                job = lacking.get(_result_key(config_from_record(record.config)))
                if job is not None and record.data.key == cache_key(job.config.data):
                    moved[job.run_dir] = path.parent.absolute()
            except RprError:  # a record of another version, or a missing corpus, which the run itself will report
                continue
    return moved


def _result_key(config: TrainConfig) -> str:
    """The run's id without the path of its corpus."""
    return config.model_copy(update={"data": config.data.model_copy(update={"path": None})}).run_id


def job_status(run_dir: Path) -> JobStatus:
    """The status of the run in a folder.

    Raises:
        RecordError: its record is damaged.
    """
    path = run_dir / RECORD_NAME
    if not path.exists():
        holder = current_holder(run_dir)
        return JobStatus("running" if holder else "new", None, holder)
    record = read_record(path)
    if record.status == "finished":
        return JobStatus("finished", record, None)
    if (holder := current_holder(run_dir)) is not None:
        return JobStatus("running", record, holder)
    record = read_record(path)  # again: it may have finished in between
    if record.status == "finished":
        return JobStatus("finished", record, None)
    # A record that says "running", while no process holds the run, is that of a killed run.
    return JobStatus("failed" if record.status == "failed" else "interrupted", record, None)


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


def diff_manifest(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> str | None:
    """How the jobs differ from those when the sweep was last started; None if they do not, and the first time."""
    path = runs_dir / SWEEPS / f"{sweep}.json"
    try:
        earlier = {*json.loads(path.read_text(encoding="utf-8"))["jobs"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return f"{path} cannot be read, so changes of the sweep are unknown"
    now = {job.run_dir.name for job in jobs}
    if now == earlier:
        return None
    return (
        f"{len(now - earlier)} of its {len(now)} jobs are new, {len(earlier - now)} were removed (their runs are kept)"
    )


def save_manifest(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> None:
    """Store the list of the sweep's jobs.

    Raises:
        ConfigError: the folder cannot be written.
    """
    document = {"schema": 1, "sweep": sweep, "jobs": [job.run_dir.name for job in jobs]}
    try:
        with exclusive(runs_dir / SWEEPS, f"{sweep}.json"):
            replace_file(runs_dir / SWEEPS / f"{sweep}.json", json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise unwritable(runs_dir, error) from None
