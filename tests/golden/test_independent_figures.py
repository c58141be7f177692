"""The changes and verdicts of two committed sweeps (changes.csv), from each seed's score on, by numpy alone.

Least squares of score ~ row + seed, one variance, and Dunnett's simultaneous 95% intervals by draws of this file's own.
"""

import csv
import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
METRICS = {"multi30k": ("sacrebleu", 1), "lm_length": ("bits_per_byte", -1)}  # and the sign of better
with (ROOT / "tests/golden/changes.csv").open(encoding="utf-8") as file:
    TABLES = {
        key: list(rows) for key, rows in groupby(csv.DictReader(file), key=lambda row: (row["sweep"], row["split"]))
    }


def scores_of(sweep, split, rows):
    """[(row, seed, score)] of the runs that a golden table names."""
    lines = (ROOT / f"sweeps/results/{sweep}/records.jsonl").read_text(encoding="utf-8").splitlines()
    documents = {document["run_id"]: document for document in map(json.loads, lines)}
    metric, _ = METRICS[sweep]
    cells = []
    for row in rows:
        for run in row["runs"].split():
            scores = {(one["split"], one["metric"]): one["score"] for one in documents[run]["scores"]}
            cells.append((row["row"], documents[run]["seed"], scores[split, metric]))
    return cells


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
    draws = random.standard_normal((400_000, len(errors))) @ root.T
    largest = np.abs(draws).max(1) / np.sqrt(random.chisquare(freedom, len(draws)) / freedom)
    halves = np.quantile(largest, 0.95) * errors * np.sqrt(variance)
    return dict(zip(rows[1:], zip(contrasts @ effects, halves, strict=True), strict=True))


def mismatches(sweep, rows, cells):
    """The rows whose change, interval or verdict is another one."""
    [baseline] = [row["row"] for row in rows if row["verdict"] == "baseline"]
    found, sign = changes_of(cells, baseline), METRICS[sweep][1]
    wrong = []
    for row in rows:
        if row["row"] == baseline:
            continue
        change, half = found[row["row"]]
        verdict = "open" if abs(change) <= half else "better" if change * sign > 0 else "worse"
        golden = [float(row[name]) for name in ("change", "low", "high")]
        same = [change, change - half, change + half] == pytest.approx(golden, abs=0.01 * half)
        if not same or verdict != row["verdict"]:
            wrong.append(row["row"])
    return wrong


@pytest.mark.parametrize("sweep, split", TABLES)
def test_changes_and_verdicts_of_a_table(sweep, split):
    """One altered seed of the first row makes them others."""
    rows = TABLES[sweep, split]
    cells = scores_of(sweep, split, rows)
    assert mismatches(sweep, rows, cells) == []
    row, seed, score = cells[0]
    assert mismatches(sweep, rows, [(row, seed, 1.02 * score), *cells[1:]]) != []
