"""Checks of every training step, for non-finite gradients and loss spikes; and its loss and gradient norm for the log.

These stay on their device and are read together every LOG_EVERY steps, since each read synchronises a GPU. A step with
a non-finite gradient changes no weight even so: the fused optimiser skips it on the device (found_inf).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from rpr.config.train import OptimConfig
from rpr.data.batches import Batch
from rpr.errors import RunError
from rpr.io.atomic import replace_file
from rpr.io.escape import note
from rpr.runs.checkpoints import checkpoints
from rpr.training.datamodule import TranslationData
from rpr.training.module import StepCallback, TranslationModule

LOG_EVERY = 25  # steps between two lines of metrics.jsonl, and between two reads from a GPU
SPIKE_DEVIATIONS = 6.0  # above the running mean; a normal step exceeds it once in a billion
MAX_CONSECUTIVE_SKIPS = 20  # after more than these the weights are at fault, not a batch
SPIKE_MEMORY = 100  # steps in the running mean and deviation; before this many, no spike is reported


class Step(NamedTuple):
    """One optimiser step: its loss per target token, and its gradient norm before clipping."""

    step: int
    loss: float
    gradient_norm: float


@dataclass
class RunningStats:
    """Running mean and variance of the loss: unweighted over the first SPIKE_MEMORY steps, then exponential."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    def deviations(self, value: float) -> float | None:
        """Standard deviations above the mean; None before SPIKE_MEMORY steps."""
        if self.seen < SPIKE_MEMORY or self.variance <= 0:
            return None
        return (value - self.mean) / math.sqrt(self.variance)

    def add(self, value: float) -> None:
        self.seen += 1
        share = 1 / min(self.seen, SPIKE_MEMORY)
        difference = value - self.mean
        self.mean += share * difference
        self.variance = (1 - share) * (self.variance + share * difference * difference)


class NonFiniteGuard(StepCallback):
    """Stops at a non-finite gradient, or counts and skips the step; reports loss spikes.

    The counts are saved in checkpoints. Raises RunError with non_finite="stop", naming the step, its pairs and the
    last good checkpoint.
    """

    def __init__(self, run_dir: Path, optim: OptimConfig, batches: TranslationData) -> None:
        self.run_dir, self.optim, self.batches = run_dir, optim, batches
        self.skipped_steps = 0
        self.loss_spikes = 0
        self._consecutive_skips = 0
        self._unread: list[tuple[int, Tensor, Tensor]] = []  # step, losses of its microbatches, gradient norm
        self._read: list[Step] = []
        self._loss_stats = RunningStats()

    @property
    def state_key(self) -> str:
        return "Guard"  # the key in existing checkpoints: an earlier name of this class

    def state_dict(self) -> dict[str, Any]:
        return {
            "skipped_steps": self.skipped_steps,
            "loss_spikes": self.loss_spikes,
            "consecutive_skips": self._consecutive_skips,
            "spread": dict(vars(self._loss_stats)),
            "read": [list(step) for step in self._read],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped_steps, self.loss_spikes = state_dict["skipped_steps"], state_dict["loss_spikes"]
        self._consecutive_skips = state_dict.get("consecutive_skips", 0)  # older checkpoints lack it
        self._loss_stats = RunningStats(**state_dict["spread"])
        self._read = [Step(*step) for step in state_dict["read"]]

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        assert module.gradient_norm is not None
        self._unread.append((trainer.global_step, torch.stack(module.micro_losses), module.gradient_norm))
        module.micro_losses.clear()
        if trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOG_EVERY == 0:
            self.read(trainer, module)

    def before_saving(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse a checkpoint of non-finite weights or of unchecked steps. Raises RunError as for a step, and if
        the weights are not finite, after too large a step.
        """
        self.read(trainer, pl_module)
        if not _finite(pl_module):
            raise RunError(
                f"step {trainer.global_step}: weights are not finite; {self._last_good_checkpoint()}; "
                f"lower {self.optim.rate_setting}"
            )

    def take(self) -> list[Step]:
        """The steps read since the last call, without those whose loss or gradient is not finite."""
        steps, self._read = self._read, []
        return steps

    def read(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read and check every step not yet read; called on all ranks together."""
        if not self._unread:
            return
        shares = torch.stack([losses.mean() for _, losses, _ in self._unread])  # each scaled to a whole step
        losses = trainer.strategy.reduce(shares, reduce_op="mean")
        norms = torch.stack([norm for _, _, norm in self._unread]).to(losses.dtype)
        rows = torch.stack([losses, norms]).tolist()
        unread, self._unread = self._unread, []
        for (step, micro_losses, _), loss, norm in zip(unread, *rows, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._not_finite(trainer, step, loss, norm, micro_losses)
                continue
            self._consecutive_skips = 0
            self._check_for_spike(trainer, step, loss)
            self._read.append(Step(step, loss, norm))

    on_validation_start = read

    def _not_finite(self, trainer: pl.Trainer, step: int, loss: float, norm: float, micro_losses: Tensor) -> None:
        pairs = self.batches.pairs_of_step(step - 1)
        report = self.run_dir / f"not_finite_step{step:08d}.json"
        if trainer.is_global_zero:
            document = {
                "step": step,
                "loss": str(loss),
                "gradient_norm": str(norm),
                "losses_of_the_micro_batches_of_rank_0": [str(value) for value in micro_losses.tolist()],
                "pairs": [{"pair": pair, **self.batches.text_of_pair(pair)} for pair in pairs],
            }
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            # A window of bytes may begin inside a character, whose lone surrogate JSON escapes as Python does.
            replace_file(report, text.encode("utf-8", "backslashreplace").decode())
        what = (
            f"step {step}: the loss or its gradient is not finite (loss {loss:g}, gradient norm {norm:g}; "
            f"{self._listed(pairs)}, written to {report.name})"
        )
        self._consecutive_skips += 1
        if (
            self.optim.non_finite == "skip"
            and not math.isfinite(norm)
            and self._consecutive_skips <= MAX_CONSECUTIVE_SKIPS
            and _finite(trainer.lightning_module)
        ):
            self.skipped_steps += 1
            _report(trainer, f"{what}; the step is skipped, with no weight changed (optim.non_finite=skip)")
            return
        skip = "" if self.optim.non_finite == "skip" else "set optim.non_finite=skip or "
        raise RunError(
            f"{what}; {self._last_good_checkpoint()}; check these {self.batches.items}, or {skip}lower "
            f"{self.optim.rate_setting} (a new run, from step 0)"
        )

    def _listed(self, pairs: list[int]) -> str:
        first = ", ".join(map(str, pairs[:3])) + ", ..." * (len(pairs) > 3)
        return f"{len(pairs)} {self.batches.items} of the token cache: {first}"

    def _last_good_checkpoint(self) -> str:
        saved = checkpoints(self.run_dir / "checkpoints")
        return f"the last good checkpoint is {saved[-1][1].name}" if saved else "there is no checkpoint yet"

    def _check_for_spike(self, trainer: pl.Trainer, step: int, loss: float) -> None:
        deviations = self._loss_stats.deviations(loss)
        if deviations is not None and deviations > SPIKE_DEVIATIONS:
            self.loss_spikes += 1
            _report(
                trainer,
                f"step {step}: loss spike: {loss:.4g}, {deviations:.0f} standard deviations above the running mean of "
                f"{self._loss_stats.mean:.4g} ({self._listed(self.batches.pairs_of_step(step - 1))})",
            )
        self._loss_stats.add(loss)


def _finite(module: pl.LightningModule) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())


def _report(trainer: pl.Trainer, line: str) -> None:
    if trainer.is_global_zero:
        note(line)
