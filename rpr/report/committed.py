"""Render committed records again: the report and the page of paired tests of each folder, and the page on all results.

`python -m rpr.report.committed sweeps` (`make results`) also keeps of the metrics of each record only what a report
reads: a fifth of the bytes.
"""

import json
import sys
from pathlib import Path

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.metrics import read_metrics
from rpr.records.record import METRICS_NAME, find_records
from rpr.report.build import CURVES, build_report, read_remarks
from rpr.report.paired import as_markdown, from_json
from rpr.report.results_page import results_markdown

TESTS_NAME = "compare.json"  # what `rpr-cli compare ... format=json` printed, while the translations were there


def thinned(metrics: Path) -> str:
    """The metrics of a committed record without the columns that no report reads."""
    rows = [{key: row[key] for key in ("step", *CURVES) if key in row} for row in read_metrics(metrics)]
    return "".join(json.dumps(row) + "\n" for row in rows if len(row) > 1)


def render_report(folder: Path, out_dir: Path) -> None:
    """The report of a sweep's folder. Raises RecordError if a record is damaged, or `out_dir` cannot be written."""
    files = find_records(folder)
    report = build_report(files.records, out_dir, f"Sweep {folder.name}", files.problems, remarks=read_remarks(folder))
    if report.problems:
        raise RecordError("; ".join(report.problems))


def paired_page(document: Path) -> str:
    """The Markdown page of a folder's paired tests."""
    return as_markdown(from_json(document.read_text(encoding="utf-8"))) + "\n"


def render(sweeps: Path) -> None:
    """Everything below a folder like sweeps/ of the repository."""
    for metrics in sorted(sweeps.rglob(f"*.{METRICS_NAME}")):
        replace_file(metrics, thinned(metrics))
    for page in sorted(sweeps.rglob("report.md")):
        render_report(page.parent, page.parent)
    for document in sorted(sweeps.rglob(TESTS_NAME)):
        replace_file(document.with_suffix(".md"), paired_page(document))
    replace_file(sweeps / "RESULTS.md", results_markdown(sweeps / "results"))


if __name__ == "__main__":
    render(Path(sys.argv[1]))
