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
        encoder_positions=position.encoder,
        decoder_positions=position.decoder,
        **model.model_dump(exclude={"name", "relative_defaults"}),
    )
