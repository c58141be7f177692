"""Few rows: the results of torch's linear map, up to rounding. Dropout's rate, mean and independence within 4 standard
deviations (at fixed seeds); values and gradients.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from rpr.model.layers import LEVELS, Dropout, linear

NUMBERS = 200_001  # not a multiple of the four levels of a random word


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_rate_is_p_for_each_level_of_a_word_and_mean_is_preserved(p):
    torch.manual_seed(1)
    out = Dropout(p)(torch.ones(NUMBERS, dtype=torch.float64))
    sigma = math.sqrt(p * (1 - p) / NUMBERS)
    assert abs((out == 0).double().mean() - p) < 4 * sigma + 1 / LEVELS
    assert abs(out.mean() - 1) < 4 * sigma / (1 - p) + 1 / LEVELS
    of_level = (out[:-1].view(-1, 4) == 0).double().mean(dim=0)
    assert (of_level - p).abs().max() < 4 * 2 * sigma + 1 / LEVELS


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_kept_values_and_gradients_are_scaled_by_1_over_1_minus_p(p):
    torch.manual_seed(4)
    x = torch.randn(50, 7, 3, dtype=torch.float64, requires_grad=True)
    for view in (x, x.transpose(0, 2)):
        out = Dropout(p)(view)
        kept = out != 0
        assert 0 < kept.sum() < x.numel()
        torch.testing.assert_close(out[kept], view[kept] / (1 - p), rtol=1 / LEVELS, atol=0)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(gradient * x, out if view is x else out.transpose(0, 2))


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_add_matches_dropout_then_addition(p):
    residual, x = (torch.randn(6, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    grad_out = torch.randn(6, 5, 4, dtype=torch.float64)
    dropout = Dropout(p)
    torch.manual_seed(11)
    expected = residual + dropout(x)
    torch.manual_seed(11)
    found = dropout.add(residual, x)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(out, [residual, x], grad_out) for out in (found, expected))
    torch.testing.assert_close(*gradients)
    assert torch.equal(dropout.eval().add(residual, x), residual + x)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 520), (2, 1, 520), (3, 4, 520), (1, 260, 520), (0, 1, 520)])
@pytest.mark.parametrize("width", [3, 140, 600])
def test_few_rows_match_torch(shape, width, biased):
    x, weight, bias = torch.randn(shape), torch.randn(width, 520), torch.randn(width) if biased else None
    with torch.inference_mode():
        torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)


def test_gradients_and_other_types_are_torch_s():
    x, weight = torch.randn(2, 520, requires_grad=True), torch.randn(600, 520, requires_grad=True)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    linear(x, weight).sum().backward()
    assert weight.grad is not None and x.grad is not None
    with torch.inference_mode():
        wide, narrow = x.double(), x.bfloat16()
        assert torch.equal(linear(wide, weight.double()), F.linear(wide, weight.double()))
        assert torch.equal(linear(narrow, weight.bfloat16()), F.linear(narrow, weight.bfloat16()))
