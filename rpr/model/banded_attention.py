"""Long causal attention with clipped distances, in two parts.

From the clip distance on, all earlier keys share one row of every table. What it adds is the same for all of them, so
it is left out and the other rows are taken relative to it: the softmax is invariant to a constant of the query, and the
weights sum to 1. The keys beyond the clip distance are then plain attention, for which torch has a fused kernel. Only
the band of the nearest keys needs the tables: it is computed in blocks of queries, as matmuls with the keys around
them. Both parts are merged by the logarithms of their sums of exponentials, and the kernel's backward pass takes those
of the whole: so do those who split long sequences over devices (Liu et al. 2023, arXiv 2310.01889).

Memory is linear in the length.
"""

# Shape suffixes: B batch, H heads, Q queries, as many as keys, D head width, R table rows, W the distances of the band,
# farthest first, N blocks of C queries, E = C + W - 1 keys around a block.

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.attention_inputs import AttentionInputs
from rpr.model.cpu_attention import Qkv, backward_kernel, forward_kernel, gradient_buffers

SMALLEST_BLOCK = 64
BANDS = 8  # keys of a sequence as multiples of the band: from there on this was measured to be faster


def band_of(given: AttentionInputs) -> int | None:
    """The distance from which on the tables are constant, if an attention that is `cpu_attention.usable` is faster this
    way; else None.
    """
    tables = [table for table in given[3:6] if table is not None]
    if not tables or given.key_bias is not None:
        return None
    rows = {table.shape[1 if table is given.bias_table else -2] for table in tables}
    width = (max(rows) - 1) // 2 if given.reach is None else given.reach
    long = given.k.shape[2] >= max(BANDS * width, 512 if given.q.shape[3] <= 32 else 2048)
    return width if width > 0 and long else None


def banded(given: AttentionInputs, width: int) -> Tensor:
    """Attention with tables that are constant from the distance `width` on."""
    z_BHQD: Tensor = BandedAttention.apply(*given[:7], width)  # type: ignore[no-untyped-call]
    return z_BHQD


