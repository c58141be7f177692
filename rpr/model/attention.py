"""Attention with relative positions: the paper's equations literally, the paper's algorithm, and what is trained.

Pure functions, equal to each other forward and backward:

- `reference` follows equations 3 and 4 by writing a_ij out; for tests and for reading.
- `per_position` is the algorithm of the paper's section 3.3; the historical baseline of `rpr-cli bench`.
- `composed` projects on the table first and spreads afterwards, in differentiable torch operations that
  `torch.compile` fuses and autograd may differentiate twice.
- `attend` is the one to call: it chooses by device and length among the fused kernels for plain attention, the
  hand-written passes of `rpr.model.blockwise_attention`, and `composed` under `torch.compile`.

They take the same arguments:

    q_BHQD, k_BHKD, v_BHKD  x W^Q, x W^K, x W^V, unscaled
    key_table, value_table  w^K and w^V: 2k+1 rows, [R, D] shared by heads or [H, R, D] per head; None is no term.
                            The two may have different k.
    labels                  int64 [Q, K] or [B, Q, K]: the table row of each pair, in place of clip(j - i, k) + k (a
                            dependency tree, a table schema; the tables may then have any number of rows)
    mask                    bool, broadcastable to [B, H, Q, K]; False hides the key from the query
    causal                  the query at position p sees keys 0..p alone; what is trained does not even read the table
                            rows right of the diagonal
    first_query             position of the first query among the keys: the length of a cache

and return z [B, H, Q, D]. A query that sees no key gets finite numbers of no meaning, and finite gradients.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.blockwise_attention import MASKED, BlockwiseAttention, Layout, SplitHeads
from rpr.model.edges import Distances, Edges, Labels
from rpr.model.positions import relative_rows

Implementation = Literal["auto", "dense", "blockwise", "composed", "compiled", "triton"]

LONG = 1024  # keys from which the weights are not kept for the backward pass but computed again, block by block
BLOCK_SCORES = 2**18  # scores of one product in a block of queries


def reference(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
) -> Tensor:
    """Equations 3 and 4 with a^K_ij and a^V_ij written out: [B, H, Q, K, D] numbers."""
    num_queries, num_keys = q_BHQD.shape[2], k_BHKD.shape[2]
    edges_BHQKD = k_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if key_table is not None:
        edges_BHQKD = edges_BHQKD + _edge_vectors(key_table, labels, num_queries, num_keys, first_query)
    scores_BHQK = torch.einsum("bhqd,bhqkd->bhqk", q_BHQD, edges_BHQKD) / math.sqrt(q_BHQD.shape[-1])
    weights_BHQK = _softmax(scores_BHQK, _visible(mask, causal, first_query, scores_BHQK))
    values_BHQKD = v_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if value_table is not None:
        values_BHQKD = values_BHQKD + _edge_vectors(value_table, labels, num_queries, num_keys, first_query)
    return torch.einsum("bhqk,bhqkd->bhqd", weights_BHQK, values_BHQKD)


def per_position(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
) -> Tensor:
    """The paper's own algorithm (section 3.3): a_ij gathered once for all sentences, one product for each query.

    Equation 5 with n parallel products of [B H, D] by [D, n]. Its space is n^2 D beyond plain attention, and in low
    precision the gradient of a table row sums all its n^2 pairs in that precision.
    """
    num_queries, num_keys = q_BHQD.shape[2], k_BHKD.shape[2]
    scores_BHQK = q_BHQD @ k_BHKD.transpose(-2, -1)
    if key_table is not None:
        a_key = _edge_vectors(key_table.to(q_BHQD.dtype), labels, num_queries, num_keys, first_query)
        scores_BHQK = scores_BHQK + _products_by_query(q_BHQD, a_key.transpose(-2, -1))
    scores_BHQK = scores_BHQK / math.sqrt(q_BHQD.shape[-1])
    weights_BHQK = _softmax(scores_BHQK, _visible(mask, causal, first_query, scores_BHQK))
    z_BHQD = weights_BHQK @ v_BHKD
    if value_table is not None:
        a_value = _edge_vectors(value_table.to(q_BHQD.dtype), labels, num_queries, num_keys, first_query)
        z_BHQD = z_BHQD + _products_by_query(weights_BHQK, a_value)
    return z_BHQD


def attend(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
    implementation: Implementation = "auto",
) -> Tensor:
    """Attention as it is trained and decoded.

    Args:
        implementation: `auto` chooses; `dense` keeps the weights [B, H, Q, K] for the backward pass, `blockwise`
            computes them again block of queries by block; `composed` is the function of that name; `triton` is
            the fused kernel for long sequences on a GPU (distances only).

    Raises:
        ValueError: tables or labels of a shape that is none of the above.
    """
    _check(q_BHQD, k_BHKD, key_table, value_table, labels)
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    if implementation == "auto" and key_table is None and value_table is None and _fused_is_faster(q_BHQD, k_BHKD):
        return _fused(q_BHQD, k_BHKD, v_BHKD, mask, causal, first_query)
    if implementation in ("composed", "compiled") or (implementation == "auto" and _composed_is_better(q_BHQD)):
        compute = _compiled() if implementation == "compiled" else composed
        return compute(
            q_BHQD,
            k_BHKD,
            v_BHKD,
            key_table=key_table,
            value_table=value_table,
            labels=labels,
            mask=mask,
            causal=causal,
            first_query=first_query,
        )
    if implementation == "triton":
        if labels is not None:
            raise ValueError("implementation: triton knows clipped distances only; choose auto for labels")
        from rpr.model.triton_attention import fused_attention

        return fused_attention(
            q_BHQD,
            k_BHKD,
            v_BHKD,
            key_table=key_table,
            value_table=value_table,
            mask=mask,
            causal=causal,
            first_query=first_query,
        )
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
        mask_BHQK=mask,
        causal=causal,
        first_query=first_query,
        queries_per_block=max(64, BLOCK_SCORES // num_keys) if by_blocks else None,
    )
    z_BHQD: Tensor = BlockwiseAttention.apply(  # type: ignore[no-untyped-call]
        q_BHQD, k_BHKD, v_BHKD, key_table, value_table, layout
    )
    return z_BHQD


def composed(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
) -> Tensor:
    """Project, then spread (DESIGN: q w_K^T is [B, H, Q, R], a small product), in operations torch can differentiate.

    For distances without any gather or scatter: the clipped rows are laid out by distance once, and moving from
    distances to keys is a change of strides.
    """
    # Scaling q covers both terms of equation 5, and touches Q*D numbers instead of Q*K.
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    weights_BHQK = _scores_to_weights(q_BHQD, k_BHKD, key_table, labels, mask, causal, first_query)
    z_BHQD = weights_BHQK @ v_BHKD
    if value_table is not None and labels is not None:
        one_hot_QKR = F.one_hot(labels, value_table.shape[-2]).to(weights_BHQK.dtype)
        by_row = torch.einsum("bhqk,bqkr->bhqr", weights_BHQK, one_hot_QKR.expand(q_BHQD.shape[0], -1, -1, -1))
        z_BHQD = z_BHQD + _times_table(by_row, value_table)
    elif value_table is not None:
        z_BHQD = z_BHQD + collect(weights_BHQK, value_table, first_query=first_query)
    return z_BHQD


def weights(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
) -> Tensor:
    """The attention weights alone, P [B, H, Q, K]: what each query takes of each key."""
    _check(q_BHQD, k_BHKD, key_table, None, labels)
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    return _scores_to_weights(q_BHQD, k_BHKD, key_table, labels, mask, causal, first_query)


def split_heads(qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of self-attention from one projection, [B, Q, 3 H D] -> three views [B, H, Q, D]."""
    if torch.compiler.is_compiling():
        q, k, v = qkv_BQM.view(*qkv_BQM.shape[:2], 3, num_heads, -1).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    parts: tuple[Tensor, Tensor, Tensor] = SplitHeads.apply(qkv_BQM, num_heads)  # type: ignore[no-untyped-call]
    return parts


