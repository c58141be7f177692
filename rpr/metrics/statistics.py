"""What each sentence adds to a corpus score, and the score as a function of the sums: what resampling needs.

BLEU and chrF are no means over sentences: both add up counts over the whole test set and make one figure of the sums.
The counts are sacreBLEU's own; the two formulas are written out here for many sums at once (sacreBLEU has them for
one), and each is compared with sacreBLEU's own score every time that counts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Array = NDArray[np.float64]
SAME = 1e-9  # scores that differ by less differ by rounding


@dataclass(frozen=True)
class Counts:
    """`rows`: (N, C), what each of N sentences adds; `formula`: (S, C) sums to (S,) scores between 0 and 100."""

    rows: Array
    formula: Callable[[Array], Array]

    @property
    def score(self) -> float:
        """Of all sentences together."""
        return float(self.formula(self.rows.sum(0, keepdims=True))[0])

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, chosen: NDArray[np.bool_]) -> Counts:
        """Of some of the sentences; `chosen`: (N,)."""
        return Counts(self.rows[chosen], self.formula)


def counts_of(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """The counts of each pair, as `metric` takes them."""
    # sacreBLEU has no public way to them but its own tests (PairedTest), which know no interval of a difference.
    rows = np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float64)
    if isinstance(metric, CHRF):
        return Counts(rows, partial(chrf_of_sums, beta=metric.beta))
    return Counts(rows, partial(bleu_of_sums, exponential=metric.smooth_method == "exp"))


def counts_of_matches(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """1 for each sentence that equals its reference, and 1 for each sentence."""
    rows = [(one == other, 1) for one, other in zip(hypotheses, references, strict=True)]
    return Counts(np.array(rows, np.float64), share_of_sums)


def pooled(parts: Sequence[Counts]) -> Counts:
    """All sentences of several test sets, counted alike, one set after the other."""
    return Counts(np.concatenate([part.rows for part in parts]), parts[0].formula)


def share_of_sums(sums: Array) -> Array:
    """Matches among all, in percent."""
    return 100 * sums[:, 0] / sums[:, 1]


def bleu_of_sums(sums: Array, *, exponential: bool) -> Array:
    """BLEU of each row: length of the hypotheses, of the references, matches of 1- to 4-grams, all of the hypotheses.

    `exponential`: the k-th order without a match counts as 1 / 2^k matches (NIST's smoothing); else BLEU is 0 there.
    """
    length, reference_length, matches, totals = sums[:, 0], sums[:, 1], sums[:, 2:6].copy(), sums[:, 6:10]
    scored = (matches.sum(1) > 0) & (totals > 0).all(1)
    if exponential:
        missing = matches == 0
        matches = np.where(missing, 0.5 ** missing.cumsum(1), matches)
    scored &= (matches > 0).all(1)
    safe = scored[:, None]
    precision = np.where(safe, matches, 1) / np.where(safe, totals, 1)
    brevity = np.exp(np.minimum(0, 1 - reference_length / np.where(scored, length, 1)))
    return np.where(scored, 100 * brevity * np.exp(np.log(precision).mean(1)), 0.0)


def chrf_of_sums(sums: Array, *, beta: float) -> Array:
    """chrF of each row: for each order how many n-grams the hypotheses have, the references, and both."""
    in_hypotheses, in_references, matches = (sums[:, first::3] for first in range(3))
    counted = (in_hypotheses > 0) & (in_references > 0)
    orders = np.maximum(counted.sum(1), 1)
    precision = np.where(counted, matches / np.where(counted, in_hypotheses, 1), 0).sum(1) / orders
    recall = np.where(counted, matches / np.where(counted, in_references, 1), 0).sum(1) / orders
    below = beta**2 * precision + recall
    return np.where(below > 0, 100 * (1 + beta**2) * precision * recall / np.where(below > 0, below, 1), 0.0)
