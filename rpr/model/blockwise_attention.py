"""Attention with relative positions, block of queries by block of queries, with its own backward.

The same mathematics as `rpr.model.attention.reference` in few passes over the weights. Heads come first, so that a
product with a table per head is one plain matrix product over all positions of the batch; the scale enters with the
copy of q; scores, softmax and their gradient share one buffer. One block holds all queries where the weights are small
enough to keep for the backward pass. Else each block's weights are computed again there, and [B, H, Q, K] never exists.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R table rows, W table rows that occur,
# G = H*B (one product each), T tables (H, or 1 where heads share it), N positions that use the same table.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.edges import Edges, scores_buffer

MASKED = -1e9  # added to a hidden score: it vanishes beside any other, and a row with nothing else has no NaN


class BlockwiseAttention(torch.autograd.Function):
    """apply(q, k, v, key_table, value_table, key_edges, value_edges, mask, causal, first_query, queries_per_block).

    q_BHQD, k_BHKD, v_BHKD may be any views; tables are [R, D] or [H, R, D], or None with their edges; mask is bool,
    4-dimensional, broadcastable to [B, H, Q, K]. Returns z_BHQD. Deterministic. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        v_BHKD: Tensor,
        key_table: Tensor | None,
        value_table: Tensor | None,
        key_edges: Edges | None,
        value_edges: Edges | None,
        mask: Tensor | None,
        causal: bool,
        first_query: int,
        queries_per_block: int,
    ) -> Tensor:
        with torch.autocast(q_BHQD.device.type, enabled=False):
            batch, heads, num_queries, width = q_BHQD.shape
            # Scaled where it is copied anyway: both terms of equation 5 need it, and so does the gradient of k.
            q_GQD = torch.empty_like(q_BHQD.transpose(0, 1), memory_format=torch.contiguous_format)
            torch.mul(q_BHQD.transpose(0, 1), width**-0.5, out=q_GQD)
            q_GQD = q_GQD.view(heads * batch, num_queries, width)
            k_GKD = k_BHKD.transpose(0, 1).reshape(heads * batch, -1, width)
            v_GKD = _values(v_BHKD, value_table, value_edges)
            mask = None if mask is None else mask.transpose(0, 1)
            key_rows = _occurring(key_table, key_edges, q_GQD.dtype)
            value_rows = _occurring(value_table, value_edges, q_GQD.dtype)

            blocks = _Blocks(q_GQD, k_GKD, key_rows, key_edges, mask, causal, first_query, queries_per_block, heads)
            out_GQD = torch.empty_like(q_GQD)
            sums_GQW = None if value_rows is None else out_GQD.new_empty(*q_GQD.shape[:2], value_rows.shape[-2])
            weights_GQK = None
            for start, stop, num_keys in blocks.ranges:
                weights_GQK = blocks.weights(start, stop, num_keys)
                if blocks.single:
                    torch.bmm(weights_GQK, v_GKD, out=out_GQD)
                else:
                    out_GQD[:, start:stop] = torch.bmm(weights_GQK, v_GKD[:, :num_keys])
                if sums_GQW is not None and value_edges is not None:
                    sums_GQW = _store(sums_GQW, weights_GQK, value_edges, start, stop, num_keys, blocks.single)
            if sums_GQW is not None and value_rows is not None:
                _add_product(out_GQD, sums_GQW, value_rows)

            kept = weights_GQK if blocks.single else None
            ctx.save_for_backward(q_GQD, k_GKD, v_GKD, key_table, value_table, mask, sums_GQW, kept)
            ctx.settings = (key_edges, value_edges, causal, first_query, queries_per_block, heads)
            return out_GQD.view(heads, batch, num_queries, width).transpose(0, 1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dz_BHQD: Tensor) -> tuple[Tensor | None, ...]:
        q_GQD, k_GKD, v_GKD, key_table, value_table, mask, sums_GQW, kept = ctx.saved_tensors
        key_edges, value_edges, causal, first_query, queries_per_block, heads = ctx.settings
        with torch.autocast(dz_BHQD.device.type, enabled=False):
            num_products, num_queries, width = q_GQD.shape
            dz_GQD = dz_BHQD.transpose(0, 1).reshape(num_products, num_queries, width)
            key_rows = _occurring(key_table, key_edges, q_GQD.dtype)
            value_rows = _occurring(value_table, value_edges, q_GQD.dtype)
            projected_GQW = None if value_rows is None else _product(dz_GQD, value_rows.transpose(-2, -1))

            recomputed = None if kept is not None else key_rows
            blocks = _Blocks(q_GQD, k_GKD, recomputed, key_edges, mask, causal, first_query, queries_per_block, heads)
            dq_GQD = torch.empty_like(q_GQD)
            dk_GKD, dv_GKD = (None, None) if blocks.single else (torch.zeros_like(k_GKD), torch.zeros_like(v_GKD))
            dsums_GQW = None if key_rows is None else q_GQD.new_empty(num_products, num_queries, key_rows.shape[-2])
            for start, stop, num_keys in blocks.ranges:
                weights_GQK = blocks.weights(start, stop, num_keys) if kept is None else kept
                dz = dz_GQD[:, start:stop]
                dweights_GQK = scores_buffer(num_products, stop - start, num_keys, like=q_GQD)
                torch.bmm(dz, v_GKD[:, :num_keys].transpose(1, 2), out=dweights_GQK)
                if projected_GQW is not None and value_edges is not None:
                    block_edges = value_edges.queries(start, stop, num_keys)
                    columns = _columns(block_edges, value_edges)
                    block_edges.add_to_scores(dweights_GQK, projected_GQW[:, start:stop, columns])
                dscores_GQK = _softmax_backward_(dweights_GQK, weights_GQK)
                scale = width**-0.5
                if blocks.single:
                    torch.baddbmm(dq_GQD, dscores_GQK, k_GKD, beta=0, alpha=scale, out=dq_GQD)
                    dv_GKD = torch.bmm(weights_GQK.transpose(1, 2), dz)
                    dk_GKD = torch.bmm(dscores_GQK.transpose(1, 2), q_GQD)
                else:
                    dq_GQD[:, start:stop] = torch.bmm(dscores_GQK, k_GKD[:, :num_keys]).mul_(scale)
                    dv_GKD[:, :num_keys] += torch.bmm(weights_GQK.transpose(1, 2), dz)
                    dk_GKD[:, :num_keys] += torch.bmm(dscores_GQK.transpose(1, 2), q_GQD[:, start:stop])
                if dsums_GQW is not None:
                    dsums_GQW = _store(dsums_GQW, dscores_GQK, key_edges, start, stop, num_keys, blocks.single)

            dkey_table = dvalue_table = None
            if dsums_GQW is not None:
                _add_product(dq_GQD, dsums_GQW, key_rows, alpha=scale)
                dkey_table = _table_gradient(dsums_GQW, q_GQD, key_table, key_edges, whole=False)
            if sums_GQW is not None:
                dvalue_table = _table_gradient(sums_GQW, dz_GQD, value_table, value_edges, whole=True)
            dq, dk, dv = (x.view(heads, -1, x.shape[1], width).transpose(0, 1) for x in (dq_GQD, dk_GKD, dv_GKD))
            return dq, dk, dv, dkey_table, dvalue_table, None, None, None, None, None, None


