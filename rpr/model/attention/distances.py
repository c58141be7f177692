"""Conversion between values by distance and values by key, by strides alone: no gather, no scatter."""

# Shape suffixes: B batch, H heads, Q queries, K keys, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

import torch
import torch.nn.functional as F
from torch import Tensor


def bias_of_pairs(bias_HR: Tensor, num_queries: int, num_keys: int, first_query: int) -> Tensor:
    """The bias of each (query, key) pair, by its clipped distance: [H, Q, K]."""
    first_row, last_row, left, right = occurring_rows(num_queries, num_keys, bias_HR.shape[1], first_query)
    by_distance_HC = repeat_edges(bias_HR[:, first_row : last_row + 1], left, right)  # the same for every query
    return distances_to_keys(by_distance_HC[:, None].expand(-1, num_queries, -1), num_keys)


def sum_by_row(of_pairs: Tensor, num_rows: int, first_query: int) -> Tensor:
    """The sum over all pairs that share a row, [..., R]: the adjoint of `bias_of_pairs`, without atomic additions."""
    num_queries, num_keys = of_pairs.shape[-2:]
    first_row, last_row, left, right = occurring_rows(num_queries, num_keys, num_rows, first_query)
    by_row = sum_edges(keys_to_distances(of_pairs).sum(-2), left, right)
    return F.pad(by_row, (first_row, num_rows - 1 - last_row))


def occurring_rows(num_queries: int, num_keys: int, num_rows: int, first_query: int) -> tuple[int, int, int, int]:
    """The first and last table row that occurs, and how many distances beyond each are clipped to it.

    The C = Q+K-1 distances run from lowest = -(first_query + Q - 1) to highest = K - 1 - first_query.
    """
    clip_distance = (num_rows - 1) // 2
    lowest = -(first_query + num_queries - 1)
    highest = num_keys - 1 - first_query
    first = max(-clip_distance, min(clip_distance, lowest))
    last = max(-clip_distance, min(clip_distance, highest))
    left = min(max(0, -clip_distance - lowest), highest - lowest)
    right = max(0, highest - clip_distance)
    return first + clip_distance, last + clip_distance, left, right


def repeat_edges(rows_BHQX: Tensor, left: int, right: int) -> Tensor:
    """Rows laid out by distance: the first repeated `left` more times, the last `right` more times."""
    if not left and not right:
        return rows_BHQX
    parts = [rows_BHQX]
    if left:
        parts.insert(0, rows_BHQX[..., :1].expand(*rows_BHQX.shape[:-1], left))
    if right:
        parts.append(rows_BHQX[..., -1:].expand(*rows_BHQX.shape[:-1], right))
    return torch.cat(parts, dim=-1)


def sum_edges(by_distance_BHQC: Tensor, left: int, right: int) -> Tensor:
    """The adjoint of `repeat_edges`: clipped distances are summed into the outermost row."""
    if not left and not right:
        return by_distance_BHQC
    stop = by_distance_BHQC.shape[-1] - right
    rows_BHQX = by_distance_BHQC[..., left:stop].clone()
    rows_BHQX[..., 0] += by_distance_BHQC[..., :left].sum(-1)
    rows_BHQX[..., -1] += by_distance_BHQC[..., stop:].sum(-1)
    return rows_BHQX


def distances_to_keys(by_distance_BHQC: Tensor, num_keys: int) -> Tensor:
    """Column of distance j - i -> column of key j, a view of other strides.

    In flat order, element (i, j) is at i*C + (j - i + Q-1) = i*(C-1) + j + Q-1.
    """
    num_queries = by_distance_BHQC.shape[-2]
    if num_queries == 1:
        return by_distance_BHQC
    whole = by_distance_BHQC.contiguous()
    start = 0 if torch.compiler.is_compiling() else whole.storage_offset()  # there tensors are new, and this unknown
    return whole.as_strided(*_by_key(whole, num_keys), start + num_queries - 1)


def keys_to_distances(weights_BHQK: Tensor) -> Tensor:
    """The adjoint of `distances_to_keys`: zero where a query has no key at a distance."""
    *batch, num_queries, num_keys = weights_BHQK.shape
    if num_queries == 1:
        return weights_BHQK
    nothing = weights_BHQK.new_zeros((*batch, num_queries, num_queries + num_keys - 1))
    return torch.as_strided_scatter(nothing, weights_BHQK, *_by_key(nothing, num_keys), num_queries - 1)


def _by_key(by_distance_BHQC: Tensor, num_keys: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of the view by key of a contiguous tensor by distance."""
    *batch, num_queries, num_distances = by_distance_BHQC.shape
    return (*batch, num_queries, num_keys), (*by_distance_BHQC.stride()[:-2], num_distances - 1, 1)
