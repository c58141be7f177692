"""Scores as functions of sums of per-sentence counts, and from these their confidence intervals and paired tests.

BLEU and chrF are not means over sentences: they sum counts over the whole test set and compute one score from the sums.
The counts are sacreBLEU's own; the formulas are vectorised here over many sums (sacreBLEU computes one at a time), and
the result is checked against sacreBLEU's own score every time.

Interval: the percentile bootstrap of Koehn (2004). N sentences are drawn with replacement and scored, many times; the
interval is the middle 95% of these scores. For a proportion (exact match) it is Wilson's score interval (1927), which
is also valid if no or all sentences match, where every bootstrap sample would be the same.

Paired tests of two systems on the same sentences, both as in sacreBLEU (Post 2018; Clark et al. 2011):
- bootstrap: both systems on the same samples; p is how often |difference| minus its mean is at least the observed
  difference. If the difference is large relative to its spread this counts only one tail, and p is half a two-sided p:
  of 300 pairs of equivalent systems it called 10% different at p < 0.05, randomisation 5%.
- approximate randomisation (Riezler and Maxwell 2005): each sentence's two translations are swapped with probability
  1/2; p is how often the difference is at least the observed one. Two-sided, exact up to the number of trials.
"At least" includes equality here; sacreBLEU counts only strictly larger differences, and so gives p = 1 / (trials + 1)
to a system compared with itself, and to two that differ in one sentence.

The samples equal sacreBLEU's for the same seed, whatever the environment (SACREBLEU_SEED). All of this covers only the
choice of test sentences: the variation between training runs of the same model requires several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rpr.records.scores import OVER_DOCUMENTS, Interval

Array = NDArray[np.float64]
SAME = 1e-9  # smaller score differences are rounding
SEED = 12345  # sacreBLEU's own
LEVEL = 0.95
METHOD = "percentile bootstrap over sentences"
WILSON = "Wilson's score interval of a share of the sentences"
_AT_ONCE = 2_000_000  # sampled sentences in memory at once
_WORD = 32  # random bits per generator word: chunks of whole words do not change the sequence


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


def share_from_sums(sums: Array) -> Array:
    """The percentage of matches, of each row of sums: matches, and sentences."""
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


# Intervals and tests


@dataclass(frozen=True)
class Comparison:
    """A run compared with a baseline on the same sentences: the score of the run minus the baseline's."""

    baseline: str
    run: str
    difference: float
    interval: Interval
    p_bootstrap: float
    p_randomisation: float


def interval(scored: SufficientStatistics, samples: int, seed: int = SEED) -> Interval | None:
    """95% interval of a score over its test sentences, by a bootstrap if it is no share; None without samples."""
    if not samples:
        return None
    if scored.formula is share_from_sums:
        return _wilson(*scored.rows.sum(0))
    if len(scored) == 1:
        return None  # a single sentence or document says nothing about others
    (scores,) = _bootstrap_scores([scored], samples, seed)
    return _percentile_interval(scores, scored, seed)


def paired_tests(
    first: SufficientStatistics, second: SufficientStatistics, *, samples: int, trials: int, seed: int = SEED
) -> Comparison:
    """Test two systems on the same sentences: `samples` for the bootstrap, `trials` for the randomisation."""
    assert len(first) == len(second), "a paired test needs the same sentences"
    difference = second.score - first.score
    first_scores, second_scores = _bootstrap_scores([first, second], samples, seed)
    unsigned = np.abs(differences := second_scores - first_scores)
    swapped = np.abs(_swapped_differences(first, second, trials, seed))
    p_values = (_p(unsigned - unsigned.mean(), difference), _p(swapped, difference))
    return Comparison("", "", difference, _percentile_interval(differences, first, seed), *p_values)


def _p(differences: Array, difference: float) -> float:
    return (int((differences >= abs(difference) - SAME).sum()) + 1) / (len(differences) + 1)


def _percentile_interval(values: Array, scored: SufficientStatistics, seed: int) -> Interval:
    # Drop 1/40 at each end, 25 of 1,000, as in sacreBLEU.
    ordered, dropped = np.sort(values), len(values) // 40
    low, high = float(ordered[dropped]), float(ordered[-dropped - 1])
    method = OVER_DOCUMENTS if scored.formula is bits_from_sums else METHOD
    return Interval(low=low, high=high, level=LEVEL, kind="sentences", samples=len(values), seed=seed, method=method)


def _wilson(matches: float, count: float) -> Interval:
    quantile = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, added = matches / count, quantile**2 / count
    middle = share + added / 2
    half = quantile * math.sqrt(share * (1 - share) / count + added / (4 * count))
    low, high = (100 * (middle + side) / (1 + added) for side in (-half, half))
    return Interval(low=max(0.0, low), high=min(100.0, high), level=LEVEL, kind="sentences", method=WILSON)


def _bootstrap_scores(systems: Sequence[SufficientStatistics], samples: int, seed: int) -> list[Array]:
    """(samples,) scores of each system, all on the same bootstrap samples."""
    count = len(systems[0])
    random = np.random.default_rng(seed)
    scores: list[list[Array]] = [[] for _ in systems]
    for rows in _chunks(samples, count):
        drawn = random.choice(count, size=(rows, count), replace=True)
        # How often each sample has each sentence; a matrix product then sums the counts.
        places = drawn + count * np.arange(rows)[:, None]
        times = np.bincount(places.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
        for system, system_scores in zip(systems, scores, strict=True):
            system_scores.append(system.formula(times @ system.rows))
    return [np.concatenate(system_scores) for system_scores in scores]


def _swapped_differences(first: SufficientStatistics, second: SufficientStatistics, trials: int, seed: int) -> Array:
    """(trials,) score differences after randomly swapping the two systems' translations of each sentence."""
    random = np.random.default_rng(seed)
    both = first.rows.sum(0) + second.rows.sum(0)
    differences = []
    for rows in _chunks(trials, len(first)):
        heads: NDArray[np.bool_] = random.integers(2, size=(rows, len(first)), dtype=bool)
        mixed = second.rows.sum(0) + heads.astype(np.float64) @ (first.rows - second.rows)
        differences.append(first.formula(mixed) - first.formula(both - mixed))
    return np.concatenate(differences)


def _chunks(rows: int, count: int) -> Iterator[int]:
    size = max(_WORD, _AT_ONCE // count // _WORD * _WORD)
    for start in range(0, rows, size):
        yield min(size, rows - start)
