"""Attention with relative positions, part by part, with its own backward.

The same mathematics as `rpr.model.attention.reference`, arranged for memory: on a CPU what relative positions cost
beyond their few products is reading and writing. A part is some heads of some sentences, small enough that all its
steps, from the copy of q to the copy of z, find its numbers in cache. Within a part heads come first, so that a
product with a table per head is one plain matrix product; the scale enters with the copy of q, the anchor's vector with
the copy of v; scores, softmax and their gradients share one buffer; results go straight to where the caller wants them.

Long sequences are cut into blocks of queries besides, and each block's weights are computed again in the backward
pass: nothing of size [B, H, Q, K] exists.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R table rows, W table rows that occur,
# G = H*B products of a part, T tables of a part (its heads, or 1 where heads share it), N positions that share a table.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.edges import Edges, scores_buffer

MASKED = -1e9  # added to a hidden score: it vanishes beside any other, and a row with nothing else has no NaN
CACHE_BYTES = 2**20  # of q in one part on a CPU; measured, docs/attention-speed.md


@dataclass(frozen=True)
class Layout:
    """Everything about an attention that is not a tensor to be differentiated."""

    key_edges: Edges | None
    value_edges: Edges | None
    mask_BHQK: Tensor | None  # bool, broadcastable
    causal: bool
    first_query: int
    queries_per_block: int | None  # None: all at once, with the weights kept for the backward pass

    def part(self, sentences: slice, heads: slice) -> Layout:
        def cut(edges: Edges | None) -> Edges | None:
            return None if edges is None else edges.sentences(sentences.start, sentences.stop)

        mask = self.mask_BHQK
        if mask is not None:
            mask = mask[sentences if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]
        return replace(self, key_edges=cut(self.key_edges), value_edges=cut(self.value_edges), mask_BHQK=mask)

    def blocks(self, num_queries: int, num_keys: int) -> Iterator[tuple[int, int, int]]:
        """First and last (exclusive) query of each block, and how many keys it needs."""
        size = self.queries_per_block or num_queries
        for start in range(0, num_queries, size):
            stop = min(start + size, num_queries)
            needed = num_keys if not self.causal else min(num_keys, self.first_query + stop)
            yield start, stop, num_keys if self.queries_per_block is None else needed

    def hidden(self, start: int, stop: int, num_keys: int, like: Tensor) -> Tensor | None:
        """What hides keys when it is added to the scores of queries start..stop-1: 0 or a large negative number."""
        visible = None
        if (mask := self.mask_BHQK) is not None:
            visible = mask[..., :num_keys] if mask.shape[-2] == 1 else mask[..., start:stop, :num_keys]
        if self.causal and self.first_query + start < num_keys - 1:
            keys = torch.arange(num_keys, device=like.device)
            queries = self.first_query + torch.arange(start, stop, device=like.device)
            earlier_QK = keys[None, :] <= queries[:, None]
            visible = earlier_QK if visible is None else visible & earlier_QK
        if visible is None:
            return None
        lowest = max(MASKED, torch.finfo(like.dtype).min / 2)
        return like.new_zeros(visible.shape).masked_fill_(~visible, lowest)


class BlockwiseAttention(torch.autograd.Function):
    """apply(q_BHQD, k_BHKD, v_BHKD, key_table, value_table, layout) -> z_BHQD.

    q, k, v may be any views; tables are [R, D] or [H, R, D], or None with their edges. z lies in memory as [B, Q, H, D];
    the gradients of q, k and v of self-attention as one [B, Q, 3, H, D]. Deterministic. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        v_BHKD: Tensor,
        key_table: Tensor | None,
        value_table: Tensor | None,
        layout: Layout,
    ) -> Tensor:
        batch, heads, num_queries, width = q_BHQD.shape
        z_BHQD = q_BHQD.new_empty(batch, num_queries, heads, width).transpose(1, 2)
        saved: list[Tensor | None] = []
        with torch.autocast(q_BHQD.device.type, enabled=False):
            for at in _parts(q_BHQD):
                tables = (_for_heads(key_table, at), _for_heads(value_table, at))
                z_GQD, kept = _forward(q_BHQD[at], k_BHKD[at], v_BHKD[at], *tables, layout.part(*at))
                _put(z_BHQD, at, z_GQD)
                if any(ctx.needs_input_grad):
                    saved += kept
                del z_GQD, kept
        ctx.save_for_backward(key_table, value_table, *saved)
        ctx.layout, ctx.num_keys = layout, k_BHKD.shape[2]
        return z_BHQD

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dz_BHQD: Tensor) -> tuple[Tensor | None, ...]:
        key_table, value_table, *saved = ctx.saved_tensors
        d_qkv = _gradient_buffers(dz_BHQD, ctx.num_keys)
        d_tables = [None if table is None else torch.zeros_like(table) for table in (key_table, value_table)]
        with torch.autocast(dz_BHQD.device.type, enabled=False):
            for at in _parts(dz_BHQD):
                kept, saved = saved[:KEPT], saved[KEPT:]
                tables = (_for_heads(key_table, at), _for_heads(value_table, at))
                of_qkv, of_tables = _backward(dz_BHQD[at], *tables, kept, ctx.layout.part(*at))
                for whole, part in zip(d_qkv, of_qkv, strict=True):
                    _put(whole, at, part)
                for whole, part in zip(d_tables, of_tables, strict=True):
                    if part is not None:
                        _for_heads(whole, at).add_(part)
        return *d_qkv, *d_tables, None


