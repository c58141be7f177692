"""The blocks of blockwise attention; the relative tables and the bias of one of its parts, with their matmuls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rpr.model.attention.clipped_distances import Distances
from rpr.model.attention.distances import bias_of_pairs, sum_by_row
from rpr.model.attention.equations import masked_score, near_keys


class Block(NamedTuple):
    """Consecutive queries, and the consecutive keys that they need."""

    queries: slice
    keys: slice
    first_query: int  # position of the first query among these keys

    @property
    def num_queries(self) -> int:
        return int(self.queries.stop - self.queries.start)

    @property
    def num_keys(self) -> int:
        return int(self.keys.stop - self.keys.start)


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
        mask = self.mask_BHQK
        if mask is None:
            return self
        mask = mask[sentences if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]
        return replace(self, mask_BHQK=mask)

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
            yield Block(slice(start, stop), slice(first, end), at + start - first)

    def widest(self, num_queries: int, num_keys: int) -> int:
        """The most scores of a block, of one head and sentence."""
        queries = min(num_queries, self.queries_per_block or num_queries)
        keys = num_keys if self.window is None else queries + (1 if self.causal else 2) * (self.window - 1)
        return queries * min(keys, num_keys)

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
    bias: Tensor | None = None
    for (_, hidden), value in (
        (near_keys(False, window, *lengths), masked_score(dtype)),
        (near_keys(causal, None, *lengths), -torch.inf),
    ):
        if hidden is not None:
            of_hidden = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, value)
            bias = of_hidden if bias is None else bias + of_hidden
    return bias


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

    def zero_rows(self) -> Tensor:
        return torch.zeros_like(self.rows_TWD, dtype=self.table.dtype)

    def _edges(self, block: Block) -> Distances:
        return replace(
            self.edges, num_queries=block.num_queries, num_keys=block.num_keys, first_query=block.first_query
        )

    def _rows_of(self, block: Distances, columns: slice, num_products: int) -> Tensor:
        """Some rows of a block, for each product: [G, W, D]."""
        rows_TWD = self.rows_TWD[:, self._columns(block)][:, columns]
        return rows_TWD[:, None].expand(-1, num_products // len(rows_TWD), -1, -1).flatten(0, 1)

    def _by_table(self, x_GQY: Tensor) -> Tensor:
        """[G, Q, Y] as one matrix for each table, [T, N, Y]; Y may be 0."""
        num_products, num_queries, columns = x_GQY.shape
        num_tables = self.rows_TWD.shape[0]
        return x_GQY.view(num_tables, num_products * num_queries // num_tables, columns)

    def _columns(self, block: Distances) -> slice:
        """The columns of a block's rows among all rows that occur."""
        return slice(block.rows.start - self.edges.rows.start, block.rows.stop - self.edges.rows.start)


class Bias:
    """The bias of a part, for any block of its queries."""

    def __init__(self, bias_HR: Tensor, layout: Layout, *, learned: bool) -> None:
        self.bias_HR, self.layout, self.learned = bias_HR, layout, learned

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
