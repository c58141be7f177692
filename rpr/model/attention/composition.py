"""Attention with relative positions composed of torch operations, for autograd and torch.compile; which keys are seen,
and the softmax.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.attention.inputs import AttentionInputs
from rpr.model.vectors import rows_of

HALF = (torch.bfloat16, torch.float16)
MASKED = -1e9  # a hidden key's score: negligible next to any other, and fully masked rows give no NaN


def composed(given: AttentionInputs) -> Tensor:
    """Equations 3 and 4 of Shaw et al. 2018: project, then spread (q w_K^T is [B, H, Q, R], a small matmul), in
    operations that torch can differentiate.

    Distances need no gather or scatter: the clipped rows are laid out by distance once, and going from distances to
    keys is a change of strides.
    """
    weights_BHQK = weights(given)
    z_BHQD = weights_BHQK @ given.v
    table, labels = given.value_table, given.labels
    if table is None:
        return z_BHQD
    if labels is None:
        return z_BHQD + _collect(weights_BHQK, table, given.first_query)
    if labels.dim() == 1:
        return z_BHQD + _times_table(weights_BHQK, _of_keys(table, labels))
    summands = weights_BHQK.to(torch.promote_types(weights_BHQK.dtype, torch.float32))
    by_row = summands.new_zeros(*summands.shape[:3], table.shape[-2])
    of_heads = labels if labels.dim() == 2 else labels[:, None]
    by_row = by_row.scatter_add(-1, of_heads.expand_as(summands), summands)
    return z_BHQD + _times_table(by_row.to(weights_BHQK.dtype), table)


def weights(given: AttentionInputs) -> Tensor:
    """The attention weights P, [B, H, Q, K]."""
    # Scaling q covers both terms of equation 5 and touches Q*D numbers instead of Q*K.
    q_BHQD = given.q * given.scale
    scores_BHQK = q_BHQD @ given.k.transpose(-2, -1)
    if given.key_table is not None:
        queries = q_BHQD if given.distance_queries is None else given.distance_queries
        scores_BHQK = scores_BHQK + _products(queries, given.key_table, given)
    if given.bias_table is not None:
        scores_BHQK = scores_BHQK + _bias(given.bias_table, given).to(scores_BHQK.dtype)
    if given.key_bias is not None and given.change_scores is not None:
        scores_BHQK = scores_BHQK + given.key_bias[..., None, :]  # the whole: what changes scores may read their size
    elif given.key_bias is not None:
        relative = given.sink is not None
        scores_BHQK = scores_BHQK + bias_of_keys(given.key_bias, given.first_query, scores_BHQK, relative=relative)
    dtype = scores_BHQK.dtype
    if given.change_scores is not None:
        wide_BHQK = scores_BHQK.to(torch.promote_types(dtype, torch.float32))
        scores_BHQK = given.change_scores(wide_BHQK, seen_keys(given))
    return _softmax(scores_BHQK, _visible_keys(given)[1], given.sink).to(dtype)


def _products(x_BHQX: Tensor, table: Tensor, given: AttentionInputs) -> Tensor:
    """x_i . w_row(i,j) for every key j: the second term of equation 5, [B, H, Q, K]."""
    labels, (num_queries, num_keys) = given.labels, (given.q.shape[2], given.k.shape[2])
    if labels is None:  # only the rows that can occur are multiplied
        first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, table.shape[-2], given.first_query)
        projected = _times_table(x_BHQX, table[..., first_row : last_row + 1, :].transpose(-2, -1))
        return _distances_to_keys(_repeat_edges(projected, left, right), num_keys)
    if labels.dim() == 1:
        return _times_table(x_BHQX, _of_keys(table, labels).transpose(-2, -1))
    projected_BHQR = _times_table(x_BHQX, table.transpose(-2, -1))
    of_heads = labels if labels.dim() == 2 else labels[:, None]
    return projected_BHQR.gather(-1, of_heads.expand(*x_BHQX.shape[:2], num_queries, num_keys))


def _bias(table_HR: Tensor, given: AttentionInputs) -> Tensor:
    """The bias of each pair, broadcastable to [B, H, Q, K]."""
    labels = given.labels
    if labels is None:
        return bias_of_pairs(table_HR, given.q.shape[2], given.k.shape[2], given.first_query)
    if labels.dim() == 1:
        return _of_keys(table_HR[..., None], labels).transpose(-2, -1)
    bias = table_HR[:, labels]
    return bias if labels.dim() == 2 else bias.transpose(0, 1)


def _of_keys(table: Tensor, distances_K: Tensor) -> Tensor:
    return table.index_select(-2, rows_of(distances_K, table.shape[-2]))


def _collect(weights_BHQK: Tensor, table: Tensor, first_query: int) -> Tensor:
    """sum_j P_ij w_row(i,j), the relative term of equation 3, [B, H, Q, D]: P is summed over the keys that share a row,
    then multiplied by the table.
    """
    num_queries, num_keys = weights_BHQK.shape[2:]
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    by_row = sum_edges(keys_to_distances(weights_BHQK), left, right)
    return _times_table(by_row, table[..., first_row : last_row + 1, :])


def _times_table(x_BHQX: Tensor, matrix: Tensor) -> Tensor:
    """[B, H, Q, X] times [X, Y] or [H, X, Y]; heads first, or torch would copy per-head matrices for each sentence."""
    matrix = matrix.to(x_BHQX.dtype)
    if matrix.dim() == 2:
        return x_BHQX @ matrix
    batch, heads, num_queries, width = x_BHQX.shape
    by_head = x_BHQX.transpose(0, 1).reshape(heads, batch * num_queries, width) @ matrix
    return by_head.view(heads, batch, num_queries, -1).transpose(0, 1)


def seen_keys(given: AttentionInputs) -> Tensor:
    """Which keys a query sees, bool, broadcastable to the scores."""
    visible, _ = _visible_keys(given)
    return torch.ones(1, 1, dtype=torch.bool, device=given.q.device) if visible is None else visible


def _visible_keys(given: AttentionInputs) -> tuple[Tensor | None, Tensor | None]:
    """The mask without what causality and the window hide, and its inverse; None if every key is visible."""
    lengths = given.first_query, given.q.shape[2], given.k.shape[2], given.q.device
    near_QK, far_QK = near_keys(given.causal, given.window, *lengths)
    if given.mask is None:
        return near_QK, far_QK
    visible = given.mask if near_QK is None else given.mask & near_QK
    return visible, ~visible


@lru_cache(maxsize=4)  # the same for all layers
def near_keys(
    causal: bool, window: int | None, first_query: int, num_queries: int, num_keys: int, device: torch.device
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The keys up to each query's own (causal), at distances below the window, bool [Q, K], and the others; None if
    there are no others.
    """
    lowest, highest = 1 - first_query - num_queries, num_keys - 1 - first_query
    first = lowest if window is None else max(lowest, 1 - window)
    last = min(highest, 0 if causal else highest, highest if window is None else window - 1)
    if (first, last) == (lowest, highest):  # one query at the end of a cache sees everything
        return None, None
    with torch.inference_mode(False):
        queries_Q1 = first_query + torch.arange(num_queries, device=device)[:, None]
        distances_QK = torch.arange(num_keys, device=device) - queries_Q1
        near_QK = (distances_QK >= first) & (distances_QK <= last)
        return near_QK, ~near_QK


