"""The paper's tables as text for a terminal, Markdown, LaTeX, CSV and JSON; a dash stands with its reason."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rpr import paper
from rpr.records.scores import Interval
from rpr.report.paper_groups import GROUPS_METRIC
from rpr.report.paper_rows import Figure, PaperRow, PaperTable
from rpr.report.text import (
    WIDTH,
    Footnotes,
    cell_text,
    escape_latex,
    escape_markdown,
    interval_note,
    wrapped,
)

CSV_COLUMNS = (
    *("table", "setting", "synthetic", "row", "column", "test_set", "figure", "mean", "sd", "n"),
    *("low", "high", "interval", "missing_because", "differs"),
)
_TEST_SETS = {"table1": paper.TABLE1_TEST_SET, "table2": paper.TABLE2_TEST_SET, "table3": paper.TABLE3_TEST_SET}
_NUMBERS = {"table1": "Table 1", "table2": "Table 2", "table3": "Table 3", "speed": "Speed"}


@dataclass(frozen=True)
class _Style:
    """How much is shown: columns of this worth and more, intervals, and whether `differs` has its footnotes."""

    worth: int = 0
    intervals: bool = True
    reasons: bool = True


@dataclass(frozen=True)
class _Column:
    """`worth`: a narrow terminal drops 0, then 1, then 2."""

    heading: str
    read: Callable[[PaperRow, Footnotes, _Style], str]
    worth: int = 3
    words: bool = False


def _columns(table: PaperTable) -> list[_Column]:
    last = len(table.labels) - 1
    columns = [_label(heading, index, index == last, table.name) for index, heading in enumerate(table.labels)]
    columns.append(_Column("n", lambda row, notes, style: _counts(row)))
    columns += [_score(table, index, one) for index, one in enumerate(table.rows[0].figures) if _shown(table, one)]
    return [*columns, _Column("differs", _differs, words=True)]


def _shown(table: PaperTable, one: Figure) -> bool:
    if table.name == "speed":
        return True
    return one.name != "steps_per_second" and (one.name != "relative_speed" or one.column == "")


def _label(heading: str, index: int, last: bool, name: str) -> _Column:
    def read(row: PaperRow, notes: Footnotes, style: _Style) -> str:
        marks = [notes.mark(remark) for remark in row.remarks] if last else []
        return " ".join([row.labels[index], *marks])

    return _Column(heading, read, worth=0 if name == "speed" and heading == "device" else 3, words=True)


def _counts(row: PaperRow) -> str:
    counts = sorted({one.cell.n for one in row.figures if one.measured and one.name in ("ours", "ratio")})
    return " or ".join(map(str, counts)) or "0"


def _score(table: PaperTable, index: int, one: Figure) -> _Column:
    changes = one.name in ("change", "paper_change", "difference")
    digits = 2 if one.name in ("steps_per_second", "ratio", "relative_speed") or table.name == "speed" else 1

    def read(row: PaperRow, notes: Footnotes, style: _Style) -> str:
        return _text(row.figures[index], digits, notes, style, signed=changes)

    return _Column(_heading(table, one), read, worth=_worth(table, one))


def _worth(table: PaperTable, one: Figure) -> int:
    """Of a column: 0 where it holds nothing of ours, or what a table of our groups says as well."""
    figures = [other for row in table.rows for other in row.figures]
    measured = {(other.column, other.name) for other in figures if other.measured}
    if one.name == "relative_speed":
        return 0
    if one.name == "paper_change":
        return 3 if not one.column or (one.column, "ours") in measured else 1
    if one.name == "paper":
        return 3 if not one.column or (one.column, "ours") in measured else 2
    if (one.column, one.name) not in measured:
        return 0
    # Where the validation split was scored, it is what stands beside the paper's newstest2013.
    return 1 if (one.column, one.name) == ("test", "change") and ("validation", "ours") in measured else 3


def _heading(table: PaperTable, one: Figure) -> str:
    names = {"paper": "paper", "paper_change": "change", "change": "change", "difference": "ours - paper"}
    names |= {"ours": one.column, "relative_speed": "speed", "ratio": "ratio", "steps_per_second": one.column}
    if table.name == "table1" and one.name in ("paper", "ours"):
        return f"{one.column} {one.name}"
    return names[one.name]


def _text(one: Figure, digits: int, notes: Footnotes, style: _Style, *, signed: bool) -> str:
    text = cell_text(one.cell, digits, notes, intervals=style.intervals)
    if one.cell.value is None:
        return text
    if signed and round(one.cell.value, digits) == 0:
        text = text.replace(f"{one.cell.value:.{digits}f}", f"{0:.{digits}f}", 1)  # no sign: -0.0 is 0.0
    elif signed and one.cell.value > 0:
        text = f"+{text}"
    if style.intervals and one.low is not None and one.high is not None and one.cell.interval is None:
        text += f" ({one.low:.{digits}f} to {one.high:.{digits}f})"
    return f"{text} {notes.mark(one.remark)}" if one.remark else text


def _differs(row: PaperRow, notes: Footnotes, style: _Style) -> str:
    """`smaller: data, model, steps`, with all of it in a footnote; the first word alone in a narrow place."""
    if not row.differs:
        return ""
    named = ", ".join(dict.fromkeys(difference.word for difference in row.differs))
    if not style.reasons:
        return "synthetic" if row.synthetic else "smaller" if row.smaller else named
    mark = notes.mark("differs from the paper: " + ". ".join(difference.text for difference in row.differs))
    return f"{': '.join([*(['smaller'] if row.smaller else []), named])} {mark}"


def _grid(table: PaperTable, footnotes: Footnotes, style: _Style) -> tuple[list[str], list[bool], list[list[str]]]:
    columns = [column for column in _columns(table) if column.worth >= style.worth]
    cells = [[column.read(row, footnotes, style) for column in columns] for row in table.rows]
    return [column.heading for column in columns], [column.words for column in columns], cells


def paper_grid(table: PaperTable) -> tuple[list[str], list[bool], list[list[str]], list[str]]:
    """Headings, whether each column is of words (and stands left), the rows' cells, and the footnotes of the marks."""
    footnotes = Footnotes()
    headings, words, cells = _grid(table, footnotes, _Style())
    return headings, words, cells, footnotes.texts


