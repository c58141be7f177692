"""Run records as a table for pandas: `rpr.records`."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from rpr.errors import RecordError
from rpr.paths import user_path
from rpr.records.record import Record, find_records, flat

_FACTS = ("name", "run_id", "status", "seed", "error", "device", "concurrent_jobs", "steps", "parameters")
_MEASURED = ("steps_per_second", "target_tokens_per_second", "train_loss", "validation_loss")


def frame(folder: str | Path) -> pd.DataFrame:
    """A row for each run with a record below `folder`, as in a report (one for a run that is there twice): facts, speed
    and losses, scores `SPLIT/METRIC` with `/low` and `/high` of their interval, and every setting of the configuration
    by its dotted name. `rerun_of` is the run id of what a rerun repeats, which is a row of its own if its corpus lies
    elsewhere; a killed run is still `running`. What a run does not have is missing. Warns of each record that cannot be
    read, and raises RecordError if there is none.
    """
    root = user_path(folder)
    records, problems, _ = find_records(root)
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    if not records:
        raise RecordError(f"{root}: no run record below this folder; give the runs_dir of trained runs")
    return pd.DataFrame([_row(path.parent, record.shown()) for path, record in records])


def _row(folder: Path, record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _FACTS} | {"folder": str(folder)}
    row |= {name: getattr(record.training, name, None) for name in _MEASURED}
    row["rerun_of"] = getattr(record.rerun_of, "run_id", None)
    row["data.key"] = getattr(record.data, "key", None)  # the settings of a corpus do not say that its files changed
    for score in record.scores:
        name = f"{score.split}/{score.metric}"
        row[name] = score.score
        if score.interval is not None:
            row |= {f"{name}/low": score.interval.low, f"{name}/high": score.interval.high}
    for key, value in flat(record.config).items():
        row.setdefault(key, tuple(value) if isinstance(value, list) else value)  # tuples, by which rows can be grouped
    return row
