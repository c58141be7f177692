"""Render the committed records: `python -m rpr.report.committed sweeps reports` (`make results`).

Each sweep's whole report goes into a folder below the second one; report.md and at most two pictures stay beside its
records. The page on all results is rendered too.
"""

import re
import sys
from pathlib import Path

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.record import RECORDS_NAME, find_records
from rpr.report.build import build_report, read_remarks
from rpr.report.paired import as_markdown, from_json
from rpr.report.results_page import results_markdown

TESTS_NAME = "compare.json"  # what `rpr-cli compare ... format=json` printed, while the translations were there
_PICTURE = re.compile(r"!\[[^\n]*\]\(([^\n]*\.svg)\)\n\n?")
_BY_POSITION = "scores_by_position"


def render_report(folder: Path, out_dir: Path) -> None:
    """The report of a sweep's folder. Raises RecordError if a record is damaged, or `out_dir` cannot be written."""
    files = find_records(folder)
    report = build_report(files.records, out_dir, f"Sweep {folder.name}", files.problems, remarks=read_remarks(folder))
    if report.problems:
        raise RecordError("; ".join(report.problems))


def keep(report: Path, folder: Path) -> None:
    """Copy report.md beside the records, with the first picture by position and the first of another kind."""
    text = (report / "report.md").read_text(encoding="utf-8")
    names = _PICTURE.findall(text)
    kinds = ([name for name in names if name.startswith(_BY_POSITION) == by_position] for by_position in (True, False))
    kept = [of_kind[0] for of_kind in kinds if of_kind]
    for picture in folder.glob("*.svg"):
        picture.unlink()
    for name in kept:
        replace_file(folder / name, (report / name).read_bytes())
    replace_file(folder / "report.md", _PICTURE.sub(lambda picture: picture[0] if picture[1] in kept else "", text))


def paired_page(document: Path) -> str:
    """The Markdown page of a folder's paired tests."""
    return as_markdown(from_json(document.read_text(encoding="utf-8"))) + "\n"


def render(sweeps: Path, reports: Path) -> None:
    """Everything below a folder like sweeps/ of the repository."""
    for folder in sorted(path.parent for path in sweeps.rglob(RECORDS_NAME)):
        report = reports / folder.relative_to(sweeps)
        render_report(folder, report)
        keep(report, folder)
        if (document := folder / TESTS_NAME).is_file():
            replace_file(report / "compare.md", paired_page(document))
    replace_file(sweeps / "RESULTS.md", results_markdown(sweeps))


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))
