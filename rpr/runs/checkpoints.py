"""Checkpoints: list them, read them, and average the last N."""

import errno
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rpr.errors import DataError, RunError

STEP = re.compile(r"step=?(\d+)\.ckpt")
PREFIX = "model."  # of the Transformer's weights in a LightningModule's state


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, file) of every checkpoint in the folder, oldest first."""
    return sorted((int(m[1]), path) for path in folder.glob("step*.ckpt") if (m := STEP.fullmatch(path.name)))


def load_checkpoint(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """A checkpoint's contents as plain data; never runs code from the file. Mapped, only what is accessed is read.
    Raises DataError if the file does not exist, is damaged, or contains more than plain data, RunError if it cannot be
    read now (an unavailable disk, no memory) but may be intact.
    """
    try:
        loaded = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)  # noqa: TID251 (the one place)
    except FileNotFoundError:
        raise DataError(f"{path}: no such checkpoint") from None
    except Exception as error:  # damaged bytes are executed as pickle opcodes and can raise anything
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise RunError(f"{path}: cannot be read now ({error}); fix this and rerun the same command") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise DataError(
            f"{path}: cannot be read as a checkpoint ({reason}); move it away to use an earlier one"
        ) from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("state_dict"), dict):
        raise DataError(f"{path}: contains no state_dict; give a checkpoint that rpr-cli train wrote")
    return loaded


def model_weights(path: Path) -> dict[str, Tensor]:
    """The Transformer's weights in a checkpoint, by parameter name."""
    state = load_checkpoint(path, mapped=True)["state_dict"]
    return {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The plain mean of the checkpoints' weights, summed in float64 (the paper's big recipe averages its last 20).
    Raises DataError if they are not of one model.
    """
    assert paths
    if len(paths) == 1:
        return model_weights(paths[0])
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        weights = model_weights(path)
        if total and _shapes(weights) != _shapes(total):
            raise DataError(f"{path}: belongs to another model than {paths[0]}; move it away")
        for name, weight in weights.items():
            kinds[name] = weight.dtype
            total[name] = total[name] + weight.double() if name in total else weight.double()
    return {name: (weight / len(paths)).to(kinds[name]) for name, weight in total.items()}


def _shapes(weights: dict[str, Any]) -> dict[str, object]:
    return {name: getattr(weight, "shape", None) for name, weight in weights.items()}


def averaged_weights(run_dir: Path, last: int) -> tuple[dict[str, Tensor], str]:
    """The mean of a run's last N checkpoints, and its description, which says, with fewer than N, what share of the
    training they cover. Raises DataError if the run has no checkpoint.
    """
    averaged = checkpoints(run_dir / "checkpoints")[-last:]
    if not averaged:
        raise DataError(
            f"{run_dir}: no checkpoints; resume the run, or, if it has finished, move it away and train it again"
        )
    steps, paths = zip(*averaged, strict=True)
    share = f", {1 - steps[0] / steps[-1]:.0%} of the training" if len(steps) < last else ""
    several = f"average of {len(steps)} (steps {steps[0]} to {steps[-1]}{share})"
    return average([*paths]), f"step {steps[0]}" if len(steps) == 1 else several
