"""The arguments of attention, which all its implementations share."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows, X width of a key table.

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

ChangeScores = Callable[[Tensor, Tensor], Tensor]
_OF_POSITIONS = (
    "key_table", "value_table", "bias_table", "distance_queries", "key_bias", "labels", "change_scores", "sink",
)  # fmt: skip


class AttentionInputs(NamedTuple):
    """What attention is computed from."""

    q: Tensor  # x W^Q, unscaled, [B, H, Q, D]; with k of another width than v, by whose D scores are scaled, 1/sqrt(D)
    k: Tensor  # x W^K, [B, H, K, D]
    v: Tensor  # x W^V, [B, H, K, D]; none of the three is empty
    # w^K and w^V: 2k+1 rows, [R, D] shared by heads or [H, R, D] per head; the two may have different k.
    key_table: Tensor | None = None
    value_table: Tensor | None = None
    bias_table: Tensor | None = None  # b for each head and row, [H, R], added to the scaled score; of any k
    # [B, H, Q, X]: they multiply the rows of `key_table`, of width X, in place of the queries, after the scale.
    distance_queries: Tensor | None = None
    key_bias: Tensor | None = None  # [B, H, K], added to the scaled score; beside a sink less that of the own key
    sink: Tensor | None = None  # [H], a logit in the denominator of the softmax alone: weights sum to less than 1
    # int64 [Q, K] or [B, Q, K]: the table row of each pair, in place of clip(j - i, k) + k (a dependency tree, a table
    # schema; the tables may then have any number of rows); or [K]: the distance of each key from all queries, which are
    # pieces of one position in decoding. Computed by `composed`.
    labels: Tensor | None = None
    mask: Tensor | None = None  # bool, broadcastable to [B, H, Q, K]; False hides the key from the query
    causal: bool = False  # position p sees only keys 0..p; table rows right of the diagonal are not even read
    first_query: int = 0  # its position among the keys, e.g. the length of a cache
    window: int | None = None  # position p sees only keys p - window + 1 .. p + window - 1
    # Called with the scaled scores [B, H, Q, K], all terms included, and with which keys are visible (bool,
    # broadcastable to them), returns other scores; computed by `composed`.
    change_scores: ChangeScores | None = None
    # Of each head, if `bias_table` is slope (j - i) at distances j - i <= 0: causal attention may leave it unread.
    slopes: tuple[float, ...] | None = None
    change_adds: bool = False  # `change_scores` adds what depends on neither scores nor queries

    @property
    def scale(self) -> float:
        return float(self.v.shape[-1] ** -0.5)

    @property
    def positions(self) -> set[str]:
        """The names of the given arguments by which positions, or a sink, enter the scores and values."""
        return {name for name in _OF_POSITIONS if getattr(self, name) is not None}

    @property
    def only_causal(self) -> bool:
        """Whether each key is hidden from the queries before its own, and from no other."""
        whole = self.mask is None and self.window is None
        return self.causal and whole and self.first_query == 0 and self.q.shape[2] == self.k.shape[2]

    @property
    def farthest(self) -> int:
        """The largest distance between a query and a key that causality does not hide."""
        after = 0 if self.causal else self.k.shape[2] - 1 - self.first_query
        return max(self.first_query + self.q.shape[2] - 1, after)

    def check_shapes(self) -> None:
        """Raises ValueError for tables, biases, distance queries or labels that do not fit."""
        batch, heads, num_queries, width = self.q.shape
        pairs, of_values = (num_queries, self.k.shape[2]), self.v.shape[-1]
        of_keys = width if self.distance_queries is None else self.distance_queries.shape[-1]
        shapes: dict[str, list[tuple[int | str, ...]]] = {
            "key_table": [("R", of_keys), (heads, "R", of_keys)],
            "value_table": [("R", of_values), (heads, "R", of_values)],
            "bias_table": [(heads, "R")],
            "distance_queries": [(batch, heads, num_queries, of_keys)],
            "key_bias": [(batch, heads, pairs[1])],
            "sink": [(heads,)],
            "labels": [pairs, (batch, *pairs), pairs[1:]],
        }
        for name, valid in shapes.items():
            if (tensor := getattr(self, name)) is None:
                continue
            sizes = next((sizes for sizes in valid if len(sizes) == tensor.dim()), ())
            if not sizes or any(size not in ("R", n) for size, n in zip(sizes, tensor.shape, strict=True)):
                expected = " or ".join(f"[{', '.join(map(str, sizes))}]" for sizes in valid)
                raise ValueError(f"{name}: shape {list(tensor.shape)} is not {expected}")
            rows = tensor.shape[sizes.index("R")] if "R" in sizes else 1
            if self.labels is None and rows % 2 == 0:
                raise ValueError(f"{name}: {rows} rows are not 2k+1, one for each distance from -k to k")
        if self.distance_queries is not None and self.key_table is None:
            raise ValueError("distance_queries: there is no key_table, whose rows they multiply")
