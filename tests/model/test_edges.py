"""`Distances`, whole and in blocks of queries, against gathers and sums by the defined rows. Numbers are small
integers, so results are exact.
"""

from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rpr.model.edges import Distances, scores_buffer
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


# One pair; all distances clipped; more than K + 1 columns; all queries far behind all keys; and blocks of these.
CASES = [
    (Pairs(1, 1, 0, 0, False), 0, 1),
    (Pairs(1, 1, 0, 3, True), 0, 1),
    (Pairs(9, 9, 0, 0, False), 0, 9),
    (Pairs(9, 9, 0, 1, True), 0, 9),
    (Pairs(9, 9, 3, 2, True), 2, 5),
    (Pairs(9, 2, 0, 11, False), 0, 9),
    (Pairs(9, 1, 4, 11, False), 0, 9),
    (Pairs(2, 3, 12, 2, False), 0, 2),
    (Pairs(2, 3, 12, 2, True), 0, 2),
    (Pairs(5, 9, 0, 8, False), 0, 5),
    (Pairs(5, 9, 4, 8, False), 1, 4),
    (Pairs(9, 7, 1, 3, False), 4, 9),
    *[(Pairs(20, 5, 0, clip_distance, False), 15, 20) for clip_distance in (1, 2, 3)],  # behind all keys: only row 0
]
# Pairs beyond the clip distance are handled some dozens of queries at a time.
MANY = [(63, 63, 0), (64, 64, 0), (65, 65, 0), (200, 200, 0), (70, 200, 130), (129, 50, 3), (200, 7, 0)]
CASES += [
    (Pairs(*sizes, clip_distance, causal), 0, sizes[0])
    for sizes in MANY
    for clip_distance in (0, 16, 300)
    for causal in (False, True)
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


@pytest.mark.parametrize("pairs, start, stop", CASES, ids=str)
def test_distances_of_a_block_match_gathers(pairs, start, stop):
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

    rows, scores = rows.expand(2, -1, -1), filled_buffer(2, stop - start, num_keys)
    before, by_row = scores.clone(), integers(2, stop - start, whole.num_rows)
    if block.anchor is not None:
        by_row -= by_row[..., block.anchor, None].clone()
    sums = torch.zeros_like(by_row).scatter_add_(-1, rows, scores * visible)
    assert torch.equal(block.sum_weights(scores), sums[..., block.rows])
    assert torch.equal(scores, before)
    expected = by_row.gather(-1, rows)
    block.add_to_scores(scores, by_row[..., block.rows])
    assert torch.equal(scores - before, expected * visible)
    # If two threads add to the same cell, one of the additions can be lost.
    with WrittenTwice() as twice:  # the 0/1 matrices are cached by now
        block.add_to_scores(scores, by_row[..., block.rows])
    assert twice.cells == 0 and (twice.operations > 0 or not columns)
    assert margins_are_zero(scores)
