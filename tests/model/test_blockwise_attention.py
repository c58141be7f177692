"""`BlockwiseAttention` in parts (of heads, of sentences) and blocks of queries against `composed`; determinism; cells
that are written once and read after that; `SplitHeads` against torch.chunk; strided cotangents; memory.
"""

from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from rpr.model import attention
from rpr.model.attention import attend, blocks, split_heads
from rpr.model.attention.blocks import SplitHeads
from tests.model.attention_cases import EACH_PASS, Case, assert_same, blockwise, composed, results

WIDTH = 4


@pytest.fixture
def parts(monkeypatch):
    """The queries of each part that is computed."""
    made, forward = [], blocks._forward
    monkeypatch.setattr(blocks, "_forward", lambda *part: made.append(part) or forward(*part))
    return made


@pytest.mark.parametrize("queries_per_block", [None, 3])
# 5 sentences of 3 heads: parts of one head and 1, 2 or 3 sentences, or of all sentences and 2 heads.
@pytest.mark.parametrize("affordable, number", [(1, 15), (2, 9), (3, 6), (10, 2)])
def test_attention_in_parts_matches_reference(monkeypatch, parts, affordable, number, queries_per_block):
    for case in [
        Case(9, 9, keys=2, values=0, mask="BHQK", causal=True, bias=1),
        Case(7, 9, queries=2, key_bias=True, mask="BK", bias=1, per_head=(False, True)),
        Case(8, 8, mask="HQK", per_head=(False, False)),
    ]:
        case = Case(**{**vars(case), "batch": 5, "heads": 3, "width": WIDTH})
        inputs, options = case.inputs()
        valid = case.has_visible_key(options)
        weight = torch.randn(inputs[0].shape, dtype=torch.float64) * valid
        scores = min(case.num_queries, queries_per_block or 99) * case.num_keys
        part_bytes = affordable * max(case.num_queries * WIDTH, scores) * 8
        monkeypatch.setattr(blocks, "PART_BYTES", part_bytes)
        parts.clear()
        actual = results(partial(blockwise, queries_per_block=queries_per_block), inputs, weight, **options)
        assert len(parts) == number
        expected = results(composed, inputs, weight, **options)
        assert_same([actual[0] * valid, *actual[1:]], [expected[0] * valid, *expected[1:]], str(case))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_are_not_stored_without_gradients(mode, parts):
    (q, k, v, table, *_), _ = Case(300, 300).inputs()
    table.requires_grad_()
    with mode():
        attend(q, k, v, key_table=table, causal=True)
    attend(q, k, v, key_table=table, causal=True)
    assert [part[3].stored for part in parts] == [False, True]


@EACH_PASS
@pytest.mark.parametrize("queries", [None, 16])
def test_results_with_two_threads_are_deterministic(form, queries):
    torch.set_num_threads(2)
    # 200,000 scores: enough for two threads in every operation
    sizes = {"keys": 16, "values": 16, "bias": 16, "heads": 4, "width": 16}
    case = Case(160, 160, queries=queries, key_bias=queries is not None, causal=True, **sizes)
    inputs, options = case.inputs(torch.float32)
    one, two = (results(form, inputs, inputs[0], **options) for _ in range(2))
    assert all(torch.equal(mine, again) for mine, again in zip(one, two, strict=True))


class WrittenTwice(TorchDispatchMode):
    """Counts the cells that an in-place operation writes more than once, where one of two threads' sums can be lost."""

    def __init__(self):
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            places = torch.tensor([args[0].storage_offset()])
            for size, stride in zip(args[0].shape, args[0].stride(), strict=True):
                places = places[..., None] + torch.arange(size) * stride
            self.cells += places.numel() - places.unique().numel()
        return func(*args, **(kwargs or {}))


@pytest.fixture
def nan_in_new_memory():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@EACH_PASS
@pytest.mark.usefixtures("nan_in_new_memory")
@pytest.mark.parametrize("lengths", [(9, 9), (5, 9, 4), (9, 2), (9, 1, 4), (2, 3, 12), (70, 90, 20), (129, 50, 3)])
@pytest.mark.parametrize("k, causal", [(0, False), (2, True), (11, False), (300, True)])
def test_cells_are_read_after_they_are_written_once(form, lengths, k, causal):
    inputs, options = Case(*lengths, keys=k, values=k, bias=k, causal=causal).inputs()
    with WrittenTwice() as twice:
        results(form, inputs, torch.ones_like(inputs[0]), **options)  # asserts that all are finite
    assert twice.cells == 0


