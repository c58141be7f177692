"""Which table row each (query, key) pair uses, and the two maps between pairs and rows that attention needs.

`add_to_scores` maps matmuls with the table's rows, [G, Q, W], to the pairs, [G, Q, K]; its adjoint `sum_weights` sums
pairs into rows. Neither gathers nor scatters: viewed with rows of K + 1 elements, the scores have every distance in a
column of its own (`_diagonals`), and the pairs beyond the clip distance form rectangles and triangles.
"""

# Shape suffixes: G batch and heads in one axis, Q queries, K keys, R table rows, W rows that occur,
# C consecutive distances (columns of a view along the diagonals).

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 64  # queries whose pairs beyond the clip distance are handled together
WIDE = 128  # columns from which on matmuls read and write causal scores by distance in place


def scores_buffer(num_products: int, num_queries: int, num_keys: int, like: Tensor) -> Tensor:
    """An uninitialised, contiguous [G, Q, K] inside a storage with a zeroed margin at both ends.

    A view along the diagonals starts up to Q + K elements before the first score and ends as many after the last.
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

    If distances are clipped, one of the outermost rows is the anchor, which needs no column and no triangle: it is left
    out of the matmuls, and the others are taken relative to it. The softmax is invariant to a constant added to all
    keys of a query, and P sums to 1 over the keys. So the scores need only q_i . (w_r - w_anchor), and the values
    P (v + w_anchor) + S (w - w_anchor).
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
        """Causal scores by distance: (queries, columns, view [G, queries, columns]), together every visible cell.

        A query without a key at some distance has there a cell of its predecessor that causality hides; only the first
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
        """A view of the scores by distance, [G', Q', C]: column c of query i is its key at distance first + c.

        Where that key does not exist, the cell is on a neighbouring row or in the buffer's margin.
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
        """The fewest views along the diagonals that together cover every cell, each without repeating one.

        Rows wider than K + 1 overlap, and so do the last row of a matrix and the first of the next one.
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
        """All pairs farther left than `first` that share its row: rectangles, and triangles along the diagonal.

        For ROWS queries at a time, the keys farther left of all of them form a rectangle; beyond it each query has one
        key more than the previous one, the first query none.
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
