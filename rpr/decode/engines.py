"""A model under evaluation."""

from dataclasses import dataclass

import torch

from rpr.config.train import TrainConfig
from rpr.decode.engine import Engine, engine_of
from rpr.model.transformer import Transformer


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its engine, and the checkpoints and arithmetic precision for the record."""

    engine: Engine
    checkpoint: str
    precision: str


def evaluated_model(config: TrainConfig, model: Transformer, checkpoint: str) -> EvaluatedModel:
    """The torch engine with this model, as configured; matmuls "as in training" are those of this process."""
    hardware = config.hardware
    matmuls = config.evaluation.matmul_precision or torch.get_float32_matmul_precision()
    engine = engine_of(model, hardware, matmuls)
    rounded = hardware.precision == "32" and matmuls != "highest"
    return EvaluatedModel(engine, checkpoint, f"{hardware.precision}{f', {matmuls} products' * rounded}")