class Calls(TorchDispatchMode):
    """Records the names of all operations, and the bytes of the largest tensor."""

    def __init__(self):
        super().__init__()
        self.names, self.most_bytes = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func._schema.name)
        if isinstance(out, torch.Tensor):
            self.most_bytes = max(self.most_bytes, out.untyped_storage().nbytes())
        return out


USES = {
    "packed": lambda q, k, v: attend(q, k, v, implementation="dense"),
    "more on q": lambda q, k, v: attend(q, k, v, implementation="dense") + q * 0.5,
    "elsewhere": composed,
}


@pytest.mark.parametrize("use", USES)
def test_split_heads_matches_chunk_forward_and_backward(use):
    draw = torch.Generator().manual_seed(4)
    for batch, length, heads in [(2, 5, 3), (1, 5, 3), (3, 1, 2), (1, 1, 1), (2, 4, 1)]:
        qkv = torch.randn(batch, length, 3 * heads * WIDTH, dtype=torch.float64, generator=draw, requires_grad=True)
        cotangent = torch.randn(batch, heads, length, WIDTH, dtype=torch.float64, generator=draw)
        chunks = tuple(x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=-1))
        views = split_heads(qkv, heads)
        assert all(torch.equal(view, chunk) for view, chunk in zip(views, chunks, strict=True))
        actual, expected = (torch.autograd.grad(USES[use](*three), qkv, cotangent) for three in (views, chunks))
        torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


def test_packed_gradients_are_not_copied():
    for use, copies in [("packed", False), ("more on q", True)]:
        qkv = torch.randn(2, 6, 3 * 2 * WIDTH, dtype=torch.float64, requires_grad=True)
        z = USES[use](*SplitHeads.apply(qkv, 2))
        with Calls() as calls:
            z.backward(torch.ones_like(z))
        assert ("aten::stack" in calls.names or "aten::cat" in calls.names) == copies


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("kind", ["packed", "exchanged", "three storages"])
def test_packed_gradients_may_have_a_storage_offset(offset, kind):
    batch, length, heads = 2, 3, 2
    qkv = torch.randn(batch, length, 3 * heads * WIDTH, requires_grad=True)
    whole = torch.arange(float(offset + qkv.numel()))[offset:].view(batch, length, 3, heads, WIDTH)
    of_qkv, expected = [x.transpose(1, 2) for x in whole.unbind(2)], whole
    if kind == "exchanged":
        of_qkv, expected = of_qkv[::-1], whole.flip(2)
    if kind == "three storages":  # the same strides and offsets as packed ones
        of_qkv = [whole.clone()[:, :, index].transpose(1, 2) for index in range(3)]
    (gradient,) = torch.autograd.grad(SplitHeads.apply(qkv, heads), qkv, of_qkv)
    assert torch.equal(gradient, expected.reshape(qkv.shape))


@pytest.mark.parametrize("queries_per_block", [None, 2])
def test_cotangents_of_any_strides(queries_per_block):
    # Strides of 0, as the gradient of a sum has, and of other axes; strided inputs: "views" in test_attention.py.
    inputs, _ = Case(6, 6).inputs()
    ones, numbers = torch.ones(1, 1, 1, 1), torch.randn(2, 2, 12, 6)
    for weight in (ones.double().expand(2, 2, 6, 3), numbers.double()[..., ::2, ::2]):
        found = results(partial(blockwise, queries_per_block=queries_per_block), inputs, weight)
        assert_same(found, results(composed, inputs, weight), "strided")


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_all_query_key_pairs_are_stored_within_a_limit_alone(causal, monkeypatch):
    inputs = [*torch.randn(3, 1, 1, 1024, 16), *torch.randn(2, 33, 16)]
    mask = torch.ones(1024, dtype=torch.bool)
    most, stored = {}, {}
    for name, limit in (("auto", 0), ("blockwise", 2**26), ("dense", 0), ("auto", 2**26)):
        monkeypatch.setattr(attention, "STORED_BYTES", limit)
        saved = []
        with Calls() as calls, saved_tensors_hooks(lambda x, saved=saved: saved.append(x.numel()) or x, lambda x: x):
            form = partial(attend, implementation=name, causal=causal, mask=mask)
            results(form, inputs, torch.ones_like(inputs[0]))
        most[name, limit], stored[name, limit] = calls.most_bytes // 4, sum(saved)
    assert most["blockwise", 2**26] == most["auto", 0] < 1024**2 / 3
    assert stored["blockwise", 2**26] == stored["auto", 0] < 1024**2 / 5
    assert stored["dense", 0] > 1024**2 / 2
    assert stored["auto", 2**26] == stored["dense" if causal else "blockwise", 0 if causal else 2**26]
