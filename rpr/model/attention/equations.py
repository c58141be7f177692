"""The paper's equations, and what all implementations share."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

from functools import lru_cache

import torch
from torch import Tensor

from rpr.model.attention.inputs import AttentionInputs
from rpr.model.vectors import rows_of

HALF = (torch.bfloat16, torch.float16)
MASKED = -1e9  # a hidden key's score: negligible next to any other, and fully masked rows give no NaN


def reference(given: AttentionInputs) -> Tensor:
    """Equations 3 and 4 with a^K_ij and a^V_ij written out, as tensors [B, H, Q, K, D]."""
    q_BHQD, k_BHKD, v_BHKD = given[:3]
    num_queries = q_BHQD.shape[2]
    edges_BHQKD = k_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if given.key_table is not None and given.distance_queries is None:
        edges_BHQKD = edges_BHQKD + _edges(given, given.key_table)
    scores_BHQK = torch.einsum("bhqd,bhqkd->bhqk", q_BHQD, edges_BHQKD) * given.scale
    if given.key_table is not None and given.distance_queries is not None:
        scores_BHQK = scores_BHQK + (given.distance_queries[:, :, :, None] * _edges(given, given.key_table)).sum(-1)
    if given.bias_table is not None:
        scores_BHQK = scores_BHQK + _edges(given, given.bias_table[..., None])[..., 0]
    weights_BHQK = weights_from(scores_BHQK, given)
    values_BHQKD = v_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if given.value_table is not None:
        values_BHQKD = values_BHQKD + _edges(given, given.value_table)
    return torch.einsum("bhqk,bhqkd->bhqd", weights_BHQK, values_BHQKD)


def seen_keys(given: AttentionInputs) -> Tensor:
    """Which keys a query sees, bool, broadcastable to the scores."""
    visible, _ = visible_keys(given)
    return torch.ones(1, 1, dtype=torch.bool, device=given.q.device) if visible is None else visible


def visible_keys(given: AttentionInputs) -> tuple[Tensor | None, Tensor | None]:
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


def weights_from(scores_BHQK: Tensor, given: AttentionInputs) -> Tensor:
    """P from scaled scores that lack only the bias of keys and `change_scores`."""
    if given.key_bias is not None and given.change_scores is not None:
        scores_BHQK = scores_BHQK + given.key_bias[..., None, :]  # the whole: what changes scores may read their size
    elif given.key_bias is not None:
        relative = given.sink is not None
        scores_BHQK = scores_BHQK + bias_of_keys(given.key_bias, given.first_query, scores_BHQK, relative=relative)
    dtype = scores_BHQK.dtype
    if given.change_scores is not None:
        wide_BHQK = scores_BHQK.to(torch.promote_types(dtype, torch.float32))
        scores_BHQK = given.change_scores(wide_BHQK, seen_keys(given))
    return softmax(scores_BHQK, visible_keys(given)[1], given.sink).to(dtype)


def softmax(scores_BHQK: Tensor, hidden: Tensor | None = None, sink_H: Tensor | None = None) -> Tensor:
    if hidden is not None:
        scores_BHQK = scores_BHQK.masked_fill(hidden, masked_score(scores_BHQK.dtype))
    if sink_H is not None:  # one more key, whose value is zero
        column = sink_H.to(scores_BHQK.dtype)[:, None, None].expand(*scores_BHQK.shape[:-1], 1)
        return softmax(torch.cat([scores_BHQK, column], dim=-1))[..., :-1]
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


def _edges(given: AttentionInputs, table: Tensor) -> Tensor:
    """The vectors of a table, [R, D] or [H, R, D], for all pairs: broadcastable to [B, H, Q, K, D]."""
    rows = given.labels
    if rows is None:
        queries_Q = given.first_query + torch.arange(given.q.shape[2])
        rows = rows_of(torch.arange(given.k.shape[2]) - queries_Q[:, None], table.shape[-2])
    vectors = table.to(given.q.dtype)[..., rows.to(table.device), :]  # [Q, K, D], [H, Q, K, D], [H, B, Q, K, D]
    if rows.dim() == 2:
        return vectors
    return vectors[:, None] if table.dim() == 2 else vectors.transpose(0, 1)
