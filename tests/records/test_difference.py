"""The difference of two records: settings, scores, figures, curves, and whether a run is reproduced. As it is printed:
tests/test_diff.py.
"""

import math
from typing import Any

import pytest

from rpr.commands import rerun
from rpr.records.difference import ABSENT, FIGURES, SCORES, Difference, difference
from rpr.records.record import Record
from rpr.records.scores import ByContext, ContextScore
from tests.fake_records import fake_interval, fake_record, fake_score


def changes(found: Difference, part: str) -> dict[str, tuple[Any, Any]]:
    return {pair.name: (pair.a.value, pair.b.value) for pair in found.of(part) if not pair.same}


def record(edits: dict[str, Any] | None = None, **options: Any) -> Record:
    """A fake record with changes at dotted keys."""
    return fake_record(**options, **edits or {})


def test_missing_setting_is_absent():
    without = record(settings={"optim.clip": None})
    assert changes(difference(without, record()), "settings") == {"optim.clip": (None, ABSENT)}
    found = difference(record(), record(settings={"data.synthetic": {"seed": 1, "num_train": 5}}))
    section = {"data.synthetic.seed": (ABSENT, 1), "data.synthetic.num_train": (ABSENT, 5)}
    assert changes(found, "settings") == {"data.synthetic": (None, ABSENT)} | section


@pytest.mark.parametrize("field, value, reason", [
    ("signature", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.0",
     "signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 and nrefs:1|case:lc|"),
    ("num_sentences", 999, "num_sentences 1000 and 999"),
    ("test_set", "other", "test_set test_2016_flickr and other"),
])  # fmt: skip
def test_incomparable_scores_are_not_subtracted(field, value, reason):
    first = fake_score("test", 31.0, interval=fake_interval(30, 32))
    [one] = difference(record(scores=[first]), record(scores=[{**first, field: value}])).of(SCORES)
    assert one.difference is None
    assert one.unlike.startswith(reason)


def test_decoding_settings():
    several = [fake_score("test", 1.0), fake_score("long", 1.0, checkpoint="last")]
    other = [fake_score(split, 1.0, beam_size=1) for split in ("test", "long")]
    found = difference(record(scores=several), record(scores=other))
    averaged = "average of the last 5 (steps 1400, 1500, 1600, 1700, 1800)"
    assert changes(found, "decoding") == {"beam_size": (4, 1), "checkpoint": ([averaged, "last"], averaged)}


def test_figures_measured_in_other_ways_are_not_subtracted():
    edits = {"training.peak_memory_kind": "allocated", "training.excludes": "nothing", "training.train_loss": 2.0}
    found = {one.name: one for one in difference(record(), record(edits)).of(FIGURES)}
    assert found["peak_memory_bytes"].difference is None
    assert found["peak_memory_bytes"].unlike == "peak_memory_kind resident set and allocated"
    assert found["steps_per_second"].difference is None and "excludes" in found["steps_per_second"].unlike
    assert found["train_loss"].difference == pytest.approx(-0.1) and found["steps"].same


def test_speeds_of_runs_that_shared_their_device_are_not_compared():
    first, second, unknown = (record(concurrent_jobs=jobs) for jobs in (1, 12, None))
    found = {one.name: one for one in difference(first, second).of(FIGURES)}
    for name in ("steps_per_second", "target_tokens_per_second", "seconds"):
        assert found[name].unlike == "concurrent_jobs 1 and 12" and found[name].difference is None
    assert found["train_loss"].unlike is None
    assert all(one.unlike is None for one in difference(first, unknown).of(FIGURES))


def test_scores_on_held_out_pairs_of_another_corpus_are_not_subtracted():
    scores = [
        fake_score("test", 20.0, test_set="held-out-test"),
        fake_score("validation", 20.0, test_set="newstest2013"),
    ]
    first, second = (record(scores=scores) for _ in range(2))
    second = second.model_copy(update={"data": second.data.model_copy(update={"key": "0" * 64})})
    found = {one.name: one.unlike for one in difference(first, second).of(SCORES)}
    assert found["test/sacrebleu"].startswith("data.key ") and found["validation/sacrebleu"] is None


def test_losses_of_other_tokens_and_scores_of_other_documents_are_not_subtracted():
    for text, comparable in ((None, ["test/sacrebleu", "steps"]), ({"column": "text"}, ["steps"])):
        pair = [record({"data.key": key}, settings={"data.text": text}) for key in ("ab", "ef")]
        found = {one.name: one for one in (*difference(*pair).of(SCORES), *difference(*pair).of(FIGURES))}
        names = ["test/sacrebleu", "train_loss", "validation_loss", "steps"]
        assert [name for name in names if found[name].unlike is None] == comparable
        assert found["validation_loss"].unlike == "data.key ab and ef" and found["train_loss"].difference is None


