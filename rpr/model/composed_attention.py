"""Relative attention composed of torch operations, for autograd and torch.compile.

The arguments are described in `rpr.model.attention`.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows,
# C = Q+K-1 distances that occur between Q consecutive queries and K keys.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.distances import (
    bias_of_pairs,
    distances_to_keys,
    keys_to_distances,
    occurring_rows,
    repeat_edges,
    sum_edges,
)
from rpr.model.equations import check_shapes, softmax


def composed(
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
    """Project, then spread (q w_K^T is [B, H, Q, R], a small matmul), in operations that torch can differentiate.

    Distances need no gather or scatter: the clipped rows are laid out by distance once, and going from distances to
    keys is a change of strides.
    """
    # Scaling q covers both terms of equation 5 and touches Q*D numbers instead of Q*K.
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    weights_BHQK = _scores_to_weights(q_BHQD, k_BHKD, key_table, bias_table, labels, mask, causal, first_query)
    z_BHQD = weights_BHQK @ v_BHKD
    if value_table is not None and labels is not None:
        one_hot_QKR = F.one_hot(labels, value_table.shape[-2]).to(weights_BHQK.dtype)
        by_row = torch.einsum("bhqk,bqkr->bhqr", weights_BHQK, one_hot_QKR.expand(q_BHQD.shape[0], -1, -1, -1))
        z_BHQD = z_BHQD + times_table(by_row, value_table)
    elif value_table is not None:
        z_BHQD = z_BHQD + collect(weights_BHQK, value_table, first_query=first_query)
    return z_BHQD


def weights(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    bias_table: Tensor | None = None,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
) -> Tensor:
    """The attention weights P, [B, H, Q, K]."""
    check_shapes(q_BHQD, k_BHKD, key_table, None, bias_table, labels)
    q_BHQD = q_BHQD * (q_BHQD.shape[-1] ** -0.5)
    return _scores_to_weights(q_BHQD, k_BHKD, key_table, bias_table, labels, mask, causal, first_query)


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


def _scores_to_weights(
    scaled_q_BHQD: Tensor,
    k_BHKD: Tensor,
    key_table: Tensor | None,
    bias_table: Tensor | None,
    labels: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    first_query: int,
) -> Tensor:
    scores_BHQK = scaled_q_BHQD @ k_BHKD.transpose(-2, -1)
    if key_table is not None and labels is not None:
        projected_BHQR = times_table(scaled_q_BHQD, key_table.transpose(-2, -1))
        labels_BHQK = labels.expand(scores_BHQK.shape) if labels.dim() == 2 else labels[:, None].expand_as(scores_BHQK)
        scores_BHQK = scores_BHQK + projected_BHQR.gather(-1, labels_BHQK)
    elif key_table is not None:
        scores_BHQK = scores_BHQK + spread(scaled_q_BHQD, key_table, k_BHKD.shape[2], first_query=first_query)
    if bias_table is not None and labels is not None:
        bias = bias_table[:, labels]
        scores_BHQK = scores_BHQK + (bias if labels.dim() == 2 else bias.transpose(0, 1)).to(scores_BHQK.dtype)
    elif bias_table is not None:
        num_queries, num_keys = scores_BHQK.shape[2:]
        scores_BHQK = scores_BHQK + bias_of_pairs(bias_table, num_queries, num_keys, first_query).to(scores_BHQK.dtype)
    return softmax(scores_BHQK, mask, causal=causal, first_query=first_query)
