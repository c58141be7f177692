"""Few rows: the results of torch's linear map, up to rounding. With gradients, or in other types, it is torch's."""

import pytest
import torch
import torch.nn.functional as F

from rpr.model.linear import linear


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
