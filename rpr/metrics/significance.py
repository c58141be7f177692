"""How far a score depends on the sentences that happen to be in the test set; and whether two systems differ.

Interval: the percentile bootstrap of Koehn (2004). The N sentences are drawn N times with replacement, the score is
taken again, and of all such scores the middle 95% is the interval. Of a share of the sentences (exact match) it is
Wilson's score interval (1927), which is right also where none or all of them match: there every draw is the same.

Paired tests of two systems on the same sentences, both after sacreBLEU (Post 2018; Clark et al. 2011):
- bootstrap: both systems on the same draws; p is how often |difference| minus its mean is at least the difference seen.
  Where the difference is large against its spread this counts one tail only, and p is half of a two-sided one: of 300
  pairs of systems made alike it called 10% different at p < 0.05, randomisation 5%.
- approximate randomisation (Riezler and Maxwell 2005): each sentence's two translations change places by a coin; p is
  how often such a pair differs at least as much as the two systems do. Two-sided, exact but for the number of trials.
Here "at least" holds also where both differ exactly as much; sacreBLEU counts only what is more, and so gives
1 / (trials + 1) to a system against itself, and to two that differ in one sentence.

The same draws as sacreBLEU's for the same seed; the environment (SACREBLEU_SEED) changes nothing. All of this is about
the sentences: how much another training of the same model would differ, only several seeds can tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rpr.metrics.statistics import SAME, Array, Counts, share_of_sums
from rpr.records.scores import Interval

SEED = 12345  # sacreBLEU's own
LEVEL = 0.95
METHOD = "percentile bootstrap over sentences"
WILSON = "Wilson's score interval of a share of the sentences"
_AT_ONCE = 2_000_000  # drawn sentences held at a time
_WORD = 32  # random bits come in words of so many: a chunk of whole words leaves the sequence as it is


@dataclass(frozen=True)
class Paired:
    """`difference`: the score of the second minus that of the first; both p are two systems' on the same sentences."""

    difference: float
    interval: Interval
    p_bootstrap: float
    p_randomisation: float


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for one) over n seeds."""

    mean: float
    sd: float | None
    n: int


def interval(counts: Counts, samples: int, seed: int = SEED) -> Interval:
    """95% interval of a score over the sentences of its test set; at least 1 sample, where it is a bootstrap."""
    if counts.formula is share_of_sums:
        return _wilson(*counts.rows.sum(0))
    (scores,) = _resampled([counts], samples, seed)
    return _middle(scores, samples, seed)


def paired(first: Counts, second: Counts, *, samples: int, trials: int, seed: int = SEED) -> Paired:
    """Two systems on the same sentences: `samples` of the bootstrap, `trials` of the randomisation."""
    assert len(first) == len(second), "a paired test needs the same sentences"
    difference = second.score - first.score
    of_first, of_second = _resampled([first, second], samples, seed)
    differences = of_second - of_first
    unsigned = np.abs(differences)
    shuffled = _shuffled(first, second, trials, seed)
    return Paired(
        difference,
        _middle(differences, samples, seed),
        p_bootstrap=_p(unsigned - unsigned.mean(), difference),
        p_randomisation=_p(np.abs(shuffled), difference),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p for all comparisons of one family, in the order given.

    The smallest of m counts m-fold, the next (m - 1)-fold and so on; none is less than the one before or above 1.
    """
    adjusted = [0.0] * len(p_values)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def spread(values: Sequence[float]) -> Spread:
    """Over the seeds of one variant; at least one value."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def _p(found: Array, difference: float) -> float:
    return (int((found >= abs(difference) - SAME).sum()) + 1) / (len(found) + 1)


def _middle(values: Array, samples: int, seed: int) -> Interval:
    # A fortieth off at each end: 25 of 1,000, as sacreBLEU does it.
    ordered = np.sort(values)
    cut = len(ordered) // 40
    low, high = float(ordered[cut]), float(ordered[-cut - 1])
    return Interval(low=low, high=high, level=LEVEL, kind="sentences", samples=samples, seed=seed, method=METHOD)


def _wilson(matches: float, count: float) -> Interval:
    quantile = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, added = matches / count, quantile**2 / count
    middle = share + added / 2
    half = quantile * math.sqrt(share * (1 - share) / count + added / (4 * count))
    low, high = (100 * (middle + side) / (1 + added) for side in (-half, half))
    return Interval(low=max(0.0, low), high=min(100.0, high), level=LEVEL, kind="sentences", method=WILSON)


def _resampled(systems: Sequence[Counts], samples: int, seed: int) -> list[Array]:
    """(samples,) scores of each system, all on the same draws."""
    count = len(systems[0])
    random = np.random.default_rng(seed)
    scores: list[list[Array]] = [[] for _ in systems]
    for rows in _chunks(samples, count):
        drawn = random.choice(count, size=(rows, count), replace=True)
        # How often each draw has each sentence; a product of matrices then adds up the counts.
        places = drawn + count * np.arange(rows)[:, None]
        times = np.bincount(places.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
        for system, found in zip(systems, scores, strict=True):
            found.append(system.formula(times @ system.rows))
    return [np.concatenate(found) for found in scores]


def _shuffled(first: Counts, second: Counts, trials: int, seed: int) -> Array:
    """(trials,) differences of two systems made by a coin for each sentence: heads, the translations change places."""
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
