"""Checked here: dropout's rate, mean and independence against the binomial distribution (within 4 standard
deviations, at fixed seeds), its values and gradient against x * mask / (1 - p), identity where nothing is dropped.
"""

from __future__ import annotations

import math

import pytest
import torch

from rpr.model.dropout import LEVELS, Dropout

NUMBERS = 400_001  # not a multiple of the four levels in a word


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_p_and_the_mean_is_kept(p):
    torch.manual_seed(1)
    out = Dropout(p)(torch.ones(NUMBERS, dtype=torch.float64))
    sigma = math.sqrt(p * (1 - p) / NUMBERS)
    assert abs((out == 0).double().mean() - p) < 4 * sigma + 1 / LEVELS
    assert abs(out.mean() - 1) < 4 * sigma / (1 - p) + 1 / LEVELS


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8])
def test_neighbours_are_dropped_independently(lag):
    torch.manual_seed(2)
    p = 0.3
    dropped = Dropout(p)(torch.ones(NUMBERS)) == 0
    pairs = (dropped[lag:] & dropped[:-lag]).double()
    # The pairs overlap: var(sum) <= n (q (1 - q) + 2 (p^3 - p^4)) with q = p^2.
    sigma = math.sqrt((p**2 * (1 - p**2) + 2 * (p**3 - p**4)) / pairs.numel())
    assert abs(pairs.mean() - p**2) < 4 * sigma + 2 * p / LEVELS


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_each_of_the_four_levels_of_a_word_has_the_rate(p):
    torch.manual_seed(3)
    dropped = (Dropout(p)(torch.ones(100_000, 4)) == 0).double().mean(dim=0)
    assert (dropped - p).abs().max() < 4 * math.sqrt(p * (1 - p) / 100_000) + 1 / LEVELS


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_what_is_kept_is_scaled_by_one_over_one_minus_p(p):
    torch.manual_seed(4)
    x = torch.randn(50, 7, 3, dtype=torch.float64)
    out = Dropout(p)(x)
    kept = out != 0
    assert 0 < kept.sum() < x.numel()
    torch.testing.assert_close(out[kept], x[kept] / (1 - p), rtol=1 / LEVELS, atol=0)


def test_the_gradient_is_the_mask_of_the_forward_pass():
    torch.manual_seed(5)
    x = torch.rand(1000, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.4)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_sum_with_dropout_is_the_sum_of_both(p):
    """Value and both gradients, with the same draw."""
    residual, x = (torch.randn(6, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    grad_out = torch.randn(6, 5, 4, dtype=torch.float64)
    dropout = Dropout(p)
    torch.manual_seed(11)
    expected = residual + dropout(x)
    torch.manual_seed(11)
    found = dropout.add(residual, x)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(out, [residual, x], grad_out) for out in (found, expected))
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right)
    assert torch.equal(dropout.eval().add(residual, x), residual + x)


def test_nothing_happens_in_eval_nor_at_p_0():
    x = torch.randn(1000)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not torch.equal(Dropout(0.5)(x), x)


def test_the_seed_decides_the_mask_and_each_call_draws_another():
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(6)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(6)
    again = dropout(x)
    torch.manual_seed(7)
    other = dropout(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (2, 0, 3), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shape_and_precision_are_kept(shape, dtype):
    torch.manual_seed(8)
    out = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert out.shape == shape
    assert out.dtype == dtype
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


def test_a_transposed_input_is_dropped_like_any_other():
    torch.manual_seed(9)
    x = torch.rand(6, 5, 4) + 1
    out = Dropout(0.5)(x.transpose(0, 2))
    kept = out != 0
    assert torch.equal(out[kept], 2 * x.transpose(0, 2)[kept])


@pytest.mark.parametrize("p", [0.99999, 0.999999, 1 - 2**-40])
def test_a_p_within_a_level_of_1_drops_nearly_everything_and_divides_by_nothing(p):
    torch.manual_seed(10)
    out = Dropout(p)(torch.ones(1000))
    assert torch.isfinite(out).all()
    assert (out == 0).double().mean() > 0.99


@pytest.mark.parametrize("p", [-0.1, 1.0, 1, 1.5, float("nan")])
def test_p_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match=rf"dropout: {p} is not in \[0, 1\)"):
        Dropout(p)


def test_the_module_prints_its_p():
    assert repr(Dropout(0.25)) == "Dropout(p=0.25)"
