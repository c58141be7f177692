"""`rpr-cli diff` from argv to exit code, on records made up for the test: what tables say and leave out, their
width, the JSON document, where metrics files are looked for, what is refused, and that torch is never imported.
"""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app

SETTINGS = {
    "model": {"name": "tiny", "dropout": 0.1},
    "position": {
        "name": "relative",
        "absolute": "none",
        "relative_keys": True,
        "relative_values": True,
        "clip_distance": 16,
        "tables": "per_head",
    },
    "data": {"name": "made_up", "path": "/corpora/one", "synthetic": None},
    "optim": {"max_steps": 100},
    "hardware": {"name": "cpu"},
    "seed": 1,
}


def interval(low: float, high: float) -> dict[str, Any]:
    return {
        "low": low,
        "high": high,
        "level": 0.95,
        "kind": "sentences",
        "samples": 9,
        "seed": 1,
        "method": "a bootstrap",
    }


def score(split: str, value: float, within: tuple[float, float] | None = None) -> dict[str, Any]:
    return {
        "split": split,
        "test_set": f"{split} of {split}",
        "metric": "sacrebleu",
        "score": value,
        "signature": "nrefs:1|tok:13a",
        "num_sentences": 50,
        "checkpoint": "last",
        "beam_size": 4,
        "length_penalty": 0.6,
        "interval": None if within is None else interval(*within),
    }


