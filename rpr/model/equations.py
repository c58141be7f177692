"""The paper's equations and the paper's algorithm; their arguments are described in `rpr.model.attention`."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rpr.model.vectors import relative_rows

MASKED = -1e9  # a hidden key's score: negligible next to any other, and fully masked rows give no NaN


def reference(
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
) -> Tensor:
    """Equations 3 and 4 with a^K_ij and a^V_ij written out, as tensors [B, H, Q, K, D]."""
    num_queries = q_BHQD.shape[2]
    edges = _edges(q_BHQD, k_BHKD, labels, first_query)
    edges_BHQKD = k_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if key_table is not None:
        edges_BHQKD = edges_BHQKD + edges(key_table)
    scores_BHQK = torch.einsum("bhqd,bhqkd->bhqk", q_BHQD, edges_BHQKD) / math.sqrt(q_BHQD.shape[-1])
    if bias_table is not None:
        scores_BHQK = scores_BHQK + edges(bias_table[..., None])[..., 0]
    weights_BHQK = softmax(scores_BHQK, mask, causal=causal, first_query=first_query)
    values_BHQKD = v_BHKD[:, :, None, :, :].expand(-1, -1, num_queries, -1, -1)
    if value_table is not None:
        values_BHQKD = values_BHQKD + edges(value_table)
    return torch.einsum("bhqk,bhqkd->bhqd", weights_BHQK, values_BHQKD)


def per_position(
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
) -> Tensor:
    """The paper's own algorithm (section 3.3): a_ij gathered once for all sentences, one matmul per query.

    Equation 5 with n parallel matmuls of [B H, D] by [D, n]. It needs n^2 D more memory than plain attention, and in
    low precision the gradient of a table row sums all its n^2 pairs in that precision.
    """
    edges = _edges(q_BHQD, k_BHKD, labels, first_query)
    scores_BHQK = q_BHQD @ k_BHKD.transpose(-2, -1)
    if key_table is not None:
        scores_BHQK = scores_BHQK + _products_by_query(q_BHQD, edges(key_table).transpose(-2, -1))
    scores_BHQK = scores_BHQK / math.sqrt(q_BHQD.shape[-1])
    if bias_table is not None:
        scores_BHQK = scores_BHQK + edges(bias_table[..., None])[..., 0]
    weights_BHQK = softmax(scores_BHQK, mask, causal=causal, first_query=first_query)
    z_BHQD = weights_BHQK @ v_BHKD
    if value_table is not None:
        z_BHQD = z_BHQD + _products_by_query(weights_BHQK, edges(value_table))
    return z_BHQD


def visible_keys(
    mask: Tensor | None, causal: bool, first_query: int, num_queries: int, num_keys: int, device: torch.device
) -> Tensor | None:
    """`mask` without the later keys if causal; None if every key is visible."""
    if not causal or first_query + 1 >= num_keys:  # one query at the end of a cache sees everything
        return mask
    keys = torch.arange(num_keys, device=device)
    queries = first_query + torch.arange(num_queries, device=device)
    earlier_QK = keys[None, :] <= queries[:, None]
    return earlier_QK if mask is None else mask & earlier_QK


def masked_score(dtype: torch.dtype) -> float:
    return max(MASKED, torch.finfo(dtype).min / 2)


def softmax(scores_BHQK: Tensor, mask: Tensor | None = None, *, causal: bool = False, first_query: int = 0) -> Tensor:
    num_queries, num_keys = scores_BHQK.shape[-2:]
    visible = visible_keys(mask, causal, first_query, num_queries, num_keys, scores_BHQK.device)
    if visible is not None:
        scores_BHQK = scores_BHQK.masked_fill(~visible, masked_score(scores_BHQK.dtype))
    # float32 whatever the matmul precision: a bfloat16 exponent sum over hundreds of keys loses its tail.
    wide = torch.float64 if scores_BHQK.dtype == torch.float64 else torch.float32
    return scores_BHQK.softmax(dim=-1, dtype=wide).to(scores_BHQK.dtype)


def _edges(q_BHQD: Tensor, k_BHKD: Tensor, labels: Tensor | None, first_query: int) -> Callable[[Tensor], Tensor]:
    """The function that gives the vectors of a table, [R, D] or [H, R, D], for all pairs: broadcastable to
    [B, H, Q, K, D].
    """

    def edges(table: Tensor) -> Tensor:
        rows, clip_distance = labels, (table.shape[-2] - 1) // 2
        if rows is None:
            rows = relative_rows(q_BHQD.shape[2], k_BHKD.shape[2], clip_distance, first_query=first_query)
        vectors = table.to(q_BHQD.dtype)[..., rows.to(table.device), :]  # [Q, K, D], [H, Q, K, D], [H, B, Q, K, D], ...
        if rows.dim() == 2:
            return vectors
        return vectors[:, None] if table.dim() == 2 else vectors.transpose(0, 1)

    return edges


def _products_by_query(x_BHQX: Tensor, edges: Tensor) -> Tensor:
    """x_i times the matrix of query i, for all i: [B, H, Q, X] times [.., Q, X, Y] is [B, H, Q, Y]."""
    if edges.dim() == 3:  # one matrix for all sentences and heads: Q matmuls of [B H, X]
        by_query = torch.bmm(x_BHQX.flatten(0, 1).transpose(0, 1), edges)
        return by_query.transpose(0, 1).reshape(*x_BHQX.shape[:3], -1)
    if edges.dim() == 4:  # a table per head: H Q matmuls of [B, X]
        by_query = x_BHQX.permute(1, 2, 0, 3) @ edges
        return by_query.permute(2, 0, 1, 3)
    return (x_BHQX[..., None, :] @ edges)[..., 0, :]  # labels per sentence: nothing is shared


def check_shapes(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    bias_table: Tensor | None,
    labels: Tensor | None,
) -> None:
    """Raises ValueError for tables or labels of an invalid shape."""
    batch, heads, num_queries, width = q_BHQD.shape
    for name, table in (("key_table", key_table), ("value_table", value_table)):
        if table is None:
            continue
        if table.dim() not in (2, 3) or table.shape[-1] != width or (table.dim() == 3 and table.shape[0] != heads):
            raise ValueError(
                f"{name}: shape {list(table.shape)} is neither [R, {width}] (shared by heads) nor [{heads}, R, {width}]"
            )
        _check_rows(name, table.shape[-2], labels)
    if bias_table is not None:
        if bias_table.dim() != 2 or bias_table.shape[0] != heads:
            raise ValueError(f"bias_table: shape {list(bias_table.shape)} is not [{heads}, R]")
        _check_rows("bias_table", bias_table.shape[1], labels)
    if labels is not None:
        pairs = (num_queries, k_BHKD.shape[2])
        if labels.dtype != torch.int64 or tuple(labels.shape) not in (pairs, (batch, *pairs)):
            raise ValueError(
                f"labels: {labels.dtype} {list(labels.shape)} is not int64 {list(pairs)} or {[batch, *pairs]}"
            )


def _check_rows(name: str, num_rows: int, labels: Tensor | None) -> None:
    if labels is None and num_rows % 2 == 0:
        raise ValueError(f"{name}: {num_rows} rows are not 2k+1, one for each distance from -k to k")
