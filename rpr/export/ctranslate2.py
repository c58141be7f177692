"""Converting a model to CTranslate2's files, and reading them back for rpr.export.writing.

CTranslate2 supports the paper's clipped distances with one key and one value table shared by the heads of a layer,
RoPE, and T5's distance bias, each with correct distances when it decodes token by token. It ignores absolute positions
if a layer has any of these. All but the last of a prompt's L tokens it reads at once, and adds L - 1 to their distances
in a bias (4.8.5): no harm to ALiBi while its table reaches that far, as softmax does not change with a constant.
"""

# Shape suffixes: V vocabulary, M model width, L positions, R = 2k+1 table rows, D head width.

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rpr.data.vocabulary import BOS, EOS, PAD, Vocabulary
from rpr.decode.engine import Rows
from rpr.decode.exported import library
from rpr.model.beam_search import Search
from rpr.model.config import StackShape, TransformerConfig
from rpr.model.positions import Scheme, Tables
from rpr.model.positions.alibi import Alibi
from rpr.model.stack import Layer, SelfAttention
from rpr.model.transformer import StackModules, Transformer

# Rows of an exported table: for sinusoids, a bias that differs at every distance, and a shorter learned table.
POSITION_ROWS = 2048
_NAMES = {  # of the parts of a layer
    "norm_1": "self_attention.layer_norm", "qkv": "self_attention.linear.0", "output": "self_attention.linear.1",
    "norm_2": "ffn.layer_norm", "inner": "ffn.linear_0", "outer": "ffn.linear_1", "norm_cross": "attention.layer_norm",
    "query": "attention.linear.0", "key_value": "attention.linear.1", "output_cross": "attention.linear.2",
}  # fmt: skip


def parts_of(layer: Layer) -> dict[str, nn.Module]:
    """The norms and matrices of a layer, for the names that a program has for them."""
    attention, cross, network = layer.self_attention, layer.cross_attention, layer.feed_forward
    parts: dict[str, nn.Module] = {
        "norm_1": layer.around_attention.norm, "norm_2": layer.around_feed_forward.norm, "qkv": attention.qkv,
        "output": attention.output, "inner": network.inner, "outer": network.outer,
    }  # fmt: skip
    if cross is not None and layer.around_cross_attention is not None:
        parts |= {"norm_cross": layer.around_cross_attention.norm, "query": cross.query}
        parts |= {"key_value": cross.key_value, "output_cross": cross.output}
    return parts


def unrepresentable(config: TransformerConfig, _tokenizer: str = "") -> str | None:
    """One line on why CTranslate2 cannot represent a model of this shape; None if it can."""
    if refused := config.block_refused("CTranslate2"):
        return refused
    for stack in config.stacks():
        scheme, site, rotation = stack.scheme, stack.site, stack.scheme.rotation(stack.site)
        if scheme.sharing == "per_head":
            lost = f"{scheme.name} has a table for each head, CTranslate2 one for a layer"
            return f"position: {lost}; use format=safetensors, or train with position.tables=shared_by_heads"
        scaled = rotation is not None and (rotation.proportion != 1 or any(rotation[5:]))
        wrong = (
            scheme.windowed or len(scheme.parts) > 1 or bool(scheme.query_log_scale) or scheme.offsets_keys,
            scheme.has_projections or scheme.has_scores or scheme.has_angles,
            # Queries and keys rotated in another way than RoPE's of plain frequencies, or not only scaled.
            scaled or (scheme.changes_queries and rotation is None and scheme.query_scale(site) is None),
            # A prompt of a decoder-only model is read with wrong distances.
            scheme.has_bias and site.causal and not stack.cross and not isinstance(scheme, Alibi),
            # Absolute positions are omitted beside others; without their form there is no table of positions.
            scheme.absolute != "none" and (scheme.has_tables or scheme.changes_queries),
            scheme.absolute == "none" and scheme.has_own_embeddings,
        )
        if any(wrong):
            return f"position: {scheme.label} has no exact form in CTranslate2; use format=safetensors"
    return None


def position_rows(config: TransformerConfig, longest: int = 0) -> int | None:
    """The number of positions of the exported model, at least `longest`; None: unlimited."""
    limits, least = [], max(POSITION_ROWS, longest)
    for scheme in (stack.scheme for stack in config.stacks()):
        if scheme.absolute != "none":
            limits.append(max(least, scheme.num_learned or 0))
        elif scheme.has_bias and scheme.reach is None:
            limits.append(least)
    return min(limits, default=None)


