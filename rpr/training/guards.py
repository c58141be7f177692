"""Checks of every training step for a non-finite loss or gradient; and its loss and gradient norm for the log.

These stay on their device and are read together every LOG_EVERY steps, since each read synchronises a GPU.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from rpr.config.train import OptimConfig
from rpr.data.batches import Batch
from rpr.errors import RunError
from rpr.io.atomic import replace_file
from rpr.runs.checkpoints import checkpoints
from rpr.training.datamodule import TranslationData
from rpr.training.module import StepCallback, TranslationModule

LOG_EVERY = 25  # steps between two lines of metrics.jsonl, and between two reads from a GPU


class Step(NamedTuple):
    """One optimiser step: its loss per target token, and its gradient norm before clipping."""

    step: int
    loss: float
    gradient_norm: float


class NonFiniteGuard(StepCallback):
    """Raises RunError at a step whose loss or gradient is not finite, naming the step, its pairs and the last good
    checkpoint. Steps that are read but not yet logged are saved in checkpoints.
    """

    def __init__(self, run_dir: Path, optim: OptimConfig, batches: TranslationData) -> None:
        self.run_dir, self.optim, self.batches = run_dir, optim, batches
        self._unread: list[tuple[int, Tensor, Tensor]] = []  # step, mean loss of its microbatches, gradient norm
        self._read: list[Step] = []

    def state_dict(self) -> dict[str, Any]:
        return {"read": [list(step) for step in self._read]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._read = [Step(*step) for step in state_dict["read"]]

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        assert module.gradient_norm is not None
        loss = torch.stack(module.micro_losses).mean()  # each is scaled to a whole step
        self._unread.append((trainer.global_step, loss, module.gradient_norm))
        module.micro_losses.clear()
        if trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOG_EVERY == 0:
            self.read(trainer, module)

    def before_saving(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse a checkpoint of non-finite weights, as after too large a step, or of unchecked steps."""
        self.read(trainer, pl_module)
        if not all(bool(torch.isfinite(parameter).all()) for parameter in pl_module.parameters()):
            raise RunError(
                f"step {trainer.global_step}: weights are not finite; {self._last_good_checkpoint()}; "
                f"lower {self.optim.rate_setting}"
            )

    def take(self) -> list[Step]:
        """The steps read since the last call."""
        steps, self._read = self._read, []
        return steps

    def read(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read and check every step not yet read; called on all ranks together."""
        if not self._unread:
            return
        steps, shares, norms = zip(*self._unread, strict=True)
        losses = trainer.strategy.reduce(torch.stack(shares), reduce_op="mean")
        rows = torch.stack([losses, torch.stack(norms).to(losses.dtype)]).tolist()
        self._unread = []
        for step in map(Step, steps, *rows):
            if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm)):
                self._stop(trainer, step)
            self._read.append(step)

    on_validation_start = read

    def _stop(self, trainer: pl.Trainer, step: Step) -> None:
        pairs = self.batches.pairs_of_step(step.step - 1)
        report = self.run_dir / f"not_finite_step{step.step:08d}.json"
        if trainer.is_global_zero:
            texts = [{"pair": pair, **self.batches.text_of_pair(pair)} for pair in pairs]
            document = {"step": step.step, "loss": str(step.loss), "gradient_norm": str(step.gradient_norm)}
            text = json.dumps(document | {"pairs": texts}, indent=1, ensure_ascii=False) + "\n"
            # A window of bytes may begin inside a character, whose lone surrogate JSON escapes as Python does.
            replace_file(report, text.encode("utf-8", "backslashreplace").decode())
        raise RunError(
            f"step {step.step}: the loss or its gradient is not finite (loss {step.loss:g}, gradient norm "
            f"{step.gradient_norm:g}; its {len(pairs)} {self.batches.items} are in {report.name}); "
            f"{self._last_good_checkpoint()}; check these {self.batches.items}, or lower {self.optim.rate_setting}"
        )

    def _last_good_checkpoint(self) -> str:
        saved = checkpoints(self.run_dir / "checkpoints")
        return f"the last good checkpoint is {saved[-1][1].name}" if saved else "there is no checkpoint yet"
