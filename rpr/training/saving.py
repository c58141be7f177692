"""Writing checkpoints: when, how many are kept, and each whole or not at all."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO

from rpr.data.batches import Batch
from rpr.errors import InterruptedRun, RunError
from rpr.io.atomic import remove_leftovers, replacing
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.training.callbacks import Stopwatch
from rpr.training.guards import LOG_EVERY
from rpr.training.module import ends_step


class WholeFiles(CheckpointIO):
    """A checkpoint appears under its name complete and on the disk, or not at all; read as plain data only.

    Lightning's own writer goes through a file in the system's folder for temporary files, from where the move is no
    single act when that is another file system, and through a copy of all of it in memory.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        try:
            with replacing(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch's writer turns the system's error into one of its own
            reason = _os_error(error)
            raise RunError(
                f"{path}: this checkpoint cannot be written ({reason}); the earlier ones are whole: "
                "mend that, and the same command goes on from the last of them"
            ) from None

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _os_error(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:120]


class Checkpoints(pl.callbacks.Checkpoint):
    """The last N checkpoints, by steps or by minutes, and always one of the last step.

    Only between steps: within one, gradients of some micro-batches would be lost. One that is due before a validation
    is written after it: a run that goes on from it does not validate there again, and would lack what that tells.
    `before_saving` is called on every rank first, and may refuse; the stopwatch stands while one is written.
    """

    def __init__(
        self,
        folder: Path,
        stopwatch: Stopwatch,
        *,
        keep: int,
        every_n_steps: int | None,
        every_n_minutes: float | None,
        validate_every_n_steps: int,
        before_saving: Callable[[pl.Trainer, pl.LightningModule], None],
    ) -> None:
        self._folder, self._stopwatch, self._keep = folder, stopwatch, keep
        self._every_n_steps, self._every_n_minutes = every_n_steps, every_n_minutes
        self._validate_every_n_steps = validate_every_n_steps
        self._before_saving = before_saving
        self._waits = False  # for the end of a validation
        self._saved_step = 0
        self._saved_at = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        if not trainer.is_global_zero:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._folder, "step*.ckpt")
            with tempfile.TemporaryFile(dir=self._folder):  # now, not when the first checkpoint is due
                pass
        except OSError as error:
            raise RunError(
                f"{self._folder}: checkpoints cannot be written there ({error.strerror}); "
                "make the folder writable or choose another runs_dir"
            ) from None
        self._tell_of_little_space(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if ends_step(trainer, batch_idx) and step != self._saved_step and self._is_due(trainer, step):
            self._waits = self.waits(step)
            if not self._waits:
                self.save(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._waits:
            self._waits = False
            self.save(trainer, pl_module)

    def _is_due(self, trainer: pl.Trainer, step: int) -> bool:
        if step == trainer.max_steps:
            return True
        if self._every_n_steps is not None:
            return step % self._every_n_steps == 0
        assert self._every_n_minutes is not None
        return _have_passed(self._every_n_minutes, self._saved_at, trainer)

    def save(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stopwatch.pause()
        self._before_saving(trainer, pl_module)
        trainer.save_checkpoint(self._folder / f"step{trainer.global_step:08d}.ckpt")
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        if trainer.is_global_zero:
            for _, old in checkpoints(self._folder)[: -self._keep]:
                old.unlink(missing_ok=True)
        self._stopwatch.resume()

    def waits(self, step: int) -> bool:
        """Whether a checkpoint of this step is to be written after a validation only."""
        return step % self._validate_every_n_steps == 0

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint."""
        return self._saved_step

    def _tell_of_little_space(self, trainer: pl.Trainer) -> None:
        """A line when the disk cannot hold the checkpoints that will be kept (weights and both moments of Adam)."""
        there = checkpoints(self._folder)
        size = sum(3 * parameter.nbytes for parameter in trainer.lightning_module.parameters())
        # One more than are kept stands while the newest is written.
        needed = (self._keep + 1 - min(len(there), self._keep)) * size
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            print(
                f"rpr-cli: {self._folder}: {self._keep} checkpoints of {size / 1e9:.1f} GB are kept and "
                f"{free / 1e9:.1f} GB are free; lower optim.keep_checkpoints or choose another runs_dir",
                file=sys.stderr,
                flush=True,
            )


class TimeLimit(pl.Callback):
    """Ends a training that has taken so many minutes in this process, after a checkpoint of the step that it is at.

    Not at a step that is validated, nor at the last one, after which there is nothing left to do.

    Raises:
        InterruptedRun: the time is up.
    """

    def __init__(self, minutes: float, checkpoints: Checkpoints) -> None:
        self._minutes, self._checkpoints = minutes, checkpoints
        self._started = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if (
            not ends_step(trainer, batch_idx)
            or step == trainer.max_steps
            or self._checkpoints.waits(step)
            or not _have_passed(self._minutes, self._started, trainer)
        ):
            return
        if self._checkpoints.saved_step != step:
            self._checkpoints.save(trainer, pl_module)
        raise InterruptedRun(
            f"stop_after_minutes: {self._minutes:g} minutes have passed at step {step} of {trainer.max_steps}; "
            "the same command resumes"
        )


def _have_passed(minutes: float, since: float, trainer: pl.Trainer) -> bool:
    """By the first rank's clock, on every rank alike."""
    if trainer.world_size > 1 and trainer.strategy.root_device.type == "cuda" and trainer.global_step % LOG_EVERY:
        return False  # asking that clock waits for the GPU
    passed: bool = trainer.strategy.broadcast(time.monotonic() - since >= 60 * minutes)
    return passed
