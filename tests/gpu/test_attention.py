"""On a CUDA device: every implementation of attention against `composed` in float64, forward and backward, in float32
and bfloat16; determinism; no synchronisation with the CPU; memory linear in the length. Dropout's rate and mean.
"""

import math
from functools import partial

import pytest
import torch

from rpr.model.attention import attend
from rpr.model.layers import Dropout
from tests.model.attention_cases import composed

pytestmark = pytest.mark.gpu

HEADS, WIDTH = 2, 32
FORMS = {
    "composed": composed,
    **{name: partial(attend, implementation=name) for name in ("auto", "dense", "blockwise", "triton")},
}
TRAINED = ("auto", "dense", "blockwise", "composed", "triton")
# Inputs besides q, k and v; tables of keys and values are per head or shared by heads.
CASES = {
    "both": {"keys": "per_head", "values": "per_head", "mask": "by_key"},
    "shared": {"keys": "shared", "values": "shared", "causal": True},
    "keys": {"keys": "per_head", "mask": "by_query"},
    "values": {"values": "per_head", "mask": "empty_rows"},
    "bias": {"bias": True, "mask": "by_key"},
    "keys_and_bias": {"keys": "shared", "bias": True, "causal": True},
    "plain": {"mask": "by_key"},
    "plain_causal": {"causal": True},
    "labels": {"keys": "per_head", "values": "shared", "bias": True, "labels": True},
    "cache": {"keys": "per_head", "values": "per_head", "causal": True, "first_query": 37},
}


def inputs_of(case, dtype, device, *, queries=70, k=9, width=WIDTH):
    """q, k, v and tables by name; the other arguments; which queries have a visible key."""
    of = CASES[case]
    random = torch.Generator().manual_seed(sum(map(ord, case)))
    first = of.get("first_query", 0)
    keys = queries + first
    shapes = {"q": (2, HEADS, queries, width), "k": (2, HEADS, keys, width), "v": (2, HEADS, keys, width)}
    for name, sharing in (("key_table", of.get("keys")), ("value_table", of.get("values"))):
        if sharing is not None:
            shapes[name] = (HEADS, 2 * k + 1, width) if sharing == "per_head" else (2 * k + 1, width)
    if "bias" in of:
        shapes["bias_table"] = (HEADS, 2 * k + 1)
    tensors = {name: torch.randn(shape, generator=random).to(dtype).to(device) for name, shape in shapes.items()}
    other = {"causal": of.get("causal", False), "first_query": first}
    if "labels" in of:
        other["labels"] = torch.randint(2 * k + 1, (2, queries, keys), generator=random).to(device)
    valid = torch.ones(queries, 1, dtype=torch.bool, device=device)
    if (kind := of.get("mask")) is not None:
        mask = torch.arange(keys) < torch.tensor([keys, keys - 21])[:, None, None, None]
        if kind != "by_key":
            mask = mask & (torch.rand(queries, keys, generator=random) < 0.7)
        if kind == "empty_rows":
            mask[..., 5, :] = False
            valid[5] = False
        other["mask"] = mask.to(device)
    return tensors, other, valid


def passes(form, tensors, other, valid, cotangent):
    """z and all gradients, 0 for queries without a visible key."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
    named = {name: leaves[name] for name in leaves if name not in ("q", "k", "v")}
    z = form(leaves["q"], leaves["k"], leaves["v"], **named, **other)
    gradients = torch.autograd.grad((z * valid), list(leaves.values()), cotangent.to(z.dtype) * valid)
    return {"z": (z * valid).detach(), **dict(zip(leaves, gradients, strict=True))}


def error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def skip_if_unsupported(name, case, device):
    of = CASES[case]
    if name == "triton":
        if device.type == "cpu":
            pytest.skip("triton needs a CUDA device")
        pytest.importorskip("triton", reason="triton is not installed")
        if "bias" in of or "labels" in of:
            pytest.skip("triton supports only vectors by distance")


@pytest.mark.parametrize("dtype, largest", [(torch.float32, 5e-5), (torch.bfloat16, 0.03)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FORMS)
def test_all_implementations_match_reference(name, case, dtype, largest, device):
    skip_if_unsupported(name, case, device)
    tensors, other, valid = inputs_of(case, dtype, device)
    cotangent = torch.randn(tensors["q"].shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    expected = passes(composed, {n: x.double() for n, x in tensors.items()}, other, valid, cotangent.double())
    # Gradients of what labels select are torch's, which adds them up atomically unless asked for the same bits.
    torch.use_deterministic_algorithms("labels" in other, warn_only=True)
    actual, again = (passes(FORMS[name], tensors, other, valid, cotangent) for _ in range(2))
    torch.use_deterministic_algorithms(False)
    assert all(x.dtype == dtype and x.device == device for x in actual.values())
    assert all(x.isfinite().all() for x in actual.values())
    errors = {n: error(actual[n], expected[n]) for n in actual}
    assert all(one < largest for one in errors.values()), errors  # a maximum could hide NaN
    if name in ("dense", "blockwise", "triton"):
        assert all(torch.equal(actual[n], again[n]) for n in actual)


@pytest.mark.parametrize("case", ["both", "shared", "bias", "plain", "plain_causal"])
@pytest.mark.parametrize("name", TRAINED)
def test_attention_does_not_synchronise_with_the_cpu(name, case, cuda):
    skip_if_unsupported(name, case, cuda)
    tensors, other, valid = inputs_of(case, torch.bfloat16, cuda)
    cotangent = torch.randn_like(tensors["q"])
    passes(FORMS[name], tensors, other, valid, cotangent)
    torch.cuda.set_sync_debug_mode("error")
    try:
        passes(FORMS[name], tensors, other, valid, cotangent)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def peak(name, length, device):
    tensors, other, valid = inputs_of("shared", torch.bfloat16, device, queries=length, k=16, width=64)
    cotangent = torch.randn_like(tensors["q"])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    passes(FORMS[name], tensors, other, valid, cotangent)
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
