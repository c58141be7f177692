"""Verdicts on changes made up by hand, at both sides of each edge of the rule; what is still learning, against curves
by hand and the committed ones; the paper's figures, against a copy typed independently from the verified page.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr import paper
from rpr.records.measurement import Measurement, mean, single
from rpr.records.position import position_of
from rpr.records.scores import Interval
from rpr.report.agreement import agreement, speed_agreement
from rpr.report.groups import Variant
from rpr.report.learning import advice, learning_of, mean_over_seeds

RESULTS = Path(__file__).resolve().parents[2] / "sweeps" / "results"


def change(low: float, high: float, n: int = 5) -> Measurement:
    return Measurement((low + high) / 2, n, 0.1, Interval(low, high, 0.95, kind="seeds"))


@pytest.mark.parametrize("mine, papers, verdict", [
    (change(0.1, 0.6), 0.3, "agrees"), (change(-0.5, 0.5), 0.0, "agrees"), (change(-0.9, 1.1), 1.05, "agrees"),
    (change(9.3, 10.4), 0.3, "same direction"), (change(-13.0, -12.0), -13.3, "same direction"),
    (change(-0.5, 0.4), -13.3, "contradicts"), (change(-1.2, -0.2), 0.3, "contradicts"),
    (change(0.2, 0.9), 0.0, "contradicts"),
    (change(-0.9, 1.11), 0.3, "not decided"), (change(-25.0, -20.0), -13.3, "not decided"),
    (single(0.3), 0.3, "not decided"), (Measurement(0.3, 3), 0.3, "not decided"),
])  # fmt: skip
def test_verdicts(mine, papers, verdict):
    assert agreement(mine, papers).verdict == verdict


def test_ten_bleu_never_agree_with_three_tenths():
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
def test_speeds_are_decided_by_alternating_rounds_alone(low, high, verdict):
    ratio = Measurement((low + high) / 2, 7, interval=Interval(low, high, 1.0, kind="rounds"))
    assert speed_agreement(ratio, 0.93).verdict == verdict
    assert speed_agreement(mean([low, high]), 0.93).verdict == "not decided"


# Still learning


@pytest.mark.parametrize("losses, fall", [
    ([(900, 2.0), (1000, 1.99)], 0.005),
    ([(100, 9.0), (900, 2.0), (1000, 1.9)], 0.05),
    ([(500, 3.0), (1000, 2.0)], 0.2 / 2.2),  # 2.2 at step 900, between the two validations
    ([(950, 2.0), (1000, 1.9)], 0.05),  # no validation before step 900: the first there is
    ([(900, 2.0), (1000, 2.1)], -0.05),
])  # fmt: skip
def test_the_fall_over_the_last_tenth(make, losses, fall):
    found = learning_of(make(), losses)
    assert found.fall == pytest.approx(fall)
    assert found.falling == (fall > 0.01 + 1e-12)


def test_one_validation_tells_nothing(make):
    assert learning_of(make(), []) is None and learning_of(make(), [(100, 2.0)]) is None


def test_the_advice_names_steps_and_time(make):
    found = learning_of(make(steps=1050, steps_per_second=2.0), [(900, 2.0), (1000, 1.9)])
    assert advice([found]) == "train at least twice as long: optim.max_steps=2100 (18 min a run)"
    unknown = learning_of(make(steps=1050, steps_per_second=None), [(900, 2.0), (1000, 1.9)])
    assert advice([unknown]) == "train at least twice as long: optim.max_steps=2100"
    assert advice([learning_of(make(), [(900, 2.0), (1000, 2.0)])]) is None


def test_a_variant_is_judged_by_the_mean_over_its_seeds(make):
    def variant(*falls):
        found = tuple(learning_of(make(steps_per_second=1.0), [(900, 1.0), (1000, 1 - fall)]) for fall in falls)
        return Variant(position_of(make()), "relative", (), found)

    assert variant(0.018, -0.006, 0.004).still_learning is None
    assert variant(0.018, 0.006, 0.009).still_learning.fall == pytest.approx(0.011)
    assert variant(0.011).still_learning is not None and variant().still_learning is None


def test_committed_variants_of_1500_steps_were_still_learning_and_those_of_5000_were_not(make):
    falls = {}
    for path in sorted((RESULTS / "multi30k").glob("*-tiny-*.metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        losses = [(line["step"], line["validation/loss"]) for line in lines if "validation/loss" in line]
        name = path.name.rpartition("-s")[0]
        falls.setdefault((losses[-1][0], name), []).append(learning_of(make(), losses))
    means = {key: mean_over_seeds(found).fall for key, found in falls.items()}
    if {steps for steps, _ in means} != {1500, 5000}:
        pytest.skip("sweeps/results has no such runs any more")
    assert min(fall for (steps, _), fall in means.items() if steps == 1500) > 0.01
    assert max(fall for (steps, _), fall in means.items() if steps == 5000) < 0.01


# The paper


def test_the_papers_figures_and_no_row_that_it_does_not_print():
    table1 = {("base", "absolute"): (26.5, 38.2), ("base", "relative"): (26.8, 38.7)}
    table1 |= {("big", "absolute"): (27.9, 41.2), ("big", "relative"): (29.2, 41.5)}
    german = {(*row, "en_de"): scores[0] for row, scores in table1.items()}
    assert dict(paper.TABLE1) == german | {(*row, "en_fr"): scores[1] for row, scores in table1.items()}
    ks, figures = (0, 1, 2, 4, 16, 64, 256), (12.5, 25.5, 25.8, 25.9, 25.8, 25.9, 25.8)
    assert dict(paper.TABLE2) == dict(zip(ks, figures, strict=True))
    values_only, keys_only = (True, False), (False, True)
    assert dict(paper.TABLE3) == {values_only: 25.3, keys_only: 25.8, (True, True): 25.8, (False, False): 12.5}
    assert paper.RELATIVE_SPEED == 0.93
