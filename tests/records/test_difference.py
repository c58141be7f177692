"""The difference of two records: settings, scores, figures, curves, and whether a run is reproduced. As it is printed:
tests/test_diff.py.
"""

import math
from typing import Any

import pytest

from rpr.records.difference import ABSENT, Row, curves, difference, reproduced
from rpr.records.record import Record
from rpr.records.scores import ByContext, ContextScore
from tests.fake_records import fake_interval, fake_record, fake_score


def changes(found: list[Row], kind: str = "setting") -> dict[str, tuple[Any, Any]]:
    return {row.name: (row.a.value, row.b.value) for row in found if row.kind == kind and not row.same}


def results(first: Record, second: Record) -> dict[str, Row]:
    return {row.name: row for row in difference(first, second) if row.kind != "setting"}


def record(edits: dict[str, Any] | None = None, **options: Any) -> Record:
    """A fake record with changes at dotted keys."""
    return fake_record(**options, **edits or {})


def test_missing_setting_is_absent():
    without = record(settings={"optim.clip": None})
    assert changes(difference(without, record())) == {"optim.clip": (None, ABSENT)}
    found = difference(record(), record(settings={"data.synthetic": {"seed": 1, "num_train": 5}}))
    section = {"data.synthetic.seed": (ABSENT, 1), "data.synthetic.num_train": (ABSENT, 5)}
    assert changes(found) == {"data.synthetic": (None, ABSENT)} | section


@pytest.mark.parametrize("field, value, reason", [
    ("signature", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.0",
     "signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 and nrefs:1|case:lc|"),
    ("num_sentences", 999, "num_sentences 1000 and 999"),
    ("test_set", "other", "test_set test_2016_flickr and other"),
])  # fmt: skip
def test_incomparable_scores_are_not_subtracted(field, value, reason):
    first = fake_score("test", 31.0, interval=fake_interval(30, 32))
    one = results(record(scores=[first]), record(scores=[{**first, field: value}]))["test/sacrebleu"]
    assert one.difference is None
    assert one.unlike.startswith(reason)


def test_decoding_settings():
    several = [fake_score("test", 1.0), fake_score("long", 1.0, checkpoint="last")]
    other = [fake_score(split, 1.0, beam_size=1) for split in ("test", "long")]
    found = difference(record(scores=several), record(scores=other))
    averaged = "average of the last 5 (steps 1400, 1500, 1600, 1700, 1800)"
    assert changes(found) == {"decoded.beam_size": (4, 1), "decoded.checkpoint": ([averaged, "last"], averaged)}


def test_figures_measured_in_other_ways_are_not_subtracted():
    edits = {"training.peak_memory_kind": "allocated", "training.excludes": "nothing", "training.train_loss": 2.0}
    found = results(record(), record(edits))
    assert found["peak_memory_bytes"].difference is None
    assert found["peak_memory_bytes"].unlike == "peak_memory_kind resident set and allocated"
    assert found["steps_per_second"].difference is None and "excludes" in found["steps_per_second"].unlike
    assert found["train_loss"].difference == pytest.approx(-0.1) and found["steps"].same
    first, second, unknown = (record(concurrent_jobs=jobs) for jobs in (1, 12, None))
    found = results(first, second)
    for name in ("steps_per_second", "target_tokens_per_second", "seconds"):
        assert found[name].unlike == "concurrent_jobs 1 and 12" and found[name].difference is None
    assert found["train_loss"].unlike is None
    assert all(one.unlike is None for one in results(first, unknown).values())


