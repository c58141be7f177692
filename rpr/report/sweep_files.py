"""What the files of sweeps say of how their runs are reported: description, baseline, best_of, paper."""

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from rpr import paper
from rpr.errors import RecordError
from rpr.paths import sweep_files
from rpr.records.position import called
from rpr.records.record import Record


def sweep_files_of(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """The files of the sweeps that these runs belong to, as `sweep_file` has each."""
    return [sweep_file(name) for name in dict.fromkeys(name for run in runs for name in run.sweeps)]


def usual_baseline(runs: Sequence[Record]) -> str:
    """What runs that are trained alike are compared with: sinusoids, else what the file of their sweep names, else the
    paper's row.
    """
    of_files = (str(name) for each in sweep_files_of(runs) if (name := each.get("baseline")))
    papers = f"relative-k{paper.MODELS[paper.size_of(runs[0].model_name)].clip_distance}"
    return next((name for name in ("absolute", *of_files, papers) if called(name, runs)), "absolute")


def sweep_file(sweep: str) -> dict[str, Any]:
    """What the file of a sweep says, nothing if no sweep of this name has one. Raises RecordError if unreadable."""
    path = sweep_files().get(sweep)  # never a path: a record could name any
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecordError(
            f"{path}: cannot be read as a sweep ({' '.join(str(error).split())}); mend it, or give it another name"
        ) from None
    return content if isinstance(content, dict) else {}
