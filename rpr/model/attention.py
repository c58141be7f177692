"""Attention with relative positions: the paper's equations, the paper's algorithm, and the implementation in use.

Pure functions with the same result, forward and backward:

- `reference` follows equations 3 and 4 with a_ij written out; for tests and for reading.
- `per_position` is the algorithm of the paper's section 3.3; the historical baseline of `rpr-cli bench`.
- `composed` projects onto the table first and spreads the result over the keys, in differentiable torch operations
  that `torch.compile` can fuse and autograd can differentiate twice.
- `attend` is the one to call: by device and length it selects torch's fused kernels for plain attention, which
  `rpr.model.cpu_attention` and `rpr.model.banded_attention` use for more on a CPU, the hand-written passes of
  `rpr.model.blockwise_attention`, or `composed` under `torch.compile`.

They take the arguments of `AttentionInputs`, q, k and v by place and the others by name, and return z [B, H, Q, D],
empty if q is. A query that sees no key gets finite but meaningless values and finite gradients.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model import cpu_attention
from rpr.model.attention_inputs import AttentionInputs, AttentionOptions
from rpr.model.banded_attention import band_of, banded
from rpr.model.blockwise_attention import SplitHeads, blockwise
from rpr.model.blockwise_tables import Layout
from rpr.model.composed_attention import composed as composed
from rpr.model.composed_attention import weights as weights
from rpr.model.composed_attention import weights_of as weights_of
from rpr.model.equations import per_position as per_position
from rpr.model.equations import reference as reference

Implementation = Literal["auto", "dense", "blockwise", "composed", "compiled", "triton"]

LONG = 1024  # from this many keys on, the backward pass recomputes the weights block by block instead of storing them
BLOCK_SCORES = 2**18  # scores per head and sentence in a block of queries


def attend(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    implementation: Implementation = "auto",
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """Attention as used in training and decoding.

    Args:
        implementation: `auto` selects one; `dense` stores the weights [B, H, Q, K] for the backward pass, `blockwise`
            recomputes them block by block of queries; `composed` is the function of that name, `compiled` the same
            under `torch.compile`; `triton` is the fused kernel for long sequences on a GPU (tables of vectors only).

    Raises:
        ValueError: tables, biases or labels of an invalid shape.
    """
    return attention_of(AttentionInputs(q_BHQD, k_BHKD, v_BHKD, **options), implementation)


def attention_of(given: AttentionInputs, implementation: Implementation = "auto") -> Tensor:
    """As `attend`."""
    given.check_shapes()
    q_BHQD, k_BHKD, v_BHKD, *_ = given
    if (mask := given.mask) is not None:
        given = given._replace(mask=mask.reshape((1,) * (4 - mask.dim()) + mask.shape))
    if k_BHKD.shape[0] < q_BHQD.shape[0]:
        k_BHKD, v_BHKD = (x.expand(q_BHQD.shape[0], -1, -1, -1) for x in (k_BHKD, v_BHKD))
        given = given._replace(k=k_BHKD, v=v_BHKD)
    if not q_BHQD.numel() or not k_BHKD.numel():
        return reference(q_BHQD, k_BHKD, v_BHKD, **given.options)
    if implementation == "auto" and not torch.compiler.is_compiling() and cpu_attention.usable(given):
        if (z_BHQD := cpu_attention.fused(given)) is not None:
            return z_BHQD
        if (width := band_of(given)) is not None:
            return banded(given, width)
    if implementation == "auto" and given.plain and _fused_is_faster(q_BHQD, k_BHKD):
        return _fused(given)
    if implementation == "triton":
        others = (given.bias_table, given.key_bias, given.distance_queries)
        if given.dense_alone or any(part is not None for part in others):
            raise ValueError(
                "implementation: triton supports only key and value tables by distance, no labels, score bias or "
                "queries of their own; choose auto"
            )
        from rpr.model.triton_attention import fused_attention

        return fused_attention(q_BHQD, k_BHKD, v_BHKD, **given._replace(reach=None).options)  # type: ignore[misc]
    if (
        implementation in ("composed", "compiled")
        or given.dense_alone
        or (implementation == "auto" and _composed_is_better(q_BHQD))
    ):
        return (_compiled() if implementation == "compiled" else composed)(q_BHQD, k_BHKD, v_BHKD, **given.options)
    num_queries, num_keys = q_BHQD.shape[2], k_BHKD.shape[2]
    by_blocks = implementation == "blockwise" or (implementation == "auto" and num_queries * num_keys >= LONG**2)
    return blockwise(given, queries_per_block=max(64, BLOCK_SCORES // num_keys) if by_blocks else None)


def split_heads(qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of self-attention from one projection, [B, Q, 3 H D] -> three views [B, H, Q, D]."""
    if torch.compiler.is_compiling():
        q, k, v = qkv_BQM.view(*qkv_BQM.shape[:2], 3, num_heads, -1).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    parts: tuple[Tensor, Tensor, Tensor] = SplitHeads.apply(qkv_BQM, num_heads)  # type: ignore[no-untyped-call]
    return parts


def _fused_is_faster(q_BHQD: Tensor, k_BHKD: Tensor) -> bool:
    """Whether torch's fused kernel for plain attention was measured to be faster than our passes.

    On a CPU the kernel gains little from bfloat16 matmuls (sweeps/results/speed/attention.md).
    """
    if q_BHQD.device.type != "cpu":
        return True
    through_bfloat16 = q_BHQD.dtype == torch.bfloat16 or (
        q_BHQD.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    )
    return k_BHKD.shape[2] >= (LONG if through_bfloat16 else 256)


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(composed, dynamic=True)


def _composed_is_better(q_BHQD: Tensor) -> bool:
    """Under torch.compile, which fuses it, and for a few queries to a cache, which it does not copy."""
    return torch.compiler.is_compiling() or (q_BHQD.shape[2] <= 16 and not torch.is_grad_enabled())


def _fused(given: AttentionInputs) -> Tensor:
    num_queries, num_keys = given.q.shape[2], given.k.shape[2]
    if given.causal and given.mask is None and given.first_query == 0 and num_queries == num_keys:
        return F.scaled_dot_product_attention(given.q, given.k, given.v, is_causal=True)
    layout = Layout(None, None, given.mask, given.causal, given.first_query, None)
    # An additive mask: a boolean one gives NaN for queries that see no key.
    bias = layout.mask_bias((0, num_queries, num_keys), like=given.q)
    return F.scaled_dot_product_attention(given.q, given.k, given.v, attn_mask=bias)
