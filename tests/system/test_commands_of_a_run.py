"""A tiny run from corpus to scores: its record, and what evaluate, translate, export, verify and report make of it."""

import json
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rpr.checks.verification import Check
from rpr.commands import verify as verify_command
from rpr.compose.composition import compose_train
from rpr.decode.exported import load_exported_model
from rpr.records.record import read_record
from rpr.runs.locks import acquire
from tests.system.bad_files import update_record
from tests.system.conftest import EXACT
from tests.system.trainings import last_weights

BOTH = "average of 2 (steps 10 to 20, 50% of the training)"  # fewer than asked


@pytest.fixture
def run_dir(scored_run, tmp_path):
    """A copy, with a space in its name."""
    return Path(shutil.copytree(scored_run, tmp_path / "a run"))


@pytest.fixture
def run_command(cli):
    """Runs a command on a run; its stdout and stderr."""
    return lambda name, run_dir, *words, code=0: cli(name, f"run='{run_dir}'", *EXACT[:1], *words, code=code)


def test_record_of_a_run(scored_run):
    record = read_record(scored_run / "record.json")
    assert (record.status, record.steps, record.sweeps) == ("finished", 20, ("mine",))
    assert record.synthetic and record.error is None and record.wandb is None
    assert record.training.measured_steps == 10  # the first 10 are warm-up
    assert {(score.split, score.checkpoint) for score in record.scores} == {("test", BOTH), ("long", BOTH)}
    for name in ("config.yaml", "metrics.jsonl", "test.hypotheses.txt", "long.references.txt"):
        assert (scored_run / name).stat().st_size > 0
    words = shlex.split(record.command)
    assert words[:2] == ["rpr-cli", "train"] and compose_train(words[2:]).run_id == record.run_id


def test_evaluate_and_translate_match_the_record(run_dir, tmp_path, cli):
    record = read_record(run_dir / "record.json")
    document = json.loads(cli("evaluate", f"run='{run_dir}'", *EXACT, "format=json").out)  # nothing else on stdout
    assert {(s["split"], s["metric"]): s["score"] for s in document["scores"]} == {
        (s.split, s.metric): s.score for s in record.scores
    }
    assert read_record(run_dir / "record.json") == record
    sources = (run_dir / "test.sources.txt").read_text().splitlines()[:5]
    (tmp_path / "in.txt").write_text("\n".join([*sources, "", sources[0]]) + "\n")
    lines = cli("translate", f"run='{run_dir}'", f"input={tmp_path / 'in.txt'}", *EXACT).out.split("\n")[:-1]
    assert len(lines) == 7 and lines[0] == lines[6]
    assert lines[:5] == (run_dir / "test.hypotheses.txt").read_text().split("\n")[:5]


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_export_is_verified_and_replaceable(kind, run_dir, run_command, assert_same):
    record = (run_dir / "record.json").read_bytes()
    out, err = run_command("export", run_dir, f"format={kind}", "sentences=6")
    folder, proof = out.splitlines()
    assert folder == f"{run_dir / 'exports' / kind}: {kind}, {BOTH}" and err == ""
    assert proof.startswith("verified on 6 sentences of validation: ")
    assert "greedy translations are identical to the model's, " in proof
    assert (run_dir / "record.json").read_bytes() == record
    # To another folder, from the last checkpoint only; the second export replaces the first.
    elsewhere = run_dir.parent / "elsewhere"
    words = (f"format={kind}", "sentences=2", f"output_dir='{elsewhere}'", "average_checkpoints=1", "split=test")
    for _ in range(2):
        assert "\nverified on 2 sentences of test: " in run_command("export", run_dir, *words)[0]
    assert json.loads((elsewhere / "card.json").read_text())["checkpoint"] == "step 20"
    assert not [path for path in run_dir.parent.iterdir() if path.name.startswith(".")]
    if kind == "safetensors":
        assert_same(dict(load_exported_model(elsewhere).state_dict()), last_weights(run_dir))


def test_verify_passes_and_writes_nothing_or_reports_a_failed_check(scored_run, run_command, monkeypatch):
    before = sorted(scored_run.rglob("*"))
    out, err = run_command("verify", scored_run, "sentences=2")
    assert f"{BOTH}; sentences of validation; float64 unless noted" in " ".join(out.split()) and "rpr-cli: " not in err
    for name in ("cached decoding", "padding", "shift", "batches", "n best", "exact matches", "export, safetensors"):
        assert any(line.startswith(name) and " passed " in line for line in out.splitlines()), name
    assert sorted(scored_run.rglob("*")) == before
    failed = Check("padding", "memory", "failed", 2, float("inf"), 1e-8)
    monkeypatch.setattr(verify_command, "checks", lambda *arguments: iter([failed]))
    printed = run_command("verify", scored_run, "sentences=2", "format=json", code=1)
    assert printed.err == f"rpr-cli: {scored_run.name}: failed: padding\n"
    document = json.loads(printed.out)
    assert document["passed"] is False and document["checks"][0]["difference"] is None


def test_report_of_a_run_is_repeatable(run_dir, run_command):
    before = (run_dir / "record.json").read_bytes()
    out, err = run_command("report", run_dir, "title=Mine")
    assert out == f"{run_dir.name}: relative, k = 3 | {BOTH} | synthetic data\n"
    page, numbers = run_dir / "positions.svg", run_dir / "positions.json"
    assert err == f"written: {page}\nwritten: {numbers}\n"
    written = (page.read_bytes(), numbers.read_bytes())
    assert "Mine" in ElementTree.fromstring(written[0]).itertext()
    document = json.loads(written[1])
    assert (document["num_sentences"], document["max_distance"]) == (24, 8)
    assert [len(entry["keys"]["norms"][0]) for entry in document["tables"]] == [7, 7]
    assert set(document["tables"][0]["keys"]) <= set(document["definitions"])
    # A repetition gives the same bytes, and on stdout the same document.
    out, err = run_command("report", run_dir, "title=Mine", "format=json")
    assert json.loads(out) == document and err == ""
    assert (page.read_bytes(), numbers.read_bytes()) == written and (run_dir / "record.json").read_bytes() == before


@pytest.mark.usefixtures("unrendered")
def test_report_of_an_unfinished_run_reads_its_last_checkpoint(run_dir, run_command):
    update_record(status="running", finished=None)(run_dir)
    words = ("report", run_dir, "validation_sentences=5", "max_distance=6", "average_checkpoints=1")
    err = run_command(*words, code=2).err
    assert "a run interrupted: killed" in err and "its weights are not usable: finish the run first" in err
    with acquire(run_dir):
        out, err = run_command(*words)
    assert err.startswith("rpr-cli: a run: still running, or killed") and "in its last checkpoint\n" in err
    assert out == "a run: relative, k = 3 | step 20 | not finished | synthetic data\n"
    document = json.loads((run_dir / "positions.json").read_text())
    assert (document["num_sentences"], document["max_distance"]) == (5, 6)
