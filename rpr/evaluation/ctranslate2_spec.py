"""A model as CTranslate2's own files. What is written here is proven equal by rpr.evaluation.parity, never believed.

CTranslate2 has the paper's clipped distance, one key and one value table for all heads of a layer, and the right
distances with a cache. It drops absolute positions as soon as a layer has a key table.
"""

# Shape suffixes: V vocabulary, M model width, L positions, R = 2k+1 table rows, D head width.

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rpr.data.vocabulary import BOS, EOS, UNK
from rpr.errors import ConfigError
from rpr.model.positions import RelativeTables
from rpr.model.transformer import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    SelfAttention,
    Shape,
    Transformer,
)

# Rows of an absolute table that is written out: for sinusoids, and for a learned table with fewer rows of its own (its
# last vector stands for all positions behind it, here as in our model).
POSITION_ROWS = 2048


def library() -> Any:
    """The package ctranslate2.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise ConfigError(
            "ctranslate2: CTranslate2 is not installed, and it is asked for; pip install 'rpr[ctranslate2]'"
        ) from None


def unrepresentable(shape: Shape) -> str | None:
    """Why CTranslate2 cannot hold a model of this shape, in one line; None where it can."""
    relative = shape.relative_keys or shape.relative_values
    if relative and shape.tables == "per_head":
        return (
            "position.tables: per_head cannot be exported, CTranslate2 has one table for all heads of a layer; "
            f"{shape.num_heads - 1} of each layer's {shape.num_heads} tables would be lost: "
            "use format=safetensors, or train with position.tables=shared_by_heads"
        )
    if relative and shape.absolute != "none":
        return (
            f"position.absolute: {shape.absolute} beside relative tables cannot be exported, CTranslate2 leaves "
            "absolute positions out where a layer has relative ones: use format=safetensors, or train with one of both"
        )
    return None


def position_rows(shape: Shape) -> int | None:
    """How many positions the written model has; None: any number."""
    if shape.absolute == "none":
        return None
    return max(POSITION_ROWS, shape.max_positions) if shape.absolute == "learned" else POSITION_ROWS


def write_model(model: Transformer, vocabulary_tokens: Sequence[str], folder: Path) -> None:
    """model.bin, config.json and shared_vocabulary.json in `folder` (made if absent), for ctranslate2.Translator.

    It wants the source with EOS at its end, as our own decoding does; to EOS alone it answers with nothing. Open it
    without flash_attention, which ignores the decoder's relative tables and adds sinusoids (by CTranslate2's source).

    Args:
        vocabulary_tokens: the text of each piece, in the order of the embedding's rows.

    Raises:
        ConfigError: CTranslate2 cannot hold the model's positions, or is not installed.
    """
    assert len(vocabulary_tokens) == model.shape.vocabulary_size
    specs = library().specs
    spec = specs.TransformerSpec(encoder_spec(model), decoder_spec(model))
    spec.config.decoder_start_token = vocabulary_tokens[model.shape.bos]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = False
    spec.register_source_vocabulary(list(vocabulary_tokens))
    spec.register_target_vocabulary(list(vocabulary_tokens))
    save(spec, model.shape, vocabulary_tokens, folder)


def encoder_spec(model: Transformer) -> Any:
    """The weights of the encoder as CTranslate2 names them. Raises ConfigError as `write_model`."""
    spec = library().specs.transformer_spec.TransformerEncoderSpec(**_sizes(model.shape))
    spec.embeddings[0].weight = _input_embedding(model)
    _set_positions(spec, model.source_positions, model.shape)
    for layer_spec, layer in zip(spec.layer, cast(list[EncoderLayer], model.encoder), strict=True):
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.around_attention, model.shape)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.shape.norm == "pre":
        _set_norm(spec.layer_norm, model.encoder_norm)
    return spec


def decoder_spec(model: Transformer) -> Any:
    """The weights of the decoder as CTranslate2 names them. Raises ConfigError as `write_model`."""
    spec = library().specs.transformer_spec.TransformerDecoderSpec(**_sizes(model.shape))
    spec.embeddings.weight = _input_embedding(model)
    spec.projection.weight = _array(model.embedding_VM)
    _set_positions(spec, model.target_positions, model.shape)
    for layer_spec, layer in zip(spec.layer, cast(list[DecoderLayer], model.decoder), strict=True):
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.around_attention, model.shape)
        _set_cross_attention(layer_spec.attention, layer.cross_attention, layer.around_cross_attention)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.shape.norm == "pre":
        _set_norm(spec.layer_norm, model.decoder_norm)
    return spec


def save(spec: Any, shape: Shape, vocabulary_tokens: Sequence[str], folder: Path) -> None:
    """A whole model's spec, checked by CTranslate2 and written."""
    spec.config.bos_token = vocabulary_tokens[BOS]
    spec.config.eos_token = vocabulary_tokens[EOS]
    spec.config.unk_token = vocabulary_tokens[UNK]
    spec.config.layer_norm_epsilon = shape.norm_epsilon  # CTranslate2 takes 1e-5 where nothing is said
    spec.validate()
    spec.optimize()  # stores equal matrices once
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _sizes(shape: Shape) -> dict[str, Any]:
    reason = unrepresentable(shape)
    if reason is not None:
        raise ConfigError(reason)
    return {
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "pre_norm": shape.norm == "pre",
        "activation": library().specs.Activation.RELU,
        # Without any positions too: CTranslate2 adds sinusoids where a layer has no key table.
        "relative_position": shape.absolute == "none",
    }


