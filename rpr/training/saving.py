"""Writing checkpoints: when, how many are kept, and each one atomically; and stopping with one at a time limit."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO

from rpr.config.train import OptimConfig
from rpr.data.batches import Batch
from rpr.errors import InterruptedRun, RunError
from rpr.io.atomic import remove_leftovers, replacing
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.signals import signals_deferred
from rpr.training.callbacks import Stopwatch
from rpr.training.guards import LOG_EVERY
from rpr.training.module import StepCallback, TranslationModule


class AtomicCheckpointIO(CheckpointIO):
    """Writes each checkpoint completely and to disk under its name, or not at all; reads plain data only.

    Lightning's own writer makes a copy in memory and a file in the system's temporary folder; the move from there is
    not atomic across file systems.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with signals_deferred():
            try:
                Path(path).parent.stat()  # a run's folder that was moved away is not made again
                with replacing(Path(path)) as temporary, temporary.open("wb") as file:
                    torch.save(checkpoint, file)
            except (OSError, RuntimeError) as error:  # torch's writer wraps the system's error in its own
                raise RunError(
                    f"{path}: this checkpoint cannot be written ({_system_error(error)}); the earlier ones are intact: "
                    "fix this, and the same command resumes from the last one"
                ) from None

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _system_error(error: BaseException) -> str:
    """The system's words for an error, or for the one in whose course it was raised."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else " ".join(str(error).split())[:120]


class PeriodicCheckpoint(StepCallback, pl.callbacks.Checkpoint):
    """Writes checkpoints every N steps or minutes and at the last step, which is validated in any case, and keeps the
    last of them, as `optim` says. After `stop_after_minutes` it stops the training of this process, with a checkpoint;
    never at the run's last step, after which no training is left.

    They are written between steps: within a step, gradients of some microbatches would be lost. At a step with a
    validation the checkpoint is written after it: a run resumed from it does not validate there again, and would lack
    the validation's results. `before_saving` is called first on every rank, and may raise; the stopwatch is paused
    while a checkpoint is written. Raises InterruptedRun when the time has passed.
    """

    def __init__(
        self,
        folder: Path,
        optim: OptimConfig,
        stopwatch: Stopwatch,
        before_saving: Callable[[pl.Trainer, pl.LightningModule], None],
        stop_after_minutes: float | None,
    ) -> None:
        self._folder, self._optim = folder, optim
        self._stopwatch, self._before_saving = stopwatch, before_saving
        self._stop_after_minutes, self._started = stop_after_minutes, time.monotonic()
        self._stop_due = self._save_due = False  # at the end of the step, or of its validation
        self._saved_at = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_at = time.monotonic()
        if not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder, "step*.ckpt")

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        step, limit = trainer.global_step, self._stop_after_minutes
        self._stop_due = limit is not None and step != trainer.max_steps and _have_passed(limit, self._started, trainer)
        self._save_due = self._stop_due or self._is_due(trainer, step)
        if step == trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates, whatever the interval
        elif step % self._optim.validate_every_n_steps:
            self._save_and_stop(trainer, module)

    def _save_and_stop(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._save_due:
            self._save(trainer, pl_module)
        if self._stop_due:
            step = f"{trainer.global_step} of {trainer.max_steps}"
            raise InterruptedRun(
                f"stop_after_minutes: {self._stop_after_minutes:g} minutes have passed at step {step}; "
                "the same command resumes"
            )

    on_validation_end = _save_and_stop

    def _is_due(self, trainer: pl.Trainer, step: int) -> bool:
        if step == trainer.max_steps:
            return True
        if self._optim.checkpoint_every_n_steps is not None:
            return step % self._optim.checkpoint_every_n_steps == 0
        assert self._optim.checkpoint_every_n_minutes is not None
        return _have_passed(self._optim.checkpoint_every_n_minutes, self._saved_at, trainer)

    def _save(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stopwatch.pause()
        self._before_saving(trainer, pl_module)
        trainer.save_checkpoint(self._folder / f"step{trainer.global_step:08d}.ckpt")
        self._saved_at = time.monotonic()
        if trainer.is_global_zero:
            for old in superseded(self._folder, self._optim):
                old.unlink(missing_ok=True)
        self._stopwatch.resume()


def superseded(folder: Path, optim: OptimConfig) -> list[Path]:
    """All checkpoints but the newest and the last ones on schedule: with the one that a time limit adds off schedule,
    the final average would be of other steps than if training had never stopped.
    """
    saved, every = checkpoints(folder), optim.checkpoint_every_n_steps
    on_schedule = [path for step, path in saved if every is None or step % every == 0 or step == optim.max_steps]
    return [path for _, path in saved[:-1] if path not in on_schedule[-optim.keep_checkpoints :]]


def _have_passed(minutes: float, since: float, trainer: pl.Trainer) -> bool:
    """The same answer on every rank, by the first rank's clock."""
    if trainer.world_size > 1 and trainer.strategy.root_device.type == "cuda" and trainer.global_step % LOG_EVERY:
        return False  # the broadcast synchronises the GPU
    passed: bool = trainer.strategy.broadcast(time.monotonic() - since >= 60 * minutes)
    return passed
