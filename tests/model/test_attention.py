"""Every implementation of attention that runs on a CPU against equations 3 and 4 as Python loops in float64;
which implementation is chosen; invalid shapes.
"""

import itertools
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from rpr.model import attention, devices
from rpr.model.attention import attend
from rpr.model.attention.inputs import AttentionInputs
from tests.model.attention_cases import (
    CASES,
    EACH_PASS,
    NAMES,
    Case,
    assert_all_forms_agree,
    composed,
    results,
    weights,
)

EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# Equations 3 and 4, one (sentence, head, query, key) at a time


def table_row(table, head, distance):
    """w_clip(distance, k) of one head, as defined below equation 4."""
    rows = table if table.dim() == 2 else table[head]
    clip_distance = (len(rows) - 1) // 2
    return rows[max(-clip_distance, min(clip_distance, distance)) + clip_distance].tolist()


def edge_vectors(table, labels, b, h, i, distances):
    """a_ij for every key j, given the distances from query i."""
    if table is None:
        return None
    if labels is None:
        return [table_row(table, h, distance) for distance in distances]
    of_keys = labels[i] if labels.dim() == 2 else labels[b, i]
    return (table if table.dim() == 2 else table[h])[of_keys].tolist()


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def by_loops(case, inputs, options):
    """z and the weights; 0 for a query with no visible key."""
    q, k, v, key_table, value_table, bias, queries, key_bias, sink = inputs
    bias = None if bias is None else bias[..., None]
    labels, first_query = options.get("labels"), options["first_query"]
    sizes = (case.batch, case.heads, case.num_queries, case.num_keys)
    mask, window = options.get("mask", torch.ones(1, 1, 1, 1)).expand(sizes).tolist(), options["window"] or math.inf
    z, weights = torch.zeros(*q.shape[:3], case.width, dtype=torch.float64), torch.zeros(sizes, dtype=torch.float64)
    for b, h, i in itertools.product(*map(range, sizes[:3])):
        distances = [j - (first_query + i) for j in range(case.num_keys)]
        a_key, a_value, b_pair = (edge_vectors(x, labels, b, h, i, distances) for x in (key_table, value_table, bias))
        query, keys, values = q[b, h, i].tolist(), k[b, h].tolist(), v[b, h].tolist()
        exponentials = {}
        for j, distance in enumerate(distances):
            if mask[b][h][i][j] and (not options["causal"] or distance <= 0) and abs(distance) < window:
                score = dot(query, keys[j]) / math.sqrt(case.width) + (0 if b_pair is None else b_pair[j][0])
                if a_key is not None and queries is None:
                    score += dot(query, a_key[j]) / math.sqrt(case.width)
                elif a_key is not None:
                    score += dot(queries[b, h, i].tolist(), a_key[j])
                own = 0 if sink is None or key_bias is None else key_bias[b, h, min(first_query + i, case.num_keys - 1)]
                score += 0 if key_bias is None else float(key_bias[b, h, j] - own)
                exponentials[j] = math.exp(score)
        total = math.fsum([*exponentials.values(), 0 if sink is None else math.exp(sink[h].item())])
        for j, exponential in exponentials.items():
            weights[b, h, i, j] = weight = exponential / total
            value = values[j] if a_value is None else [x + y for x, y in zip(values[j], a_value[j], strict=True)]
            z[b, h, i] += weight * torch.tensor(value, dtype=torch.float64)
    return z, weights


@EACH_CASE
def test_all_forms_match_loops_forward_and_their_gradients(case):
    inputs, options = case.inputs()
    z, of_keys = by_loops(case, inputs, options)
    assert_all_forms_agree(case, z)
    more = dict(zip(NAMES[3:], inputs[3:], strict=True)) | {"value_table": None}
    actual = weights(*inputs[:3], **more, **options) * case.has_visible_key(options)
    torch.testing.assert_close(actual, of_keys, rtol=1e-12, atol=1e-12)
    assert ((actual == 0) == (of_keys == 0)).all()  # hidden keys get exactly 0