def spread(q_BHQD: Tensor, table: Tensor, num_keys: int, *, first_query: int = 0) -> Tensor:
    """q_i . w_row(i,j) for every key j: the second term of equation 5, [B, H, Q, K].

    Only the rows that can occur between these queries and keys enter the product.
    """
    num_queries = q_BHQD.shape[2]
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    projected = _times_table(q_BHQD, table[..., first_row : last_row + 1, :].transpose(-2, -1))
    by_distance_BHQC = _repeat_edges(projected, left, right)
    return _distances_to_keys(by_distance_BHQC, num_keys)


def collect(weights_BHQK: Tensor, table: Tensor, *, first_query: int = 0) -> Tensor:
    """sum_j P_ij w_row(i,j): what equation 3 adds to the values, [B, H, Q, D]; the adjoint of `spread`.

    First P is summed over the keys that share a row, then one product with the table.
    """
    num_queries, num_keys = weights_BHQK.shape[2:]
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    by_distance_BHQC = _keys_to_distances(weights_BHQK)
    by_row = _sum_edges(by_distance_BHQC, left, right)
    return _times_table(by_row, table[..., first_row : last_row + 1, :])


def _times_table(x_BHQX: Tensor, matrix: Tensor) -> Tensor:
    """[B, H, Q, X] times [X, Y] or [H, X, Y]; heads first, as torch would copy a matrix per head for every sentence."""
    matrix = matrix.to(x_BHQX.dtype)
    if matrix.dim() == 2:
        return x_BHQX @ matrix
    batch, heads, num_queries, width = x_BHQX.shape
    by_head = x_BHQX.transpose(0, 1).reshape(heads, batch * num_queries, width) @ matrix
    return by_head.view(heads, batch, num_queries, -1).transpose(0, 1)


