"""Checked here: when checkpoints are written (by minutes, between steps only, the last step's always), which are kept,
how a training ends whose time is up, what is left of a checkpoint that cannot be written, and what is said of a folder
or disk that will not do. A disk that is full is in tests/system/test_faults.py.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData
from rpr.errors import InterruptedRun, RunError
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.training import fit, saving
from rpr.training.saving import AtomicCheckpointIO

ACCUMULATED = ("optim.max_steps=6", "optim.microbatches_per_step=3", "optim.checkpoint_every_n_steps=null")
ALWAYS = "optim.checkpoint_every_n_minutes=1e-9"


def steps(run_dir: Path) -> list[int]:
    return [step for step, _ in checkpoints(run_dir / "checkpoints")]


def test_by_minutes_between_steps_only(
    tiny_config: Callable[..., TrainConfig],
    small_data: PreparedData,
    tmp_path: Path,
    assert_same: Callable[[Any, Any], None],
) -> None:
    """Time is always up here, also within a step; a run that goes on from any of them is the uninterrupted one, also
    when it is cut a second time right after it went on.
    """
    config = tiny_config(*ACCUMULATED, ALWAYS, "optim.keep_checkpoints=9")
    fit.fit(config, small_data, tmp_path / "whole", logger=None, validation_bleu=None)
    assert steps(tmp_path / "whole") == [1, 2, 3, 4, 5, 6]
    for _, path in checkpoints(tmp_path / "whole" / "checkpoints"):
        done = load_checkpoint(path)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]
        assert done % 3 == 0
    whole = load_checkpoint(tmp_path / "whole" / "checkpoints" / "step00000006.ckpt")
    for first, second in ((2, 3), (5, 6)):
        folder = tmp_path / f"cut{first}" / "checkpoints"
        folder.mkdir(parents=True)
        shutil.copy(tmp_path / "whole" / "checkpoints" / f"step{first:08d}.ckpt", folder)
        fit.fit(config, small_data, folder.parent, logger=None, validation_bleu=None)
        assert steps(folder.parent) == list(range(first, 7))
        for later in range(second + 1, 7):
            (folder / f"step{later:08d}.ckpt").unlink()
        fit.fit(config, small_data, folder.parent, logger=None, validation_bleu=None)
        again = load_checkpoint(folder / "step00000006.ckpt")
        for part in ("state_dict", "optimizer_states"):
            assert_same(again[part], whole[part])


def test_a_training_that_is_stopped_by_the_clock_goes_on_as_the_uninterrupted_one(
    tiny_config: Callable[..., TrainConfig],
    small_data: PreparedData,
    tmp_path: Path,
    assert_same: Callable[[Any, Any], None],
) -> None:
    """Time is always up: each call does one step, or two where the first is validated."""
    settings = (*ACCUMULATED, "optim.checkpoint_every_n_minutes=60", "optim.validate_every_n_steps=3")
    config = tiny_config(*settings)
    fit.fit(config, small_data, tmp_path / "whole", logger=None, validation_bleu=None)
    limited = tiny_config(*settings, "stop_after_minutes=1e-9")
    assert (limited.run_id, limited.run_dir_name) == (config.run_id, config.run_dir_name)
    stopped_at = []
    for _ in range(4):
        with pytest.raises(
            InterruptedRun, match=r"stop_after_minutes: 1e-09 minutes have passed at step \d of 6; the s"
        ):
            fit.fit(limited, small_data, tmp_path / "cut", logger=None, validation_bleu=None)
        stopped_at.append(steps(tmp_path / "cut")[-1])
    assert stopped_at == [1, 2, 4, 5]
    fit.fit(limited, small_data, tmp_path / "cut", logger=None, validation_bleu=None)
    whole, cut = (load_checkpoint(tmp_path / name / "checkpoints" / "step00000006.ckpt") for name in ("whole", "cut"))
    for part in ("state_dict", "optimizer_states"):
        assert_same(cut[part], whole[part])


def test_minutes_that_do_not_pass_leave_the_last_step_alone(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, tmp_path: Path
) -> None:
    config = tiny_config(*ACCUMULATED, "optim.checkpoint_every_n_minutes=60")
    fit.fit(config, small_data, tmp_path, logger=None, validation_bleu=None)
    assert steps(tmp_path) == [6]


def test_what_a_kill_left_of_a_checkpoint_is_removed(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    unfinished = tmp_path / "checkpoints" / ".step00000003.ckpt.1234.tmp"
    unfinished.write_bytes(b"half")
    fit.fit(tiny_config("optim.max_steps=2"), small_data, tmp_path, logger=None, validation_bleu=None)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step00000002.ckpt"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    class Fails:
        def __reduce__(self) -> Any:
            raise OSError(28, "No space left on device")

    path = tmp_path / "step00000004.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"a": torch.ones(3)}}, path)
    before = path.read_bytes()
    with pytest.raises(
        RunError, match=r"step00000004\.ckpt: this checkpoint cannot be written \(No space left on devi"
    ):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {"a": torch.zeros(3)}, "b": Fails()}, path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    assert torch.equal(AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["a"], torch.ones(3))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder in which not even root can write")
def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").symlink_to("/proc")
    with pytest.raises(
        RunError, match=r"/checkpoints: checkpoints cannot be written there \(.*make the folder writable"
    ):
        fit.fit(tiny_config("optim.max_steps=2"), small_data, tmp_path, logger=None, validation_bleu=None)
    assert not (tmp_path / "metrics.jsonl").exists()


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize("free, told", [(10**6, True), (10**9, False)])
def test_a_disk_too_small_for_what_is_kept_is_told_at_once(
    free: int,
    told: bool,
    tiny_config: Callable[..., TrainConfig],
    small_data: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda folder: Usage(free))
    config = tiny_config("optim.max_steps=1", "optim.keep_checkpoints=4")
    fit.fit(config, small_data, tmp_path, logger=None, validation_bleu=None)
    lines = [line for line in capsys.readouterr().err.splitlines() if "lower optim.keep_checkpoints" in line]
    assert len(lines) == told
    if told:
        assert (
            "/checkpoints: 4 checkpoints of 0.0 GB are to be kept, but only 0.0 GB are free; lower optim.keep"
            in lines[0]
        )
