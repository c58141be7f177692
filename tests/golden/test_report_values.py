"""Frozen: the values of the committed reports: mean, deviation, number of seeds and interval of each score (by length
too) and each speed.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpr.records.measurement import Measurement
from rpr.records.record import find_records
from rpr.report.grouping import run_groups
from rpr.report.groups import Group
from rpr.report.lengths import ABSENT, buckets
from rpr.report.speed import ratio_to_absolute, steps_per_second

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
with Path(__file__).with_name("report_values.csv").open(encoding="utf-8") as file:
    FROZEN = list(csv.DictReader(file))


@pytest.mark.parametrize("folder", sorted({line["folder"] for line in FROZEN}))
def test_values_of_a_committed_folder(folder):
    groups = run_groups(record for _, record in find_records(SWEEPS / folder).records)
    found = Counter(line for group in groups for line in _figures(group))
    columns = ("position", "figure", "mean", "sd", "n", "low", "high")
    frozen = Counter(tuple(line[name] for name in columns) for line in FROZEN if line["folder"] == folder)
    assert frozen - found == Counter()


def _figures(group: Group) -> Iterator[tuple[str, ...]]:
    for variant in group.variants:
        named = {f"{column.metric} {column.split}": variant.measured(column, "") for column in group.columns}
        named |= {"steps_per_second": steps_per_second(variant), "relative_speed": ratio_to_absolute(group, variant)}
        for metric in ("sacrebleu", "chrf"):
            for bucket in buckets(group):
                name = f"{metric} {bucket.shortest}-{bucket.longest or ''}"
                named[name] = variant.measured((metric, *bucket.key), ABSENT)
        for name, one in named.items():
            if one.value is not None:
                yield (variant.label, name, *_texts(one))


def _texts(one: Measurement) -> tuple[str, ...]:
    ends = ("", "")
    if one.interval is not None and one.interval.kind == "sentences":
        ends = (repr(one.interval.low), repr(one.interval.high))
    return (repr(one.value), "" if one.deviation is None else repr(one.deviation), str(one.n), *ends)
