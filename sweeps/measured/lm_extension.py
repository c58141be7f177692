"""RoPE stretched to longer contexts without training: bits per byte of finished runs of `rpr-cli sweep lm_length
position=rope`, for each way of stretching by the factor that the context needs.

    python sweeps/measured/lm_extension.py runs/*-rope-*   # prints the document lm_extension/rope of documents.jsonl
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rpr.records.record import Git, read_record
from rpr.records.scores import ByContext

FACTORS = (4, 16)


def evaluated(run: Path, scaling: str, factor: int, of_training: ByContext) -> list[dict[str, Any]]:
    """Scores by length in separate windows and in sliding ones, on the bytes that the run itself was scored on: which
    these are depends on the longest length.
    """
    trained, longest = of_training.training_length, max(score.length for score in of_training.scores)
    settings = {"scaling": scaling, "scaling_factor": factor}
    settings |= {"trained_length": trained} if scaling == "yarn" else {}
    position = ",".join(f"{key}:{value}" for key, value in settings.items())
    lengths = ",".join(str(length) for length in sorted({trained, *(each * trained for each in FACTORS), longest}))
    windows = [f"context_lengths=[{lengths}]", f"stride={of_training.stride or 'null'}"]
    words = ["rpr-cli", "evaluate", str(run), *windows, f"position={{{position}}}", "format=json"]
    [by_context] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)["by_context"]
    for name in ("num_bytes", "num_documents"):
        assert by_context[name] == getattr(of_training, name), f"{run}: scored on other bytes than in its record"
    scores: list[dict[str, Any]] = by_context["scores"]
    return scores


def rows_of(run: Path) -> Iterator[dict[str, Any]]:
    record = read_record(run / "record.json")
    [by_context] = record.by_context
    trained = by_context.training_length
    of_training = [asdict(score) for score in by_context.scores]
    for factor in FACTORS:
        for scaling in ("none", "linear", "ntk", "yarn"):
            for score in of_training if scaling == "none" else evaluated(run, scaling, factor, by_context):
                if score["length"] in (trained, factor * trained):
                    row = {"run_id": record.run_id, "seed": record.seed, "scaling": scaling, "factor": factor}
                    yield row | {name: score[name] for name in ("windows", "length", "bits_per_byte")}


if __name__ == "__main__":
    rows = [row for run in sys.argv[1:] for row in rows_of(Path(run))]
    print(json.dumps({"commit": Git.here().commit, "rows": rows}, indent=1))