def test_scores_and_losses_of_another_corpus_are_not_subtracted():
    scores = [fake_score("test", 20.0, test_set="held-out-test"), fake_score("validation", 20.0, test_set="newstest")]
    found = results(*(record({"data.key": key}, scores=scores) for key in ("ab", "ef")))
    assert found["test/sacrebleu"].unlike == "corpus.key ab and ef" and found["validation/sacrebleu"].unlike is None
    for text, comparable in ((None, ["test/sacrebleu", "steps"]), ({"column": "text"}, ["steps"])):
        found = results(*(record({"data.key": key}, settings={"data.text": text}) for key in ("ab", "ef")))
        names = ["test/sacrebleu", "train_loss", "validation_loss", "steps"]
        assert [name for name in names if found[name].unlike is None] == comparable
        assert found["validation_loss"].unlike == "corpus.key ab and ef" and found["train_loss"].difference is None


def rows(*losses: float, every: int = 25, name: str = "train/loss") -> list[dict[str, Any]]:
    return [{"step": every * number, name: loss} for number, loss in enumerate(losses, start=1)]


def test_step_until_which_losses_are_the_same():
    one = rows(math.nan, 4.0) + rows(3.0, 2.0, every=30, name="validation/loss")
    other = rows(math.nan, 4.1) + rows(3.0, 2.0, every=30, name="validation/loss")
    assert curves(one, other) == [("train/loss", 1, 2), ("validation/loss", 2, 2)], "NaN equals NaN"
    assert curves(rows(5.0, 4.0), rows(5.5)) == [("train/loss", 0, 1)]
    assert curves(rows(5.0, 4.0), rows(5.0)) == [("train/loss", 1, 1)]
    assert curves(one, []) == []


def test_reproduced_needs_equal_scores_and_losses():
    first = record(scores={"test": 30.0, "long": 9.0})

    def again(edits=None, *losses, a=first, **options):
        other_speed = {"training.steps_per_second": 9.0, "started": "x", "versions": {}, "command": "rpr-cli rerun x"}
        b = record({**other_speed, **(edits or {})}, **{"scores": {"test": 30.0, "long": 9.0}} | options)
        return reproduced(difference(a, b), curves(rows(5.0), rows(*losses)))

    assert again({}, 5.0) and not again({}, 5.5)
    assert not again(scores={"test": math.nextafter(30.0, 31), "long": 9.0}) and not again(scores={"test": 30.0})
    assert not again({"training.train_loss": math.nextafter(2.1, 3)})
    assert not again({"training.validation_loss": math.nextafter(2.3, 3)})
    unmeasured = {"training.train_loss": None}
    assert not again(unmeasured, a=record(unmeasured, scores={}), scores={})
    # Without a validation, or with a metric of a later version.
    never = {"training.validation_loss": None}
    assert again(never, a=record(never)) and not again(never) and not again(a=record(never))
    assert again(a=record(scores={"test": 30.0}))


def test_bits_per_byte_by_context_are_scores_of_the_run():
    """A run is reproduced only with them; those of other bytes, windows or precision are not subtracted."""

    def scored(bits, stride=None, longest=512, precision="32"):
        ways = (("separate", 64, 2.5), ("separate", longest, bits), *([("sliding", longest, 2.0)] if stride else []))
        scores = tuple(ContextScore(*way, 1000, None) for way in ways)
        by_context = ByContext("test", "test", 256, 1000, 1000, 5, stride, "last", precision, scores, ())
        return record().model_copy(update={"by_context": (by_context,)})

    found = results(scored(2.25), scored(2.0))
    assert (found["test, separate 64"].difference, found["test, separate 512"].difference) == (0.0, -0.25)
    found = results(scored(2.0), scored(2.0, longest=1024))["test, separate 64"]
    assert (found.unlike, found.difference) == ("longest context 512 and 1024", None), "of other bytes, though as many"
    found = results(scored(2.0, 64), scored(2.0, 128))
    assert found["test, separate 64"].unlike is found["test, separate 512"].unlike is None
    assert found["test, sliding 512"].unlike == "stride 64 and 128", "of which other bytes are the last"
    assert results(scored(2.0), scored(2.0, precision="bf16"))["test, separate 64"].unlike == "precision 32 and bf16"
