"""export, verify, evaluate and `report run=...` on tiny trained runs: output, files and error messages."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rpr.checks.verification import Check
from rpr.commands import verify as verify_command
from rpr.decode.exported import is_export, load_exported_model
from rpr.records.record import read_record, write_record
from rpr.runs.locks import acquire
from tests.system.trainings import last_weights

SHARED = "position.tables=shared_by_heads"  # CTranslate2 supports no others
LEARNED = ("position=learned", "optim.average_checkpoints=2")
BOTH = "average of 2 (steps 2 to 4, 50% of the training)"  # fewer than asked


@pytest.fixture
def run_dir(small_run, tmp_path):
    """A copy of a trained run, with a space in its name."""
    return Path(shutil.copytree(small_run(SHARED), tmp_path / "a run"))


@pytest.fixture
def run_command(cli):
    """Runs a command on a run; its stdout and stderr."""
    return lambda name, run_dir, *words, code=0: cli(name, f"run='{run_dir}'", "hardware.threads=1", *words, code=code)


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_export_is_verified_and_replaceable(kind, run_dir, run_command, assert_same):
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    record = (run_dir / "record.json").read_bytes()
    out, err = run_command("export", run_dir, f"format={kind}", "sentences=6")
    folder, lines = run_dir / "exports" / kind, out.splitlines()
    assert lines[0] == f"{folder}: {kind}, {BOTH}"
    assert lines[1].startswith("verified on 6 sentences of validation: ")
    assert "greedy translations are identical to the model's, " in lines[1]
    assert len(lines) == 2 and err == ""
    assert is_export(folder) and (run_dir / "record.json").read_bytes() == record
    card = json.loads((folder / "card.json").read_text())
    assert (card["kind"], card["record"]["name"]) == (kind, read_record(run_dir / "record.json").name)
    # To another folder, from the last checkpoint only; the second export replaces the first.
    elsewhere = run_dir.parent / "elsewhere"
    words = (f"format={kind}", "sentences=2", f"output_dir='{elsewhere}'", "average_checkpoints=1", "split=test")
    for _ in range(2):
        assert "\nverified on 2 sentences of test: " in run_command("export", run_dir, *words)[0]
    assert json.loads((elsewhere / "card.json").read_text())["checkpoint"] == "step 4"
    assert not [path for path in run_dir.parent.iterdir() if path.name.startswith(".")]
    if kind == "safetensors":
        assert_same(dict(load_exported_model(elsewhere).state_dict()), last_weights(run_dir))


def test_verify_passes_and_writes_nothing_or_reports_a_failed_check(small_run, run_command, monkeypatch):
    run = small_run(SHARED)
    before = sorted(run.rglob("*"))
    out, err = run_command("verify", run, "sentences=2")
    head = f"{BOTH}; sentences of validation; float64 unless noted"
    assert " ".join(out.split()).startswith(f"{run.name}: {head} check ") and "rpr-cli: " not in err
    for name in ("cached decoding", "padding", "shift", "batches", "n best", "exact matches", "export, safetensors"):
        assert any(line.startswith(name) and " passed " in line for line in out.splitlines()), name
    assert max(map(len, out.splitlines())) <= 100
    assert sorted(run.rglob("*")) == before
    failed = Check("padding", "memory", "failed", 2, float("inf"), 1e-8)
    shifted = Check("shift", "scores", "not applicable", 2, 0.1, 1e-3, "a shift is meant to change it")
    monkeypatch.setattr(verify_command, "checks", lambda *arguments: iter([failed, shifted]))
    out, err = run_command("verify", run, "sentences=2", code=1)
    assert err == f"rpr-cli: {run.name}: failed: padding\n"
    assert out.splitlines()[-4].split() == ["padding", "[1]", "failed", "inf", "1e-08", "2"]
    assert out.endswith("\n[1] memory\n[2] scores (a shift is meant to change it)\n")
    document = json.loads(run_command("verify", run, "sentences=2", "format=json", code=1).out)
    assert document["passed"] is False and document["checks"][0]["difference"] is None


def test_evaluations_of_other_weights_splits_or_buckets_are_kept(small_run, tmp_path, run_command):
    run = Path(shutil.copytree(small_run(*LEARNED), tmp_path / "run"))
    others = (["average_checkpoints=1"], ["length_buckets=[5,9]", "bootstrap_samples=100"])
    for words in (["splits=[test]"], ["splits=[validation]"], *(["splits=[test]", *words] for words in others)):
        run_command("evaluate", run, "beam_size=1", *words)
    scores = {
        path.parent.name: json.loads(path.read_text())["scores"] for path in run.glob("evaluations/*/scores.json")
    }
    both = "average of 2 (steps 2 to 4)"
    assert {name: {(score["split"], score["checkpoint"]) for score in found} for name, found in scores.items()} == {
        "beam_size-1-splits-test": {("test", both)},
        "beam_size-1-splits-validation": {("validation", both)},
        "average_checkpoints-1-beam_size-1-splits-test": {("test", "step 4")},
        "beam_size-1-splits-test-bootstrap_samples-100-length_buckets-5-9": {("test", both)},
    }


def test_report_of_relative_run_is_repeatable(run_dir, run_command, refused, monkeypatch):
    before = (run_dir / "record.json").read_bytes()
    out, err = run_command("report", run_dir)
    assert out == f"{run_dir.name}: relative, k = 3 | {BOTH} | synthetic data\n"
    assert err == f"written: {run_dir / 'positions.svg'}\nwritten: {run_dir / 'positions.json'}\n"
    page, numbers = (run_dir / "positions.svg").read_bytes(), (run_dir / "positions.json").read_bytes()
    ElementTree.fromstring(page)
    for words in (b"encoder layer 1", b"decoder layer 1", b"24 validation", b"synthetic data"):
        assert words in page
    document = json.loads(numbers)
    assert (document["num_sentences"], document["max_distance"]) == (24, 8)
    assert [len(entry["keys"]["norms"][0]) for entry in document["tables"]] == [7, 7]
    assert set(document["tables"][0]["keys"]) <= set(document["definitions"])
    assert max(len(repr(norm)) for norm in document["tables"][0]["keys"]["norms"][0]) <= 8  # six digits
    # A repetition gives the same bytes, and on stdout the same document.
    out, err = run_command("report", run_dir, "format=json")
    assert json.loads(out) == document and err == ""
    assert ((run_dir / "positions.svg").read_bytes(), (run_dir / "positions.json").read_bytes()) == (page, numbers)
    assert (run_dir / "record.json").read_bytes() == before
    # A file that cannot be written, not even by root.
    (run_dir / "positions.svg").unlink()
    (run_dir / "positions.svg").mkdir()
    monkeypatch.chdir(run_dir)
    message = refused("report", "run=.", "validation_sentences=2", "hardware.threads=1")
    assert message.startswith(f"{run_dir / 'positions.svg'}: cannot be read or written (")


def test_report_of_unfinished_run_with_learned_positions(small_run, tmp_path, run_command):
    run = Path(shutil.copytree(small_run(*LEARNED), tmp_path / "learned"))
    record = read_record(run / "record.json").model_copy(update={"status": "running", "finished": None})
    write_record(run / "record.json", record)
    words = ("report", run, "validation_sentences=5", "max_distance=6", "average_checkpoints=1", "title=Mine")
    err = run_command(*words, code=2)[1]
    assert "learned interrupted: killed" in err and "its weights are not usable: finish the run first" in err
    with acquire(run):
        out, err = run_command(*words)
    assert err.startswith("rpr-cli: learned: still running, or killed") and "in its last checkpoint\n" in err
    assert out.startswith("learned: absolute (learned) | step 4 | not finished | synthetic data\n")
    page = (run / "positions.svg").read_text()
    assert "norm of each relative" not in page and "norm of each learned" in page and ">Mine" in page
    document = json.loads((run / "positions.json").read_text())
    assert (document["num_sentences"], document["max_distance"], document["tables"]) == (5, 6, [])
    assert [len(entry["absolute"]) for entry in document["absolute"]] == [1024, 1024]
