"""Scores by source length as text for a terminal, Markdown, CSV, LaTeX and JSON; nothing where there are none."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rpr.records.scores import METRIC_NAMES, pooled
from rpr.report.rows import Cell, LengthTable, Table
from rpr.report.text import (
    WIDTH,
    Footnotes,
    aligned,
    cell_text,
    escape_latex,
    escape_markdown,
    interval_note,
    wrapped,
)

CSV_COLUMNS = (
    *("data", "synthetic", "model", "max_steps", "hardware", "variant", "position", "splits", "metric"),
    *("shortest", "longest", "beyond_training", "sentences", "mean", "sd", "n", "low", "high", "missing_because"),
)


def length_heading(lengths: LengthTable) -> str:
    return f"{METRIC_NAMES[lengths.metric]} by source length, {pooled(lengths.splits)}"


def length_grid(lengths: LengthTable) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, cells and footnotes as text; the first line of cells says how many sentences each bucket has."""
    footnotes = Footnotes()
    headings = [f"{column.label}{'*' if column.beyond_training else ''}" for column in lengths.columns]
    differ = "the runs were scored on different numbers of sentences"
    counts = [
        f"{column.num_sentences:,}" if column.num_sentences is not None else cell_text(_none(differ), 0, footnotes)
        for column in lengths.columns
    ]
    lines = [[label, *(cell_text(cell, 1, footnotes) for cell in cells)] for label, cells in lengths.cells.items()]
    return ["position", *headings], [["sentences", *counts], *lines], footnotes.texts


def _none(reason: str) -> Cell:
    return Cell(None, reason=reason)


def length_legend(lengths: LengthTable) -> list[str]:
    """What the buckets, the figures and the marks are."""
    cells = [cell for row in lengths.cells.values() for cell in row]
    lines = list(lengths.notes)
    if any(cell.sd is not None for cell in cells):
        lines.append("± is the sample standard deviation over the seeds")
    if found := [cell.interval for cell in cells if cell.interval is not None]:
        lines.append(interval_note(found[0]))
    return lines


def length_terminal(table: Table) -> list[str]:
    """The headline metric alone, without intervals, and without deviations where 100 columns do not hold them."""
    lines: list[str] = []
    for lengths in table.by_length[:1]:
        for shown in (_bare(lengths, deviations=True), _bare(lengths, deviations=False)):
            headings, cells, footnotes = length_grid(shown)
            text = aligned(headings, cells)
            if max(map(len, text)) <= WIDTH:
                break
        lines += ["", length_heading(lengths), *text, ""]
        lines += wrapped([(f"[{number}] ", note) for number, note in enumerate(footnotes, start=1)])
        lines += wrapped([("", note) for note in length_legend(shown)])
        if shown != lengths or len(table.by_length) > 1:
            lines += wrapped([("", "chrF by length, intervals and deviations are in report.md")])
    return lines


def _bare(lengths: LengthTable, *, deviations: bool) -> LengthTable:
    cells = {
        label: tuple(replace(cell, interval=None, sd=cell.sd if deviations else None) for cell in row)
        for label, row in lengths.cells.items()
    }
    return replace(lengths, cells=cells)


def length_markdown(table: Table) -> list[str]:
    """A part of the table's section for each metric."""
    lines = []
    for lengths in table.by_length:
        headings, cells, footnotes = length_grid(lengths)
        lines += ["", f"### {escape_markdown(length_heading(lengths))}", ""]
        lines.append("| " + " | ".join(map(escape_markdown, headings)) + " |")
        lines.append("| " + " | ".join(["---", *["---:"] * len(lengths.columns)]) + " |")
        lines += ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in cells]
        lines.append("")
        lines += [f"- [{number}] {escape_markdown(note)}" for number, note in enumerate(footnotes, start=1)]
        lines += [f"- {escape_markdown(note)}" for note in length_legend(lengths)]
    return lines


def length_latex(table: Table) -> str:
    """A booktabs table for each metric, with its notes below."""
    parts = []
    for lengths in table.by_length:
        headings, cells, footnotes = length_grid(lengths)
        lines = [r"\begin{table}\centering\small"]
        lines.append(rf"\caption{{{escape_latex(f'{table.heading}: {length_heading(lengths)}')}}}")
        lines += [rf"\begin{{tabular}}{{l{'r' * len(lengths.columns)}}}", r"\toprule"]
        lines += [" & ".join(map(escape_latex, headings)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(escape_latex, line)) + r" \\" for line in cells]
        lines += [r"\bottomrule", r"\end{tabular}", r"\par\footnotesize\raggedright"]
        lines += [rf"[{number}] {escape_latex(note)}\par" for number, note in enumerate(footnotes, start=1)]
        lines += [rf"{escape_latex(note)}\par" for note in length_legend(lengths)]
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)


def length_csv(tables: Sequence[Table]) -> str:
    """One line per table, metric, variant and bucket; `longest` is empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        start = [table.data, table.synthetic, table.model, table.max_steps, table.hardware, table.variant]
        for lengths in table.by_length:
            for label, cells in lengths.cells.items():
                for column, cell in zip(lengths.columns, cells, strict=True):
                    bucket = [column.shortest, column.longest, column.beyond_training, column.num_sentences]
                    ends = (cell.interval.low, cell.interval.high) if cell.interval else (None, None)
                    figures = [cell.value, cell.sd, cell.n, *ends, cell.reason]
                    writer.writerow([*start, label, "+".join(lengths.splits), lengths.metric, *bucket, *figures])
    return out.getvalue()


def length_document(table: Table) -> list[dict[str, Any]]:
    """For JSON: every figure with its bucket."""
    return [
        {
            "metric": lengths.metric,
            "splits": list(lengths.splits),
            "longest_training_source": lengths.longest_training_source,
            "notes": length_legend(lengths),
            "rows": [
                {
                    "position": label,
                    "buckets": [
                        {
                            "shortest": column.shortest,
                            "longest": column.longest,
                            "beyond_training": column.beyond_training,
                            "num_sentences": column.num_sentences,
                            "mean": cell.value,
                            "sd": cell.sd,
                            "n": cell.n,
                            "interval": asdict(cell.interval) if cell.interval else None,
                            "missing_because": cell.reason,
                        }
                        for column, cell in zip(lengths.columns, cells, strict=True)
                    ],
                }
                for label, cells in lengths.cells.items()
            ],
        }
        for lengths in table.by_length
    ]
