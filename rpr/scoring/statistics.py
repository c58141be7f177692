"""Per-sentence sufficient statistics of corpus scores, and the scores as functions of their sums, for resampling.

BLEU and chrF are not means over sentences: they sum counts over the whole test set and compute one score from the sums.
The counts are sacreBLEU's own; the formulas are vectorised here over many sums (sacreBLEU computes one at a time), and
the result is checked against sacreBLEU's own score every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Array = NDArray[np.float64]
SAME = 1e-9  # smaller score differences are rounding


@dataclass(frozen=True)
class SufficientStatistics:
    """The counts that a score is computed from, and how."""

    rows: Array  # (N, C), the C counts of each of N sentences or documents
    formula: Callable[[Array], Array]  # (S, C) sums to (S,) scores, between 0 and 100, or bits per byte

    @property
    def score(self) -> float:
        """The corpus score of all sentences."""
        return float(self.formula(self.rows.sum(0, keepdims=True))[0])

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, mask: NDArray[np.bool_]) -> SufficientStatistics:
        """The sentences where `mask` (N,) is true."""
        return SufficientStatistics(self.rows[mask], self.formula)


def sufficient_statistics(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> SufficientStatistics:
    """The counts of each sentence pair under `metric`."""
    # sacreBLEU exposes these only through its PairedTest, which has no interval of a difference.
    rows = np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float64)
    if isinstance(metric, CHRF):
        return SufficientStatistics(rows, partial(chrf_from_sums, beta=metric.beta))
    return SufficientStatistics(rows, partial(bleu_from_sums, exponential=metric.smooth_method == "exp"))


def match_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> SufficientStatistics:
    """Per sentence: 1 if it equals its reference, else 0; and a count of 1."""
    rows = [(hypothesis == reference, 1) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return SufficientStatistics(np.array(rows, np.float64), share_from_sums)


def pool(parts: Sequence[SufficientStatistics]) -> SufficientStatistics:
    """The statistics of several test sets, of the same metric, concatenated."""
    return SufficientStatistics(np.concatenate([part.rows for part in parts]), parts[0].formula)


def share_from_sums(sums: Array) -> Array:
    """The percentage of matches."""
    return 100 * sums[:, 0] / sums[:, 1]


def bits_from_sums(sums: Array) -> Array:
    """Bits per byte of each row of sums: nats, and bytes."""
    return sums[:, 0] / (math.log(2) * sums[:, 1])


def bleu_from_sums(sums: Array, *, exponential: bool) -> Array:
    """BLEU of each row of sums: hypothesis length, reference length, 1- to 4-gram matches, 1- to 4-gram totals.

    `exponential`: the k-th order without a match counts as 1 / 2^k matches (NIST smoothing); otherwise BLEU is 0.
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


def chrf_from_sums(sums: Array, *, beta: float) -> Array:
    """chrF of each row of sums: per order, the n-grams in the hypotheses, in the references, and the matches."""
    in_hypotheses, in_references, matches = (sums[:, first::3] for first in range(3))
    counted = (in_hypotheses > 0) & (in_references > 0)
    orders = np.maximum(counted.sum(1), 1)
    precision = np.where(counted, matches / np.where(counted, in_hypotheses, 1), 0).sum(1) / orders
    recall = np.where(counted, matches / np.where(counted, in_references, 1), 0).sum(1) / orders
    below = beta**2 * precision + recall
    return np.where(below > 0, 100 * (1 + beta**2) * precision * recall / np.where(below > 0, below, 1), 0.0)
