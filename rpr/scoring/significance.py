"""Confidence intervals of scores over test sentences, and significance tests between two systems.

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

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpr.records.scores import OVER_DOCUMENTS, Interval
from rpr.scoring.statistics import SAME, Array, SufficientStatistics, bits_from_sums, share_from_sums

SEED = 12345  # sacreBLEU's own
LEVEL = 0.95
METHOD = "percentile bootstrap over sentences"
WILSON = "Wilson's score interval of a share of the sentences"
_AT_ONCE = 2_000_000  # sampled sentences in memory at once
_WORD = 32  # random bits per generator word: chunks of whole words do not change the sequence


class PairedTests(NamedTuple):
    """`difference` is the score of the second system minus that of the first, on the same sentences."""

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
    return _percentile_interval(scores, samples, seed, _method(scored))


def paired_tests(
    first: SufficientStatistics, second: SufficientStatistics, *, samples: int, trials: int, seed: int = SEED
) -> PairedTests:
    """Test two systems on the same sentences: `samples` for the bootstrap, `trials` for the randomisation."""
    assert len(first) == len(second), "a paired test needs the same sentences"
    difference = second.score - first.score
    first_scores, second_scores = _bootstrap_scores([first, second], samples, seed)
    differences = second_scores - first_scores
    unsigned = np.abs(differences)
    swapped = _swapped_differences(first, second, trials, seed)
    return PairedTests(
        difference,
        _percentile_interval(differences, samples, seed, _method(first)),
        p_bootstrap=_p(unsigned - unsigned.mean(), difference),
        p_randomisation=_p(np.abs(swapped), difference),
    )


def _p(differences: Array, difference: float) -> float:
    return (int((differences >= abs(difference) - SAME).sum()) + 1) / (len(differences) + 1)


def _method(scored: SufficientStatistics) -> str:
    return OVER_DOCUMENTS if scored.formula is bits_from_sums else METHOD


def _percentile_interval(values: Array, samples: int, seed: int, method: str) -> Interval:
    # Drop 1/40 at each end, 25 of 1,000, as in sacreBLEU.
    ordered = np.sort(values)
    dropped = len(ordered) // 40
    low, high = float(ordered[dropped]), float(ordered[-dropped - 1])
    return Interval(low=low, high=high, level=LEVEL, kind="sentences", samples=samples, seed=seed, method=method)


def _wilson(matches: float, count: float) -> Interval:
    quantile = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
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
