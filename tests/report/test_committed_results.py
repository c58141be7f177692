"""Rendering the committed records again gives the committed tables and sweeps/RESULTS.md byte for byte.

`python -m tests.report.test_committed_results` (`make results`) writes them, and keeps of the metrics of each record
what a report reads: a fifth of the bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr.records.metrics import read_metrics
from rpr.records.record import METRICS_NAME, find_records
from rpr.report.build import CURVES, build_report
from rpr.report.results_page import results_markdown

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))
PAGE = SWEEPS / "RESULTS.md"
REMEDY = "render it again: make results"
METRICS = sorted(SWEEPS.rglob(f"*.{METRICS_NAME}"))


def thinned(path: Path) -> str:
    """The metrics of a committed record without the columns that no report reads."""
    rows = [{key: row[key] for key in ("step", *CURVES) if key in row} for row in read_metrics(path)]
    return "".join(json.dumps(row) + "\n" for row in rows if len(row) > 1)


def render(folder: Path, out_dir: Path) -> None:
    found = find_records(folder)
    assert not found.problems
    assert all(record.status == "finished" for _, record in found.records)
    build_report(found.records, out_dir, f"Sweep {folder.name}")


@pytest.mark.parametrize("folder", REPORTED, ids=lambda folder: folder.name)
def test_committed_tables_match_their_records(folder: Path, tmp_path: Path) -> None:
    render(folder, tmp_path)
    for name in ("report.md", "report.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), f"{folder.name}/{name}: {REMEDY}"


def test_results_page_matches_the_records() -> None:
    assert REPORTED
    assert PAGE.read_text(encoding="utf-8") == results_markdown(SWEEPS / "results"), REMEDY


def test_committed_metrics_are_thin() -> None:
    assert METRICS
    assert [path.name for path in METRICS if path.read_text(encoding="utf-8") != thinned(path)] == [], REMEDY


if __name__ == "__main__":
    for metrics in METRICS:
        metrics.write_text(thinned(metrics), encoding="utf-8")
    for reported in REPORTED:
        render(reported, reported)
    PAGE.write_text(results_markdown(SWEEPS / "results"), encoding="utf-8")
