"""Attention with narrow numbers and masked rows: every implementation within rounding of float64, and finite."""

import pytest
import torch

from rpr.model import attention
from tests.model.attention_cases import CASES, EACH_PASS, FORMS, Case, assert_same, composed, results


@pytest.mark.parametrize("mask", ["", "K"])
def test_later_keys_stay_hidden_whatever_their_scores(mask):
    """Of xPos they grow exponentially with the distance, here to 1e23."""
    inputs, options = Case(40, 40, keys=None, values=None, causal=True, width=8, mask=mask, seed=1).inputs()
    growth_K1 = 4.0 ** torch.arange(40, dtype=inputs[0].dtype)[:, None]
    inputs[0], inputs[1] = inputs[0] / growth_K1, inputs[1] * growth_K1
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=inputs[0].dtype)
    right = results(composed, inputs, weight, **options)
    for name, form in FORMS.items():
        for actual, exact in zip(results(form, inputs, weight, **options), right, strict=True):
            torch.testing.assert_close(actual / exact.abs().max(), exact / exact.abs().max(), msg=name)


def test_running_sums_as_key_bias_are_not_rounded_by_autocast(monkeypatch):
    """Where weights are not stored, the bias may be a column of the keys; autocast would round it to whole units."""
    monkeypatch.setattr(attention, "LONG", 24)
    monkeypatch.setattr(attention, "STORED_BYTES", 0)
    inputs, options = Case(40, 40, keys=None, values=None, key_bias=True, causal=True, width=8).inputs(torch.float32)
    inputs[7] = 300 + torch.rand(2, 2, 40, generator=torch.Generator().manual_seed(2)).cumsum(-1)
    weight = torch.ones_like(inputs[0])
    exact, *_ = results(composed, [None if x is None else x.double() for x in inputs], weight.double(), **options)
    plain, *_ = results(attention.attend, inputs, weight, **options)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, *_ = results(attention.attend, inputs, weight, **options)
    assert (plain - exact).abs().max() < 1e-4 and (rounded - exact).abs().max() < 0.02


@pytest.mark.parametrize("more", [{}, pytest.param({"window": 90, "sink": True}, marks=pytest.mark.slow)])
def test_running_sums_as_key_bias_are_exact_in_bfloat16(more):
    """bfloat16 rounds sums of hundreds by whole units, also where their differences are small."""
    inputs, options = Case(200, 200, keys=None, values=None, key_bias=True, causal=True, width=8, **more).inputs()
    inputs[7] = 300 + torch.rand(2, 2, 200, generator=torch.Generator().manual_seed(2)).cumsum(-1)
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    right = results(composed, [None if x is None else x.double() for x in inputs], weight, **options)
    narrow = [None if x is None else x.float() if place == 7 else x.bfloat16() for place, x in enumerate(inputs)]
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
    right = results(composed, CASES[name].inputs()[0], weight.double(), **options)
    size = max(x.norm() for x in right[1:])
    for form_name, form in FORMS.items():
        for actual, exact in zip(results(form, narrow, weight, **options), right, strict=True):
            assert actual.dtype == dtype
            # Gradients much smaller than the others are differences of large terms, with their rounding.
            assert (actual.double() - exact).norm() < error * max(exact.norm(), size / 4), form_name


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
    exact = results(composed, [None if x is None else x.double() for x in inputs], weight.double(), **options)[3]
    of_values = results(FORMS["blocks of 3"], inputs, weight, **options)[3]
    assert (of_values.double() - exact).norm() < 0.005 * exact.norm()


@EACH_PASS
def test_autocast_does_not_change_float32_results(form):
    inputs, _ = Case(9, 9).inputs(torch.float32)
    outside = results(form, inputs, torch.ones_like(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        inside = results(form, inputs, torch.ones_like(inputs[0]))
    assert_same(inside, outside, "autocast", tolerance=0)
