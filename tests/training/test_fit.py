"""Resumed trainings against an uninterrupted one, bit for bit; when checkpoints are written and which are kept; damaged
checkpoints; time limits; unsuitable folders and small disks (full ones: tests/system/test_faults.py).
"""

import contextlib
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rpr.errors import DataError, InterruptedRun, RunError
from rpr.records.files import read_metrics
from rpr.runs.loading import checkpoints, load_checkpoint
from rpr.signals import exit_on_sigterm
from tests.lazy import callbacks, fit

RECIPE = (
    "model.dropout=0.1", "position.clip_distance=2", "optim.max_steps=12", "optim.warmup_steps=4",
    "optim.microbatches_per_step=2", "optim.checkpoint_every_n_steps=4", "optim.validate_every_n_steps=6",
)  # fmt: skip


def steps(run_dir: Path) -> list[int]:
    return [step for step, _ in checkpoints(run_dir / "checkpoints")]


def final(run_dir: Path) -> dict[str, Any]:
    return load_checkpoint(checkpoints(run_dir / "checkpoints")[-1][1])


def assert_same_result(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    assert steps(one)[-1] == steps(other)[-1]
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert_same(final(one)[part], final(other)[part])


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and speeds."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and "_per_second" not in k} for row in rows]


@pytest.fixture
def config(tiny_config):
    return tiny_config(*RECIPE)


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("full")


@pytest.fixture
def full(config, small_data, full_folder):
    """An uninterrupted run, trained once for this module."""
    if not (full_folder / "checkpoints").exists():
        number, _, training = fit.fit(config, small_data, full_folder, validation_bleu=lambda model: 12.5)
        assert number == 12 and training.measured_steps == 2 and training.steps_per_second is not None
        assert training.train_loss is not None and training.validation_loss is not None
    return full_folder


def copy_run(full: Path, run_dir: Path, *steps: int) -> Path:
    """A copy of the run that has only the checkpoints of these steps."""
    (run_dir / "checkpoints").mkdir(parents=True)
    for step in steps:
        shutil.copy(full / "checkpoints" / f"step{step:08d}.ckpt", run_dir / "checkpoints")
    return run_dir


def test_training_writes_checkpoints_and_metrics(full):
    assert steps(full) == [4, 8, 12]
    assert sorted(path.name for path in full.iterdir()) == ["checkpoints", "metrics.jsonl"]
    rows = rows_of(full)
    assert [row["step"] for row in rows] == [6, 12, 12]
    validations = [row for row in rows if "validation/loss" in row]
    assert [row["step"] for row in validations] == [6, 12] and validations[0]["validation/bleu"] == 12.5
    (last,) = [row for row in rows if "train/loss" in row]
    assert last["step"] == 12 and last["learning_rate"] > 0


def test_resumed_run_equals_uninterrupted_run(config, small_data, full, tmp_path, assert_same):
    """Later and truncated lines of metrics are dropped, and a partial checkpoint is removed."""
    run_dir = copy_run(full, tmp_path / "resumed", 4, 8)
    earlier = re.sub(r'"time": [0-9.]+', '"time": 1000.0', (full / "metrics.jsonl").read_text())
    (run_dir / "metrics.jsonl").write_text(earlier + '{"step": 12, "val')
    (run_dir / "checkpoints" / ".step00000009.ckpt.1234.tmp").write_bytes(b"half")
    torch.manual_seed(999)
    fit.fit(config, small_data, run_dir, validation_bleu=lambda model: 12.5)
    assert_same_result(full, run_dir, assert_same)
    assert steps(run_dir) == [4, 8, 12] and len([*(run_dir / "checkpoints").iterdir()]) == 3
    assert rows_of(run_dir) == rows_of(full)
    assert read_metrics(run_dir / "metrics.jsonl")[-1]["time"] > 1000  # seconds of training, of all its parts


def test_run_resumed_on_another_device_multiplies_as_it_began(config, small_data, full, tmp_path, assert_same, capsys):
    """hardware.matmul_precision=auto is "highest" on some CPUs, as for `full`, and "medium" on others."""
    run_dir = copy_run(full, tmp_path / "resumed", 4)
    torch.set_float32_matmul_precision("medium")
    training = fit.fit(config, small_data, run_dir)[2]
    assert torch.get_float32_matmul_precision() == training.matmul_precision == "highest"
    assert_same_result(full, run_dir, assert_same)
    assert "the run began with highest and keeps it; here auto would be medium" in capsys.readouterr().err


def test_damaged_checkpoint_is_named(config, small_data, full, tmp_path):
    """Training must not start again from nothing."""
    run_dir = copy_run(full, tmp_path / "resumed", 4, 8)
    shutil.copy(full / "metrics.jsonl", run_dir)
    path = run_dir / "checkpoints" / "step00000008.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"step00000008\.ckpt: cannot be read as a checkpoint \("):
        fit.fit(config, small_data, run_dir)
    assert steps(run_dir) == [4, 8] and rows_of(run_dir) == rows_of(full)


@pytest.mark.parametrize("starts", [[(8, "a"), (8, "a")], [(8, "a"), (0, "a")], [(8, "a"), (8, "b")]])
def test_ranks_must_start_alike(starts, monkeypatch):
    def gather(found, mine):
        assert mine == starts[1] and len(found) == 2
        found[:] = starts

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    step, common = starts[1]
    alike = contextlib.nullcontext()
    with alike if starts[0] == starts[1] else pytest.raises(RunError, match="^ranks 0 and 1 start with"):
        monkeypatch.setattr(fit.SameStart, "common", lambda start: common)
        fit.SameStart(None, None).on_train_start(SimpleNamespace(world_size=2, global_step=step), None)


def test_what_ranks_must_have_in_common(tiny_config, small_data):
    words = ([], [], ["seed=2"], ["position=rope"], ["hardware.threads=3"], ["stop_after_minutes=5"])
    first, again, *others = (fit.SameStart(tiny_config(*own), small_data).common() for own in words)
    assert first == again and first not in others


def test_checkpoints_by_minutes(tiny_config, small_data, tmp_path):
    """One is always due."""
    config = tiny_config(
        "optim.max_steps=3", "optim.microbatches_per_step=3", "optim.checkpoint_every_n_steps=null",
        "optim.checkpoint_every_n_minutes=1e-9", "optim.keep_checkpoints=9",
    )  # fmt: skip
    fit.fit(config, small_data, tmp_path)
    assert steps(tmp_path) == [1, 2, 3]


def test_training_stopped_by_its_time_limit_is_resumed(tiny_config, small_data, tmp_path, assert_same):
    """The time has always passed: each call trains one step, also one with a validation. The checkpoints that this adds
    do not change what is averaged.
    """
    settings = (
        "optim.max_steps=5", "optim.microbatches_per_step=3", "optim.checkpoint_every_n_steps=2",
        "optim.keep_checkpoints=2", "optim.average_checkpoints=2", "optim.validate_every_n_steps=3",
    )  # fmt: skip
    config, limited = tiny_config(*settings), tiny_config(*settings, "stop_after_minutes=1e-9")
    fit.fit(config, small_data, tmp_path / "full")
    assert steps(tmp_path / "full") == [4, 5]
    assert (limited.run_id, limited.run_dir_name) == (config.run_id, config.run_dir_name)
    seen = []
    for _ in range(4):
        reason = r"stop_after_minutes: 1e-09 minutes have passed at step \d of 5; the s"
        with pytest.raises(InterruptedRun, match=reason):
            fit.fit(limited, small_data, tmp_path / "resumed")
        seen.append(steps(tmp_path / "resumed"))
    assert seen == [[1], [2], [2, 3], [2, 4]]
    fit.fit(limited, small_data, tmp_path / "resumed")
    assert steps(tmp_path / "resumed") == [4, 5]
    assert_same_result(tmp_path / "full", tmp_path / "resumed", assert_same)
    assert [row["step"] for row in rows_of(tmp_path / "resumed") if "validation/loss" in row] == [3, 5]


@pytest.mark.parametrize("number, stop", [(signal.SIGTERM, SystemExit), (signal.SIGCHLD, RuntimeError)])
def test_checkpoint_is_finished_before_a_signal_acts(number, stop, tmp_path, monkeypatch):
    """torch's writer would turn the exception that interrupts it into an error of its own; SIGCHLD's handler raises one
    for a loader worker that was killed.
    """
    path = tmp_path / "step00000001.ckpt"

    def worker_died(*_):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    class Interrupted(io.FileIO):
        def write(self, data):
            os.kill(os.getpid(), number)
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda path, mode: Interrupted(path, mode))
    before = signal.signal(signal.SIGCHLD, worker_died)
    try:
        with pytest.raises(stop, match="143|DataLoader worker"), exit_on_sigterm():
            callbacks.AtomicCheckpointIO().save_checkpoint({"state_dict": {"weight": torch.ones(3)}}, path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert [*tmp_path.iterdir()] == [path]
    assert load_checkpoint(path)["state_dict"]["weight"].sum() == 3
