"""What the files of sweeps say of how their runs are reported: description, baseline, best_of, paper, seeds."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from rpr import paper
from rpr.errors import RecordError
from rpr.paths import sweep_files
from rpr.records.position import called
from rpr.records.record import Record


def sweep_file(sweep: str) -> dict[str, Any]:
    """What the file of a sweep says, nothing if no sweep of this name has one. Raises RecordError if unreadable."""
    path = sweep_files().get(sweep)  # never a path: a record could name any
    return {} if path is None else _read(path, path.stat().st_mtime_ns)


@lru_cache
def _read(path: Path, _changed: int) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise RecordError(f"{path}: cannot be read as a sweep ({why}); mend it, or give it another name") from None
    return content if isinstance(content, dict) else {}


def sweep_files_of(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """The files of the sweeps that these runs belong to."""
    return [sweep_file(name) for name in dict.fromkeys(name for run in runs for name in run.sweeps)]


def usual_baseline(runs: Sequence[Record]) -> str:
    """What runs that are trained alike are compared with: sinusoids, else what the file of their sweep names, else the
    paper's row.
    """
    of_files = (str(name) for file in sweep_files_of(runs) if (name := file.get("baseline")))
    papers = f"relative-k{paper.MODELS[paper.size_of(runs[0].model_name)].clip_distance}"
    return next((name for name in ("absolute", *of_files, papers) if called(name, runs)), "absolute")


def corpora_of(file: dict[str, Any]) -> set[str]:
    """The corpora that a sweep's file names: figures that stand beside its runs are not of others."""
    return {name for key in ("data", "data.name") for name in _values(file, key)}


def seeds_of(runs: Iterable[Record]) -> set[int]:
    """The seeds that the files of the runs' sweeps name; empty if they name none."""
    return {int(seed) for file in sweep_files_of(runs) for seed in _values(file, "seed") if seed.isdigit()}


def _values(file: dict[str, Any], setting: str) -> list[str]:
    lines = [line for key in ("overrides", "jobs") if isinstance(part := file.get(key), list) for line in part]
    pairs = (word.partition("=") for line in lines if isinstance(line, str) for word in line.split())
    return [value for name, _, values in pairs if name == setting for value in values.split(",")]