KEPT = 5  # tensors that _forward keeps of a part: q scaled, k, v with anchor, S, P (or None)
Part = tuple[slice, slice]  # sentences, heads


def _forward(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    layout: Layout,
) -> tuple[Tensor, list[Tensor | None]]:
    """z of a part, [G, Q, D], and what `_backward` needs."""
    q_GQD = _heads_first(torch.mul, q_BHQD, q_BHQD.shape[-1] ** -0.5)  # both terms of equation 5 are scaled
    k_GKD = _heads_first(None, k_BHKD)
    anchor = _anchor(value_table, layout.value_edges)
    v_GKD = _heads_first(None, v_BHKD) if anchor is None else _heads_first(torch.add, v_BHKD, anchor)
    value_rows = _rows(value_table, layout.value_edges, q_GQD.dtype)
    z_GQD, sums_GQW, weights_GQK = torch.empty_like(q_GQD), None, None
    if value_rows is not None and layout.queries_per_block is not None:
        sums_GQW = q_GQD.new_zeros(*q_GQD.shape[:2], value_rows.shape[1])
    weights = _Weights(q_GQD, k_GKD, key_table, layout, q_BHQD.shape[1])
    for start, stop, num_keys in layout.blocks(q_GQD.shape[1], k_GKD.shape[1]):
        weights_GQK = weights(start, stop, num_keys)
        if layout.queries_per_block is None:
            torch.bmm(weights_GQK, v_GKD, out=z_GQD)
        else:
            z_GQD[:, start:stop] = torch.bmm(weights_GQK, v_GKD[:, :num_keys])
        if value_rows is not None:
            sums_GQW = _sums(sums_GQW, weights_GQK, layout.value_edges, start, stop, num_keys)
    if sums_GQW is not None:
        _add_product(z_GQD, sums_GQW, value_rows)
    return z_GQD, [q_GQD, k_GKD, v_GKD, sums_GQW, weights_GQK if layout.queries_per_block is None else None]


def _backward(
    dz_BHQD: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    kept: list[Tensor | None],
    layout: Layout,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor | None, Tensor | None]]:
    """The gradients of q, k, v, [G, ., D], and of the part's tables."""
    q_GQD, k_GKD, v_GKD, sums_GQW, all_weights = kept
    scale = q_GQD.shape[-1] ** -0.5
    dz_GQD = _heads_first(None, dz_BHQD)
    key_rows, value_rows = (
        _rows(table, edges, q_GQD.dtype)
        for table, edges in ((key_table, layout.key_edges), (value_table, layout.value_edges))
    )
    projected_GQW = None if value_rows is None else _product(dz_GQD, value_rows.transpose(1, 2))
    weights = _Weights(q_GQD, k_GKD, key_table, layout, dz_BHQD.shape[1]) if all_weights is None else None
    dq_GQD, dsums_GQW = torch.empty_like(q_GQD), None
    if weights is not None:
        dk_GKD, dv_GKD = torch.zeros_like(k_GKD), torch.zeros_like(v_GKD)
        dsums_GQW = None if key_rows is None else q_GQD.new_zeros(*q_GQD.shape[:2], key_rows.shape[1])
    for start, stop, num_keys in layout.blocks(q_GQD.shape[1], k_GKD.shape[1]):
        weights_GQK = all_weights if weights is None else weights(start, stop, num_keys)
        dscores_GQK = scores_buffer(*weights_GQK.shape, like=q_GQD)
        torch.bmm(dz_GQD[:, start:stop], v_GKD[:, :num_keys].transpose(1, 2), out=dscores_GQK)
        if projected_GQW is not None:
            _add_to_scores(dscores_GQK, projected_GQW, layout.value_edges, start, stop, num_keys)
        _softmax_backward_(dscores_GQK, weights_GQK)
        if weights is None:
            torch.baddbmm(dq_GQD, dscores_GQK, k_GKD, beta=0, alpha=scale, out=dq_GQD)
            dv_GKD = torch.bmm(weights_GQK.transpose(1, 2), dz_GQD)
            dk_GKD = torch.bmm(dscores_GQK.transpose(1, 2), q_GQD)
        else:
            dq_GQD[:, start:stop] = torch.bmm(dscores_GQK, k_GKD[:, :num_keys]).mul_(scale)
            dv_GKD[:, :num_keys] += torch.bmm(weights_GQK.transpose(1, 2), dz_GQD[:, start:stop])
            dk_GKD[:, :num_keys] += torch.bmm(dscores_GQK.transpose(1, 2), q_GQD[:, start:stop])
        if key_rows is not None:
            dsums_GQW = _sums(dsums_GQW, dscores_GQK, layout.key_edges, start, stop, num_keys)
    dkey_table = dvalue_table = None
    if dsums_GQW is not None:
        _add_product(dq_GQD, dsums_GQW, key_rows, alpha=scale)
        dkey_table = _table_gradient(dsums_GQW, q_GQD, key_table, layout.key_edges, whole=False)
    if sums_GQW is not None:
        dvalue_table = _table_gradient(sums_GQW, dz_GQD, value_table, layout.value_edges, whole=True)
    return (dq_GQD, dk_GKD, dv_GKD), (dkey_table, dvalue_table)


