"""Verdicts at both sides of each threshold, the still-learning rule, and the paper's figures against an independently
typed copy.
"""

import pytest

from rpr import paper
from rpr.records.measurement import Measurement, mean, single
from rpr.records.position import position_of
from rpr.records.scores import Interval
from rpr.report.agreement import agreement, speed_agreement
from rpr.report.groups import Variant
from rpr.report.learning import learning_of
from tests.fake_records import fake_record


def change(low: float, high: float, n: int = 5) -> Measurement:
    return Measurement((low + high) / 2, n, 0.1, Interval(low, high, 0.95, kind="seeds"))


BOTH = "not decided: the interval contains zero and the paper's change"
WIDE = "not decided: the interval is wider than ±1 BLEU"


@pytest.mark.parametrize("mine, papers, sentence", [
    (change(0.1, 0.6), 0.3, "agrees"), (change(-0.5, 0.5), 0.0, "agrees"),
    (change(-0.9, 1.1), 1.05, BOTH), (change(-0.39, 0.86), 0.3, BOTH), (change(0.1, 1.2), 0.3, "agrees"),
    (mean([9.7, 9.9, 9.8]), 0.3, "same direction: 9.5 BLEU larger"),
    (change(-13.0, -12.0), -13.3, "same direction: 0.8 BLEU smaller"),
    (change(-0.5, 0.4), -13.3, "contradicts"), (change(-1.2, -0.2), 0.3, "contradicts"),
    (change(0.2, 0.9), 0.0, "contradicts"),
    (change(-0.9, 1.11), 0.3, BOTH), (change(-1.5, 1.5), 0.0, WIDE), (change(0.1, 2.2), 0.3, WIDE),
    (change(-15.0, -11.0), -13.3, WIDE), (change(-1.2, 1.0), -13.3, WIDE),
    (change(-25.0, -20.0), -13.3, "same direction: 9.2 BLEU larger"), (change(0.1, 4.0), -13.3, "contradicts"),
    (single(0.3), 0.3, "not decided: one seed"),
    (Measurement(0.3, 3), 0.3, "not decided: fewer than two seeds in common"),
])  # fmt: skip
def test_verdict_by_interval_and_paper(mine, papers, sentence):
    assert agreement(mine, papers).sentence == sentence
    assert agreement(mine, papers, undecided="still learning").sentence == "not decided: still learning"


@pytest.mark.parametrize("low, high, verdict", [
    (0.9, 0.95, "agrees"), (0.95, 0.99, "same direction"), (1.01, 1.05, "contradicts"),
    (0.95, 1.01, "not decided"), (0.77, 1.09, "not decided"),
])  # fmt: skip
def test_speed_verdict_needs_alternating_rounds(low, high, verdict):
    ratio = Measurement((low + high) / 2, 7, interval=Interval(low, high, 1.0, kind="rounds"))
    assert speed_agreement(ratio, 0.93).verdict == verdict
    assert speed_agreement(mean([low, high]), 0.93).verdict == "not decided"
    alone = Measurement(low, 1, interval=Interval(low, low, 1.0, kind="rounds"))
    assert speed_agreement(alone, 0.93).sentence == "not decided: one round"


@pytest.mark.parametrize("losses, fall, falling", [
    ({900: 2.0, 1000: 1.99}, 0.005, False),
    ({100: 9.0, 900: 2.0, 1000: 1.9}, 0.05, True),
    ({500: 3.0, 1000: 2.0}, 0.2 / 2.2, True),  # 2.2 at step 900, between the two validations
    ({950: 2.0, 1000: 1.9}, 0.05, True),  # none before step 900: from the first
    ({900: 2.0, 1000: 2.1}, -0.05, False),
    ({900: 0.009, 1000: 0.0045}, 0.5, False),  # a task learned exactly: less than 0.005 nats
    ({900: 0.3, 1000: 0.294}, 0.02, True),
])  # fmt: skip
def test_fall_over_the_last_tenth_of_the_steps(losses, fall, falling):
    found = learning_of(fake_record(), losses)
    assert found.fall == pytest.approx(fall)
    assert found.falling is falling
    assert learning_of(fake_record(), {900: 2.0}) is None is learning_of(fake_record(), {})
    assert learning_of(fake_record(), {950: 2.0, 1000: 1.985}) is None, "by how much it fell since 900 is not known"


def test_still_learning_is_judged_by_the_mean_over_seeds():
    def variant(*falls):
        found = tuple(learning_of(fake_record(steps_per_second=1.0), {900: 1.0, 1000: 1 - fall}) for fall in falls)
        return Variant(position_of(fake_record()), "relative", (), found)

    assert variant(0.018, -0.006, 0.004).still_learning is None
    assert variant(0.018, 0.006, 0.009).still_learning.fall == pytest.approx(0.011)
    assert variant(0.011).still_learning is not None and variant().still_learning is None


def test_paper_figures_are_as_printed():
    table1 = {("base", "absolute"): (26.5, 38.2), ("base", "relative"): (26.8, 38.7)}
    table1 |= {("big", "absolute"): (27.9, 41.2), ("big", "relative"): (29.2, 41.5)}
    german = {(*row, "en_de"): scores[0] for row, scores in table1.items()}
    assert dict(paper.TABLE1) == german | {(*row, "en_fr"): scores[1] for row, scores in table1.items()}
    ks, figures = (0, 1, 2, 4, 16, 64, 256), (12.5, 25.5, 25.8, 25.9, 25.8, 25.9, 25.8)
    assert dict(paper.TABLE2) == dict(zip(ks, figures, strict=True))
    values_only, keys_only = (True, False), (False, True)
    assert dict(paper.TABLE3) == {values_only: 25.3, keys_only: 25.8, (True, True): 25.8, (False, False): 12.5}
    assert paper.RELATIVE_SPEED == 0.93
