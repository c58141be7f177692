"""On a CUDA device: every implementation of attention against `composed` in float64, forward and backward, in float32
and bfloat16; determinism; no synchronisation with the CPU; memory linear in the length. Dropout's rate and mean.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from rpr.model.attention import attend
from rpr.model.layers import Dropout
from tests.model.attention_cases import NAMES, Case, composed

pytestmark = pytest.mark.gpu

FORMS = {
    "composed": composed,
    **{name: partial(attend, implementation=name) for name in ("auto", "dense", "blockwise", "triton")},
}
TEXT = Case(70, 70, keys=None, values=None, width=32)
CASES = {
    "both": replace(TEXT, keys=9, values=9, per_head=(True, True), mask="BK"),
    "shared": replace(TEXT, keys=9, values=9, per_head=(False, False), causal=True),
    "keys": replace(TEXT, keys=9, mask="BQK"),
    "values": replace(TEXT, values=9, per_head=(True, True), mask="QK"),
    "bias": replace(TEXT, bias=9, mask="BK"),
    "keys_and_bias": replace(TEXT, keys=9, per_head=(False, False), bias=9, causal=True),
    "plain": replace(TEXT, mask="BK"),
    "plain_causal": replace(TEXT, causal=True),
    "labels": replace(TEXT, keys=9, values=9, labels="BQK"),
    "cache": replace(TEXT, keys=9, values=9, num_keys=107, first_query=37, causal=True),
}


def inputs_of(case, dtype, device):
    """q, k, v and tables by name; the other arguments."""
    inputs, other = case.inputs(dtype)
    tensors = {name: x.to(device) for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    return tensors, {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in other.items()}


def passes(form, tensors, other, cotangent, valid=1.0):
    """z and all gradients, 0 for queries that are not valid."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
    named = {name: leaves[name] for name in leaves if name not in ("q", "k", "v")}
    z = form(leaves["q"], leaves["k"], leaves["v"], **named, **other)
    gradients = torch.autograd.grad((z * valid), list(leaves.values()), cotangent.to(z.dtype) * valid)
    return {"z": (z * valid).detach(), **dict(zip(leaves, gradients, strict=True))}


def error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def skip_if_unsupported(name, case, device):
    if name == "triton":
        if device.type == "cpu":
            pytest.skip("triton needs a CUDA device")
        pytest.importorskip("triton", reason="triton is not installed")
        if CASES[case].labels:
            pytest.skip("triton supports only tables by distance")


@pytest.mark.parametrize("dtype, largest", [(torch.float32, 5e-5), (torch.bfloat16, 0.03)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FORMS)
def test_all_implementations_match_float64(name, case, dtype, largest, device):
    skip_if_unsupported(name, case, device)
    tensors, other = inputs_of(CASES[case], dtype, device)
    valid = CASES[case].has_visible_key(CASES[case].inputs()[1]).to(device)
    cotangent = torch.randn(tensors["q"].shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    expected = passes(composed, {n: x.double() for n, x in tensors.items()}, other, cotangent.double(), valid)
    # Gradients of what labels select are torch's, which adds them up atomically unless asked for the same bits.
    torch.use_deterministic_algorithms("labels" in other, warn_only=True)
    actual, again = (passes(FORMS[name], tensors, other, cotangent, valid) for _ in range(2))
    torch.use_deterministic_algorithms(False)
    assert all(x.dtype == dtype and x.device == device for x in actual.values())
    assert all(x.isfinite().all() for x in actual.values())
    errors = {n: error(actual[n], expected[n]) for n in actual}
    assert all(one < largest for one in errors.values()), errors  # a maximum could hide NaN
    if name in ("dense", "blockwise", "triton"):
        assert all(torch.equal(actual[n], again[n]) for n in actual)


@pytest.mark.parametrize("case", ["both", "shared", "bias", "plain", "plain_causal"])
@pytest.mark.parametrize("name", FORMS)
def test_attention_does_not_synchronise_with_the_cpu(name, case, cuda):
    skip_if_unsupported(name, case, cuda)
    tensors, other = inputs_of(CASES[case], torch.bfloat16, cuda)
    cotangent = torch.randn_like(tensors["q"])
    passes(FORMS[name], tensors, other, cotangent)
    torch.cuda.set_sync_debug_mode("error")
    try:
        passes(FORMS[name], tensors, other, cotangent)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def peak(name, length, device):
    case = replace(CASES["shared"], num_queries=length, num_keys=length, keys=16, values=16, width=64)
    tensors, other = inputs_of(case, torch.bfloat16, device)
    cotangent = torch.randn_like(tensors["q"])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    passes(FORMS[name], tensors, other, cotangent)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", ["auto", "blockwise", "triton"])
def test_memory_grows_linearly_with_the_length(name, cuda):
    skip_if_unsupported(name, "shared", cuda)
    peak(name, 256, cuda)  # allocates what stays cached
    short, long = peak(name, 4096, cuda), peak(name, 16384, cuda)
    assert long < 4.5 * short
    assert long < peak("dense", 4096, cuda)  # which stores all weights, at a quarter of the length


def test_dropout_rate_is_p_and_mean_is_preserved(device):
    torch.manual_seed(1)
    numbers = 400_001
    out = Dropout(0.3)(torch.ones(numbers, dtype=torch.float64, device=device))
    sigma = math.sqrt(0.3 * 0.7 / numbers)
    assert abs((out == 0).double().mean() - 0.3) < 4 * sigma
    assert abs(out.mean() - 1) < 4 * sigma / 0.7