@pytest.mark.parametrize("lengths, options", [
    ((70, 200, 130), {"keys": 16, "values": 300, "causal": True}),
    ((200, 200), {"keys": 140, "values": None, "bias": 199, "queries": 2, "causal": True, "mask": "K"}),
    ((270, 270), {"keys": 16, "values": 64, "bias": 3, "window": 33, "mask": "BK", "sink": True}),
    ((140, 300, 160), {"keys": 4, "values": None, "bias": 300, "causal": True, "window": 20}),
    pytest.param((200, 7), {"keys": 300, "values": 16, "bias": 3}, marks=pytest.mark.slow),
])  # fmt: skip
def test_all_forms_agree_on_longer_sentences(lengths, options):
    assert_all_forms_agree(Case(*lengths, **options))


@pytest.fixture
def calls(monkeypatch):
    """The calls of torch's fused kernel."""
    seen, kernel = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *tensors, **options: seen.append(1) or kernel(*tensors, **options)
    )
    return seen


def test_bias_of_keys_is_a_column_of_long_causal_attention(monkeypatch, calls):
    monkeypatch.setattr(attention, "LONG", 64)
    monkeypatch.setattr(attention, "STORED_BYTES", 0)
    assert_all_forms_agree(Case(70, 70, keys=None, values=None, key_bias=True, causal=True))
    assert len(calls) == 4  # of two forms, with gradients and without


@pytest.mark.parametrize("kernel, change, precision", [
    (True, {}, "highest"),
    (True, {"q": {"dtype": torch.float32}}, "high"),
    (True, {"key_table": None, "value_table": None, "bias_table": torch.zeros(1, 301)}, "highest"),
    (True, {"key_table": torch.zeros(31, 5), "distance_queries": torch.zeros(2, 1, 70, 5), "window": 3}, "highest"),
    (False, {"q": {"dtype": torch.float32}}, "highest"),
    (False, {"q": {"device": torch.device("cpu")}}, "highest"),
    (False, {"q": {"shape": (2, 1, 70, 512)}}, "highest"),
    (False, {"key_table": torch.zeros(71, 4)}, "highest"),
    (False, {"labels": torch.zeros(70, 70)}, "highest"),
    (False, {"key_bias": torch.zeros(2, 1, 70)}, "highest"),
    (False, {"sink": torch.zeros(1)}, "highest"),
])  # fmt: skip
def test_on_a_gpu_the_kernel_for_tables_is_chosen_where_it_is_faster(kernel, change, precision, monkeypatch):
    monkeypatch.setattr(attention, "_kernels_compile_here", lambda: True)
    monkeypatch.setattr(attention, "SIDE_BYTES", 0)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    on_gpu = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "shape": (2, 1, 70, 64)}
    query = SimpleNamespace(**on_gpu | change.get("q", {}))
    of = {"key_table": torch.zeros(33, 64), "value_table": torch.zeros(33, 64), **change, "q": query}
    k, v = torch.zeros(2, 1, 70, 64), torch.zeros(query.shape)
    assert attention._kernel_is_faster(AttentionInputs(**of, k=k, v=v)) is kernel


