"""`rpr-cli diff` from argv to exit code, on made-up records."""

import json

from tests.fake_records import edited, fake_document, fake_score

SCORES = [
    fake_score("test", 30.0, checkpoint="last"),
    fake_score("long", 9.0, checkpoint="last"),
]


def put(folder, edits, losses=()):
    """A record with changes at dotted keys; `losses`: training losses, every 25 steps."""
    folder.mkdir()
    path = folder / "record.json"
    path.write_text(json.dumps(edited(fake_document(scores=SCORES), edits)))
    rows = [{"step": 25 * number, "train/loss": loss} for number, loss in enumerate(losses, start=1)]
    path.with_name("metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def rows_of(printed):
    return [" ".join(line.split()) for line in printed.splitlines()]


def test_only_differences_are_shown(tmp_path, cli):
    edits = {
        "config.model.dropout": 0.3, "run_id": "0b0b0b0b", "training.steps_per_second": 2.5, "device": "a GPU",
        "scores.0.score": 33.0, "scores.1.score": 9.0 + 2**-40,
        "git.commit": "feed", "data.train_pairs": 28000, "versions.numpy": "2",
    }  # fmt: skip
    first, second = put(tmp_path / "a", {}, (5.0, 4.0, 3.0)), put(tmp_path / "b", edits, (5.0, 4.0, 3.5))
    rows = rows_of(cli("diff", first.parent, second).out)
    at = rows.index("setting A B")
    assert rows[at + 1 :] == [
        "model.dropout 0.1 0.3",
        "run.device 2 threads of a CPU a GPU",
        "git.commit 0123abc feed",
        "corpus.train_pairs 29000 28000",
        "versions.numpy – 2",
        "",
        "result A B B - A",
        "test/sacrebleu 30.0 33.0 +3",
        "long/sacrebleu 9.0 9.00000000000091 +9.095e-13",
        "steps_per_second 2.0 2.5 +0.5",
        "",
        "2 of 3 logged losses that both have are the same.",
    ]
    assert rows_of(cli("diff", first, put(tmp_path / "c", {})).out)[-1] == "The two records are the same."