def write_model(model: Transformer, vocabulary_tokens: Sequence[str], folder: Path, longest: int = 0) -> None:
    """Write model.bin, config.json and a vocabulary (the text of each piece) to an existing `folder`, with at least
    `longest` positions: for ctranslate2.Translator, whose sources end with EOS, or for ctranslate2.Generator, which
    reads the source with EOS, if there is one, BOS and the target. flash_attention would ignore the decoder's tables.
    """
    stacks, tokens = [_stack(model, stack, longest) for stack in model.stacks()], list(vocabulary_tokens)
    if len(stacks) == 1:
        spec = library("ctranslate2").specs.TransformerDecoderModelSpec(*stacks)
        spec.register_vocabulary(tokens)
    else:
        spec = library("ctranslate2").specs.TransformerSpec(*stacks)
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
    spec.config.layer_norm_epsilon = model.config.norm_epsilon  # CTranslate2's default is 1e-5
    spec.validate()
    spec.optimize()  # deduplicates equal matrices
    spec.save(str(folder))


def _stack(model: Transformer, stack: StackModules, longest: int) -> Any:
    """The weights of the decoder (causal) or of the encoder as a CTranslate2 spec."""
    specs, config, (scheme, site) = library("ctranslate2").specs, model.config, stack.shape[1:3]
    # 1. Sizes, activation and positions.
    sizes = {
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "pre_norm": config.norm == "pre",
        "activation": specs.Activation.GELU if config.activation == "gelu" else specs.Activation.RELU,
        "relative_position": _needs_vectors(scheme, _tables(stack.layers[0].self_attention, max_distance=1)),
        "relative_attention_bias": scheme.has_bias,
    }
    if (rotation := scheme.rotation(site)) is not None:
        sizes |= {"rotary_dim": rotation.width, "rotary_interleave": rotation.interleaved, "rotary_base": rotation.base}
        if rotation.linear_scale != 1:
            sizes["rotary_scaling_type"] = specs.attention_spec.RotaryScalingType.Linear
            sizes["rotary_scaling_factor"] = rotation.linear_scale
    # 2. Embeddings, times sqrt(d_model), and what is added to them.
    embedding_VM = _array(input_embedding(model))
    if site.causal:
        spec = specs.transformer_spec.TransformerDecoderSpec(**sizes, with_encoder_attention=stack.shape.cross)
        spec.embeddings.weight, spec.projection.weight = embedding_VM, _array(model.embedding_VM)
    else:
        spec = specs.transformer_spec.TransformerEncoderSpec(**sizes)
        spec.embeddings[0].weight = embedding_VM
    spec.scale_embeddings = True
    # CTranslate2's sinusoids start at position 1 and may have another layout.
    if stack.positions is not None and (rows := position_rows(config, longest)) is not None:
        spec.position_encodings.encodings = _array(position_table(model, stack.positions, rows))
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    # 3. The layers, by the names of their parts; queries, keys and values are in the same order as ours.
    exact = max(POSITION_ROWS, longest, (scheme.reach or 0) + 1)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        for part, module in parts_of(layer).items():
            _set(layer_spec, _NAMES[part], module)
        _set_distances(layer_spec.self_attention, layer.self_attention, stack.shape, exact)
    if config.norm == "pre":
        _set(spec, "layer_norm", stack.norm)
    return spec


def _set(spec: Any, name: str, module: nn.Module) -> None:
    for part in name.split("."):
        spec = spec[int(part)] if part.isdigit() else getattr(spec, part)
    spec_names = {"weight": "gamma", "bias": "beta"} if name.endswith("norm") else {}
    for ours, parameter in module.named_parameters():
        setattr(spec, spec_names.get(ours, ours), _array(parameter))


def _tables(attention: SelfAttention, max_distance: int) -> Tables:
    if attention.tables is None:
        return Tables()
    return attention.tables.at(max_distance, attention.qkv.weight.device)


def _needs_vectors(scheme: Scheme, tables: Tables) -> bool:
    has_vectors = tables.keys is not None or tables.values is not None
    return scheme.absolute == "none" and (has_vectors or not (scheme.has_bias or scheme.changes_queries))


def position_table(model: Transformer, positions: nn.Module, rows: int) -> Tensor:
    """What a model adds to its embeddings at the positions below `rows`, [rows, M]."""
    table: Tensor = positions(0, torch.zeros(1, rows, dtype=torch.int64, device=model.embedding_VM.device))
    return table


