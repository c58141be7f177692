"""Causal attention on a CPU in torch's fused kernel, in blocks of queries with the keys up to the block's end.

On its own the kernel skips later keys by blocks of 512, so a short sequence is computed as if it were not causal. It
takes a bias to the scores, of which it gives no gradient: that of a scheme which learns none (ALiBi), and any in
scoring. A bias per key is one more column of the keys, which the queries multiply by one.
"""

# Shape suffixes: B batch, H heads, Q queries, as many as keys, D head width, R table rows, C queries of a block, K keys
# up to its end.

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.attention_inputs import AttentionInputs
from rpr.model.distances import bias_of_pairs

BLOCK = 128
SHORTEST = 128  # from here on it was measured to be faster than our own passes
SHORTEST_WITH_COLUMN = 256
LONG = 2048  # from here on without a bias one call is as fast

Qkv = tuple[Tensor, Tensor, Tensor]


def usable(given: AttentionInputs) -> bool:
    """Whether the kernel computes attention of these lengths exactly and faster, whatever the positions: causal, on a
    CPU, and not by way of bfloat16.
    """
    tensors = [x for x in given[:8] if x is not None]
    num_queries, num_keys = given.q.shape[2], given.k.shape[2]
    return (
        given.causal
        and given.mask is None
        and not given.dense_alone
        and given.first_query == 0
        and num_queries == num_keys >= SHORTEST
        and given.q.device.type == "cpu"
        and {x.dtype for x in tensors} in ({torch.float32}, {torch.float64})
        and torch.get_float32_matmul_precision() == "highest"
    )


def fused(given: AttentionInputs) -> Tensor | None:
    """Attention without tables of vectors and without a bias by distance that learns; None with either, or if it is not
    faster.
    """
    q_BHQD, k_BHQD, v_BHQD = given[:3]
    bias_HR, key_bias_BHQ = given.bias_table, given.key_bias
    learns = bias_HR is not None and bias_HR.requires_grad
    short = key_bias_BHQ is not None and q_BHQD.shape[2] < SHORTEST_WITH_COLUMN
    if given.key_table is not None or given.value_table is not None or learns or short:
        return None
    scale = q_BHQD.shape[-1] ** -0.5
    if key_bias_BHQ is not None:
        q_BHQD, v_BHQD = F.pad(q_BHQD, (0, 1), value=1 / scale), F.pad(v_BHQD, (0, 1))
        k_BHQD = torch.cat([k_BHQD, key_bias_BHQ[..., None]], dim=-1)
    z_BHQD: Tensor = FusedAttention.apply(q_BHQD, k_BHQD, v_BHQD, bias_HR, scale)  # type: ignore[no-untyped-call]
    return z_BHQD if key_bias_BHQ is None else z_BHQD[..., :-1]


class FusedAttention(torch.autograd.Function):
    """apply(q, k, v, bias [H, R] or None, scale) -> z_BHQD, in the memory layouts of `BlockwiseAttention`.

    Differentiable once, but for the bias.
    """

    @staticmethod
    def forward(
        ctx: Any, q_BHQD: Tensor, k_BHQD: Tensor, v_BHQD: Tensor, bias_HR: Tensor | None, scale: float
    ) -> Tensor:
        batch, heads, length, width = q_BHQD.shape
        z_BHQD: Tensor = q_BHQD.new_empty(batch, length, heads, width).transpose(1, 2)
        lse_BHQ = forward_kernel((q_BHQD, k_BHQD, v_BHQD), z_BHQD, scale, bias_HR)
        ctx.save_for_backward(q_BHQD, k_BHQD, v_BHQD, bias_HR, z_BHQD, lse_BHQ)
        ctx.scale = scale
        return z_BHQD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz_BHQD: Tensor) -> tuple[Tensor | None, ...]:
        q_BHQD, k_BHQD, v_BHQD, bias_HR, z_BHQD, lse_BHQ = ctx.saved_tensors
        d_qkv = gradient_buffers(dz_BHQD)
        backward_kernel(dz_BHQD, (q_BHQD, k_BHQD, v_BHQD), z_BHQD, lse_BHQ, d_qkv, ctx.scale, bias_HR)
        return *d_qkv, None, None


def forward_kernel(qkv: Qkv, z_BHQD: Tensor, scale: float, bias_HR: Tensor | None = None) -> Tensor:
    """Write z; returns the logarithms of the sums of exponentials, [B, H, Q]."""
    sums = []
    for start, stop, options in _blocks(qkv[0], bias_HR):
        q_BHCD, k_BHKD, v_BHKD = _until(qkv, start, stop)
        out_BHCD, lse_BHC = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHCD, k_BHKD, v_BHKD, scale=scale, **options
        )
        z_BHQD[:, :, start:stop] = out_BHCD
        sums.append(lse_BHC)
    return torch.cat(sums, dim=2)


def backward_kernel(
    dz_BHQD: Tensor, qkv: Qkv, z_BHQD: Tensor, lse_BHQ: Tensor, d_qkv: Qkv, scale: float, bias_HR: Tensor | None = None
) -> None:
    """Add the gradients of q, k and v to `d_qkv`; `z_BHQD` and `lse_BHQ` may be those of more keys than these."""
    for start, stop, options in _blocks(dz_BHQD, bias_HR):
        at = (slice(None), slice(None), slice(start, stop))
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dz_BHQD[at], *_until(qkv, start, stop), z_BHQD[at], lse_BHQ[at].contiguous(), 0.0,
            options.get("is_causal", False), attn_mask=options.get("attn_mask"), scale=scale,
        )  # fmt: skip
        for whole, part in zip(_until(d_qkv, start, stop), gradients, strict=True):
            whole += part


def gradient_buffers(dz_BHQD: Tensor) -> Qkv:
    """Zeros in the layout of `rpr.model.stack`'s projection, which then needs no copy."""
    batch, heads, length, width = dz_BHQD.shape
    q, k, v = dz_BHQD.new_zeros(batch, length, 3, heads, width).unbind(2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _until(qkv: Qkv, start: int, stop: int) -> Qkv:
    """A block's queries, and the keys and values up to its end."""
    return qkv[0][:, :, start:stop], qkv[1][:, :, :stop], qkv[2][:, :, :stop]


def _blocks(q_BHQD: Tensor, bias_HR: Tensor | None) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """First and last query (exclusive) of each block, and how the kernel is told what is visible."""
    batch, heads, length, _ = q_BHQD.shape
    if bias_HR is None and length >= LONG:
        yield 0, length, {"is_causal": True}
        return
    if bias_HR is not None:
        later_R = torch.arange(bias_HR.shape[1]) > bias_HR.shape[1] // 2
        bias_HR = bias_HR.detach().masked_fill(later_R, -torch.inf)
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        if bias_HR is None:
            bias = _causal(length, q_BHQD.dtype)[: stop - start, -start - BLOCK :][:, :stop]
        else:
            bias = bias_of_pairs(bias_HR, stop - start, stop, start)
        yield start, stop, {"attn_mask": bias.expand(batch, heads, -1, -1)}


@lru_cache(maxsize=4)
def _causal(length: int, dtype: torch.dtype) -> Tensor:
    """0 or minus infinity of a block's queries and all keys up to the block's end, [C, at least Q]: zeros, and then a
    triangle.
    """
    with torch.inference_mode(False):
        bias_CK = torch.zeros(BLOCK, -(-length // BLOCK) * BLOCK, dtype=dtype)
        bias_CK[:, -BLOCK:].masked_fill_(torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu(1), -torch.inf)
    return bias_CK
