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


def sweep_files_of(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """The files of the sweeps that these runs belong to, as far as a sweep of the name has one. Raises RecordError if
    one cannot be read.
    """
    paths = sweep_files()  # never a path: a record could name any
    names = dict.fromkeys(name for run in runs for name in run.sweeps if name in paths)
    return [_read(paths[name], paths[name].stat().st_mtime_ns) for name in names]


@lru_cache
def _read(path: Path, _changed: int) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise RecordError(f"{path}: cannot be read as a sweep ({why}); mend it, or give it another name") from None
    return content if isinstance(content, dict) else {}


def usual_baseline(runs: Sequence[Record]) -> str:
    """What runs that are trained alike are compared with: sinusoids, else what the file of their sweep names, else the
    paper's row.
    """
    of_files = (str(name) for file in sweep_files_of(runs) if (name := file.get("baseline")))
    papers = f"relative-k{paper.MODELS[paper.size_of(runs[0].model_name)].clip_distance}"
    return next((name for name in ("absolute", *of_files, papers) if called(name, runs)), "absolute")


def named_in(files: Iterable[dict[str, Any]], *settings: str) -> set[str]:
    """The values of these settings that sweeps' files name: published figures stand beside the corpora of a file that
    says so, and seeds were fixed before any run.
    """
    parts = (part for file in files for key in ("overrides", "jobs") if isinstance(part := file.get(key), list))
    words = (word for part in parts for line in part if isinstance(line, str) for word in line.split())
    pairs = (word.partition("=") for word in words)
    return {value for name, _, values in pairs if name in settings for value in values.split(",")}
