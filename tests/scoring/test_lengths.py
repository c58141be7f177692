"""Scores by source length: bucket edges by hand, each bucket against the metrics on its sentences; scores of tasks."""

from typing import Any

import numpy as np
import pytest

from rpr.compose.composition import compose_train
from rpr.data.cache import prepare
from rpr.data.generated import TASKS
from rpr.model.beam_search import Hypothesis
from rpr.scoring.metrics import all_scores
from rpr.scoring.run import EvaluatedModel, by_length, score_run
from rpr.scoring.statistics import WILSON

REFERENCES = [f"Satz {number} hat {'viele ' * (number % 5)}Wörter und endet hier ." for number in range(40)]
HYPOTHESES = [line.replace("endet", "steht") if number % 3 else line for number, line in enumerate(REFERENCES)]
LENGTHS = np.array([5 + number for number in range(40)], np.int32)  # 5 to 44


def scored(chosen: slice) -> list:
    return all_scores(HYPOTHESES[chosen], REFERENCES[chosen], "de")


def test_bucket_scores_equal_the_metrics_on_its_sentences():
    """The 40 sentences as two splits, divided within a bucket. The longest training length is an edge, too."""
    parts = [slice(0, 17), slice(17, None)]
    buckets = by_length(
        [LENGTHS[part] for part in parts], [scored(part) for part in parts], [10, 24, 30, 60], 25, samples=100
    )
    found = [(one.shortest, one.longest, one.num_sentences, one.beyond_training) for one in buckets]
    assert found == [
        (1, 10, 6, False), (11, 24, 14, False), (25, 25, 1, False), (26, 30, 5, True), (31, 60, 14, True)
    ]  # fmt: skip
    for bucket in buckets:
        chosen = [at for at, length in enumerate(LENGTHS) if bucket.shortest <= length <= bucket.longest]
        pair = [HYPOTHESES[at] for at in chosen], [REFERENCES[at] for at in chosen]
        scores = {score.metric: score for score in bucket.scores}
        assert set(scores) == {"sacrebleu", "chrf", "exact_match"}
        for metric in all_scores(*pair, "de", ["sacrebleu", "chrf"]):
            assert scores[metric.name].score == pytest.approx(metric.score)
        interval = scores["chrf"].interval
        assert (interval is None) == (len(chosen) == 1), "one sentence has no interval"
        assert scores["exact_match"].interval.method == WILSON, "but for that of a share"
        assert interval is None or interval.low <= scores["chrf"].score <= interval.high


@pytest.mark.parametrize("kind, source, target, length", [
    ("copy", "1 2 3", "1 2 3", 3),
    ("duplicate", "1 2", "1 2 1 2", 2),
    ("addition", "0 0 1 2 + 0 1 0 7", "0 1 1 9", 3),
    ("scan", "jump thrice", "I_JUMP I_JUMP I_JUMP", 3),
])  # fmt: skip
def test_task_lengths(kind, source, target, length):
    assert TASKS[kind].model_construct().length(source, target) == length and TASKS[kind].UNIT


class Echo:
    """An engine that returns the first 20 pieces of the source, without an end where there are more."""

    def search(self, sources: Any, search: Any, **more: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(source[:-1])[:20], 0.0, 0.0, len(source) <= 21)] for source in sources]


def test_scores_of_a_task(cache_dir, tmp_path):
    sizes = [f"data.task.num_{split}=40" for split in ("train", "validation", "test", "long")]
    words = ["data=copy", *sizes, f"data.cache_dir={cache_dir}", "evaluation.length_buckets=[10,30]"]
    config = compose_train([*words, "evaluation.min_length=1"])
    data = prepare(config.data)
    found = score_run(config, data, EvaluatedModel(Echo(), "step 1", "32"), tmp_path)
    scores = {(one.split, one.metric): one for one in found.scores}
    assert {*scores} == {(split, metric) for split in ("test", "long") for metric in ("sacrebleu", "exact_match")}
    short, long = scores["test", "exact_match"], scores["long", "exact_match"]
    assert (short.score, long.score, short.num_sentences, short.min_length) == (100.0, 0.0, 40, 1)
    assert (short.unfinished_hypotheses, long.unfinished_hypotheses) == (0, 40)
    assert short.interval.low == pytest.approx(91.24, abs=0.01)  # Wilson, 40 of 40
    lengths = found.by_length
    assert (lengths.unit, lengths.longest_training_source, lengths.min_length) == ("symbols of the input", 20, 1)
    shares = {one.label: {score.metric: score.score for score in one.scores}["exact_match"] for one in lengths.buckets}
    assert shares == {"1–10": 100.0, "11–20": 100.0, "21–30": 0.0, "over 30": 0.0}
    assert [one.beyond_training for one in lengths.buckets] == [False, False, True, True]
    assert sum(one.num_sentences for one in lengths.buckets) == 80
