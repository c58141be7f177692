"""Attention with relative positions: the paper's equations literally, and the form that is trained.

Everything here is a pure function. `reference` follows equations 3 and 4 by materialising a_ij. `attend` computes
the same by projecting on the table first and spreading afterwards (DESIGN: q w_K^T is [B, H, Q, R], a small product),
so that no [Q, K, D] tensor exists, and without any gather or scatter: the clipped rows are laid out by distance once,
and moving from distances to keys is a change of strides. It is deterministic on every device.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.positions import relative_rows

MASKED = -1e9  # added to a masked score: large enough to vanish, finite so that a fully masked row has no NaN


def reference(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    mask: Tensor | None = None,
    first_query: int = 0,
) -> Tensor:
    """Equations 3 and 4 with a^K_ij and a^V_ij written out; for tests and for reading.

    Args:
        q_BHQD, k_BHKD, v_BHKD: x W^Q, x W^K, x W^V, unscaled.
        key_table, value_table: w^K, w^V: [R, D] shared by heads or [H, R, D] per head; None is no term.
        mask: bool, broadcastable to [B, H, Q, K]; False hides the key from the query.
        first_query: position of the first query among the keys.

    Returns:
        z: [B, H, Q, D].
    """
    num_queries, num_keys = q_BHQD.shape[2], k_BHKD.shape[2]
    edges_BHQKD = k_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if key_table is not None:
        edges_BHQKD = edges_BHQKD + _edge_vectors(key_table, num_queries, num_keys, first_query)
    scores_BHQK = torch.einsum("bhqd,bhqkd->bhqk", q_BHQD, edges_BHQKD) / math.sqrt(q_BHQD.shape[-1])
    weights_BHQK = _softmax(scores_BHQK, mask)
    values_BHQKD = v_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if value_table is not None:
        values_BHQKD = values_BHQKD + _edge_vectors(value_table, num_queries, num_keys, first_query)
    return torch.einsum("bhqk,bhqkd->bhqd", weights_BHQK, values_BHQKD)


def attend(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    mask: Tensor | None = None,
    first_query: int = 0,
) -> Tensor:
    """The same attention as `reference` (same arguments and result), as it is trained and decoded.

    Without tables it is plain scaled dot-product attention: on a GPU torch's fused kernel, on a CPU explicit
    products (there the fused kernel gains nothing from bfloat16 products, and is the slower of the two).
    """
    if key_table is None and value_table is None and q_BHQD.is_cuda:
        # An additive mask, as a boolean one gives NaN on fully masked rows.
        bias = None if mask is None else torch.zeros_like(mask, dtype=q_BHQD.dtype).masked_fill(~mask, MASKED)
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=bias)
    # Scaling q covers both terms of equation 5, and touches Q*D numbers instead of Q*K.
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    scores_BHQK = q_BHQD @ k_BHKD.transpose(-2, -1)
    if key_table is not None:
        scores_BHQK = scores_BHQK + spread(q_BHQD, key_table, k_BHKD.shape[2], first_query=first_query)
    weights_BHQK = _softmax(scores_BHQK, mask)
    out_BHQD = weights_BHQK @ v_BHKD
    if value_table is not None:
        out_BHQD = out_BHQD + collect(weights_BHQK, value_table, first_query=first_query)
    return out_BHQD


def spread(q_BHQD: Tensor, table: Tensor, num_keys: int, *, first_query: int = 0) -> Tensor:
    """q_i . w_row(i,j) for every key j: the second term of equation 5, [B, H, Q, K].

    Only the rows that can occur between these queries and keys enter the product.
    """
    num_queries = q_BHQD.shape[2]
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    projected = q_BHQD @ table[..., first_row : last_row + 1, :].transpose(-2, -1).to(q_BHQD.dtype)
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
    return by_row @ table[..., first_row : last_row + 1, :].to(weights_BHQK.dtype)


def _softmax(scores_BHQK: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        scores_BHQK = scores_BHQK.masked_fill(~mask, MASKED)
    # float32 whatever the products' precision: a bfloat16 exponent sum over hundreds of keys loses its tail.
    wide = torch.float64 if scores_BHQK.dtype == torch.float64 else torch.float32
    return scores_BHQK.softmax(dim=-1, dtype=wide).to(scores_BHQK.dtype)


def _edge_vectors(table: Tensor, num_queries: int, num_keys: int, first_query: int) -> Tensor:
    """a_ij for all pairs: [Q, K, D], or [H, Q, K, D] for tables per head."""
    clip_distance = (table.shape[-2] - 1) // 2
    rows_QK = relative_rows(num_queries, num_keys, clip_distance, first_query=first_query).to(table.device)
    return table[..., rows_QK, :]


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
