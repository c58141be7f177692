"""Checked here: `BlockwiseAttention` in parts (of heads, of sentences) and in blocks of queries against `reference`,
which tests/model/test_attention.py checks against loops, and against itself in one piece; the gradient of the clipped
row that has no column (the anchor); that two runs give the same bits; `SplitHeads` against torch's own chunk; the
largest tensor and the peak of memory against those of `dense`.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rpr.bench.benchmark import peak_bytes
from rpr.model import attention, blockwise_attention
from rpr.model.attention import attend, composed, reference, split_heads
from rpr.model.blockwise_attention import BlockwiseAttention, Layout, SplitHeads
from rpr.model.edges import Distances, Labels

D_HEAD, HEADS, BATCH = 4, 3, 5


pytestmark = pytest.mark.usefixtures("one_thread")


def by_blocks(
    q,
    k,
    v,
    *,
    key_table=None,
    value_table=None,
    labels=None,
    mask=None,
    causal=False,
    first_query=0,
    queries_per_block=None,
):
    """What `attend` does, with blocks of any size."""

    def edges(table):
        if table is None:
            return None
        if labels is not None:
            return Labels(labels, table.shape[-2])
        return Distances.between(q.shape[2], k.shape[2], first_query, table.shape[-2], causal=causal)

    layout = Layout(edges(key_table), edges(value_table), None, mask, causal, first_query, queries_per_block)
    return BlockwiseAttention.apply(q, k, v, key_table, value_table, None, layout)


def gradients(form, inputs, cotangent, **arguments):
    """z, and the gradients of q, k, v and the tables that are there."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    q, k, v, key_table, value_table = leaves
    z = form(q, k, v, key_table=key_table, value_table=value_table, **arguments)
    return z.detach(), *torch.autograd.grad(z, [x for x in leaves if x is not None], cotangent)


# (queries, position of the first, keys), k of keys and of values, what is hidden.
CASES = {
    "whole": ((13, 0, 13), (2, 3), {}),
    "k_0": ((7, 0, 7), (0, 0), {}),
    "unclipped": ((7, 0, 7), (6, 9), {}),
    "only_the_left_is_clipped": ((4, 5, 9), (4, 6), {}),
    "padding": ((9, 0, 9), (1, 4), {"mask": (BATCH, 1, 1, 9)}),
    "mask_by_sentence": ((8, 0, 8), (2, 2), {"mask": (BATCH, 1, 8, 8)}),
    "mask_by_head": ((8, 0, 8), (2, 0), {"mask": (1, HEADS, 8, 8)}),
    "mask_by_both": ((8, 0, 8), (2, 1), {"mask": (BATCH, HEADS, 8, 8)}),
    "mask_by_query": ((8, 0, 8), (3, 1), {"mask": (1, 1, 8, 8)}),
    "causal": ((13, 0, 13), (3, 2), {"causal": True}),
    "causal_k_0": ((7, 0, 7), (0, 1), {"causal": True}),
    "causal_unclipped": ((7, 0, 7), (9, 6), {"causal": True}),
    "causal_mask": ((9, 0, 9), (1, 5), {"causal": True, "mask": (BATCH, HEADS, 9, 9)}),
    "cache": ((5, 6, 11), (2, 4), {"causal": True, "mask": (BATCH, 1, 1, 11)}),
    "keys_go_on": ((7, 2, 15), (3, 1), {"causal": True}),
    "keys_go_on_seen": ((7, 2, 15), (1, 3), {}),
    "labels": ((7, 0, 7), None, {"labels": (7, 7)}),
    "labels_by_sentence": ((7, 0, 9), None, {"labels": (BATCH, 7, 9), "mask": (BATCH, 1, 1, 9)}),
    "labels_causal": ((8, 0, 8), None, {"labels": (BATCH, 8, 8), "causal": True}),
}
CASE = pytest.mark.parametrize("case", CASES)
LAYOUTS = pytest.mark.parametrize("per_head", [True, False], ids=["per_head", "shared"])


def make_case(name, per_head=True, dtype=torch.float64):
    (num_queries, first_query, num_keys), clip_distances, hiding = CASES[name]
    generator = torch.Generator().manual_seed(len(name))

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    arguments = {"first_query": first_query, **hiding}
    if "mask" in hiding:
        arguments["mask"] = torch.rand(hiding["mask"], generator=generator) < 0.5
        arguments["mask"][..., 0] = True  # every query sees something
    rows = [5, 4]
    if clip_distances is not None:
        rows = [2 * clip_distance + 1 for clip_distance in clip_distances]
    else:
        arguments["labels"] = torch.randint(4, hiding["labels"], generator=generator)
    tables = [randn(HEADS, r, D_HEAD) if per_head else randn(r, D_HEAD) for r in rows]
    q, k, v = (randn(BATCH, HEADS, n, D_HEAD) for n in (num_queries, num_keys, num_keys))
    return [q, k, v, *tables], arguments


