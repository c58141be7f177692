"""`rpr-cli diff` from argv to exit code, on made-up records."""

import json

import pytest

from rpr.records.record import run_file
from tests.fake_records import edited, fake_document, fake_interval, fake_score

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
    """The lines that are printed, with single blanks."""

    def call(*words):
        out, err = cli("diff", *words)
        assert err == "" and all(len(line) <= 100 for line in out.splitlines())
        return [" ".join(line.split()) for line in out.splitlines()]

    return call


def test_only_differences_are_shown(put, diff):
    edits = {
        "config.model.dropout": 0.3, "run_id": "0b0b0b0b", "training.steps_per_second": 2.5, "device": "a GPU",
        "command": "rpr-cli train data=multi30k_en_de model.dropout=0.3 seed=1", "training.validation_loss": 2.5,
        "scores.0.score": 33.0, "scores.0.interval": fake_interval(31, 35), "git.commit": "feed",
        "versions": {"python": "3.11.7", "torch": "2.14.0", "numpy": "2"}, "schemes": {"vectors": "2"},
        "data.train_pairs": 28000, "training.precision": "bf16",
    }  # fmt: skip
    found = diff(put("a"), put("b", edits))
    assert found[4:] == [
        "",
        "setting A B",
        "model.dropout 0.1 0.3",
        "run.command …de seed=1 …de model.dropout=0.3 seed=1",
        "run.device 2 threads of a CPU a GPU",
        "git.commit 0123abc feed",
        "versions.torch 2.13.0 2.14.0",
        "corpus.train_pairs 29000 28000",
        "measured.precision 32 bf16",
        "versions.numpy – 2",
        "code.vectors – 2",
        "",
        "result A B B - A",
        "test/sacrebleu 30.00 (28.00 to 32.00) 33.00 (31.00 to 35.00) +3.00",
        "long/sacrebleu 9.00 9.00 same",
        "validation_loss 2.300000 2.500000 +0.200000",
        "steps_per_second 2.000 2.500 +0.500",
    ]


def test_tiny_difference_is_not_shown_as_the_same(put, diff):
    edits = {"scores.1.score": 9.0 + 2**-40, "training.train_loss": 2.1 - 2**-40}
    found = diff(put("a"), put("b", edits))
    assert "long/sacrebleu 9.00 9.00 +9.1e-13" in found and "train_loss 2.100000 2.100000 -9.1e-13" in found


def test_copy_and_failed_run(put, diff):
    first = put("a")
    assert diff(first, put("copy.json"))[-1] == "The two records are the same."
    missing = dict.fromkeys(("data", "training", "steps", "parameters", "finished"))
    found = diff(first, put("b", {"status": "failed", "error": "DataError: no more paper", "scores": [], **missing}))
    assert found[3].endswith("-s1, failed: DataError: no more paper")
    assert "run.status finished failed: DataError: no more paper" in found
    assert {"steps_per_second 2.000 – –", "long/sacrebleu 9.00 – –", "run.device 2 threads of a CPU –"} <= {*found}


def test_long_values_are_cut_to_where_they_differ(put, diff):
    words = ["x" * 200 + letter + "x" * 200 for letter in "ab"]
    edits = {"config.model.words": words[1], "config.model." + "k" * 90: 1, "training.excludes": "what " * 60}
    found = " ".join(diff(put("a" * 120, {"config.model.words": words[0]}), put("b" * 120, edits)))
    assert "…" in found and "xxxa" in found and "xxxb" in found


def test_number_of_steps_at_which_losses_are_the_same(put, diff):
    first = put("a", losses=(5.0, 4.0, 3.0))
    second = put("b.json", {"started": "x"}, (5.0, 4.0, 3.0625))
    assert "train/loss: the same at 2 of 3 logged steps" in diff(first / "record.json", second)
