"""Callbacks around the training steps: timing, the metrics file, BLEU on validation sentences."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from rpr.config.train import HardwareConfig
from rpr.data.batches import Batch
from rpr.io.atomic import replace_file
from rpr.progress import Progress
from rpr.records.files import SHOWN_METRICS, read_metrics
from rpr.runs.runtime import device_name, peak_memory
from rpr.training.guards import LOG_EVERY, NonFiniteGuard
from rpr.training.module import StepCallback, TranslationModule, as_translation_module, learning_rate

WARM_UP_STEPS = 10  # excluded from every speed, while allocators, caches and kernels warm up
_MEASURED = ("seconds", "processor_seconds", "steps", "source_tokens", "target_tokens")


class Stopwatch(StepCallback):
    """Time spent on training steps, including data wait; excluding warm-up, validation and checkpoints.

    Saved in checkpoints with the peak memory: a resumed run reports those of all its parts (each with a warm-up of its
    own), or, on another device, of the parts since.
    """

    def __init__(self, hardware: HardwareConfig) -> None:
        self.hardware = hardware
        self.earlier_peak = 0  # bytes
        self.seconds = 0.0
        self.processor_seconds = 0.0  # of all threads of this process
        self.steps = 0
        self.source_tokens = 0
        self.target_tokens = 0
        self._seen = 0
        self._since: tuple[float, float] | None = None  # clock and processor time when it was last started
        self._last_step = _now()
        self._suspended = False  # by Ctrl-Z, in the current step

    def state_dict(self) -> dict[str, Any]:
        self.pause()  # until the next step, if it is running
        measured = {name: getattr(self, name) for name in _MEASURED}
        return measured | {"earlier_peak": self.peak_memory()[0], "device": device_name(self.hardware)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["device"] == device_name(self.hardware):
            for name in (*_MEASURED, "earlier_peak"):
                setattr(self, name, state_dict[name])

    def peak_memory(self) -> tuple[int, str]:
        """Of all parts in bytes, and what was counted."""
        peak, kind = peak_memory(self.hardware)
        return max(peak, self.earlier_peak), kind

    def pause(self, *_: Any, **__: Any) -> None:
        if self._since is not None:
            _synchronise()
            self._add_until(_now())

    def _add_until(self, until: tuple[float, float]) -> None:
        assert self._since is not None
        self.seconds += until[0] - self._since[0]
        self.processor_seconds += until[1] - self._since[1]
        self._since = None

    def resume(self, *_: Any, **__: Any) -> None:
        if self._since is None and self._seen >= WARM_UP_STEPS:
            _synchronise()
            self._since = _now()

    on_validation_start = on_train_end = pause  # as hooks they are given what they do not need
    on_validation_end = resume

    @property
    def cores_used(self) -> float | None:
        """Mean number of cores used (CPU time over wall time) until the last pause: less than the threads on a shared
        machine.
        """
        return self.processor_seconds / self.seconds if self.seconds > 0 else None

    def reading(self) -> tuple[float, int, int, int]:
        """Seconds, steps, source tokens and target tokens measured so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since[0]
        return self.seconds + running, self.steps, self.source_tokens, self.target_tokens

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, lambda *_: setattr(self, "_suspended", True))

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        if self._since is not None and self._suspended:  # this step is not measured
            self._add_until(max(self._since, self._last_step))
        elif self._since is not None:
            self.steps += 1
            self.source_tokens += batch.step_source_tokens
            self.target_tokens += batch.step_target_tokens
        self._suspended = False
        self._seen += 1
        self.resume()
        self._last_step = _now()


class Metrics(StepCallback):
    """Writes a line of metrics.jsonl every LOG_EVERY steps and at each validation, mirrors it to W&B, and updates the
    progress bar.

    `translate` computes validation BLEU with the current weights; None for no BLEU. `bytes_per_token` is of validation
    documents.
    """

    def __init__(
        self,
        path: Path,
        stopwatch: Stopwatch,
        guard: NonFiniteGuard,
        translate: Callable[[Any], float] | None,
        bytes_per_token: float | None = None,
    ) -> None:
        self.path = path
        self.stopwatch = stopwatch
        self.guard = guard
        self.translate = translate
        self.bytes_per_token = bytes_per_token
        self.started = time.monotonic()  # wall-clock time may be set back
        self._last = (0.0, 0, 0, 0)
        self._progress: Progress | None = None  # on the first rank

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
        step = trainer.global_step
        if self._progress is not None:
            self._progress.reach(step, trainer.max_steps)
        if step % LOG_EVERY and step != trainer.max_steps:
            return
        self.guard.read(trainer, module)  # on every rank: their losses are reduced
        done = self.guard.take()
        if not trainer.is_global_zero or not done:
            return
        now = self.stopwatch.reading()
        seconds, *counts = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        row: dict[str, Any] = {
            "train/loss": sum(taken.loss for taken in done) / len(done),  # the mean over the steps since the last line
            "train/gradient_norm": sum(taken.gradient_norm for taken in done) / len(done),
            "train/gradient_norm_max": max(taken.gradient_norm for taken in done),
            "learning_rate": learning_rate(step, module.config.optim, module.config.model.d_model),
        }
        if counts[0] and seconds > 0:
            names = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
            row |= {name: count / seconds for name, count in zip(names, counts, strict=True)}
        self._write(trainer, step, row)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"validation/loss": as_translation_module(pl_module).last_validation_loss}
        if self.bytes_per_token is not None:
            row["validation/bits_per_byte"] = row["validation/loss"] / (math.log(2) * self.bytes_per_token)
        if self.translate is not None:
            self.stopwatch.pause()
            row["validation/bleu"] = self.translate(pl_module)
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


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
