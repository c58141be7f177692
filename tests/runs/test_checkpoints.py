"""Reading and averaging checkpoints: values by hand, the order of files, damaged and malicious ones."""

import errno
import os
from pathlib import Path

import pytest
import torch

from rpr.errors import DataError, RunError
from rpr.runs.loading import averaged_weights, checkpoints, load_checkpoint


def write(path: Path, **weights: torch.Tensor) -> Path:
    state = {f"model.{name}": weight for name, weight in weights.items()}
    torch.save({"state_dict": {**state, "other.weight": torch.ones(1)}, "epoch": 0}, path)
    return path


def test_average_equals_mean_by_hand(tmp_path):
    (folder := tmp_path / "checkpoints").mkdir()
    for step, row in enumerate(([1.0, 2.0, -4.0], [2.0, 4.0, 1.0], [6.0, 0.0, 0.0])):
        write(folder / f"step{step}.ckpt", a=torch.tensor(row))
    mean, _ = averaged_weights(tmp_path, 3)
    assert set(mean) == {"a"}  # the Transformer's weights, under its own names
    assert mean["a"].tolist() == [3.0, 2.0, -1.0] and mean["a"].dtype == torch.float32
    # Summed in float64: in float32 the ones would be lost beside 2**25.
    for step, value in enumerate((2.0**25, 1.0, 1.0, -(2.0**25))):
        write(folder / f"step{step}.ckpt", a=torch.tensor([value]))
    assert averaged_weights(tmp_path, 4)[0]["a"].tolist() == [0.5]


def test_checkpoints_are_sorted_by_step(tmp_path):
    for name in ("step00000100.ckpt", "step00000020.ckpt", "step100000000.ckpt", "step3.ckpt"):
        write(tmp_path / name, a=torch.zeros(1))
    for number, (_, path) in enumerate(checkpoints(tmp_path)):
        os.utime(path, (1e9 - number,) * 2)  # not by modification time
    for name in ("last.ckpt", "step4.ckpt.tmp", "stepx.ckpt", "step00000020-v1.ckpt", ".step5.ckpt"):
        (tmp_path / name).write_text("")
    assert [step for step, _ in checkpoints(tmp_path)] == [3, 20, 100, 100_000_000]
    assert checkpoints(tmp_path / "nothing") == []


def test_averaged_weights_uses_the_last_n(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (8, 12, 100):
        write(tmp_path / "checkpoints" / f"step{step:08d}.ckpt", a=torch.tensor([float(step)]))
    for number, value, words in (
        (1, 100.0, "step 100"),
        (2, 56.0, "average of 2 (steps 12 to 100)"),
        (20, 40.0, "average of 3 (steps 8 to 100, 92% of the training)"),  # fewer than requested
    ):
        assert averaged_weights(tmp_path, number) == ({"a": torch.tensor([value])}, words)
    with pytest.raises(DataError, match="no checkpoints; resume the run"):
        averaged_weights(tmp_path / "other", 1)


def test_io_error_is_not_reported_as_damage(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.EIO, "Input/output error")

    path = write(tmp_path / "step1.ckpt", a=torch.arange(3.0))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fail)
        with pytest.raises(RunError, match=r"step1\.ckpt: cannot be read now \("):
            load_checkpoint(path)
    assert load_checkpoint(path)["state_dict"]
