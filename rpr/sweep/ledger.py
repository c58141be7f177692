"""The ledger of a sweep: its jobs and their status.

Nothing is stored that could become stale: the status of a job, and which runs belong to the sweep, are read each time
from the runs' own records and locks, which the runs themselves write, however they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rpr.config.train import TrainConfig, config_from_record
from rpr.data.cache import cache_key
from rpr.errors import RecordError, RprError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.record import LOG_NAME, RECORD_NAME, Record, find_records, read_record
from rpr.runs.locks import Holder, current_holder, current_record

State = Literal["new", "finished", "failed", "interrupted", "running"]
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
    record, holder = current_record(path)
    return JobStatus("running" if holder else record.status, record, holder)


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


def runs_of_no_job(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> list[Record]:
    """The runs of this sweep that are not among these jobs: its definition has changed, or the command narrows it."""
    folders, ids = {job.run_dir for job in jobs}, {job.config.run_id for job in jobs}
    runs = find_records(runs_dir, sweep).records
    return [run for path, run in runs if path.parent.absolute() not in folders and run.run_id not in ids]
