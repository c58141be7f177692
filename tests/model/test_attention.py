"""Every implementation of attention that runs on a CPU against equations 3 and 4 as Python loops in float64, gradients
against finite differences and `reference`; which implementation is chosen; invalid shapes, masked rows, precision.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from rpr.model import attention
from rpr.model.attention import attend, weights
from tests.model.attention_cases import (
    FORMS,
    NAMES,
    PASSES,
    Case,
    assert_all_forms_agree,
    assert_same,
    reference,
    results,
)

pytestmark = pytest.mark.usefixtures("one_thread")

EACH_PASS = pytest.mark.parametrize("form", PASSES.values(), ids=PASSES)
CASES = {
    "one": Case(1, 1, values=0),
    "whole": Case(6, 6, keys=1, values=3),
    "whole, keys only": Case(6, 6, values=None),
    "whole, values only": Case(6, 6, keys=None),
    "whole, bias only": Case(6, 6, keys=None, values=None, bias=2),
    "plain": Case(6, 6, keys=None, values=None),
    "k of 0": Case(7, 7, keys=0, values=0, bias=0),
    "clipped far": Case(11, 11, keys=0, values=2),
    "unclipped": Case(5, 5, keys=9, values=4),
    "only the left is clipped": Case(4, 9, 5, keys=4, values=6),
    "long": Case(24, 24, keys=16, values=1, per_head=(False, True), bias=3),
    "padding": Case(7, 7, keys=3, mask="BK"),
    "mask by head": Case(6, 6, values=4, mask="BHQK", per_head=(False, False)),
    "mask by query": Case(6, 6, keys=3, mask="QK", bias=1),
    "causal": Case(7, 7, values=3, causal=True),
    "causal, keys only": Case(7, 7, values=None, causal=True, per_head=(False, False)),
    "causal, values only": Case(7, 7, keys=None, causal=True, bias=9),
    "causal, k of 0": Case(7, 7, keys=0, causal=True),
    "causal, unclipped": Case(5, 5, keys=9, values=6, causal=True),
    "causal, padding": Case(8, 8, keys=0, causal=True, mask="BK"),
    "causal, mask by head": Case(5, 5, keys=6, causal=True, mask="HQK", bias=2),
    "step with cache": Case(1, 7, 6, values=4, causal=True, bias=3),
    "steps with cache": Case(3, 7, 4, keys=1, values=5, causal=True, mask="BK"),
    "steps before the end": Case(3, 9, 2, values=0, causal=True),
    "steps that see all": Case(4, 9, 3, keys=4, mask="BK", per_head=(False, True)),
    "fewer keys": Case(4, 3, 6, keys=1, values=2),
    "fewer keys, causal": Case(6, 3, 1, causal=True),
    "far behind all keys": Case(17, 4, causal=True, values=2),
    "one key far behind": Case(2, 1, 9),
    "labels": Case(5, 5, labels="QK", bias=1),
    "labels, bias only": Case(5, 5, labels="BQK", keys=None, values=None, bias=1),
    "labels by sentence": Case(4, 6, labels="BQK", mask="BK", bias=2),
    "labels, causal": Case(4, 6, 2, labels="BQK", causal=True, mask="BHQK", per_head=(False, True)),
    "distance queries": Case(6, 6, keys=2, queries=2),
    "distance queries, causal": Case(7, 7, keys=9, queries=5, values=None, bias=1, causal=True, per_head=(False, True)),
    "distance queries, labels": Case(4, 6, 2, queries=2, labels="BQK", causal=True),
    "key bias": Case(6, 6, keys=None, values=None, key_bias=True, mask="BK"),
    "key bias, everything": Case(7, 9, 2, keys=3, bias=2, queries=1, key_bias=True, causal=True, mask="BHQK"),
    "views": Case(5, 5, strided=True, causal=True, mask="BK"),
}
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
    q, k, v, key_table, value_table, bias, queries, key_bias = inputs
    bias = None if bias is None else bias[..., None]
    labels, first_query = options.get("labels"), options["first_query"]
    sizes = (case.batch, case.heads, case.num_queries, case.num_keys)
    mask = options.get("mask", torch.ones(1, 1, 1, 1)).expand(sizes).tolist()
    z, weights = torch.zeros(q.shape, dtype=torch.float64), torch.zeros(sizes, dtype=torch.float64)
    for b, h, i in itertools.product(*map(range, sizes[:3])):
        distances = [j - (first_query + i) for j in range(case.num_keys)]
        a_key, a_value, b_pair = (edge_vectors(x, labels, b, h, i, distances) for x in (key_table, value_table, bias))
        query, keys, values = q[b, h, i].tolist(), k[b, h].tolist(), v[b, h].tolist()
        exponentials = {}
        for j, distance in enumerate(distances):
            if mask[b][h][i][j] and (not options["causal"] or distance <= 0):
                score = dot(query, keys[j]) / math.sqrt(case.width) + (0 if b_pair is None else b_pair[j][0])
                if a_key is not None and queries is None:
                    score += dot(query, a_key[j]) / math.sqrt(case.width)
                elif a_key is not None:
                    score += dot(queries[b, h, i].tolist(), a_key[j])
                score += 0 if key_bias is None else key_bias[b, h, j].item()
                exponentials[j] = math.exp(score)
        for j, exponential in exponentials.items():
            weights[b, h, i, j] = weight = exponential / math.fsum(exponentials.values())
            value = values[j] if a_value is None else [x + y for x, y in zip(values[j], a_value[j], strict=True)]
            z[b, h, i] += weight * torch.tensor(value, dtype=torch.float64)
    return z, weights


@EACH_CASE
def test_all_forms_match_loops_forward_and_reference_backward(case):
    inputs, options = case.inputs()
    z, of_keys = by_loops(case, inputs, options)
    assert_all_forms_agree(case, z)
    q, k, _, key_table, _, bias, queries, key_bias = inputs
    more = {"key_table": key_table, "bias_table": bias, "distance_queries": queries, "key_bias": key_bias}
    actual = weights(q, k, **more, **options) * case.has_visible_key(options)
    torch.testing.assert_close(actual, of_keys, rtol=1e-12, atol=1e-12)
    assert ((actual == 0) == (of_keys == 0)).all()  # hidden keys get exactly 0


@pytest.mark.parametrize("lengths, options", [
    ((70, 200, 130), {"keys": 16, "values": 300, "causal": True}),
    ((129, 50, 3), {"keys": 16, "values": 0}),
    ((200, 7), {"keys": 300, "values": 16, "bias": 3}),
    ((97, 97), {"keys": 16, "values": 4, "causal": True}),
    ((70, 70), {"keys": 64, "values": 4, "mask": "K"}),
    ((260, 260), {"keys": None, "values": None, "key_bias": True, "causal": True}),
    ((150, 150), {"keys": 64, "values": 3, "bias": 2, "causal": True, "heads": 1}),
    ((210, 210), {"keys": None, "values": None, "bias": 130, "causal": True}),
    ((200, 200), {"keys": 140, "values": None, "bias": 199, "queries": 2, "causal": True, "mask": "K"}),
])  # fmt: skip
def test_all_forms_match_reference_on_longer_sentences(lengths, options):
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
    assert len(calls) == 2  # with gradients, and without


@pytest.mark.parametrize("name", ["key bias, everything", "labels by sentence"])
def test_reference_gradients_match_finite_differences(name):
    inputs, options = CASES[name].inputs()
    if "mask" in options:
        options["mask"][..., 0] = True  # every query has a visible key

    names = [name for name, x in zip(NAMES, inputs, strict=True) if x is not None]

    def function(q, k, v, *tables):
        return reference(q, k, v, **dict(zip(names[3:], tables, strict=True)), **options)

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in inputs if x is not None], fast_mode=True)


@EACH_PASS
@pytest.mark.parametrize("case", [Case(8, 8, keys=3), Case(3, 7, 4, values=3), Case(5, 2, 3), Case(40, 40)])
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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["whole", "whole, keys only", "clipped far", "causal, padding", "labels"])
def test_compiled_form_matches_reference_forward_and_backward(name):
    # After a few recompilations torch would fall back to eager, and this test would check nothing.
    torch.compiler.reset()
    counters.clear()
    inputs, options = CASES[name].inputs()
    weight = torch.ones_like(inputs[0])
    compiled = results(partial(attend, implementation="compiled"), inputs, weight, **options)
    assert counters["stats"]["unique_graphs"] == 1
    assert_same(compiled, results(reference, inputs, weight, **options), name)


def test_weights_are_stored_for_short_and_recomputed_for_long_sentences(monkeypatch):
    monkeypatch.setattr(attention, "LONG", 24)
    for length, implementation, stored in [(23, "auto", 1), (24, "auto", 0), (25, "dense", 1), (23, "blockwise", 0)]:
        inputs, options = Case(length, length).inputs()
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, into=saved: into.append(x.numel()) or x, lambda x: x):
            results(partial(attend, implementation=implementation), inputs, torch.ones_like(inputs[0]), **options)
        assert (2 * 2 * length * length in saved) == stored


@pytest.mark.parametrize("length", [255, 256])
def test_plain_attention_of_256_keys_uses_torch_kernel(length, calls):
    (q, k, v, key_table, value_table, *_), _ = Case(length, length, keys=4, values=4, batch=1).inputs()

    def check(q, **options):
        torch.testing.assert_close(attend(q, k, v, **options), reference(q, k, v, **options), rtol=1e-12, atol=1e-12)

    padding = torch.arange(length) < length - 5
    for options in [{}, {"causal": True}, {"mask": padding}, {"mask": padding, "causal": True}]:
        check(q, **options)
        check(q[:, :, -3:], first_query=length - 3, **options)
    assert len(calls) == (6 if length == 256 else 0)  # not as many causal queries as keys, which leave out later keys
    check(q, causal=True, first_query=7)  # as many queries as keys, but not the kernel's own causal mask
    check(q[:, :, -3:], first_query=length - 3, key_table=key_table)  # one table is enough to rule out the kernel
    check(q[:, :, -3:], first_query=length - 3, value_table=value_table)
    q.requires_grad_()
    hidden = attend(q, k, v, mask=torch.zeros(length, dtype=torch.bool))
    hidden.sum().backward()
    assert hidden.isfinite().all() and q.grad.isfinite().all()


@EACH_PASS
def test_gradient_of_one_input_does_not_require_the_others(form):
    inputs, _ = Case(6, 6, bias=2, queries=2, key_bias=True).inputs()
    weight = torch.ones_like(inputs[0])
    _, *expected = results(form, inputs, weight)
    for index in range(len(NAMES)):
        leaves = [x.clone().requires_grad_(position == index) for position, x in enumerate(inputs)]
        z = form(*leaves[:3], **dict(zip(NAMES[3:], leaves[3:], strict=True)))
        assert torch.equal(torch.autograd.grad(z, leaves[index], weight)[0], expected[index])


@EACH_PASS
def test_second_derivative_of_a_hand_written_pass_raises(form):
    (q, k, v, key_table, *_), _ = Case(4, 4).inputs()
    (first,) = torch.autograd.grad(
        form(q.requires_grad_(), k, v, key_table=key_table).square().sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@EACH_PASS
def test_training_after_inference_mode_gives_the_same_results(form):
    # Autograd cannot use tensors cached in inference mode.
    inputs, _ = Case(19, 19, keys=3).inputs()
    with torch.inference_mode():
        translated = form(*inputs[:3], key_table=inputs[3], value_table=inputs[4])
    z, *gradients = results(form, inputs, torch.ones_like(inputs[0]))
    assert torch.equal(z, translated)
    assert_same(gradients, results(reference, inputs, torch.ones_like(inputs[0]))[1:], "gradients")


def test_keys_and_values_of_batch_1_are_broadcast():
    (q, k, v, key_table, value_table, *_), _ = Case(5, 7, batch=3).inputs()
    k, v = (x[:1].clone().requires_grad_() for x in (k, v))
    tables = {"key_table": key_table, "value_table": value_table}
    for implementation in ("auto", "dense", "blockwise", "composed"):
        z = attend(q, k, v, **tables, implementation=implementation)
        torch.testing.assert_close(z, reference(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), **tables))
        assert [x.shape for x in torch.autograd.grad(z.square().sum(), (k, v))] == [k.shape, v.shape]


@pytest.mark.parametrize(
    "sizes, on_keys", [({"batch": 0}, True), ({"num_queries": 0}, True), ({"num_keys": 0}, True), ({"batch": 0}, False)]
)
def test_empty_inputs_give_empty_or_zero_outputs_and_gradients(sizes, on_keys):
    case = replace(Case(3, 3, keys=2 if on_keys else None, values=1), **sizes)
    inputs, _ = case.inputs()
    mask = torch.ones(case.batch, 1, 1, case.num_keys, dtype=torch.bool)
    for name in ("reference", "auto", "dense", "blockwise"):
        z, *gradients = results(FORMS[name], inputs, torch.ones_like(inputs[0]), mask=mask, causal=case.num_keys > 0)
        assert z.shape == inputs[0].shape and not z.any()
        assert not any(gradient.any() for gradient in gradients)


REFUSED = [
    ({"key_table": (5, 4)}, r"key_table: shape \[5, 4\] is not \[R, 3\] or \[2, R, 3\]"),
    ({"value_table": (3, 5, 3)}, r"value_table: shape \[3, 5, 3\] is not"),
    ({"key_table": (1, 2, 5, 3)}, r"key_table: shape \[1, 2, 5, 3\] is not"),
    ({"value_table": (2, 6, 3)}, r"value_table: 6 rows are not 2k\+1, one for each distance from -k to k"),
    ({"bias_table": (2, 4)}, r"bias_table: 4 rows are not 2k\+1"),
    ({"bias_table": (3, 5)}, r"bias_table: shape \[3, 5\] is not \[2, R\]"),
    ({"bias_table": (5,)}, r"bias_table: shape \[5\] is not"),
    ({"distance_queries": (2, 2, 4, 3)}, r"distance_queries: there is no key_table, whose rows they multiply"),
    ({"distance_queries": (2, 2, 5, 3)}, r"distance_queries: shape \[2, 2, 5, 3\] is not \[2, 2, 4, 3\]"),
    ({"distance_queries": (2, 2, 4, 1), "key_table": (3, 3)}, r"key_table: shape \[3, 3\] is not \[R, 1\] or"),
    ({"key_bias": (2, 4)}, r"key_bias: shape \[2, 4\] is not \[2, 2, 5\]"),
    ({"labels": (4, 5), "dtype": torch.int32}, r"labels: torch.int32 is not int64"),
    ({"labels": (5, 4)}, r"labels: shape \[5, 4\] is not \[4, 5\] or \[2, 4, 5\]"),
    ({"labels": (3, 4, 5)}, r"labels: shape \[3, 4, 5\] is not"),
]


@pytest.mark.parametrize("wrong, message", REFUSED)
def test_invalid_shape_raises(wrong, message):
    (q, k, v, *_), _ = Case(4, 5).inputs()
    dtype = wrong.get("dtype", torch.int64 if "labels" in wrong else q.dtype)
    options = {name: torch.zeros(shape, dtype=dtype) for name, shape in wrong.items() if name != "dtype"}
    for implementation in ("auto", "triton"):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, implementation=implementation, **options)
    if "value_table" not in options:
        with pytest.raises(ValueError, match=message):
            weights(q, k, **options)


def test_triton_with_labels_or_bias_raises():
    (q, k, v, _, _, bias, *_), options = Case(4, 4, bias=1, labels="QK").inputs()
    message = "triton supports only key and value tables by distance, no labels, score bias or queries of their"
    for more in ({"labels": options["labels"]}, {"bias_table": bias[:, :3]}):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, implementation="triton", **more)


# Precision and masked rows


@pytest.mark.parametrize("mask", ["", "K"])
def test_later_keys_stay_hidden_whatever_their_scores(mask):
    """Of xPos they grow exponentially with the distance, here to 1e23."""
    inputs, options = Case(40, 40, keys=None, values=None, causal=True, width=8, mask=mask, seed=1).inputs()
    growth_K1 = 4.0 ** torch.arange(40, dtype=inputs[0].dtype)[:, None]
    inputs[0], inputs[1] = inputs[0] / growth_K1, inputs[1] * growth_K1
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=inputs[0].dtype)
    right = results(reference, inputs, weight, **options)
    for name, form in FORMS.items():
        for actual, exact in zip(results(form, inputs, weight, **options), right, strict=True):
            torch.testing.assert_close(actual / exact.abs().max(), exact / exact.abs().max(), msg=name)


def test_running_sums_as_key_bias_are_exact_in_bfloat16():
    """bfloat16 rounds sums of hundreds by whole units, also where their differences are small."""
    inputs, options = Case(400, 400, keys=None, values=None, key_bias=True, causal=True, width=8).inputs()
    inputs[-1] = 300 + torch.rand(2, 2, 400, generator=torch.Generator().manual_seed(2)).cumsum(-1)
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    right = results(reference, [None if x is None else x.double() for x in inputs], weight, **options)
    narrow = [None if x is None else x.bfloat16() for x in inputs[:-1]] + [inputs[-1].float()]
    for name, form in FORMS.items():
        for actual, exact in zip(results(form, narrow, weight.bfloat16(), **options), right, strict=True):
            assert (actual.double() - exact).norm() < 0.03 * exact.norm(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", [Case(6, 6), Case(6, 6, causal=True, labels="BQK", bias=1)], ids=["plain", "causal"])
def test_fully_masked_queries_have_no_nan_forward_or_backward(case, dtype):
    inputs, options = case.inputs(dtype)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[1] = False  # only padding
    mask[0, 0, :, :3] = False  # left padding: hides everything from the first causal queries
    mask[0, 0, 4] = False
    options["mask"] = mask
    tolerance = {torch.float16: 0.01, torch.bfloat16: 0.05}.get(dtype, 1e-5)
    alone = {**options, "mask": mask[:1]} | ({"labels": options["labels"][:1]} if "labels" in options else {})
    for form in FORMS.values():
        z, *_ = results(form, inputs, torch.ones_like(inputs[0]), **options)  # asserts that all are finite
        expected, *_ = results(
            form, [x if x is None or at > 2 else x[:1] for at, x in enumerate(inputs)], z[:1], **alone
        )
        torch.testing.assert_close(z[0, :, [3, 5]], expected[0, :, [3, 5]], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype, error", [(torch.float32, 1e-5), (torch.bfloat16, 0.04)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["whole", "causal, padding", "steps with cache", "long", "key bias"])
def test_float32_and_bfloat16_are_within_rounding_of_float64(name, dtype, error):
    # bfloat16 has 8 significant bits: at most 0.4 % error per number.
    narrow, options = CASES[name].inputs(dtype)
    if "mask" in options:
        options["mask"][..., 0] = True  # every query has a visible key
    weight = torch.randn(narrow[0].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    right = results(reference, CASES[name].inputs()[0], weight.double(), **options)
    size = max(x.norm() for x in right[1:])
    for form_name, form in FORMS.items():
        for actual, exact in zip(results(form, narrow, weight, **options), right, strict=True):
            assert actual.dtype == dtype
            # Gradients much smaller than the others are differences of large terms, with their rounding.
            assert (actual.double() - exact).norm() < error * max(exact.norm(), size / 4), form_name


def test_bfloat16_table_gradients_of_long_sentences_are_accurate(monkeypatch):
    # The paper's algorithm sums 512^2 pairs into 33 rows in bfloat16: the measure must show its error.
    monkeypatch.setattr(attention, "BLOCK_SCORES", 2**15)  # 64 queries in a block: 8 blocks
    inputs, _ = Case(512, 512, keys=16, values=16, width=16).inputs(torch.bfloat16)
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = results(reference, [None if x is None else x.double() for x in inputs], weight.double())[4:]
    for name in ("dense", "blockwise", "composed", "per_position"):
        of_tables = results(FORMS[name], inputs, weight)[4:]
        errors = [(x.double() - right).norm() / right.norm() for x, right in zip(of_tables, exact, strict=True)]
        assert len(errors) == 2 and all(error > 0.1 if name == "per_position" else error < 0.01 for error in errors)


def test_float32_tables_work_with_bfloat16_queries():
    inputs, _ = Case(16, 16, keys=4, values=4, width=32, bias=2).inputs(torch.bfloat16)
    mixed = [*inputs[:3], *(None if table is None else table.float() for table in inputs[3:])]
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name, form in FORMS.items():
        actual, narrow = results(form, mixed, weight), results(form, inputs, weight)
        assert [x.dtype for x in actual] == [torch.bfloat16] * 4 + [torch.float32] * 3
        for mine, right in zip(actual, narrow, strict=True):
            assert (mine.double() - right.double()).norm() < 0.03 * right.double().norm(), name


@EACH_PASS
def test_gradient_of_a_clipped_row_is_summed_in_float32_under_bfloat16(form):
    """The weights sum to 1, so the gradients of all rows of w^V add up to that of z, unless one is rounded."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 400, 4, dtype=torch.bfloat16)
    weight = (1 + torch.rand(q.shape) / 16).to(torch.bfloat16)  # about 412 a column
    *_, of_table = results(form, [q, k, v, None, torch.zeros(3, 4)], weight)
    assert of_table.dtype == torch.float32
    exact = weight.double().sum((0, 1, 2))
    assert (of_table.double().sum(0) - exact).abs().max() < 1e-4 * exact.max()


def test_gradients_of_blocks_are_summed_in_float32_under_bfloat16():
    inputs, options = Case(400, 400, causal=True).inputs(torch.bfloat16)
    weight = torch.rand(inputs[0].shape, generator=torch.Generator().manual_seed(1)).bfloat16()  # nothing cancels
    exact = results(reference, [None if x is None else x.double() for x in inputs], weight.double(), **options)[3]
    of_values = results(FORMS["blocks of 3"], inputs, weight, **options)[3]
    assert (of_values.double() - exact).norm() < 0.005 * exact.norm()


@EACH_PASS
def test_autocast_does_not_change_float32_results(form):
    inputs, _ = Case(9, 9).inputs(torch.float32)
    outside = results(form, inputs, torch.ones_like(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        inside = results(form, inputs, torch.ones_like(inputs[0]))
    assert_same(inside, outside, "autocast", tolerance=0)
