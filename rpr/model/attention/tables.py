"""The parts of blockwise attention: its blocks, the row of a table that each (query, key) pair uses, and matmuls with
tables and biases.

`Distances` maps matmuls with the table's rows, [G, Q, W], to the pairs, [G, Q, K], and sums pairs into rows. Neither
gathers nor scatters: viewed with rows of K + 1 elements, the scores have every distance in a column of its own, and the
pairs beyond the clip distance form rectangles and triangles.
"""

# Shape suffixes: B batch, H heads, D head width, T tables, N positions that share a table; G batch and heads in one
# axis, Q queries, K keys, R table rows, W rows that occur, C consecutive distances (columns of a view along diagonals).

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rpr.model.attention.composition import bias_of_pairs, masked_score, near_keys, sum_by_row

ROWS = 64  # queries whose pairs beyond the clip distance are handled together
WIDE = 128  # columns from which on matmuls read and write causal scores by distance in place


class Block(NamedTuple):
    """Consecutive queries, and the consecutive keys that they need."""

    queries: slice
    keys: slice
    first_query: int  # position of the first query among these keys
    num_queries: int
    num_keys: int


@dataclass(frozen=True)
class Layout:
    """The arguments of an attention that are not differentiated."""

    mask_BHQK: Tensor | None  # bool, broadcastable
    causal: bool
    first_query: int
    queries_per_block: int | None  # None: all at once
    stored: bool = False  # whether the weights are stored for the backward pass, or computed again
    window: int | None = None  # of several blocks
    with_sums: bool = False  # whether the logarithm of each query's sum of exponentials is a result, too

    def part(self, sentences: slice, heads: slice) -> Layout:
        mask, whole = self.mask_BHQK, slice(None)
        if mask is None:
            return self
        at = sentences if mask.shape[0] > 1 else whole, heads if mask.shape[1] > 1 else whole
        return replace(self, mask_BHQK=mask[at])

    def blocks(self, num_queries: int, num_keys: int) -> Iterator[Block]:
        size = self.queries_per_block or num_queries
        for start in range(0, num_queries, size):
            stop = min(start + size, num_queries)
            first, end, at = 0, num_keys, self.first_query
            if self.queries_per_block is not None and self.causal:
                end = min(end, at + stop)
            if self.queries_per_block is not None and self.window is not None:
                end = min(end, at + stop - 1 + self.window)
                first = max(0, min(at + start + 1 - self.window, end - 1))
            yield Block(slice(start, stop), slice(first, end), at + start - first, stop - start, end - first)

    def mask_bias(self, block: Block, like: Tensor) -> Tensor | None:
        """What hides keys, added to the block's scores; None if every key is visible. For later keys, whose scores may
        be of any size (xPos), minus infinity; a mask, which may hide all keys of a query, is a large negative number.
        """
        mask = self.mask_BHQK
        # Most blocks of a window have their keys at the same distances.
        windowed = self.window is not None and self.queries_per_block is not None
        of_distances = _bias_of_distances if windowed else _bias_of_distances.__wrapped__
        bias = of_distances(
            self.window, self.causal, block.first_query, block.num_queries, block.num_keys, like.dtype, like.device
        )
        if mask is not None:
            mask = mask if mask.shape[-2] == 1 else mask[..., block.queries, :]
            mask = mask if mask.shape[-1] == 1 else mask[..., block.keys]
            of_mask = like.new_zeros(mask.shape).masked_fill_(~mask, masked_score(like.dtype))
            bias = of_mask if bias is None else of_mask + bias
        return bias


@lru_cache(maxsize=8)
def _bias_of_distances(
    window: int | None, causal: bool, first_query: int, num_queries: int, num_keys: int, dtype: torch.dtype, device: Any
) -> Tensor | None:
    lengths = first_query, num_queries, num_keys, device
    _, far = near_keys(False, window, *lengths)
    _, later = near_keys(causal, None, *lengths)
    if far is None and later is None:
        return None
    bias = torch.zeros(num_queries, num_keys, dtype=dtype, device=device)
    bias = bias if far is None else bias.masked_fill_(far, masked_score(dtype))
    return bias if later is None else bias.masked_fill_(later, -torch.inf)


