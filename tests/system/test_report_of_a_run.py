"""Checked here: `rpr-cli report run=...` through rpr.cli.app.main on tiny runs that the command itself trained: the two
files it leaves, what it prints, that a repeat gives the same bytes, and the one line of each refusal.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rpr.cli import app
from rpr.records.record import Record, read_record, write_record

RECIPE = (
    "optim.max_steps=4",
    "optim.warmup_steps=4",
    "optim.checkpoint_every_n_steps=2",
    "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[]",
    "hardware.threads=1",
    "model.relative_defaults.clip_distance=3",  # of all positions that have one
)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, tiny_overrides: tuple[str, ...], small_data: object
) -> dict[str, Path]:
    """A run with relative tables and one with learned absolute positions, by the name of their positions."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = [*tiny_overrides, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
    for position in ("relative", "learned"):
        assert app.main(["train", f"position={position}", *overrides]) == 0
    return {read_record(path).config["position"]["name"]: path.parent for path in runs.glob("*/record.json")}


@pytest.fixture
def run_dir(trained: dict[str, Path], tmp_path: Path) -> Path:
    """The relative run as training left it, to be damaged."""
    here = tmp_path / trained["relative"].name
    return Path(shutil.copytree(trained["relative"], here, ignore=shutil.ignore_patterns("positions.*")))


def changed(run_dir: Path, **changes: object) -> Record:
    record = read_record(run_dir / "record.json").model_copy(update=changes)
    write_record(run_dir / "record.json", record)
    return record


def report(run_dir: Path, *overrides: str) -> int:
    return app.main(["report", f"run={run_dir}", "hardware.threads=1", *overrides])


def refused(capsys: pytest.CaptureFixture[str], run_dir: Path, *overrides: str) -> str:
    capsys.readouterr()
    assert report(run_dir, *overrides) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rpr-cli: ") and err.count("\n") == 1 and "Traceback" not in err
    assert not list(run_dir.glob("positions*")) and not list(run_dir.glob(".positions*"))
    return err.removeprefix("rpr-cli: ").rstrip("\n")


def test_a_relative_run(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = trained["relative"]
    before = (run / "record.json").read_bytes()
    assert report(run) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{run.name}: relative, k = 3 | average of 2 (steps 2 to 4) | synthetic data\n")
    assert "  encoder layer 1    norm of w^K at -3: " in out and "  decoder layer 1    heads attend most at " in out
    assert err == f"written: {run / 'positions.svg'}\nwritten: {run / 'positions.json'}\n"
    page, numbers = (run / "positions.svg").read_bytes(), (run / "positions.json").read_bytes()
    ElementTree.fromstring(page)
    for words in (b"encoder layer 1", b"decoder layer 1", b"24 validation", b"synthetic data"):
        assert words in page
    document = json.loads(numbers)
    assert (document["num_sentences"], document["max_distance"]) == (24, 8)
    assert [len(entry["keys"]["norms"][0]) for entry in document["tables"]] == [7, 7]
    # A repeat: the same bytes; on stdout the same document, and nothing else.
    assert report(run, "format=json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == document and err == ""
    assert ((run / "positions.svg").read_bytes(), (run / "positions.json").read_bytes()) == (page, numbers)
    assert (run / "record.json").read_bytes() == before


def test_a_run_without_relative_tables(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = trained["learned"]
    assert report(run, "validation_sentences=5", "max_distance=6", "average_checkpoints=1", "title=Mine") == 0
    assert capsys.readouterr().out.startswith(f"{run.name}: absolute (learned) | step 4 | synthetic data\n")
    page = (run / "positions.svg").read_text()
    assert page.count("This run has no relative tables") == 2 and "learned absolute tables" in page and ">Mine<" in page
    document = json.loads((run / "positions.json").read_text())
    assert (document["num_sentences"], document["max_distance"], document["tables"]) == (5, 6, [])
    assert [len(entry["norms"]) for entry in document["absolute"]] == [1024, 1024]


def test_a_run_that_is_not_finished_is_shown_as_such(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(run_dir, status="running", finished=None)
    assert report(run_dir, "validation_sentences=2") == 0
    assert "| not finished | synthetic data" in capsys.readouterr().out


def test_a_failed_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(run_dir, status="failed", error="the validation loss became nan at step 4")
    assert refused(capsys, run_dir) == (
        f"run: {run_dir.name} failed: the validation loss became nan at step 4; "
        "its weights are not usable: finish the run first"
    )


def test_a_folder_that_cannot_be_written(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    (run_dir / "positions.svg").mkdir()  # where the picture should go; works for root, too
    assert report(run_dir, "validation_sentences=2") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"run: {run_dir} cannot be written (" in err and "make it writable, or copy the run elsewhere" in err
