"""Attention with relative positions: the paper's equations, the paper's algorithm, and the implementation in use.

Pure functions with the same result, forward and backward:

- `reference` follows equations 3 and 4 with a_ij written out; for tests and for reading.
- `per_position` is the algorithm of the paper's section 3.3; the historical baseline of `rpr-cli bench`.
- `composed` projects onto the table first and spreads the result over the keys, in differentiable torch operations
  that `torch.compile` can fuse and autograd can differentiate twice.
- `attend` is the one to call: by device and length it selects the fused kernels for plain attention, the hand-written
  passes of `rpr.model.blockwise_attention`, or `composed` under `torch.compile`.

They take the same arguments:

    q_BHQD, k_BHKD, v_BHKD  x W^Q, x W^K, x W^V, unscaled; k and v of batch size 1 are broadcast
    key_table, value_table  w^K and w^V: 2k+1 rows, [R, D] shared by heads or [H, R, D] per head; None: no such
                            term. The two may have different k.
    bias_table              a bias b for each head and row, [H, R], added to the scaled score; of any k
    labels                  int64 [Q, K] or [B, Q, K]: the table row of each pair, in place of clip(j - i, k) + k (a
                            dependency tree, a table schema; the tables may then have any number of rows)
    mask                    bool, broadcastable to [B, H, Q, K]; False hides the key from the query
    causal                  the query at position p sees only keys 0..p; `attend` does not even read the table rows
                            right of the diagonal
    first_query             position of the first query among the keys, e.g. the length of a cache

and return z [B, H, Q, D], empty if q is. A query that sees no key gets finite but meaningless values and finite
gradients.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.blockwise_attention import BlockwiseAttention, Layout, SplitHeads
from rpr.model.composed_attention import composed as composed
from rpr.model.composed_attention import weights as weights
from rpr.model.edges import Distances, Edges, Labels
from rpr.model.equations import check_shapes
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
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    bias_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
    implementation: Implementation = "auto",
) -> Tensor:
    """Attention as used in training and decoding; the other arguments are described above.

    Args:
        implementation: `auto` selects one; `dense` stores the weights [B, H, Q, K] for the backward pass, `blockwise`
            recomputes them block by block of queries; `composed` is the function of that name, `compiled` the same
            under `torch.compile`; `triton` is the fused kernel for long sequences on a GPU (distances only).

    Raises:
        ValueError: tables or labels of an invalid shape.
    """
    check_shapes(q_BHQD, k_BHKD, key_table, value_table, bias_table, labels)
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    if k_BHKD.shape[0] < q_BHQD.shape[0]:
        k_BHKD, v_BHKD = (x.expand(q_BHQD.shape[0], -1, -1, -1) for x in (k_BHKD, v_BHKD))
    tables: dict[str, Any] = {"key_table": key_table, "value_table": value_table}
    if not q_BHQD.numel() or not k_BHKD.numel():
        return reference(q_BHQD, k_BHKD, v_BHKD, **tables, bias_table=bias_table, labels=labels, mask=mask)
    which: dict[str, Any] = {"mask": mask, "causal": causal, "first_query": first_query}
    plain = key_table is None and value_table is None and bias_table is None
    if implementation == "auto" and plain and _fused_is_faster(q_BHQD, k_BHKD):
        return _fused(q_BHQD, k_BHKD, v_BHKD, mask, causal, first_query)
    if implementation in ("composed", "compiled") or (implementation == "auto" and _composed_is_better(q_BHQD)):
        compute = _compiled() if implementation == "compiled" else composed
        return compute(q_BHQD, k_BHKD, v_BHKD, **tables, bias_table=bias_table, labels=labels, **which)
    if implementation == "triton":
        if labels is not None or bias_table is not None:
            raise ValueError(
                "implementation: triton supports only key and value tables by distance, no labels or score bias; "
                "choose auto"
            )
        from rpr.model.triton_attention import fused_attention

        return fused_attention(q_BHQD, k_BHKD, v_BHKD, **tables, **which)
    num_queries, num_keys = q_BHQD.shape[2], k_BHKD.shape[2]
    by_blocks = implementation == "blockwise" or (implementation == "auto" and num_queries * num_keys >= LONG**2)

    def edges(table: Tensor | None) -> Edges | None:
        if table is None:
            return None
        if labels is not None:
            return Labels(labels, table.shape[-2])
        return Distances.between(num_queries, num_keys, first_query, table.shape[-2], causal=causal)

    layout = Layout(
        key_edges=edges(key_table),
        value_edges=edges(value_table),
        bias_edges=None if bias_table is None or labels is None else Labels(labels, bias_table.shape[1]),
        mask_BHQK=mask,
        causal=causal,
        first_query=first_query,
        queries_per_block=max(64, BLOCK_SCORES // num_keys) if by_blocks else None,
    )
    z_BHQD: Tensor = BlockwiseAttention.apply(  # type: ignore[no-untyped-call]
        q_BHQD, k_BHKD, v_BHKD, key_table, value_table, bias_table, layout
    )
    return z_BHQD


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


def _fused(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Tensor | None, causal: bool, first_query: int
) -> Tensor:
    if causal and mask is None and first_query == 0 and q_BHQD.shape[2] == k_BHKD.shape[2]:
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, is_causal=True)
    layout = Layout(None, None, None, mask, causal, first_query, None)
    # An additive mask: a boolean one gives NaN for queries that see no key.
    bias = layout.mask_bias((0, q_BHQD.shape[2], k_BHKD.shape[2]), like=q_BHQD)
    return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=bias)
