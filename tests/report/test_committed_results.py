"""Rendering the committed records again gives the committed tables and sweeps/RESULTS.md byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpr.records.record import find_records
from rpr.report.build import build_report
from rpr.report.results_page import results_markdown

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))


@pytest.mark.parametrize("folder", REPORTED, ids=lambda folder: folder.name)
def test_committed_tables_match_their_records(folder: Path, tmp_path: Path) -> None:
    found = find_records(folder)
    assert not found.problems
    assert all(record.status == "finished" for _, record in found.records)
    build_report(found.records, tmp_path, f"Sweep {folder.name}", found.problems)
    for name in ("report.md", "report.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), f"{folder.name}/{name}: render it again"


def test_results_page_matches_the_records() -> None:
    assert REPORTED
    page = SWEEPS / "RESULTS.md"
    remedy = "render it again: rpr-cli report runs_dir=sweeps/results results_page=sweeps/RESULTS.md"
    assert page.read_text(encoding="utf-8") == results_markdown(SWEEPS / "results"), remedy
