"""One measured number with its uncertainty, or the reason why it is missing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from rpr.records.scores import Interval

LEVEL = 0.95
OF_SHARES = "of shares: Student's t, n - 1, on the scale of the log-odds of the mean (of a change d: of 50 + d/2)"


@dataclass(frozen=True, slots=True)
class Measurement:
    """`value` is a single figure or the mean over `n` of them; None if it is missing, and `reason` says why.

    `deviation` is the sample standard deviation over the n (None for n = 1). The interval is over seeds or rounds if
    there are several, else over the sentences of the test set, if the record has one. `spread` is the deviation
    that an interval over seeds is made of.
    """

    value: float | None
    n: int = 0
    deviation: float | None = None
    interval: Interval | None = None
    reason: str | None = None
    spread: float | None = None


def missing(reason: str) -> Measurement:
    return Measurement(None, reason=reason)


def single(value: float, interval: Interval | None = None) -> Measurement:
    return Measurement(value, 1, interval=interval)


def mean(
    values: Sequence[float], lowest: float = -math.inf, highest: float = math.inf, step: float | None = None
) -> Measurement:
    """The mean over seeds (at least one); of several, with deviation and the 95% t interval of the mean, as far as it
    lies within bounds of the values.

    With `step`, which is what one sentence adds, they are percentages of the same sentences, or changes of them, whose
    t interval of few seeds reaches beyond the bounds. With m the mean as a share of the range, its logit has the
    standard error s / (sqrt(n) m (1 - m)) (delta method); the t interval of the logit is mapped back. Seeds that happen
    to agree do not make it certain: s is at least that of one sentence in one of the n, step / sqrt(n). A mean on a
    bound has no logit, but the t interval of this s within the bounds.
    """
    count, value = len(values), math.fsum(values) / len(values)
    if count == 1:
        return single(value)
    # Not statistics.stdev, which computes in fractions: twenty times slower, and a report needs tens of thousands.
    deviation = math.sqrt(math.fsum((each - value) ** 2 for each in values) / (count - 1))
    spread = max(deviation, (step or 0.0) / math.sqrt(count))
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * spread / math.sqrt(count)
    if step is not None and lowest < value < highest:
        share = (value - lowest) / (highest - lowest)
        middle, half = math.log(share / (1 - share)), half / (highest - lowest) / (share * (1 - share))
        low, high = (lowest + (highest - lowest) * (1 + math.tanh((middle + end) / 2)) / 2 for end in (-half, half))
        method = OF_SHARES
    else:  # a BLEU of 100 may be rounded to a little more
        low, high, method = max(value - half, min(lowest, value)), min(value + half, max(highest, value)), None
    return Measurement(value, count, deviation, Interval(low, high, LEVEL, kind="seeds", method=method), spread=spread)


def p_value(change: Measurement) -> float:
    """Of no change, two-sided, by the t test over seeds that the interval is of. Raises ValueError without one."""
    if change.value is None or change.spread is None or change.interval is None:
        raise ValueError("no interval over seeds")
    if not change.spread:
        return float(not change.value)
    estimate, error = change.value, change.spread / math.sqrt(change.n)
    if change.interval.method == OF_SHARES:  # on the log-odds of points from -100 to 100, which are 0 where these are
        share = (estimate + 100) / 200
        estimate, error = math.log(share / (1 - share)), error / (200 * share * (1 - share))
    return 2 * float(stdtr(change.n - 1, -abs(estimate) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values of one family of comparisons, in the given order."""
    # The smallest of m is multiplied by m, the next by m - 1 and so on; each is at least its predecessor and at most 1.
    adjusted = [0.0] * len(p_values)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted
