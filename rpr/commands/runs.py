"""rpr-cli runs: lists the runs of a folder, and removes runs by name."""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rpr.commands.printing import findings, score_text, table
from rpr.config.commands import RunsConfig
from rpr.errors import ConfigError, RecordError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.record import RECORD_NAME
from rpr.report.render import wrapped
from rpr.runs import locks


def run(config: RunsConfig) -> None:
    """Prints a table of the runs, newest first, or one JSON document; or removes those named."""
    root = user_path(config.runs_dir)
    if not root.is_dir():
        raise RecordError(f"runs_dir: {root} is not a folder; train something first (rpr-cli sweep quick)")
    paths = [path for path in root.glob(f"*/{RECORD_NAME}") if not path.parent.name.startswith(".")]
    if config.remove:
        _remove([path.parent for path in paths], config.remove)
        return
    rows = sorted(map(_row, paths), key=lambda row: str(row["started"]), reverse=True)
    print(json.dumps({"runs": rows}, indent=2, ensure_ascii=False) if config.format == "json" else _as_text(rows))


def _row(path: Path) -> dict[str, Any]:
    """A run, with the score of the first split that findings are of; `problem` says why it has none."""
    files = (file for file in path.parent.rglob("*") if file.is_file() and not file.is_symlink())
    row: dict[str, Any] = {"name": path.parent.name, "megabytes": sum(file.lstat().st_size for file in files) / 1e6}
    try:
        record, _ = locks.current_record(path)
        started = datetime.fromisoformat(record.started).astimezone(UTC)
    except (RecordError, ValueError) as error:
        started = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
        return row | {"status": "damaged", "started": started.isoformat(), "problem": str(error)}
    row |= {"status": record.status, "started": started.isoformat(), "steps": record.steps, "of": record.max_steps}
    if (best := next(iter(findings(record)), None)) is None:
        return row | {"problem": record.outcome or "not measured"}
    return row | {"metric": f"{best.split} {best.metric}", "score": best.score, "shown": score_text(best)}


def _as_text(rows: list[dict[str, Any]]) -> str:
    notes, cells = list[str](), []
    for row in rows:
        shown, started = row.get("shown", ""), datetime.fromisoformat(row["started"]).astimezone()
        if "problem" in row:
            notes.append(f"[{len(notes) + 1}] {row['problem']}")
            shown = f"[{len(notes)}]"
        steps = f"{row['steps'] or 0:,}/{row['of']:,}" if "of" in row else ""
        texts = [escape_control_characters(row["name"]), row["status"], row.get("metric", "")]
        cells.append([*texts, shown, steps, f"{started:%Y-%m-%d %H:%M}", f"{row['megabytes']:,.1f}"])
    lines = table(["name", "status", "metric", "score", "steps", "started", "MB"], cells, texts=3)
    return "\n".join([*lines, *wrapped(notes)]) or "no runs"


def _remove(folders: list[Path], names: Sequence[str]) -> None:
    """Remove the runs of these names, or ids at the end of names; none if another process holds one of them."""
    hidden: dict[Path, Path] = {}
    for name in names:
        own = [path for path in folders if name in (path.name, path.name.rpartition("-")[2]) and not path.is_symlink()]
        if len(own) != 1:
            rule = f"names {len(own)} runs whose folder is not a link"
            raise ConfigError(f"remove: {name!r} {rule}; give a name that `rpr-cli runs` lists")
        hidden[own[0]] = own[0].with_name(f".{own[0].name}.{os.getpid()}.removed")
    with ExitStack() as held:  # out of sight at once: a run that is half removed must not pass for one
        for folder in hidden:
            held.enter_context(locks.acquire(folder))
        for folder, aside in hidden.items():
            folder.rename(aside)
    for folder, aside in hidden.items():
        shutil.rmtree(aside)
        print(escape_control_characters(f"removed {folder}"))
