"""One measured number with its uncertainty, or the reason why it is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rpr.records.scores import Interval

# t(0.975) for n - 1 = 1, 2, ..., 30: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2 (critical values of
# Student's t). Beyond 30 the last one is used, which makes an interval at most 4.2% too wide and never too narrow.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """`value` is a single figure or the mean over `n` of them; None if it is missing, and `reason` says why.

    `deviation` is the sample standard deviation over the n (None for n = 1). The interval is over seeds or rounds if
    there are several, else over the sentences of the test set, if the record has one.
    """

    value: float | None
    n: int = 0
    deviation: float | None = None
    interval: Interval | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        assert (self.value is None) == (self.reason is not None), "a missing figure has a reason, a measured one none"


def missing(reason: str) -> Measurement:
    """A missing figure, with the reason."""
    return Measurement(None, reason=reason)


def single(value: float, interval: Interval | None = None) -> Measurement:
    """One figure."""
    return Measurement(value, 1, interval=interval)


def mean(values: Sequence[float]) -> Measurement:
    """The mean over seeds (at least one); of several, with deviation and the 95% t interval of the mean."""
    count, value = len(values), math.fsum(values) / len(values)
    if count == 1:
        return single(value)
    # Not statistics.stdev, which computes in fractions: twenty times slower, and a report needs tens of thousands.
    deviation = math.sqrt(math.fsum((one - value) ** 2 for one in values) / (count - 1))
    half = T_QUANTILES[min(count - 1, len(T_QUANTILES)) - 1] * deviation / math.sqrt(count)
    return Measurement(value, count, deviation, Interval(value - half, value + half, 0.95, kind="seeds"))