def assert_all_close(actual, expected, tolerance=1e-12):
    for name, mine, right in zip(("z", "q", "k", "v", "key_table", "value_table"), actual, expected, strict=True):
        torch.testing.assert_close(
            mine,
            right,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text: f"{name}: {text}",  # noqa: B023
        )


# Parts and blocks


@CASE
@pytest.mark.parametrize("queries_per_block, per_head", [(None, True), (1, False), (3, True), (100, False)])
def test_blocks_of_any_size_equal_the_reference_forward_and_backward(case, queries_per_block, per_head):
    inputs, arguments = make_case(case, per_head)
    cotangent = torch.randn_like(inputs[0])
    expected = gradients(reference, inputs, cotangent, **arguments)
    actual = gradients(by_blocks, inputs, cotangent, queries_per_block=queries_per_block, **arguments)
    assert_all_close(actual, expected)


@pytest.mark.parametrize("case", ["whole", "causal", "labels_by_sentence"])
@pytest.mark.parametrize("queries_per_block", [None, 3])
@pytest.mark.parametrize("absent", [(3,), (4,), (3, 4)], ids=["values", "keys", "neither"])
def test_blocks_without_a_table_equal_the_reference(case, queries_per_block, absent):
    inputs, arguments = make_case(case)
    inputs = [None if index in absent else x for index, x in enumerate(inputs)]
    cotangent = torch.randn_like(inputs[0])
    expected = gradients(reference, inputs, cotangent, **arguments)
    actual = gradients(by_blocks, inputs, cotangent, queries_per_block=queries_per_block, **arguments)
    for mine, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


# With 5 sentences of 3 heads: parts of one head of one sentence; of two sentences (the last has one); of three; of all
# sentences of one head; and of two heads (then of one).
NUM_PARTS = {1: 15, 2: 9, 3: 6, 5: 3, 10: 2, 15: 1}


def bytes_of(affordable, num_queries, num_keys, queries_per_block, width=D_HEAD, element_size=8):
    """PART_BYTES for so many heads of sentences at once: q of each, or the weights of a block if those are more."""
    scores = min(num_queries, queries_per_block or num_queries) * num_keys
    return affordable * max(num_queries * width, scores) * element_size


@CASE
@pytest.mark.parametrize(
    "affordable, queries_per_block, per_head",
    [(1, None, True), (2, 3, False), (3, None, False), (5, 3, True), (10, None, True)],
)
def test_parts_give_what_one_piece_gives(monkeypatch, case, affordable, queries_per_block, per_head):
    inputs, arguments = make_case(case, per_head)
    cotangent = torch.randn_like(inputs[0])
    form = partial(by_blocks, queries_per_block=queries_per_block, **arguments)
    whole = gradients(form, inputs, cotangent)
    num_queries, num_keys = inputs[0].shape[2], inputs[1].shape[2]
    part_bytes = bytes_of(affordable, num_queries, num_keys, queries_per_block)
    monkeypatch.setattr(blockwise_attention, "PART_BYTES", part_bytes)
    made = []
    forward = blockwise_attention._forward
    monkeypatch.setattr(blockwise_attention, "_forward", lambda q, *rest: made.append(q.shape) or forward(q, *rest))
    assert_all_close(gradients(form, inputs, cotangent), whole)
    assert len(made) == NUM_PARTS[affordable]


@pytest.mark.parametrize("part_bytes", [1, 300, 1000, 5000, 10**9])
@pytest.mark.parametrize("batch, heads", [(1, 1), (1, 8), (7, 1), (4, 6), (9, 4)])
def test_every_head_of_every_sentence_is_in_one_part_that_is_small(monkeypatch, part_bytes, batch, heads):
    monkeypatch.setattr(blockwise_attention, "PART_BYTES", part_bytes)
    made = []
    forward = blockwise_attention._forward
    monkeypatch.setattr(blockwise_attention, "_forward", lambda q, *rest: made.append(q.detach()) or forward(q, *rest))
    q = torch.arange(float(batch * heads)).view(batch, heads, 1, 1).expand(batch, heads, 5, 4)
    by_blocks(q, q, q)
    ordered = torch.cat([part[:, :, 0, 0].flatten() for part in made]).sort().values
    assert ordered.tolist() == list(range(batch * heads))
    for part in made:
        assert part[..., 0, 0].numel() * bytes_of(1, 5, 5, None, 4, 4) <= part_bytes or part.shape[:2] == (1, 1)


