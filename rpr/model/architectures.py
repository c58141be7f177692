"""The architectures by name."""

from __future__ import annotations

from rpr.model.config import TransformerConfig
from rpr.model.decoder_only import DecoderOnly
from rpr.model.encoder_decoder import EncoderDecoder
from rpr.model.transformer import Transformer

ARCHITECTURES = {"encoder_decoder": EncoderDecoder, "decoder_only": DecoderOnly}


def build_model(config: TransformerConfig) -> Transformer:
    """A model with new weights."""
    return ARCHITECTURES[config.architecture](config)
