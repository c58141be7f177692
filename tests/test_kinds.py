"""The three kinds of experiments: how each is recognised, and what it calls better or not learned."""

from rpr.kinds import KINDS, TASK, TEXT, TRANSLATION, kind_of, kind_of_metric
from tests.fake_records import fake_record


def test_kind_of_records_and_metrics():
    assert kind_of({"text": {}, "task": None}) is TEXT
    assert kind_of({"text": None, "task": {"kind": "copy"}}) is TASK
    assert fake_record().kind is kind_of({"name": "old"} | {"text": None, "task": None}) is TRANSLATION
    assert [kind_of_metric(kind.metric) for kind in KINDS] == list(KINDS) and kind_of_metric("chrf") is TRANSLATION


def test_better_and_not_learned():
    for kind, change, better in ((TRANSLATION, 0.5, True), (TASK, -1.0, False), (TEXT, -0.1, True)):
        assert kind.better(change) is better is not kind.better(-change)
        assert sorted([1.0, 2.0], key=kind.best_first) == ([1.0, 2.0] if kind is TEXT else [2.0, 1.0])
    for kind, score, more, learned in (
        (TRANSLATION, 1.0, {}, True), (TRANSLATION, 0.99, {}, False), (TRANSLATION, 20.0, {"cut_off": 0.49}, True),
        (TRANSLATION, 20.0, {"cut_off": 0.5}, False), (TASK, 0.1, {}, True), (TASK, 0.0, {}, False),
        (TEXT, 4.68, {"unigram": 4.69}, True), (TEXT, 4.69, {"unigram": 4.69}, False),
    ):  # fmt: skip
        assert (kind.unlearned(score, **more) == "") is learned