def masked_score(dtype: torch.dtype) -> float:
    return max(MASKED, torch.finfo(dtype).min / 2)


def _softmax(scores_BHQK: Tensor, hidden: Tensor | None, sink_H: Tensor | None) -> Tensor:
    if hidden is not None:
        scores_BHQK = scores_BHQK.masked_fill(hidden, masked_score(scores_BHQK.dtype))
    if sink_H is not None:  # one more key, whose value is zero
        column = sink_H.to(scores_BHQK.dtype)[:, None, None].expand(*scores_BHQK.shape[:-1], 1)
        return _softmax(torch.cat([scores_BHQK, column], dim=-1), None, None)[..., :-1]
    # float32 whatever the matmul precision: a bfloat16 exponent sum over hundreds of keys loses its tail.
    wide = torch.float64 if scores_BHQK.dtype == torch.float64 else torch.float32
    return scores_BHQK.softmax(dim=-1, dtype=wide).to(scores_BHQK.dtype)


def bias_of_keys(key_bias_BHK: Tensor, first_query: int, like_BHQK: Tensor, *, relative: bool) -> Tensor:
    """The bias of each key for the queries of these scores, broadcastable to [B, H, Q, K] and of their dtype.

    The softmax is invariant to what is added to all keys of a query, but for a sink. In half precision, and `relative`,
    that is the difference from the query's own key: running sums are large, and their differences are small where it
    matters. The own key's gradient is the negative sum of the others: that of rounded gradients is not 0, and would
    count for all earlier keys.
    """
    bias_BHQK = key_bias_BHK[..., None, :]
    if relative or like_BHQK.dtype in HALF:
        own = own_keys(first_query, like_BHQK.shape[-2], key_bias_BHK)
        bias_BHQK = bias_BHQK - key_bias_BHK[..., own, None]
    return bias_BHQK.to(like_BHQK.dtype)


