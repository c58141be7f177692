"""The tables of all reports: typed columns over rows, rendered by `rpr.tables.render` and the page's templates.

A column defines once how its cell is computed from a row, for all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, Literal, NamedTuple

from rpr.records.measurement import Measurement
from rpr.records.scores import Interval

DASH = "–"  # an en dash, which is not mistaken for a minus or a zero


@dataclass(frozen=True)
class Cell:
    """Text or a measurement; each remark becomes a footnote."""

    value: str | Measurement
    remarks: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return self.value.value is None if isinstance(self.value, Measurement) else not (self.value or self.remarks)


@dataclass(frozen=True)
class Column:
    """One column. `key` is its name in CSV and JSON, `heading` everywhere else; `read` computes the cell of a row."""

    key: str
    heading: str
    read: Callable[[Any], str | Measurement | Cell]
    digits: int = 1
    signed: bool = False
    label: bool = False  # whether it names the row (text, at the left)
    words: bool = False  # whether it is text, aligned left; figures are aligned right
    priority: int = 0  # narrow terminals drop columns with the highest number first; columns of priority 3 are folded

    @property
    def kind(self) -> str:
        """The kind of its cells: `label`, `words` or `figures`."""
        return "label" if self.label else "words" if self.words else "figures"


@dataclass(frozen=True)
class Note:
    """A line below a table; a warning must be seen before the figures are used."""

    text: str
    severity: Literal["info", "warning"] = "info"


@dataclass(frozen=True)
class Grid:
    """A table. `name` is its kind (`table2`, `lengths`, ...), `setting` describes its runs."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Any, ...]
    setting: str = ""
    notes: tuple[Note, ...] = ()
    synthetic: bool = False
    # The cells of each column, shared with grids of the same rows and fewer columns.
    _read: dict[Column, list[Cell]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def cells(self) -> list[tuple[Cell, ...]]:
        """One tuple of cells per row."""
        for column in self.columns:
            if column not in self._read:
                values = map(column.read, self.rows)
                self._read[column] = [value if isinstance(value, Cell) else Cell(value) for value in values]
        return list(zip(*(self._read[column] for column in self.columns), strict=True))

    @property
    def figures(self) -> Iterator[Measurement]:
        return (cell.value for line in self.cells for cell in line if isinstance(cell.value, Measurement))

    def only(self, keep: Callable[[Column], bool]) -> Grid:
        """The same rows with only some of the columns; labels are always kept."""
        return replace(self, columns=tuple(column for column in self.columns if column.label or keep(column)))

    def up_to(self, priority: int) -> Grid:
        """Without the columns of higher priority numbers."""
        return self.only(lambda column: column.priority <= priority)

    @cached_property
    def page(self) -> Page:
        """The grid as text; its text columns that are the same in every row are `shared`."""
        footnotes: list[str] = []
        main, shared = layout(self.up_to(2), footnotes).without_shared_text()
        more = None
        if not all(column.label or column.priority < 3 for column in self.columns):
            more, also = layout(self.only(lambda column: column.priority >= 3), footnotes).without_shared_text()
            shared += [pair for pair in also if pair not in shared]
        warnings, notes = (
            tuple(note.text for note in self.notes if note.severity == severity) for severity in ("warning", "info")
        )
        return Page(main, more, shared, tuple(footnotes), warnings, notes)

    def without_empty_columns(self, *kept: str) -> Grid:
        """The grid without columns that are empty in every row, but with those of these keys."""
        by_column = zip(self.columns, zip(*self.cells, strict=True), strict=False)
        empty = {column.key for column, cells in by_column if all(cell.empty for cell in cells)}
        return self.only(lambda column: column.key in kept or column.key not in empty)


@dataclass(frozen=True)
class Shown:
    """A cell as text: its value, the interval after it, and the numbers of its footnotes."""

    text: str
    interval: str
    marks: tuple[int, ...]

    def line(self, *, intervals: bool = True) -> str:
        parts = [self.text, self.interval if intervals else "", *(f"[{mark}]" for mark in self.marks)]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Layout:
    """A grid as text, for any format: the columns, the cells of each row, and the footnotes, numbered from 1."""

    columns: tuple[Column, ...]
    lines: tuple[tuple[Shown, ...], ...]
    footnotes: tuple[str, ...]

    def only(self, columns: Collection[Column]) -> Layout:
        """Some of the columns, in their order."""
        kept = [column in columns for column in self.columns]
        lines = tuple(tuple(compress(line, kept)) for line in self.lines)
        return Layout(tuple(compress(self.columns, kept)), lines, self.footnotes)

    def without_shared_text(self) -> tuple[Layout, list[tuple[str, Shown]]]:
        """Without the columns of text that are the same in every row; their headings and text."""
        shared: dict[Column, Shown] = {}
        for index, column in enumerate(self.columns):
            texts = [line[index] for line in self.lines]
            if column.kind != "figures" and len(texts) > 1 and len(set(texts)) == 1 and texts[0].text:
                shared[column] = texts[0]
        kept = self.only([column for column in self.columns if column not in shared])
        return kept, [(column.heading, text) for column, text in shared.items()]


class Page(NamedTuple):
    """A grid as text, for pages: the columns that are not folded, and those that are."""

    main: Layout
    more: Layout | None
    shared: list[tuple[str, Shown]]  # headings and text of the columns that have the same text in every row
    footnotes: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def layout(grid: Grid, footnotes: list[str] | None = None) -> Layout:
    """The grid as text. `footnotes`: earlier ones, if several grids share their numbering; extended in place."""
    texts = [] if footnotes is None else footnotes

    def mark(text: str) -> int:
        if text not in texts:
            texts.append(text)
        return texts.index(text) + 1

    def shown(cell: Cell, column: Column) -> Shown:
        if isinstance(cell.value, str):
            return Shown(cell.value, "", tuple(map(mark, cell.remarks)))
        reason = () if cell.value.reason is None else (cell.value.reason,)
        text, interval = figure_text(cell.value, column.digits, signed=column.signed)
        return Shown(text, interval, tuple(map(mark, (*reason, *cell.remarks))))

    lines = tuple(tuple(map(shown, line, grid.columns)) for line in grid.cells)
    return Layout(grid.columns, lines, tuple(texts))


def figure_text(measurement: Measurement, digits: int, *, signed: bool = False) -> tuple[str, str]:
    """`36.4 ± 0.3` and `(35.9 to 36.9)` over seeds or rounds, `[35.1, 37.6]` over sentences; a dash if missing."""
    if measurement.value is None:
        return DASH, ""
    text = number(measurement.value, digits, signed=signed)
    if measurement.deviation is not None:
        text += f" ± {measurement.deviation:.{digits}f}"
    if measurement.interval is None:
        return text, ""
    low, high = (number(end, digits, signed=signed) for end in (measurement.interval.low, measurement.interval.high))
    return text, f"[{low}, {high}]" if measurement.interval.kind == "sentences" else f"({low} to {high})"


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """`1,234.5`; signed: `+1.5`, and `0.0` without a sign for values that round to it."""
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    return text if text.strip("+-0.,") else text.lstrip("+-")


def legend(grids: Iterable[Grid], shows_intervals: Callable[[Grid], bool] = lambda grid: True) -> list[str]:
    """The meaning of the symbols in the cells of these grids, each once; `shows_intervals`: whether they are shown."""
    grids, lines = list(grids), []
    if any(figure.deviation is not None for grid in grids for figure in grid.figures):
        lines.append("±: the sample standard deviation over the n seeds")
    shown = [figure.interval for grid in grids if shows_intervals(grid) for figure in grid.figures]
    of_kind = {kind: [one for one in shown if one and one.kind == kind] for kind in ("seeds", "rounds", "sentences")}
    if of_kind["seeds"]:
        how = "; ".join(["Student's t, n - 1", *_methods(of_kind["seeds"])])
        lines.append(f"(a to b): the 95% interval of the mean over seeds ({how})")
    if of_kind["rounds"]:
        lines.append("(a to b) of interleaved timings: the slowest and the fastest round")
    for unit in dict.fromkeys(interval.unit for interval in of_kind["sentences"]):
        alike = [interval for interval in of_kind["sentences"] if interval.unit == unit]
        what = f"the {alike[0].level:.0%} interval of one run over the {unit} of its test set, not over seeds"
        lines.append(f"[a, b]: {what} ({'; '.join(_methods(alike))})")
    return lines


def _methods(intervals: Iterable[Interval]) -> list[str]:
    return [*dict.fromkeys(interval.how for interval in intervals if interval.method)]