def test_attend_cuts_long_sentences_into_blocks(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_SCORES", 1)  # then 64 queries a block, the fewest
    generator = torch.Generator().manual_seed(7)
    q, k, v = torch.randn(3, 2, 2, 150, 4, dtype=torch.float64, generator=generator)
    tables = [torch.randn(rows, 4, dtype=torch.float64, generator=generator) for rows in (9, 33)]
    for causal in (False, True):
        arguments = {"causal": causal, "mask": torch.arange(150) < 140}
        expected = gradients(partial(attend, implementation="dense"), [q, k, v, *tables], q, **arguments)
        actual = gradients(partial(attend, implementation="blockwise"), [q, k, v, *tables], q, **arguments)
        assert_all_close(actual, expected)


@pytest.mark.parametrize("queries_per_block", [None, 1, 4])
def test_blocks_of_queries_that_stand_behind_all_keys(queries_per_block):
    # 4 keys, 17 queries, k = 2: the last blocks have nothing but clipped distances to the left.
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(1, 2, 17, 4, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 1, 2, 4, 4, dtype=torch.float64, generator=generator)
    tables = [torch.randn(5, 4, dtype=torch.float64, generator=generator) for _ in range(2)]
    for causal in (False, True):
        expected = gradients(reference, [q, k, v, *tables], q, causal=causal)
        actual = gradients(by_blocks, [q, k, v, *tables], q, causal=causal, queries_per_block=queries_per_block)
        assert_all_close(actual, expected)


@pytest.mark.parametrize("queries_per_block", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_blocks_in_which_nothing_is_seen_are_finite(queries_per_block, dtype):
    for case in ("padding", "causal_mask", "labels_by_sentence", "mask_by_both"):
        inputs, arguments = make_case(case, dtype=dtype)
        arguments["mask"] = arguments["mask"].clone()
        arguments["mask"][1] = False
        cotangent = torch.ones_like(inputs[0])
        for x in gradients(by_blocks, inputs, cotangent, queries_per_block=queries_per_block, **arguments):
            assert x.isfinite().all()


# The anchor


@LAYOUTS
@pytest.mark.parametrize("queries_per_block", [None, 3])
@pytest.mark.parametrize("case, row", [("whole", -1), ("padding", -1), ("causal", 0), ("only_the_left_is_clipped", 0)])
def test_the_gradient_of_the_anchor_is_the_sum_over_its_pairs(case, row, per_head, queries_per_block):
    # d z . g / d w^V_r = sum of P_ij g_i over the pairs whose row is r; for w^K_r the scores' gradients times q_i.
    inputs, arguments = make_case(case, per_head)
    (num_queries, first_query, num_keys), _, _ = CASES[case]
    edges = Distances.between(
        num_queries, num_keys, first_query, inputs[3].shape[-2], causal=arguments.get("causal", False)
    )
    assert edges.anchor == row % inputs[3].shape[-2]  # the case is about what it says
    q, k, v, key_table, value_table = inputs
    cotangent = torch.randn_like(q)
    gradient = gradients(by_blocks, inputs, cotangent, queries_per_block=queries_per_block, **arguments)
    hidden_rows = {name: arguments[name] for name in arguments if name != "labels"}
    weights = attention.weights(q, k, key_table=key_table, **hidden_rows)
    distance = torch.arange(num_keys) - first_query - torch.arange(num_queries)[:, None]
    of_pairs = {}
    for table in (key_table, value_table):
        clip_distance = table.shape[-2] // 2
        of_pairs[table.shape[-2]] = (distance >= clip_distance) if row == -1 else (distance <= -clip_distance)
    by_pair = (weights * of_pairs[value_table.shape[-2]]).sum(-1, keepdim=True) * cotangent
    expected = by_pair.sum((0, 2)) if per_head else by_pair.sum((0, 1, 2))
    torch.testing.assert_close(gradient[5][..., row, :], expected, rtol=1e-12, atol=1e-12)
    a_value = value_table[..., (distance.clamp(-clip_distance, clip_distance) + clip_distance), :]
    dweights = torch.einsum("bhqd,bhkd->bhqk", cotangent, v) + torch.einsum(
        "bhqd,hqkd->bhqk", cotangent, a_value.expand(HEADS, *a_value.shape[-3:])
    )
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) / D_HEAD**0.5
    by_pair = (dscores * of_pairs[key_table.shape[-2]]).sum(-1, keepdim=True) * q
    expected = by_pair.sum((0, 2)) if per_head else by_pair.sum((0, 1, 2))
    torch.testing.assert_close(gradient[4][..., row, :], expected, rtol=1e-12, atol=1e-12)


# The same bits


@pytest.mark.parametrize("case", ["whole", "causal_mask", "labels_by_sentence"])
@pytest.mark.parametrize("queries_per_block", [None, 3])
def test_two_runs_give_the_same_bits_with_two_threads(case, queries_per_block):
    torch.set_num_threads(2)
    inputs, arguments = make_case(case, dtype=torch.float32)
    cotangent = torch.randn_like(inputs[0])
    one, two = (
        gradients(by_blocks, inputs, cotangent, queries_per_block=queries_per_block, **arguments) for _ in range(2)
    )
    assert all(torch.equal(mine, again) for mine, again in zip(one, two, strict=True))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_two_runs_of_a_sentence_that_threads_share_give_the_same_bits(implementation):
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 2, 4, 160, 16, generator=generator)  # 200,000 scores: two threads in every operation
    tables = [torch.randn(4, 33, 16, generator=generator) for _ in range(2)]
    form = partial(attend, implementation=implementation)
    one, two = (gradients(form, [q, k, v, *tables], q, causal=True) for _ in range(2))
    assert all(torch.equal(mine, again) for mine, again in zip(one, two, strict=True))


