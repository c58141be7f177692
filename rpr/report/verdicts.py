"""Which rows of a table are better or worse than its baseline: one model of the whole table.

Least squares of `score ~ row + seed`, with one variance pooled over the rows, and the simultaneous 95% intervals of
Dunnett (1955) for the changes from the baseline: corrected for their number by construction, paired where seeds are
shared. A row is better or worse if its interval excludes zero. With unequal variances (Levene's test on medians), and
for shares of right answers, where seeds solve a task or do not, each row has an interval of its own and Holm's
correction. The family is every row with a score that learned. A verdict needs three seeds on both sides.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy  # whose stats takes a second to import
from scipy.special import stdtr, stdtrit

from rpr.records.measurement import LEVEL, Measurement, holm, mean, p_value
from rpr.records.scores import Interval

LEAST_SEEDS = 3
LEAST_EQUAL = 0.01  # p of Levene's test, below which variances are not pooled
DRAWS, SEED = 200_000, 1  # of the multivariate t
BETTER, WORSE, OPEN = "better", "worse", "open"
_AT_ONCE = 5_000_000  # numbers in memory
MODEL = "Dunnett's simultaneous intervals from one model of the table, score ~ row + seed"
WELCH = "Welch's t intervals, as the rows' variances differ (Levene, p < 0.01), and Holm's correction over all rows"
BOTH = "of a change over seeds and documents both: the variances of either add up"
SHARES = "paired t intervals of the log-odds, and Holm's correction over all rows"
Scores = Mapping[str, Mapping[int, float]]  # of each row by seed
Estimate = tuple[Measurement, float]  # a change, and p of no change; 1 without an interval


class Changes(NamedTuple):
    """Of each row but the baseline, by label: its change with a 95% interval, and its verdict."""

    of_rows: Mapping[str, Measurement]
    verdicts: Mapping[str, str]
    method: str  # empty without an interval


def changes(
    scores: Scores, baseline: str, step: float, *, lower_is_better: bool = False, shares: bool = False
) -> Changes:
    """The changes of all rows from the baseline, which is one of them, by label; none without rows.

    `step`: what one item of a test set adds to a score, for the narrowest interval: one item of one seed to either
    side. `shares`: the scores are percentages of items.
    """
    # 1. The estimates and their intervals.
    others = [label for label in scores if label != baseline]
    estimates, method = {} if shares else _dunnett(scores, baseline, step), MODEL
    if not estimates or not _equal_variances(scores):
        estimate, method = (_paired, SHARES) if shares else (_welch, WELCH)
        estimates = {label: estimate(scores[label], scores[baseline], step) for label in others}
    of_rows = {label: change for label, (change, _) in estimates.items()}
    # 2. What they decide: with three seeds on both sides, zero outside the interval, and that also when corrected.
    tested = [label for label in others if of_rows[label].interval is not None]
    corrected = dict(zip(tested, holm([estimates[label][1] for label in tested]), strict=True))
    verdicts = {}
    for label, change in of_rows.items():
        seeds, ends = min(len(scores[label]), len(scores[baseline])), change.interval
        verdicts[label] = OPEN if seeds >= LEAST_SEEDS else f"{OPEN} ({seeds} seed{'s' * (seeds > 1)})"
        if seeds >= LEAST_SEEDS and ends and not ends.low <= 0 <= ends.high and corrected[label] < 1 - LEVEL:
            verdicts[label] = BETTER if (ends.low > 0) != lower_is_better else WORSE
    return Changes(of_rows, verdicts, method if tested else "")


def _dunnett(scores: Scores, baseline: str, step: float) -> dict[str, Estimate]:
    """Nothing without a degree of freedom for the variance; p is 0, as the intervals are corrected already."""
    # 1. The design: the mean, each row but the baseline, each seed of several rows but the first.
    others = [label for label in scores if label != baseline]
    cells = [(label, seed, score) for label, by_seed in scores.items() for seed, score in by_seed.items()]
    times = Counter(seed for _, seed, _ in cells)
    first, *blocks = sorted(seed for seed, rows in times.items() if rows > 1) or [-1]
    columns = [
        # Effects of seeds add up to zero, and a seed of one row alone has none.
        [1.0, *(label == other for other in others), *((seed == block) - (seed == first) for block in blocks)]
        for label, seed, _ in cells
    ]
    design, values = np.array(columns), np.array([score for _, _, score in cells])
    freedom = len(cells) - int(np.linalg.matrix_rank(design)) if others else 0
    if freedom < 1:
        return {}
    # 2. Least squares, and the covariance of the changes per unit of variance.
    inverse = np.linalg.pinv(design.T @ design)
    effects = inverse @ design.T @ values
    variance = float(((values - design @ effects) ** 2).sum()) / freedom
    covariance = inverse[1 : len(others) + 1, 1 : len(others) + 1]
    errors = np.sqrt(np.diagonal(covariance))
    # 3. The simultaneous intervals.
    correlation = (covariance / np.outer(errors, errors)).round(9)
    halves = critical_value(tuple(map(tuple, correlation.tolist())), freedom) * errors * math.sqrt(variance)
    return {
        label: (_measured(change, half, len(scores[label]), step), 0.0)
        for label, change, half in zip(others, effects[1:].tolist(), halves.tolist(), strict=False)
    }


@lru_cache(maxsize=256)
def critical_value(correlation: tuple[tuple[float, ...], ...], freedom: int) -> float:
    """What the largest |t| of jointly distributed values exceeds with a probability of 5%, by DRAWS seeded draws."""
    random = np.random.default_rng(SEED)
    vectors, values, _ = np.linalg.svd(np.array(correlation), hermitian=True)
    root, largest = (vectors * np.sqrt(values)).T, list[float]()
    while len(largest) < DRAWS:
        count = min(DRAWS - len(largest), max(_AT_ONCE // len(correlation), 1))
        normal = np.abs(random.standard_normal((count, len(correlation))) @ root).max(1)
        largest += (normal / np.sqrt(random.chisquare(freedom, count) / freedom)).tolist()
    return float(np.quantile(largest, LEVEL))


def _equal_variances(scores: Scores) -> bool:
    several = [[*by_seed.values()] for by_seed in scores.values() if len(by_seed) > 1]
    if len(several) < 2 or max(map(len, several)) < LEAST_SEEDS:
        return True  # of two values each distance from their median is the same: nothing to test
    with np.errstate(invalid="ignore", divide="ignore"):
        return not scipy.stats.levene(*several, center="median").pvalue < LEAST_EQUAL  # NaN: all are zero


def _welch(own: Mapping[int, float], its: Mapping[int, float], step: float) -> Estimate:
    sides = [np.array([*side.values()]) for side in (own, its)]
    counts = np.array([len(side) for side in sides])
    change = float(sides[0].mean() - sides[1].mean())
    if min(counts) < 2:
        return Measurement(change, len(own)), 1.0
    # Seeds that happen to agree do not make a mean certain.
    errors = np.maximum([side.var(ddof=1) for side in sides], step**2 / counts) / counts
    error, freedom = math.sqrt(errors.sum()), float(errors.sum() ** 2 / (errors**2 / (counts - 1)).sum())
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    return _measured(change, half, len(own), step), 2 * float(stdtr(freedom, -abs(change) / error))


def _paired(own: Mapping[int, float], its: Mapping[int, float], step: float) -> Estimate:
    seeds = sorted(own.keys() & its.keys())
    if len(seeds) < 2:
        change = math.fsum(own.values()) / len(own) - math.fsum(its.values()) / len(its)
        return Measurement(change, len(own)), 1.0
    paired = mean([own[seed] - its[seed] for seed in seeds], -100.0, 100.0, step)
    return paired, p_value(paired)


def over_seeds_and_documents(bits: np.ndarray, sizes: np.ndarray) -> Measurement:
    """The mean over seeds of bits [seeds, documents] per byte of documents of these `sizes`, or of a change of them,
    with its 95% interval for other seeds and other documents; at least two of both.

    Seeds and documents are crossed random effects, so their variances add up (Searle, Casella and McCulloch 1992,
    chapter 4). With D_s = sum_d x_sd / B, and r_d the mean over seeds of x_sd - D_s b_d (Cochran 1977, 6.3),
        V_seeds = sum_s (D_s - D)^2 / (n (n - 1)),  V_documents = m / (m - 1) sum_d r_d^2 / B^2,
    where m = B^2 / sum_d b_d^2 is the effective number of documents. The half-width is the root of
    t(n - 1)^2 V_seeds + t(m - 1)^2 V_documents (Zou and Donner 2008): few seeds count as few whatever the documents.
    """
    n, whole = len(bits), float(sizes.sum())
    m = whole**2 / float((sizes**2).sum())
    of_seeds = bits.sum(1) / whole
    residuals = (bits - of_seeds[:, None] * sizes).mean(0)
    variances = float(of_seeds.var(ddof=1)) / n, m / (m - 1) * float((residuals**2).sum()) / whole**2
    quantiles = stdtrit([n - 1, m - 1], (1 + LEVEL) / 2)
    value, half = float(of_seeds.mean()), math.sqrt(float((quantiles**2 * variances).sum()))
    return Measurement(value, n, interval=Interval(value - half, value + half, LEVEL, kind="seeds", method=BOTH))


def _measured(change: float, half: float, n: int, step: float = 0.0) -> Measurement:
    half = max(half, step / n)
    interval = Interval(change - half, change + half, LEVEL, kind="seeds") if n > 1 else None
    return Measurement(change, n, interval=interval)
