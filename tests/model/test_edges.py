"""`Distances` and `Labels`, whole and in blocks of queries, against Python loops over every (query, key). Numbers are
small integers, so results are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rpr.model.edges import Distances, Labels, scores_buffer
from rpr.model.vectors import relative_rows

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Pairs:
    """Queries and keys, and the definition of the table row of each pair."""

    num_queries: int
    num_keys: int
    first_query: int
    clip_distance: int
    causal: bool

    @property
    def num_rows(self):
        return 2 * self.clip_distance + 1

    def distances(self):
        return Distances.between(self.num_queries, self.num_keys, self.first_query, self.num_rows, causal=self.causal)

    def row(self, i, j):
        """clip(j - i, k) + k (Shaw et al. 2018, section 3.2), query i at its position."""
        return max(-self.clip_distance, min(self.clip_distance, j - self.first_query - i)) + self.clip_distance

    def is_visible(self, i, j):
        return not self.causal or j <= self.first_query + i


PAIRS = st.builds(
    Pairs, st.integers(1, 9), st.integers(1, 9), st.integers(0, 12), st.integers(0, 11), causal=st.booleans()
)
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
# Rarely generated: one pair; all distances clipped; more than K + 1 columns; all queries far behind all keys.
CORNERS = [
    (Pairs(1, 1, 0, 0, False), 0, 9),
    (Pairs(1, 1, 0, 3, True), 0, 9),
    (Pairs(9, 9, 0, 0, False), 0, 9),
    (Pairs(9, 9, 0, 1, True), 0, 9),
    (Pairs(9, 2, 0, 11, False), 0, 9),
    (Pairs(9, 1, 4, 11, False), 0, 9),
    (Pairs(2, 3, 12, 2, False), 0, 9),
    (Pairs(2, 3, 12, 2, True), 0, 9),
    (Pairs(5, 9, 0, 8, False), 0, 9),
    (Pairs(5, 9, 4, 8, False), 0, 9),
    *[(Pairs(20, 5, 0, clip_distance, False), 15, 5) for clip_distance in (1, 2, 3)],  # behind all keys: only row 0
]


def integers(*shape):
    """Non-zero numbers whose sums are exact in float64."""
    return (torch.randint(1, 1000, shape) * (torch.randint(2, shape) * 2 - 1)).double()


def filled_buffer(num_products, num_queries, num_keys):
    scores = scores_buffer(num_products, num_queries, num_keys, like=torch.empty(0, dtype=torch.float64))
    return scores.copy_(integers(*scores.shape))


def margins_are_zero(scores):
    """Everything in the storage that is not a score."""
    whole = torch.empty(0, dtype=scores.dtype).set_(scores.untyped_storage())
    start = scores.storage_offset()
    rest = torch.cat([whole[:start], whole[start + scores.numel() :]])
    return rest.numel() > 0 and not rest.any()


class WrittenTwice(TorchDispatchMode):
    """Counts the cells that an in-place operation writes more than once."""

    def __init__(self):
        super().__init__()
        self.operations = self.cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            view = args[0]
            places = torch.tensor([view.storage_offset()])
            for size, stride in zip(view.shape, view.stride(), strict=True):
                places = places[..., None] + torch.arange(size) * stride
            self.operations += 1
            self.cells += places.numel() - places.unique().numel()
        return func(*args, **(kwargs or {}))


def check_block(pairs, start, stop):
    """Additions and sums of a block of queries against loops."""
    whole = pairs.distances()
    num_keys = min(pairs.num_keys, pairs.first_query + stop) if pairs.causal else pairs.num_keys
    block = whole.queries(start, stop, num_keys)
    columns = range(pairs.num_rows)[block.rows]
    cells = [(i, j) for i in range(stop - start) for j in range(num_keys) if pairs.is_visible(start + i, j)]
    rows = {(i, j): pairs.row(start + i, j) for i, j in cells}
    assert block.anchor == whole.anchor and block.anchor not in columns
    assert set(rows.values()) <= {*columns, block.anchor}
    assert {*columns} <= {*range(pairs.num_rows)[whole.rows]}
    if pairs.causal:
        assert all(row <= pairs.clip_distance for row in columns)

    scores = filled_buffer(2, stop - start, num_keys)
    before, by_row = scores.clone(), integers(2, stop - start, pairs.num_rows)
    expected, sums = torch.zeros_like(scores), torch.zeros_like(by_row)
    anchor = 0 if block.anchor is None else by_row[..., block.anchor, None]
    for (i, j), row in rows.items():
        sums[:, i, row] += scores[:, i, j]
        expected[:, i, j] = (by_row - anchor)[:, i, row]
    assert torch.equal(block.sum_weights(scores), sums[..., block.rows])
    assert torch.equal(scores, before)
    block.add_to_scores(scores, (by_row - anchor)[..., block.rows])
    assert torch.equal(scores - before, expected)
    # If two threads add to the same cell, one of the additions can be lost.
    with WrittenTwice() as twice:  # the 0/1 matrices are cached by now
        block.add_to_scores(scores, (by_row - anchor)[..., block.rows])
    assert twice.cells == 0 and (twice.operations > 0 or not columns)
    assert margins_are_zero(scores)


def corners(test):
    for corner in CORNERS:
        test = example(*corner)(test)
    return test


@EXAMPLES
@corners
@given(PAIRS, st.just(0) | st.integers(0, 8), st.just(9) | st.integers(1, 9))
def test_distances_of_a_block_match_loops(pairs, start, size):
    start = min(start, pairs.num_queries - 1)
    check_block(pairs, start, min(start + size, pairs.num_queries))


@pytest.mark.parametrize(
    "num_queries, first_query, num_keys",
    [(63, 0, 63), (64, 0, 64), (65, 0, 65), (200, 0, 200), (70, 130, 200), (129, 3, 50), (200, 0, 7)],
)
def test_distances_of_many_queries_match_labels(num_queries, first_query, num_keys):
    # Pairs beyond the clip distance are handled some dozens of queries at a time.
    for clip_distance, causal in [(0, False), (0, True), (16, False), (16, True), (300, False), (300, True)]:
        pairs = Pairs(num_queries, num_keys, first_query, clip_distance, causal)
        edges = pairs.distances()
        rows = relative_rows(num_queries, num_keys, clip_distance, first_query=first_query)
        visible = torch.arange(num_keys) <= first_query + torch.arange(num_queries)[:, None] if causal else rows >= 0
        labels = Labels(rows, pairs.num_rows)
        weights = filled_buffer(2, num_queries, num_keys)
        assert torch.equal(edges.sum_weights(weights), labels.sum_weights(weights * visible)[..., edges.rows])
        by_row = integers(2, num_queries, pairs.num_rows)
        if edges.anchor is not None:
            by_row -= by_row[..., edges.anchor, None].clone()
        one, two = (scores_buffer(2, num_queries, num_keys, like=weights).zero_() for _ in range(2))
        labels.add_to_scores(one, by_row)
        edges.add_to_scores(two, by_row[..., edges.rows])
        assert torch.equal(two, one * visible)
        assert margins_are_zero(two)


def test_cached_matrices_depend_on_the_dtype():
    pairs = Pairs(7, 7, 0, 2, False)
    edges = pairs.distances()
    counts = torch.zeros(1, 7, 5, dtype=torch.float64)
    for i in range(7):
        for j in range(7):
            counts[0, i, pairs.row(i, j)] += 1
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        sums = edges.sum_weights(scores_buffer(1, 7, 7, like=torch.empty(0, dtype=dtype)).fill_(1))
        assert sums.dtype == dtype
        assert torch.equal(sums.double(), counts[..., edges.rows])


@EXAMPLES
@given(
    heads=st.integers(1, 3), sentences=st.integers(1, 3), num_queries=st.integers(1, 5), num_keys=st.integers(1, 6),
    num_rows=st.integers(1, 6), by_sentence=st.booleans(), start=st.integers(0, 4), size=st.integers(1, 5),
    sentence=st.integers(0, 2),
)  # fmt: skip
def test_labels_match_loops_whole_and_in_parts(
    heads, sentences, num_queries, num_keys, num_rows, by_sentence, start, size, sentence
):
    labels = torch.randint(num_rows, ([sentences] if by_sentence else []) + [num_queries, num_keys])
    edges = Labels(labels, num_rows)
    scores = filled_buffer(heads * sentences, num_queries, num_keys)
    by_row = integers(heads * sentences, num_queries, num_rows)
    expected_scores, expected_sums = scores.clone(), torch.zeros_like(by_row)
    of_product = labels.expand(heads, sentences, num_queries, num_keys).flatten(0, 1)  # heads first
    for g, of_query in enumerate(of_product.tolist()):
        for i, of_key in enumerate(of_query):
            for j, label in enumerate(of_key):
                expected_sums[g, i, label] += scores[g, i, j]
                expected_scores[g, i, j] += by_row[g, i, label]
    assert torch.equal(edges.sum_weights(scores), expected_sums)
    assert torch.equal(edges._sum_by_matmul(scores), expected_sums)  # used on a GPU
    assert edges.anchor is None and edges.rows == slice(0, num_rows)

    # Only some queries of one sentence and all keys but the last have a weight.
    start, sentence, fewer = min(start, num_queries - 1), min(sentence, sentences - 1), max(1, num_keys - 1)
    part = edges.sentences(sentence, sentence + 1).queries(start, min(start + size, num_queries), fewer)
    of_part = scores.view(heads, sentences, num_queries, num_keys)[:, sentence, start : start + size, :fewer]
    only = torch.zeros(heads, sentences, num_queries, num_keys, dtype=torch.float64)
    only[:, sentence, start : start + size, :fewer] = of_part
    whole = edges.sum_weights(only.flatten(0, 1)).view(heads, sentences, num_queries, num_rows)
    assert torch.equal(part.sum_weights(of_part.contiguous()), whole[:, sentence, start : start + size])

    edges.add_to_scores(scores, by_row)
    assert torch.equal(scores, expected_scores)
    assert margins_are_zero(scores)
