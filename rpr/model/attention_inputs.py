"""The arguments of attention, which all its implementations share."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows, X width of a key table.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict, cast

from torch import Tensor

ChangeScores = Callable[[Tensor, Tensor], Tensor]


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `rpr.model.attention.attend` and the functions like it, as in `AttentionInputs`."""

    key_table: Tensor | None
    value_table: Tensor | None
    bias_table: Tensor | None
    distance_queries: Tensor | None
    key_bias: Tensor | None
    labels: Tensor | None
    mask: Tensor | None
    causal: bool
    first_query: int
    change_scores: ChangeScores | None


class AttentionInputs(NamedTuple):
    """What attention is computed from.

    Args:
        q, k, v: x W^Q [B, H, Q, D], x W^K and x W^V [B, H, K, D], unscaled; k and v of batch size 1 are broadcast.
        key_table, value_table: w^K and w^V: 2k+1 rows, [R, D] shared by heads or [H, R, D] per head; None: no such
            term. The two may have different k.
        bias_table: a bias b for each head and row, [H, R], added to the scaled score; of any k.
        distance_queries: [B, H, Q, X]; they multiply the rows of `key_table`, of width X, in place of the queries, and
            the products are added to the scaled score.
        key_bias: a bias for each key, [B, H, K], added to the scaled score of every query.
        labels: int64 [Q, K] or [B, Q, K]: the table row of each pair, in place of clip(j - i, k) + k (a dependency
            tree, a table schema; the tables may then have any number of rows); computed by `composed`.
        mask: bool, broadcastable to [B, H, Q, K]; False hides the key from the query.
        causal: the query at position p sees only keys 0..p; `attend` does not even read the table rows right of the
            diagonal.
        first_query: position of the first query among the keys, e.g. the length of a cache.
        change_scores: called with the scaled scores [B, H, Q, K], all terms included, and with which keys are visible
            (bool, broadcastable to them), returns other scores; computed by `composed`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_table: Tensor | None = None
    value_table: Tensor | None = None
    bias_table: Tensor | None = None
    distance_queries: Tensor | None = None
    key_bias: Tensor | None = None
    labels: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    first_query: int = 0
    change_scores: ChangeScores | None = None

    @property
    def dense_alone(self) -> bool:
        """Whether only `composed` and the references compute it."""
        return self.labels is not None or self.change_scores is not None

    @property
    def options(self) -> AttentionOptions:
        """The keyword arguments that differ from their defaults."""
        given = zip(self._fields[3:], self[3:], strict=True)
        return cast(AttentionOptions, {name: it for name, it in given if it is not self._field_defaults[name]})

    @property
    def plain(self) -> bool:
        """Without positions in the scores and values."""
        parts = (self.key_table, self.value_table, self.bias_table, self.key_bias, self.change_scores)
        return all(part is None for part in parts)

    def check_shapes(self) -> None:
        """Raises ValueError for tables, biases or labels of an invalid shape."""
        batch, heads, num_queries, width = self.q.shape
        num_keys = self.k.shape[2]
        of_keys = width
        if (queries := self.distance_queries) is not None:
            if self.key_table is None or queries.dim() != 4 or queries.shape[:3] != self.q.shape[:3]:
                raise ValueError(
                    f"distance_queries: shape {list(queries.shape)} is not {[batch, heads, num_queries]} and the "
                    "width of key_table"
                )
            of_keys = queries.shape[3]
        for name, table, wide in (("key_table", self.key_table, of_keys), ("value_table", self.value_table, width)):
            if table is None:
                continue
            if table.dim() not in (2, 3) or table.shape[-1] != wide or (table.dim() == 3 and table.shape[0] != heads):
                raise ValueError(
                    f"{name}: shape {list(table.shape)} is neither [R, {wide}] (shared by heads) nor "
                    f"[{heads}, R, {wide}]"
                )
            self._check_rows(name, table.shape[-2])
        if self.bias_table is not None:
            if self.bias_table.dim() != 2 or self.bias_table.shape[0] != heads:
                raise ValueError(f"bias_table: shape {list(self.bias_table.shape)} is not [{heads}, R]")
            self._check_rows("bias_table", self.bias_table.shape[1])
        if self.key_bias is not None and tuple(self.key_bias.shape) != (batch, heads, num_keys):
            raise ValueError(f"key_bias: shape {list(self.key_bias.shape)} is not {[batch, heads, num_keys]}")
        if (labels := self.labels) is not None:
            pairs = (num_queries, num_keys)
            if str(labels.dtype) != "torch.int64" or tuple(labels.shape) not in (pairs, (batch, *pairs)):
                raise ValueError(
                    f"labels: {labels.dtype} {list(labels.shape)} is not int64 {list(pairs)} or {[batch, *pairs]}"
                )

    def _check_rows(self, name: str, num_rows: int) -> None:
        if self.labels is None and num_rows % 2 == 0:
            raise ValueError(f"{name}: {num_rows} rows are not 2k+1, one for each distance from -k to k")
