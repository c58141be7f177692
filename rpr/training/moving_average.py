"""The exponential moving average of the weights, as an alternative to averaging checkpoints."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from rpr.data.batches import Batch
from rpr.training.module import StepCallback, TranslationModule, as_translation_module


class MovingAverage(StepCallback):
    """average = d * average + (1 - d) * weights after step t, d = min(decay, (1 + t) / (10 + t)), so that the average
    soon forgets the first weights; validation sees the average.

    Saved in checkpoints under its own key, next to the weights with which training continues.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weights = state_dict["weights"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        current = _weights(pl_module)
        source = self.weights or current
        self.weights = {name: source[name].detach().to(weight.device, copy=True) for name, weight in current.items()}

    def on_step_end(self, trainer: pl.Trainer, module: TranslationModule, batch: Batch) -> None:
        current = [weight.detach() for weight in _weights(module).values()]
        decay = min(self.decay, (1 + trainer.global_step) / (10 + trainer.global_step))
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, weight in _weights(pl_module).items():
            weight.data, self.weights[name] = self.weights[name], weight.data

    on_validation_end = on_validation_start  # exchanges them back


def _weights(module: pl.LightningModule) -> dict[str, Tensor]:
    return dict(as_translation_module(module).model.named_parameters())