def _scores_to_weights(
    scaled_q_BHQD: Tensor,
    k_BHKD: Tensor,
    key_table: Tensor | None,
    labels: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    first_query: int,
) -> Tensor:
    scores_BHQK = scaled_q_BHQD @ k_BHKD.transpose(-2, -1)
    if key_table is not None and labels is not None:
        projected_BHQR = _times_table(scaled_q_BHQD, key_table.transpose(-2, -1))
        labels_BHQK = labels.expand(scores_BHQK.shape) if labels.dim() == 2 else labels[:, None].expand_as(scores_BHQK)
        scores_BHQK = scores_BHQK + projected_BHQR.gather(-1, labels_BHQK)
    elif key_table is not None:
        scores_BHQK = scores_BHQK + spread(scaled_q_BHQD, key_table, k_BHKD.shape[2], first_query=first_query)
    return _softmax(scores_BHQK, _visible(mask, causal, first_query, scores_BHQK))


def _visible(mask: Tensor | None, causal: bool, first_query: int, scores_BHQK: Tensor) -> Tensor | None:
    if not causal or first_query + 1 >= scores_BHQK.shape[-1]:  # one query at the end of a cache sees everything
        return mask
    num_queries, num_keys = scores_BHQK.shape[-2:]
    keys = torch.arange(num_keys, device=scores_BHQK.device)
    queries = first_query + torch.arange(num_queries, device=scores_BHQK.device)
    earlier_QK = keys[None, :] <= queries[:, None]
    return earlier_QK if mask is None else mask & earlier_QK


def _softmax(scores_BHQK: Tensor, visible: Tensor | None) -> Tensor:
    if visible is not None:
        lowest = max(MASKED, torch.finfo(scores_BHQK.dtype).min / 2)
        scores_BHQK = scores_BHQK.masked_fill(~visible, lowest)
    # float32 whatever the products' precision: a bfloat16 exponent sum over hundreds of keys loses its tail.
    wide = torch.float64 if scores_BHQK.dtype == torch.float64 else torch.float32
    return scores_BHQK.softmax(dim=-1, dtype=wide).to(scores_BHQK.dtype)


