"""Golden figures, which never change (pages may), are those of the committed records by arithmetic of this file alone,
which imports nothing of rpr: report_values.csv, of each row's own scores the mean, deviation and interval over seeds;
changes.csv, of some sweeps the changes and verdicts: least squares of score ~ row + seed, one variance, and Dunnett's
simultaneous 95% intervals by draws of this file's own.
"""

import csv
import json
import math
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
SWEEPS = HERE.parents[1] / "sweeps"
HIGHER_IS_BETTER = {"sacrebleu": 1, "bits_per_byte": -1}
# Student's t, 97.5%, for 1 to 9 degrees of freedom (Fisher and Yates, Table III, with more digits).
QUANTILES = (12.7062047364, 4.3026527299, 3.1824463053, 2.7764451052, 2.5705818356)
QUANTILES += (2.4469118511, 2.3646242516, 2.3060041352, 2.2621571628)


def grouped(name, *keys):
    """The rows of a golden file by their values in some columns."""
    with (HERE / name).open(encoding="utf-8") as file:
        rows = groupby(csv.DictReader(file), key=lambda row: tuple(row[key] for key in keys))
        return {key: list(of_key) for key, of_key in rows}


VALUES, TABLES = grouped("report_values.csv", "sweep"), grouped("changes.csv", "sweep", "split", "table")


@cache
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
        [bucket] = [one for one in document["by_length"]["buckets"] if (one["shortest"], one["longest"]) == key]
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


@pytest.mark.parametrize("sweep", [sweep for (sweep,) in VALUES])
def test_golden_values_are_those_of_the_records(sweep):
    documents = documents_of(sweep)
    for row in VALUES[sweep,]:
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


def changes_of(cells, baseline):
    """By row the change from the baseline and half of its interval."""
    # 1. One column for each row, and one for each seed that several rows have, but the first.
    rows = [baseline, *sorted({row for row, _, _ in cells} - {baseline})]
    seeds = sorted({seed for _, seed, _ in cells})[1:]
    design = np.array(
        [[row == each for each in rows] + [seed == each for each in seeds] for row, seed, _ in cells], float
    )
    scores = np.array([score for _, _, score in cells])
    # 2. Least squares by QR, and the pooled variance.
    effects, *_ = np.linalg.lstsq(design, scores, rcond=None)
    freedom = len(cells) - np.linalg.matrix_rank(design)
    variance = ((scores - design @ effects) ** 2).sum() / freedom
    # 3. Contrasts with the baseline, and what the largest of their |t| exceeds in 5% of draws.
    contrasts = np.hstack([-np.ones((len(rows) - 1, 1)), np.eye(len(rows) - 1), np.zeros((len(rows) - 1, len(seeds)))])
    covariance = contrasts @ np.linalg.pinv(design.T @ design) @ contrasts.T
    errors = np.sqrt(np.diag(covariance))
    random = np.random.default_rng(20261129)
    root = np.linalg.cholesky(covariance / np.outer(errors, errors) + 1e-9 * np.eye(len(errors)))
    draws = random.standard_normal((200_000, len(errors))) @ root.T
    largest = np.abs(draws).max(1) / np.sqrt(random.chisquare(freedom, len(draws)) / freedom)
    halves = np.quantile(largest, 0.95) * errors * np.sqrt(variance)
    return dict(zip(rows[1:], zip(contrasts @ effects, halves, strict=True), strict=True))


def wrong_rows(cells, rows, metric):
    """Those whose golden change, interval or verdict is not that of the cells."""
    [baseline] = [row["row"] for row in rows if row["verdict"] == "baseline"]
    found, wrong = changes_of(cells, baseline), []
    for row in [row for row in rows if row["row"] != baseline]:
        change, half = found[row["row"]]
        better = "better" if change * HIGHER_IS_BETTER[metric] > 0 else "worse"
        verdict = "open" if abs(change) <= half else better
        golden = [float(row[name]) for name in ("change", "low", "high")]
        close = [change, change - half, change + half] == pytest.approx(golden, abs=0.01 * half)
        wrong += [] if verdict == row["verdict"] and close else [row["row"]]
    return wrong


@pytest.mark.parametrize("sweep, split, table", TABLES)
def test_changes_and_verdicts_of_a_table(sweep, split, table):
    """One altered seed makes others of them."""
    rows, cells = TABLES[sweep, split, table], []
    metric = "sacrebleu" if sweep.startswith("multi30k") else "bits_per_byte"
    for row in rows:
        documents = [documents_of(sweep)[run] for run in row["runs"].split()]
        cells += [(row["row"], document["seed"], score_of(document, split, metric)[0]) for document in documents]
    assert wrong_rows(cells, rows, metric) == []
    row, seed, score = cells[0]
    assert wrong_rows([(row, seed, 1.02 * score), *cells[1:]], rows, metric) != []
