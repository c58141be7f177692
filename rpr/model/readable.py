"""The whole Transformer in one file, to be read first: one sentence at a time, no batches, no padding, no cache.

It is the paper's (Vaswani et al. 2017) with any position scheme by its own equations; relative positions are Shaw et
al. 2018, equations 3 and 4, and the comments say which is which. tests/model/test_readable.py holds the model that is
trained (`rpr.model.transformer`) to these lines in float64, forward and backward.
"""

# Shape suffixes: S source length, T target length, L positions of a stack, M model width, F feed-forward width,
# V vocabulary, H heads, D head width (M = H D), R = 2k+1 rows of a table.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rpr.model.positions import Pairs, Scheme, Site

if TYPE_CHECKING:
    from rpr.model.config import TransformerConfig

Weights = Mapping[str, Tensor]  # the parameters by their names in checkpoints


def logits(config: TransformerConfig, weights: Weights, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Scores of every piece after each of the target's, [T, V], whose first is BOS; the source ends with EOS."""
    if config.architecture == "encoder_decoder":
        memory_SM = stack(config, weights, "encoder", source)
        hidden_TM = stack(config, weights, "decoder", target, memory_SM)
    else:  # one stack reads both, one after the other
        hidden_TM = stack(config, weights, "decoder", [*source, *target])[len(source) :]
    return hidden_TM @ weights["embedding_VM"].T


def stack(
    config: TransformerConfig, weights: Weights, name: str, pieces: Sequence[int], memory_SM: Tensor | None = None
) -> Tensor:
    """The hidden states of the encoder, or of the decoder, whose layers also read the encoder's `memory_SM`."""
    shape = next(shape for shape in config.stacks() if shape.name == name)
    # 1. Embeddings, times sqrt(M), with the vectors of absolute positions, if any.
    x_LM = embed(config, weights, shape.scheme, "source" if name == "encoder" else "target", pieces)
    # 2. Layers: self-attention, attention to the encoder's output, and a network of each position alone; each is added
    #    to its input, with a norm after the sum (the paper, "post") or before the sublayer (later models, "pre").
    for number, scheme in enumerate(shape.scheme.of_layers(config.num_layers)):
        layer = f"{name}.{number}"
        of_layer = (weights, f"{layer}.self_attention", config.norm_epsilon, scheme, shape.site)
        steps = {"attention": partial(self_attention, *of_layer)}
        if memory_SM is not None:
            of_memory = (weights, f"{layer}.cross_attention", memory_SM, config.num_heads)
            steps["cross_attention"] = partial(cross_attention, *of_memory)
        steps["feed_forward"] = partial(feed_forward, weights, f"{layer}.feed_forward", config.activation)
        for around, step in steps.items():
            norm = partial(layer_norm, weights, f"{layer}.around_{around}.norm", config.norm_epsilon)
            x_LM = x_LM + step(norm(x_LM)) if config.norm == "pre" else norm(x_LM + step(x_LM))
    # 3. Pre-norm leaves the last sum without a norm.
    return layer_norm(weights, f"{name}_norm", config.norm_epsilon, x_LM) if config.norm == "pre" else x_LM


def embed(config: TransformerConfig, weights: Weights, scheme: Scheme, side: str, pieces: Sequence[int]) -> Tensor:
    x_LM = weights["embedding_VM"][list(pieces)] * math.sqrt(config.d_model)
    if config.zero_bos:  # as in tensor2tensor, the first input of the target is the zero vector
        x_LM = torch.stack([x_M * (piece != config.bos) for x_M, piece in zip(x_LM, pieces, strict=True)])
    if scheme.has_own_embeddings:  # SHAPE, centred sinusoids
        added = scheme.embeddings(config.d_model)
        assert added is not None
        vectors_LM: Tensor = added.eval()(0, torch.tensor([pieces]))
        return x_LM + vectors_LM
    if scheme.absolute == "learned":
        table_LM = weights[f"{side}_positions.weight_LM"]
        return x_LM + torch.stack([table_LM[min(position, len(table_LM) - 1)] for position in range(len(pieces))])
    if scheme.absolute == "sinusoidal":  # all sines, then all cosines, of wavelengths from 2 pi to 10,000 * 2 pi
        half = config.d_model // 2
        angles = [[p * 10_000 ** (-i / max(1, half - 1)) for i in range(half)] for p in range(len(pieces))]
        rows = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
        return x_LM + torch.tensor(rows).to(x_LM.dtype)  # rounded to float32, as in training
    return x_LM


def self_attention(weights: Weights, name: str, eps: float, scheme: Scheme, site: Site, x_LM: Tensor) -> Tensor:
    """Equations 3 and 4 of Shaw et al. 2018: z_i = sum_j a_ij (x_j W^V + a^V_ij), a_ij the softmax over j of
    e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(D); other schemes change q, k or e_ij in ways of their own.
    """
    length, prefix = len(x_LM), f"{name}.tables."
    learned = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    q_HLD, k_HLD, v_HLD = heads(x_LM @ weights[f"{name}.qkv.weight"].T, 3, site.num_heads)
    if scheme.key_offset_at == "before_norm":
        k_HLD = offset_keys(scheme, k_HLD)
    if f"{name}.norms.query.weight" in weights:
        q_HLD = layer_norm(weights, f"{name}.norms.query", eps, q_HLD)
        k_HLD = layer_norm(weights, f"{name}.norms.key", eps, k_HLD)
    if scheme.key_offset_at == "after_norm":
        k_HLD = offset_keys(scheme, k_HLD)
    positions = torch.arange(length)
    if scheme.has_angles:  # rotations by what runs over the text
        x = torch.nn.functional.pad(x_LM[None], (0, 0, scheme.HISTORY, 0))
        projected = {key: x @ learned[key].T for key in scheme.projections(site)} | {"x": x}
        (angles_HLW,) = scheme.angles(projected, learned, site, x.new_zeros(1, site.num_heads, 1))
        q_HLD, k_HLD = rotated(q_HLD, angles_HLW), rotated(k_HLD, angles_HLW)
    # 1. What depends on one position alone: rotations (RoPE), queries that grow.
    q_HLD, k_HLD = (x[0] for x in scheme.prepare(q_HLD[None], k_HLD[None], positions, learned, site))
    if scheme.query_log_scale:
        growth = [math.log(max((i + 1) / scheme.query_log_floor, 1)) for i in range(length)]
        growth_L1 = (1 + scheme.query_log_scale * torch.tensor(growth, dtype=x_LM.dtype))[:, None]
        q_HLD = q_HLD * growth_L1
    # 2. What depends on the distance j - i, clipped to k: vectors a^K and a^V, and a number for each head.
    keys, values, bias_HR = scheme.distance_tables(learned, site, length - 1, torch.device("cpu"))
    projected = {key: x_LM[None] @ learned[key].T for key in scheme.projections(site)}
    queries = scheme.distance_queries(projected, learned, site) if projected else None
    if queries is not None and scheme.query_log_scale and scheme.grows_distance_queries:
        queries = queries * growth_L1
    key_bias = scheme.key_bias(projected, learned, site, x_LM.new_zeros(1, site.num_heads))[0]
    rows = []
    for i in range(length):
        for j in range(length):
            e_H = (q_HLD[:, i] * k_HLD[:, j]).sum(-1) / math.sqrt(site.d_head)
            if keys is not None and queries is None:
                e_H = e_H + (q_HLD[:, i] * row_of(keys, j - i)).sum(-1) / math.sqrt(site.d_head)
            elif keys is not None and queries is not None:
                e_H = e_H + (queries[0, :, i] * row_of(keys, j - i)).sum(-1)
            if bias_HR is not None:
                e_H = e_H + row_of(bias_HR[..., None], j - i)[:, 0]
            rows.append(e_H + (key_bias[:, j] - key_bias[:, i] if scheme.has_key_bias else 0))
    e_HLL = torch.stack(rows, dim=1).view(site.num_heads, length, length)
    # 3. The softmax, of a decoder over the positions up to its own, within a window; a sink is a key of value zero.
    distances_LL = positions[:, None] - positions
    visible_LL = (distances_LL.abs() < (scheme.window or length)) & ((distances_LL >= 0) | (not site.causal))
    if scheme.has_scores:
        pairs = Pairs(e_HLL[None], visible_LL, q_HLD[None], positions[:, None], positions)
        e_HLL = scheme.scores(pairs, learned, site)[0]
    e_HLL = e_HLL.masked_fill(~visible_LL, -math.inf)
    if scheme.sink:
        e_HLL = torch.cat([e_HLL, weights[f"{name}.sink"][:, None, None].expand(-1, length, 1)], dim=-1)
    a_HLL = e_HLL.softmax(dim=-1)[..., :length]
    # 4. The weighted sum.
    z_HLD = a_HLL @ v_HLD
    if values is not None:
        terms = [[a_HLL[:, i, j, None] * row_of(values, j - i) for j in range(length)] for i in range(length)]
        z_HLD = z_HLD + torch.stack([sum(of_query[1:], of_query[0]) for of_query in terms], dim=1)
    return joined(z_HLD) @ weights[f"{name}.output.weight"].T


def rotated(x_HLD: Tensor, angles_HLW: Tensor) -> Tensor:
    """The pairs (i, i + W) as complex numbers, times exp(i angle)."""
    width = angles_HLW.shape[-1]
    pairs = torch.complex(x_HLD[..., :width], x_HLD[..., width : 2 * width])
    pairs = pairs * torch.polar(torch.ones_like(angles_HLW), angles_HLW)
    return torch.cat([pairs.real, pairs.imag, x_HLD[..., 2 * width :]], dim=-1)


def offset_keys(scheme: Scheme, k_HLD: Tensor) -> Tensor:
    """Half of the dimensions of each key are those of the key before."""
    offset_HLD, width = k_HLD.clone(), k_HLD.shape[-1]
    halves = {"none": [], "second_half": range(width // 2, width)}
    halves["slow_pairs"] = [d for d in range(width) if d % (width // 2) >= width // 4]
    for d in halves[scheme.key_offset]:
        offset_HLD[:, 1:, d] = k_HLD[:, :-1, d]
        if scheme.key_offset_first == "zero":
            offset_HLD[:, 0, d] = 0
    return offset_HLD


def row_of(table: Tensor, distance: int) -> Tensor:
    """w_clip(j - i, k): row 0 is "k or more to the left", row 2k "k or more to the right"."""
    k = table.shape[-2] // 2
    return table[..., max(-k, min(k, distance)) + k, :]


def cross_attention(weights: Weights, name: str, memory_SM: Tensor, num_heads: int, x_TM: Tensor) -> Tensor:
    (q_HTD,) = heads(x_TM @ weights[f"{name}.query.weight"].T, 1, num_heads)
    k_HSD, v_HSD = heads(memory_SM @ weights[f"{name}.key_value.weight"].T, 2, num_heads)
    a_HTS = (q_HTD @ k_HSD.mT / math.sqrt(q_HTD.shape[-1])).softmax(dim=-1)
    return joined(a_HTS @ v_HSD) @ weights[f"{name}.output.weight"].T


def feed_forward(weights: Weights, name: str, activation: str, x_LM: Tensor) -> Tensor:
    if activation == "swiglu":
        gate_LF, up_LF = (x_LM @ weights[f"{name}.inner.weight"].T).chunk(2, dim=-1)
        return (gate_LF * gate_LF.sigmoid() * up_LF) @ weights[f"{name}.outer.weight"].T
    x_LF = x_LM @ weights[f"{name}.inner.weight"].T + weights[f"{name}.inner.bias"]
    x_LF = torch.nn.functional.gelu(x_LF) if activation == "gelu" else x_LF.clamp(min=0)
    return x_LF @ weights[f"{name}.outer.weight"].T + weights[f"{name}.outer.bias"]


def layer_norm(weights: Weights, name: str, epsilon: float, x_LM: Tensor) -> Tensor:
    if f"{name}.bias" not in weights:  # RMSNorm
        return x_LM / ((x_LM**2).mean(-1, keepdim=True) + epsilon).sqrt() * weights[f"{name}.weight"]
    centred_LM = x_LM - x_LM.mean(-1, keepdim=True)
    variance_L1 = (centred_LM**2).mean(-1, keepdim=True)
    return centred_LM / (variance_L1 + epsilon).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def heads(x_LX: Tensor, parts: int, num_heads: int) -> list[Tensor]:
    """Each part of a projection, by heads: [L, parts H D] -> parts of [H, L, D]."""
    return [part.view(len(x_LX), num_heads, -1).transpose(0, 1) for part in x_LX.chunk(parts, dim=-1)]


def joined(z_HLD: Tensor) -> Tensor:
    return z_HLD.transpose(0, 1).flatten(1)
