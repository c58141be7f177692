"""`rpr-cli diff` from argv to exit code, on made-up records."""

import json
import re

import pytest

from rpr.records.record import run_file
from tests.fake_records import edited, fake_document, fake_interval, fake_score
from tests.report.test_contexts import SCORES as SCORES_BY_CONTEXT
from tests.report.test_contexts import fields

COMMAND = "rpr-cli train data=multi30k_en_de seed=1"
SCORES = [
    fake_score("test", 30.0, interval=fake_interval(28, 32), checkpoint="last"),
    fake_score("long", 9.0, checkpoint="last"),
]


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Writes a record with changes at dotted keys; `losses`: training losses, every 25 steps."""
    monkeypatch.chdir(tmp_path)

    def write(name, edits=None, losses=()):
        path = tmp_path / name / "record.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(edited(fake_document(scores=SCORES, command=COMMAND), edits or {})))
        if losses:
            rows = [{"step": 25 * number, "train/loss": loss} for number, loss in enumerate(losses, start=1)]
            run_file(path, "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return path.parent

    return write


@pytest.fixture
def diff(cli):
    def call(*words):
        out, err = cli("diff", *words)
        assert err == ""
        return out

    return call


def paragraphs(printed):
    """The lines of each paragraph by its first word, with single blanks."""
    parts = printed.rstrip("\n").split("\n\n")
    return {part.split()[0]: [" ".join(line.split()) for line in part.splitlines()] for part in parts}


def test_only_differences_are_shown(put, diff):
    edits = {
        "config.model.dropout": 0.3, "run_id": "0b0b0b0b", "training.steps_per_second": 2.5, "device": "a GPU",
        "command": "rpr-cli train data=multi30k_en_de model.dropout=0.3 seed=1", "training.validation_loss": 2.5,
        "scores.0.score": 33.0, "scores.0.interval": fake_interval(31, 35), "git.commit": "feed",
        "versions": {"python": "3.11.7", "torch": "2.14.0", "numpy": "2"}, "schemes": {"vectors": "2"},
        "data.train_pairs": 28000, "training.precision": "bf16",
    }  # fmt: skip
    shown = {
        "settings": ["model.dropout 0.1 0.3"],
        "run": [
            "command rpr-cli train data=multi30k_en_de seed=1 …de model.dropout=0.3 seed=1",
            "device 2 threads of a CPU a GPU",
        ],
        "checkout": ["commit 0123abc feed"],
        "versions": ["torch 2.13.0 2.14.0", "numpy – 2"],
        "code": ["vectors – 2"],
        "data": ["train_pairs 29000 28000"],
        "how": ["precision 32 bf16"],
        "scores": [
            "test/sacrebleu 30.00 (28.00 to 32.00) 33.00 (31.00 to 35.00) +3.00",
            "long/sacrebleu 9.00 9.00 same",
        ],
        "figures": ["validation_loss 2.300000 2.500000 +0.200000", "steps_per_second 2.000 2.500 +0.500"],
    }
    found = paragraphs(diff(put("a"), put("b", edits)))
    assert {name: lines[2:] for name, lines in found.items() if name in shown} == shown
    assert found.keys() == {"A", *shown, "To", "Identical:"} and "rpr-cli compare" in found["To"][0]
    identical = r"Identical: settings \(\d\d\), run \(2\), checkout \(1\), versions \(1\), data \(5\), how it was m"
    assert re.match(identical, found["Identical:"][0]), found
    assert "train_loss" in " ".join(found["Identical:"]) and "validation_loss" not in " ".join(found["Identical:"])


def test_tiny_difference_is_not_shown_as_the_same(put, diff):
    edits = {"scores.1.score": 9.0 + 2**-40, "training.train_loss": 2.1 - 2**-40}
    found = paragraphs(diff(put("a"), put("b", edits)))
    assert found["scores"][3] == "long/sacrebleu 9.00 9.00 +9.1e-13"
    assert found["figures"][2] == "train_loss 2.100000 2.100000 -9.1e-13"


def test_copy_of_a_record_has_no_difference(put, diff):
    printed = diff(put("a"), put("copy.json"))
    assert printed.endswith("The two records are the same.\n") and printed.count("\n") == 5
    again = paragraphs(diff(put("a"), put("b", {"started": "2026-02-02", "command": "rpr-cli rerun runs/a"})))
    assert list(again) == ["A", "run", "scores", "Identical:"]
    assert again["run"][2].startswith("command rpr-cli train data=") and " rpr-cli rerun" in again["run"][2]


def test_scores_by_context_are_named_by_length(put, diff):
    found = paragraphs(diff(put("a", {"by_context": [fields(0.0)]}), put("b", {"by_context": [fields(0.5)]})))
    names = [f"test, {windows} {length}" for windows, length in SCORES_BY_CONTEXT]
    rows = [
        f"{name} {bits:.3f} {bits + 0.5:.3f} +0.500"
        for name, bits in zip(names, SCORES_BY_CONTEXT.values(), strict=True)
    ]
    assert found["scores"][4:] == rows


def test_failed_run(put, diff):
    missing = dict.fromkeys(("data", "training", "steps", "parameters", "finished"))
    edits = {"status": "failed", "error": "DataError: no more paper", "scores": [], **missing}
    printed = diff(put("a"), put("b", edits))
    assert "-s1, failed: DataError: no more paper\n" in printed
    assert "status  finished            failed: DataError: no more paper\n" in printed
    assert "To test whether" not in printed
    found = paragraphs(printed)
    assert "steps_per_second 2.000 – –" in found["figures"] and "long/sacrebleu 9.00 – –" in found["scores"]
    assert "device 2 threads of a CPU –" in found["run"]


def test_lines_have_at_most_100_columns(put, diff):
    long = "/a/corpus/with/a/long/path/" * 8
    score = fake_score("a_split_with_a_very_long_name_of_its_own_for_itself", 100.0, interval=fake_interval(100, 100))
    words = ["x" * 200 + letter + "x" * 200 for letter in "ab"]
    first = put("a" * 120, {"config.model.words": words[0], "scores": [score | {"score": 99.0}]}, (1.0, 2.0))
    edits = {
        "config.data.path": long, "config.model.words": words[1], "config.model." + "k" * 90: 1, "data.key": "f" * 64,
        "command": f"rpr-cli train data.path={long}", "device": "3 threads of " + "a processor " * 20,
        "data.notes": [long, long], "scores": [score], "training.excludes": "what " * 60, "training.train_loss": 1e12,
    }  # fmt: skip
    other = put("b" * 120, edits, (1.0, 3.0))
    printed = diff(first, other)
    assert [line for line in printed.splitlines() if len(line) > 100] == []
    assert "…" in printed and "xxxa" in printed and "xxxb" in printed  # long values are cut to where they differ


def test_step_at_which_losses_diverge(put, diff):
    first = put("a", losses=(5.0, 4.0, 3.0))
    for losses, line in {
        (5.0, 4.0, 3.0625): "the same at 2 logged steps, up to step 50, then others",
        (5.5, 4.0): "the same at 0 logged steps, then others",
        (5.0, 4.0): "the same at 2 logged steps, up to step 50",
    }.items():
        assert f"train/loss: {line}\n" in diff(first / "record.json", put("b.json", {"started": "x"}, losses))
    (first / "metrics.jsonl").write_text('{"step": 10, "train/loss": 5.0}\n')
    line = "train/loss: the same at 0 logged steps, then others\n"
    assert line in diff(first, "b.json")
    (first / "metrics.jsonl").unlink()
    assert "train/loss" not in diff(first, "b.json")