def _fused_is_faster(q_BHQD: Tensor, k_BHKD: Tensor) -> bool:
    """Whether torch's fused kernel for plain attention beats our passes, by what was measured.

    On a CPU the kernel gains little from products through bfloat16 (sweeps/results/speed/attention.md).
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
    """Under torch.compile, which fuses it; and for the few queries of a decoding step, where it copies no cache."""
    return torch.compiler.is_compiling() or (q_BHQD.shape[2] <= 16 and not torch.is_grad_enabled())


def _fused(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Tensor | None, causal: bool, first_query: int
) -> Tensor:
    if causal and mask is None and first_query == 0 and q_BHQD.shape[2] == k_BHKD.shape[2]:
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, is_causal=True)
    layout = Layout(None, None, mask, causal, first_query, None)
    # Added numbers, as a boolean mask gives NaN on rows with nothing to see.
    bias = layout.hidden((0, q_BHQD.shape[2], k_BHKD.shape[2]), like=q_BHQD)
    return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=bias)


def _check(
    q_BHQD: Tensor, k_BHKD: Tensor, key_table: Tensor | None, value_table: Tensor | None, labels: Tensor | None
) -> None:
    batch, heads, num_queries, width = q_BHQD.shape
    for name, table in (("key_table", key_table), ("value_table", value_table)):
        if table is None:
            continue
        if table.dim() not in (2, 3) or table.shape[-1] != width or (table.dim() == 3 and table.shape[0] != heads):
            raise ValueError(
                f"{name}: shape {list(table.shape)} is neither [R, {width}] (shared by heads) nor [{heads}, R, {width}]"
            )
        if labels is None and table.shape[-2] % 2 == 0:
            raise ValueError(f"{name}: {table.shape[-2]} rows are not 2k+1, one for each distance from -k to k")
    if labels is not None:
        pairs = (num_queries, k_BHKD.shape[2])
        if labels.dtype != torch.int64 or tuple(labels.shape) not in (pairs, (batch, *pairs)):
            raise ValueError(
                f"labels: {labels.dtype} {list(labels.shape)} is not int64 {list(pairs)} or {[batch, *pairs]}"
            )


def _edge_vectors(table: Tensor, labels: Tensor | None, num_queries: int, num_keys: int, first_query: int) -> Tensor:
    """a_ij for all pairs, broadcastable to [B, H, Q, K, D]."""
    if labels is None:
        clip_distance = (table.shape[-2] - 1) // 2
        labels = relative_rows(num_queries, num_keys, clip_distance, first_query=first_query).to(table.device)
    edges = table[..., labels, :]  # [Q, K, D], [H, Q, K, D], [B, Q, K, D] or [H, B, Q, K, D]
    if labels.dim() == 2:
        return edges
    return edges[:, None] if table.dim() == 2 else edges.transpose(0, 1)


def _products_by_query(x_BHQX: Tensor, edges: Tensor) -> Tensor:
    """x_i times the matrix of query i, for all i: [B, H, Q, X] with [.., Q, X, Y] to [B, H, Q, Y]."""
    if edges.dim() == 3:  # one matrix for all sentences and heads: Q products of [B H, X]
        by_query = torch.bmm(x_BHQX.flatten(0, 1).transpose(0, 1), edges)
        return by_query.transpose(0, 1).reshape(*x_BHQX.shape[:3], -1)
    if edges.dim() == 4:  # a table per head: H Q products of [B, X]
        by_query = x_BHQX.permute(1, 2, 0, 3) @ edges
        return by_query.permute(2, 0, 1, 3)
    return (x_BHQX[..., None, :] @ edges)[..., 0, :]  # labels of each sentence: nothing is shared


def _occurring_rows(num_queries: int, num_keys: int, num_rows: int, first_query: int) -> tuple[int, int, int, int]:
    """First and last table row that occurs, and how many distances beyond each lie on the clipped edge.

    The C = Q+K-1 distances are lowest = -(first_query + Q - 1) .. highest = K - 1 - first_query, in this order.
    """
    clip_distance = (num_rows - 1) // 2
    lowest = -(first_query + num_queries - 1)
    highest = num_keys - 1 - first_query
    first = max(-clip_distance, min(clip_distance, lowest))
    last = max(-clip_distance, min(clip_distance, highest))
    left = min(max(0, -clip_distance - lowest), highest - lowest)
    right = max(0, highest - clip_distance)
    return first + clip_distance, last + clip_distance, left, right


def _repeat_edges(rows_BHQX: Tensor, left: int, right: int) -> Tensor:
    """Rows laid out by distance: the first repeated `left` more times, the last `right` more times."""
    if not left and not right:
        return rows_BHQX
    parts = [rows_BHQX]
    if left:
        parts.insert(0, rows_BHQX[..., :1].expand(*rows_BHQX.shape[:-1], left))
    if right:
        parts.append(rows_BHQX[..., -1:].expand(*rows_BHQX.shape[:-1], right))
    return torch.cat(parts, dim=-1)


def _sum_edges(by_distance_BHQC: Tensor, left: int, right: int) -> Tensor:
    """The adjoint of `_repeat_edges`: the distances on a clipped edge are summed into its row."""
    if not left and not right:
        return by_distance_BHQC
    num_distances = by_distance_BHQC.shape[-1]
    middle = by_distance_BHQC[..., left : num_distances - right]
    if left + right + 1 == num_distances and left and right:  # k = 0: one row takes everything
        return by_distance_BHQC.sum(dim=-1, keepdim=True)
    parts = [middle]
    if left:
        parts[0] = middle[..., 1:]
        parts.insert(0, by_distance_BHQC[..., : left + 1].sum(dim=-1, keepdim=True))
    if right:
        parts[-1] = parts[-1][..., :-1]
        parts.append(by_distance_BHQC[..., num_distances - right - 1 :].sum(dim=-1, keepdim=True))
    return torch.cat(parts, dim=-1)


def _distances_to_keys(by_distance_BHQC: Tensor, num_keys: int) -> Tensor:
    """Column of distance j - i -> column of key j, by strides alone.

    Row i wants its columns from Q-1-i on. Read flat, element (i, j) lies at i*C + (j - i + Q-1) = i*(C-1) + j + Q-1:
    so dropping the first Q-1 numbers and cutting into rows of C-1 puts key j of every query in column j.
    """
    *batch, num_queries, num_distances = by_distance_BHQC.shape
    if num_queries == 1:
        return by_distance_BHQC
    width = num_distances - 1
    flat = by_distance_BHQC.reshape(*batch, num_queries * num_distances)
    cut = flat[..., num_queries - 1 : num_queries - 1 + num_queries * width]
    return cut.reshape(*batch, num_queries, width)[..., :num_keys]


def _keys_to_distances(weights_BHQK: Tensor) -> Tensor:
    """The adjoint of `_distances_to_keys`: zeros where a distance does not occur for a query."""
    *batch, num_queries, num_keys = weights_BHQK.shape
    if num_queries == 1:
        return weights_BHQK
    num_distances = num_queries + num_keys - 1
    padded = F.pad(weights_BHQK, (0, num_distances - 1 - num_keys))
    flat = F.pad(padded.flatten(-2), (num_queries - 1, 1))
    return flat.view(*batch, num_queries, num_distances)
