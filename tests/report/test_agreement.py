"""Every verdict on changes made up by hand, at both sides of each edge of the rule."""

from __future__ import annotations

import pytest

from rpr.records.measurement import Measurement, mean, single
from rpr.records.scores import Interval
from rpr.report.agreement import agreement, speed_agreement


def change(low: float, high: float, n: int = 5) -> Measurement:
    return Measurement((low + high) / 2, n, 0.1, Interval(low, high, 0.95, kind="seeds"))


@pytest.mark.parametrize(
    "mine, papers, verdict",
    [
        (change(0.1, 0.6), 0.3, "agrees"),
        (change(-0.5, 0.5), 0.0, "agrees"),
        (change(-0.9, 1.1), 1.05, "agrees"),
        (change(-0.9, 1.11), 0.3, "not decided"),
        (change(9.3, 10.4), 0.3, "same direction"),
        (change(-13.0, -12.0), -13.3, "same direction"),
        (change(-0.5, 0.4), -13.3, "contradicts"),
        (change(-1.2, -0.2), 0.3, "contradicts"),
        (change(0.2, 0.9), 0.0, "contradicts"),
        (change(-25.0, -20.0), -13.3, "not decided"),
        (single(0.3), 0.3, "not decided"),
        (Measurement(0.3, 3), 0.3, "not decided"),
    ],
)
def test_verdicts(mine, papers, verdict):
    assert agreement(mine, papers).verdict == verdict


def test_ten_bleu_never_agree_with_three_tenths():
    """+9.8 BLEU beside the paper's +0.3."""
    found = agreement(mean([9.7, 9.9, 9.8]), 0.3)
    assert (found.verdict, found.words) == ("same direction", "same direction, × 32.7")
    assert found.factor == pytest.approx(9.8 / 0.3)


def test_reasons():
    assert agreement(single(1.0), 0.3).sentence == "not decided: one seed"
    assert agreement(Measurement(1.0, 2), 0.3).why == "not the same seeds on both sides"
    assert "more than 1 BLEU" in agreement(change(-9, 9), 0.3).why
    assert agreement(change(0.1, 0.6), 0.3, still_learning=True).sentence == "not decided: still learning"
    assert agreement(change(0.1, 0.6), 0.3).sentence == "agrees"


@pytest.mark.parametrize(
    "low, high, verdict",
    [(0.9, 0.95, "agrees"), (0.95, 0.99, "same direction"), (1.01, 1.05, "contradicts"), (0.95, 1.01, "not decided")],
)
def test_speeds_in_turn(low, high, verdict):
    ratio = Measurement((low + high) / 2, 7, interval=Interval(low, high, 1.0, kind="rounds"))
    assert speed_agreement(ratio, 0.93).verdict == verdict


def test_whole_runs_decide_nothing_of_speed():
    assert speed_agreement(mean([0.93, 0.94]), 0.93).verdict == "not decided"
