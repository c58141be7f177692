"""The rule of what is still learning against curves by hand; on the committed curves every run of 1,500 steps is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr.report.learning import advice, learning_of

RESULTS = Path(__file__).resolve().parents[2] / "sweeps" / "results"


@pytest.mark.parametrize(
    "losses, fall",
    [
        ([(900, 2.0), (1000, 1.99)], 0.005),
        ([(100, 9.0), (900, 2.0), (1000, 1.9)], 0.05),
        ([(500, 3.0), (1000, 2.0)], 0.2 / 2.2),  # 2.2 at step 900, between the two validations
        ([(950, 2.0), (1000, 1.9)], 0.05),  # no validation before step 900: the first there is
        ([(900, 2.0), (1000, 2.1)], -0.05),
    ],
)
def test_the_fall_over_the_last_tenth(make, losses, fall):
    found = learning_of(make(), losses)
    assert found.fall == pytest.approx(fall)
    assert found.falling == (fall > 0.01 + 1e-12)


@pytest.mark.parametrize("losses", [[], [(100, 2.0)]])
def test_one_validation_tells_nothing(make, losses):
    assert learning_of(make(), losses) is None


def test_the_advice_names_steps_and_time(make):
    found = learning_of(make(steps_per_second=2.0), [(900, 2.0), (1000, 1.9)])
    assert advice([found]) == "train at least twice as long: optim.max_steps=2000 (17 min a run)"
    unknown = learning_of(make(steps_per_second=None), [(900, 2.0), (1000, 1.9)])
    assert advice([unknown]) == "train at least twice as long: optim.max_steps=2000"
    assert advice([learning_of(make(), [(900, 2.0), (1000, 2.0)])]) is None


def test_committed_runs_of_1500_steps_were_still_learning(make):
    falls = []
    for path in sorted((RESULTS / "multi30k").glob("*-tiny-*.metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        losses = [(line["step"], line["validation/loss"]) for line in lines if "validation/loss" in line]
        falls.append(learning_of(make(), losses).fall)
    if not falls:
        pytest.skip("sweeps/results has no such runs any more")
    assert min(falls) > 0.01
