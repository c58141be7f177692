"""What a table of results is made of: cells with their reasons, position variants, rows, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rpr.config import POSITION_KINDS, position_kind
from rpr.results.record import Record
from rpr.results.scores import Interval, length_label

HEADLINE_METRIC = "sacrebleu"
METRIC_NAMES = {
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "bleu_tok_split": "BLEU, Moses tokens, compounds split",
    "bleu_tok": "bleu_tok",  # in words it would be the start of the one above, and read for it
}
SPLITS = ("test", "long", "validation")
SHARING = {
    "per_head": "per head",
    "shared_by_heads": "shared by heads",
    "shared_by_heads_and_layers": "shared by heads and layers",
}


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
class Position:
    """A position variant: what one row of a table is about. `other`: settings of schemes not known here."""

    absolute: str
    relative_keys: bool
    relative_values: bool
    clip_distance: int | None
    tables: str | None
    other: tuple[tuple[str, str], ...] = ()

    @property
    def relative(self) -> bool:
        return self.relative_keys or self.relative_values

    @property
    def kind(self) -> str:
        """The variant's name, as in conf/position/."""
        if self.other:
            return "other"
        kind = position_kind(self.absolute, self.relative_keys, self.relative_values)
        return kind if kind in POSITION_KINDS else "other"

    @property
    def label(self) -> str:
        """The row's name in words, without the sharing of the tables."""
        which = {(True, True): "relative", (True, False): "keys only", (False, True): "values only", (False, False): ""}
        relative = which[self.relative_keys, self.relative_values]
        if self.absolute == "none":
            words = relative or ("" if self.other else "none")
        else:
            words = f"{self.absolute} + {relative}" if relative else f"absolute ({self.absolute})"
        parts = [words] if words else []
        if self.clip_distance is not None:
            parts.append(f"k = {self.clip_distance}")
        parts += [f"{key} = {value}" for key, value in self.other]
        return ", ".join(parts)

    @property
    def order(self) -> tuple[int, str, int, str]:
        """Rows stand: absolute, learned, none, relative by ascending k, keys only, values only, both, anything else."""
        kinds = (
            "absolute",
            "learned",
            "none",
            "relative",
            "relative_keys",
            "relative_values",
            "absolute_and_relative",
            "other",
        )
        clip_distance = -1 if self.clip_distance is None else self.clip_distance
        return (
            kinds.index(self.kind),
            self.label if self.kind == "other" else "",
            clip_distance,
            f"{self.tables} {self.label}",
        )


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
