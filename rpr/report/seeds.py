"""The scores of a variant's seeds: their mean, and the differences of two variants, paired by seed."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rpr.records.measurement import Measurement, mean, mean_of_shares, missing, single
from rpr.records.record import Record
from rpr.records.scores import Interval


class SeedScore(NamedTuple):
    """One run's score or speed. Only those that were measured in the same `way` have a mean or a difference."""

    value: float
    way: tuple[Any, ...]
    interval: Interval | None = None


def over_seeds(scores: Mapping[int, SeedScore], *, shares: bool = False) -> Measurement:
    """The mean of at least one seed; of a single one its score with its interval. `shares`: of percentages."""
    if len({score.way for score in scores.values()}) > 1:
        return missing("the seeds were measured in different ways, so they have no mean")
    if len(scores) == 1:
        [(value, _, interval)] = scores.values()
        return single(value, interval)
    values = [score.value for score in scores.values()]
    return mean_of_shares(values) if shares else mean(values)


def paired_change(ours: Mapping[int, float], others: Mapping[int, float], *, shares: bool = False) -> Measurement:
    """The mean of the differences over the seeds of both, or, with fewer than two such seeds, the difference of the
    means, without an interval. `shares`: of percentages.
    """
    both = ours.keys() & others.keys()
    if len(both) > 1 or ours.keys() == others.keys():
        changes = [ours[seed] - others[seed] for seed in sorted(both)]
        return mean_of_shares(changes, -100.0, 100.0) if shares else mean(changes)
    means = [math.fsum(each.values()) / len(each) for each in (ours, others)]
    return Measurement(means[0] - means[1], min(len(ours), len(others)))


def one_per_seed(records: Iterable[Record]) -> list[Record]:
    """The newest record of each seed, an original before a rerun of it, by ascending seed."""
    newest = {run.seed: run for run in sorted(records, key=lambda run: (run.rerun_of is None, run.started))}
    return [newest[seed] for seed in sorted(newest)]
