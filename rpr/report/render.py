"""A table as text for a terminal, Markdown, CSV, LaTeX and JSON; a missing cell is a dash with its reason."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rpr import paper
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES, Interval
from rpr.report.findings import findings
from rpr.report.length_render import length_document, length_latex, length_markdown, length_terminal
from rpr.report.rows import Cell, Column, Row, Table
from rpr.report.text import (
    DASH,
    WIDTH,
    Footnotes,
    aligned,
    cell_text,
    escape_latex,
    escape_markdown,
    interval_note,
    wrapped,
)

INTERVAL_COLUMNS = ("low", "high")  # of the interval over test sentences; only where a record has one
CSV_COLUMNS = (
    *("data", "synthetic", "model", "max_steps", "hardware", "variant", "position"),
    *("split", "test_set", "figure", "mean", "sd", "n", "missing_because"),
)


Reader = Callable[[Row, Footnotes], str]


def _readers(table: Table, intervals: bool) -> list[tuple[str, Reader, int]]:
    """(heading, how to read it from a row, worth) of each column; a narrow terminal drops worth 0, then worth 1."""
    readers: list[tuple[str, Reader, int]] = [
        ("position", lambda row, notes: row.label, 2),
        ("seeds", lambda row, notes: str(len({run.seed for run in row.records if run.status == "finished"})), 2),
    ]
    for column in table.columns:
        first = column.metric == HEADLINE_METRIC
        alike = [other for other in table.columns if (other.split, other.metric) == (column.split, column.metric)]
        where = column.split if len(alike) == 1 else f"{column.split} ({column.test_set})"
        name = "BLEU" if first else column.metric
        readers.append(
            (
                f"{name} {where}",
                _score_reader(column, intervals),
                (1 if column.split == "validation" else 2) if first else 0,
            )
        )
    if not table.columns:
        no_score = Cell(None, reason="no run of this table is scored yet")
        readers.append(("BLEU", lambda row, notes: cell_text(no_score, 1, notes), 2))
    readers += [
        ("paper", lambda row, notes: cell_text(row.paper, 1, notes), 2),
        ("steps/s", lambda row, notes: cell_text(row.steps_per_second, 2, notes), 0),
        ("speed", lambda row, notes: cell_text(row.relative_speed, 2, notes), 2),
    ]
    if any(row.parameters for row in table.rows):
        readers.append(("parameters", _parameters, 0))
    if table.synthetic or any(row.remarks for row in table.rows):
        readers.append(("note", lambda row, notes: _remark(table, row, notes), 2))
    return readers


def _score_reader(column: Column, intervals: bool) -> Reader:
    return lambda row, notes: cell_text(row.cells[column], 1, notes, intervals=intervals)


def _parameters(row: Row, footnotes: Footnotes) -> str:
    if row.parameters is not None:
        return f"{row.parameters / 1e6:.2f} M"
    reason = row.steps_per_second.reason or "not recorded, or not the same for all seeds"
    return f"{DASH} {footnotes.mark(reason)}"


def _remark(table: Table, row: Row, footnotes: Footnotes) -> str:
    marks = [footnotes.mark(remark) for remark in row.remarks]
    return " ".join((["synthetic"] if table.synthetic else []) + marks)


def grid(table: Table, worth: int = 0, *, intervals: bool = True) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, cells and footnotes as text: what every renderer shows, without the columns below `worth`."""
    readers = [reader for reader in _readers(table, intervals) if reader[2] >= worth]
    footnotes = Footnotes()
    cells = [[read(row, footnotes) for _, read, _ in readers] for row in table.rows]
    return [heading for heading, _, _ in readers], cells, footnotes.texts


def legend(table: Table, *, intervals: bool = True) -> list[str]:
    """What the columns mean: below every table, once. `intervals`: whether its cells show them."""
    lines = [
        *table.notes,
        f"paper: BLEU on {paper.TABLE2_TEST_SET}, EN-DE, base model (Tables 2 and 3 of {paper.SOURCE})",
    ]
    if any(cell.n > 1 for row in table.rows for cell in row.cells.values()):
        lines.append("± is the sample standard deviation over the seeds")
    if found := _intervals(table):
        lines.append(interval_note(found[0]) if intervals else "the intervals over the test sentences are in report.md")
    return lines


def _intervals(table: Table) -> list[Interval]:
    return [cell.interval for row in table.rows for cell in row.cells.values() if cell.interval is not None]


def terminal(table: Table) -> str:
    """Aligned text; secondary metrics, then intervals are left to the files when it would pass 100 columns."""
    for worth, intervals in ((0, True), (1, True), (2, True), (2, False)):
        headings, cells, footnotes = grid(table, worth, intervals=intervals)
        text = aligned([heading.replace("validation", "valid.") for heading in headings], cells)
        if max(map(len, text)) <= WIDTH:
            break
    lines = [table.heading, "", *text, ""]
    lines += wrapped([(f"[{number}] ", note) for number, note in enumerate(footnotes, start=1)])
    lines += wrapped([("", note) for note in legend(table, intervals=intervals)])
    lines += length_terminal(table)
    lines += ["", "Findings", *wrapped([("- ", finding) for finding in findings(table)] or [("- ", "none yet")])]
    lines += ["", "Differs from the paper", *wrapped([("- ", difference) for difference in table.differences])]
    return "\n".join(lines) + "\n"


