"""`rpr-cli diff` from argv to exit code, on made-up records."""

import json

from tests.fake_records import edited, fake_document, fake_score

COMMAND = "rpr-cli train data=multi30k_en_de seed=1"
SCORES = [
    fake_score("test", 30.0, checkpoint="last"),
    fake_score("long", 9.0, checkpoint="last"),
]


def put(folder, edits, losses=()):
    """A record with changes at dotted keys; `losses`: training losses, every 25 steps."""
    folder.mkdir()
    path = folder / "record.json"
    path.write_text(json.dumps(edited(fake_document(scores=SCORES, command=COMMAND), edits)))
    rows = [{"step": 25 * number, "train/loss": loss} for number, loss in enumerate(losses, start=1)]
    path.with_name("metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def test_only_differences_are_shown(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    edits = {
        "config.model.dropout": 0.3, "run_id": "0b0b0b0b", "training.steps_per_second": 2.5, "device": "a GPU",
        "command": "rpr-cli train data=multi30k_en_de model.dropout=0.3 seed=1", "training.validation_loss": 2.5,
        "scores.0.score": 33.0, "scores.1.score": 9.0 + 2**-40,
        "git.commit": "feed", "versions": {"python": "3.11.7", "torch": "2.14.0", "numpy": "2"},
        "data.train_pairs": 28000, "training.precision": "bf16",
    }  # fmt: skip
    first, second = put(tmp_path / "a", {}, (5.0, 4.0, 3.0)), put(tmp_path / "b", edits, (5.0, 4.0, 3.5))
    assert [" ".join(line.split()) for line in cli("diff", first.parent, second).out.splitlines()][4:] == [
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
        "",
        "result A B B - A",
        "test/sacrebleu 30.0 33.0 +3",
        "long/sacrebleu 9.0 9.00000000000091 +9.095e-13",
        "validation_loss 2.3 2.5 +0.2",
        "steps_per_second 2.0 2.5 +0.5",
        "",
        "2 of 3 logged losses that both have are the same.",
    ]
    copy = put(tmp_path / "c", {})
    assert cli("diff", first, copy).out.splitlines()[-1] == "The two records are the same."


def test_failed_run_and_long_values(tmp_path, cli):
    words = ["x" * 200 + letter + "x" * 200 for letter in "ab"]
    first = put(tmp_path / ("a" * 120), {"config.model.words": words[0]})
    missing = dict.fromkeys(("data", "training", "steps", "parameters", "finished"))
    edits = {"status": "failed", "error": "DataError: no more paper", "scores": [], "config.model.words": words[1]}
    lines = cli("diff", first, put(tmp_path / "b", edits | missing | {"config.model." + "k" * 90: 1})).out.splitlines()
    assert max(map(len, lines)) <= 100
    found = [" ".join(line.split()) for line in lines]
    assert found[3].endswith("-s1, failed: DataError: no more paper")
    assert {"steps_per_second 2.0 – –", "long/sacrebleu 9.0 – –", "run.device 2 threads of a CPU –"} <= {*found}
    assert "xxxa" in " ".join(found) and "xxxb" in " ".join(found), "cut to where they differ"
