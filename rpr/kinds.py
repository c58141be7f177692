"""What kind of experiment a run is, and what follows from it: translation of pairs, a generated task, or text.

Whoever needs to know (tables, verdicts, commands, the mirror in W&B) asks the `Kind` of a configuration or a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_BLEU = 1.0  # with less, a translation has learned nothing
MOST_CUT_OFF = 0.5  # of the outputs: with more, a model has not learned to end a sentence


@dataclass(frozen=True)
class Kind:
    """One kind of experiment. `splits` are those that findings are of: the first one with scores, then splits of the
    user's own, then validation.
    """

    name: str
    metric: str  # of the findings
    heading: str  # of its column
    unit: str  # of a change
    digits: int  # decimals in tables
    splits: tuple[str, ...]
    items: str  # that a score is computed over
    caution: str  # for whoever reads the scores
    lower_is_better: bool = False
    highest: float = 100.0
    shares: bool = False  # whether a score is a percentage of the items

    @property
    def printed_digits(self) -> int:
        """Decimals of one run's score, where commands print it."""
        return max(self.digits, 2)

    def better(self, change: float) -> bool:
        """Whether a change of the score, which is not zero, is to the better."""
        return (change > 0) != self.lower_is_better

    def best_first(self, score: float) -> float:
        return score if self.lower_is_better else -score

    def unlearned(self, score: float, *, cut_off: float = 0.0, unigram: float | None = None) -> str:
        """Why a model with this score has learned nothing; empty if it has.

        `cut_off`: the share of its outputs that reached the length limit. `unigram`: the entropy of the corpus in bits
        per byte if each piece is drawn by its frequency alone; None if it is not known.
        """
        if self is TEXT:
            above = unigram is not None and score >= unigram
            return f"not below the unigram entropy of the corpus, {unigram:.2f} bits per byte" if above else ""
        if self is TASK:
            return "no answer within the training lengths is right, as by chance" if score <= 0 else ""
        if score < LEAST_BLEU:
            return f"BLEU below {LEAST_BLEU:g}"
        return "half of the translations or more are cut off at the length limit" if cut_off >= MOST_CUT_OFF else ""


TRANSLATION = Kind(
    name="translation", metric="sacrebleu", heading="BLEU", unit="BLEU", digits=1, splits=("test",), items="sentences",
    caution="Small models on a small corpus: compare changes, not scores.",
)  # fmt: skip
TASK = Kind(
    name="task", metric="exact_match", heading="exact match", unit="points of exact match", digits=1,
    splits=("long", "test"), items="sentences", shares=True,
    caution="A seed solves a task or does not: compare how many seeds do, not means alone.",
)  # fmt: skip
TEXT = Kind(
    name="text", metric="bits_per_byte", heading="bits/byte", unit="bits per byte", digits=3, splits=("test",),
    items="documents", lower_is_better=True, highest=math.inf,
    caution="Compared at equal numbers of tokens, also while a model is still learning.",
)  # fmt: skip
KINDS = (TRANSLATION, TASK, TEXT)


def kind_of(data: Any) -> Kind:
    """The kind of a run with this data configuration, typed or as a record has it."""
    read = data.get if isinstance(data, Mapping) else data.__getattribute__
    return TEXT if read("text") is not None else TRANSLATION if read("task") is None else TASK


def kind_of_metric(metric: str) -> Kind:
    """The kind whose findings are of this metric; any other metric is of translations."""
    return next((kind for kind in KINDS if kind.metric == metric), TRANSLATION)