class BandedAttention(torch.autograd.Function):
    """apply(q, k, v, key_table, value_table, bias_table, distance_queries, width of the band) -> z_BHQD.

    z and the gradients of q, k and v have the memory layout of `BlockwiseAttention`. Differentiable once.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        q_BHQD, k_BHQD, v_BHQD, key_table, value_table, bias_HR, queries_BHQX, width = arguments
        batch, heads, length, d_head = q_BHQD.shape
        scale = d_head**-0.5
        far = _far((q_BHQD, k_BHQD, v_BHQD), width)
        far_BHQD = torch.empty_like(far[0])
        far_lse_BHQ = forward_kernel(far, far_BHQD, scale)
        scaled_BHQD = (q_BHQD * scale).contiguous()
        buffer_GNCE = _of_blocks(scaled_BHQD, _around(k_BHQD, width), width)
        scores_BHQW = _band(buffer_GNCE, like=q_BHQD, width=width)
        if key_table is not None:
            x_BHQX = scaled_BHQD if queries_BHQX is None else queries_BHQX
            scores_BHQW = scores_BHQW + x_BHQX @ _near(key_table, width).transpose(-2, -1)
        if bias_HR is not None:
            scores_BHQW = scores_BHQW + _near(bias_HR[..., None], width)[:, None, :, 0]
        places_W = torch.arange(width - 1, -1, -1)
        scores_BHQW[:, :, : width - 1].masked_fill_(torch.arange(width - 1)[:, None] < places_W, -torch.inf)
        lse_BHQ = scores_BHQW.logsumexp(-1)
        lse_BHQ[:, :, width:] = torch.logaddexp(lse_BHQ[:, :, width:], far_lse_BHQ)
        weights_BHQW = scores_BHQW.sub_(lse_BHQ[..., None]).exp_()
        z_BHQD: Tensor = q_BHQD.new_empty(batch, length, heads, d_head).transpose(1, 2)
        z_BHQD.copy_(_times_keys(_filled(buffer_GNCE, weights_BHQW), _around(v_BHQD, width), like=z_BHQD))
        z_BHQD[:, :, width:] += far_BHQD.mul_((far_lse_BHQ - lse_BHQ[:, :, width:]).exp_()[..., None])
        if value_table is not None:
            z_BHQD += weights_BHQW @ _near(value_table, width)
            z_BHQD += _row(value_table, width)
        ctx.save_for_backward(*arguments[:-1], scaled_BHQD, weights_BHQW, lse_BHQ, z_BHQD)
        ctx.width = width
        return z_BHQD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz_BHQD: Tensor) -> tuple[Tensor | None, ...]:
        q_BHQD, k_BHQD, v_BHQD, key_table, value_table, bias_HR, queries_BHQX, *kept = ctx.saved_tensors
        scaled_BHQD, weights_BHQW, lse_BHQ, z_BHQD = kept
        width, scale = ctx.width, q_BHQD.shape[-1] ** -0.5
        if value_table is not None:
            z_BHQD = z_BHQD - _row(value_table, width)  # the kernel knows nothing of it
        d_qkv = gradient_buffers(dz_BHQD)
        at = (slice(None), slice(None), slice(width, None))
        far, d_far = _far((q_BHQD, k_BHQD, v_BHQD), width), _far(d_qkv, width)
        backward_kernel(dz_BHQD[at], far, z_BHQD[at], lse_BHQ[at], d_far, scale)
        dz_BHQD = dz_BHQD.contiguous()
        buffer_GNCE = _of_blocks(dz_BHQD, _around(v_BHQD, width), width)
        dscores_BHQW = _band(buffer_GNCE, like=q_BHQD, width=width)
        d_values = d_keys = d_bias = d_queries = None
        if value_table is not None:
            near = _near(value_table, width)
            dscores_BHQW = dscores_BHQW + dz_BHQD @ near.transpose(-2, -1)
            d_values = _of_rows(weights_BHQW.transpose(-2, -1) @ dz_BHQD, dz_BHQD.sum(2), value_table, width)
        dscores_BHQW = (dscores_BHQW - (dz_BHQD * z_BHQD).sum(-1, keepdim=True)).mul_(weights_BHQW)
        dv_BHQD = _of_keys(_filled(buffer_GNCE, weights_BHQW), dz_BHQD, width)
        band_GNCE = _filled(buffer_GNCE, dscores_BHQW)
        dq_BHQD = _times_keys(band_GNCE, _around(k_BHQD, width), like=q_BHQD)
        dk_BHQD = _of_keys(band_GNCE, scaled_BHQD, width)
        if key_table is not None:
            x_BHQX = scaled_BHQD if queries_BHQX is None else queries_BHQX
            dx_BHQX = dscores_BHQW @ _near(key_table, width)
            if queries_BHQX is None:
                dq_BHQD = dq_BHQD + dx_BHQX
            else:
                d_queries = dx_BHQX
            d_keys = _of_rows(dscores_BHQW.transpose(-2, -1) @ x_BHQX, None, key_table, width)
        if bias_HR is not None:
            d_bias = _of_rows(dscores_BHQW.sum(2)[..., None], None, bias_HR[..., None], width)[..., 0]
        d_qkv[0].add_(dq_BHQD, alpha=scale)
        d_qkv[1].add_(dk_BHQD)
        d_qkv[2].add_(dv_BHQD)
        return *d_qkv, d_keys, d_values, d_bias, d_queries, None


def _far(qkv: Qkv, width: int) -> Qkv:
    """The queries that have keys beyond the band, and these keys and values: a query's last one is at its own place."""
    return qkv[0][:, :, width:], qkv[1][:, :, :-width], qkv[2][:, :, :-width]


def _rows(table: Tensor, width: int) -> Tensor:
    """The rows of distances -width .. 0 of a table of any clip distance."""
    middle = (table.shape[-2] - 1) // 2
    return torch.arange(middle - width, middle + 1).clamp(min=0)


def _near(table: Tensor, width: int) -> Tensor:
    """The vectors of the band relative to those beyond it, [W, D] or [H, W, D]."""
    rows = table.index_select(-2, _rows(table, width))
    return rows[..., 1:, :] - rows[..., :1, :]


def _row(table: Tensor, width: int) -> Tensor:
    """The vector beyond the band, [1, D] or [H, 1, D]."""
    return table.index_select(-2, _rows(table, width)[:1])


