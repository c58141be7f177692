"""Rendering the committed records again gives the committed tables and sweeps/RESULTS.md byte for byte.

`python -m tests.report.test_committed_results` (`make results`) writes them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rpr.records.record import find_records
from rpr.report.build import build_report
from rpr.report.results_page import results_markdown

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))
PAGE = SWEEPS / "RESULTS.md"
REMEDY = "render it again: make results"


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


if __name__ == "__main__":
    for reported in REPORTED:
        render(reported, reported)
    PAGE.write_text(results_markdown(SWEEPS / "results"), encoding="utf-8")
