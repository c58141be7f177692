"""The tables under sweeps/results/ and sweeps/RESULTS.md against the records: rendered again, they are the same bytes.

So no figure there is typed by hand, and a change of the rendering shows as a change of these files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rpr.records.record import find_records
from rpr.report.build import build_report
from rpr.report.results_page import results_markdown

RESULTS = Path(__file__).resolve().parents[2] / "sweeps" / "results"
SWEEPS = sorted(path.parent for path in RESULTS.glob("*/report.md"))


@pytest.mark.parametrize("folder", SWEEPS, ids=lambda folder: folder.name)
def test_committed_tables_are_rendered_from_the_committed_records(folder: Path, tmp_path: Path) -> None:
    found = find_records(folder)
    assert not found.problems
    assert all(record.status == "finished" for _, record in found.records)
    build_report(found.records, tmp_path, f"Sweep {folder.name}", found.problems, show_samples=False)
    for name in ("report.md", "report.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), f"{folder.name}/{name}: render it again"


def test_the_page_of_all_results_is_rendered_from_the_committed_records() -> None:
    assert SWEEPS
    page = RESULTS.parent / "RESULTS.md"
    remedy = "render it again: rpr-cli report runs_dir=sweeps/results results_page=sweeps/RESULTS.md"
    assert page.read_text(encoding="utf-8") == results_markdown(RESULTS), remedy