def _set_distances(spec: Any, attention: SelfAttention, shape: StackShape, exact: int) -> None:
    """`exact` distances have a bias of their own."""
    scheme, site = shape.scheme, shape.site
    tables = _tables(attention, exact)
    if _needs_vectors(scheme, tables):
        # It requires both, of as many rows: it infers k from the keys, and adds sinusoids if there are none.
        present = next((table for table in tables[:2] if table is not None), torch.zeros(1, site.d_head))
        keys, values = (torch.zeros_like(present) if table is None else table for table in tables[:2])
        spec.relative_position_keys, spec.relative_position_values = _array(keys), _array(values)
    if scheme.has_bias and site.causal and not shape.cross:  # prompts have distances up to twice their length
        exact *= 2
        tables = _tables(attention, exact)
    if tables.bias is not None:
        spec.relative_attention_bias = _array(_as_buckets(tables.bias, exact, causal=attention.causal))
        spec.relative_attention_max_distance = np.dtype("int32").type(4 * exact)
    if (scale := scheme.query_scale(site)) is not None:
        spec.queries_scale = np.dtype("float32").type(scale * site.d_head**-0.5)


def _as_buckets(bias_HR: Tensor, exact: int, *, causal: bool) -> Tensor:
    """A bias by distance as T5's buckets, [rows, H]. With 2L buckets per side, each distance below L has its own; all
    others use the bias at distance L, which is exact if the bias is constant from there and out of reach if it is not.
    """
    centre = (bias_HR.shape[1] - 1) // 2
    sizes = torch.arange(2 * exact, device=bias_HR.device).clamp(max=min(exact, centre))
    left_HL, right_HL = bias_HR[:, centre - sizes], bias_HR[:, centre + sizes]
    return (left_HL if causal else torch.cat([left_HL, right_HL], dim=1)).T


def input_embedding(model: Transformer) -> Tensor:
    """The embedding, with a zero vector for BOS if its input is one, [V, M]; the output projection keeps the original.
    (CTranslate2's start_from_zero_embedding with return_alternatives zeroes the whole target_prefix: 4.8.5.)
    """
    embedding_VM = model.embedding_VM.detach().clone()
    if model.config.zero_bos:
        embedding_VM[model.config.bos] = 0.0
    return embedding_VM


def _array(weight: Any) -> Any:
    assert isinstance(weight, Tensor)
    return weight.detach().float().cpu().contiguous().numpy()


class CTranslate2Scorer:
    """An export of format=ctranslate2 in float32: a `generator`, of a decoder-only model, or a translator."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, threads: int, *, generator: bool) -> None:
        self.generator = generator
        self._names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        self._index = {name: index for index, name in enumerate(self._names)}
        program = library("ctranslate2").Generator if generator else library("ctranslate2").Translator
        settings = {"compute_type": "float32", "inter_threads": 1, "intra_threads": threads, "flash_attention": False}
        self._model = program(str(folder), **settings)

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[list[float]]:
        rows: list[Rows] = [sources, targets]
        of_sources = [0] * len(sources)
        if self.generator:  # which scores every token but the first
            rows = [[(*source, BOS, *target, EOS) for source, target in zip(sources, targets, strict=True)]]
            of_sources = [*map(len, sources)]
        sizes = {"max_batch_size": max_tokens, "batch_type": "tokens", "max_input_length": 0}
        results = self._model.score_batch(*map(self._texts, rows), **sizes)
        return [[*map(float, result.log_probs)][start:] for result, start in zip(results, of_sources, strict=True)]

    def greedy(self, sources: Rows, search: Search) -> Rows:
        """Of a translator: the most probable token each time, as ours, within its limits; with EOS if it ended."""
        limits = [max(search.min_length + 1, len(source) + search.max_extra_length) for source in sources]
        results = self._model.translate_batch(
            self._texts(sources),
            max_batch_size=search.max_tokens_per_batch,
            batch_type="tokens",
            beam_size=1,
            max_input_length=0,
            min_decoding_length=search.min_length,
            max_decoding_length=max(limits),
            suppress_sequences=self._texts([[PAD], [BOS]]),
            return_end_token=True,
        )
        return [
            [self._index[name] for name in result.hypotheses[0][:limit]]  # of a batch all have the longest limit
            for result, limit in zip(results, limits, strict=True)
        ]

    def continued(self, prompts: Rows) -> list[tuple[int, float]]:
        """Of a generator: the most probable next token of each prompt, with its log p. It reads prompts in another way
        than targets.
        """
        results = self._model.generate_batch(
            self._texts(prompts),
            max_batch_size=1,  # of a batch only the shortest is read at once
            max_length=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            return_end_token=True,
            return_scores=True,
        )
        return [(result.sequences_ids[0][0], float(result.scores[0])) for result in results]

    def _texts(self, rows: Rows) -> list[list[str]]:
        return [[self._names[piece] for piece in row] for row in rows]