def _of_rows(near_BHWD: Tensor, sum_BHD: Tensor | None, table: Tensor, width: int) -> Tensor:
    """The gradient of a table from that of `_near`, and from the gradients of all outputs summed, if it is added to
    them; else from scores, whose gradients sum to 0.
    """
    beyond_BH1D = -near_BHWD.sum(2, keepdim=True)
    if sum_BHD is not None:
        beyond_BH1D = beyond_BH1D + sum_BHD[:, :, None]
    rows_HWD = torch.cat([beyond_BH1D, near_BHWD], dim=2).sum(0)
    if table.dim() == 2:
        rows_HWD = rows_HWD.sum(0)
    return torch.zeros_like(table).index_add_(-2, _rows(table, width), rows_HWD)


def _block(width: int) -> int:
    return max(SMALLEST_BLOCK, width)


def _blocks(x_BHQD: Tensor, width: int) -> Tensor:
    """[B H, N, C, D]; zeros after the last position."""
    block = _block(width)
    x_GQD = x_BHQD.flatten(0, 1)
    if missing := -x_GQD.shape[1] % block:
        x_GQD = F.pad(x_GQD, (0, 0, 0, missing))
    return x_GQD.view(len(x_GQD), -1, block, x_GQD.shape[2])


def _around(x_BHQD: Tensor, width: int) -> Tensor:
    """The keys or values around each block of queries, [B H, N, E, D], overlapping; zeros before and after all."""
    block = _block(width)
    x_GQD = F.pad(x_BHQD.flatten(0, 1), (0, 0, width - 1, -x_BHQD.shape[2] % block))
    products, length, d_head = x_GQD.shape
    shape = (products, length // block, block + width - 1, d_head)
    return x_GQD.as_strided(shape, (length * d_head, block * d_head, d_head, 1))


def _of_blocks(x_BHQD: Tensor, keys_GNED: Tensor, width: int) -> Tensor:
    """The product of each position and the keys around its block, [B H, N, C, E]."""
    products_GNCE: Tensor = _blocks(x_BHQD, width) @ keys_GNED.transpose(-2, -1)
    return products_GNCE


def _band(buffer_GNCE: Tensor, like: Tensor, width: int) -> Tensor:
    """A copy of the band, [B, H, Q, W]: column c is the key at distance c - (W - 1)."""
    return _of_positions(_cells(buffer_GNCE, width), like)


def _cells(buffer_GNCE: Tensor, width: int) -> Tensor:
    products, blocks, block, around = buffer_GNCE.shape
    strides = (blocks * block * around, block * around, around + 1, 1)
    return buffer_GNCE.as_strided((products, blocks, block, width), strides)


def _filled(buffer_GNCE: Tensor, band_BHQW: Tensor) -> Tensor:
    """The buffer with the band's values in their cells, and zeros elsewhere."""
    width = band_BHQW.shape[-1]
    _cells(buffer_GNCE.zero_(), width).copy_(_blocks(band_BHQW, width))
    return buffer_GNCE


def _times_keys(band_GNCE: Tensor, keys_GNED: Tensor, like: Tensor) -> Tensor:
    """The sum of the keys or values around each position by the band's weights, [B, H, Q, D]."""
    return _of_positions(band_GNCE @ keys_GNED, like)


def _of_keys(band_GNCE: Tensor, x_BHQD: Tensor, width: int) -> Tensor:
    """The adjoint of `_times_keys` for the keys: the sum of x of the positions whose band has the key, [B, H, Q, D]."""
    keys_GNED = band_GNCE.transpose(-2, -1) @ _blocks(x_BHQD, width)
    own_GNCD = keys_GNED[:, :, width - 1 :].contiguous()
    if width > 1:  # the keys before a block are the last ones of the block before
        own_GNCD[:, :-1, 1 - width :] += keys_GNED[:, 1:, : width - 1]
    return _of_positions(own_GNCD, like=x_BHQD)


def _of_positions(x_GNCY: Tensor, like: Tensor) -> Tensor:
    """[B H, N, C, Y] -> [B, H, Q, Y], with B, H and Q of `like`."""
    batch, heads, length, _ = like.shape
    return x_GNCY.flatten(1, 2)[:, :length].view(batch, heads, length, -1)
