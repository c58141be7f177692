"""Checked here: the average of checkpoints against a mean worked by hand, which files count and in what order, and that
a file with code in it is refused without running the code.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from rpr.errors import DataError, RunError
from rpr.runs.checkpoints import average, averaged_weights, checkpoints, load_checkpoint, model_weights


def write(path: Path, **weights: torch.Tensor) -> Path:
    state = {f"model.{name}": weight for name, weight in weights.items()}
    torch.save({"state_dict": {**state, "other.weight": torch.ones(1)}, "epoch": 0}, path)
    return path


def test_the_mean_by_hand(tmp_path: Path) -> None:
    rows = ([1.0, 2.0, -4.0], [2.0, 4.0, 1.0], [6.0, 0.0, 0.0])
    paths = [write(tmp_path / f"step{n}.ckpt", a=torch.tensor(row)) for n, row in enumerate(rows)]
    mean = average(paths)
    assert set(mean) == {"a"}  # the Transformer's weights, under its own names
    assert mean["a"].tolist() == [3.0, 2.0, -1.0] and mean["a"].dtype == torch.float32
    assert average(paths[:1])["a"].tolist() == rows[0]
    # Summed in float64: in float32 the ones would be lost beside 2**25.
    big = [write(tmp_path / f"{n}.ckpt", a=torch.tensor([v])) for n, v in enumerate([2.0**25, 1.0, 1.0, -(2.0**25)])]
    assert average(big)["a"].tolist() == [0.5]


def test_checkpoints_are_found_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for name in ("step00000100.ckpt", "step00000020.ckpt", "step100000000.ckpt", "step3.ckpt"):
        write(tmp_path / name, a=torch.zeros(1))
    for number, (_, path) in enumerate(checkpoints(tmp_path)):
        os.utime(path, (1e9 - number,) * 2)  # not by the time at which they were written
    for name in ("last.ckpt", "step4.ckpt.tmp", "stepx.ckpt", "step00000020-v1.ckpt", ".step5.ckpt"):
        (tmp_path / name).write_text("")
    assert [step for step, _ in checkpoints(tmp_path)] == [3, 20, 100, 100_000_000]
    assert checkpoints(tmp_path / "nothing") == []


def test_the_last_n_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for step in (8, 12, 100):
        write(tmp_path / "checkpoints" / f"step{step:08d}.ckpt", a=torch.tensor([float(step)]))
    assert averaged_weights(tmp_path, 1) == ({"a": torch.tensor([100.0])}, "step 100")
    weights, words = averaged_weights(tmp_path, 2)
    assert weights["a"].tolist() == [56.0] and words == "average of 2 (steps 12 to 100)"
    weights, words = averaged_weights(tmp_path, 20)  # fewer than asked for: said in the words
    assert weights["a"].tolist() == [40.0] and words == "average of 3 (steps 8 to 100)"
    with pytest.raises(DataError, match="no checkpoints; resume the run"):
        averaged_weights(tmp_path / "other", 1)


class Code:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "step1.ckpt"
    torch.save({"state_dict": {}, "trap": Code(tmp_path / "trap")}, path)
    with pytest.raises(
        DataError, match=r"step1\.ckpt: cannot be read as a checkpoint \(.*delete it and use an earlier"
    ):
        load_checkpoint(path)
    assert not (tmp_path / "trap").exists()
    torch.load(path, weights_only=False)  # the trap is a real one
    assert (tmp_path / "trap").exists()


def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = write(tmp_path / "step1.ckpt", a=torch.arange(3.0))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", away)
        with pytest.raises(RunError, match=r"step1\.ckpt: cannot be read now \("):
            load_checkpoint(path)
    assert load_checkpoint(path)["state_dict"]


@pytest.mark.parametrize("damage", ["cut", "empty", "folder"])
def test_a_damaged_checkpoint(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "step1.ckpt", a=torch.arange(1000.0))
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(whole[:-9] if damage == "cut" else b"")
    with pytest.raises(DataError, match=r"step1\.ckpt: cannot be read as a checkpoint \(") as error:
        model_weights(path)
    assert "\n" not in str(error.value)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "step1.ckpt")
    torch.save({"weights": 1}, tmp_path / "step1.ckpt")
    with pytest.raises(DataError, match="contains no state_dict; give a checkpoint that rpr-cli train wrote"):
        load_checkpoint(tmp_path / "step1.ckpt")