def paper_legend(table: PaperTable) -> list[str]:
    """What the columns, the intervals and the signs are."""
    return [*table.scoring, *table.notes, *_legend([table], _Style())]


def _legend(tables: Sequence[PaperTable], style: _Style) -> list[str]:
    """Of several tables: each thing once."""
    scores = [table for table in tables if table.name != "speed"]
    lines = _score_legend(scores) if scores else []
    if len(scores) < len(tables):
        lines += _speed_legend()
    figures = [one for table in tables for row in table.rows for one in row.figures]
    if any(one.cell.sd is not None for one in figures):
        lines.append("±: the sample standard deviation over the n seeds")
    spreads = {one.spread for one in figures}
    if not style.intervals:
        return lines + (["intervals and the words of differs are in paper.md"] if spreads - {""} else [])
    found = next((one.cell.interval for one in figures if one.cell.interval is not None), None)
    return lines + list(_interval_notes(spreads, found))


def _interval_notes(spreads: set[str], found: Interval | None) -> Iterator[str]:
    if "t interval over seeds" in spreads:
        yield "(a to b) behind ±: the 95% interval of the mean over trainings with other seeds (Student's t, n - 1)"
    if "range over rounds" in spreads:
        yield "(a to b) of what was measured in turn: the least and the greatest round"
    if found is not None:
        yield interval_note(found)


def _score_legend(tables: Sequence[PaperTable]) -> list[str]:
    sets = {_NUMBERS[table.name]: _TEST_SETS[table.name] for table in tables}
    columns = ", ".join(f"{test_set} ({number})" for number, test_set in sorted(sets.items()))
    references = {_NUMBERS[table.name]: table.reference for table in tables}
    changes = [f"{reference} ({number})" for number, reference in sorted(references.items())]
    counted = tables[0].reference if len(references) == 1 else ", ".join(changes)
    return [
        f"paper: BLEU on {columns}, {paper.SOURCE}; {paper.BLEU_KIND}",
        "ours: sacreBLEU; n: seeds",
        f"change: of the column before it, from {counted}; seed by seed where both have the same seeds",
        f"ours - paper: of {GROUPS_METRIC}, and only where corpus and test set are the paper's",
    ]


def _speed_legend() -> list[str]:
    return [
        f"{_NUMBERS['speed']}: paper: {paper.RELATIVE_SPEED} of absolute's steps/s, base model on P100 GPUs "
        f"({paper.SOURCE})",
        "absolute, relative: steps/s; ratio: relative to absolute; n: seeds of whole runs, rounds of what took turns",
        "in turn: a ratio is of two timings one after the other, so a machine whose speed drifts still compares "
        "fairly; whole runs ran at different times, and other work may have slowed one of them",
    ]


def _aligned(headings: Sequence[str], words: Sequence[bool], cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[index]) for line in [headings, *cells]) for index in range(len(headings))]

    def line(texts: Sequence[str]) -> str:
        placed = zip(texts, widths, words, strict=True)
        return "  ".join(text.ljust(width) if left else text.rjust(width) for text, width, left in placed).rstrip()

    return [line(headings), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, cells)]


