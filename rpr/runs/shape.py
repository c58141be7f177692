"""The model that a configuration means."""

from __future__ import annotations

from rpr.config import ModelConfig, PositionConfig, TrainConfig
from rpr.model.transformer import Shape


def shape_of(config: TrainConfig, vocabulary_size: int) -> Shape:
    """The model of a run, over a vocabulary of this size."""
    return transformer_shape(config.model, config.position, vocabulary_size)


def transformer_shape(model: ModelConfig, position: PositionConfig, vocabulary_size: int) -> Shape:
    """The model that two configurations ask for together, over a vocabulary of this size."""
    return Shape(
        vocabulary_size=vocabulary_size,
        num_layers=model.num_layers,
        d_model=model.d_model,
        num_heads=model.num_heads,
        d_ff=model.d_ff,
        dropout=model.dropout,
        norm=model.norm,
        norm_epsilon=model.norm_epsilon,
        absolute=position.absolute,
        max_positions=position.max_positions,
        relative_keys=position.relative_keys,
        relative_values=position.relative_values,
        clip_distance=position.clip_distance,
        tables=position.tables,
    )