def markdown(table: Table) -> str:
    """One section of Markdown; text from records is escaped."""
    headings, cells, footnotes = grid(table)
    numbers = ["---" if name in ("position", "note") else "---:" for name in headings]
    lines = [
        f"## {escape_markdown(table.heading)}",
        "",
        *[f"- {escape_markdown(finding)}" for finding in findings(table)],
        "",
    ]
    lines += ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in (headings,)]
    lines += [
        "| " + " | ".join(numbers) + " |",
        *["| " + " | ".join(map(escape_markdown, line)) + " |" for line in cells],
        "",
    ]
    lines += [f"- [{number}] {escape_markdown(note)}" for number, note in enumerate(footnotes, start=1)]
    lines += [f"- {escape_markdown(note)}" for note in legend(table)]
    lines += length_markdown(table)
    lines += [
        "",
        "Differs from the paper:",
        "",
        *[f"- {escape_markdown(difference)}" for difference in table.differences],
    ]
    return "\n".join(lines) + "\n"


def csv_rows(tables: Sequence[Table]) -> str:
    """One line per table, variant and figure; a missing figure is an empty field with its reason, never a number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = any(_intervals(table) for table in tables)
    writer.writerow([*CSV_COLUMNS, *(INTERVAL_COLUMNS if ends else ())])
    for table in tables:
        for row in table.rows:
            start = [
                table.data,
                table.synthetic,
                table.model,
                table.max_steps,
                table.hardware,
                table.variant,
                row.label,
            ]
            figures: list[tuple[str, str, str, Cell]] = [
                (c.split, c.test_set, c.metric, cell) for c, cell in row.cells.items()
            ]
            figures += [
                ("", paper.TABLE2_TEST_SET, "paper_bleu", row.paper),
                ("", "", "steps_per_second", row.steps_per_second),
            ]
            figures.append(("", "", "speed_relative_to_absolute", row.relative_speed))
            for split, test_set, name, cell in figures:
                numbers = [cell.value, cell.sd, cell.n, cell.reason]
                if ends:
                    numbers += [cell.interval.low, cell.interval.high] if cell.interval else [None, None]
                writer.writerow([*start, split, test_set, name, *numbers])
    return out.getvalue()


def latex(table: Table) -> str:
    """A booktabs table with its notes below."""
    headings, cells, footnotes = grid(table)
    columns = "".join("l" if name in ("position", "note") else "r" for name in headings)
    lines = [
        r"\begin{table}\centering\small",
        rf"\caption{{{escape_latex(table.heading)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
    ]
    lines += [
        " & ".join(map(escape_latex, headings)) + r" \\",
        r"\midrule",
        *[" & ".join(map(escape_latex, line)) + r" \\" for line in cells],
    ]
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\footnotesize\raggedright"]
    lines += [rf"[{number}] {escape_latex(note)}\par" for number, note in enumerate(footnotes, start=1)]
    lines += [rf"{escape_latex(note)}\par" for note in (*legend(table), *table.differences)]
    main = "\n".join([*lines, r"\end{table}"]) + "\n"
    return "\n".join([main, length_latex(table)]) if table.by_length else main


def as_json(table: Table) -> dict[str, Any]:
    """The table with every figure, reason and run; None where there is no figure."""

    def cell(one: Cell) -> dict[str, Any]:
        plain = {"mean": one.value, "sd": one.sd, "n": one.n, "missing_because": one.reason}
        return plain if one.interval is None else plain | {"interval": asdict(one.interval)}

    rows = [
        {
            "position": row.label,
            "kind": row.position.kind,
            "clip_distance": row.position.clip_distance,
            "tables": row.position.tables,
            "scores": [
                {"split": c.split, "test_set": c.test_set, "metric": c.metric, **cell(one)}
                for c, one in row.cells.items()
            ],
            "paper_bleu": cell(row.paper),
            "steps_per_second": cell(row.steps_per_second),
            "speed_relative_to_absolute": cell(row.relative_speed),
            "parameters": row.parameters,
            "peak_memory_bytes": row.peak_memory_bytes,
            "remarks": (["synthetic"] if table.synthetic else []) + list(row.remarks),
            "runs": [
                {"name": run.name, "id": run.run_id, "seed": run.seed, "status": run.status} for run in row.records
            ],
        }
        for row in table.rows
    ]
    head = {"data": table.data, "synthetic": table.synthetic, "model": table.model, "max_steps": table.max_steps}
    head |= {"hardware": table.hardware, "variant": table.variant, "heading": table.heading}
    metrics = {column.metric: METRIC_NAMES.get(column.metric, column.metric) for column in table.columns}
    notes = {"notes": legend(table), "differences": list(table.differences), "findings": findings(table)}
    by_length = {"by_length": length_document(table)} if table.by_length else {}
    return {**head, "metrics": metrics, "rows": rows, **by_length, **notes}
