"""`Distances`, whole and in blocks of queries, against `Labels` of the defined rows, which tests/model/test_attention.py
proves with loops. Numbers are small integers, so results are exact.
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
    num_queries: int
    num_keys: int
    first_query: int
    clip_distance: int
    causal: bool

    def distances(self):
        num_rows = 2 * self.clip_distance + 1
        return Distances.between(self.num_queries, self.num_keys, self.first_query, num_rows, causal=self.causal)


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
    """Additions and sums of a block of queries."""
    whole, first = pairs.distances(), pairs.first_query + start
    num_keys = min(pairs.num_keys, pairs.first_query + stop) if pairs.causal else pairs.num_keys
    block = whole.queries(start, stop, num_keys)
    columns = range(whole.num_rows)[block.rows]
    rows = relative_rows(stop - start, num_keys, pairs.clip_distance, first_query=first)
    visible = torch.arange(num_keys) <= first + torch.arange(stop - start)[:, None] if pairs.causal else rows >= 0
    assert block.anchor == whole.anchor and block.anchor not in columns
    assert {*rows[visible].tolist()} <= {*columns, block.anchor}
    if pairs.causal:
        assert all(row <= pairs.clip_distance for row in columns)

    labels, scores = Labels(rows, whole.num_rows), filled_buffer(2, stop - start, num_keys)
    before, by_row = scores.clone(), integers(2, stop - start, whole.num_rows)
    if block.anchor is not None:
        by_row -= by_row[..., block.anchor, None].clone()
    assert torch.equal(block.sum_weights(scores), labels.sum_weights(scores * visible)[..., block.rows])
    assert torch.equal(scores, before)
    expected = torch.zeros_like(before)
    labels.add_to_scores(expected, by_row)
    block.add_to_scores(scores, by_row[..., block.rows])
    assert torch.equal(scores - before, expected * visible)
    # If two threads add to the same cell, one of the additions can be lost.
    with WrittenTwice() as twice:  # the 0/1 matrices are cached by now
        block.add_to_scores(scores, by_row[..., block.rows])
    assert twice.cells == 0 and (twice.operations > 0 or not columns)
    assert margins_are_zero(scores)


def corners(test):
    for corner in CORNERS:
        test = example(*corner)(test)
    return test


@EXAMPLES
@corners
@given(PAIRS, st.just(0) | st.integers(0, 8), st.just(9) | st.integers(1, 9))
def test_distances_of_a_block_match_labels(pairs, start, size):
    start = min(start, pairs.num_queries - 1)
    check_block(pairs, start, min(start + size, pairs.num_queries))


@pytest.mark.parametrize(
    "num_queries, first_query, num_keys",
    [(63, 0, 63), (64, 0, 64), (65, 0, 65), (200, 0, 200), (70, 130, 200), (129, 3, 50), (200, 0, 7)],
)
def test_distances_of_many_queries_match_labels(num_queries, first_query, num_keys):
    # Pairs beyond the clip distance are handled some dozens of queries at a time.
    for clip_distance, causal in [(0, False), (0, True), (16, False), (16, True), (300, False), (300, True)]:
        check_block(Pairs(num_queries, num_keys, first_query, clip_distance, causal), 0, num_queries)


def test_label_sums_by_matmul_equal_those_by_scatter():
    # A GPU uses the former; the latter is proven by the loops of test_attention.py.
    for labels in (torch.randint(6, (5, 7)), torch.randint(6, (2, 5, 7))):
        edges, scores = Labels(labels, 6), filled_buffer(6, 5, 7)
        assert torch.equal(edges._sum_by_matmul(scores), edges.sum_weights(scores))
