"""Render the committed records: `python -m rpr.report.committed sweeps reports` (`make results`).

Each sweep's whole report goes into a folder below the second one; report.md and two or three pictures stay beside its
records. sweeps/RESULTS.md is sweeps/RESULTS.md.j2 with the figures of these reports.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, StrictUndefined

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.record import RECORDS_NAME, find_records
from rpr.report.groups import Group, published, run_groups, run_key
from rpr.report.page import build_report, read_beside, read_remarks
from rpr.report.render import Shown, layout, number
from rpr.report.tables import Tables

_PICTURE = re.compile(r"!\[[^\n]*\]\(([^\n]*\.svg)\)\n\n?")


def render(sweeps: Path, reports: Path) -> None:
    """Everything below a folder like sweeps/ of the repository."""
    page = (sweeps / "RESULTS.md.j2").read_text(encoding="utf-8")
    for folder in sorted(path.parent for path in sweeps.rglob(RECORDS_NAME)):
        report = reports / folder.relative_to(sweeps)
        render_report(folder, report)
        # Beside the records: report.md, a picture by position, of recall, by step or another, and those of RESULTS.md.
        text = (report / "report.md").read_text(encoding="utf-8")
        names = sorted(_PICTURE.findall(text), key=lambda name: "change_by" not in name)
        kept = {*{"".join(re.findall("scores_by|recall_map", name)): name for name in reversed(names)}.values()}
        kept |= {name for name in names if f"{folder.relative_to(sweeps)}/{name}" in page}
        for file in folder.glob("*.svg"):
            file.unlink()
        for name in kept:
            replace_file(folder / name, (report / name).read_bytes())
        for picture in [match[0] for match in _PICTURE.finditer(text) if match[1] not in kept]:
            text = text.replace(picture, "")
        replace_file(folder / "report.md", text)
    replace_file(sweeps / "RESULTS.md", results_markdown(sweeps))


def render_report(folder: Path, out_dir: Path) -> None:
    """The report of a sweep's folder. Raises RecordError if a record is damaged, or `out_dir` cannot be written."""
    files = find_records(folder)
    report = build_report(files.records, out_dir, f"Sweep {folder.name}", files.problems, remarks=read_remarks(folder))
    if report.problems:
        raise RecordError("; ".join(report.problems))


def results_markdown(sweeps: Path) -> str:
    """The page. Raises RecordError if a sweep that it names has no records, UndefinedError if it lacks a row."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["signed"] = partial(number, signed=True)
    environment.globals |= {helper.__name__: partial(helper, sweeps / "results") for helper in (rows, losses)}
    names = sorted(path.parent.name for path in (sweeps / "results").glob("*/report.md"))
    lines = map(json.loads, (sweeps / "measured" / "documents.jsonl").read_text(encoding="utf-8").splitlines())
    measured = {(line["page"], line["name"]): line["document"] for line in lines}
    template = environment.from_string((sweeps / "RESULTS.md.j2").read_text(encoding="utf-8"))
    return template.render(sweeps=names, measured=measured, theirs=theirs)


@cache
def _group(results: Path, sweep: str, baseline: str | None = None, **asked: str | int) -> Group:
    records = find_records(results / sweep).records
    beside = {run_key(record): read_beside(path, record, []) for path, record in records}
    groups = run_groups((record for _, record in records), beside, baseline, published=True)
    chosen = (one for one in groups if {*filter(None, asked.values())} <= {one.data, one.max_steps, one.distinctly()})
    return max(chosen, key=lambda group: len(group.finished))


def rows(
    results: Path, sweep: str, table: str = "scores", *, digits: int | None = None, **of_group: str | int | None
) -> dict[str, dict[str, Shown]]:
    """The cells of a table of a sweep by the label of their row and the key of their column."""
    group = _group(results, sweep, **of_group)
    [grid] = [grid for grid in Tables([group]).grids if grid.name == table]
    columns = [column if digits is None else column._replace(digits=digits) for column in grid.columns]
    page = layout(replace(grid, columns=columns))
    return {line[0].text: {column.key: cell for column, cell in zip(columns, line, strict=True)} for line in page.lines}


def losses(results: Path, sweep: str, label: str, step: int) -> float:
    """The mean change of a row's validation loss from the baseline's at a step of training, in bits."""
    group = _group(results, sweep)
    row = next(row for row in group.variants if row.label == label)
    sides = [{seed: of.curves["validation/loss"] for seed, of in side.beside.items()} for side in (row, group.baseline)]
    return fmean(sides[0][seed][step] - sides[1][seed][step] for seed in sides[0].keys() & sides[1]) / math.log(2)


def theirs(task: str, length: int) -> dict[str, float]:
    """The published figures of a task at a length by the kind of positions."""
    known = {"task": task, "length": length}.items()
    return {str(row.match["kind"]): row.figure for row in published() if known <= row.match.items()}


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))
