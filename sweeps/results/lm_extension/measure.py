"""RoPE stretched to longer contexts without training: bits per byte of finished runs of `rpr-cli sweep lm_length
position=rope`, for each way of stretching by the factor that the context needs.

    python sweeps/results/lm_extension/measure.py runs/*-rope-* > sweeps/results/lm_extension/rope.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rpr.records.provenance import git_state
from rpr.records.record import read_record

FACTORS = (4, 16)


def evaluated(run: Path, scaling: str, factor: int, trained: int, stride: int | None) -> list[dict[str, Any]]:
    """Scores at the length of training and at `factor` times it, in separate windows and in sliding ones."""
    settings = {"scaling": scaling, "scaling_factor": factor}
    settings |= {"trained_length": trained} if scaling == "yarn" else {}
    position = ",".join(f"{key}:{value}" for key, value in settings.items())
    windows = [f"context_lengths=[{trained},{factor * trained}]", f"stride={stride or 'null'}"]
    words = ["rpr-cli", "evaluate", str(run), *windows, f"position={{{position}}}", "format=json"]
    [by_context] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)["by_context"]
    scores: list[dict[str, Any]] = by_context["scores"]
    return scores


def rows_of(run: Path) -> Iterator[dict[str, Any]]:
    record = read_record(run / "record.json")
    [by_context] = record.by_context
    trained, stride = by_context.training_length, by_context.stride
    of_training = [asdict(score) for score in by_context.scores]
    for factor in FACTORS:
        for scaling in ("none", "linear", "ntk", "yarn"):
            for score in of_training if scaling == "none" else evaluated(run, scaling, factor, trained, stride):
                if score["length"] in (trained, factor * trained):
                    row = {"run_id": record.run_id, "seed": record.seed, "scaling": scaling, "factor": factor}
                    yield row | {name: score[name] for name in ("windows", "length", "bits_per_byte")}


if __name__ == "__main__":
    rows = [row for run in sys.argv[1:] for row in rows_of(Path(run))]
    print(json.dumps({"commit": git_state().commit, "rows": rows}, indent=1))
