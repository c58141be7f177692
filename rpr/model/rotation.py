"""Rotation of queries and keys by their positions (RoPE)."""

# Shape suffixes: B batch, H heads, P positions, D head width, W half of the rotated width.

from __future__ import annotations

import torch
from torch import Tensor


def cosines_and_sines(positions_P: Tensor, width: int, base: float, linear_scale: float) -> tuple[Tensor, Tensor]:
    """Of the angle of each position and pair, [P, W]; in float64, whatever the model's precision."""
    exponents_W = torch.arange(0, width, 2, device=positions_P.device, dtype=torch.float64) / width
    angles_PW = (positions_P.double() / linear_scale)[:, None] * base**-exponents_W
    return angles_PW.cos(), angles_PW.sin()


def rotate(x_BHPD: Tensor, cos_PW: Tensor, sin_PW: Tensor, *, interleaved: bool) -> Tensor:
    """The first 2W numbers turned in pairs, (i, i + W), or (2i, 2i + 1) where interleaved; the others as they are."""
    # At least float32: in bfloat16 the angle of position 1,000 would be off by whole radians.
    wide = torch.promote_types(x_BHPD.dtype, torch.float32)
    cos, sin = cos_PW.to(wide), sin_PW.to(wide)
    width = 2 * cos.shape[-1]
    turned = x_BHPD[..., :width].to(wide)
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pair = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    turned = turned.to(x_BHPD.dtype)
    return turned if width == x_BHPD.shape[-1] else torch.cat([turned, x_BHPD[..., width:]], dim=-1)
