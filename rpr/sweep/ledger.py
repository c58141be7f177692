"""The books of a sweep: what each of its jobs is, and how far it has come.

Nothing is kept here that could become untrue. How far a job is, its run's own record and lock say, at the moment they
are asked; they are written by the run itself, whatever ends it. Kept is only which jobs the sweep had when it was last
started (`<runs_dir>/.sweeps/<name>.json`), so that a changed sweep is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rpr.config.train import TrainConfig, of_a_record
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, RecordError, RprError
from rpr.io.atomic import replace_file
from rpr.io.escape import visible
from rpr.io.locks import exclusive
from rpr.records.record import (
    LOG_NAME,
    RECORD_NAME,
    Record,
    find_records,
    flat,
    read_record,
    write_record,
)
from rpr.runs.locks import Holder, holder_of

State = Literal["new", "finished", "failed", "interrupted", "running"]
SWEEPS = ".sweeps"
_LAST_LINES = 5


@dataclass(frozen=True)
class Job:
    """One run of a sweep: the overrides that make it, and the folder where it lies or will lie."""

    overrides: tuple[str, ...]
    config: TrainConfig
    run_dir: Path


class Standing(NamedTuple):
    """How far a job has come. `record` is None for a new one, `holder` is there for a running one."""

    state: State
    record: Record | None
    holder: Holder | None


def jobs_of(made: Iterable[tuple[Sequence[str], TrainConfig]]) -> list[Job]:
    """The jobs of a sweep, each run once: settings given for all of them can make two the same."""
    jobs: dict[tuple[Path, str], Job] = {}
    for overrides, config in made:
        root = Path(config.runs_dir).absolute()
        jobs.setdefault((root, config.run_id), Job(tuple(overrides), config, root / config.run_dir_name))
    return _where_they_lie(list(jobs.values()))


def _where_they_lie(jobs: list[Job]) -> list[Job]:
    """Jobs whose finished run has another folder, since it was given another name, or has read the same corpus from
    another path, pointed there.
    """
    lacking = [job for job in jobs if not job.run_dir.exists()]
    moved = _under_another_name(lacking)
    moved |= _from_another_path([job for job in lacking if job.config.data.path and job.run_dir not in moved])
    return [Job(job.overrides, job.config, moved.get(job.run_dir, job.run_dir)) for job in jobs]


def _under_another_name(jobs: Iterable[Job]) -> dict[Path, Path]:
    """A folder ends with its run's id: only records that may be the ones are read."""
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
    except RecordError:  # of another name: no reason to stop
        return False
    return record.status == "finished" and record.run_id == run_id


def _from_another_path(jobs: Iterable[Job]) -> dict[Path, Path]:
    """Only a record says what was read: all of them are looked at."""
    lacking = {_result_key(job.config): job for job in jobs}
    moved: dict[Path, Path] = {}
    for root in {job.run_dir.parent for job in lacking.values()}:
        for path, record in find_records(root).records if root.is_dir() else []:
            if record.status != "finished" or record.data is None or path.name != RECORD_NAME:
                continue
            try:
                job = lacking.get(_result_key(of_a_record(record.config)))
                if job is not None and record.data.key == cache_key(job.config.data):
                    moved[job.run_dir] = path.parent.absolute()
            except RprError:  # a record of other times, or a corpus that is not there: the run will say so
                continue
    return moved


def _result_key(config: TrainConfig) -> str:
    """The run's id, but for where its corpus lies."""
    return config.model_copy(update={"data": config.data.model_copy(update={"path": None})}).run_id


def standing(run_dir: Path) -> Standing:
    """How far the run in a folder has come.

    Raises:
        RecordError: its record is damaged.
    """
    path = run_dir / RECORD_NAME
    if not path.exists():
        holder = holder_of(run_dir)
        return Standing("running" if holder else "new", None, holder)
    record = read_record(path)
    if record.status == "finished":
        return Standing("finished", record, None)
    if (holder := holder_of(run_dir)) is not None:
        return Standing("running", record, holder)
    record = read_record(path)  # again: it may have ended between the two looks
    if record.status == "finished":
        return Standing("finished", record, None)
    # A record that says "running" without a process that holds the run is of one that was killed.
    return Standing("failed" if record.status == "failed" else "interrupted", record, None)


def join(job: Job, record: Record, sweep: str) -> None:
    """A finished run becomes one of the sweep's."""
    if sweep not in record.sweeps:
        with exclusive(job.run_dir, RECORD_NAME):
            write_record(job.run_dir / RECORD_NAME, record.model_copy(update={"sweeps": (*record.sweeps, sweep)}))


def last_lines(run_dir: Path) -> list[str]:
    """The end of what a job's process printed; empty where it printed nothing."""
    try:
        with (run_dir / LOG_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return [visible(line.expandtabs()) for line in lines if line][-_LAST_LINES:]


def changes(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> list[str]:
    """How the sweep differs from when it was last started, in lines; none the first time."""
    path = runs_dir / SWEEPS / f"{sweep}.json"
    try:
        earlier: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["jobs"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError):
        return [f"{path} cannot be read; whether the sweep has changed is not known"]
    now = _settings_by_run(jobs)
    new, gone = [name for name in now if name not in earlier], [name for name in earlier if name not in now]
    if not new and not gone:
        return []
    lines = []
    if differing := _differing(list(now.values()), [earlier[name] for name in earlier]):
        lines.append("settings that every job had otherwise: " + "; ".join(differing))
    lines.append(f"{len(new)} of its {len(now)} jobs are new, {len(gone)} are in it no more (their runs are kept)")
    return lines


def _differing(now: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> list[str]:
    """`key: a, before b` for each setting that all jobs share now and shared then, with another value."""
    if not now or not earlier:
        return []
    lines = []
    for key in sorted(now[0].keys() | earlier[0].keys()):
        values = [{json.dumps(one.get(key)) for one in group} for group in (now, earlier)]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            lines.append(visible(f"{key} {values[0].pop()} (before: {values[1].pop()})"))
    return lines


def write_down(runs_dir: Path, sweep: str, jobs: Sequence[Job]) -> None:
    """Keep which jobs the sweep has.

    Raises:
        ConfigError: the folder cannot be written.
    """
    document = {"schema": 1, "sweep": sweep, "jobs": _settings_by_run(jobs)}
    try:
        with exclusive(runs_dir / SWEEPS, f"{sweep}.json"):
            replace_file(runs_dir / SWEEPS / f"{sweep}.json", json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(
            f"runs_dir: {runs_dir} cannot be written ({error.strerror}); choose another runs_dir=..."
        ) from None


def _settings_by_run(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    return {job.run_dir.name: flat(job.config.model_dump(mode="json", exclude={"logger"})) for job in jobs}


def damaged(run_dir: Path, error: RecordError) -> ConfigError:
    """What to do about a folder whose record cannot be read."""
    return ConfigError(f"{error}; or move {run_dir} away, and its job starts anew")
