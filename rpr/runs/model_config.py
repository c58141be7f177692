"""From the configuration of a run to that of its model."""

from __future__ import annotations

from rpr.config.train import ModelConfig, TrainConfig
from rpr.model.positions import Positions
from rpr.model.transformer import TransformerConfig


def transformer_config(config: TrainConfig, vocabulary_size: int) -> TransformerConfig:
    """The model configuration of a run, with this vocabulary size."""
    return build_transformer_config(config.model, config.position, vocabulary_size)


def build_transformer_config(model: ModelConfig, position: Positions, vocabulary_size: int) -> TransformerConfig:
    """The model configuration from its two parts, with this vocabulary size."""
    return TransformerConfig(
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
