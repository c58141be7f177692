"""Checked here: `rpr-cli export` and `rpr-cli verify` through rpr.cli.app.main on tiny runs that the command itself
trained: what they print, the folders and the JSON, exit code 1 of a check that fails, and the one line of each refusal.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr.analysis.verification import Check
from rpr.cli import app
from rpr.commands import verify as verify_command
from rpr.decode.exported import is_export, load_exported_model, read_export
from rpr.export import writing
from rpr.records.record import read_record, write_record

RECIPE = (
    "optim.max_steps=4",
    "optim.warmup_steps=4",
    "optim.checkpoint_every_n_steps=2",
    "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[]",
    "hardware.threads=1",
    "position.clip_distance=3",
)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, tiny_overrides: tuple[str, ...], small_data: object
) -> dict[str, Path]:
    """A run whose heads share tables and one whose heads do not."""
    found = {}
    for tables in ("shared_by_heads", "per_head"):
        runs = tmp_path_factory.mktemp(tables)
        overrides = [*tiny_overrides, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
        assert app.main(["train", *overrides, f"position.tables={tables}"]) == 0
        found[tables] = next(runs.glob("*/record.json")).parent
    return found


@pytest.fixture
def run_dir(trained: dict[str, Path], tmp_path: Path) -> Path:
    """The run of shared tables as training left it."""
    here = tmp_path / "a run"  # a blank, as people have them
    shutil.copytree(trained["shared_by_heads"], here, ignore=shutil.ignore_patterns("exports"))
    return here


def quoted(path: Path) -> str:
    return f"'{path}'"


def refused(capsys: pytest.CaptureFixture[str], name: str, run_dir: Path, *overrides: str) -> str:
    capsys.readouterr()
    assert app.main([name, f"run={quoted(run_dir)}", "hardware.threads=1", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rpr-cli: ") and err.count("\n") == 1 and "Traceback" not in err
    assert not list(run_dir.glob("exports/*")) and not list(run_dir.glob("exports/.*"))
    return err.removeprefix("rpr-cli: ").rstrip("\n")


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_export(kind: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    capsys.readouterr()
    record = (run_dir / "record.json").read_bytes()
    asked = ["export", f"run={quoted(run_dir)}", f"format={kind}", "sentences=10", "hardware.threads=1"]
    assert app.main(asked) == 0
    out, err = capsys.readouterr()
    folder = run_dir / "exports" / kind
    lines = out.splitlines()
    assert lines[0] == f"{folder}: {kind}, average of 2 (steps 2 to 4)"
    assert (
        lines[1].startswith("verified on 10 sentences of validation: ") and "greedy translations identical" in lines[1]
    )
    assert len(lines) == (2 if kind == "safetensors" else 3) and err == ""
    assert is_export(folder) and (run_dir / "record.json").read_bytes() == record
    exported = read_export(folder)
    assert (exported.kind, exported.run_name) == (kind, read_record(run_dir / "record.json").name)
    assert len(exported.vocabulary()) == exported.config.vocabulary_size == 300
    # Again, elsewhere, from the last checkpoint alone, and then in place of that.
    elsewhere = run_dir.parent / "elsewhere"
    for _ in range(2):
        assert app.main([*asked, f"output_dir={quoted(elsewhere)}", "average_checkpoints=1", "split=test"]) == 0
    assert "\nverified on 10 sentences of test: " in capsys.readouterr().out
    assert read_export(elsewhere).checkpoint == "step 4"
    assert not [path for path in run_dir.parent.iterdir() if path.name.startswith(".")]


def test_the_exported_weights_are_the_runs(run_dir: Path) -> None:
    assert (
        app.main(["export", f"run={quoted(run_dir)}", "sentences=2", "average_checkpoints=1", "hardware.threads=1"])
        == 0
    )
    last = max((run_dir / "checkpoints").glob("*.ckpt"))
    weights = torch.load(last, weights_only=True)["state_dict"]
    copied = load_exported_model(run_dir / "exports" / "safetensors").state_dict()
    assert all(torch.equal(weights[f"model.{name}"], weight) for name, weight in copied.items())


def test_what_export_refuses(
    run_dir: Path, trained: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = refused(capsys, "export", run_dir, "split=nope")
    assert told.startswith("data synthetic: no split 'nope' (available: ")
    told = refused(capsys, "export", run_dir, f"output_dir={quoted(run_dir)}")
    assert told.startswith(f"output_dir: {run_dir} exists and is not an export; only an earlier export is replaced")
    told = refused(capsys, "export", run_dir.parent)
    assert "has no record.json; give the folder of a run" in told

    def different(*arguments: Any, **more: Any) -> Any:
        proven = writing.Parity(10, 9, (), (exporting_flip(),), 0.5, 1e-3)
        return proven, None

    monkeypatch.setattr(writing, "prove", different)
    told = refused(capsys, "export", run_dir)
    assert told.startswith("export: the safetensors export does not match the model (9 of 10 greedy ")
    assert "sentence 4, piece 2: log p differs by 2.5e-01" in told and "it was removed" in told
    record = read_record(run_dir / "record.json").model_copy(
        update={"status": "failed", "error": "the loss became nan"}
    )
    write_record(run_dir / "record.json", record)
    for name in ("export", "verify"):
        assert refused(capsys, name, run_dir) == (
            "run: a run failed: the loss became nan; its weights are not usable: finish the run first"
        )
    pytest.importorskip("ctranslate2")
    told = refused(capsys, "export", trained["per_head"], "format=ctranslate2")
    assert told.startswith("position.tables: per_head cannot be exported, CTranslate2 has one table for all heads")
    assert "use format=safetensors, or train with position.tables=shared_by_heads" in told


def exporting_flip() -> Any:
    from rpr.export.parity import Flip

    return Flip(3, 1, 0.25)


def test_verify(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = trained["shared_by_heads"]
    before = sorted(run.rglob("*"))
    asked = ["verify", f"run={run}", "sentences=6", "hardware.threads=1"]
    capsys.readouterr()
    assert app.main(asked) == 0
    out, err = capsys.readouterr()
    head = "average of 2 (steps 2 to 4); sentences of validation; float64 unless noted"
    assert " ".join(out.split()).startswith(f"{run.name}: {head} check ") and err == ""
    for name in ("cached decoding", "padding", "shift", "batches", "n best", "export, safetensors"):
        assert any(line.startswith(name) and " passed " in line for line in out.splitlines()), name
    assert max(map(len, out.splitlines())) <= 100
    assert app.main([*asked, "format=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True and document["split"] == "validation"
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    assert len(outcomes) == 9 and "failed" not in outcomes.values()
    assert sorted(run.rglob("*")) == before  # it writes nothing


def test_verify_where_an_export_cannot_be(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2")
    asked = ["verify", f"run={trained['per_head']}", "sentences=2", "hardware.threads=1", "format=json"]
    assert app.main(asked) == 0
    last = json.loads(capsys.readouterr().out)["checks"][-1]
    assert (last["name"], last["outcome"]) == ("export, ctranslate2", "not applicable")
    assert "per_head cannot be exported" in last["reason"]


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_check_that_fails(
    format: str, trained: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Check("padding", "memory", "failed", 2, float("inf"), 1e-8)
    told = Check("batches, as computed", "scores", "reported", 2, 0.1, 1e-3, "1 of 2 translations differ")
    monkeypatch.setattr(verify_command, "checks", lambda *arguments: iter([failed, told]))
    capsys.readouterr()
    run = trained["shared_by_heads"]
    with pytest.raises(SystemExit) as stop:
        app.main(["verify", f"run={run}", "sentences=2", "hardware.threads=1", f"format={format}"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert err == f"rpr-cli: {run.name}: failed: padding\n"
    if format == "json":
        document = json.loads(out)
        assert document["passed"] is False and document["checks"][0]["difference"] is None
    else:
        row = out.splitlines()[-4].split()
        assert row == ["padding", "[1]", "failed", "inf", "1e-08", "2"]
        assert out.endswith("\n[1] memory\n[2] scores (1 of 2 translations differ)\n")


def test_evaluate_by_an_export(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy translations by CTranslate2 have the scores of our own, and every score says who made it."""
    shared = ("beam_size=1", "splits=[test]", "format=json")
    assert "has no exports/ctranslate2; create it with: rpr-cli export" in refused(
        capsys, "evaluate", run_dir, "backend=ctranslate2"
    )
    for backend in ("torch", "ctranslate2"):
        for setting, reason in (
            ("compute_type=int8", "requires backend=ctranslate2"),
            ("average_checkpoints=2", "an export is a single model"),
        ):
            if (backend == "torch") == ("int8" in setting):
                assert reason in refused(capsys, "evaluate", run_dir, f"backend={backend}", setting)
    assert app.main(["export", f"run={quoted(run_dir)}", "hardware.threads=1", "format=ctranslate2"]) == 0
    found = {}
    for backend in ("torch", "ctranslate2"):
        capsys.readouterr()
        command = ["evaluate", f"run={quoted(run_dir)}", "hardware.threads=1", f"backend={backend}", *shared]
        assert app.main(command) == 0
        scores = json.loads(capsys.readouterr().out)["scores"]
        assert {score["precision"] for score in scores} == {"32" if backend == "torch" else "ctranslate2 float32"}
        found[backend] = {score["metric"]: score["score"] for score in scores}
    assert found["torch"] == found["ctranslate2"] and len(found["torch"]) == 5
    names = sorted(path.parent.name for path in run_dir.glob("evaluations/*/scores.json"))
    assert [name.partition("-")[0] for name in names] == ["average3", "ctranslate2"]


def test_the_precision_of_products_is_said_with_a_score(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_float32_matmul_precision()
    command = ["evaluate", f"run={quoted(run_dir)}", "hardware.threads=1", "matmul_precision=medium", "format=json"]
    capsys.readouterr()
    assert app.main([*command, "splits=[test]", "beam_size=1"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert {score["precision"] for score in scores} == {"32, medium products"}
    assert [path.parent.name for path in run_dir.glob("evaluations/*/scores.json")] == [
        "average3-beam1-alpha0.6-32-medium-products-test"
    ]
    torch.set_float32_matmul_precision(before)