class _Blocks:
    """The weights P of every block of queries. Causal blocks have keys only up to their last query."""

    def __init__(
        self,
        q_GQD: Tensor,
        k_GKD: Tensor,
        key_rows: Tensor | None,
        key_edges: Edges | None,
        mask_HBQK: Tensor | None,
        causal: bool,
        first_query: int,
        queries_per_block: int,
        heads: int,
    ) -> None:
        self.q_GQD, self.k_GKD, self.key_edges = q_GQD, k_GKD, key_edges
        self.mask_HBQK, self.causal, self.first_query, self.heads = mask_HBQK, causal, first_query, heads
        # For all blocks at once: [G, Q, W] is small, and a block's queries do not lie together.
        self.projected_GQW = None if key_rows is None else _product(q_GQD, key_rows.transpose(-2, -1))
        num_queries, num_keys = q_GQD.shape[1], k_GKD.shape[1]
        self.single = queries_per_block >= num_queries
        self.ranges = []
        for start in range(0, num_queries, queries_per_block):
            stop = min(start + queries_per_block, num_queries)
            seen = min(num_keys, first_query + stop) if causal and not self.single else num_keys
            self.ranges.append((start, stop, seen))

    def weights(self, start: int, stop: int, num_keys: int) -> Tensor:
        """P of queries start..stop-1 over the first num_keys keys, [G, stop - start, num_keys]."""
        q_GQD, k_GKD = self.q_GQD[:, start:stop], self.k_GKD[:, :num_keys]
        scores_GQK = scores_buffer(q_GQD.shape[0], stop - start, num_keys, like=q_GQD)
        torch.bmm(q_GQD, k_GKD.transpose(1, 2), out=scores_GQK)
        if self.projected_GQW is not None and self.key_edges is not None:
            block_edges = self.key_edges.queries(start, stop, num_keys)
            columns = _columns(block_edges, self.key_edges)
            block_edges.add_to_scores(scores_GQK, self.projected_GQW[:, start:stop, columns])
        bias = hidden_bias(self.mask_HBQK, self.causal, self.first_query, start, stop, num_keys, scores_GQK)
        if bias is not None:
            scores_GQK.view(self.heads, -1, stop - start, num_keys).add_(bias)
        return torch.softmax(scores_GQK, dim=-1, out=scores_GQK)


def hidden_bias(
    mask: Tensor | None, causal: bool, first_query: int, start: int, stop: int, num_keys: int, like: Tensor
) -> Tensor | None:
    """What hides keys when it is added to the scores of queries start..stop-1: 0 or a large negative number."""
    visible = None
    if mask is not None:
        visible = mask[..., :num_keys] if mask.shape[-2] == 1 else mask[..., start:stop, :num_keys]
    if causal and first_query + start < num_keys - 1:
        keys = torch.arange(num_keys, device=like.device)
        queries = first_query + torch.arange(start, stop, device=like.device)
        earlier_QK = keys[None, :] <= queries[:, None]
        visible = earlier_QK if visible is None else visible & earlier_QK
    if visible is None:
        return None
    lowest = max(MASKED, torch.finfo(like.dtype).min / 2)
    return like.new_zeros(visible.shape).masked_fill_(~visible, lowest)


