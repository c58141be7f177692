"""What the paper's tables are made of: figures with their intervals, rows and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rpr.records.record import Record
from rpr.report.remarks import Difference
from rpr.report.rows import Cell

Name = Literal["table1", "table2", "table3", "speed"]
# What stands in `Figure.name`; only the first two are the paper's.
PAPERS_OWN = ("paper", "paper_change")

# t(0.975) for n - 1 = 1, 2, ..., 30: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2 (critical values of
# Student's t). Beyond 30 the last one is used, which makes an interval at most 4.2% too wide and never too narrow.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def seeds_interval(cell: Cell) -> tuple[float, float] | None:
    """The 95% t interval of the mean over seeds; None for a missing figure or where there is no deviation."""
    if cell.value is None or cell.sd is None or cell.n < 2:
        return None
    half = T_QUANTILES[min(cell.n - 1, len(T_QUANTILES)) - 1] * cell.sd / math.sqrt(cell.n)
    return cell.value - half, cell.value + half


@dataclass(frozen=True)
class Figure:
    """One figure of a row. `name`: what it is (`ours`, `change`, ...); `column`: what of (`EN-DE`, `validation`, ...).

    `low`, `high` and `spread` are what the figure's own interval is and over what; None and "" where there is none.
    """

    column: str
    name: str
    cell: Cell
    test_set: str = ""
    remark: str | None = None
    low: float | None = None
    high: float | None = None
    spread: str = ""

    @property
    def measured(self) -> bool:
        return self.cell.value is not None and self.name not in PAPERS_OWN


def figure(column: str, name: str, cell: Cell, test_set: str = "", remark: str | None = None) -> Figure:
    """With its interval: over the seeds where there are several, over the test sentences where the record has that."""
    plain = Figure(column, name, cell, test_set, remark)
    if (ends := seeds_interval(cell)) is not None:
        return replace(plain, low=ends[0], high=ends[1], spread="t interval over seeds")
    if cell.interval is not None:
        return replace(plain, low=cell.interval.low, high=cell.interval.high, spread="bootstrap over sentences")
    return plain


@dataclass(frozen=True)
class PaperRow:
    """`labels`: the row's words, one for each of the table's label headings. `records`: the runs behind our figures."""

    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    differs: tuple[Difference, ...] = ()
    remarks: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()

    def figure(self, name: str, column: str = "") -> Figure | None:
        return next((one for one in self.figures if (one.name, one.column) == (name, column)), None)

    @property
    def smaller(self) -> bool:
        """Whether the runs had a smaller model, less data or fewer steps than the paper's."""
        return any(difference.smaller for difference in self.differs)

    @property
    def synthetic(self) -> bool:
        return any(record.synthetic for record in self.records)


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper with ours in it. Every row has the same figures in the same order.

    `scoring`: how ours were scored; `notes`: what else has to be said; `reference`: the row that a change is from.
    """

    name: Name
    title: str
    setting: str
    labels: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    scoring: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reference: str = ""

    @property
    def measured(self) -> bool:
        """Whether any cell of ours has what the table is about: a score, or a speed."""
        subject = ("steps_per_second", "ratio") if self.name == "speed" else ("ours",)
        return any(one.measured for row in self.rows for one in row.figures if one.name in subject)

    @property
    def synthetic(self) -> bool:
        return any(row.synthetic for row in self.rows)
