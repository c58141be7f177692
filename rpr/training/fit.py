"""One training, from the prepared data to the last checkpoint; resumes from the newest one it finds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.loggers import WandbLogger
from torch import nn

from rpr.config import TrainConfig
from rpr.data.batches import accumulation
from rpr.data.cache import PreparedData
from rpr.errors import DataError, RunError
from rpr.training import averaging, runtime
from rpr.training.callbacks import WARM_UP_STEPS, Checkpoints, Metrics, Stopwatch
from rpr.training.datamodule import TranslationData
from rpr.training.module import TranslationModule

EXCLUDES = f"the first {WARM_UP_STEPS} steps, validation, checkpoints"


@dataclass(frozen=True)
class Outcome:
    """What a training gave. A speed is None where too few steps were run to measure one (a resume near the end)."""

    steps: int
    parameters: int
    seconds: float
    measured_steps: int
    steps_per_second: float | None
    source_tokens_per_second: float | None
    target_tokens_per_second: float | None
    peak_memory_bytes: int
    peak_memory_kind: str
    train_loss: float | None
    validation_loss: float | None


def fit(
    config: TrainConfig,
    data: PreparedData,
    run_dir: Path,
    *,
    logger: WandbLogger | None,
    validation_bleu: Callable[[nn.Module], float] | None,
) -> Outcome:
    """Train to config.optim.max_steps and leave checkpoints in <run_dir>/checkpoints, the last step's among them.

    Raises:
        RunError: the loss became non-finite.
    """
    _quieten()
    hardware, optim = config.hardware, config.optim
    module = TranslationModule(config, len(data.vocabulary))
    stopwatch = Stopwatch()
    every = optim.checkpoint_every_n_minutes
    folder = run_dir / "checkpoints"
    checkpoints = Checkpoints(
        folder,
        stopwatch,
        keep=optim.keep_checkpoints,
        every_n_steps=optim.checkpoint_every_n_steps,
        every=None if every is None else timedelta(minutes=every),
    )
    translate = None if validation_bleu is None else lambda shell: validation_bleu(shell.model)
    metrics = Metrics(run_dir / "metrics.jsonl", stopwatch, translate)
    terminal = sys.stderr.isatty()
    accumulate = accumulation(optim.units_per_step, hardware.num_ranks)
    trainer = pl.Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.num_nodes,
        strategy="ddp" if hardware.num_ranks > 1 else "auto",
        precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
        max_steps=optim.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=optim.gradient_clip_norm,
        val_check_interval=optim.validate_every_n_steps * accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=logger if logger is not None else False,
        log_every_n_steps=10**9,  # rpr.training.callbacks.Metrics logs
        callbacks=[stopwatch, checkpoints, metrics, *([TQDMProgressBar(refresh_rate=10)] if terminal else [])],
        enable_progress_bar=terminal,
        enable_model_summary=False,
        default_root_dir=run_dir,
    )
    trainer.fit(module, TranslationData(config, data), ckpt_path=_newest(folder), weights_only=True)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters()):
        raise RunError(f"the weights became non-finite; lower optim.learning_rate_scale, or resume from {folder}")
    last = folder / f"step{trainer.global_step:08d}.ckpt"
    if not last.exists():
        trainer.save_checkpoint(last)
    seconds, steps, source, target = stopwatch.reading()
    measured = steps > 0 and seconds > 0
    peak, kind = runtime.peak_memory(hardware)
    train_loss = module.last_train_loss
    return Outcome(
        steps=trainer.global_step,
        parameters=sum(p.numel() for p in module.parameters()),
        seconds=seconds,
        measured_steps=steps,
        steps_per_second=steps / seconds if measured else None,
        source_tokens_per_second=source / seconds if measured else None,
        target_tokens_per_second=target / seconds if measured else None,
        peak_memory_bytes=peak,
        peak_memory_kind=kind,
        train_loss=None if train_loss is None else float(train_loss),
        validation_loss=module.last_validation_loss,
    )


def _newest(folder: Path) -> Path | None:
    """The newest checkpoint that can be read; a damaged one is set aside, with a line that says so."""
    for _, path in reversed(averaging.checkpoints(folder)):
        try:
            averaging.load_checkpoint(path)
        except DataError as error:
            print(f"rpr-cli: {error}", file=sys.stderr)
            with contextlib.suppress(FileNotFoundError):  # another rank was quicker
                path.replace(path.with_name(f"{path.name}.damaged"))  # or it would spoil the average at the end
            continue
        return path
    return None


def _quieten() -> None:
    """Lightning's banners and adverts say nothing about a run; its warnings that do are kept."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("pytorch_lightning", "lightning.pytorch", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*IterableDataset.*",
        ".*Checkpoint directory.*",
        ".*mid-epoch.*",
        ".*LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", message)


def averaged_weights(run_dir: Path, last: int) -> tuple[dict[str, Any], str]:
    """Weights of the mean of the last N checkpoints of a run, and the words that say which.

    Raises:
        DataError: the run has no checkpoint.
    """
    found = averaging.checkpoints(run_dir / "checkpoints")[-last:]
    if not found:
        raise DataError(f"{run_dir}: no checkpoints; train the run first")
    steps = [step for step, _ in found]
    if len(found) == 1:
        return averaging.model_weights(found[0][1]), f"step {steps[0]}"
    return averaging.average([path for _, path in found]), f"average of {len(found)} (steps {steps[0]} to {steps[-1]})"
