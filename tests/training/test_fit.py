"""Checked here: an interrupted and resumed training against the uninterrupted one, bit for bit, weights and optimiser;
what is done about a damaged checkpoint; which files a training leaves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData
from rpr.errors import RunError
from rpr.runs.checkpoints import averaged_weights, checkpoints, load_checkpoint
from rpr.training import fit

RECIPE = (
    "model.dropout=0.1",
    "position.clip_distance=2",
    "optim.max_steps=12",
    "optim.warmup_steps=4",
    "optim.microbatches_per_step=2",  # two microbatches a step: their draws of dropout are part of what is resumed
    "optim.checkpoint_every_n_steps=4",
    "optim.validate_every_n_steps=6",
)


@pytest.fixture
def config(tiny_config: Callable[..., TrainConfig]) -> TrainConfig:
    return tiny_config(*RECIPE)


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture
def whole(config: TrainConfig, small_data: PreparedData, whole_folder: Path) -> Path:
    """The uninterrupted run, trained once for all tests here."""
    if not (whole_folder / "checkpoints").exists():
        outcome = fit.fit(config, small_data, whole_folder, logger=None, validation_bleu=lambda model: 12.5)
        assert outcome.steps == 12 and outcome.measured_steps == 2 and outcome.steps_per_second is not None
        assert outcome.train_loss is not None and outcome.validation_loss is not None
    return whole_folder


def final(run_dir: Path) -> dict[str, Any]:
    step, path = checkpoints(run_dir / "checkpoints")[-1]
    assert step == 12
    return load_checkpoint(path)


def cut(whole: Path, run_dir: Path, *steps: int) -> Path:
    """A run that left only the checkpoints of these steps."""
    (run_dir / "checkpoints").mkdir(parents=True)
    for step in steps:
        shutil.copy(whole / "checkpoints" / f"step{step:08d}.ckpt", run_dir / "checkpoints")
    return run_dir


def test_what_a_training_leaves(whole: Path) -> None:
    assert [step for step, _ in checkpoints(whole / "checkpoints")] == [4, 8, 12]
    assert sorted(path.name for path in whole.iterdir()) == ["checkpoints", "metrics.jsonl"]
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    validations = [row for row in rows if "validation/loss" in row]
    assert [row["step"] for row in validations] == [6, 12] and validations[0]["validation/bleu"] == 12.5
    (last,) = [row for row in rows if "train/loss" in row]
    assert last["step"] == 12 and last["learning_rate"] > 0


@pytest.mark.parametrize("steps", [(4,), (4, 8)])
def test_a_resumed_run_is_the_uninterrupted_one(
    config: TrainConfig,
    small_data: PreparedData,
    whole: Path,
    tmp_path: Path,
    steps: tuple[int, ...],
    assert_same: Callable[[Any, Any], None],
) -> None:
    run_dir = cut(whole, tmp_path / "cut", *steps)
    torch.manual_seed(999)  # whatever the process drew before
    fit.fit(config, small_data, run_dir, logger=None, validation_bleu=None)
    one, other = final(whole), final(run_dir)
    assert_same(one["state_dict"], other["state_dict"])
    assert_same(one["optimizer_states"], other["optimizer_states"])
    assert_same(one["lr_schedulers"], other["lr_schedulers"])
    assert [step for step, _ in checkpoints(run_dir / "checkpoints")] == [4, 8, 12]


def test_dropout_is_on_so_the_test_above_says_something(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, whole: Path, tmp_path: Path
) -> None:
    fit.fit(tiny_config(*RECIPE, "model.dropout=0"), small_data, tmp_path / "other", logger=None, validation_bleu=None)
    weights, others = final(whole)["state_dict"], final(tmp_path / "other")["state_dict"]
    assert any(not torch.equal(weights[name], others[name]) for name in weights)


def test_a_damaged_newest_checkpoint_is_passed_over(
    config: TrainConfig,
    small_data: PreparedData,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    assert_same: Callable[[Any, Any], None],
) -> None:
    run_dir = cut(whole, tmp_path / "cut", 4, 8, 12)
    newest = run_dir / "checkpoints" / "step00000012.ckpt"
    damaged = newest.read_bytes()[:1000]
    newest.write_bytes(damaged)
    fit.fit(config, small_data, run_dir, logger=None, validation_bleu=None)
    assert "step00000012.ckpt: cannot be read as a checkpoint (" in capsys.readouterr().err
    assert_same(final(whole)["state_dict"], final(run_dir)["state_dict"])
    weights, words = averaged_weights(run_dir, 3)
    assert words == "average of 3 (steps 4 to 12)"
    assert_same(weights, averaged_weights(whole, 3)[0])
    # Set aside, not deleted, and under a name that no average takes up.
    assert (run_dir / "checkpoints" / "step00000012.ckpt.damaged").read_bytes() == damaged


def test_a_finished_training_trains_nothing_more(
    config: TrainConfig, small_data: PreparedData, whole: Path, tmp_path: Path
) -> None:
    """A run killed while it translated: the next start goes straight there."""
    run_dir = cut(whole, tmp_path / "cut", 8, 12)
    before = (run_dir / "checkpoints" / "step00000012.ckpt").read_bytes()
    outcome = fit.fit(config, small_data, run_dir, logger=None, validation_bleu=None)
    assert outcome.steps == 12 and outcome.measured_steps == 2  # of the part that ran to the end, from its checkpoint
    assert (run_dir / "checkpoints" / "step00000012.ckpt").read_bytes() == before


def test_a_run_that_broke_off_and_went_on_in_its_own_folder(
    tiny_config: Callable[..., TrainConfig],
    small_data: PreparedData,
    tmp_path: Path,
    assert_same: Callable[[Any, Any], None],
) -> None:
    """A real interruption (validation fails at step 7): the weights at the end, and which checkpoints are kept."""
    config = tiny_config(
        *RECIPE, "optim.checkpoint_every_n_steps=2", "optim.keep_checkpoints=3", "optim.validate_every_n_steps=7"
    )
    fit.fit(config, small_data, tmp_path / "whole", logger=None, validation_bleu=None)

    def cut_off(model: object) -> float:
        raise RunError("the power went")

    with pytest.raises(RunError, match="the power went"):
        fit.fit(config, small_data, tmp_path / "cut", logger=None, validation_bleu=cut_off)
    assert [step for step, _ in checkpoints(tmp_path / "cut" / "checkpoints")] == [2, 4, 6]
    fit.fit(config, small_data, tmp_path / "cut", logger=None, validation_bleu=None)
    assert [step for step, _ in checkpoints(tmp_path / "whole" / "checkpoints")] == [8, 10, 12]
    assert [step for step, _ in checkpoints(tmp_path / "cut" / "checkpoints")] == [8, 10, 12]
    assert_same(final(tmp_path / "whole")["state_dict"], final(tmp_path / "cut")["state_dict"])


def test_only_the_last_n_checkpoints_are_kept(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, tmp_path: Path
) -> None:
    config = tiny_config(
        "optim.max_steps=11", "optim.checkpoint_every_n_steps=2", "optim.keep_checkpoints=3", "model.dropout=0"
    )
    fit.fit(config, small_data, tmp_path, logger=None, validation_bleu=None)
    # The last step's is written although 11 is no multiple of 2.
    assert [step for step, _ in checkpoints(tmp_path / "checkpoints")] == [8, 10, 11]


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what a clock decides."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and "_per_second" not in k} for row in rows]


def test_the_metrics_of_a_resumed_run_are_those_of_the_uninterrupted_one(
    config: TrainConfig, small_data: PreparedData, whole: Path, tmp_path: Path
) -> None:
    """Rows after the checkpoint are forgotten, a line cut by a kill too; a mean over both parts is the same."""
    run_dir = cut(whole, tmp_path / "cut", 8)
    lines = (whole / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text(lines + '{"step": 12, "val')
    fit.fit(config, small_data, run_dir, logger=None, validation_bleu=lambda model: 12.5)
    assert rows_of(run_dir) == rows_of(whole)
    assert [row["step"] for row in rows_of(whole)] == [6, 12, 12]


def test_weights_that_are_no_numbers_end_the_run(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, tmp_path: Path
) -> None:
    config = tiny_config("optim.max_steps=4", "optim.learning_rate_scale=1e38", "optim.warmup_steps=1")
    with pytest.raises(RunError, match=r"^step 2: the loss or its gradient is not finite .*lower optim\.learning_rate"):
        fit.fit(config, small_data, tmp_path, logger=None, validation_bleu=None)
    assert not checkpoints(tmp_path / "checkpoints")
