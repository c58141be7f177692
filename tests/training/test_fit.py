"""Checked here: an interrupted and resumed training against the uninterrupted one, bit for bit, weights and optimiser;
when checkpoints are written (by steps or minutes, between steps only, the last step's always), which are kept, and what
is left of one that cannot be written; what is done about a damaged one; how a training ends whose time is up; what is
said of a folder or disk that will not do. A disk that is full is in tests/system/test_faults.py.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData as Data
from rpr.errors import InterruptedRun, RunError
from rpr.runs.checkpoints import averaged_weights, checkpoints, load_checkpoint
from rpr.training import fit, saving
from rpr.training.fit import Outcome
from rpr.training.saving import AtomicCheckpointIO

pytestmark = pytest.mark.usefixtures("one_thread")

Config = Callable[..., TrainConfig]
Same = Callable[[Any, Any], None]
RECIPE = (
    "model.dropout=0.1",
    "position.clip_distance=2",
    "optim.max_steps=12",
    "optim.warmup_steps=4",
    "optim.microbatches_per_step=2",  # two microbatches a step: their draws of dropout are part of what is resumed
    "optim.checkpoint_every_n_steps=4",
    "optim.validate_every_n_steps=6",
)


def train(config: TrainConfig, data: Data, run_dir: Path, bleu: Callable[..., float] | None = None) -> Outcome:
    return fit.fit(config, data, run_dir, logger=None, validation_bleu=bleu)


def steps(run_dir: Path) -> list[int]:
    return [step for step, _ in checkpoints(run_dir / "checkpoints")]


def final(run_dir: Path) -> dict[str, Any]:
    return load_checkpoint(checkpoints(run_dir / "checkpoints")[-1][1])


def assert_same_end(one: Path, other: Path, assert_same: Same) -> None:
    assert steps(one)[-1] == steps(other)[-1]
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert_same(final(one)[part], final(other)[part])


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what a clock decides."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and "_per_second" not in k} for row in rows]


@pytest.fixture
def config(tiny_config: Config) -> TrainConfig:
    return tiny_config(*RECIPE)


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture
def whole(config: TrainConfig, small_data: Data, whole_folder: Path) -> Path:
    """The uninterrupted run, trained once for all tests here."""
    if not (whole_folder / "checkpoints").exists():
        outcome = train(config, small_data, whole_folder, lambda model: 12.5)
        assert outcome.steps == 12 and outcome.measured_steps == 2 and outcome.steps_per_second is not None
        assert outcome.train_loss is not None and outcome.validation_loss is not None
    return whole_folder


def cut(whole: Path, run_dir: Path, *steps: int) -> Path:
    """A run that left only the checkpoints of these steps."""
    (run_dir / "checkpoints").mkdir(parents=True)
    for step in steps:
        shutil.copy(whole / "checkpoints" / f"step{step:08d}.ckpt", run_dir / "checkpoints")
    return run_dir


def test_what_a_training_leaves(whole: Path) -> None:
    assert steps(whole) == [4, 8, 12]
    assert sorted(path.name for path in whole.iterdir()) == ["checkpoints", "metrics.jsonl"]
    rows = rows_of(whole)
    assert [row["step"] for row in rows] == [6, 12, 12]
    validations = [row for row in rows if "validation/loss" in row]
    assert [row["step"] for row in validations] == [6, 12] and validations[0]["validation/bleu"] == 12.5
    (last,) = [row for row in rows if "train/loss" in row]
    assert last["step"] == 12 and last["learning_rate"] > 0


@pytest.mark.parametrize("left", [(4,), (4, 8)])
def test_a_resumed_run_is_the_uninterrupted_one(
    config: TrainConfig, small_data: Data, whole: Path, tmp_path: Path, left: tuple[int, ...], assert_same: Same
) -> None:
    """Metrics after the checkpoint are forgotten, a line cut by a kill too; a mean over both parts is the same. What
    a kill left of a checkpoint is removed.
    """
    run_dir = cut(whole, tmp_path / "cut", *left)
    (run_dir / "metrics.jsonl").write_text((whole / "metrics.jsonl").read_text() + '{"step": 12, "val')
    (run_dir / "checkpoints" / ".step00000009.ckpt.1234.tmp").write_bytes(b"half")
    torch.manual_seed(999)  # whatever the process drew before
    train(config, small_data, run_dir, lambda model: 12.5)
    assert_same_end(whole, run_dir, assert_same)
    assert steps(run_dir) == [4, 8, 12] and len([*(run_dir / "checkpoints").iterdir()]) == 3
    assert rows_of(run_dir) == rows_of(whole)


def test_a_damaged_newest_checkpoint_is_passed_over(
    config: TrainConfig, small_data: Data, whole: Path, tmp_path: Path, capsys: Any, assert_same: Same
) -> None:
    run_dir = cut(whole, tmp_path / "cut", 4, 8, 12)
    newest = run_dir / "checkpoints" / "step00000012.ckpt"
    damaged = newest.read_bytes()[:1000]
    newest.write_bytes(damaged)
    train(config, small_data, run_dir)
    assert "step00000012.ckpt: cannot be read as a checkpoint (" in capsys.readouterr().err
    assert_same_end(whole, run_dir, assert_same)
    weights, words = averaged_weights(run_dir, 3)
    assert words == "average of 3 (steps 4 to 12)"
    assert_same(weights, averaged_weights(whole, 3)[0])
    # Set aside, not deleted, and under a name that no average takes up.
    assert (run_dir / "checkpoints" / "step00000012.ckpt.damaged").read_bytes() == damaged


def test_a_finished_training_trains_nothing_more(
    config: TrainConfig, small_data: Data, whole: Path, tmp_path: Path
) -> None:
    """A run killed while it translated: the next start goes straight there."""
    run_dir = cut(whole, tmp_path / "cut", 8, 12)
    before = (run_dir / "checkpoints" / "step00000012.ckpt").read_bytes()
    outcome = train(config, small_data, run_dir)
    assert outcome.steps == 12 and outcome.measured_steps == 2  # of the part that ran to the end, from its checkpoint
    assert (run_dir / "checkpoints" / "step00000012.ckpt").read_bytes() == before


def test_a_run_that_broke_off_and_resumed_in_its_own_folder(
    tiny_config: Config, small_data: Data, tmp_path: Path, assert_same: Same
) -> None:
    """A real interruption (validation fails at step 7): the weights at the end, and which checkpoints are kept."""
    config = tiny_config(
        *RECIPE, "optim.max_steps=11", "optim.checkpoint_every_n_steps=2", "optim.keep_checkpoints=3",
        "optim.validate_every_n_steps=7",
    )  # fmt: skip
    train(config, small_data, tmp_path / "whole")

    def cut_off(model: object) -> float:
        raise RunError("the power went")

    with pytest.raises(RunError, match="the power went"):
        train(config, small_data, tmp_path / "cut", cut_off)
    assert steps(tmp_path / "cut") == [2, 4, 6]
    train(config, small_data, tmp_path / "cut")
    # The last step's is written although 11 is no multiple of 2.
    assert steps(tmp_path / "whole") == steps(tmp_path / "cut") == [8, 10, 11]
    assert_same_end(tmp_path / "whole", tmp_path / "cut", assert_same)


# --- by the clock

ACCUMULATED = ("optim.max_steps=6", "optim.microbatches_per_step=3", "optim.checkpoint_every_n_steps=null")


def test_by_minutes_between_steps_only(
    tiny_config: Config, small_data: Data, tmp_path: Path, assert_same: Same
) -> None:
    """Time is always up here, also within a step; a run that is resumed from any of them is the uninterrupted one, also
    when it is cut a second time right after it was resumed.
    """
    config = tiny_config(*ACCUMULATED, "optim.checkpoint_every_n_minutes=1e-9", "optim.keep_checkpoints=9")
    whole = tmp_path / "whole"
    train(config, small_data, whole)
    assert steps(whole) == [1, 2, 3, 4, 5, 6]
    for _, path in checkpoints(whole / "checkpoints"):
        done = load_checkpoint(path)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]
        assert done % 3 == 0
    run_dir = cut(whole, tmp_path / "cut", 2)
    train(config, small_data, run_dir)
    assert steps(run_dir) == [2, 3, 4, 5, 6]
    for step, path in checkpoints(run_dir / "checkpoints"):
        if step > 3:
            path.unlink()
    train(config, small_data, run_dir)
    assert_same_end(whole, run_dir, assert_same)


def test_a_training_that_is_stopped_by_the_clock_resumes_as_the_uninterrupted_one(
    tiny_config: Config, small_data: Data, tmp_path: Path, assert_same: Same
) -> None:
    """Time is always up: each call does one step, or two where the first is validated. Minutes between checkpoints
    that do not pass leave the last step's alone.
    """
    settings = (*ACCUMULATED, "optim.checkpoint_every_n_minutes=60", "optim.validate_every_n_steps=3")
    config, limited = tiny_config(*settings), tiny_config(*settings, "stop_after_minutes=1e-9")
    train(config, small_data, tmp_path / "whole")
    assert steps(tmp_path / "whole") == [6]
    assert (limited.run_id, limited.run_dir_name) == (config.run_id, config.run_dir_name)
    stopped_at = []
    for _ in range(4):
        reason = r"stop_after_minutes: 1e-09 minutes have passed at step \d of 6; the s"
        with pytest.raises(InterruptedRun, match=reason):
            train(limited, small_data, tmp_path / "cut")
        stopped_at.append(steps(tmp_path / "cut")[-1])
    assert stopped_at == [1, 2, 4, 5]
    train(limited, small_data, tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut", assert_same)


# --- disks and folders


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    class Fails:
        def __reduce__(self) -> Any:
            raise OSError(28, "No space left on device")

    path = tmp_path / "step00000004.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"a": torch.ones(3)}}, path)
    before = path.read_bytes()
    reason = r"step00000004\.ckpt: this checkpoint cannot be written \(No space left on devi"
    with pytest.raises(RunError, match=reason):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {"a": torch.zeros(3)}, "b": Fails()}, path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    assert torch.equal(AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["a"], torch.ones(3))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder in which not even root can write")
def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(
    config: TrainConfig, small_data: Data, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").symlink_to("/proc")
    reason = r"/checkpoints: checkpoints cannot be written there \(.*make the folder writable"
    with pytest.raises(RunError, match=reason):
        train(config, small_data, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize("free, told", [(10**6, True), (10**9, False)])
def test_a_disk_too_small_for_what_is_kept_is_told_at_once(
    free: int, told: bool, tiny_config: Config, small_data: Data, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda folder: Usage(free))
    train(tiny_config("optim.max_steps=1", "optim.keep_checkpoints=4"), small_data, tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "lower optim.keep_checkpoints" in line]
    assert len(lines) == told
    reason = "/checkpoints: 4 checkpoints of 0.0 GB are to be kept, but only 0.0 GB are free; lower optim.keep"
    assert all(reason in line for line in lines)
