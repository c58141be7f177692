"""On a CUDA device: every implementation of attention against `reference` in float64, forward and backward, in float32
and bfloat16; determinism; no synchronisation with the CPU; memory linear in the length. Dropout's rate and mean.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from rpr.model.attention import attend, reference
from rpr.model.dropout import Dropout
from tests.model.attention_cases import FORMS as CPU_FORMS
from tests.model.attention_cases import NAMES, Case, passes, results

pytestmark = pytest.mark.gpu

FORMS = {**CPU_FORMS, **{name: partial(attend, implementation=name) for name in ("triton", "compiled")}}
TRAINED = ("auto", "dense", "blockwise", "composed", "triton")
COMPILED = ("both", "bias", "plain")  # compiling takes long
LONG = Case(70, 70, keys=9, values=9, per_head=(True, True), width=32)
CASES = {
    "both": replace(LONG, mask="BK"),
    "shared": replace(LONG, per_head=(False, False), causal=True),
    "keys": replace(LONG, values=None, mask="BQK"),
    "values": replace(LONG, keys=None, mask="BQK"),  # and a row without a visible key
    "bias": replace(LONG, keys=None, values=None, bias=9, mask="BK"),
    "keys_and_bias": replace(LONG, values=None, bias=9, per_head=(False, False), causal=True),
    "plain": replace(LONG, keys=None, values=None, mask="BK"),
    "plain_causal": replace(LONG, keys=None, values=None, causal=True),
    "labels": replace(LONG, bias=9, labels="BQK", per_head=(True, False)),
    "cache": replace(LONG, num_keys=107, first_query=37, causal=True),
}


def inputs_of(case, dtype, device):
    """As `Case.inputs`, a cotangent, 0 for queries without a visible key, and which queries have one."""
    inputs, options = case.inputs(dtype)
    if case == CASES["values"]:
        options["mask"][..., 5, :] = False
    valid = case.has_visible_key(options)
    cotangent = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(dtype) * valid
    inputs = [None if x is None else x.to(device) for x in inputs]
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return inputs, options, cotangent.to(device), valid.to(device)


def skip_if_unsupported(name, case, device):
    of = CASES[case]
    if name == "triton":
        if device.type == "cpu":
            pytest.skip("triton needs a CUDA device")
        pytest.importorskip("triton", reason="triton is not installed")
        if of.bias is not None or of.labels:
            pytest.skip("triton supports only vectors by distance")
    if name == "compiled" and (case not in COMPILED or device.type == "cpu"):
        pytest.skip("compiling takes long: only some cases on a CUDA device")


@pytest.mark.parametrize("dtype, largest", [(torch.float32, 5e-5), (torch.bfloat16, 0.04)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FORMS)
def test_all_implementations_match_reference(name, case, dtype, largest, device):
    skip_if_unsupported(name, case, device)
    exact_inputs, options, exact_cotangent, valid = inputs_of(CASES[case], torch.float64, device)
    inputs, _, cotangent, _ = inputs_of(CASES[case], dtype, device)
    expected = results(reference, exact_inputs, exact_cotangent, **options)
    actual, again = (results(FORMS[name], inputs, cotangent, **options) for _ in range(2))
    assert all(x.dtype == dtype and x.device == device for x in actual)
    names = ["z", *(n for n, x in zip(NAMES, inputs, strict=True) if x is not None)]
    # These two sum the gradients of tables in bfloat16, which loses most of them.
    inexact = dtype == torch.bfloat16 and name in ("reference", "per_position")
    for found in (actual, again, expected):
        found[0] *= valid
    errors = {
        n: ((mine.double() - exact).norm() / exact.norm()).item()
        for n, mine, exact in zip(names, actual, expected, strict=True)
        if not (inexact and n.endswith("table"))
    }
    assert max(errors.values()) < largest, errors
    if name in ("dense", "blockwise", "triton"):
        assert all(torch.equal(one, two) for one, two in zip(actual, again, strict=True))


@pytest.mark.parametrize("case", ["both", "shared", "bias", "plain", "plain_causal"])
@pytest.mark.parametrize("name", TRAINED)
def test_attention_does_not_synchronise_with_the_cpu(name, case, cuda):
    skip_if_unsupported(name, case, cuda)
    inputs, options, cotangent, _ = inputs_of(CASES[case], torch.bfloat16, cuda)
    passes(FORMS[name], inputs, cotangent, **options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        passes(FORMS[name], inputs, cotangent, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def peak(name, length, device):
    case = replace(CASES["shared"], num_queries=length, num_keys=length, keys=16, values=16, width=64)
    inputs, options, cotangent, _ = inputs_of(case, torch.bfloat16, device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    passes(FORMS[name], inputs, cotangent, **options)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", ["blockwise", "triton"])
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
