"""The tables of all reports: typed columns over rows, rendered by `rpr.tables.render` and the page's templates.

A column defines once how its cell is computed from a row, for all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, Literal, NamedTuple

from rpr.records.measurement import Measurement
from rpr.records.scores import Interval

DASH = "–"  # an en dash, which is not mistaken for a minus or a zero
ONE_RUN = "†"


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
    priority: int = 0  # narrow terminals drop columns with the highest number first; only JSON has those of priority 3

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
        """The grid as text for pages, without the columns that only JSON has."""
        main = layout(self.up_to(2))
        warnings, notes = (
            tuple(note.text for note in self.notes if note.severity == severity) for severity in ("warning", "info")
        )
        return Page(main, main.footnotes, warnings, notes)

    def without_empty_columns(self) -> Grid:
        """The grid without columns that are empty in every row."""
        by_column = zip(self.columns, zip(*self.cells, strict=True), strict=False)
        empty = {column.key for column, cells in by_column if all(cell.empty for cell in cells)}
        return self.only(lambda column: column.key not in empty)


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

    def only(self, columns: Sequence[Column]) -> Layout:
        """Some of the columns, in the order of the grid."""
        kept = [column in columns for column in self.columns]
        lines = tuple(tuple(compress(line, kept)) for line in self.lines)
        return Layout(tuple(compress(self.columns, kept)), lines, self.footnotes)


class Page(NamedTuple):
    """A grid as text, for pages."""

    main: Layout
    footnotes: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def layout(grid: Grid) -> Layout:
    """The grid as text."""
    texts: list[str] = []

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


def marked(figure: Measurement, seeds: int) -> Cell:
    """A figure, with a remark if it is not of as many seeds as the column `n` of its row says."""
    if figure.value is None or figure.n == seeds:
        return Cell(figure)
    return Cell(figure, (f"{figure.n} of {seeds} seeds" if figure.n < seeds else f"over {figure.n} seeds",))


def figure_text(measurement: Measurement, digits: int, *, signed: bool = False) -> tuple[str, str]:
    """`36.4` and `(35.9 to 36.9)`, which is marked if it is of one run; a dash if missing."""
    if measurement.value is None:
        return DASH, ""
    text = number(measurement.value, digits, signed=signed)
    if measurement.interval is None:
        return text, ""
    ends = (measurement.interval.low, measurement.interval.high)  # with a sign also where they round to zero
    low, high = (f"{end:{'+' if signed else ''},.{digits}f}" for end in ends)
    return text, f"({low} to {high}){ONE_RUN * (measurement.interval.kind == 'sentences')}"


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """`1,234.5`; signed: `+1.5`, and `0.0` without a sign for values that round to it."""
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    return text if text.strip("+-0.,") else text.lstrip("+-")


def legend(grids: Iterable[Grid], shows_intervals: Callable[[Grid], bool] = lambda grid: True) -> list[str]:
    """The meaning of the intervals in these grids, each once; `shows_intervals`: whether they are shown."""
    intervals = [figure.interval for grid in grids if shows_intervals(grid) for figure in grid.figures]
    shown = list(dict.fromkeys(interval for interval in intervals if interval is not None))
    of_kind = {
        kind: [interval for interval in shown if interval.kind == kind] for kind in ("seeds", "rounds", "sentences")
    }
    lines = []
    if of_kind["seeds"]:
        how = "; ".join(["Student's t, n - 1", *_methods(of_kind["seeds"])])
        lines.append(f"(a to b): the 95% interval over seeds; of a mean {how}; of a change as the verdicts' rule says")
    if of_kind["rounds"]:
        lines.append("(a to b) of interleaved timings: the slowest and the fastest round")
    for unit in dict.fromkeys(interval.unit for interval in of_kind["sentences"]):
        alike = [interval for interval in of_kind["sentences"] if interval.unit == unit]
        what = f"the {alike[0].level:.0%} interval of one run over the {unit} of its test set, not over seeds"
        lines.append(f"(a to b){ONE_RUN}: {what} ({'; '.join(_methods(alike))})")
    return lines


def _methods(intervals: Iterable[Interval]) -> list[str]:
    return [*dict.fromkeys(interval.how for interval in intervals if interval.method)]
