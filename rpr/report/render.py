"""The tables of all reports and commands: typed columns over rows, as text for a terminal, Markdown, LaTeX and JSON.

A column defines once how its cell is computed from a row, for all formats. A missing figure is a dash with a reason.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from rpr.io.escape import escape_markdown
from rpr.records.measurement import Measurement

DASH = "–"  # an en dash, which is not mistaken for a minus or a zero
ONE_RUN = "†"
WIDTH = 100
_CONTEXT = 3  # common characters of two texts shown before the first difference
_SHOWN = 2  # the highest priority on pages: only JSON has the columns above
Kind = Literal["label", "words", "figures"]  # labels name the row; figures are aligned right


@dataclass(frozen=True)
class Cell:
    """Text or a measurement; each remark becomes a footnote."""

    value: str | Measurement
    remarks: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return self.value.value is None if isinstance(self.value, Measurement) else not (self.value or self.remarks)


class Column(NamedTuple):
    """`key` names it in JSON, `heading` elsewhere; a page's first table and LaTeX have priority 0, JSON alone has 3."""

    key: str
    heading: str
    digits: int = 1
    signed: bool = False
    kind: Kind = "figures"
    priority: int = 0


class Shown(NamedTuple):
    """A cell as text: its value, the interval after it, the numbers of its footnotes, and what it is sorted by."""

    text: str
    interval: str
    marks: tuple[int, ...]
    key: str

    def line(self) -> str:
        return " ".join(filter(None, (self.text, self.interval, *(f"[{mark}]" for mark in self.marks))))


class Layout(NamedTuple):
    """A grid as text, for any format: the columns, the cells of each row, and the footnotes, numbered from 1."""

    columns: list[Column]
    lines: list[list[Shown]]
    footnotes: list[str]


@dataclass(frozen=True)
class Grid:
    """The cells of each of its `rows`; `name` is its kind (`table2`, ...), warnings must be seen before its figures."""

    name: str
    title: str
    columns: Sequence[Column]
    cells: Sequence[Sequence[Cell]]
    setting: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    rows: Sequence[Any] = ()


def grid_of(
    name: str, title: str, rows: Sequence[Any], cells_of: Callable[[Any], Iterable[tuple[Column, Any]]], **about: Any
) -> Grid:
    """A table of rows: `cells_of` each are its columns, the same for all, with text, a measurement or a Cell. Columns
    that are empty in every row are left out, but for labels.
    """
    columns: dict[Column, list[Cell]] = {}
    for row in rows:
        for column, cell in cells_of(row):
            columns.setdefault(column, []).append(cell if isinstance(cell, Cell) else Cell(cell))
    kept = {at: of for at, of in columns.items() if at.kind == "label" or not all(cell.empty for cell in of)}
    return Grid(name, title, [*kept], [*zip(*kept.values(), strict=True)], rows=rows, **about)


def layout(grid: Grid, priority: int = 3) -> Layout:
    """The grid as text, without columns of higher priority numbers that are no labels."""
    footnotes: dict[str, int] = {}

    def shown(cell: Cell, column: Column) -> Shown:
        text, interval, key, remarks = str(cell.value), "", str(cell.value), cell.remarks
        if isinstance(cell.value, Measurement):
            text, interval = figure_text(cell.value, column.digits, signed=column.signed)
            key = "" if cell.value.value is None else f"{cell.value.value:g}"
            remarks = (*filter(None, [cell.value.reason]), *remarks)
        marks = tuple(footnotes.setdefault(remark, len(footnotes) + 1) for remark in remarks)
        return Shown(text, interval, marks, key)

    chosen = [at for at, column in enumerate(grid.columns) if column.kind == "label" or column.priority <= priority]
    lines = [[shown(line[at], grid.columns[at]) for at in chosen] for line in grid.cells]
    return Layout([grid.columns[at] for at in chosen], lines, [*footnotes])


def figure_text(measurement: Measurement, digits: int, *, signed: bool = False) -> tuple[str, str]:
    """`36.4` and `(35.9 to 36.9)`, which is marked if it is of one run; a dash if missing."""
    if measurement.value is None:
        return DASH, ""
    text, interval = number(measurement.value, digits, signed=signed), measurement.interval
    if interval is None:
        return text, ""
    low, high = (f"{end:{'+' if signed else ''},.{digits}f}" for end in (interval.low, interval.high))  # +0.0, too
    return text, f"({low} to {high}){ONE_RUN * (interval.kind == 'sentences')}"


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """`1,234.5`; signed: `+1.5`, and `0.0` without a sign for values that round to it."""
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    return text if text.strip("+-0.,") else text.lstrip("+-")


def legend(grids: Iterable[Grid]) -> list[str]:
    """What the intervals in these grids are over, and how they were computed, each once."""
    cells = (cell.value for grid in grids for line in grid.cells for cell in line)
    lines = set[str]()
    for interval in (figure.interval for figure in cells if isinstance(figure, Measurement) and figure.interval):
        seeds = interval.kind == "seeds"
        over = "seeds" if seeds else f"the {interval.unit} of its test set, of one run, not over seeds"
        how = interval.how if interval.method else "Student's t, n - 1"
        lines.add(f"(a to b){ONE_RUN * (not seeds)}: the {interval.level:.0%} interval over {over}; {how}")
    return sorted(lines)


# Terminal


