"""Each committed sweep's figures (report_values.csv: mean, deviation and interval over seeds of a row's own scores) are
those of its committed records, by arithmetic of this file alone. They never change: pages may.
"""

import csv
import json
import math
from itertools import groupby
from pathlib import Path

import pytest

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
VALUES = list(csv.DictReader((Path(__file__).parent / "report_values.csv").open(encoding="utf-8")))
BY_SWEEP = {sweep: list(rows) for sweep, rows in groupby(VALUES, key=lambda row: row["sweep"])}
# Student's t, 97.5%, for 1 to 9 degrees of freedom (Fisher and Yates, Table III, with more digits).
QUANTILES = (12.7062047364, 4.3026527299, 3.1824463053, 2.7764451052, 2.5705818356)
QUANTILES += (2.4469118511, 2.3646242516, 2.3060041352, 2.2621571628)


def documents_of(sweep):
    """Of a sweep's committed records, each by its run id."""
    [folder] = SWEEPS.glob(f"*/{sweep}")
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return {document["run_id"]: document for document in map(json.loads, lines)}


def score_of(document, split, metric):
    """(value, interval, number of sentences) of a run, by a golden row's split and metric."""
    metric, _, part = metric.partition(", ")
    kind, _, size = part.partition(" ")
    if kind == "length":
        shortest, _, longest = size.partition("-")
        key = (int(shortest), int(longest) if longest else None)
        buckets = document["by_length"]["buckets"]
        [bucket] = [one for one in buckets if (one["shortest"], one["longest"]) == key]
        [score] = [one for one in bucket["scores"] if one["metric"] == metric]
        return score["score"], score["interval"], bucket["num_sentences"]
    if kind:
        [context] = [one for one in document["by_context"] if one["split"] == split]
        [score] = [one for one in context["scores"] if (one["windows"], one["length"]) == (kind, int(size))]
        return score["bits_per_byte"], score["interval"], 0
    [score] = [one for one in document["scores"] if (one["split"], one["metric"]) == (split, metric)]
    return score["score"], score.get("interval"), score["num_sentences"]


def interval_of(values, metric, sentences):
    """The 95% t interval of the mean within the bounds of a score; of shares that of their log-odds."""
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    share = mean / 100
    if metric.startswith("exact_match"):  # at least what one sentence of one seed adds
        deviation = max(deviation, 100 / sentences / math.sqrt(count))
    half = QUANTILES[count - 2] * deviation / math.sqrt(count)
    if metric.startswith("exact_match") and 0 < share < 1:
        middle, half = math.log(share / (1 - share)), half / 100 / (share * (1 - share))
        return tuple(100 / (1 + math.exp(-(middle + end))) for end in (-half, half))
    highest = math.inf if metric.startswith("bits") else 100.0
    return max(mean - half, min(0.0, mean)), min(mean + half, max(highest, mean))


@pytest.mark.parametrize("sweep", BY_SWEEP)
def test_golden_values_are_those_of_the_records(sweep):
    documents = documents_of(sweep)
    for row in BY_SWEEP[sweep]:
        scores = [score_of(documents[run], row["split"], row["metric"]) for run in row["runs"].split()]
        values = [value for value, _, _ in scores]
        mean = math.fsum(values) / len(values)
        own = scores[0][1] and (scores[0][1]["low"], scores[0][1]["high"])
        interval = interval_of(values, row["metric"], scores[0][2]) if len(values) > 1 else own
        golden = [float(row[name]) if row[name] else None for name in ("mean", "low", "high")]
        assert int(row["n"]) == len(values)
        assert [mean, *(interval or (None, None))] == pytest.approx(golden, rel=1e-8, abs=1e-8), row
        if row["sd"]:
            deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
            assert deviation == pytest.approx(float(row["sd"]), rel=1e-8, abs=1e-8)
