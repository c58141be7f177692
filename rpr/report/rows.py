"""What a table of results is made of: cells with their reasons, position variants, rows, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rpr.records.position import Position
from rpr.records.record import Record
from rpr.records.scores import HEADLINE_METRIC, Interval, length_label


@dataclass(frozen=True)
class Cell:
    """A measurement: the mean over n seeds with its sample standard deviation (None for n = 1), or None and why.

    `interval`: for one seed, where the score lies over the sentences of the test set, if that is known.
    """

    value: float | None
    sd: float | None = None
    n: int = 0
    reason: str | None = None
    interval: Interval | None = None

    def __post_init__(self) -> None:
        assert (self.value is None) == (self.reason is not None), "a missing cell has a reason, a measured one has none"
        assert self.interval is None or self.n == 1, "an interval over sentences is of one run"


@dataclass(frozen=True)
class Column:
    """One metric on one test set."""

    split: str
    test_set: str
    metric: str


@dataclass(frozen=True)
class Row:
    """One position variant over its seeds."""

    position: Position
    label: str
    cells: Mapping[Column, Cell]
    paper: Cell
    steps_per_second: Cell
    relative_speed: Cell
    parameters: int | None
    peak_memory_bytes: int | None
    remarks: tuple[str, ...]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class LengthColumn:
    """A bucket of source lengths; `num_sentences` is None where the runs differ in it."""

    shortest: int
    longest: int | None
    beyond_training: bool
    num_sentences: int | None

    @property
    def label(self) -> str:
        return length_label(self.shortest, self.longest)


@dataclass(frozen=True)
class LengthTable:
    """One metric by source length: `cells` of each row of the table it belongs to, by the row's label."""

    metric: str
    splits: tuple[str, ...]
    longest_training_source: int
    columns: tuple[LengthColumn, ...]
    cells: Mapping[str, tuple[Cell, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Every variant of one model on one corpus, trained alike on one kind of hardware."""

    data: str
    model: str
    max_steps: int
    hardware: str
    synthetic: bool
    variant: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    by_length: tuple[LengthTable, ...] = ()

    @property
    def heading(self) -> str:
        corpus = f"{self.data} (synthetic)" if self.synthetic and "synthetic" not in self.data else self.data
        parts = [corpus, f"model {self.model}", f"{self.max_steps:,} steps", self.hardware]
        return " | ".join(parts + ([self.variant] if self.variant else []))

    def headline(self, split: str = "test") -> Column | None:
        """The sacreBLEU column of a split; None where no run has one."""
        return next(
            (column for column in self.columns if (column.split, column.metric) == (split, HEADLINE_METRIC)), None
        )

    def cell(self, row: Row, split: str = "test") -> Cell:
        """The row's sacreBLEU on a split."""
        column = self.headline(split)
        return row.cells[column] if column else Cell(None, reason=f"not evaluated on {split}")

    def row(self, kind: str, clip_distance: int | None = None, tables: str | None = None) -> Row | None:
        """The first row of a kind, with this k and this sharing of the tables where they are given."""
        rows = (row for row in self.rows if row.position.kind == kind and tables in (None, row.position.tables))
        return next((row for row in rows if clip_distance in (None, row.position.clip_distance)), None)


def summarise(values: Sequence[float]) -> Cell:
    """Mean and sample standard deviation (n - 1) of at least one value."""
    mean = statistics.fmean(values)
    # Not statistics.stdev, which counts in fractions: twenty times slower, and a report has tens of thousands of cells.
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else None
    return Cell(mean, sd, len(values))


def one_per_seed(records: Sequence[Record]) -> list[Record]:
    """The newest record of each seed, an original before a rerun of it, by ascending seed."""
    newest = {record.seed: record for record in sorted(records, key=lambda run: (not run.is_rerun, run.started))}
    return [newest[seed] for seed in sorted(newest)]
