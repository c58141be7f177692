"""rpr-cli runs: lists the runs of a folder, and removes runs by name."""

import json
import os
import shutil
from contextlib import ExitStack
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from rpr.config.commands import RunsConfig
from rpr.errors import ConfigError, RecordError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import RECORD_NAME
from rpr.report.render import Column, Grid, aligned, as_json, layout, legend, wrapped
from rpr.runs import locks

_UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}  # of an age, in seconds


class Row(NamedTuple):
    """A run; of one with a damaged record, the time of its file and the damage as the reason for no score."""

    folder: Path
    started: datetime
    status: str
    score: Measurement  # of the first split that findings are of
    metric: str = ""
    steps: str = ""
    digits: int = 0
    run_id: str | None = None


def run(config: RunsConfig) -> None:
    root = user_path(config.runs_dir)
    if not root.is_dir():
        raise RecordError(f"runs_dir: {root} is not a folder; train something first (rpr-cli sweep quick)")
    paths = (path for path in root.glob(f"*/{RECORD_NAME}") if not path.parent.name.startswith("."))
    rows = sorted(map(_row, paths), key=attrgetter("started"), reverse=True)
    if config.remove:
        _remove([_folder(name, rows) for name in config.remove])
    elif config.format == "json":
        print(json.dumps(as_json(_grid(rows)), indent=2, ensure_ascii=False))
    else:
        page = layout(grid := _grid(rows), 2)
        notes = [line for at, text in enumerate(page.footnotes, start=1) for line in wrapped([text], f"[{at}] ")]
        print("\n".join([*aligned(page), *notes, *wrapped(legend([grid]))]))


def _row(path: Path) -> Row:
    try:
        record, _ = locks.current_record(path)
        started = datetime.fromisoformat(record.started).astimezone(UTC)
    except (RecordError, ValueError) as error:
        return Row(path.parent, datetime.fromtimestamp(path.lstat().st_mtime, UTC), "damaged", missing(str(error)))
    kind, steps = record.kind, f"{record.steps or 0:,}/{record.max_steps:,}"
    scores = [score for score in record.scores if score.metric == kind.metric]
    best = min(scores, key=lambda score: [*kind.splits, score.split].index(score.split), default=None)
    figure = missing(record.outcome or "not measured") if best is None else single(best.score, best.interval)
    metric = f"{best.split} {best.metric}" if best else ""
    return Row(path.parent, started, record.status, figure, metric, steps, kind.printed_digits, record.run_id)


def _grid(rows: list[Row]) -> Grid:
    def age(row: Row) -> str:
        seconds = max((datetime.now(UTC) - row.started).total_seconds(), 1)
        return next(f"{seconds // size:.0f} {unit}" for unit, size in _UNITS.items() if seconds >= size)

    columns = (
        Column("name", "name", lambda row: escape_control_characters(row.folder.name), label=True),
        Column("status", "status", attrgetter("status"), words=True),
        Column("metric", "metric", attrgetter("metric"), words=True),
        Column("score", "score", attrgetter("score"), digits=max((row.digits for row in rows), default=0)),
        Column("steps", "steps", attrgetter("steps")),
        Column("age", "age", age),
        Column("started", "started", lambda row: row.started.isoformat(), priority=3),
        Column("megabytes", "MB", lambda row: single(_bytes(row.folder) / 1e6)),
    )
    return Grid("runs", "", columns, tuple(rows))


def _bytes(folder: Path) -> int:
    """The size of its files; links are not followed, and a run may remove files meanwhile."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(path).st_size for path in paths if os.path.lexists(path))


def _folder(name: str, rows: list[Row]) -> Path:
    folders = [row.folder for row in rows if name in (row.folder.name, row.run_id) and not row.folder.is_symlink()]
    if len(folders) != 1:
        rule = f"names {len(folders)} runs whose folder is not a link"
        raise ConfigError(f"remove: {name!r} {rule}; give a name that `rpr-cli runs` lists")
    return folders[0]


def _remove(folders: list[Path]) -> None:
    """Remove the folders; none if another process holds one of the runs."""
    hidden = {folder: folder.with_name(f".{folder.name}.{os.getpid()}.removed") for folder in folders}
    try:
        with ExitStack() as held:  # out of sight at once: a run that is half removed must not pass for one
            for folder in hidden:
                held.enter_context(locks.acquire(folder))
            for folder, aside in hidden.items():
                folder.rename(aside)
        for folder, aside in hidden.items():
            shutil.rmtree(aside)
            print(escape_control_characters(f"removed {folder}"))
    except OSError as error:
        raise RecordError(f"remove: {error.filename}: {error.strerror}; remove it yourself") from None
