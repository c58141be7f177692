"""The relative tables and the bias of one part of blockwise attention, and their matmuls by block."""

from __future__ import annotations

import torch
from torch import Tensor

from rpr.model.distances import bias_of_pairs, sum_by_row
from rpr.model.edges import Edges, Labels

Block = tuple[int, int, int]  # first query, last query (exclusive), number of keys it needs


class Table:
    """One table of a part: the rows that occur, relative to the anchor, and the four matmuls with them."""

    def __init__(self, table: Tensor, edges: Edges, dtype: torch.dtype) -> None:
        self.table, self.edges = table, edges
        rows = table[..., edges.rows, :]
        self.anchor: Tensor | None = None  # broadcastable to [H, B, K, D]
        if edges.anchor is not None:
            rows = rows - table[..., edges.anchor, None, :]
            vector = table[..., edges.anchor, :].to(dtype)
            self.anchor = vector if vector.dim() == 1 else vector[:, None, None, :]
        self.rows_TWD = rows.to(dtype) if rows.dim() == 3 else rows.to(dtype)[None]

    def project(self, x_GQD: Tensor) -> Tensor:
        """x times the rows, [G, Q, W]."""
        product_TNW = torch.bmm(self._by_table(x_GQD), self.rows_TWD.transpose(1, 2))
        return product_TNW.view(*x_GQD.shape[:2], product_TNW.shape[-1])

    def add_to_scores(self, scores_GQK: Tensor, projected_GQW: Tensor, block: Block) -> None:
        edges = self.edges.queries(*block)
        edges.add_to_scores(scores_GQK, projected_GQW[:, block[0] : block[1], self._columns(edges)])

    def zero_sums(self, like_GQD: Tensor) -> Tensor:
        return like_GQD.new_zeros(*like_GQD.shape[:2], self.rows_TWD.shape[1])

    def sums(self, weights_GQK: Tensor, block: Block, all_GQW: Tensor | None) -> Tensor:
        """The block's weights summed by row; written into `all_GQW` if there are other blocks."""
        edges = self.edges.queries(*block)
        sums = edges.sum_weights(weights_GQK)
        if all_GQW is None:
            return sums
        all_GQW[:, block[0] : block[1], self._columns(edges)] = sums
        return all_GQW

    def add_product(self, out_GQD: Tensor, sums_GQW: Tensor, *, alpha: float = 1.0) -> None:
        """out += alpha * sums @ rows, in place."""
        self._by_table(out_GQD).baddbmm_(self._by_table(sums_GQW), self.rows_TWD, alpha=alpha)

    def gradient(self, sums_GQW: Tensor, x_GQD: Tensor, *, weights_sum_to_one: bool) -> Tensor:
        """sums^T x over all positions that use the table; rows that do not occur get zero.

        The anchor gets the remainder of the sum over all rows. That sum is the sum of x for P, whose rows sum to 1, and
        0 for the scores' gradient, whose rows sum to 0.
        """
        x_TND = self._by_table(x_GQD)
        occurring_TWD = torch.bmm(self._by_table(sums_GQW).transpose(1, 2), x_TND).to(self.table.dtype)
        rows, anchor, num_rows = self.edges.rows, self.edges.anchor, self.table.shape[-2]
        # The rows that occur and the adjacent anchor are contiguous; all others get zeros.
        parts = [occurring_TWD]
        if anchor is not None:
            left_T1D = -occurring_TWD.sum(1, keepdim=True)
            if weights_sum_to_one:
                left_T1D += x_TND.sum(1, keepdim=True, dtype=self.table.dtype)
            parts = [left_T1D, occurring_TWD] if anchor == 0 else [occurring_TWD, left_T1D]
        before = min(rows.start, rows.start if anchor is None else anchor)
        after = num_rows - max(rows.stop, 0 if anchor is None else anchor + 1)
        zeros_TRD = occurring_TWD.new_zeros(occurring_TWD.shape[0], max(before, after), x_GQD.shape[-1])
        parts = [zeros_TRD[:, :before], *parts, zeros_TRD[:, :after]]
        return torch.cat(parts, dim=1).view_as(self.table)

    def _by_table(self, x_GQY: Tensor) -> Tensor:
        """[G, Q, Y] as one matrix for each table, [T, N, Y]; Y may be 0."""
        num_products, num_queries, columns = x_GQY.shape
        num_tables = self.rows_TWD.shape[0]
        return x_GQY.view(num_tables, num_products * num_queries // num_tables, columns)

    def _columns(self, block: Edges) -> slice:
        """The columns of a block's rows among all rows that occur."""
        return slice(block.rows.start - self.edges.rows.start, block.rows.stop - self.edges.rows.start)


class Bias:
    """The bias of a part, for any block of its queries."""

    def __init__(self, bias_HR: Tensor, edges: Labels | None, first_query: int, *, learned: bool) -> None:
        self.bias_HR, self.edges, self.first_query, self.learned = bias_HR, edges, first_query, learned

    def of_pairs(self, block: Block) -> Tensor:
        """The bias of each pair, broadcastable to [H, B, Q, K]."""
        start, stop, num_keys = block
        if self.edges is None:
            return bias_of_pairs(self.bias_HR, stop - start, num_keys, self.first_query + start)[:, None]
        of_pairs = self.bias_HR[:, self.edges.queries(*block).labels]
        return of_pairs if of_pairs.dim() == 4 else of_pairs[:, None]

    def gradient(self, dscores_GQK: Tensor, block: Block) -> Tensor:
        """The sum of the scores' gradients over all pairs that share a row, [H, R]."""
        heads, num_rows = self.bias_HR.shape
        if self.edges is None:
            dscores_HBQK = dscores_GQK.view(heads, -1, *dscores_GQK.shape[1:])
            return sum_by_row(dscores_HBQK.sum(1, dtype=self.bias_HR.dtype), num_rows, self.first_query + block[0])
        by_row_GQR = self.edges.queries(*block).sum_weights(dscores_GQK)
        return by_row_GQR.view(heads, -1, num_rows).sum(1, dtype=self.bias_HR.dtype)