def terminal(grid: Grid) -> str:
    """Aligned text with its title and setting above, and footnotes, warnings and notes below."""
    page = layout(grid, _SHOWN)
    cells = [[column.heading for column in page.columns], *([shown.line() for shown in line] for line in page.lines)]
    lines = aligned(cells, [at for at, column in enumerate(page.columns) if column.kind != "figures"])
    footnotes = [f"[{at}] {text}" for at, text in enumerate(page.footnotes, start=1)]
    below = wrapped([*footnotes, *grid.warnings, *grid.notes])
    return "\n".join([*wrapped(filter(None, (grid.title, grid.setting))), *lines, *below])


def aligned(lines: Sequence[Sequence[str]], texts: Container[int] = (0,)) -> list[str]:
    """Lines of cells in columns of one width each: those of these places at the left, figures at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust if at in texts else str.rjust for at in range(len(widths))]
    cells = ([side(text, width) for side, text, width in zip(sides, line, widths, strict=True)] for line in lines)
    return ["  ".join(line).rstrip() for line in cells]


def wrapped(texts: Iterable[str], mark: str = "") -> list[str]:
    """Wrap texts to lines of at most WIDTH characters, each after the mark."""
    indent = " " * (len(mark) or 2)
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=mark, subsequent_indent=indent, break_long_words=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def shortened(text: str, width: int, other: str = "") -> str:
    """The text in `width` characters: both ends, or the part from its first difference to `other`, if that is later."""
    if len(text) <= width:
        return text
    tail, common = (width - 1) // 2, sum(takewhile(bool, map(str.__eq__, text, other)))
    if text == other or common < width - 1 - tail:
        return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    rest = "…" + text[common - _CONTEXT :]
    return rest if len(rest) <= width else rest[: width - 1] + "…"


# Markdown; text from records is escaped


def markdown(grid: Grid) -> str:
    """A section of Markdown."""
    page = layout(grid, _SHOWN)
    parts = [f"## {escape_markdown(grid.title)}", *([escape_markdown(grid.setting)] if grid.setting else [])]
    parts += [f"**Warning:** {escape_markdown(text)}" for text in grid.warnings]
    headings = [escape_markdown(column.heading) for column in page.columns]
    rule = ["---:" if column.kind == "figures" else "---" for column in page.columns]
    cells = [[escape_markdown(shown.line()) for shown in line] for line in page.lines]
    parts.append("\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *cells)))
    lines = [f"[{at}] {text}" for at, text in enumerate(page.footnotes, start=1)]
    if lines := [*lines, *grid.notes]:
        parts.append(f"<details><summary>Notes</summary>\n\n{bullets(lines)}\n\n</details>")
    return "\n\n".join(parts)


def bullets(lines: Iterable[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {escape_markdown(line)}" for line in lines) or "Nothing."


# LaTeX


def latex(grid: Grid) -> str:
    """A table of one column of a paper for \\usepackage{booktabs}: the main figures, an interval below its figure where
    that is a change, and warnings; all else is in the report.
    """
    page = layout(grid, 0)
    caption = "; ".join(filter(None, (grid.title, grid.setting)))
    label = re.sub(r"[^a-z0-9]+", "-", f"{grid.name} {grid.setting}".lower()).strip("-")
    sides = "".join("r" if column.kind == "figures" else "l" for column in page.columns)
    lines = [
        rf"\begin{{table}}\centering\footnotesize\setlength{{\tabcolsep}}{{3pt}}\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:{label}}}\begin{{tabular}}{{{sides}}}\toprule",
        " & ".join(escape_latex(column.heading) for column in page.columns) + r" \\\midrule",
    ]
    for line in page.lines:
        lines.append(" & ".join(escape_latex(shown.text) for shown in line) + r" \\")
        ends = [shown.interval * column.signed for shown, column in zip(line, page.columns, strict=True)]
        if any(ends):
            lines.append(" & ".join(rf"\tiny {escape_latex(end)}" if end else "" for end in ends) + r" \\")
    warnings = [rf"\par {escape_latex(text)}" for text in grid.warnings]
    return "\n".join([*lines, r"\bottomrule\end{tabular}", *warnings, r"\end{table}"]) + "\n"


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "†": r"$\dagger$",
    DASH: "--", **{character: f"\\{character}" for character in "&%$#_{}"},
})  # fmt: skip


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX shows it literally; the minus of a number is typeset as one, not as a hyphen."""
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", text.translate(_LATEX))


# JSON


def as_json(grid: Grid) -> dict[str, Any]:
    """Every figure, reason and remark of a grid by column key; None for a missing figure."""
    headings = {column.key: column.heading for column in grid.columns}

    def value(cell: Cell) -> Any:
        figure, remarks = cell.value, {"remarks": cell.remarks} if cell.remarks else {}
        if isinstance(figure, str):
            return {"text": figure, **remarks} if remarks else figure
        interval = figure.interval and {key: end for key, end in asdict(figure.interval).items() if end is not None}
        known = {"value": figure.value, "n": figure.n, "deviation": figure.deviation, "interval": interval}
        return known | ({} if figure.reason is None else {"missing_because": figure.reason}) | remarks

    rows = [dict(zip(headings, map(value, line), strict=True)) for line in grid.cells]
    about = {name: getattr(grid, name) for name in ("name", "title", "setting", "notes", "warnings")}
    return about | {"columns": headings, "rows": rows, "legend": legend([grid])}
