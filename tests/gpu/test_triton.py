"""The compiled kernels of rpr/model/kernels/ on a CUDA device against float64, forward and backward: all
precisions, combinations of tables and head widths with their own tiles, up to 8,192 positions.
"""

from functools import partial

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from rpr.model.attention import attend
from rpr.model.kernels.triton_attention import fused_attention
from tests.model.attention_cases import by_fields, composed

pytestmark = pytest.mark.gpu

HEADS = 2
ROUNDING = {  # (dtype, precision of float32 products): the largest relative error of z and of each gradient
    (torch.float32, "highest"): 1e-5,
    (torch.float32, "high"): 3e-3,
    (torch.bfloat16, "highest"): 0.02,
    (torch.float16, "highest"): 2e-3,
    (torch.float64, "highest"): 1e-11,
}
BOTH = ("key_table", "value_table")
FULL, HALF = (torch.float32, "high"), (torch.bfloat16, "highest")
CASES = [
    *[(64, 1000, precision, BOTH, causal) for precision in ROUNDING for causal in (True, False)],
    *[(64, 1000, HALF, tables, causal) for tables in (BOTH[:1], BOTH[1:], ()) for causal in (True, False)],
    *[(width, 1000, precision, BOTH, False) for width in (32, 128, 256) for precision in (HALF, FULL)],
    *[(width, 8192, HALF, BOTH, False) for width in (32, 64, 128, 256)],
    (64, 8192, HALF, BOTH, True),
    (80, 333, HALF, BOTH, True),
]


def exact(tensors, tables, dz, mask, causal):
    """z and all gradients in float64, of `composed` or, where it would take gigabytes, `dense`."""
    form = composed if tensors[0].shape[2] <= 1000 else partial(attend, implementation="dense")
    return passes(form, [x.double() for x in tensors], tables, dz.double(), mask, causal)


def passes(form, tensors, tables, dz, mask, causal):
    q, k, v, *present = inputs = [x.detach().requires_grad_() for x in tensors]
    out = form(q, k, v, mask=mask, causal=causal, **dict(zip(tables, present, strict=True)))
    return [out.detach(), *torch.autograd.grad(out, inputs, dz)]


@pytest.mark.parametrize("width, length, precision, tables, causal", CASES)
def test_kernels_match_float64(width, length, precision, tables, causal, cuda):
    dtype, products = precision
    torch.manual_seed(length)
    shapes = [(1, HEADS, length, width)] * 3
    shapes += [{"key_table": (HEADS, 33, width), "value_table": (129, width)}[name] for name in tables]
    tensors = [torch.randn(shape, device=cuda).to(dtype) for shape in shapes]
    dz = torch.randn_like(tensors[0])
    mask = (torch.arange(length, device=cuda) < length - 77)[None, None, None, :]
    expected = exact(tensors, tables, dz, mask, causal)
    torch.set_float32_matmul_precision(products)
    actual, again = (passes(by_fields(fused_attention), tensors, tables, dz, mask, causal) for _ in range(2))
    errors = [
        ((got.double() - wanted).norm() / wanted.norm()).item() for got, wanted in zip(actual, expected, strict=True)
    ]
    assert all(error < ROUNDING[precision] for error in errors), errors  # a maximum could hide NaN
    differences = [(one.double() - two.double()).abs().max().item() for one, two in zip(actual, again, strict=True)]
    assert not any(differences), differences
