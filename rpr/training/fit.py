"""Train one run, from the prepared data to its last checkpoint; resumes from the newest checkpoint there is."""

import logging
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from rpr.config.train import TrainConfig
from rpr.data.batches import accumulation
from rpr.data.cache import PreparedData
from rpr.environment import is_first_rank
from rpr.errors import RunError
from rpr.io.escape import note
from rpr.io.system import reset_resident_peak
from rpr.model.positions import codes
from rpr.records.files import read_metrics
from rpr.records.record import Git, Training
from rpr.runs.loading import checkpoints, start_from
from rpr.training.callbacks import WARM_UP_STEPS, AtomicCheckpointIO, Metrics, PeriodicCheckpoint, Stopwatch
from rpr.training.module import TranslationData, TranslationModule
from rpr.version import versions


def fit(
    config: TrainConfig,
    data: PreparedData,
    run_dir: Path,
    *,
    logger: Logger | None = None,
    validation_bleu: Callable[[nn.Module], float] | None = None,
) -> tuple[int, int, Training]:
    """Train to config.optim.max_steps, with checkpoints in <run_dir>/checkpoints, including one of the last step.

    Returns the steps, the number of parameters, and what was measured, over all parts of the run if it was resumed;
    speeds are None if too few steps were run. Raises DataError if the newest checkpoint is damaged, RecordError if
    metrics.jsonl is, InterruptedRun if config.stop_after_minutes have passed, RunError if the loss or a gradient became
    non-finite, or a checkpoint could not be written.
    """
    # 1. The model, its batches, and the callbacks, of which the one that stops comes before the one that saves.
    _silence_lightning()
    reset_resident_peak()  # preparing the corpus, or an earlier job of a sweep, is not part of the run's peak
    module = TranslationModule(config, len(data.vocabulary))
    if config.hardware.precision == "64":  # Lightning does it only after it has read the checkpoint, into float32
        module.double()
    batches = TranslationData(config, data)
    stopwatch = Stopwatch(config.hardware)
    metrics = Metrics(run_dir, config.optim, batches, stopwatch, validation_bleu)
    saving = PeriodicCheckpoint(metrics, config.stop_after_minutes)
    trainer = _trainer(config, run_dir, [SameStart(config, data), stopwatch, metrics, saving], logger)
    # 2. Where to start: the newest checkpoint, the weights of another run, or chance.
    saved = checkpoints(metrics.folder)
    if not saved and config.origin is not None:
        start_from(config.origin, module.model, run_dir)
    # 3. Train.
    try:
        trainer.fit(module, batches, ckpt_path=saved[-1][1] if saved else None, weights_only=True)
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # Lightning turned it into an exit code
            raise KeyboardInterrupt from None
        raise
    # 4. What was measured.
    seconds, *counts = stopwatch.reading()
    steps, source, target = (count / seconds if seconds > 0 and count else None for count in counts)
    peak, kind = stopwatch.peak_memory()
    logged = read_metrics(metrics.path) if is_first_rank() else []
    training = Training(
        excludes=f"the first {WARM_UP_STEPS} steps, validation, checkpoints",
        seconds=seconds,
        measured_steps=counts[0],
        steps_per_second=steps,
        source_tokens_per_second=source,
        target_tokens_per_second=target,
        peak_memory_bytes=peak,
        peak_memory_kind=kind,
        train_loss=_last(logged, "train/loss"),
        validation_loss=_last(logged, "validation/loss"),
        matmul_precision=torch.get_float32_matmul_precision(),
        precision=config.hardware.precision,
        padding_waste=batches.stream.padding_waste(),
        cores_used=stopwatch.cores_used if config.hardware.accelerator == "cpu" else None,
    )
    return trainer.global_step, sum(p.numel() for p in module.parameters()), training


def _trainer(config: TrainConfig, run_dir: Path, callbacks: list[pl.Callback], logger: Logger | None) -> pl.Trainer:
    # 1. Lightning does what BatchSpec and our callbacks leave to it, and prints nothing.
    hardware, optim = config.hardware, config.optim
    accumulate = accumulation(optim.microbatches_per_step, hardware.num_ranks)
    trainer = pl.Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.num_nodes,
        strategy=DDPStrategy(gradient_as_bucket_view=True) if hardware.num_ranks > 1 else "auto",
        precision="64-true" if hardware.precision == "64" else "32-true",  # of bf16 the loss rounds weights
        # Lightning's own choice would believe whatever variables of SLURM, LSF or torchrun there are.
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if hardware.num_ranks > 1 else LightningEnvironment()],
        max_steps=optim.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        val_check_interval=optim.validate_every_n_steps * accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=logger if logger is not None else False,
        log_every_n_steps=10**9,  # rpr.training.callbacks.Metrics logs
        callbacks=callbacks,
        enable_progress_bar=False,  # rpr.training.callbacks.Metrics has its own
        enable_model_summary=False,
        default_root_dir=run_dir,
    )
    # 2. With several ranks Lightning shares a SIGTERM flag before every microbatch, which synchronises the GPU. Ours
    # may die at once: a run can always resume from its files.
    loop = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


class SameStart(pl.Callback):
    """Checks that all ranks start at the same step with the same settings, code and corpus: nodes may read different
    folders. A resumed run multiplies float32 matrices as it began: matmul_precision=auto depends on the device.
    """

    def __init__(self, config: TrainConfig, data: PreparedData) -> None:
        self._config, self._data = config, data

    def common(self) -> Any:
        """What decides a run, and when it stops: a rank without a time limit would not share the others' check."""
        config, git = self._config, Git.here()
        schemes = codes((config.position.encoder, config.position.decoder))
        return self._data.meta.key, config.run_id, config.stop_after_minutes, schemes, versions(), git.commit

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Undoes Lightning's handling of SIGTERM (communication). Raises RunError on every rank if they differ."""
        if trainer.world_size == 1:
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        starts: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(starts, (trainer.global_step, self.common()))
        if others := [rank for rank, start in enumerate(starts) if start != starts[0]]:
            what = "settings, code, packages, corpora or checkpoints; give every node the same ones"
            raise RunError(f"ranks 0 and {others[0]} start with different {what}")

    def state_dict(self) -> dict[str, Any]:
        return {"precision": torch.get_float32_matmul_precision()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        began, here = state_dict["precision"], torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(began)
        if began != here and is_first_rank():
            note(f"hardware.matmul_precision: the run began with {began} and keeps it; here auto would be {here}")


def _last(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((row[name] for row in reversed(rows) if name in row), None)


def _silence_lightning() -> None:
    """Silence Lightning's banners, adverts and advice to use srun; keep its warnings about the run itself."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # The last one is of torch.compile, which traces the functions whose results are cached.
    unasked = (".*does not have many workers.*", ".*LeafSpec.*", "The `srun` command is available", ".*lru_cache.*")
    for message in unasked:
        warnings.filterwarnings("ignore", message)