@pytest.mark.parametrize("dtype, largest", [(torch.float64, 1e-11), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("linear", [True, False])
def test_a_bias_of_keys_is_columns_of_them(linear, dtype, largest, monkeypatch):
    """As on a GPU: in bfloat16, too, which holds neither all positions nor running sums."""
    monkeypatch.setattr(devices, "on_gpu", lambda x: True)
    inputs, _ = Case(700, 700, keys=None, values=None, width=16, batch=1).inputs()
    weight, options = inputs[0].flip(2), {"causal": True}
    slopes = None
    if linear:
        slopes = (2**-0.5, 2**-6)
        distances = torch.arange(-699, 700, dtype=torch.float64)
        options["bias_table"] = torch.tensor(slopes, dtype=torch.float64)[:, None] * distances
        inputs = inputs[:3]
    else:
        inputs[7] = torch.linspace(0, 900, 700, dtype=torch.float64).expand(1, 2, -1)
    exact = results(composed, inputs, weight, **options)
    narrow = [None if x is None else x.to(dtype if number < 3 else torch.promote_types(dtype, torch.float32))
              for number, x in enumerate(inputs)]  # fmt: skip
    found = results(partial(attend, slopes=slopes), narrow, weight.to(dtype), **options)
    for one, expected in zip(found, exact, strict=True):
        assert (one.double() - expected).norm() < largest * expected.norm()


@EACH_PASS
@pytest.mark.parametrize("case", [Case(8, 8, keys=3), Case(3, 7, 4, values=3), Case(5, 2, 3)])
def test_causal_passes_do_not_read_table_rows_of_future_keys(form, case):
    inputs, options = replace(case, causal=True).inputs()
    weight = torch.ones_like(inputs[0])
    before = results(form, inputs, weight, **options)
    for table in inputs[3:5]:
        table[..., table.shape[-2] // 2 + 1 :, :] = math.nan
    for actual, expected in zip(results(form, inputs, weight, **options), before, strict=True):
        assert torch.equal(actual, expected)
    assert not any(of_table[..., of_table.shape[-2] // 2 + 1 :, :].any() for of_table in before[4:])


# Choice of implementation


@pytest.mark.parametrize("length", [255, 256])
def test_plain_attention_of_256_keys_uses_torch_kernel(length, calls):
    (q, k, v, key_table, value_table, *_), _ = Case(length, length, keys=4, values=4, batch=1).inputs()

    def check(q, **options):
        torch.testing.assert_close(attend(q, k, v, **options), composed(q, k, v, **options), rtol=1e-12, atol=1e-12)

    padding = torch.arange(length) < length - 5
    for options in [{}, {"causal": True}, {"mask": padding}, {"mask": padding, "causal": True}]:
        check(q, **options)
        check(q[:, :, -3:], first_query=length - 3, **options)
    assert len(calls) == (6 if length == 256 else 0)  # not as many causal queries as keys, which leave out later keys
    check(q, causal=True, first_query=7)  # as many queries as keys, but not the kernel's own causal mask
    check(q[:, :, -3:], first_query=length - 3, key_table=key_table)  # one table is enough to rule out the kernel
    check(q[:, :, -3:], first_query=length - 3, value_table=value_table)


@EACH_PASS
def test_gradient_of_one_input_does_not_require_the_others(form):
    inputs, _ = Case(6, 6, bias=2, queries=2, key_bias=True, sink=True).inputs()
    weight = torch.ones_like(inputs[0])
    _, *expected = results(form, inputs, weight)
    for index in range(len(NAMES)):
        leaves = [x.clone().requires_grad_(position == index) for position, x in enumerate(inputs)]
        z = form(*leaves[:3], **dict(zip(NAMES[3:], leaves[3:], strict=True)))
        assert torch.equal(torch.autograd.grad(z, leaves[index], weight)[0], expected[index])


KERNEL = "triton supports no labels, changed scores, bias of keys, sink, or values of another width"
REFUSED = [  # shapes of arguments, implementations, and what is said
    ({"key_table": (5, 4)}, r"key_table: shape \[5, 4\] is not \[R, 3\] or \[2, R, 3\]"),
    ({"value_table": (2, 6, 3)}, r"value_table: 6 rows are not 2k\+1, one for each distance from -k to k"),
    ({"bias_table": (3, 5)}, r"bias_table: shape \[3, 5\] is not \[2, R\]"),
    ({"distance_queries": (2, 2, 4, 3)}, r"distance_queries: there is no key_table, whose rows they multiply"),
    ({"labels": (5, 4)}, r"labels: shape \[5, 4\] is not \[4, 5\] or \[2, 4, 5\]"),
    *(({name: shape}, KERNEL) for name, shape in (("labels", (4, 5)), ("key_bias", (2, 2, 5)), ("sink", (2,)))),
    ({"k": (2, 2, 5, 4), "q": (2, 2, 4, 4)}, KERNEL),
]


@pytest.mark.parametrize("wrong, message", REFUSED)
def test_invalid_shape_raises(wrong, message):
    q, k, v, *_ = Case(4, 5).inputs()[0]
    types = {"labels": torch.int64}
    options = {name: torch.zeros(shape, dtype=types.get(name, q.dtype)) for name, shape in wrong.items()}
    for implementation in ("triton",) if message == KERNEL else ("auto", "triton"):
        with pytest.raises(ValueError, match=message):
            attend(**{"q": q, "k": k, "v": v} | options, implementation=implementation)