DOCUMENT = {
    "schema": 2,
    "name": "made_up-tiny-relative-k16-s1",
    "run_id": "0a0a0a0a",
    "status": "finished",
    "error": None,
    "command": "rpr-cli train data=made_up data.path=/corpora/one seed=1",
    "config": SETTINGS,
    "git": {"commit": "0123abc", "dirty": False},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "device": "2 threads of a CPU",
    "hardware": "cpu",
    "seed": 1,
    "started": "2026-01-02",
    "finished": "2026-01-03",
    "steps": 100,
    "parameters": 1_000_000,
    "data": {
        "name": "made_up",
        "synthetic": False,
        "train_pairs": 900,
        "dropped_pairs": 0,
        "vocabulary_size": 300,
        "key": "ab12",
    },
    "training": {
        "steps_per_second": 2.0,
        "source_tokens_per_second": 100.0,
        "target_tokens_per_second": 110.0,
        "measured_steps": 90,
        "excludes": "the first",
        "seconds": 50.0,
        "peak_memory_bytes": 1_000_000_000,
        "peak_memory_kind": "resident",
        "train_loss": 2.5,
        "validation_loss": 2.75,
        "matmul_precision": "highest",
        "precision": "32",
    },
    "scores": [score("test", 30.0, (28, 32)), score("long", 9.0)],
    "wandb": None,
}
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes the record with changes at dotted keys; `metrics`: the training losses, one each 25 steps."""

    def write(name: str, edits: dict[str, Any] | None = None, metrics: tuple[float, ...] = ()) -> Path:
        whole = copy.deepcopy(DOCUMENT)
        for key, value in (edits or {}).items():
            *path, last = key.split(".")
            place: Any = whole
            for part in path:
                place = place[int(part) if part.isdigit() else part]
            place[last] = value
        path = tmp_path / name / "record.json" if not name.endswith(".json") else tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(whole), "utf-8")
        lines = [json.dumps({"step": 25 * number, "train/loss": loss}) for number, loss in enumerate(metrics, start=1)]
        if lines:
            beside = path.with_name("metrics.jsonl" if name == path.parent.name else f"{path.stem}.metrics.jsonl")
            beside.write_text("\n".join(lines), "utf-8")
        return path if name.endswith(".json") else path.parent

    return write


@pytest.fixture
def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def run(*words: object, code: int = 0) -> str:
        assert app.main(["diff", *map(str, words)]) == code
        out, err = capsys.readouterr()
        assert (err if code == 0 else out) == ""
        return err if code else out

    return run


def paragraphs(told: str) -> dict[str, list[str]]:
    """The lines of each table, one blank between words, by its first heading; other paragraphs by their first word."""
    parts = told.rstrip("\n").split("\n\n")
    return {part.split()[0]: [" ".join(line.split()) for line in part.splitlines()] for part in parts}


def test_only_what_differs_is_shown(put: Put, diff: Callable[..., str]) -> None:
    edits = {
        "config.model.dropout": 0.3,
        "run_id": "0b0b0b0b",
        "command": "rpr-cli train data=made_up data.path=/corpora/one model.dropout=0.3 seed=1",
        "versions.torch": "2.14.0",
        "scores.0.score": 33.0,
        "scores.0.interval": interval(31, 35),
        "training.steps_per_second": 2.5,
        "training.validation_loss": 2.5,
    }
    told = diff(put("a"), put("b", edits))
    found = paragraphs(told)
    assert list(found) == ["A", "settings", "run", "versions", "scores", "To", "figures", "The"]
    assert found["A"][-1] == "The two records: two configurations."
    assert found["settings"][2:] == ["model.dropout 0.1 0.3"]
    assert found["run"][2:] == ["command model.dropout=0.3"]
    assert found["versions"][2:] == ["torch 2.13.0 2.14.0"]
    assert found["scores"][2] == "test/sacrebleu 30.00 [28.00, 32.00] 33.00 [31.00, 35.00] +3.00 overlap"
    assert found["scores"][3] == "long/sacrebleu 9.00 9.00 same –"
    assert found["To"] == [
        "To test whether a difference is significant: rpr-cli compare with the folders of the two runs."
    ]
    assert found["figures"][2:] == [
        "validation_loss 2.750000 2.500000 -0.250000 × 0.909",
        "steps_per_second 2.000 2.500 +0.500 × 1.250",
    ]
    assert found["The"][0].startswith("The same: 20 settings, 1 version, commit, device, data (key, train_pairs, vocab")
    assert "train_loss" in " ".join(found["The"]) and "validation_loss" not in " ".join(found["The"])


def test_a_difference_below_what_is_shown_is_not_called_the_same(put: Put, diff: Callable[..., str]) -> None:
    edits = {"scores.1.score": 9.0 + 2**-40, "training.train_loss": 2.5 - 2**-40}
    found = paragraphs(diff(put("a"), put("b", edits)))
    assert found["scores"][3] == "long/sacrebleu 9.00 9.00 +9.1e-13 –"
    assert found["figures"][2] == "train_loss 2.500000 2.500000 -9.1e-13 × 1.000"


def test_intervals_apart_and_scores_that_are_not_comparable(put: Put, diff: Callable[..., str]) -> None:
    edits = {
        "scores.0.score": 40.0,
        "scores.0.interval": interval(38, 42),
        "scores.1.signature": "nrefs:1|tok:none",
    }
    told = diff(put("a"), put("b", edits))
    assert paragraphs(told)["scores"][2].endswith("+10.00 apart")
    assert paragraphs(told)["scores"][3] == "long/sacrebleu 9.00 9.00 same –"
    assert "long/sacrebleu: not comparable: signature tok:13a and tok:none" in told


def test_two_records_of_one_run_say_so(put: Put, diff: Callable[..., str]) -> None:
    told = diff(put("a"), put("copy.json"))
    assert told.endswith("The two records: the same record.\n") and told.count("\n") == 5
    told = diff(put("a"), put("b", {"started": "2026-02-02", "command": "rpr-cli rerun runs/a"}))
    assert "The two records: one configuration, run twice.\n" in told
    assert paragraphs(told)["run"][2].startswith("command rpr-cli train data=") and " rpr-cli rerun runs/a" in told
    assert "The two records: one run, recorded twice.\n" in diff(put("a"), put("b", {"sweeps": ["mine"]}))


def test_what_did_not_finish_says_why(put: Put, diff: Callable[..., str]) -> None:
    edits = {"status": "failed", "error": "DataError: no more paper", "scores": [], "data": None, "training": None}
    told = diff(put("a"), put("b", {**edits, "steps": None, "parameters": None, "finished": None, "device": "cpu"}))
    assert "   made_up-tiny-relative-k16-s1, failed: DataError: no more paper\n" in told
    assert "status  finished            failed: DataError: no more paper\n" in told
    assert "To test whether" not in told  # there is none to test
    assert "steps_per_second 2.000 – – –" in paragraphs(told)["figures"]


def test_commands_of_the_same_words_and_those_that_cannot_be_split(put: Put, diff: Callable[..., str]) -> None:
    swapped = {"command": "rpr-cli train data.path=/corpora/one data=made_up seed=1"}
    assert paragraphs(diff(put("a"), put("b", swapped)))["run"][2] == "command the same words in another order"
    told = diff(put("a"), put("b", {"command": "rpr-cli train it's seed=1"}))
    apostrophe = shlex.quote("it's")
    only = [f"command data=made_up {apostrophe}", "data.path=/corpora/one"]
    assert paragraphs(told)["run"][2:] == only


def test_no_line_is_longer_than_100_columns(put: Put, diff: Callable[..., str]) -> None:
    long = "/a/corpus/with/a/long/path/" * 8
    edits = {
        "config.data.path": long + "end",
        "config.model.words": "x" * 200 + "b" + "x" * 200,
        "config.model." + "k" * 90: 1,
        "command": f"rpr-cli train data.path={long}",
        "device": "3 threads of " + "a processor " * 20,
        "data.key": "f" * 64,
        "data.notes": [long, long],
        "scores": [score("a_split_with_a_very_long_name_of_its_own_for_itself", 100.0, (100, 100))],
        "training.excludes": "what " * 60,
        "training.train_loss": 1e12,
    }
    other = {
        "config.model.words": "x" * 200 + "a" + "x" * 200,
        "scores": [score("a_split_with_a_very_long_name_of_its_own_for_itself", 99.0, (100, 100))],
    }
    first = put("a" * 120, other, (1.0, 2.0))
    told = diff(first, put("b" * 120, edits, (1.0, 3.0)))
    assert [line for line in told.splitlines() if len(line) > 100] == []
    assert "…" in told and "xxxa" in told and "xxxb" in told  # where both ends are alike, what is not
    document = json.loads(diff(first, put("b" * 120, edits), "format=json"))
    assert {"key": "model.words", "a": other["config.model.words"], "b": edits["config.model.words"]} in (
        document["settings"]["differ"]
    )


def test_the_step_at_which_the_losses_part(put: Put, diff: Callable[..., str]) -> None:
    first = put("a", metrics=(5.0, 4.0, 3.0))
    told = diff(first, put("b.json", {"started": "x"}, (5.0, 4.0, 3.0625)))
    assert "train/loss: the same at 2 logged steps, up to step 50; at step 75 A has 3 and B 3.0625\n" in told
    told = diff(first, put("b.json", {"started": "x"}, (5.5, 4.0)))
    assert "train/loss: different from the first logged step; at step 25 A has 5 and B 5.5\n" in told
    told = diff(first / "record.json", put("b.json", {"started": "x"}, (5.0, 4.0)))
    assert "train/loss: the same at 2 logged steps, up to step 50\n" in told
    (first / "metrics.jsonl").write_text('{"step": 10, "train/loss": 5.0}\n')
    told = diff(first, put("b.json", {"started": "x"}, (5.0, 4.0)))
    assert "train/loss: different from the first logged step; then A logged step 10 and B step 25\n" in told
    (first / "metrics.jsonl").unlink()
    assert "train/loss" not in diff(first, put("b.json", {"started": "x"}, (5.0, 4.0)))


def test_json_is_one_document(put: Put, diff: Callable[..., str]) -> None:
    edits = {
        "run_id": "0b0b0b0b",
        "config.model.dropout": 0.3,
        "config.optim.extra": None,
        "scores.0.score": 33.0,
        "scores.0.interval": interval(31, 35),
        "training.steps_per_second": 2.5,
    }
    first = put("a", metrics=(5.0, 4.0))
    (first / "metrics.jsonl").write_text('{"step": 25, "train/loss": 5.0}\n{"step": 50, "train/loss": NaN}\n')
    document = json.loads(diff(first, put("b", edits, (5.0, 4.5)), "format=json"))
    assert document["relation"] == "two configurations"
    assert document["a"]["record"] == str(first / "record.json") and document["b"]["run_id"] == "0b0b0b0b"
    assert document["settings"] == {
        "same": 20,
        "differ": [{"key": "model.dropout", "a": 0.1, "b": 0.3}, {"key": "optim.extra", "b": None}],
    }
    assert document["versions"] == {"same": 2, "differ": []}
    test, long = document["scores"]
    assert (test["name"], test["a"], test["b"], test["difference"]) == ("test/sacrebleu", 30.0, 33.0, 3.0)
    assert (test["intervals_overlap"], test["interval_b"]["high"], long["intervals_overlap"]) == (True, 35.0, None)
    figures = {one["name"]: one for one in document["figures"]}
    assert (figures["steps_per_second"]["ratio"], figures["parameters"]["difference"]) == (1.25, 0)
    parting = {"a": {"step": 50, "loss": "nan"}, "b": {"step": 50, "loss": 4.5}}
    assert document["losses"] == [{"name": "train/loss", "equal": 1, "equal_until": 25, "parting": parting}]


@pytest.mark.parametrize(
    "words, line",
    [
        (["a", "."], "record.json: no such record; every run writes a record.json"),
        (["a", "no.json"], "no.json: truncated or not JSON (line 1, "),
    ],
)
def test_refusals_are_one_line(put: Put, diff: Callable[..., str], tmp_path: Path, words: list[str], line: str) -> None:
    put("a")
    (tmp_path / "no.json").write_text("{")
    said = diff(*words, code=2)
    assert said.startswith(f"rpr-cli: {line}") and said.count("\n") == 1


def test_a_damaged_metrics_file_is_told(put: Put, diff: Callable[..., str]) -> None:
    first = put("a")
    (first / "metrics.jsonl").write_text("{\n{}\n")
    assert "metrics.jsonl:1: not JSON; delete this line" in diff(first, put("b"), code=2)


def test_it_imports_nothing_heavy(put: Put) -> None:
    heavy = ("torch", "pytorch_lightning", "wandb", "datasets", "matplotlib", "sacrebleu", "sentencepiece")
    code = (
        f"import sys; from rpr.cli import app; code = app.main(['diff', {str(put('a'))!r}, {str(put('b'))!r}]);"
        f"print(code, [m for m in {heavy} if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "0 []"