# Layout in memory


class Calls(TorchDispatchMode):
    """The names of all operations, and the most elements that one tensor had."""

    def __init__(self):
        super().__init__()
        self.names, self.most_elements = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func._schema.name)
        if isinstance(out, torch.Tensor):
            self.most_elements = max(self.most_elements, out.untyped_storage().nbytes() // out.element_size())
        return out


def split_by_chunk(qkv, num_heads):
    return tuple(x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=-1))


def packed(q, k, v):
    return attend(q, k, v, implementation="dense")


def with_more_on_q(q, k, v):
    return attend(q, k, v, implementation="dense") + q * 0.5


def elsewhere(q, k, v):
    return composed(q, k, v)


def in_another_order(q, k, v):
    return attend(v, q, k, implementation="dense")


def without_k_and_v(q, k, v):
    return q * q


def halves(q, k, v):
    # Gradients that lie as if packed, and stand in the middle of something else.
    return torch.cat([attend(x, y, z, implementation="dense") for x, y, z in zip(*both(q, k, v), strict=True)])


def both(*tensors):
    return [x.chunk(2) if x.shape[0] > 1 else (x,) for x in tensors]


@pytest.mark.parametrize("use", [packed, with_more_on_q, elsewhere, in_another_order, without_k_and_v, halves])
@pytest.mark.parametrize("batch, length, heads", [(2, 5, 3), (1, 5, 3), (3, 1, 2), (1, 1, 1), (2, 4, 1), (1, 1, 3)])
def test_split_heads_and_its_gradient_equal_chunks(use, batch, length, heads):
    generator = torch.Generator().manual_seed(4)
    qkv = torch.randn(batch, length, 3 * heads * D_HEAD, dtype=torch.float64, generator=generator, requires_grad=True)
    cotangent = torch.randn(batch, heads, length, D_HEAD, dtype=torch.float64, generator=generator)
    results = []
    for split in (split_by_chunk, split_heads):
        parts = split(qkv, heads)
        results.append((parts, torch.autograd.grad(use(*parts), qkv, cotangent)[0]))
    (parts, expected), (actual_parts, actual) = results
    for actual_part, part in zip(actual_parts, parts, strict=True):
        assert torch.equal(actual_part, part)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("use, copies", [(packed, False), (with_more_on_q, True)])
def test_gradients_that_lie_packed_are_not_copied(use, copies):
    qkv = torch.randn(2, 6, 3 * 2 * D_HEAD, dtype=torch.float64, requires_grad=True)
    z = use(*SplitHeads.apply(qkv, 2))
    with Calls() as calls:
        z.backward(torch.ones_like(z))
    assert ("aten::stack" in calls.names or "aten::cat" in calls.names) == copies


