"""What watches the steps: gradients that are not finite, losses that jump; and the numbers of every step for the log.

The numbers stay on their device and are read together every few steps, since reading each would make a GPU wait. A
step whose gradient is not finite changes no weight even so: the fused optimiser is told on the device (found_inf).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from rpr.data.batches import Batch
from rpr.errors import RunError
from rpr.io.atomic import replace_file
from rpr.runs.checkpoints import checkpoints
from rpr.training.module import ends_step, shell

LOG_EVERY = 25  # steps between two lines of metrics.jsonl, and between two looks at the numbers on a GPU
SPIKE_DEVIATIONS = 6.0  # above the running mean; a normal step is so far off once in a billion
MOST_SKIPPED_IN_A_ROW = 20  # after so many no batch is at fault, but the weights
SPIKE_MEMORY = 100  # steps that the running mean and deviation remember, and wait for at first


class Step(NamedTuple):
    """One update: the loss per target token of the whole step, and the norm of its gradient before clipping."""

    step: int
    loss: float
    gradient_norm: float


@dataclass
class Spread:
    """Running mean and variance of the loss, old steps forgotten."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    def deviations(self, value: float) -> float | None:
        """How far above the mean, in standard deviations; None before enough steps were seen."""
        if self.seen < SPIKE_MEMORY or self.variance <= 0:
            return None
        return (value - self.mean) / math.sqrt(self.variance)

    def add(self, value: float) -> None:
        self.seen += 1
        share = 1 / min(self.seen, SPIKE_MEMORY)
        difference = value - self.mean
        self.mean += share * difference
        self.variance = (1 - share) * (self.variance + share * difference * difference)


class Guard(pl.Callback):
    """Stops at a gradient that is not finite, or counts it and goes on; tells of losses that jump.

    `pairs_of` gives the pairs of a step by their numbers in the token cache, `text_of` the two sentences of one. The
    counts are kept in checkpoints.

    Raises:
        RunError: with non_finite="stop", naming the step, its pairs and the last good checkpoint.
    """

    def __init__(
        self,
        run_dir: Path,
        non_finite: str,
        pairs_of: Callable[[int], list[int]],
        text_of: Callable[[int], tuple[str, str]],
    ) -> None:
        self.run_dir, self.non_finite = run_dir, non_finite
        self.pairs_of, self.text_of = pairs_of, text_of
        self.skipped_steps = 0
        self.loss_spikes = 0
        self._skipped_in_a_row = 0
        self._waiting: list[tuple[int, Tensor, Tensor]] = []  # step, losses of its micro-batches, gradient norm
        self._read: list[Step] = []
        self._spread = Spread()

    def state_dict(self) -> dict[str, Any]:
        return {
            "skipped_steps": self.skipped_steps,
            "loss_spikes": self.loss_spikes,
            "spread": dict(vars(self._spread)),
            "read": [list(step) for step in self._read],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped_steps, self.loss_spikes = state_dict["skipped_steps"], state_dict["loss_spikes"]
        self._spread = Spread(**state_dict["spread"])
        self._read = [Step(*step) for step in state_dict["read"]]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if not ends_step(trainer, batch_idx):
            return
        module = shell(pl_module)
        assert module.gradient_norm is not None
        self._waiting.append((trainer.global_step, torch.stack(module.micro_losses), module.gradient_norm))
        module.micro_losses.clear()
        if trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOG_EVERY == 0:
            self.read(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.read(trainer, pl_module)

    def before_saving(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """No checkpoint of weights that are not finite, or with steps not looked at.

        Raises:
            RunError: as for a step; or the weights are not finite, from a step too long.
        """
        self.read(trainer, pl_module)
        if not _finite(pl_module):
            raise RunError(
                f"step {trainer.global_step}: weights are not finite; {self._last_good()}; "
                "lower optim.learning_rate_scale"
            )

    def take(self) -> list[Step]:
        """The steps read since the last call; those with an infinite loss or gradient left out."""
        taken, self._read = self._read, []
        return taken

    def read(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at every step that is waiting; on all ranks alike."""
        if not self._waiting:
            return
        shares = torch.stack([losses.mean() for _, losses, _ in self._waiting])  # each scaled to a whole step
        losses = trainer.strategy.reduce(shares, reduce_op="mean")
        norms = torch.stack([norm for _, _, norm in self._waiting]).to(losses.dtype)
        rows = torch.stack([losses, norms]).tolist()
        waiting, self._waiting = self._waiting, []
        for (step, micro_losses, _), loss, norm in zip(waiting, *rows, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._not_finite(trainer, step, loss, norm, micro_losses)
                continue
            self._skipped_in_a_row = 0
            self._look_for_a_spike(trainer, step, loss)
            self._read.append(Step(step, loss, norm))

    def _not_finite(self, trainer: pl.Trainer, step: int, loss: float, norm: float, micro_losses: Tensor) -> None:
        pairs = self.pairs_of(step - 1)
        report = self.run_dir / f"not_finite_step{step:08d}.json"
        if trainer.is_global_zero:
            texts = [(pair, *self.text_of(pair)) for pair in pairs]
            document = {
                "step": step,
                "loss": str(loss),
                "gradient_norm": str(norm),
                "losses_of_the_micro_batches_of_rank_0": [str(value) for value in micro_losses.tolist()],
                "pairs": [{"pair": pair, "source": source, "target": target} for pair, source, target in texts],
            }
            replace_file(report, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        what = (
            f"step {step}: the loss or its gradient is not finite (loss {loss:g}, norm of the gradient {norm:g}; "
            f"{_named(pairs)}, written out in {report.name})"
        )
        self._skipped_in_a_row += 1
        if (
            self.non_finite == "skip"
            and not math.isfinite(norm)
            and self._skipped_in_a_row <= MOST_SKIPPED_IN_A_ROW
            and _finite(trainer.lightning_module)
        ):
            self.skipped_steps += 1
            _tell(trainer, f"{what}; no weight was changed, and the step is counted (optim.non_finite=skip)")
            return
        raise RunError(
            f"{what}; {self._last_good()}; lower optim.learning_rate_scale, look at these pairs, "
            "or set optim.non_finite=skip"
        )

    def _last_good(self) -> str:
        found = checkpoints(self.run_dir / "checkpoints")
        return f"the last good checkpoint is {found[-1][1].name}" if found else "there is no checkpoint yet"

    def _look_for_a_spike(self, trainer: pl.Trainer, step: int, loss: float) -> None:
        deviations = self._spread.deviations(loss)
        if deviations is not None and deviations > SPIKE_DEVIATIONS:
            self.loss_spikes += 1
            _tell(
                trainer,
                f"step {step}: the loss jumped to {loss:.4g}, {deviations:.0f} standard deviations above its mean of "
                f"{self._spread.mean:.4g} ({_named(self.pairs_of(step - 1))})",
            )
        self._spread.add(loss)


def _finite(module: pl.LightningModule) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())


def _named(pairs: list[int]) -> str:
    return f"{len(pairs)} pairs of the token cache: {', '.join(map(str, pairs[:3]))}{', ...' if len(pairs) > 3 else ''}"


def _tell(trainer: pl.Trainer, line: str) -> None:
    if trainer.is_global_zero:
        print(f"rpr-cli: {line}", file=sys.stderr, flush=True)