def paper_terminal(tables: Sequence[PaperTable]) -> str:
    """All tables, then their footnotes and what they mean, each said once; "" without tables.

    A table leaves out columns, then intervals, where it would pass 100 columns. How ours were scored is not said here,
    unless it forbids comparing: it stands below the tables of our groups.
    """
    if not tables:
        return ""
    footnotes, lines, notes = Footnotes(), list[str](), dict[str, None]()
    for table in tables:
        headings, words, cells = _grid(table, footnotes, _fitting(table))
        lines += [table.title, table.setting, "", *_aligned(headings, words, cells), ""]
        loud = [note for note in table.scoring if note.startswith("NOT COMPARABLE")]
        notes |= dict.fromkeys([*loud, *table.notes])
    smaller = "smaller: less data, a smaller model or fewer steps than the paper's"
    if any(table.synthetic for table in tables):
        smaller += "; synthetic: smaller, and of sentences that are no natural language"
    lines += wrapped([(f"[{number}] ", note) for number, note in enumerate(footnotes.texts, start=1)])
    lines += wrapped([("", note) for note in [*notes, *_legend(tables, _Style(intervals=False)), smaller]])
    return "\n".join(lines) + "\n"


def _fitting(table: PaperTable) -> _Style:
    """What fits into 100 columns; marks may have a digit more where footnotes are counted over several tables."""
    levels = ((0, True), (0, False), (1, False), (2, False))
    styles = [_Style(worth, intervals, reasons=False) for worth, intervals in levels]
    for style in styles:
        if max(map(len, _aligned(*_grid(table, Footnotes(), style)))) + 2 <= WIDTH:
            return style
    return _Style(3, intervals=False, reasons=False)


def shared_legend(tables: Sequence[PaperTable]) -> list[str]:
    """What holds for all of these tables, for a page that says it once."""
    return _legend(tables, _Style())


def paper_markdown(table: PaperTable, level: str = "##", *, legend: bool = True) -> str:
    """One section of Markdown; text from records is escaped. `legend`: whether it says what `shared_legend` says."""
    headings, words, cells, footnotes = paper_grid(table)
    lines = [f"{level} {escape_markdown(table.title)}", "", escape_markdown(table.setting), ""]
    lines.append("| " + " | ".join(map(escape_markdown, headings)) + " |")
    lines.append("| " + " | ".join("---" if left else "---:" for left in words) + " |")
    lines += ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in cells]
    lines.append("")
    lines += [f"- [{number}] {escape_markdown(note)}" for number, note in enumerate(footnotes, start=1)]
    notes = paper_legend(table) if legend else [*table.scoring, *table.notes]
    lines += [f"- {escape_markdown(note)}" for note in notes]
    return "\n".join(lines) + "\n"


def paper_page(title: str, tables: Sequence[PaperTable]) -> str:
    """paper.md: all tables."""
    parts = [f"# {escape_markdown(title)}: the paper's tables", *map(paper_markdown, tables)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def paper_latex(table: PaperTable) -> str:
    """A booktabs table with its notes below."""
    headings, words, cells, footnotes = paper_grid(table)
    columns = "".join("l" if left else "r" for left in words)
    lines = [r"\begin{table}\centering\small", rf"\caption{{{_latex(f'{table.title}; {table.setting}')}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(map(_latex, headings)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_latex, line)) + r" \\" for line in cells]
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\footnotesize\raggedright"]
    lines += [rf"[{number}] {_latex(note)}\par" for number, note in enumerate(footnotes, start=1)]
    lines += [rf"{_latex(note)}\par" for note in paper_legend(table)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    """With the minus of a number as one, and not as a hyphen."""
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escape_latex(text))


def paper_csv(tables: Sequence[PaperTable]) -> str:
    """One line for each table, row and figure; a missing figure is an empty field with its reason."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            start = [table.name, table.setting, row.synthetic, " ".join(row.labels)]
            ways = "; ".join(dict.fromkeys(difference.word for difference in row.differs))
            for one in row.figures:
                cell = one.cell
                ends = [one.low, one.high, one.spread]
                figures = [one.column, one.test_set, one.name, cell.value, cell.sd, cell.n, *ends, cell.reason]
                writer.writerow([*start, *figures, ways])
    return out.getvalue()


def paper_json(table: PaperTable) -> dict[str, Any]:
    """The table with every figure, reason and run; None where there is no figure."""
    rows = [
        {
            "labels": dict(zip(table.labels, row.labels, strict=True)),
            "synthetic": row.synthetic,
            "smaller": row.smaller,
            "figures": [_figure_json(one) for one in row.figures],
            "differs": [{"word": difference.word, "text": difference.text} for difference in row.differs],
            "remarks": list(row.remarks),
            "runs": [
                {"name": run.name, "id": run.run_id, "seed": run.seed, "status": run.status} for run in row.records
            ],
        }
        for row in table.rows
    ]
    head = {"name": table.name, "title": table.title, "setting": table.setting, "reference": table.reference}
    return {**head, "rows": rows, "legend": paper_legend(table)}


def _figure_json(one: Figure) -> dict[str, Any]:
    cell = one.cell
    where = {"column": one.column, "test_set": one.test_set, "figure": one.name}
    ends = {"low": one.low, "high": one.high, "interval": one.spread or None}
    return {**where, "mean": cell.value, "sd": cell.sd, "n": cell.n, **ends, "missing_because": cell.reason}
