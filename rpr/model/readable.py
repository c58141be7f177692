"""The whole Transformer in one file, to be read first: one sentence at a time, no batches, no padding, no cache.

It is the paper's (Vaswani et al. 2017) with any position scheme by its own equations; relative positions are Shaw et
al. 2018, equations 3 and 4. tests/model/test_readable.py holds the model that is trained (`rpr.model.transformer`) to
these lines in float64, forward and backward.
"""

# Shape suffixes: S source length, T target length, L positions of a stack, M model width, F feed-forward width,
# V vocabulary, H heads, D head width (M = H D), R = 2k+1 rows of a table.

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from rpr.model.config import TransformerConfig
from rpr.model.positions import Pairs, Scheme, Site

Weights = Mapping[str, Tensor]  # the parameters by their names in checkpoints


def logits(config: TransformerConfig, weights: Weights, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Scores of every piece after each of the target's, [T, V], whose first is BOS; the source ends with EOS."""
    if config.architecture == "encoder_decoder":
        hidden_TM = stack(config, weights, "decoder", target, memory_SM=stack(config, weights, "encoder", source))
    else:  # one stack reads both, one after the other
        hidden_TM = stack(config, weights, "decoder", [*source, *target])[len(source) :]
    return hidden_TM @ weights["embedding_VM"].T


def stack(
    config: TransformerConfig, weights: Weights, name: str, pieces: Sequence[int], memory_SM: Tensor | None = None
) -> Tensor:
    """The hidden states of the encoder, or of the decoder, whose layers also read the encoder's `memory_SM`."""
    scheme, site = next((shape.scheme, shape.site) for shape in config.stacks() if shape.name == name)
    # 1. Embeddings, times sqrt(M). As in tensor2tensor, the first input of the target may be the zero vector.
    x_LM = weights["embedding_VM"][list(pieces)] * math.sqrt(config.d_model)
    x_LM = x_LM * torch.tensor([[not config.zero_bos or piece != config.bos] for piece in pieces])
    # 2. The vectors of absolute positions, if any: learned, of which the last serves all later ones, or sinusoids.
    if scheme.absolute == "learned":
        table_LM = weights["source_positions.weight_LM" if name == "encoder" else "target_positions.weight_LM"]
        x_LM = x_LM + table_LM[[min(position, len(table_LM) - 1) for position in range(len(pieces))]]
    elif (vectors := scheme.embeddings(config.d_model)) is not None:
        x_LM = x_LM + vectors.eval()(0, torch.tensor([pieces]))
    # 3. Layers: self-attention, attention to the encoder's output, and a network of each position alone; each is added
    #    to its input, with a norm after the sum (the paper, "post") or before the sublayer and at the end ("pre").
    for number, of_layer in enumerate(scheme.of_layers(config.num_layers)):
        own = {key.removeprefix(f"{name}.{number}."): value for key, value in weights.items()}
        steps = {"attention": partial(self_attention, own, config.norm_epsilon, of_layer, site)}
        if memory_SM is not None:
            steps["cross_attention"] = partial(cross_attention, own, memory_SM, config.num_heads)
        steps["feed_forward"] = partial(feed_forward, own, config.activation)
        for around, step in steps.items():
            norm = partial(layer_norm, own, f"around_{around}.norm", config.norm_epsilon)
            x_LM = x_LM + step(norm(x_LM)) if config.norm == "pre" else norm(x_LM + step(x_LM))
    return layer_norm(weights, f"{name}_norm", config.norm_epsilon, x_LM) if config.norm == "pre" else x_LM


def self_attention(weights: Weights, epsilon: float, scheme: Scheme, site: Site, x_LM: Tensor) -> Tensor:
    """Equations 3 and 4 of Shaw et al. 2018: z_i = sum_j a_ij (x_j W^V + a^V_ij), a_ij the softmax over j of
    e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(D); other schemes change q, k or e_ij in ways of their own.
    """
    name, length, positions = "self_attention", len(x_LM), torch.arange(len(x_LM))
    learned = {key.removeprefix(f"{name}.tables."): value for key, value in weights.items()}
    # 1. Queries, keys and values; with qk_norm of a norm of their own; a key may have half of that before it.
    q_HLD, k_HLD, v_HLD = heads(x_LM @ weights[f"{name}.qkv.weight"].T, 3, site.num_heads)
    for at in ("before_norm", "norm", "after_norm"):
        if at == "norm" and f"{name}.norms.key.weight" in weights:
            q_HLD = layer_norm(weights, f"{name}.norms.query", epsilon, q_HLD)
            k_HLD = layer_norm(weights, f"{name}.norms.key", epsilon, k_HLD)
        if scheme.offsets_keys and at == scheme.key_offset_at:
            k_HLD = offset_keys(scheme, k_HLD)
    # 2. What depends on one position: rotations (RoPE), also by what runs over the text, and queries that grow.
    if scheme.has_angles:
        x = torch.nn.functional.pad(x_LM[None], (0, 0, scheme.HISTORY, 0))
        projected = {key: x @ learned[key].T for key in scheme.projections(site)} | {"x": x}
        (angles_HLW,) = scheme.angles(projected, learned, site, x.new_zeros(1, site.num_heads, 1))
        q_HLD, k_HLD = rotated(q_HLD, angles_HLW), rotated(k_HLD, angles_HLW)
    q_HLD, k_HLD = (x[0] for x in scheme.prepare(q_HLD[None], k_HLD[None], positions, learned, site))
    growth_L1 = 1 + scheme.query_log_scale * ((positions[:, None] + 1).double() / scheme.query_log_floor).clamp(1).log()
    q_HLD = q_HLD * growth_L1
    e_HLL = q_HLD @ k_HLD.mT / math.sqrt(site.d_head)
    # 3. What depends on the distance j - i: vectors a^K and a^V, which queries of their own may read, and numbers.
    keys, values, bias_HR = scheme.distance_tables(learned, site, length - 1, torch.device("cpu"))
    projected = {key: x_LM[None] @ learned[key].T for key in scheme.projections(site)}
    if keys is not None:
        queries = scheme.distance_queries(projected, learned, site) if projected else None
        own = None if queries is None else queries[0] * (growth_L1 if scheme.grows_distance_queries else 1)
        of_keys = q_HLD / math.sqrt(site.d_head) if own is None else own
        e_HLL = e_HLL + (of_keys[:, :, None] * of_pairs(keys, length)).sum(-1)
    if bias_HR is not None:
        e_HLL = e_HLL + of_pairs(bias_HR[..., None], length)[..., 0]
    # 4. What tokens decide: a bias of each key, less that of the query's own; any other change of the scores.
    if scheme.has_key_bias:
        (bias_HL,) = scheme.key_bias(projected, learned, site, x_LM.new_zeros(1, site.num_heads))
        e_HLL = e_HLL + bias_HL[:, None, :] - bias_HL[:, :, None]
    before_LL = positions[:, None] - positions
    visible_LL = (before_LL.abs() < (scheme.window or length)) & ((before_LL >= 0) | (not site.causal))
    pairs = Pairs(e_HLL[None], visible_LL, q_HLD[None], positions[:, None], positions)
    e_HLL = scheme.scores(pairs, learned, site)[0].masked_fill(~visible_LL, -math.inf)
    # 5. The softmax; a sink is one more key, whose value is zero. Then the weighted sum.
    if scheme.sink:
        e_HLL = torch.cat([e_HLL, weights[f"{name}.sink"][:, None, None].expand(-1, length, 1)], dim=-1)
    a_HLL = e_HLL.softmax(dim=-1)[..., :length]
    z_HLD = a_HLL @ v_HLD
    if values is not None:
        z_HLD = z_HLD + (a_HLL[..., None] * of_pairs(values, length)).sum(-2)
    return z_HLD.transpose(0, 1).flatten(1) @ weights[f"{name}.output.weight"].T


def of_pairs(table: Tensor, length: int) -> Tensor:
    """a_ij, row clip(j - i, k) + k of a table [R, D] or [H, R, D]: [.., L, L, D]. Row 0 is "k or more to the left"."""
    k = table.shape[-2] // 2
    rows = [[max(-k, min(k, j - i)) + k for j in range(length)] for i in range(length)]
    return table[..., torch.tensor(rows), :]


def rotated(x_HLD: Tensor, angles_HLW: Tensor) -> Tensor:
    """The pairs (i, i + W) as complex numbers, times exp(i angle)."""
    first, second, others = x_HLD.tensor_split((angles_HLW.shape[-1], 2 * angles_HLW.shape[-1]), dim=-1)
    pairs = torch.complex(first, second) * torch.polar(torch.ones_like(angles_HLW), angles_HLW)
    return torch.cat([pairs.real, pairs.imag, others], dim=-1)


def offset_keys(scheme: Scheme, k_HLD: Tensor) -> Tensor:
    """The second half of each key, or of each half of it (the slow pairs of RoPE), is that of the key before."""
    period = k_HLD.shape[-1] // (1 if scheme.key_offset == "second_half" else 2)
    moved_D = torch.arange(k_HLD.shape[-1]) % period >= period // 2
    before_HLD = torch.cat([k_HLD[:, :1] * (scheme.key_offset_first == "own"), k_HLD[:, :-1]], dim=1)
    return torch.where(moved_D, before_HLD, k_HLD)


def cross_attention(weights: Weights, memory_SM: Tensor, num_heads: int, x_TM: Tensor) -> Tensor:
    (q_HTD,) = heads(x_TM @ weights["cross_attention.query.weight"].T, 1, num_heads)
    k_HSD, v_HSD = heads(memory_SM @ weights["cross_attention.key_value.weight"].T, 2, num_heads)
    z_HTD = (q_HTD @ k_HSD.mT / math.sqrt(q_HTD.shape[-1])).softmax(dim=-1) @ v_HSD
    return z_HTD.transpose(0, 1).flatten(1) @ weights["cross_attention.output.weight"].T


def feed_forward(weights: Weights, activation: str, x_LM: Tensor) -> Tensor:
    inner_LF = x_LM @ weights["feed_forward.inner.weight"].T + weights.get("feed_forward.inner.bias", 0)
    if activation == "swiglu":
        gate_LF, up_LF = inner_LF.chunk(2, dim=-1)
        inner_LF = gate_LF * gate_LF.sigmoid() * up_LF
    else:
        inner_LF = torch.nn.functional.gelu(inner_LF) if activation == "gelu" else inner_LF.clamp(min=0)
    return inner_LF @ weights["feed_forward.outer.weight"].T + weights.get("feed_forward.outer.bias", 0)


def layer_norm(weights: Weights, name: str, epsilon: float, x_LM: Tensor) -> Tensor:
    """LayerNorm, or without a bias RMSNorm."""
    centred_LM = x_LM - x_LM.mean(-1, keepdim=True) if f"{name}.bias" in weights else x_LM
    deviation_L1 = ((centred_LM**2).mean(-1, keepdim=True) + epsilon).sqrt()
    return centred_LM / deviation_L1 * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def heads(x_LX: Tensor, parts: int, num_heads: int) -> list[Tensor]:
    return [part.view(len(x_LX), num_heads, -1).transpose(0, 1) for part in x_LX.chunk(parts, dim=-1)]
