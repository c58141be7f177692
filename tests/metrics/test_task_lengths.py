"""Checked here: the length of an example of each task by hand, and a scored run of a task: which metrics its record
has, and by which lengths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.commands.scoring import Scored, score_run
from rpr.config.train import TaskConfig, TrainConfig
from rpr.data.cache import PreparedData, prepare
from rpr.metrics.lengths import TASK_UNITS, task_lengths
from rpr.model.beam_search import Hypothesis
from rpr.validation import validate


class Texts:
    """A prepared corpus of one example."""

    def __init__(self, source: str, target: str) -> None:
        self.pair = [source], [target]

    def text(self, split: str) -> tuple[list[str], list[str]]:
        return self.pair


@pytest.mark.parametrize(
    "kind, source, target, length",
    [
        ("copy", "1 2 3", "1 2 3", 3),
        ("duplicate", "1 2", "1 2 1 2", 2),
        ("addition", "0 0 1 2 + 0 1 0 7", "0 1 1 9", 3),
        ("addition", "0 + 0", "0", 1),
        ("scan", "jump twice", "I_JUMP I_JUMP", 2),
    ],
)
def test_lengths_by_hand(kind: str, source: str, target: str, length: int) -> None:
    data: Any = Texts(source, target)
    assert task_lengths(kind, data, "test").tolist() == [length]


def test_every_kind_has_a_unit() -> None:
    assert {*TASK_UNITS} == {*TaskConfig.model_fields["kind"].annotation.__args__}


class Echo:
    """An engine that answers with the first 20 pieces of the source."""

    def search(self, sources: Any, search: Any, **more: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(source[:-1])[:20], 0.0, 0.0, True)] for source in sources]


def test_the_scores_of_a_task(cache_dir: Path, tmp_path: Path) -> None:
    sizes = [f"data.task.num_{split}=40" for split in ("train", "validation", "test", "long")]
    words = ["data=copy", *sizes, f"data.cache_dir={cache_dir}", "evaluation.length_buckets=[10,30]"]
    config = validate(TrainConfig, app.compose("train", [*words, "evaluation.min_length=1"]))
    data: PreparedData = prepare(config.data)
    engine: Any = Echo()
    found = score_run(config, data, Scored(engine, "step 1", "32"), tmp_path)
    scores = {(one.split, one.metric): one for one in found.scores}
    assert {*scores} == {(split, metric) for split in ("test", "long") for metric in ("sacrebleu", "exact_match")}
    short, long = scores["test", "exact_match"], scores["long", "exact_match"]
    assert (short.score, long.score, short.num_sentences, short.min_length) == (100.0, 0.0, 40, 1)
    assert short.interval is not None and short.interval.low == pytest.approx(91.24, abs=0.01)  # Wilson, 40 of 40
    lengths = found.by_length
    assert lengths is not None and lengths.min_length == 1
    assert (lengths.unit, lengths.longest_training_source) == ("symbols of the input", 20)
    assert [(one.label, one.beyond_training) for one in lengths.buckets] == [
        ("1–10", False), ("11–20", False), ("21–30", True), ("over 30", True)
    ]  # fmt: skip
    shares = [{one.metric: one.score for one in bucket.scores}["exact_match"] for bucket in lengths.buckets]
    assert shares == [100.0, 100.0, 0.0, 0.0] and sum(one.num_sentences for one in lengths.buckets) == 80