def scores_buffer(num_products: int, num_queries: int, num_keys: int, like: Tensor) -> Tensor:
    """An uninitialised, contiguous [G, Q, K] inside a storage with a zeroed margin at both ends: a view along the
    diagonals starts up to Q + K elements before the first score and ends as many after the last.
    """
    margin = num_queries + num_keys
    size = num_products * num_queries * num_keys
    flat = like.new_empty(size + 2 * margin)
    flat[:margin].zero_()
    flat[margin + size :].zero_()
    return flat[margin : margin + size].view(num_products, num_queries, num_keys)


@dataclass(frozen=True)
class Distances:
    """row(i, j) = clip(j - i, k) + k, with query i at position first_query + i (Shaw et al. 2018, section 3.2).

    If distances are clipped, one of the outermost rows is the anchor, which needs no column and no triangle: the others
    are taken relative to it. The softmax is invariant to a constant added to all keys of a query, and P sums to 1: the
    scores need only q_i . (w_r - w_anchor), and the values P (v + w_anchor) + S (w - w_anchor).
    """

    num_queries: int
    num_keys: int
    first_query: int
    num_rows: int  # 2k + 1
    causal: bool
    window: int | None
    anchor: int | None

    @staticmethod
    def between(
        num_queries: int, num_keys: int, first_query: int, num_rows: int, *, causal: bool, window: int | None = None
    ) -> Distances:
        whole = Distances(num_queries, num_keys, first_query, num_rows, causal, window, None)
        anchor = None
        if whole.highest > whole.clip_distance:
            anchor = num_rows - 1
        elif -whole.lowest > whole.clip_distance:
            anchor = 0
        return replace(whole, anchor=anchor)

    @property
    def clip_distance(self) -> int:
        return (self.num_rows - 1) // 2

    @property
    def lowest(self) -> int:
        """The smallest distance j - i that occurs."""
        farthest = self.first_query + self.num_queries - 1
        return -farthest if self.window is None else -min(farthest, self.window - 1)

    @property
    def highest(self) -> int:
        highest = self.num_keys - 1 - self.first_query
        highest = highest if self.window is None else min(highest, self.window - 1)
        return min(highest, 0) if self.causal else highest

    @property
    def first(self) -> int:
        """The smallest distance with a column; smaller ones share it, unless their row is the anchor."""
        return max(self.lowest, -self.clip_distance + (self.anchor == 0))

    @property
    def last(self) -> int:
        last = min(self.highest, self.clip_distance - (self.anchor == self.num_rows - 1))
        # Queries far behind all keys use only the clipped row, although its own distance does not occur.
        return max(last, self.first) if self.lowest < -self.clip_distance and self.anchor != 0 else last

    @property
    def rows(self) -> slice:
        """A slice that contains every row that occurs, one column of `by_row` each, without the anchor."""
        return slice(self.first + self.clip_distance, max(self.first, self.last + 1) + self.clip_distance)

    def add_to_scores(self, scores_GQK: Tensor, by_row_GQW: Tensor) -> None:
        """scores[g, i, j] += by_row[g, i, row(i, j)], in place; `scores` is from `scores_buffer`."""
        plan = _plan(self, scores_GQK.dtype, scores_GQK.device)
        for view in plan.writes:
            # 0 is added where a query has no key at that distance: those cells belong to a neighbouring row.
            self._diagonals(scores_GQK, view).addcmul_(
                by_row_GQW[view.products, view.queries, view.columns], plan.exists_QW[view.queries, view.columns]
            )
        for queries, keys, triangle_QK in plan.farther:
            here_GQK, edge_GQ1 = scores_GQK[:, queries, keys], by_row_GQW[:, queries, :1]
            if triangle_QK is None:
                here_GQK.add_(edge_GQ1)
            else:
                here_GQK.addcmul_(edge_GQ1, triangle_QK)

    def sum_weights(self, weights_GQK: Tensor) -> Tensor:
        """by_row[g, i, r] = sum of weights[g, i, j] over keys j whose row is r; `weights` is from `scores_buffer`."""
        plan = _plan(self, weights_GQK.dtype, weights_GQK.device)
        if plan.writes:
            columns = slice(0, self.last - self.first + 1)
            every_cell = DiagonalView(slice(0, None, 1), slice(0, self.num_queries, 1), columns)
            by_row_GQW = self._diagonals(weights_GQK, every_cell) * plan.exists_QW
        else:
            by_row_GQW = weights_GQK.new_zeros(*weights_GQK.shape[:2], max(0, self.last - self.first + 1))
        for queries, keys, triangle_QK in plan.farther:
            here_GQK = weights_GQK[:, queries, keys]
            if triangle_QK is not None:
                here_GQK = here_GQK * triangle_QK
            by_row_GQW[:, queries, 0] += here_GQK.sum(-1)
        return by_row_GQW

    @property
    def in_place(self) -> bool:
        """Whether matmuls may use `diagonals`: no pair is beyond the columns, and every query sees its own position."""
        return (
            self.causal
            and self.highest == 0
            and self.first_query + self.num_queries <= self.num_keys
            and self.last - self.first >= WIDE
        )

    def diagonals(self, scores_GQK: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Causal scores by distance: (queries, columns, view [G, queries, columns]), together every visible cell. A
        query without a key at some distance has there a cell of its predecessor that causality hides; only the first
        one, whose predecessor belongs to another matrix, gets a view of its own keys alone.
        """
        columns = self.last - self.first + 1
        absent = max(0, -self.first_query - self.first)
        rest = 1 if absent else 0
        first, others = slice(0, rest, 1), slice(rest, None, 1)
        for queries, present in ((first, slice(absent, columns)), (others, slice(0, columns))):
            if range(self.num_queries)[queries]:
                yield queries, present, self._diagonals(scores_GQK, DiagonalView(slice(0, None, 1), queries, present))

    def _diagonals(self, scores_GQK: Tensor, view: DiagonalView) -> Tensor:
        """A view of the scores by distance, [G', Q', C]: column c of query i is its key at distance first + c, or,
        where that does not exist, a cell of a neighbouring row or of the buffer's margin.
        """
        products, queries, columns = view
        product, row = self.num_queries * self.num_keys, self.num_keys + 1
        rows = range(len(scores_GQK))[products], range(self.num_queries)[queries]
        first = products.start * product + queries.start * row + self.first_query + self.first + columns.start
        return scores_GQK.as_strided(
            (*map(len, rows), columns.stop - columns.start),
            (products.step * product, queries.step * row, 1),
            scores_GQK.storage_offset() + first,
        )

    def _writes(self) -> list[DiagonalView]:
        """The fewest views along the diagonals that together cover every cell, each without repeating one: rows wider
        than K + 1 overlap, and so do the last row of a matrix and the first of the next one.
        """
        width = min(self.last, self.highest) - self.first + 1
        if width <= 0:  # k = 0, or all queries far behind all keys
            return []
        for parts in range(1, width + 1):
            size = -(-width // parts)
            for row_step, product_step in ((1, 1), (2, 1), (1, 2), (2, 2)):
                if self._disjoint(size, row_step, product_step):
                    return [
                        DiagonalView(
                            slice(p, None, product_step),
                            slice(r, self.num_queries, row_step),
                            slice(c, min(c + size, width)),
                        )
                        for c in range(0, width, size)
                        for p in range(product_step)
                        for r in range(min(row_step, self.num_queries))
                    ]
        raise AssertionError("single columns of every second row and product never overlap")

    def _disjoint(self, width: int, row_step: int, product_step: int) -> bool:
        product, row = self.num_queries * self.num_keys, self.num_keys + 1
        rows_of_one = range(0, (self.num_queries - 1) // row_step * row_step * row + 1, row_step * row)
        starts = [*rows_of_one, *(start + product_step * product for start in rows_of_one)]
        return all(after - before >= width for before, after in pairwise(starts))

    def _farther(self) -> Iterator[tuple[slice, slice, bool]]:
        """All pairs farther left than `first` that share its row: for ROWS queries at a time, the keys farther left of
        all of them are a rectangle; beyond it, in a triangle, each query has one key more, the first query none.
        """
        if self.lowest >= self.first or self.anchor == 0:
            return
        # query i has the keys 0 .. i + shift - 1 farther left, if any
        shift = self.first_query + self.first
        for start in range(max(0, -shift), self.num_queries, ROWS):
            stop = min(start + ROWS, self.num_queries)
            for_all = min(max(0, start + shift), self.num_keys)
            for_last = min(stop - 1 + shift, self.num_keys)
            if for_all:
                yield slice(start, stop), slice(0, for_all), False
            if for_last > for_all:
                yield slice(start, stop), slice(for_all, for_last), True


class DiagonalView(NamedTuple):
    """Non-overlapping cells of a view along the diagonals: slices of G, of the queries and of the columns."""

    products: slice
    queries: slice
    columns: slice


class _Plan(NamedTuple):
    """What every call of `Distances` needs and depends only on the lengths."""

    exists_QW: Tensor  # 1 where a query has a key at the column's distance, else 0
    writes: list[DiagonalView]
    farther: list[tuple[slice, slice, Tensor | None]]  # None: the whole rectangle


@lru_cache(maxsize=256)
def _plan(at: Distances, dtype: torch.dtype, device: torch.device) -> _Plan:
    queries = at.first_query + torch.arange(at.num_queries, device=device)
    keys_QW = queries[:, None] + torch.arange(at.first, max(at.first, at.last + 1), device=device)
    exists_QW = ((keys_QW >= 0) & (keys_QW < at.num_keys)).to(dtype)
    farther = []
    for queries_, keys, is_triangle in at._farther():
        shape = (queries_.stop - queries_.start, keys.stop - keys.start)
        triangle_QK = torch.ones(shape, dtype=dtype, device=device).tril(-1) if is_triangle else None
        farther.append((queries_, keys, triangle_QK))
    return _Plan(exists_QW, at._writes(), farther)


class Table:
    """One table of a part: the rows that occur, relative to the anchor, and the four matmuls with them."""

    def __init__(self, table: Tensor, edges: Distances, dtype: torch.dtype) -> None:
        self.table, self.edges = table, edges
        rows = table[..., edges.rows, :]
        self.anchor: Tensor | None = None  # broadcastable to [H, B, K, D]
        if edges.anchor is not None:
            rows = rows - table[..., edges.anchor, None, :]
            vector = table[..., edges.anchor, :].to(dtype)
            self.anchor = vector if vector.dim() == 1 else vector[:, None, None, :]
        self.rows_TWD = rows.to(dtype) if rows.dim() == 3 else rows.to(dtype)[None]

    def project(self, x_GQD: Tensor) -> Tensor:
        """x times the rows, [G, Q, W], for `add_to_scores`; x itself if it multiplies them in place."""
        if self.edges.in_place:
            return x_GQD
        product_TNW = torch.bmm(self._by_table(x_GQD), self.rows_TWD.transpose(1, 2))
        return product_TNW.view(*x_GQD.shape[:2], product_TNW.shape[-1])

    def add_to_scores(self, scores_GQK: Tensor, projected_GQW: Tensor, block: Block) -> None:
        edges = self._edges(block)
        if self.edges.in_place:
            for queries, columns, view in edges.diagonals(scores_GQK):
                rows_GDW = self._rows_of(edges, columns, len(view)).transpose(1, 2)
                view.baddbmm_(projected_GQW[:, block.queries][:, queries], rows_GDW)
            return
        edges.add_to_scores(scores_GQK, projected_GQW[:, block.queries, self._columns(edges)])

    def zero_sums(self, like_GQD: Tensor) -> Tensor:
        return like_GQD.new_zeros(*like_GQD.shape[:2], self.rows_TWD.shape[1])

    def sums(self, weights_GQK: Tensor, block: Block, all_GQW: Tensor | None) -> Tensor:
        """The block's weights summed by row; written into `all_GQW` if there are other blocks."""
        edges = self._edges(block)
        sums = edges.sum_weights(weights_GQK)
        if all_GQW is None:
            return sums
        all_GQW[:, block.queries, self._columns(edges)] = sums
        return all_GQW

    def add_product(self, out_GQD: Tensor, sums_GQW: Tensor, *, alpha: float = 1.0) -> None:
        """out += alpha * sums @ rows, in place."""
        self._by_table(out_GQD).baddbmm_(self._by_table(sums_GQW), self.rows_TWD, alpha=alpha)

    def gradient(self, sums_GQW: Tensor, x_GQD: Tensor, *, weights_sum_to_one: bool) -> Tensor:
        """sums^T x over all positions that use the table; rows that do not occur get zero."""
        x_TND = self._by_table(x_GQD)
        occurring_TWD = torch.bmm(self._by_table(sums_GQW).transpose(1, 2), x_TND).to(self.table.dtype)
        return self.of_all_rows(occurring_TWD, x_TND if weights_sum_to_one else None)

    def of_all_rows(self, occurring_TWD: Tensor, x_TND: Tensor | None = None) -> Tensor:
        """The gradient of the table from that of the rows that occur. The anchor gets the remainder of the sum over all
        rows: of the sum of x for P, whose rows sum to 1, and of 0 for the scores' gradient, whose rows sum to 0.
        """
        rows, anchor, num_rows = self.edges.rows, self.edges.anchor, self.table.shape[-2]
        # The rows that occur and the adjacent anchor are contiguous; all others get zeros.
        parts = [occurring_TWD]
        if anchor is not None:
            left_T1D = -occurring_TWD.sum(1, keepdim=True)
            if x_TND is not None:
                left_T1D += x_TND.sum(1, keepdim=True, dtype=self.table.dtype)
            parts = [left_T1D, occurring_TWD] if anchor == 0 else [occurring_TWD, left_T1D]
        before = min(rows.start, rows.start if anchor is None else anchor)
        after = num_rows - max(rows.stop, 0 if anchor is None else anchor + 1)
        zeros_TRD = occurring_TWD.new_zeros(occurring_TWD.shape[0], max(before, after), self.table.shape[-1])
        parts = [zeros_TRD[:, :before], *parts, zeros_TRD[:, :after]]
        return torch.cat(parts, dim=1).view_as(self.table)

    def add_gradients(
        self, dscores_GQK: Tensor, block: Block, x_GQD: Tensor, dx_GQD: Tensor, drows_TWD: Tensor, alpha: float
    ) -> None:
        """Add a block's gradients of what multiplies the rows, and of the rows, where `edges.in_place`."""
        edges = self._edges(block)
        for queries, columns, view in edges.diagonals(dscores_GQK):
            dx_GQD[:, block.queries][:, queries].baddbmm_(view, self._rows_of(edges, columns, len(view)), alpha=alpha)
            of_rows_GWD = torch.bmm(view.transpose(1, 2), x_GQD[:, block.queries][:, queries])
            of_tables = of_rows_GWD.view(len(drows_TWD), -1, *of_rows_GWD.shape[1:]).sum(1, dtype=drows_TWD.dtype)
            drows_TWD[:, self._columns(edges)][:, columns] += of_tables

    def _edges(self, block: Block) -> Distances:
        return replace(
            self.edges, num_queries=block.num_queries, num_keys=block.num_keys, first_query=block.first_query
        )

    def _rows_of(self, block: Distances, columns: slice, num_products: int) -> Tensor:
        rows_TWD = self.rows_TWD[:, self._columns(block)][:, columns]
        return rows_TWD[:, None].expand(-1, num_products // len(rows_TWD), -1, -1).flatten(0, 1)

    def _by_table(self, x_GQY: Tensor) -> Tensor:
        num_products, num_queries, columns = x_GQY.shape
        num_tables = self.rows_TWD.shape[0]
        return x_GQY.view(num_tables, num_products * num_queries // num_tables, columns)

    def _columns(self, block: Distances) -> slice:
        return slice(block.rows.start - self.edges.rows.start, block.rows.stop - self.edges.rows.start)


class Bias(NamedTuple):
    """The bias of a part, for any block of its queries."""

    bias_HR: Tensor
    layout: Layout
    learned: bool

    def of_pairs(self, block: Block) -> Tensor:
        """The bias of each pair, [H, 1, Q, K]."""
        return bias_of_pairs(self.bias_HR, block.num_queries, block.num_keys, block.first_query)[:, None]

    def gradient(self, dscores_GQK: Tensor, block: Block) -> Tensor:
        """The sum of the scores' gradients over all pairs that share a row, [H, R]; they are from `scores_buffer`."""
        heads, num_rows = self.bias_HR.shape
        dtype, (causal, window) = self.bias_HR.dtype, (self.layout.causal, self.layout.window)
        lengths = block.num_queries, block.num_keys, block.first_query
        edges = Distances.between(*lengths, num_rows, causal=causal, window=window)
        if not edges.in_place or dscores_GQK.dtype != dtype or self.layout.with_sums:
            dscores_HBQK = dscores_GQK.view(heads, -1, *dscores_GQK.shape[1:])
            return sum_by_row(dscores_HBQK.sum(1, dtype=dtype), num_rows, block.first_query)
        gradient_HR = torch.zeros_like(self.bias_HR)
        first = edges.first + edges.clip_distance
        for _, columns, view in edges.diagonals(dscores_GQK):
            summed_G1W = torch.bmm(view.new_ones(1, 1, view.shape[1]).expand(len(view), -1, -1), view)
            gradient_HR[:, first:][:, columns] += summed_G1W.view(heads, -1, view.shape[2]).sum(1)
        if edges.anchor is not None:  # the gradients of a query's scores sum to 0
            gradient_HR[:, edges.anchor] = -gradient_HR.sum(1)
        return gradient_HR