def _set_positions(spec: Any, positions: nn.Module | None, shape: Shape) -> None:
    """Our own rows in place of CTranslate2's sinusoids, which begin at position 1 and may lie in another order."""
    spec.scale_embeddings = True  # times sqrt(d_model), before the positions are added
    rows = position_rows(shape)
    if positions is not None and rows is not None:
        spec.position_encodings.encodings = _array(positions(0, rows, _device(positions)))


def _device(positions: nn.Module) -> torch.device:
    parameter = next(positions.parameters(), None)  # sinusoids have none
    return torch.device("cpu") if parameter is None else parameter.device


def _set_self_attention(spec: Any, attention: SelfAttention, around: Residual, shape: Shape) -> None:
    _set_norm(spec.layer_norm, around.norm)
    spec.linear[0].weight = _array(attention.qkv.weight)  # queries, keys, values: the same order as ours
    spec.linear[1].weight = _array(attention.output.weight)
    if shape.absolute == "none":
        tables = _both_tables(attention.tables, shape.d_model // shape.num_heads)
        spec.relative_position_keys, spec.relative_position_values = tables


def _set_cross_attention(spec: Any, attention: CrossAttention, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.norm)
    for linear_spec, linear in zip(spec.linear, (attention.query, attention.key_value, attention.output), strict=True):
        linear_spec.weight = _array(linear.weight)


def _set_feed_forward(spec: Any, feed_forward: FeedForward, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.norm)
    for linear_spec, linear in ((spec.linear_0, feed_forward.inner), (spec.linear_1, feed_forward.outer)):
        linear_spec.weight = _array(linear.weight)
        linear_spec.bias = _array(linear.bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _both_tables(tables: RelativeTables | None, d_head: int) -> tuple[Any, Any]:
    """Key and value table, [R, D] each: zeros, of as many rows as the other has, for what the model does without.

    CTranslate2 requires both; it reads k off the key table, and adds sinusoids where there is no such table.
    """
    if tables is None:
        return _array(torch.zeros(1, d_head)), _array(torch.zeros(1, d_head))
    keys, values = tables.keys, tables.values
    present = values if keys is None else keys
    assert present is not None
    zeros = torch.zeros_like(present)
    return _array(zeros if keys is None else keys), _array(zeros if values is None else values)


def _input_embedding(model: Transformer) -> Any:
    """The embedding with the zero vector for BOS, which the projection to the vocabulary must not have.

    (CTranslate2's flag start_from_zero_embedding would save this copy, but with return_alternatives it zeroes all of a
    target_prefix: seen with 4.8.5.)
    """
    embedding_VM = model.embedding_VM.detach().clone()
    embedding_VM[model.shape.bos] = 0.0
    return _array(embedding_VM)


def _array(weight: Any) -> Any:
    assert isinstance(weight, Tensor)
    return weight.detach().float().cpu().contiguous().numpy()
