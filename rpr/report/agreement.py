"""What a measured change decides: whether one variant is better than another, and whether it agrees with the paper's.

The single rules used by all reports. No sentence compares two variants unless the paired interval of exactly that
comparison stands beside it and excludes zero: sentences are made from `Comparison`s, which know.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rpr.records.measurement import Measurement
from rpr.records.scores import LOWER_IS_BETTER
from rpr.report.groups import Group, Variant
from rpr.tables.grid import Cell, figure_text, number

WIDEST = 1.0  # BLEU to either side of the mean: wider intervals are inconclusive
_ROUNDING = 1e-9  # tolerance for binary floating point: 30.0 - 29.7 is not 0.3
Verdict = Literal["agrees", "same direction", "contradicts", "not decided"]
RULE = (
    "Agrees: the paper's change (of one run, taken as exact) lies in our 95% interval over seeds, and zero does not. "
    "Same direction: it does not, but the whole interval is on its side of zero. Contradicts: neither. Not decided: "
    "one seed, a run that was still learning, a model that did not learn, an interval with both, or one wider than "
    f"±{WIDEST:g} BLEU with either."
)
FINDINGS_RULE = (
    "Better or worse: the 95% interval over seeds of exactly this comparison, paired seed by seed, excludes zero, and "
    "both models learned and are known to have stopped learning. Everything else is not decided. "
    "The findings say which hold when corrected for the number of comparisons (Holm's method, at 5%)."
)
EQUAL_TOKENS = "Language models are compared at equal numbers of tokens, also while they are still learning."
EQUAL_CONTINUED = EQUAL_TOKENS.replace("tokens,", "tokens, of this training alone if they continue another,")
INCLUDES_ZERO = "the interval contains zero"
VERDICTS = ("better", "worse", "not decided")


@dataclass(frozen=True)
class Agreement:
    """A verdict; `detail` says why it is `not decided`, or of `same direction` how large our change is."""

    verdict: Verdict
    detail: str = ""

    @property
    def sentence(self) -> str:
        """`agrees`, `same direction: 1.0 BLEU larger`, `contradicts`, `not decided: one seed`."""
        return f"{self.verdict}: {self.detail}" if self.detail else self.verdict

    @property
    def cell(self) -> Cell:
        """The words, with why it is not decided in a footnote."""
        return Cell(self.verdict, (self.sentence,)) if self.verdict == "not decided" else Cell(self.sentence)


@dataclass(frozen=True)
class Comparison:
    """A variant's score on a split minus a reference's, seed by seed."""

    group: Group
    variant: Variant
    reference: Variant
    split: str

    @cached_property
    def change(self) -> Measurement:
        return self.group.change(self.variant, self.reference, self.split)

    @cached_property
    def why_undecided(self) -> str:
        """Why it decides nothing; empty if the interval over seeds excludes zero."""
        interval = self.change.interval
        if self.change.value is None:
            return str(self.change.reason)
        if (why := why_undecided(self.variant, self.reference) or _no_interval(self.change)) or interval is None:
            return why
        return INCLUDES_ZERO if interval.low <= 0 <= interval.high else ""

    @property
    def verdict(self) -> Literal["better", "worse", "not decided"]:
        if self.why_undecided or self.change.value is None:
            return "not decided"
        return "better" if (self.change.value > 0) != (self.group.metric in LOWER_IS_BETTER) else "worse"

    @property
    def figures(self) -> str:
        """`+1.5 ± 0.5 (+0.3 to +2.7; 3 seeds)`, and in brackets why nothing is decided."""
        value, interval = figure_text(self.change, self.group.digits, signed=True)
        seeds = "one seed" if self.change.n == 1 else f"{self.change.n} seeds"
        why = "" if self.why_undecided in ("", "one seed", INCLUDES_ZERO) else self.why_undecided
        return f"{value} ({'; '.join(filter(None, (interval.strip('()'), seeds, why)))})"


def why_undecided(*variants: Variant) -> str:
    """Why no comparison of these variants is decided, whatever their scores; empty if there is no such reason."""
    return next((variant.undecided for variant in variants if variant.undecided), "")


def _no_interval(change: Measurement) -> str:
    """Why a change has no interval over seeds; empty if it has one."""
    if change.interval is not None and change.interval.kind == "seeds":
        return ""
    return "one seed" if change.n < 2 else "fewer than two seeds in common"


def agreement(ours: Measurement, papers: float, *, undecided: str = "") -> Agreement:
    """The verdict on a change in BLEU with its interval over seeds, by RULE; `undecided`: why there is none anyway."""
    if (why := undecided or _no_interval(ours)) or ours.interval is None or ours.value is None:
        return Agreement("not decided", why)
    low, high = ours.interval.low, ours.interval.high
    includes, undirected = low - _ROUNDING <= papers <= high + _ROUNDING, low <= 0 <= high
    if includes and undirected and papers:
        return Agreement("not decided", f"{INCLUDES_ZERO} and the paper's change")
    if max(high - ours.value, ours.value - low) > WIDEST and (includes or undirected):
        return Agreement("not decided", f"the interval is wider than ±{WIDEST:g} BLEU")
    if includes:
        return Agreement("agrees")
    if papers and ((low > 0 and papers > 0) or (high < 0 and papers < 0)):
        larger = abs(ours.value) - abs(papers)
        return Agreement("same direction", f"{number(abs(larger), 1)} BLEU {'larger' if larger > 0 else 'smaller'}")
    return Agreement("contradicts")


def speed_agreement(ratio: Measurement, papers: float) -> Agreement:
    """The verdict on relative over absolute steps/s; only alternating rounds decide, since runs share machines."""
    interval = ratio.interval
    if interval is None or interval.kind != "rounds" or ratio.value is None:
        return Agreement("not decided", "whole runs, at different times; rpr-cli bench interleaves the variants")
    if ratio.n < 2:
        return Agreement("not decided", "one round")
    if interval.low > 1:
        return Agreement("contradicts")
    if interval.high >= 1:
        return Agreement("not decided", "the range over rounds contains 1")
    if interval.low <= papers <= interval.high:
        return Agreement("agrees")
    return Agreement("same direction", f"{number((1 - ratio.value) / (1 - papers), 1)} × the paper's")