@pytest.mark.parametrize("offset", [0, 24, 7])
@pytest.mark.parametrize("exchange", [False, True])
def test_packed_gradients_may_start_anywhere_in_their_storage(offset, exchange):
    batch, length, heads = 2, 3, 2
    qkv = torch.randn(batch, length, 3 * heads * D_HEAD, requires_grad=True)
    numbers = torch.arange(float(offset + qkv.numel()))
    whole = numbers[offset:].view(batch, length, 3, heads, D_HEAD)
    of_q, of_k, of_v = (x.transpose(1, 2) for x in whole.unbind(2))
    given = (of_v, of_k, of_q) if exchange else (of_q, of_k, of_v)
    (gradient,) = torch.autograd.grad(SplitHeads.apply(qkv, heads), qkv, given)
    expected = whole.flip(2) if exchange else whole
    assert torch.equal(gradient, expected.reshape(qkv.shape))


def test_gradients_of_different_storages_are_not_taken_for_packed():
    # The same strides and offsets as packed ones, but in three storages.
    batch, length, heads = 2, 3, 2
    qkv = torch.randn(batch, length, 3 * heads * D_HEAD, requires_grad=True)
    storages = [torch.randn(batch, length, 3, heads, D_HEAD) for _ in range(3)]
    given = [x[:, :, index].transpose(1, 2) for index, x in enumerate(storages)]
    (gradient,) = torch.autograd.grad(SplitHeads.apply(qkv, heads), qkv, given)
    expected = torch.stack([x[:, :, index] for index, x in enumerate(storages)], dim=2)
    assert torch.equal(gradient, expected.reshape(qkv.shape))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_heads_are_joined_without_a_copy(implementation):
    q, k, v = torch.randn(3, 2, 3, 5, D_HEAD)
    z = attend(q, k, v, implementation=implementation)
    joined = z.transpose(1, 2).flatten(-2)
    assert joined.data_ptr() == z.data_ptr()
    assert joined.is_contiguous()


@pytest.mark.parametrize("strides", ["transposed", "expanded", "every_other"])
def test_inputs_and_cotangents_may_be_any_views(strides):
    generator = torch.Generator().manual_seed(6)
    shape = (2, 3, 6, D_HEAD)

    def view():
        if strides == "transposed":
            return torch.randn(2, 6, 3, D_HEAD, dtype=torch.float64, generator=generator).transpose(1, 2)
        if strides == "expanded":
            return torch.randn(1, 3, 6, 1, dtype=torch.float64, generator=generator).expand(shape)
        return torch.randn(2, 3, 12, 2 * D_HEAD, dtype=torch.float64, generator=generator)[:, :, ::2, ::2]

    q, k, v, cotangent = (view() for _ in range(4))
    tables = [torch.randn(3, 5, D_HEAD, dtype=torch.float64, generator=generator) for _ in range(2)]
    results = []
    for form in (reference, by_blocks, partial(by_blocks, queries_per_block=2)):
        leaves = [x.detach().requires_grad_() for x in (q, k, v, *tables)]
        z = form(*leaves[:3], key_table=leaves[3], value_table=leaves[4])
        results.append((z.detach(), *torch.autograd.grad(z, leaves, cotangent)))
    assert_all_close(results[1], results[0])
    assert_all_close(results[2], results[0])


# Memory


def long_step(implementation, causal, length=1024, width=16):
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 1, length, width, generator=generator).requires_grad_() for _ in range(3))
    tables = {name: torch.randn(33, width, generator=generator).requires_grad_() for name in TABLES}

    def step():
        z = attend(q, k, v, implementation=implementation, causal=causal, mask=torch.ones(length) > 0, **tables)
        torch.autograd.grad(z, [q, k, v, *tables.values()], torch.ones_like(z))

    return step


TABLES = ("key_table", "value_table")


@pytest.mark.parametrize("causal", [False, True])
def test_a_long_sentence_has_no_tensor_of_all_pairs(causal):
    most = {}
    for implementation in ("auto", "blockwise", "dense"):
        step = long_step(implementation, causal)
        with Calls() as calls:
            step()
        most[implementation] = calls.most_elements
    assert most["dense"] >= 1024**2
    assert most["blockwise"] == most["auto"] < 1024**2 / 3


@pytest.mark.parametrize("causal", [False, True])
def test_a_long_sentence_takes_less_than_half_the_memory_by_blocks(causal):
    cpu = torch.device("cpu")
    peaks = {name: peak_bytes(long_step(name, causal), cpu) for name in ("dense", "blockwise")}
    assert peaks["dense"] > 2 * 4 * 1024**2  # the weights and their gradient
    assert peaks["blockwise"] < peaks["dense"] / 2
