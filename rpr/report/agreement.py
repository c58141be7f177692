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
    "Agrees: the paper's change lies in our 95% interval over seeds. Same direction: it does not, but the whole "
    "interval is on its side of zero. Contradicts: neither. Not decided: one seed, a run that was still learning, or "
    f"an interval wider than ±{WIDEST:g} BLEU that contains zero or the paper's change."
)
HEADINGS: dict[Verdict, str] = {
    "agrees": "Agrees with the paper",
    "same direction": "Same direction as in the paper, different size",
    "contradicts": "Contradicts the paper",
    "not decided": "Not decided",
}


@dataclass(frozen=True)
class Agreement:
    """A verdict. `why` explains `not decided`; `factor` is our change over the paper's for `same direction`."""

    verdict: Verdict
    why: str = ""
    factor: float | None = None

    @property
    def detail(self) -> str:
        """`33.0 × the paper's`, `one seed`, or nothing."""
        return self.why if self.factor is None else f"{number(self.factor, 1)} × the paper's"

    @property
    def sentence(self) -> str:
        """`agrees`, `same direction: 33.0 × the paper's`, `contradicts`, `not decided: one seed`."""
        return f"{self.verdict}: {self.detail}" if self.detail else self.verdict

    @property
    def cell(self) -> Cell:
        """The words, with the reason in a footnote."""
        return Cell(self.verdict if self.why else self.sentence, (self.sentence,) if self.why else ())


def agreement(mine: Measurement, papers: float, *, still_learning: bool = False) -> Agreement:
    """The verdict on a change in BLEU with its interval over seeds, by the rule above."""
    if still_learning:
        return Agreement("not decided", "still learning")
    interval = mine.interval
    if interval is None or interval.kind != "seeds" or mine.value is None:
        return Agreement("not decided", "one seed" if mine.n < 2 else "fewer than two seeds in common")
    low, high = interval.low, interval.high
    includes = low - _ROUNDING <= papers <= high + _ROUNDING
    if max(high - mine.value, mine.value - low) > WIDEST and (includes or low <= 0 <= high):
        return Agreement("not decided", f"the interval is wider than ±{WIDEST:g} BLEU")
    if includes:
        return Agreement("agrees")
    if papers and ((low > 0 and papers > 0) or (high < 0 and papers < 0)):
        return Agreement("same direction", factor=mine.value / papers)
    return Agreement("contradicts")


def speed_agreement(ratio: Measurement, papers: float) -> Agreement:
    """The verdict on relative over absolute steps/s; only alternating rounds decide, since runs share machines."""
    interval = ratio.interval
    if interval is None or interval.kind != "rounds" or ratio.value is None:
        return Agreement("not decided", "whole runs, at different times; rpr-cli bench interleaves the variants")
    if interval.low > 1:
        return Agreement("contradicts")
    if interval.high >= 1:
        return Agreement("not decided", "the range over rounds contains 1")
    if interval.low <= papers <= interval.high:
        return Agreement("agrees")
    return Agreement("same direction", factor=(1 - ratio.value) / (1 - papers))