class _Weights:
    """P of any block of a part's queries, [G, stop - start, num_keys]."""

    def __init__(
        self, q_GQD: Tensor, k_GKD: Tensor, key_table: Tensor | None, layout: Layout, num_heads: int
    ) -> None:
        self.q_GQD, self.k_GKD, self.layout, self.num_heads = q_GQD, k_GKD, layout, num_heads
        rows_TWD = _rows(key_table, layout.key_edges, q_GQD.dtype)
        # For all blocks at once: [G, Q, W] is small.
        self.projected_GQW = None if rows_TWD is None else _product(q_GQD, rows_TWD.transpose(1, 2))

    def __call__(self, start: int, stop: int, num_keys: int) -> Tensor:
        scores_GQK = scores_buffer(self.q_GQD.shape[0], stop - start, num_keys, like=self.q_GQD)
        torch.bmm(self.q_GQD[:, start:stop], self.k_GKD[:, :num_keys].transpose(1, 2), out=scores_GQK)
        if self.projected_GQW is not None:
            _add_to_scores(scores_GQK, self.projected_GQW, self.layout.key_edges, start, stop, num_keys)
        bias = self.layout.hidden(start, stop, num_keys, like=scores_GQK)
        if bias is not None:
            by_head = scores_GQK.view(self.num_heads, -1, stop - start, num_keys)
            by_head.add_(bias if bias.dim() == 2 else bias.transpose(0, 1))
        return torch.softmax(scores_GQK, dim=-1, out=scores_GQK)


