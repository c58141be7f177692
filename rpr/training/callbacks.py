"""Callbacks around the training steps: timing, the metrics file, whose steps are finite, with BLEU on validation
sentences, and checkpoints: when, how many are kept, and each one atomically.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO
from torch import Tensor

from rpr.config.train import HardwareConfig, OptimConfig
from rpr.data.batches import Batch
from rpr.errors import InterruptedRun, RunError
from rpr.io.atomic import remove_leftovers, replace_file, replacing
from rpr.progress import Progress
from rpr.records.files import SHOWN_METRICS, read_metrics
from rpr.records.record import METRICS_NAME
from rpr.runs.loading import checkpoints, load_checkpoint
from rpr.runs.runtime import device_name, peak_memory
from rpr.signals import signals_deferred
from rpr.training.module import TranslationData, TranslationModule, learning_rate

LOG_EVERY = 25  # steps between two lines of metrics.jsonl, and between two reads from a GPU
WARM_UP_STEPS = 10  # excluded from every speed, while allocators, caches and kernels warm up


class StepCallback(pl.Callback):
    """A callback with a hook for the end of each step, after its last microbatch."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.on_step_end(trainer, module, batch)

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        """`batch` is the last microbatch."""


class Stopwatch(StepCallback):
    """Time spent on training steps, including data wait; excluding warm-up, validation, checkpoints, and the step in
    which the process was suspended.

    Saved in checkpoints with the peak memory: a resumed run reports those of all its parts (each with a warm-up of its
    own), or, on another device, of the parts since.
    """

    def __init__(self, hardware: HardwareConfig) -> None:
        self.hardware = hardware
        # Seconds, those of the processor in all threads of this process, steps, source tokens, target tokens.
        self._measured: list[Any] = [0.0, 0.0, 0, 0, 0]
        self._earlier_peak = 0  # bytes
        self._warming_up = WARM_UP_STEPS
        self._since: tuple[float, float] | None = None  # clock and processor time, which are counted so far
        self._suspended = False  # by Ctrl-Z, in the current step

    def state_dict(self) -> dict[str, Any]:
        self.pause()  # until the next step, if it is running
        peak, device = self.peak_memory()[0], device_name(self.hardware)
        return {"measured": self._measured, "earlier_peak": peak, "device": device}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["device"] == device_name(self.hardware):
            self._measured, self._earlier_peak = state_dict["measured"], state_dict["earlier_peak"]

    def peak_memory(self) -> tuple[int, str]:
        """Of all parts in bytes, and what was counted."""
        peak, kind = peak_memory(self.hardware)
        return max(peak, self._earlier_peak), kind

    def pause(self, *_: Any, **__: Any) -> None:
        self._count(_synchronised())
        self._since = None

    def resume(self, *_: Any, **__: Any) -> None:
        if self._since is None and not self._warming_up:
            self._since = _synchronised()

    def _count(self, now: tuple[float, float], *of_step: int) -> None:
        if self._since is not None and not self._suspended:
            passed = (*(there - here for there, here in zip(now, self._since, strict=True)), *of_step)
            self._measured = [total + more for total, more in zip_longest(self._measured, passed, fillvalue=0)]
        self._since = self._since and now

    on_validation_start = on_train_end = pause  # as hooks they are given what they do not need
    on_validation_end = resume

    @property
    def cores_used(self) -> float | None:
        """Mean number of cores used (CPU time over wall time): less than the threads on a shared machine."""
        seconds, of_processor, *_ = self._measured
        return of_processor / seconds if seconds > 0 else None

    def reading(self) -> tuple[float, int, int, int]:
        """Seconds, steps, source tokens and target tokens measured so far."""
        seconds, _, steps, source, target = self._measured
        return seconds, steps, source, target

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, lambda *_: setattr(self, "_suspended", True))

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        now = (time.perf_counter(), time.process_time())
        self._count(now, 1, batch.step_source_tokens, batch.step_target_tokens)
        self._suspended, self._warming_up = False, max(0, self._warming_up - 1)
        self.resume()


