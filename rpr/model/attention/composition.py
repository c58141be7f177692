"""Relative attention composed of torch operations, for autograd and torch.compile."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from typing import Any

import torch
from torch import Tensor

from rpr.model.attention.distances import (
    bias_of_pairs,
    distances_to_keys,
    keys_to_distances,
    occurring_rows,
    repeat_edges,
    sum_edges,
)
from rpr.model.attention.equations import weights_from
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.vectors import rows_of


def composed(given: AttentionInputs) -> Tensor:
    """Project, then spread (q w_K^T is [B, H, Q, R], a small matmul), in operations that torch can differentiate.

    Distances need no gather or scatter: the clipped rows are laid out by distance once, and going from distances to
    keys is a change of strides.
    """
    weights_BHQK = weights_of(given)
    z_BHQD = weights_BHQK @ given.v
    table, labels = given.value_table, given.labels
    if table is not None and labels is not None and labels.dim() == 1:
        z_BHQD = z_BHQD + times_table(weights_BHQK, _of_keys(table, labels))
    elif table is not None and labels is not None:
        summands = weights_BHQK.to(torch.promote_types(weights_BHQK.dtype, torch.float32))
        by_row = summands.new_zeros(*summands.shape[:3], table.shape[-2])
        by_row = by_row.scatter_add(-1, _of_heads(labels).expand_as(summands), summands)
        z_BHQD = z_BHQD + times_table(by_row.to(weights_BHQK.dtype), table)
    elif table is not None:
        z_BHQD = z_BHQD + collect(weights_BHQK, table, first_query=given.first_query)
    return z_BHQD


def weights(q_BHQD: Tensor, k_BHKD: Tensor, **others: Any) -> Tensor:
    """The attention weights P, [B, H, Q, K]; `others` as in `AttentionInputs`."""
    given = AttentionInputs(q_BHQD, k_BHKD, k_BHKD, **others)
    given.check_shapes()
    return weights_of(given)


def weights_of(given: AttentionInputs) -> Tensor:
    """As `weights`."""
    # Scaling q covers both terms of equation 5 and touches Q*D numbers instead of Q*K.
    q_BHQD = given.q * given.scale
    scores_BHQK = q_BHQD @ given.k.transpose(-2, -1)
    num_queries, num_keys = scores_BHQK.shape[2:]
    labels, bias_table = given.labels, given.bias_table
    if (table := given.key_table) is not None:
        queries = q_BHQD if given.distance_queries is None else given.distance_queries
        if labels is None:
            scores_BHQK = scores_BHQK + spread(queries, table, num_keys, first_query=given.first_query)
        elif labels.dim() == 1:
            scores_BHQK = scores_BHQK + times_table(queries, _of_keys(table, labels).transpose(-2, -1))
        else:
            projected_BHQR = times_table(queries, table.transpose(-2, -1))
            scores_BHQK = scores_BHQK + projected_BHQR.gather(-1, _of_heads(labels).expand_as(scores_BHQK))
    if bias_table is not None and labels is not None and labels.dim() == 1:
        scores_BHQK = scores_BHQK + _of_keys(bias_table[..., None], labels).transpose(-2, -1).to(scores_BHQK.dtype)
    elif bias_table is not None and labels is not None:
        bias = bias_table[:, labels]
        scores_BHQK = scores_BHQK + (bias if labels.dim() == 2 else bias.transpose(0, 1)).to(scores_BHQK.dtype)
    elif bias_table is not None:
        bias = bias_of_pairs(bias_table, num_queries, num_keys, given.first_query)
        scores_BHQK = scores_BHQK + bias.to(scores_BHQK.dtype)
    return weights_from(scores_BHQK, given)


def _of_keys(table: Tensor, distances_K: Tensor) -> Tensor:
    """The row of each key, [K, D] or [H, K, D]."""
    return table.index_select(-2, rows_of(distances_K, table.shape[-2]))


def _of_heads(labels: Tensor) -> Tensor:
    """[Q, K] as they are, [B, Q, K] as [B, 1, Q, K]."""
    return labels if labels.dim() == 2 else labels[:, None]


def spread(q_BHQD: Tensor, table: Tensor, num_keys: int, *, first_query: int = 0) -> Tensor:
    """q_i . w_row(i,j) for every key j: the second term of equation 5, [B, H, Q, K].

    Only the rows that can occur between these queries and keys are multiplied.
    """
    num_queries = q_BHQD.shape[2]
    first_row, last_row, left, right = occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    projected = times_table(q_BHQD, table[..., first_row : last_row + 1, :].transpose(-2, -1))
    by_distance_BHQC = repeat_edges(projected, left, right)
    return distances_to_keys(by_distance_BHQC, num_keys)


def collect(weights_BHQK: Tensor, table: Tensor, *, first_query: int = 0) -> Tensor:
    """sum_j P_ij w_row(i,j), the relative term of equation 3, [B, H, Q, D]; the adjoint of `spread`.

    P is summed over the keys that share a row, then multiplied by the table.
    """
    num_queries, num_keys = weights_BHQK.shape[2:]
    first_row, last_row, left, right = occurring_rows(num_queries, num_keys, table.shape[-2], first_query)
    by_distance_BHQC = keys_to_distances(weights_BHQK)
    by_row = sum_edges(by_distance_BHQC, left, right)
    return times_table(by_row, table[..., first_row : last_row + 1, :])


def times_table(x_BHQX: Tensor, matrix: Tensor) -> Tensor:
    """[B, H, Q, X] times [X, Y] or [H, X, Y]; heads first, or torch would copy per-head matrices for each sentence."""
    matrix = matrix.to(x_BHQX.dtype)
    if matrix.dim() == 2:
        return x_BHQX @ matrix
    batch, heads, num_queries, width = x_BHQX.shape
    by_head = x_BHQX.transpose(0, 1).reshape(heads, batch * num_queries, width) @ matrix
    return by_head.view(heads, batch, num_queries, -1).transpose(0, 1)