def rows(*losses: float, every: int = 25, name: str = "train/loss") -> list[dict[str, Any]]:
    return [{"step": every * number, name: loss} for number, loss in enumerate(losses, start=1)]


def test_training_and_validation_losses_are_compared_separately():
    """The steps at which they part in other ways: tests/test_diff.py."""
    one = rows(math.nan, 4.0) + rows(3.0, 2.0, every=30, name="validation/loss")
    other = rows(math.nan, 4.1) + rows(3.0, 2.0, every=30, name="validation/loss")
    train, validation = difference(record(), record(), one, other).curves
    assert (train.equal_until, train.parted) == (25, True), "NaN equals NaN"
    assert (validation.name, validation.equal_until, validation.parted) == ("validation/loss", 60, False)
    assert difference(record(), record(), one, []).curves == ()
    assert difference(record(), record(), [{"step": 25, "train/loss": "low"}], rows(5.0)).curves == ()


def test_reproduced_needs_equal_scores_and_losses():
    first = record(scores={"test": 30.0, "long": 9.0})
    other_speed = {"training.steps_per_second": 9.0, "started": "x", "versions": {}, "command": "rpr-cli rerun x"}

    def again(edits=None, **options):
        settings = {"scores": {"test": 30.0, "long": 9.0}} | options
        return record({**other_speed, **(edits or {})}, **settings)

    assert difference(first, again(), rows(5.0), rows(5.0)).reproduced
    for other in (
        again(scores={"test": math.nextafter(30.0, 31), "long": 9.0}), again(scores={"test": 30.0}),
        again({"training.train_loss": math.nextafter(2.1, 3)}),
        again({"training.validation_loss": math.nextafter(2.3, 3)}),
    ):  # fmt: skip
        assert not difference(first, other).reproduced
    assert not difference(first, again(), rows(5.0), rows(5.5)).reproduced
    unmeasured = {"training.train_loss": None}
    assert not difference(record(unmeasured, scores={}), record(unmeasured, scores={})).reproduced
    # Without a validation, or with a metric of a later version.
    never = {"training.validation_loss": None}
    assert difference(record(never), record(never)).reproduced
    assert not difference(record(), record(never)).reproduced and not difference(record(never), record()).reproduced
    earlier, later = record(scores={"test": 30.0}), record(scores={"test": 30.0, "long": 9.0})
    assert difference(earlier, later).reproduced and not difference(later, earlier).reproduced
    assert rerun._outcome(difference(earlier, later))[0].startswith("Bit-identical: 1 score, ")


def test_bits_per_byte_by_context_are_scores_of_the_run():
    """A run is reproduced only with them; those of other bytes, windows or precision are not subtracted."""

    def scored(bits, stride=None, longest=512, precision="32"):
        ways = (("separate", 64, 2.5), ("separate", longest, bits), *([("sliding", longest, 2.0)] if stride else []))
        scores = tuple(ContextScore(*way, 1000, None) for way in ways)
        by_context = ByContext("test", "test", 256, 1000, 1000, 5, stride, "last", precision, scores, ())
        return record().model_copy(update={"by_context": (by_context,)})

    found = difference(scored(2.25), scored(2.0))
    by_name = {pair.name: (pair.difference, pair.same) for pair in found.of(SCORES)}
    assert by_name["test, separate 64/bits_per_byte"] == (0.0, True)
    assert by_name["test, separate 512/bits_per_byte"] == (-0.25, False)
    [first] = [
        one for one in difference(scored(2.0), scored(2.0, longest=1024)).of(SCORES) if "separate 64" in one.name
    ]
    assert (first.unlike, first.difference) == ("longest context 512 and 1024", None), "of other bytes, though as many"
    strides = difference(scored(2.0, 64), scored(2.0, 128)).of(SCORES)
    unlike = {pair.name: pair.unlike for pair in strides if pair.name.startswith("test, ")}
    assert unlike["test, separate 64/bits_per_byte"] is unlike["test, separate 512/bits_per_byte"] is None
    assert unlike["test, sliding 512/bits_per_byte"] == "stride 64 and 128", "of which other bytes are the last"
    pairs = difference(scored(2.0), scored(2.0, precision="bf16")).of(SCORES)
    assert {pair.unlike for pair in pairs if "separate" in pair.name} == {"precision 32 and bf16"}
