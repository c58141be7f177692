"""`rpr-cli rerun` from argv to exit code. One tiny run is trained by the command line and repeated by it: the same
bits, a folder and a record of its own, the old ones untouched. What is not as recorded is told, or refused, before
training, which is then replaced by a list of what was started.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.commands import rerun, scoring, train
from rpr.config.train import TrainConfig
from rpr.records import provenance
from rpr.records.metrics import read_metrics
from rpr.records.record import Git, RerunOf, find_records, read_record
from rpr.runs import runtime

RECIPE = (
    "optim.max_steps=12",
    "optim.warmup_steps=6",
    "optim.checkpoint_every_n_steps=4",
    "optim.validate_every_n_steps=6",
    "evaluation.beam_size=1",
    "evaluation.max_extra_length=2",
    "evaluation.bootstrap_samples=10",
    "hardware.threads=1",
    "hardware.matmul_precision=highest",
    "position.clip_distance=2",
    "sweep=mine",
)
HERE = Git(commit="0123456789abcdef", dirty=False)
NAME = re.compile(r"synthetic-tiny-relative-k2-s1-[0-9a-f]{8}")


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, tiny_overrides: tuple[str, ...], small_data: object
) -> Iterator[Path]:
    """The folder of a finished run. Its commit, and that of all reruns here, is HERE."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "git_state", lambda: HERE)
        overrides = [*tiny_overrides, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
        assert app.main(["train", *overrides]) == 0
        [folder] = [path for path in runs.iterdir() if NAME.fullmatch(path.name)]
        yield folder


@pytest.fixture
def again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """`rpr-cli rerun` into tmp_path/runs: what was printed on stdout and stderr."""

    def run(given: Path, *settings: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        try:
            ended = app.main(["rerun", str(given), f"runs_dir={tmp_path / 'runs'}", *settings])
        except SystemExit as stop:
            ended = stop.code
        out, err = capsys.readouterr()
        assert ended == code, err
        return out, err

    return run


@pytest.fixture
def started(original: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainConfig, str, Path]]:
    """Training replaced by a list of what was started; the original is what came out."""
    calls: list[tuple[TrainConfig, str, Path]] = []

    def run(config: TrainConfig, *, command: str, run_dir: Path, rerun_of: RerunOf) -> Path:
        calls.append((config, command, run_dir))
        return original

    monkeypatch.setattr(train, "run", run)
    return calls


@pytest.fixture
def changed(original: Path, tmp_path: Path) -> Callable[..., Path]:
    """The original's record with other values at dotted keys, as a file of its own."""

    def write(edits: dict[str, Any], name: str = "changed.json") -> Path:
        document = json.loads((original / "record.json").read_text("utf-8"))
        for key, value in edits.items():
            *path, last = key.split(".")
            place = document
            for part in path:
                place = place[int(part) if part.isdigit() else part]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(json.dumps(document), "utf-8")
        return tmp_path / name

    return write


def deviations_in(err: str) -> list[str]:
    return [line.removeprefix("rpr-cli: not as recorded: ") for line in err.splitlines() if "not as recorded: " in line]


def test_a_rerun_is_the_same_to_the_last_bit(original: Path, again: Callable[..., Any], tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    out, err = again(original, "strict=true")
    assert deviations_in(err) == []
    logged = [
        row for row in read_metrics(original / "metrics.jsonl") if "train/loss" in row or "validation/loss" in row
    ]
    same = f"Bit-identical: 10 scores, training and validation loss, and {len(logged)} logged losses."
    assert same in out and re.search(r"steps/s: \d+\.\d+ and \d+\.\d+, \d+\.\d+ times the record's", out)
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name == f"{original.name}-rerun1"
    first, second = read_record(original / "record.json"), read_record(folder / "record.json")
    assert first.started <= second.started and first.sweeps == ("mine",)
    assert (second.sweeps, second.setting("sweep"), second.status) == ((), None, "finished")
    assert second.rerun_of == RerunOf(run_id=first.run_id, started=first.started) and first.rerun_of is None
    assert second.command == f"rpr-cli rerun {original} runs_dir={tmp_path / 'runs'} strict=true"
    assert [(score.split, score.metric, score.score) for score in second.scores] == [
        (score.split, score.metric, score.score) for score in first.scores
    ]
    for split in ("test", "long"):
        name = f"{split}.hypotheses.txt"
        assert (folder / name).read_bytes() == (original / name).read_bytes()
    assert {path: path.read_bytes() for path in before} == before
    assert [record.sweeps for _, record in find_records(tmp_path / "runs", "mine").records] == []


def test_a_rerun_that_was_cut_goes_on(
    original: Path, again: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after its training: the second command must score the first one's checkpoints, and train nothing."""

    def cut(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "score_run", cut)
        again(original, code=130)
    folder = tmp_path / "runs" / f"{original.name}-rerun1"
    metrics = (folder / "metrics.jsonl").read_bytes()
    checkpoints = {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").iterdir()}
    interrupted, first = read_record(folder / "record.json"), read_record(original / "record.json")
    assert (interrupted.status, interrupted.error) == (
        "interrupted",
        "Ctrl-C; the same command resumes from the last checkpoint",
    )
    assert interrupted.rerun_of == RerunOf(run_id=first.run_id, started=first.started)
    out, err = again(original)
    assert f"rpr-cli: {folder.name}: resuming an unfinished rerun of this record\n" in err
    assert "Bit-identical: 10 scores" in out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").iterdir()} == checkpoints
    assert (folder / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    "edits, lines",
    [
        ({}, []),
        ({"versions.torch": "0.4.1"}, [r"torch: 0\.4\.1 in the record, [\d.]+\S* here"]),
        ({"versions.python": "2.7.18"}, [r"python: 2\.7\.18 in the record, [\d.]+ here"]),
        ({"versions.fairseq": "1.0"}, [r"fairseq: 1\.0 in the record, not installed here"]),
        ({"versions.numpy": ...}, [r"numpy: not recorded, [\d.]+ here"]),
        ({"git.commit": "fedcba9876543210"}, [r"commit: fedcba987654 in the record, 0123456789ab here"]),
        ({"git.commit": None}, [r"commit: none \(no checkout\) in the record, 0123456789ab here"]),
        ({"git.dirty": True}, [r"commit: the recorded checkout had uncommitted changes"]),
        ({"device": "1 thread of an abacus"}, [r"device: an abacus in the record, .+ here"]),
        ({"device": "2 x H100"}, [r"device: 2 x H100 in the record, 1 thread of .+ here"]),
        (
            {"data.key": "feed" * 16},
            [r"data: the corpus or its preparation differs.* \(key feedfeedfeed in the record, \w{12} here\)"],
        ),
        (
            {"data.key": "beef", "versions.torch": "1.0"},
            [r"torch: 1\.0 in .*", r"data: the corpus or its preparation differs.*"],
        ),
    ],
)
def test_what_is_not_as_recorded_is_told_or_refused(
    original: Path,
    again: Callable[..., Any],
    changed: Callable[..., Path],
    started: list[Any],
    edits: dict[str, Any],
    lines: list[str],
) -> None:
    given = changed(edits)
    _, err = again(given)
    found = deviations_in(err)
    assert len(found) == len(lines) and all(map(re.fullmatch, lines, found)), found
    assert len(started) == 1
    _, err = again(given, "strict=true", code=2 if lines else 0)
    if lines:
        assert err.startswith(f"rpr-cli: {given}: strict=true, and not as recorded: ") and err.count("\n") == 1
        assert all(line in err for line in found) and len(started) == 1


def test_a_dirty_checkout_and_threads_that_are_not_set_here(
    again: Callable[..., Any], changed: Callable[..., Path], started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "git_state", lambda: Git(commit=HERE.commit, dirty=True))
    monkeypatch.setattr(runtime, "device_name", lambda hardware: "2 threads of a CPU")
    given = changed({"device": "8 threads of an abacus", "config.hardware.threads": None})
    _, err = again(given)
    assert deviations_in(err) == [
        "commit: this checkout has uncommitted changes",
        "threads: 8 in the record, 2 here; set OMP_NUM_THREADS=8",
        "device: an abacus in the record, a CPU here",
    ]
    monkeypatch.setattr(provenance, "git_state", lambda: Git(commit=None, dirty=None))
    assert "commit: 0123456789ab in the record, none (no checkout) here" in again(given)[1]


def test_threads_of_several_processes_are_those_they_will_have(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Any
) -> None:
    hardware = tiny_config("hardware=2xcpu", "hardware.threads=null").hardware
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert rerun._device(hardware).startswith("2 processes, each 1 thread of ")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rerun._device(hardware).startswith("2 processes, each 3 threads of ")


def test_other_results_are_shown_and_end_a_strict_rerun_with_1(
    original: Path, again: Callable[..., Any], changed: Callable[..., Path], started: list[Any]
) -> None:
    given = changed({"scores.0.score": 99.0, "training.validation_loss": 1.0})
    shutil.copy(original / "metrics.jsonl", given.with_name("changed.metrics.jsonl"))
    out, _ = again(given)
    assert "Bit-identical" not in out and out.startswith("\nDifferent:\n\n")
    assert re.search(r"\ntest/sacrebleu +99\.00 \S+ \S+ +\d+\.\d\d \S+ \S+ +-\d+\.\d\d ", out)
    assert re.search(r"\nvalidation_loss +1\.000000 +\d\.\d{6} +\+\d\.\d{6} ", out)
    assert re.search(r"\ntrain/loss: the same at \d+ logged steps, up to step 12\n", out)
    assert "scores  " in out and "record" in out and "rerun - record" in out
    _, err = again(given, "strict=true", code=1)
    assert err == f"rpr-cli: {original.name}: its results are not those of {given}\n"


def test_what_is_started_is_the_record_with_these_folders(
    original: Path, again: Callable[..., Any], changed: Callable[..., Path], started: list[Any], tmp_path: Path
) -> None:
    given = changed({"config.logger.mode": "online"})
    again(given, f"cache_dir={tmp_path / 'elsewhere'}")
    [(config, command, run_dir)] = started
    record = read_record(original / "record.json")
    runs, elsewhere = str(tmp_path / "runs"), str(tmp_path / "elsewhere")
    assert (config.runs_dir, config.data.cache_dir, config.sweep) == (runs, elsewhere, None)
    assert config.logger.mode == "none"  # else it would write into the W&B run that it repeats
    assert config.run_id == record.run_id
    assert command == f"rpr-cli rerun {given} cache_dir={elsewhere} runs_dir={runs}"
    assert run_dir == tmp_path / "runs" / f"{original.name}-rerun1"


def unfinished(changed: Callable[..., Path], folder: str, **edits: Any) -> Path:
    edits = {"status": "interrupted", "error": "SIGTERM", "data": None, "training": None, "scores": []} | edits
    return changed(edits, f"runs/{folder}/record.json").parent


def test_which_folder_a_rerun_takes(
    original: Path, again: Callable[..., Any], changed: Callable[..., Path], started: list[Any], tmp_path: Path
) -> None:
    def taken(given: Path, *settings: str) -> str:
        again(given, *settings)
        return started[-1][2].name.removeprefix(original.name)

    changed({}, f"runs/{original.name}-rerun1/record.json")
    (tmp_path / "runs" / f"{original.name}-rerun2").mkdir()  # begun, and ended before there was a record
    assert taken(original) == "-rerun2"
    unfinished(changed, f"{original.name}-rerun2", run_id="0a0a0a0a")  # of another corpus path, say
    assert taken(original) == "-rerun3"
    cut = unfinished(changed, f"{original.name}-rerun3")
    assert taken(original) == "-rerun3"
    assert taken(original, "strict=true") == "-rerun3"
    assert taken(cut) == "-rerun4"  # not into itself
    unfinished(changed, f"{original.name}-rerun3", versions={"python": "3.9"})
    assert taken(original) == "-rerun3"
    assert taken(original, "strict=true") == "-rerun4"  # a part of it was made with other versions


def test_a_run_that_did_not_finish_can_be_repeated(
    again: Callable[..., Any], changed: Callable[..., Path], started: list[Any]
) -> None:
    given = unfinished(changed, "cut") / "record.json"
    out, err = again(given)
    assert f"rpr-cli: {given}: interrupted: SIGTERM; it has no results to compare with\n" in err
    assert (out, len(started)) == ("", 1)
    _, err = again(given, "strict=true", code=2)
    assert "interrupted: SIGTERM; strict=true needs the record of a finished run" in err and len(started) == 1
    given = unfinished(changed, "cut", status="running", error=None) / "record.json"
    assert "still running, or killed (started " in again(given)[1]


def from_files(folder: Path | str) -> dict[str, Any]:
    return {"config.data.synthetic": None, "config.data.path": str(folder)}


def test_a_corpus_that_is_elsewhere(
    again: Callable[..., Any], changed: Callable[..., Path], started: list[Any], tmp_path: Path, cache_dir: Path
) -> None:
    given = changed(from_files(tmp_path / "gone"))
    _, err = again(given, code=2)
    assert err.startswith(f"rpr-cli: data.path: {tmp_path / 'gone'} does not exist") and err.count("\n") == 1
    assert err.endswith("; if the corpus has moved, set data_path=...\n") and started == []
    (tmp_path / "here").mkdir()
    _, err = again(given, f"data_path={tmp_path / 'here'}", code=2)
    assert f"no usable files in {tmp_path / 'here'}" in err and "data_path=..." in err and started == []
    for language in ("en", "de"):
        (tmp_path / "here" / f"train.{language}").write_text("a\nb\n")
    _, err = again(given, f"data_path={tmp_path / 'here'}")
    [line] = deviations_in(err)
    assert line.startswith("data: the corpus or its preparation differs")
    [(config, command, _)] = started
    assert config.data.path == str(tmp_path / "here") and f" data_path={tmp_path / 'here'} " in command


@pytest.mark.parametrize(
    "edits, settings, line",
    [
        (
            {"config.optim.max_steps": 0},
            [],
            "{given}: this version of rpr cannot run its configuration (optim.max_steps: invalid value 0",
        ),
        (
            {"config.hardware.nodes": 1},
            [],
            "{given}: this version of rpr cannot run its configuration (hardware.nodes: no such",
        ),
        ({"schema": 9}, [], "{given}: schema 9 is newer than 2"),
        (
            {"config.hardware.accelerator": "gpu", "config.hardware.devices": 64},
            [],
            "hardware=cpu: 64 GPUs requested",
        ),
    ],
)
def test_refusals_are_one_line(
    again: Callable[..., Any],
    changed: Callable[..., Path],
    started: list[Any],
    edits: dict[str, Any],
    settings: list[str],
    line: str,
) -> None:
    given = changed(
        {"config.optim.microbatches_per_step": 64, **edits} if "config.hardware.devices" in edits else edits
    )
    _, err = again(given, *settings, code=2)
    assert err.startswith("rpr-cli: " + line.format(given=given)) and err.count("\n") == 1 and started == []


def test_no_record_and_torchrun_are_refused(
    original: Path, again: Callable[..., Any], started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nowhere: no such record; every run writes a record.json" in again(tmp_path / "nowhere", code=2)[1]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert "rerun: cannot run under torchrun; start it once" in again(original, code=2)[1]
    assert started == []
