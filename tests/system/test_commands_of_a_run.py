"""Checked here: export, verify, evaluate and `report run=...` through rpr.cli.app.main on tiny runs that the command
itself trained: what they print and leave, that a repeat gives the same bytes, and the one line of each refusal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from rpr.analysis.verification import Check
from rpr.cli import app
from rpr.commands import verify as verify_command
from rpr.decode.exported import is_export, load_exported_model, read_export
from rpr.export import writing
from rpr.export.parity import Flip
from rpr.records.record import read_record, write_record

SHARED = "position.tables=shared_by_heads"  # the ones that CTranslate2 can hold
PER_HEAD = "position.tables=per_head"
Ran = Callable[..., tuple[str, str]]


@pytest.fixture
def run_dir(small_run: Callable[..., Path], tmp_path: Path) -> Path:
    """A run as training left it, to be changed; a blank in its name, as people have them."""
    folder = tmp_path / "a run"
    ignored = shutil.ignore_patterns("exports", "positions.*", "evaluations")
    return Path(shutil.copytree(small_run(SHARED), folder, ignore=ignored))


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What a command on a run prints on stdout and stderr."""

    def run(name: str, run_dir: Path, *words: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert app.main([name, f"run='{run_dir}'", "hardware.threads=1", *words]) == code
        return capsys.readouterr()

    return run


def refused(ran: Ran, name: str, run_dir: Path, *words: str) -> str:
    before = sorted(run_dir.rglob("*"))
    out, err = ran(name, run_dir, *words, code=2)
    assert out == "" and err.startswith("rpr-cli: ") and err.count("\n") == 1
    assert sorted(run_dir.rglob("*")) == before
    return err.removeprefix("rpr-cli: ").rstrip("\n")


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_export(kind: str, run_dir: Path, ran: Ran) -> None:
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    record = (run_dir / "record.json").read_bytes()
    out, err = ran("export", run_dir, f"format={kind}", "sentences=6")
    folder, lines = run_dir / "exports" / kind, out.splitlines()
    assert lines[0] == f"{folder}: {kind}, average of 2 (steps 2 to 4)"
    assert lines[1].startswith("verified on 6 sentences of validation: ")
    assert "greedy translations identical" in lines[1]
    assert len(lines) == (2 if kind == "safetensors" else 3) and err == ""
    assert is_export(folder) and (run_dir / "record.json").read_bytes() == record
    exported = read_export(folder)
    assert (exported.kind, exported.run_name) == (kind, read_record(run_dir / "record.json").name)
    assert len(exported.vocabulary()) == exported.config.vocabulary_size == 300
    # Elsewhere, from the last checkpoint alone, and then in place of that.
    elsewhere = run_dir.parent / "elsewhere"
    words = (f"format={kind}", "sentences=2", f"output_dir='{elsewhere}'", "average_checkpoints=1", "split=test")
    for _ in range(2):
        assert "\nverified on 2 sentences of test: " in ran("export", run_dir, *words)[0]
    assert read_export(elsewhere).checkpoint == "step 4"
    assert not [path for path in run_dir.parent.iterdir() if path.name.startswith(".")]
    if kind == "safetensors":
        weights = torch.load(max((run_dir / "checkpoints").glob("*.ckpt")), weights_only=True)["state_dict"]
        copied = load_exported_model(elsewhere).state_dict()
        assert all(torch.equal(weights[f"model.{name}"], weight) for name, weight in copied.items())


def test_what_export_refuses(
    run_dir: Path, small_run: Callable[..., Path], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = refused(ran, "export", run_dir, "split=nope")
    assert told.startswith("data synthetic: no split 'nope' (available: ")
    told = refused(ran, "export", run_dir, f"output_dir='{run_dir}'")
    assert told.startswith(f"output_dir: {run_dir} exists and is not an export; only an earlier export is replaced")
    assert "has no record.json; give the folder of a run" in refused(ran, "export", run_dir.parent)
    parity = writing.Parity(10, 9, (), (Flip(3, 1, 0.25),), 0.5, 1e-3)
    monkeypatch.setattr(writing, "prove", lambda *arguments, **more: (parity, None))
    (run_dir / "exports").mkdir()
    told = refused(ran, "export", run_dir)
    assert told.startswith("export: the safetensors export does not match the model (9 of 10 greedy ")
    assert "sentence 4, piece 2: log p differs by 2.5e-01" in told and "it was removed" in told
    pytest.importorskip("ctranslate2")
    told = refused(ran, "export", small_run(PER_HEAD), "format=ctranslate2")
    assert told.startswith("position.tables: per_head cannot be exported, CTranslate2 has one table for all heads")
    assert "use format=safetensors, or train with position.tables=shared_by_heads" in told


@pytest.mark.parametrize("name", ["export", "verify", "report"])
def test_a_failed_run_is_refused(name: str, run_dir: Path, ran: Ran) -> None:
    record = read_record(run_dir / "record.json").model_copy(
        update={"status": "failed", "error": "the loss became nan"}
    )
    write_record(run_dir / "record.json", record)
    told = "run: a run failed: the loss became nan; its weights are not usable: finish the run first"
    assert refused(ran, name, run_dir) == told


def test_verify(small_run: Callable[..., Path], ran: Ran) -> None:
    run = small_run(SHARED)
    before = sorted(run.rglob("*"))
    out, err = ran("verify", run, "sentences=4")
    head = "average of 2 (steps 2 to 4); sentences of validation; float64 unless noted"
    assert " ".join(out.split()).startswith(f"{run.name}: {head} check ") and "rpr-cli: " not in err
    for name in ("cached decoding", "padding", "shift", "batches", "n best", "export, safetensors"):
        assert any(line.startswith(name) and " passed " in line for line in out.splitlines()), name
    assert max(map(len, out.splitlines())) <= 100
    assert sorted(run.rglob("*")) == before  # it writes nothing


def test_verify_as_json_where_an_export_cannot_be(small_run: Callable[..., Path], ran: Ran) -> None:
    pytest.importorskip("ctranslate2")
    document = json.loads(ran("verify", small_run(PER_HEAD), "sentences=2", "format=json")[0])
    assert document["passed"] is True and document["split"] == "validation"
    outcomes = [check["outcome"] for check in document["checks"]]
    assert len(outcomes) == 9 and "failed" not in outcomes
    last = document["checks"][-1]
    assert (last["name"], last["outcome"]) == ("export, ctranslate2", "not applicable")
    assert "per_head cannot be exported" in last["reason"]


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_check_that_fails(
    format: str, small_run: Callable[..., Path], ran: Ran, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Check("padding", "memory", "failed", 2, float("inf"), 1e-8)
    told = Check("batches, as computed", "scores", "reported", 2, 0.1, 1e-3, "1 of 2 translations differ")
    monkeypatch.setattr(verify_command, "checks", lambda *arguments: iter([failed, told]))
    run = small_run(SHARED)
    with pytest.raises(SystemExit) as stop:
        ran("verify", run, "sentences=2", f"format={format}")
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert err == f"rpr-cli: {run.name}: failed: padding\n"
    if format == "json":
        document = json.loads(out)
        assert document["passed"] is False and document["checks"][0]["difference"] is None
    else:
        assert out.splitlines()[-4].split() == ["padding", "[1]", "failed", "inf", "1e-08", "2"]
        assert out.endswith("\n[1] memory\n[2] scores (1 of 2 translations differ)\n")


def test_evaluate_by_an_export(run_dir: Path, ran: Ran) -> None:
    """Greedy translations by CTranslate2 have the scores of our own, and every score says who made it."""
    pytest.importorskip("ctranslate2")
    told = refused(ran, "evaluate", run_dir, "backend=ctranslate2")
    assert "has no exports/ctranslate2; create it with: rpr-cli export" in told
    ran("export", run_dir, "format=ctranslate2", "sentences=2")
    found = {}
    for backend in ("torch", "ctranslate2"):
        words = ("splits=[test]", "beam_size=1", "format=json", f"backend={backend}")
        scores = json.loads(ran("evaluate", run_dir, *words)[0])["scores"]
        assert {score["precision"] for score in scores} == {"32" if backend == "torch" else "ctranslate2 float32"}
        found[backend] = {score["metric"]: score["score"] for score in scores}
    assert found["torch"] == found["ctranslate2"] and len(found["torch"]) == 5
    words = ("splits=[test]", "beam_size=1", "format=json", "matmul_precision=medium")
    scores = json.loads(ran("evaluate", run_dir, *words)[0])["scores"]
    assert {score["precision"] for score in scores} == {"32, medium products"}
    names = sorted(path.parent.name for path in run_dir.glob("evaluations/*/scores.json"))
    assert names[0] == "average3-beam1-alpha0.6-32-medium-products-test"
    assert [name.partition("-")[0] for name in names] == ["average3", "average3", "ctranslate2"]


def test_report_of_a_relative_run(run_dir: Path, ran: Ran) -> None:
    before = (run_dir / "record.json").read_bytes()
    out, err = ran("report", run_dir)
    assert out.startswith(f"{run_dir.name}: relative, k = 3 | average of 2 (steps 2 to 4) | synthetic data\n")
    assert "  encoder layer 1    norm of w^K at -3: " in out and "  decoder layer 1    heads attend most at " in out
    assert err == f"written: {run_dir / 'positions.svg'}\nwritten: {run_dir / 'positions.json'}\n"
    page, numbers = (run_dir / "positions.svg").read_bytes(), (run_dir / "positions.json").read_bytes()
    ElementTree.fromstring(page)
    for words in (b"encoder layer 1", b"decoder layer 1", b"24 validation", b"synthetic data"):
        assert words in page
    document = json.loads(numbers)
    assert (document["num_sentences"], document["max_distance"]) == (24, 8)
    assert [len(entry["keys"]["norms"][0]) for entry in document["tables"]] == [7, 7]
    # A repeat: the same bytes; on stdout the same document, and nothing else.
    out, err = ran("report", run_dir, "format=json")
    assert json.loads(out) == document and err == ""
    assert ((run_dir / "positions.svg").read_bytes(), (run_dir / "positions.json").read_bytes()) == (page, numbers)
    assert (run_dir / "record.json").read_bytes() == before
    # A folder that cannot be written; works for root, too.
    (run_dir / "positions.svg").unlink()
    (run_dir / "positions.svg").mkdir()
    told = refused(ran, "report", run_dir, "validation_sentences=2")
    assert f"run: {run_dir} cannot be written (" in told and "make it writable, or copy the run elsewhere" in told


def test_report_of_a_run_without_relative_tables_that_is_not_finished(
    small_run: Callable[..., Path], tmp_path: Path, ran: Ran
) -> None:
    run = Path(shutil.copytree(small_run("position=learned"), tmp_path / "learned"))
    record = read_record(run / "record.json").model_copy(update={"status": "running", "finished": None})
    write_record(run / "record.json", record)
    out, _ = ran("report", run, "validation_sentences=5", "max_distance=6", "average_checkpoints=1", "title=Mine")
    assert out.startswith("learned: absolute (learned) | step 4 | not finished | synthetic data\n")
    page = (run / "positions.svg").read_text()
    assert page.count("This run has no relative tables") == 2 and "learned absolute tables" in page and ">Mine<" in page
    document = json.loads((run / "positions.json").read_text())
    assert (document["num_sentences"], document["max_distance"], document["tables"]) == (5, 6, [])
    assert [len(entry["norms"]) for entry in document["absolute"]] == [1024, 1024]
