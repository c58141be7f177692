"""What happens round the steps: timing, the metrics file, BLEU on validation sentences, checkpoints."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from rpr.data.batches import Batch
from rpr.training.module import TranslationModule

WARM_UP_STEPS = 10  # left out of every speed: allocators, caches and kernels settle in them
LOG_EVERY = 25


class Stopwatch(pl.Callback):
    """Time spent on training steps, data wait included; warm-up, validation and checkpoints left out."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.source_tokens = 0
        self.target_tokens = 0
        self._seen = 0
        self._running_since: float | None = None

    def pause(self) -> None:
        if self._running_since is not None:
            _synchronise()
            self.seconds += time.perf_counter() - self._running_since
            self._running_since = None

    def resume(self) -> None:
        if self._running_since is None and self._seen >= WARM_UP_STEPS:
            _synchronise()
            self._running_since = time.perf_counter()

    def reading(self) -> tuple[float, int, int, int]:
        """Seconds, steps, source tokens and target tokens measured so far."""
        running = 0.0 if self._running_since is None else time.perf_counter() - self._running_since
        return self.seconds + running, self.steps, self.source_tokens, self.target_tokens

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self._running_since is not None:
            self.steps += 1
            self.source_tokens += int(batch.step_source_tokens or 0)
            self.target_tokens += int(batch.step_target_tokens or 0)
        self._seen += 1
        self.resume()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pause()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.resume()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pause()


class Checkpoints(ModelCheckpoint):
    """The last N checkpoints, by steps or by minutes; the stopwatch stands while one is written."""

    def __init__(
        self, folder: Path, stopwatch: Stopwatch, *, keep: int, every_n_steps: int | None, every: Any | None
    ) -> None:
        super().__init__(
            folder,
            filename="step{step:08d}",
            auto_insert_metric_name=False,
            monitor="step",
            mode="max",
            save_top_k=keep,
            every_n_train_steps=every_n_steps,
            train_time_interval=every,
            enable_version_counter=False,  # a step's file is replaced, not put beside as step...-v1, which nobody reads
        )
        self._stopwatch = stopwatch

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        self._stopwatch.pause()
        super()._save_checkpoint(trainer, filepath)
        self._stopwatch.resume()


class Metrics(pl.Callback):
    """One line of metrics.jsonl every few steps and at each validation; a mirror in W&B; a plain line where no bar is.

    `translate` turns the current weights into validation BLEU, or is None.
    """

    def __init__(self, path: Path, stopwatch: Stopwatch, translate: Callable[[Any], float] | None) -> None:
        self.path = path
        self.stopwatch = stopwatch
        self.translate = translate
        self.started = time.time()
        self._last = (0.0, 0, 0, 0)
        self._losses: list[Tensor] = []  # of the micro-batches since the last line, left on their device

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self.path.exists():
            # A kill can cut the last line; what follows must not be glued to it.
            whole = self.path.read_bytes()
            if whole and not whole.endswith(b"\n"):
                self.path.write_bytes(whole[: whole.rfind(b"\n") + 1])

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if not trainer.is_global_zero:
            return
        loss = _shell(pl_module).last_train_loss
        assert loss is not None
        self._losses.append(loss)
        if (batch_idx + 1) % trainer.accumulate_grad_batches or (step % LOG_EVERY and step != trainer.max_steps):
            return
        now = self.stopwatch.reading()
        seconds, steps, source, target = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        # The mean over the steps since the last line, of this rank's share (each scaled to a whole step).
        mean = float(torch.stack(self._losses).mean())
        self._losses.clear()
        row: dict[str, Any] = {"train/loss": mean, "learning_rate": trainer.optimizers[0].param_groups[0]["lr"]}
        if steps and seconds > 0:
            row["steps_per_second"] = steps / seconds
            row["source_tokens_per_second"] = source / seconds
            row["target_tokens_per_second"] = target / seconds
        self._write(trainer, step, row)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"validation/loss": _shell(pl_module).last_validation_loss}
        if self.translate is not None:
            row["validation/bleu"] = self.translate(pl_module)
        self._write(trainer, trainer.global_step, row)

    def _write(self, trainer: pl.Trainer, step: int, row: dict[str, Any]) -> None:
        row = {name: value for name, value in row.items() if math.isfinite(value)}  # NaN is no JSON
        line = {"step": step, "time": round(time.time() - self.started, 3), **row}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if trainer.logger is not None:
            trainer.logger.log_metrics(row, step=step)
        if not sys.stderr.isatty():
            shown = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if "source" not in name)
            print(f"step {step}/{trainer.max_steps}  {shown}", file=sys.stderr, flush=True)


def _shell(module: pl.LightningModule) -> TranslationModule:
    assert isinstance(module, TranslationModule)
    return module


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
