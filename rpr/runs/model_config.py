"""The Transformer's shape from a configuration."""

from __future__ import annotations

from rpr.config.train import ModelConfig, TrainConfig
from rpr.model.positions import Positions
from rpr.model.transformer import Shape


def shape_of(config: TrainConfig, vocabulary_size: int) -> Shape:
    """The shape of a run's model, with a vocabulary of this size."""
    return transformer_shape(config.model, config.position, vocabulary_size)


def transformer_shape(model: ModelConfig, position: Positions, vocabulary_size: int) -> Shape:
    """The shape of a model from its model and position settings, with a vocabulary of this size."""
    return Shape(
        vocabulary_size=vocabulary_size,
        num_layers=model.num_layers,
        d_model=model.d_model,
        num_heads=model.num_heads,
        d_ff=model.d_ff,
        dropout=model.dropout,
        norm=model.norm,
        norm_epsilon=model.norm_epsilon,
        encoder_positions=position.encoder,
        decoder_positions=position.decoder,
    )
