"""Whether a measured change agrees with the paper's: the single rule used by all reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rpr.records.measurement import Measurement
from rpr.report.grid import Cell, number

WIDEST = 1.0  # BLEU to either side of the mean: wider intervals are inconclusive
_ROUNDING = 1e-9  # tolerance for binary floating point: 30.0 - 29.7 is not 0.3
Verdict = Literal["agrees", "same direction", "contradicts", "not decided"]
RULE = (
    "A change agrees with the paper's where the paper's figure is inside our 95% interval over seeds; it has the same "
    "direction and another size where both are on one side of zero; else it contradicts the paper. It is not decided "
    f"with one seed, where the interval reaches more than {WIDEST:g} BLEU to either side, and where one of the runs "
    "that it compares was still learning."
)
HEADINGS: dict[Verdict, str] = {
    "agrees": "Agrees with the paper",
    "same direction": "Same direction as in the paper, another size",
    "contradicts": "Contradicts the paper",
    "not decided": "Not decided by these runs",
}


@dataclass(frozen=True)
class Agreement:
    """A verdict. `why` explains `not decided`; `factor` is our change over the paper's for `same direction`."""

    verdict: Verdict
    why: str = ""
    factor: float | None = None

    @property
    def words(self) -> str:
        """For a cell: `agrees`, `same direction, × 33`, `contradicts`, `not decided`."""
        return self.verdict if self.factor is None else f"{self.verdict}, × {number(self.factor, 1)}"

    @property
    def sentence(self) -> str:
        """`not decided: one seed`."""
        return f"{self.words}: {self.why}" if self.why else self.words

    @property
    def cell(self) -> Cell:
        """The words, with the reason in a footnote."""
        return Cell(self.words, (f"{self.verdict}: {self.why}",) if self.why else ())


def agreement(mine: Measurement, papers: float, *, still_learning: bool = False) -> Agreement:
    """The verdict on a change in BLEU with its interval over seeds, by the rule above."""
    if still_learning:
        return Agreement("not decided", "still learning")
    interval = mine.interval
    if interval is None or interval.kind != "seeds" or mine.value is None:
        return Agreement("not decided", "one seed" if mine.n < 2 else "fewer than two seeds in common")
    low, high = interval.low, interval.high
    if max(high - mine.value, mine.value - low) > WIDEST:
        return Agreement("not decided", f"the interval reaches more than {WIDEST:g} BLEU to either side")
    if low - _ROUNDING <= papers <= high + _ROUNDING:
        return Agreement("agrees")
    if papers and ((low > 0 and papers > 0) or (high < 0 and papers < 0)):
        return Agreement("same direction", factor=mine.value / papers)
    return Agreement("contradicts")


def speed_agreement(ratio: Measurement, papers: float) -> Agreement:
    """The verdict on relative over absolute steps/s; only alternating rounds decide, since runs share machines."""
    interval = ratio.interval
    if interval is None or interval.kind != "rounds" or ratio.value is None:
        return Agreement("not decided", "whole runs, at different times; rpr-cli bench times the variants in turn")
    if interval.low > 1:
        return Agreement("contradicts")
    if interval.high >= 1:
        return Agreement("not decided", "slower and faster rounds")
    if interval.low <= papers <= interval.high:
        return Agreement("agrees")
    return Agreement("same direction", factor=(1 - ratio.value) / (1 - papers))