def _occurring(table: Tensor | None, edges: Edges | None, dtype: torch.dtype) -> Tensor | None:
    """The rows that occur, relative to the anchor: [T, W, D]."""
    if table is None or edges is None:
        return None
    rows = table[..., edges.rows, :]
    if edges.anchor is not None:
        rows = rows - table[..., edges.anchor, None, :]
    return rows.to(dtype) if rows.dim() == 3 else rows.to(dtype)[None]


def _columns(block: Edges, whole: Edges) -> slice:
    """Where a block's rows stand among all that occur."""
    return slice(block.rows.start - whole.rows.start, block.rows.stop - whole.rows.start)


def _values(v_BHKD: Tensor, table: Tensor | None, edges: Edges | None) -> Tensor:
    """v, heads first, with the anchor's vector added: [G, K, D]."""
    v_HBKD = v_BHKD.transpose(0, 1)
    if table is None or edges is None or edges.anchor is None:
        return v_HBKD.reshape(-1, *v_HBKD.shape[2:])
    anchor = table[..., edges.anchor, :].to(v_HBKD.dtype)
    out = torch.empty_like(v_HBKD, memory_format=torch.contiguous_format)
    torch.add(v_HBKD, anchor[:, None, None, :] if anchor.dim() == 2 else anchor, out=out)
    return out.view(-1, *v_HBKD.shape[2:])


def _product(x_GQD: Tensor, matrix_TDW: Tensor) -> Tensor:
    """[G, Q, D] times each head's matrix (or the one for all): [G, Q, W]."""
    product_TNW = torch.bmm(_for_tables(x_GQD, matrix_TDW.shape[0]), matrix_TDW)
    return product_TNW.view(*x_GQD.shape[:2], matrix_TDW.shape[-1])


def _for_tables(x_GQY: Tensor, num_tables: int) -> Tensor:
    """[G, Q, Y] as one matrix for each table, [T, N, Y]; Y may be 0."""
    num_products, num_queries, columns = x_GQY.shape
    return x_GQY.view(num_tables, num_products * num_queries // num_tables, columns)


def _add_product(out_GQD: Tensor, by_row_GQW: Tensor, rows_TWD: Tensor, *, alpha: float = 1.0) -> None:
    """out += alpha * by_row @ rows, in place."""
    out_TND, by_row_TNW = (_for_tables(x, rows_TWD.shape[0]) for x in (out_GQD, by_row_GQW))
    out_TND.baddbmm_(by_row_TNW, rows_TWD, alpha=alpha)


def _store(
    all_GQW: Tensor, weights_GQK: Tensor, edges: Edges, start: int, stop: int, num_keys: int, single: bool
) -> Tensor:
    """The block's weights summed by table row, put in its place among all."""
    block_edges = edges.queries(start, stop, num_keys)
    sums = block_edges.sum_weights(weights_GQK)
    if single:
        return sums
    columns = _columns(block_edges, edges)
    all_GQW[:, start:stop] = 0
    all_GQW[:, start:stop, columns] = sums
    return all_GQW


def _softmax_backward_(dweights_GQK: Tensor, weights_GQK: Tensor) -> Tensor:
    """P * (dP - sum_j P dP), written over dP."""
    return torch.ops.aten._softmax_backward_data.out(
        dweights_GQK, weights_GQK, -1, weights_GQK.dtype, grad_input=dweights_GQK
    )


def _table_gradient(by_row_GQW: Tensor, x_GQD: Tensor, table: Tensor, edges: Edges, *, whole: bool) -> Tensor:
    """by_row^T x over all positions that use a table; rows that do not occur get zero.

    The anchor gets what is left of all rows' sum: with `whole` the sum of x (P sums to 1 over the keys), else 0
    (the scores' gradient sums to 0).
    """
    num_tables = table.shape[0] if table.dim() == 3 else 1
    by_row_TNW, x_TND = (_for_tables(x, num_tables) for x in (by_row_GQW, x_GQD))
    occurring_TWD = torch.bmm(by_row_TNW.transpose(1, 2), x_TND).to(table.dtype)
    if by_row_GQW.shape[-1] == table.shape[-2]:
        return occurring_TWD.view_as(table)
    gradient = torch.zeros_like(table)
    gradient_TRD = gradient.view(num_tables, *table.shape[-2:])
    gradient_TRD[:, edges.rows] = occurring_TWD
    if edges.anchor is not None:
        gradient_TRD[:, edges.anchor] = -occurring_TWD.sum(1)
        if whole:
            gradient_TRD[:, edges.anchor] += x_TND.sum(1, dtype=table.dtype)
    return gradient
