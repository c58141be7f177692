"""Checked here: `Distances` and `Labels` against their definition by explicit Python loops over every (query, key),
exactly (the numbers are small integers), for shapes that Hypothesis chooses; that `add_to_scores` and `sum_weights`
are each other's adjoint; that nothing outside the scores is written and no score by two threads; blocks of queries
against the whole; `Labels`' sum by products against its scatter.
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
    """Some queries and keys, and the definition of the row between them."""

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

    def sees(self, i, j):
        return not self.causal or j <= self.first_query + i


PAIRS = st.builds(
    Pairs, st.integers(1, 9), st.integers(1, 9), st.integers(0, 12), st.integers(0, 11), causal=st.booleans()
)
EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, database=None)
# What chance meets seldom: one pair; everything clipped; wider than K + 1 columns; all queries far behind all keys.
CORNERS = [
    Pairs(1, 1, 0, 0, False),
    Pairs(1, 1, 0, 3, True),
    Pairs(9, 9, 0, 0, False),
    Pairs(9, 9, 0, 1, True),
    Pairs(9, 2, 0, 11, False),
    Pairs(9, 1, 4, 11, False),
    Pairs(2, 3, 12, 2, False),
    Pairs(2, 3, 12, 2, True),
    Pairs(5, 9, 0, 8, False),
    Pairs(5, 9, 4, 8, False),
]


def corners(test):
    for pairs in CORNERS:
        test = example(pairs)(test)
    return test


def integers(*shape):
    """Numbers whose sums float64 holds exactly, none of them 0."""
    return (torch.randint(1, 1000, shape) * (torch.randint(2, shape) * 2 - 1)).double()


def filled_buffer(num_products, num_queries, num_keys):
    scores = scores_buffer(num_products, num_queries, num_keys, like=torch.empty(0, dtype=torch.float64))
    return scores.copy_(integers(*scores.shape))


def margins(scores):
    """Everything in the storage that is not a score."""
    whole = torch.empty(0, dtype=scores.dtype).set_(scores.untyped_storage())
    start = scores.storage_offset()
    return torch.cat([whole[:start], whole[start + scores.numel() :]])


def sums_by_loops(weights, num_rows, row, sees=lambda i, j: True):
    by_row = torch.zeros(*weights.shape[:2], num_rows, dtype=torch.float64)
    for i in range(weights.shape[1]):
        for j in range(weights.shape[2]):
            if sees(i, j):
                by_row[:, i, row(i, j)] += weights[:, i, j]
    return by_row


def added_by_loops(by_row, num_keys, row):
    return torch.stack(
        [torch.stack([by_row[:, i, row(i, j)] for j in range(num_keys)], dim=-1) for i in range(by_row.shape[1])],
        dim=1,
    )


def relative_to_anchor(all_rows, edges):
    """What the products are: of the rows that occur, less that of the anchor."""
    by_row = all_rows[..., edges.rows]
    return by_row if edges.anchor is None else by_row - all_rows[..., edges.anchor, None]


# Distances


@EXAMPLES
@corners
@given(PAIRS)
def test_every_pair_has_a_row_that_occurs_or_is_the_anchor(pairs):
    edges = pairs.distances()
    occurring = {pairs.row(i, j) for i in range(pairs.num_queries) for j in range(pairs.num_keys) if pairs.sees(i, j)}
    columns = set(range(pairs.num_rows)[edges.rows])
    assert occurring <= columns | {edges.anchor}
    assert edges.anchor not in columns
    if pairs.causal:
        assert all(row <= pairs.clip_distance for row in columns)


@EXAMPLES
@corners
@given(PAIRS)
def test_scores_get_their_rows_and_nothing_else_is_written(pairs):
    edges = pairs.distances()
    scores = filled_buffer(2, pairs.num_queries, pairs.num_keys)
    before = scores.clone()
    all_rows = integers(2, pairs.num_queries, pairs.num_rows)
    edges.add_to_scores(scores, relative_to_anchor(all_rows, edges))
    expected = added_by_loops(all_rows, pairs.num_keys, pairs.row)
    if edges.anchor is not None:
        expected -= all_rows[..., edges.anchor, None]
    for i in range(pairs.num_queries):
        for j in range(pairs.num_keys):
            if not pairs.sees(i, j):  # rows right of the diagonal are not read
                expected[:, i, j] = 0
    assert torch.equal(scores - before, expected)
    assert (margins(scores) == 0).all() and margins(scores).numel() > 0


@EXAMPLES
@corners
@given(PAIRS)
def test_sums_are_over_the_keys_that_share_a_row(pairs):
    edges = pairs.distances()
    weights = filled_buffer(2, pairs.num_queries, pairs.num_keys)
    before = weights.clone()
    sums = edges.sum_weights(weights)
    assert torch.equal(sums, sums_by_loops(weights, pairs.num_rows, pairs.row, pairs.sees)[..., edges.rows])
    assert torch.equal(weights, before)


@EXAMPLES
@corners
@given(PAIRS)
def test_adding_and_summing_are_adjoint(pairs):
    # <add(r), P> = <r, sum(P)> for every r and P.
    edges = pairs.distances()
    weights = filled_buffer(3, pairs.num_queries, pairs.num_keys)
    by_row = integers(*weights.shape[:2], edges.rows.stop - edges.rows.start)
    scores = scores_buffer(*weights.shape, like=weights).zero_()
    edges.add_to_scores(scores, by_row)
    assert torch.equal((scores * weights).sum(), (by_row * edges.sum_weights(weights)).sum())


def check_block(pairs, start, stop):
    """A block of queries against the loops: what it adds and sums, in the columns it has among those of the whole."""
    whole = pairs.distances()
    num_keys = min(pairs.num_keys, pairs.first_query + stop) if pairs.causal else pairs.num_keys
    block = whole.queries(start, stop, num_keys)
    assert block.anchor == whole.anchor

    def row(i, j):
        return pairs.row(start + i, j)

    def sees(i, j):
        return pairs.sees(start + i, j)

    scores = filled_buffer(2, stop - start, num_keys)
    sums = block.sum_weights(scores)
    occurring = {row(i, j) for i in range(stop - start) for j in range(num_keys) if sees(i, j)}
    columns = range(pairs.num_rows)[block.rows]
    assert occurring <= {*columns, block.anchor}
    assert {*columns} <= {*range(pairs.num_rows)[whole.rows]}
    assert torch.equal(sums, sums_by_loops(scores, pairs.num_rows, row, sees)[..., block.rows])

    before = scores.clone()
    all_rows = integers(2, stop - start, pairs.num_rows)
    block.add_to_scores(scores, relative_to_anchor(all_rows, block))
    unlike = scores - before - added_by_loops(all_rows, num_keys, row)
    for i in range(stop - start):  # a number that all keys of a query share is free
        seen = [j for j in range(num_keys) if sees(i, j)]
        assert not seen or (unlike[:, i, seen] == unlike[:, i, seen[:1]]).all()
    assert (margins(scores) == 0).all()


@EXAMPLES
@given(PAIRS, st.integers(0, 8), st.integers(1, 9))
def test_a_block_of_queries_has_its_part_of_the_whole(pairs, start, size):
    start = min(start, pairs.num_queries - 1)
    check_block(pairs, start, min(start + size, pairs.num_queries))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("clip_distance", [0, 1, 2, 4, 40])
def test_all_blocks_of_a_sentence(clip_distance, causal):
    pairs = Pairs(12, 12, 0, clip_distance, causal)
    for size in (1, 3, 5, 12):
        for start in range(0, 12, size):
            check_block(pairs, start, min(start + size, 12))


@pytest.mark.parametrize("clip_distance", [1, 2, 3])
def test_a_block_of_queries_behind_all_keys_still_sums_its_clipped_row(clip_distance):
    # 5 keys and 20 queries: the last queries have every key k or more to the left, in row 0, which is not the anchor.
    check_block(Pairs(20, 5, 0, clip_distance, False), 15, 20)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("clip_distance", [0, 16, 300])
@pytest.mark.parametrize(
    "num_queries, first_query, num_keys",
    [(63, 0, 63), (64, 0, 64), (65, 0, 65), (66, 0, 66), (200, 0, 200), (70, 130, 200), (129, 3, 50), (200, 0, 7)],
)
def test_many_queries_do_what_labels_do(num_queries, first_query, num_keys, clip_distance, causal):
    # Pairs beyond the clip distance are handled some dozens of queries at a time; Labels are checked by loops below.
    pairs = Pairs(num_queries, num_keys, first_query, clip_distance, causal)
    edges = pairs.distances()
    rows = relative_rows(num_queries, num_keys, clip_distance, first_query=first_query)
    sees = torch.arange(num_keys) <= first_query + torch.arange(num_queries)[:, None] if causal else rows >= 0
    labels = Labels(rows, pairs.num_rows)
    weights = filled_buffer(2, num_queries, num_keys)
    expected = labels.sum_weights(weights * sees)[..., edges.rows]
    assert torch.equal(edges.sum_weights(weights), expected)
    all_rows = integers(2, num_queries, pairs.num_rows)
    one, two = (scores_buffer(2, num_queries, num_keys, like=weights).zero_() for _ in range(2))
    labels.add_to_scores(one, all_rows if edges.anchor is None else all_rows - all_rows[..., edges.anchor, None])
    edges.add_to_scores(two, relative_to_anchor(all_rows, edges))
    assert torch.equal(two, one * sees)
    assert (margins(two) == 0).all()


class WrittenTwice(TorchDispatchMode):
    """Counts the cells that one in-place operation writes more than once."""

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


@EXAMPLES
@corners
@given(PAIRS)
def test_no_score_is_written_twice_by_one_operation(pairs):
    # Threads run through an operation's numbers in no fixed order. Where two of them read, add to and write the same
    # cell, one of the additions can be lost, even where the other adds 0.
    edges = pairs.distances()
    scores = filled_buffer(3, pairs.num_queries, pairs.num_keys)
    by_row = integers(*scores.shape[:2], edges.rows.stop - edges.rows.start)
    edges.add_to_scores(scores, by_row)  # the 0/1 matrices are cached from now on
    with WrittenTwice() as twice:
        edges.add_to_scores(scores, by_row)
    assert twice.cells == 0
    assert twice.operations > 0 or by_row.numel() == 0


def test_float32_and_bfloat16_have_buffers_and_triangles_of_their_own():
    # The 0/1 matrices are cached: by shape, but also by type.
    pairs = Pairs(7, 7, 0, 2, False)
    edges = pairs.distances()
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        weights = scores_buffer(1, 7, 7, like=torch.empty(0, dtype=dtype)).fill_(1)
        sums = edges.sum_weights(weights)
        assert sums.dtype == dtype
        expected = sums_by_loops(weights.double(), 5, pairs.row)[..., edges.rows]
        assert torch.equal(sums.double(), expected)


# Labels


LABELS = st.tuples(
    st.integers(1, 3),  # heads
    st.integers(1, 3),  # sentences
    st.integers(1, 5),  # queries
    st.integers(1, 6),  # keys
    st.integers(1, 6),  # rows
    st.booleans(),  # a matrix for each sentence
)


def make_labels(heads, sentences, num_queries, num_keys, num_rows, by_sentence):
    """The labels, and the same by product of G: heads first."""
    shape = (sentences, num_queries, num_keys) if by_sentence else (num_queries, num_keys)
    labels = torch.randint(num_rows, shape)
    by_product = labels.expand(heads, sentences, num_queries, num_keys).flatten(0, 1)
    return labels, by_product.tolist()


@EXAMPLES
@given(LABELS)
def test_labels_add_and_sum_as_the_loops_say(sizes):
    heads, sentences, num_queries, num_keys, num_rows, _ = sizes
    labels, of_product = make_labels(*sizes)
    edges = Labels(labels, num_rows)
    scores = filled_buffer(heads * sentences, num_queries, num_keys)
    by_row = integers(heads * sentences, num_queries, num_rows)
    expected_scores, expected_sums = scores.clone(), torch.zeros_like(by_row)
    for g, of_query in enumerate(of_product):
        for i, of_key in enumerate(of_query):
            for j, label in enumerate(of_key):
                expected_sums[g, i, label] += scores[g, i, j]
                expected_scores[g, i, j] += by_row[g, i, label]
    assert torch.equal(edges.sum_weights(scores), expected_sums)
    assert torch.equal(edges._sum_by_matmul(scores), expected_sums)  # what a GPU does
    edges.add_to_scores(scores, by_row)
    assert torch.equal(scores, expected_scores)
    assert (margins(scores) == 0).all()
    assert edges.anchor is None and edges.rows == slice(0, num_rows)


@EXAMPLES
@given(LABELS, st.integers(0, 4), st.integers(1, 5), st.integers(0, 2))
def test_labels_of_a_block_and_of_some_sentences(sizes, start, size, sentence):
    heads, sentences, num_queries, num_keys, num_rows, _ = sizes
    labels, _ = make_labels(*sizes)
    edges = Labels(labels, num_rows)
    start, sentence = min(start, num_queries - 1), min(sentence, sentences - 1)
    stop = min(start + size, num_queries)
    fewer = max(1, num_keys - 1)
    weights = torch.zeros(heads, sentences, num_queries, num_keys, dtype=torch.float64)
    weights[:, sentence, start:stop, :fewer] = integers(heads, stop - start, fewer)
    whole = edges.sum_weights(weights.flatten(0, 1)).view(heads, sentences, num_queries, num_rows)
    part = edges.sentences(sentence, sentence + 1).queries(start, stop, fewer)
    of_part = part.sum_weights(weights[:, sentence, start:stop, :fewer].contiguous())
    assert torch.equal(of_part, whole[:, sentence, start:stop])


@pytest.mark.parametrize("first_query, clip_distance", [(0, 0), (0, 2), (0, 9), (4, 1)])
def test_labels_that_are_clipped_distances_do_what_distances_do(first_query, clip_distance):
    pairs = Pairs(6, 8, first_query, clip_distance, False)
    distances = pairs.distances()
    labels = Labels(torch.tensor([[pairs.row(i, j) for j in range(8)] for i in range(6)]), pairs.num_rows)
    weights = filled_buffer(2, 6, 8)
    assert torch.equal(labels.sum_weights(weights)[..., distances.rows], distances.sum_weights(weights))
    all_rows = integers(2, 6, pairs.num_rows)
    one, two = (scores_buffer(2, 6, 8, like=weights).zero_() for _ in range(2))
    labels.add_to_scores(one, all_rows)
    distances.add_to_scores(two, relative_to_anchor(all_rows, distances))
    unlike = one - two
    assert torch.equal(unlike, unlike[..., :1].expand_as(unlike))