class SplitHeads(torch.autograd.Function):
    """apply(qkv_BQM, num_heads) -> q, k, v, views [B, H, Q, D] of one projection's output.

    Where the three gradients already lie as BlockwiseAttention writes them, they are the projection's gradient; torch's
    own chunk would copy them once more, which took a tenth of a layer's time.
    """

    @staticmethod
    def forward(ctx: Any, qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.num_heads = num_heads
        q, k, v = qkv_BQM.unflatten(-1, (3, num_heads, -1)).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        batch, heads, length, width = gradients[0].shape
        row = 3 * heads * width
        first = gradients[0]
        for index, gradient in enumerate(gradients):
            if (
                gradient.stride() != (length * row, width, row, 1)
                or gradient.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
                or gradient.storage_offset() != first.storage_offset() + index * heads * width
            ):
                return torch.stack([x.transpose(1, 2) for x in gradients], dim=2).flatten(2), None
        return first.as_strided((batch, length, row), (length * row, row, 1)), None


def _parts(x_BHQD: Tensor) -> Iterator[Part]:
    """Everything at once, or on a CPU as many heads and sentences at a time as the cache holds."""
    batch, heads, length, width = x_BHQD.shape
    if x_BHQD.device.type != "cpu":
        yield slice(0, batch), slice(0, heads)
        return
    affordable = max(1, CACHE_BYTES // (length * width * x_BHQD.element_size()))
    heads_at_once = min(heads, max(1, affordable // batch))
    num_parts = -(-batch // affordable)
    sentences_at_once = -(-batch // num_parts)
    for head in range(0, heads, heads_at_once):
        for sentence in range(0, batch, sentences_at_once):
            yield (
                slice(sentence, min(sentence + sentences_at_once, batch)),
                slice(head, min(head + heads_at_once, heads)),
            )


def _heads_first(operation: Callable[..., Tensor] | None, x_BHQD: Tensor, operand: Any = None) -> Tensor:
    """A contiguous [G, Q, D], with an operation on the way."""
    x_HBQD = x_BHQD.transpose(0, 1)
    if operation is None:
        return x_HBQD.contiguous().view(-1, *x_HBQD.shape[2:])
    out = torch.empty_like(x_HBQD, memory_format=torch.contiguous_format)
    operation(x_HBQD, operand, out=out)
    return out.view(-1, *x_HBQD.shape[2:])


def _put(whole_BHQD: Tensor, at: Part, part_GQD: Tensor) -> None:
    place = whole_BHQD[at].transpose(0, 1)
    place.copy_(part_GQD.view(place.shape))


def _gradient_buffers(dz_BHQD: Tensor, num_keys: int) -> tuple[Tensor, ...]:
    batch, heads, num_queries, width = dz_BHQD.shape
    if num_keys == num_queries:  # as rpr.model.transformer's projection wants them: no copy is needed there
        packed = dz_BHQD.new_empty(batch, num_queries, 3, heads, width)
        return tuple(part.transpose(1, 2) for part in packed.unbind(2))
    return tuple(dz_BHQD.new_empty(batch, n, heads, width).transpose(1, 2) for n in (num_queries, num_keys, num_keys))


def _for_heads(table: Tensor, at: Part) -> Tensor:
    return table if table is None or table.dim() == 2 else table[at[1]]


def _rows(table: Tensor | None, edges: Edges | None, dtype: torch.dtype) -> Tensor | None:
    """The rows that occur, relative to the anchor: [T, W, D]."""
    if table is None or edges is None:
        return None
    rows = table[..., edges.rows, :]
    if edges.anchor is not None:
        rows = rows - table[..., edges.anchor, None, :]
    return rows.to(dtype) if rows.dim() == 3 else rows.to(dtype)[None]


def _anchor(table: Tensor | None, edges: Edges | None) -> Tensor | None:
    """The anchor's vector, broadcastable to [H, B, K, D]."""
    if table is None or edges is None or edges.anchor is None:
        return None
    vector = table[..., edges.anchor, :]
    return vector if vector.dim() == 1 else vector[:, None, None, :]


def _product(x_GQD: Tensor, matrix_TDW: Tensor) -> Tensor:
    """[G, Q, D] times each head's matrix (or the one for all): [G, Q, W]."""
    product_TNW = torch.bmm(_for_tables(x_GQD, matrix_TDW.shape[0]), matrix_TDW)
    return product_TNW.view(*x_GQD.shape[:2], matrix_TDW.shape[-1])


def _add_product(out_GQD: Tensor, by_row_GQW: Tensor, rows_TWD: Tensor, *, alpha: float = 1.0) -> None:
    """out += alpha * by_row @ rows, in place."""
    out_TND, by_row_TNW = (_for_tables(x, rows_TWD.shape[0]) for x in (out_GQD, by_row_GQW))
    out_TND.baddbmm_(by_row_TNW, rows_TWD, alpha=alpha)


def _for_tables(x_GQY: Tensor, num_tables: int) -> Tensor:
    """[G, Q, Y] as one matrix for each table, [T, N, Y]; Y may be 0."""
    num_products, num_queries, columns = x_GQY.shape
    return x_GQY.view(num_tables, num_products * num_queries // num_tables, columns)


def _columns(block: Edges, whole: Edges) -> slice:
    """Where a block's rows stand among all that occur."""
    return slice(block.rows.start - whole.rows.start, block.rows.stop - whole.rows.start)


def _add_to_scores(scores_GQK: Tensor, by_row_GQW: Tensor, edges: Edges, start: int, stop: int, num_keys: int) -> None:
    block = edges.queries(start, stop, num_keys)
    block.add_to_scores(scores_GQK, by_row_GQW[:, start:stop, _columns(block, edges)])


def _sums(
    all_GQW: Tensor | None, weights_GQK: Tensor, edges: Edges, start: int, stop: int, num_keys: int
) -> Tensor:
    """The block's weights summed by table row; in their place among all, where there are other blocks."""
    block = edges.queries(start, stop, num_keys)
    sums = block.sum_weights(weights_GQK)
    if all_GQW is None:
        return sums
    all_GQW[:, start:stop, _columns(block, edges)] = sums
    return all_GQW


def _softmax_backward_(dweights_GQK: Tensor, weights_GQK: Tensor) -> None:
    """P * (dP - sum_j P dP), written over dP."""
    torch.ops.aten._softmax_backward_data.out(
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
