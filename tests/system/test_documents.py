"""A language model from its corpus to its record: trained, interrupted, resumed, evaluated by length, and compared."""

import json
import shutil
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.commands import generate
from rpr.errors import ConfigError
from rpr.records.record import read_record
from tests.conftest import TINY_MODEL
from tests.system.bad_files import update_record
from tests.system.trainings import last_weights

SMALL = [
    *(word for word in TINY_MODEL if word != "model.norm=post"), "model.architecture=decoder_only",
    "model.dropout=0.1", "data.context_length=32", "optim.max_steps=20", "optim.validate_every_n_steps=10",
    "optim.checkpoint_every_n_steps=5", "optim.average_checkpoints=1", "hardware.threads=1",
    "evaluation.context_lengths=[16,32,64]", "evaluation.stride=16", "evaluation.text_tokens=1024",
    "evaluation.bootstrap_samples=100", "position=rope", "name=rope",
]  # fmt: skip
THREADS = "hardware.threads=1"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    folder.mkdir()
    for index in range(60):
        lines = "".join(f"{index} times {row} is {index * row}\n" for row in range(30))
        (folder / f"{index}.txt").write_text(lines)
    return folder


def train(corpus: Path, runs: Path) -> int:
    words = [f"data.path={corpus}", f"data.cache_dir={corpus.parent / 'cache'}", f"runs_dir={runs}"]
    return app.main(["train", "data=text", *SMALL, *words])


@pytest.fixture(scope="module")
def rope(corpus, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    assert train(corpus, runs) == 0
    return next(runs.glob("rope-*"))


def test_the_record_has_bits_per_byte_by_length(rope):
    record = read_record(rope / "record.json")
    score = record.score("test", "bits_per_byte")
    assert score.interval is not None
    assert score.signature.startswith("tok:bytes|context:32|windows:separate|tokens:")
    (by_context,) = record.by_context
    assert {one.num_bytes for one in by_context.scores} == {by_context.num_bytes}
    assert by_context.num_bytes == by_context.num_tokens > 0
    assert [one.length for one in by_context.scores] == [16, 32, 64] * 2
    rows = [json.loads(line) for line in (rope / "metrics.jsonl").read_text().splitlines()]
    validated = [row for row in rows if "validation/loss" in row]
    assert validated[-1]["validation/bits_per_byte"] == pytest.approx(validated[-1]["validation/loss"] / 0.693147, 1e-5)
    assert record.training.source_tokens_per_second is None
    assert validated[-1]["validation/loss"] < validated[0]["validation/loss"]


def test_evaluate_scores_the_same_run_by_other_lengths(rope, cli, monkeypatch):
    words = ["context_lengths=[8,32]", "stride=8", "text_tokens=512", "format=json"]
    monkeypatch.setattr("rpr.runs.lifecycle.untrained", lambda config: [f"of {config.evaluation.context_lengths}"])
    out, err = cli("evaluate", f"run={rope}", THREADS, *words)
    assert "rpr-cli: warning: of (8, 32)" in err
    (by_context,) = json.loads(out)["by_context"]
    assert by_context["num_tokens"] <= 512
    by_length = {(one["windows"], one["length"]): one["bits_per_byte"] for one in by_context["scores"]}
    assert by_length["separate", 8] == pytest.approx(by_length["sliding", 8], abs=1e-6)
    one_length = ("context_lengths=[16]", "text_tokens=512", "format=json")
    (by_context,) = json.loads(cli("evaluate", f"run={rope}", THREADS, *one_length).out)["by_context"]
    assert [one["windows"] for one in by_context["scores"]] == ["separate"]  # without the run's stride
    kept = {path.parent.name for path in rope.glob("evaluations/*/scores.json")}
    assert kept >= {"context_lengths-8-32-stride-8-text_tokens-512", "context_lengths-16-text_tokens-512"}
    assert "By position in separate windows of 64" in cli("evaluate", f"run={rope}", THREADS).out


def test_evaluate_says_that_the_documents_have_changed_and_keeps_the_scores_of_the_earlier_ones(rope, tmp_path, cli):
    words = ("context_lengths=[]", "splits=[validation]", THREADS)
    assert "changed since" not in cli("evaluate", f"run={rope}", *words).err
    changed = shutil.copytree(rope, tmp_path / "changed")
    update_record(**{"data.key": "0123456789abcdef"})(changed)
    before = {path.parent.name: path.stat().st_mtime_ns for path in changed.glob("evaluations/*/scores.json")}
    err = cli("evaluate", f"run={changed}", *words).err
    assert "has changed since changed was started (key 0123456789ab, now " in err
    after = {path.parent.name: path.stat().st_mtime_ns for path in changed.glob("evaluations/*/scores.json")}
    assert before.items() < after.items()
    key = json.loads((rope / "record.json").read_text())["data"]["key"]
    assert [name.rpartition("-corpus-")[2] for name in after.keys() - before] == [key[:12]]


def test_evaluate_refuses_what_it_cannot_do_before_scoring(rope, cli, monkeypatch):
    """And tries the scheme up to its own lengths."""

    def tried(scheme, site, longest):
        raise ConfigError(f"tried up to {longest}")

    monkeypatch.setattr("rpr.commands.evaluate.check_hooks", tried)
    for word, refusal in (
        ("context_lengths=[16,4096]", "evaluation.context_lengths: 4096 is too long"),
        ("context_lengths=[128]", "tried up to 128"),
    ):
        out, err = cli("evaluate", f"run={rope}", word, THREADS, code=2)
        assert (out, err.count("\n")) == ("", 1) and err.startswith(f"rpr-cli: {refusal}")


@pytest.mark.usefixtures("unrendered")
def test_other_commands_work_on_documents(rope, corpus, tmp_path, cli):
    other = shutil.copytree(rope, tmp_path / "other")
    cli("prepare", "data=text", f"data.path={corpus}", f"data.cache_dir={tmp_path / 'cache'}")
    cli("verify", other, THREADS, "sentences=2")
    cli("report", f"run={other}", THREADS, "validation_sentences=5")
    numbers = json.loads((other / "positions.json").read_text())
    assert numbers["num_sentences"] == 5 and {stack["stack"] for stack in numbers["stacks"]} == {"decoder"}
    assert all(head[numbers["max_distance"]] for layer in numbers["attention"] for head in layer["attention"])


def test_control_characters_of_a_continuation_are_escaped():
    assert generate._harmless("a\n\tb\x1b[31m") == "a\n\tb\\x1b[31m"


def test_a_resumed_run_has_the_same_weights(rope, corpus, tmp_path, assert_same):
    again = Path(shutil.copytree(rope, tmp_path / rope.name))
    for newest in sorted((again / "checkpoints").glob("*.ckpt"))[2:]:
        newest.unlink()
    update_record(status="interrupted", error="stopped")(again)
    assert train(corpus, tmp_path) == 0
    assert_same(last_weights(again), last_weights(rope))
