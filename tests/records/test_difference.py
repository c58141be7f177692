"""The difference of two records: settings, scores, figures, and whether a run is reproduced. As it is printed:
tests/test_diff.py.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rpr.records.difference import ABSENT, Row, difference, equal_losses, reproduced
from rpr.records.record import Record
from rpr.records.scores import ByContext, ContextScore
from tests.fake_records import fake_interval, fake_record, fake_score


def rows_of(first: Record, second: Record) -> dict[str, Row]:
    return {row.name: row for row in difference(first, second)}


def changes(first: Record, second: Record) -> dict[str, tuple[Any, Any]]:
    rows = rows_of(first, second).values()
    return {row.name: (row.a, row.b) for row in rows if row.kind == "setting" and not row.same}


def record(edits: dict[str, Any] | None = None, **options: Any) -> Record:
    """A fake record with changes at dotted keys."""
    return fake_record(**options, **edits or {})


def test_settings_that_one_record_lacks_and_decoding():
    assert changes(record(settings={"optim.clip": None}), record()) == {"optim.clip": (None, ABSENT)}
    several = [fake_score("test", 1.0), fake_score("long", 1.0, checkpoint="last")]
    other = [fake_score(split, 1.0, beam_size=1) for split in ("test", "long")]
    averaged = "average of the last 5 (steps 1400, 1500, 1600, 1700, 1800)"
    decoded = {"decoded.beam_size": (4, 1), "decoded.checkpoint": ([averaged, "last"], averaged)}
    assert changes(record(scores=several), record(scores=other)) == decoded


@pytest.mark.parametrize("field, value, reason", [
    ("signature", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.0",
     "signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 and nrefs:1|case:lc|"),
    ("num_sentences", 999, "num_sentences 1000 and 999"),
    ("test_set", "other", "test_set test_2016_flickr and other"),
])  # fmt: skip
def test_incomparable_scores_are_not_subtracted(field, value, reason):
    first = fake_score("test", 31.0, interval=fake_interval(30, 32))
    found = rows_of(record(scores=[first]), record(scores=[{**first, field: value}]))
    assert found["test/sacrebleu"].unlike.startswith(reason)


def test_figures_measured_in_other_ways_are_not_subtracted():
    edits = {"training.peak_memory_kind": "allocated", "training.excludes": "nothing", "training.train_loss": 2.0}
    found = rows_of(record(), record(edits))
    assert found["peak_memory_bytes"].unlike == "peak_memory_kind resident set and allocated"
    assert "excludes" in found["steps_per_second"].unlike
    assert not found["train_loss"].unlike and not found["train_loss"].same and found["steps"].same
    first, second, unknown = (record(concurrent_jobs=jobs) for jobs in (1, 12, None))
    found = rows_of(first, second)
    for name in ("steps_per_second", "target_tokens_per_second", "seconds"):
        assert found[name].unlike == "concurrent_jobs 1 and 12"
    assert not found["train_loss"].unlike and not any(row.unlike for row in rows_of(first, unknown).values())


def test_scores_and_losses_of_another_corpus_are_not_subtracted():
    scores = [fake_score("test", 20.0, test_set="held-out-test"), fake_score("validation", 20.0, test_set="newstest")]
    found = rows_of(*(record({"data.key": key}, scores=scores) for key in ("ab", "ef")))
    assert found["test/sacrebleu"].unlike == "corpus.key ab and ef" and not found["validation/sacrebleu"].unlike
    for text, comparable in ((None, ["test/sacrebleu", "steps"]), ({"column": "text"}, ["steps"])):
        found = rows_of(*(record({"data.key": key}, settings={"data.text": text}) for key in ("ab", "ef")))
        names = ["test/sacrebleu", "train_loss", "validation_loss", "steps"]
        assert [name for name in names if not found[name].unlike] == comparable


def test_bits_per_byte_by_context_of_other_bytes_windows_or_precision_are_not_subtracted():
    def scored(bits, stride=None, longest=512, precision="32"):
        ways = (("separate", 64, 2.5), ("separate", longest, bits), *([("sliding", longest, 2.0)] if stride else []))
        scores = tuple(ContextScore(*way, 1000, None) for way in ways)
        by_context = ByContext("test", "test", 256, 1000, 1000, 5, stride, "last", precision, scores, ())
        return record().model_copy(update={"by_context": (by_context,)})

    found = rows_of(scored(2.25), scored(2.0))
    assert not found["test, separate 512"].unlike and found["test, separate 512"].kind == "score"
    assert not reproduced([*found.values()])
    found = rows_of(scored(2.0), scored(2.0, longest=1024))
    assert found["test, separate 64"].unlike == "longest context 512 and 1024", "of other bytes, though as many"
    found = rows_of(scored(2.0, 64), scored(2.0, 128))
    assert found["test, separate 64"].unlike == found["test, separate 512"].unlike == ""
    assert found["test, sliding 512"].unlike == "stride 64 and 128", "of which other bytes are the last"
    assert rows_of(scored(2.0), scored(2.0, precision="bf16"))["test, separate 64"].unlike == "precision 32 and bf16"


def test_logged_losses_that_are_the_same(tmp_path: Path):
    def logged(name: str, *losses: float) -> Path:
        rows = ({"step": 25 * number, "train/loss": loss} for number, loss in enumerate(losses, start=1))
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / name / "record.json"

    first = logged("a", math.nan, 4.0, 3.0)
    assert equal_losses(first, logged("b", math.nan, 4.1)) == (2, 1), "NaN equals NaN"
    assert equal_losses(first, tmp_path / "none" / "record.json") == (0, 0)


def test_reproduced_needs_equal_scores_and_final_losses():
    first = record(scores={"test": 30.0, "long": 9.0})

    def again(edits=None, a=first, **options):
        other_speed = {"training.steps_per_second": 9.0, "started": "x", "versions": {}, "command": "rpr-cli rerun x"}
        b = record({**other_speed, **(edits or {})}, **{"scores": {"test": 30.0, "long": 9.0}} | options)
        return reproduced(difference(a, b))

    assert again()
    assert not again(scores={"test": math.nextafter(30.0, 31), "long": 9.0}) and not again(scores={"test": 30.0})
    assert not again({"training.train_loss": math.nextafter(2.1, 3)})
    unmeasured = {"training.train_loss": None}
    assert not again(unmeasured, a=record(unmeasured, scores={}), scores={})
    # Without a validation, or with a metric of a later version.
    never = {"training.validation_loss": None}
    assert again(never, a=record(never)) and not again(never) and not again(a=record(never))
    assert again(a=record(scores={"test": 30.0}))
