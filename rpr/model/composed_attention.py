"""Relative attention composed of operations that autograd and torch.compile know; arguments: `rpr.model.attention`."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.equations import check_shapes, softmax, visible_keys


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
    check_shapes(q_BHQD, k_BHKD, key_table, None, labels)
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    return _scores_to_weights(q_BHQD, k_BHKD, key_table, labels, mask, causal, first_query)


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
    return softmax(scores_BHQK, visible_keys(mask, causal, first_query, scores_BHQK))


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