class Metrics(StepCallback):
    """Writes a line of metrics.jsonl every LOG_EVERY steps and at each validation, mirrors it to the logger, and
    updates the progress bar; raises RunError at a step whose loss or gradient is not finite.

    Losses and gradient norms stay on their device and are read together, since each read synchronises a GPU; steps not
    yet logged are saved in checkpoints. `translate` computes validation BLEU with the current weights, if wanted.
    """

    def __init__(
        self,
        run_dir: Path,
        optim: OptimConfig,
        batches: TranslationData,
        stopwatch: Stopwatch,
        translate: Callable[[Any], float] | None,
    ) -> None:
        self.folder, self.path, self.optim = run_dir / "checkpoints", run_dir / METRICS_NAME, optim
        self.stopwatch, self.translate, self.bytes_per_token = stopwatch, translate, batches.bytes_per_token()
        self.started = time.monotonic()  # wall-clock time may be set back
        self._unread: list[tuple[int, Tensor, Tensor]] = []  # step, mean loss of its microbatches, gradient norm
        self._read: list[list[float]] = []  # loss per target token, gradient norm before clipping
        self._last = (0.0, 0, 0, 0)
        self._progress: Progress | None = None  # on the first rank

    def state_dict(self) -> dict[str, Any]:
        return {"read": self._read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._read = state_dict["read"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last = self.stopwatch.reading()
        if trainer.is_global_zero:
            if self.path.exists():
                # Later rows will be written again; a kill can leave an incomplete last line.
                rows = [row for row in read_metrics(self.path) if row["step"] <= trainer.global_step]
                replace_file(self.path, "".join(json.dumps(row) + "\n" for row in rows))
                self.started -= rows[-1].get("time", 0) if rows else 0
            self._progress = Progress(trainer.max_steps, "steps", "training", done=trainer.global_step, lines="last")
            self._progress.update(0, **dict.fromkeys(SHOWN_METRICS.values()))

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        # 1. Every step: what is known of it without waiting for a GPU.
        step = trainer.global_step
        assert module.gradient_norm is not None
        loss = torch.stack(module.micro_losses).mean()  # each is scaled to a whole step
        self._unread.append((step, loss, module.gradient_norm))
        module.micro_losses.clear()
        if self._progress is not None:
            self._progress.reach(step, trainer.max_steps)
        # 2. Some: on every rank, as their losses are reduced.
        due = not step % LOG_EVERY or step == trainer.max_steps
        if due or trainer.strategy.root_device.type == "cpu":
            self.read(trainer)
        if not due or not trainer.is_global_zero or not self._read:
            return
        # 3. A line: means over the steps since the last one.
        losses, norms = zip(*self._read, strict=True)
        now, self._read = self.stopwatch.reading(), []
        seconds, *counts = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        row: dict[str, Any] = {
            "train/loss": sum(losses) / len(losses),
            "train/gradient_norm": sum(norms) / len(norms),
            "train/gradient_norm_max": max(norms),
            "learning_rate": learning_rate(step, module.config.optim, module.config.model.d_model),
        }
        if counts[0] and seconds > 0:
            names = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
            row |= {name: count / seconds for name, count in zip(names, counts, strict=True)}
        self._write(trainer, step, row)

    def read(self, trainer: pl.Trainer, pl_module: pl.LightningModule | None = None) -> None:
        """Read and check every step not yet read; called on all ranks together."""
        if not self._unread:
            return
        steps, shares, norms = zip(*self._unread, strict=True)
        losses = trainer.strategy.reduce(torch.stack(shares), reduce_op="mean")
        rows = torch.stack([losses, torch.stack(norms).to(losses.dtype)], dim=1).tolist()
        self._unread = []
        for step, (loss, norm) in zip(steps, rows, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"the loss or its gradient is not finite (loss {loss:g}, gradient norm {norm:g})"
                raise RunError(f"step {step}: {what}; {self._remedy()}")
        self._read += rows

    on_validation_start = read

    def check_weights(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse to save non-finite weights, as after too large a step, or those of unchecked steps."""
        self.read(trainer)
        if not all(bool(torch.isfinite(parameter).all()) for parameter in pl_module.parameters()):
            raise RunError(f"step {trainer.global_step}: weights are not finite; {self._remedy()}")

    def _remedy(self) -> str:
        saved = checkpoints(self.folder)
        last = f"the last good checkpoint is {saved[-1][1].name}" if saved else "there is no checkpoint yet"
        return f"{last}; lower {self.optim.rate_setting}"

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"validation/loss": pl_module.last_validation_loss}
        if self.bytes_per_token is not None:
            row["validation/bits_per_byte"] = row["validation/loss"] / (math.log(2) * self.bytes_per_token)
        if self.translate is not None:
            self.stopwatch.pause()
            row["validation/bleu"] = self.translate(pl_module.model)
            self.stopwatch.resume()
        self._write(trainer, trainer.global_step, row)

    def _write(self, trainer: pl.Trainer, step: int, row: dict[str, Any]) -> None:
        row = {name: value for name, value in row.items() if math.isfinite(value)}  # JSON has no NaN
        line = {"step": step, "time": round(time.monotonic() - self.started, 3), **row}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if trainer.logger is not None:
            trainer.logger.log_metrics(row, step=step)
        if self._progress is not None:
            side = "" if self.bytes_per_token is None else "target "  # documents have one side
            shown = {label.removeprefix(side): row[name] for name, label in SHOWN_METRICS.items() if name in row}
            self._progress.reach(step, trainer.max_steps, **shown)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._progress is not None:
            self._progress.close()

    on_exception = on_train_end


class AtomicCheckpointIO(CheckpointIO):
    """Writes each checkpoint completely and to disk under its name, or not at all, as Lightning's own writer does not
    across file systems; reads plain data only.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with signals_deferred():
            try:
                Path(path).parent.stat()  # a run's folder that was moved away is not made again
                with replacing(Path(path)) as temporary, temporary.open("wb") as file:
                    torch.save(checkpoint, file)
            except (OSError, RuntimeError) as error:  # torch's writer wraps the system's error in its own
                cause = error if isinstance(error, OSError) else error.__context__
                reason = cause.strerror if isinstance(cause, OSError) else str(error).partition("\n")[0]
                raise RunError(
                    f"{path}: this checkpoint cannot be written ({reason}); the earlier ones are intact: fix this, "
                    "and the same command resumes from the last one"
                ) from None

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class PeriodicCheckpoint(StepCallback, pl.callbacks.Checkpoint):
    """Writes checkpoints every N steps or minutes and at the last step, which is validated in any case, and keeps the
    last of them, as `optim` says. After `stop_after_minutes`, but at the last step, it stops this process's training
    with a checkpoint: InterruptedRun.

    They are written between steps: within a step, gradients of some microbatches would be lost. At a step with a
    validation the checkpoint is written after it: a run resumed from it does not validate there again, and would lack
    the validation's results.
    """

    def __init__(self, metrics: Metrics, stop_after_minutes: float | None) -> None:
        self._metrics, self._optim, self._stop_after_minutes = metrics, metrics.optim, stop_after_minutes
        self._started = self._saved_at = time.monotonic()
        self._stop_due = self._save_due = False  # at the end of the step, or of its validation

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_at = time.monotonic()
        if trainer.is_global_zero:
            self._metrics.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._metrics.folder, "step*.ckpt")

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        step, every = trainer.global_step, self._optim.checkpoint_every_n_steps
        last = step == trainer.max_steps
        self._stop_due = not last and _have_passed(self._stop_after_minutes, self._started, trainer)
        due = _have_passed(self._optim.checkpoint_every_n_minutes, self._saved_at, trainer)
        self._save_due = self._stop_due or last or due or (every is not None and step % every == 0)
        if last:
            trainer.should_stop = True  # Lightning then validates, whatever the interval
        elif step % self._optim.validate_every_n_steps:
            self._save_and_stop(trainer, module)

    def _save_and_stop(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._save_due:
            self._metrics.stopwatch.pause()
            self._metrics.check_weights(trainer, pl_module)
            trainer.save_checkpoint(self._metrics.folder / f"step{trainer.global_step:08d}.ckpt")
            self._saved_at = time.monotonic()
            if trainer.is_global_zero:
                remove_superseded(self._metrics.folder, self._optim)
            self._metrics.stopwatch.resume()
        if self._stop_due:
            passed = f"{self._stop_after_minutes:g} minutes have passed at step {trainer.global_step}"
            raise InterruptedRun(f"stop_after_minutes: {passed} of {trainer.max_steps}; the same command resumes")

    on_validation_end = _save_and_stop


def remove_superseded(folder: Path, optim: OptimConfig) -> None:
    """Remove all checkpoints but the newest and the last ones on schedule: with the one that a time limit adds off
    schedule, the final average would be of other steps than if training had never stopped.
    """
    saved, every = checkpoints(folder), optim.checkpoint_every_n_steps
    on_schedule = [path for step, path in saved if every is None or step % every == 0 or step == optim.max_steps]
    for _, path in saved[:-1]:
        if path not in on_schedule[-optim.keep_checkpoints :]:
            path.unlink(missing_ok=True)


def _have_passed(minutes: float | None, since: float, trainer: pl.Trainer) -> bool:
    """The same answer on every rank, by the first rank's clock."""
    if minutes is None:
        return False
    if trainer.world_size > 1 and trainer.strategy.root_device.type == "cuda" and trainer.global_step % LOG_EVERY:
        return False  # the broadcast synchronises the GPU
    passed: bool = trainer.strategy.broadcast(time.monotonic() - since >= 60 * minutes)
    return passed


def _synchronised() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()