def own_keys(first_query: int, num_queries: int, key_bias: Tensor) -> Tensor:
    """The key at the position of each query, int64 [Q]; the last one if there is none."""
    own_Q = torch.arange(first_query, first_query + num_queries, device=key_bias.device)
    return own_Q.clamp(max=key_bias.shape[-1] - 1)


# From values by distance to values by key: by strides alone, without gather or scatter.


def bias_of_pairs(bias_HR: Tensor, num_queries: int, num_keys: int, first_query: int) -> Tensor:
    """The bias of each (query, key) pair, by its clipped distance: [H, Q, K]."""
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, bias_HR.shape[1], first_query)
    by_distance_HC = _repeat_edges(bias_HR[:, first_row : last_row + 1], left, right)  # the same for every query
    return _distances_to_keys(by_distance_HC[:, None].expand(-1, num_queries, -1), num_keys)


def sum_by_row(of_pairs: Tensor, num_rows: int, first_query: int) -> Tensor:
    """The sum over all pairs that share a row, [..., R]: the adjoint of `bias_of_pairs`, without atomic additions."""
    num_queries, num_keys = of_pairs.shape[-2:]
    first_row, last_row, left, right = _occurring_rows(num_queries, num_keys, num_rows, first_query)
    by_row = sum_edges(keys_to_distances(of_pairs).sum(-2), left, right)
    return F.pad(by_row, (first_row, num_rows - 1 - last_row))


def _occurring_rows(num_queries: int, num_keys: int, num_rows: int, first_query: int) -> tuple[int, int, int, int]:
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


def sum_edges(by_distance_BHQC: Tensor, left: int, right: int) -> Tensor:
    """The adjoint of `_repeat_edges`: clipped distances are summed into the outermost row."""
    if not left and not right:
        return by_distance_BHQC
    stop = by_distance_BHQC.shape[-1] - right
    rows_BHQX = by_distance_BHQC[..., left:stop].clone()
    rows_BHQX[..., 0] += by_distance_BHQC[..., :left].sum(-1)
    rows_BHQX[..., -1] += by_distance_BHQC[..., stop:].sum(-1)
    return rows_BHQX


def _distances_to_keys(by_distance_BHQC: Tensor, num_keys: int) -> Tensor:
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
    """The adjoint of `_distances_to_keys`: zero where a query has no key at a distance."""
    *batch, num_queries, num_keys = weights_BHQK.shape
    if num_queries == 1:
        return weights_BHQK
    nothing = weights_BHQK.new_zeros((*batch, num_queries, num_queries + num_keys - 1))
    return torch.as_strided_scatter(nothing, weights_BHQK, *_by_key(nothing, num_keys), num_queries - 1)


def _by_key(by_distance_BHQC: Tensor, num_keys: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    *batch, num_queries, num_distances = by_distance_BHQC.shape
    return (*batch, num_queries, num_keys), (*by_distance_BHQC.stride()[:-2], num_distances - 1, 1)
