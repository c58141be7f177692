"""Scores by source length: bucket edges by hand, each bucket against the metrics on its own sentences, the training
length as an exact edge, and what of it reaches the record.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from rpr.cli import app
from rpr.commands.scoring import length_grid
from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import ConfigError
from rpr.metrics.bleu import all_scores, chrf, sacrebleu_13a
from rpr.metrics.lengths import bounds, by_length
from rpr.migrations import EARLIER_DEFAULTS, RENAMED
from rpr.records.scores import SOURCE_UNIT, ByLength
from rpr.validation import validate

REFERENCES = [f"Satz {number} hat {'viele ' * (number % 5)}Wörter und endet hier ." for number in range(40)]
HYPOTHESES = [line.replace("endet", "steht") if number % 3 else line for number, line in enumerate(REFERENCES)]
LENGTHS = np.array([5 + number for number in range(40)], np.int32)  # 5 to 44


def scored(chosen: slice) -> list:
    return all_scores(HYPOTHESES[chosen], REFERENCES[chosen], "de")


def test_edges_by_hand() -> None:
    assert bounds([10, 20], 15) == [(1, 10), (11, 15), (16, 20), (21, None)]
    assert bounds([10, 20], 20) == [(1, 10), (11, 20), (21, None)]
    assert bounds([10, 20], 33) == [(1, 10), (11, 20), (21, 33), (34, None)]


def test_each_bucket_is_scored_on_its_own_sentences() -> None:
    """Two splits, cut in the middle of a bucket: together they are the 40 sentences in their order."""
    parts = [slice(0, 17), slice(17, None)]
    buckets = by_length(
        [LENGTHS[part] for part in parts], [scored(part) for part in parts], [10, 20, 30, 60], 25, samples=100
    )
    # 5 to 44 in pieces: 6 up to 10, then 10, 5, 5, and 14 up to 44; none over 60.
    assert [(one.shortest, one.longest, one.num_sentences) for one in buckets] == [
        (1, 10, 6),
        (11, 20, 10),
        (21, 25, 5),
        (26, 30, 5),
        (31, 60, 14),
    ]
    assert [one.beyond_training for one in buckets] == [False, False, False, True, True]
    for bucket in buckets:
        chosen = [at for at, length in enumerate(LENGTHS) if bucket.shortest <= length <= bucket.longest]
        pair = [HYPOTHESES[at] for at in chosen], [REFERENCES[at] for at in chosen]
        found = {score.metric: score for score in bucket.scores}
        assert set(found) == {"sacrebleu", "chrf", "exact_match"}
        assert found["sacrebleu"].score == pytest.approx(sacrebleu_13a(*pair).score)
        assert found["chrf"].score == pytest.approx(chrf(*pair).score)
        assert found["chrf"].interval.low <= found["chrf"].score <= found["chrf"].interval.high


def test_a_bucket_of_the_longest_training_length_alone_is_not_beyond_it() -> None:
    buckets = by_length([LENGTHS], [scored(slice(None))], [24], 25, samples=0)
    assert [(one.label, one.beyond_training) for one in buckets] == [
        ("1–24", False),
        ("25", False),
        ("over 25", True),
    ]


def test_what_is_longer_than_all_edges_is_in_the_last_bucket() -> None:
    [first, last] = by_length([LENGTHS], [scored(slice(None))], [10], 10, samples=0)
    assert (first.num_sentences, last.num_sentences) == (6, 34)
    assert (last.shortest, last.longest, last.label, first.label) == (11, None, "over 10", "1–10")
    assert first.scores[0].interval is None


def test_lines_for_the_terminal() -> None:
    found = ByLength(
        unit=SOURCE_UNIT,
        splits=("test", "long"),
        test_sets=("a", "b"),
        longest_training_source=25,
        signatures={"sacrebleu": "s", "chrf": "c"},
        checkpoint="last",
        beam_size=1,
        length_penalty=0.6,
        precision="32",
        buckets=by_length([LENGTHS], [scored(slice(None))], [10, 25], 25, samples=0),
    )
    grid = length_grid(found)
    assert grid.title == "By source length (pieces of the source, EOS included), test and long together:"
    assert [column.heading for column in grid.columns] == ["pieces", "sacreBLEU", "chrF", "sentences"]
    labels, bleu, _, sentences = zip(*grid.cells, strict=True)
    assert [label.value for label in labels] == ["1–10", "11–25", "over 25"]
    assert [one.value.value for one in bleu] == [bucket.scores[0].score for bucket in found.buckets]
    assert sentences[0].value.value == 6 and sentences[2].value.value == 19
    remarks = [one.remarks for one in sentences]
    assert remarks == [(), (), ("longer than any source of the training data, whose longest has 25",)]


def test_the_settings_change_no_run_and_older_records_are_read_with_the_defaults() -> None:
    settings = app.compose("train", ["logger=none"])
    now = validate(TrainConfig, settings)
    added = {key.partition(".")[2] for key in EARLIER_DEFAULTS if key.startswith("evaluation.")}
    assert added == {"matmul_precision", "min_length", "bootstrap_samples", "length_buckets"}
    older = {key: value for key, value in settings["evaluation"].items() if key not in added}
    then = config_from_record(settings | {"evaluation": older})
    assert then.evaluation == now.evaluation.model_copy(update={"matmul_precision": None})
    # The id is made of all that decides the result, and the last two do not: here it is without them.
    for other in ("bootstrap_samples=10", "length_buckets=[5]"):
        assert validate(TrainConfig, app.compose("train", [f"evaluation.{other}"])).run_id == now.run_id
    assert then.run_id != now.run_id
    deciding = then.model_dump(mode="json", exclude={"name", "sweep", "runs_dir", "logger", "stop_after_minutes"})
    deciding["data"].pop("cache_dir")
    for old, new in RENAMED.items():  # ids are made of the names that settings had first
        deciding["optim"][old.partition(".")[2]] = deciding["optim"].pop(new.partition(".")[2])
    for section, name in (key.split(".") for key in EARLIER_DEFAULTS if not key.startswith("logger.")):
        del deciding[section][name]
    assert then.run_id == hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]


@pytest.mark.parametrize("edges", ["[20,10]", "[10,10]"])
def test_edges_must_ascend(edges: str) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.length_buckets.* is not ascending; give lengths like"):
        validate(TrainConfig, app.compose("train", [f"evaluation.length_buckets={edges}"]))
