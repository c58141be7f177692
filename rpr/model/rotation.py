"""Rotation of queries and keys by their positions (RoPE), with a hand-written backward pass.

It allocates one tensor, and one in the backward pass, where autograd would allocate nine of the queries' size.
"""

# Shape suffixes: B batch, H heads, P positions, D head width, W half of the rotated width.

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.positions.scheme import Rotation


def _frequencies(width: int, base: float, device: torch.device) -> Tensor:
    return base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)


def _yarn_frequencies(width: int, base: float, device: torch.device, factor: float, trained_length: int) -> Tensor:
    """NTK by parts (Peng et al. 2023, arXiv 2309.00071): unchanged for pairs that turn 32 times in the trained length,
    divided by the factor for those that turn at most once, and between them a ramp over the pairs' indices with rounded
    ends, as in the authors' code (the paper's is over the number of turns).
    """
    first, last = (width * math.log(trained_length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
    pairs_W = torch.arange(width // 2, device=device, dtype=torch.float64)
    ramp_W = ((pairs_W - first) / (last - first or 0.001)).clamp(0, 1)
    plain_W = _frequencies(width, base, device)
    return plain_W / factor * ramp_W + plain_W * (1 - ramp_W)


def _llama3_frequencies(width: int, base: float, device: torch.device, factor: float, trained_length: int) -> Tensor:
    """As Llama 3.1: as they are for pairs that turn at least 4 times in the trained length, divided by the factor for
    those that turn at most once, and between them a ramp over the number of turns.
    """
    plain_W = _frequencies(width, base, device)
    kept_W = ((trained_length * plain_W / (2 * math.pi) - 1) / 3).clamp(0, 1)
    return plain_W * (kept_W + (1 - kept_W) / factor)


_angle_types = [torch.float64]


@contextmanager
def float32_angles() -> Iterator[None]:
    """Within this context angles are rounded to float32, as by most other programs: by up to 3e-5 at position 1,000."""
    _angle_types.append(torch.float32)
    try:
        yield
    finally:
        _angle_types.pop()


def angles(positions_P: Tensor, rotation: Rotation, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a rotation of vectors of a type, [P, W] each, in float32 or float64."""
    # In bfloat16 the angle of position 1,000 would be off by whole radians.
    return _angles(positions_P, rotation, torch.promote_types(dtype, torch.float32), _angle_types[-1])


@lru_cache(maxsize=4)  # a tensor is its own key
def _angles(
    positions_P: Tensor, rotation: Rotation, dtype: torch.dtype, angle_type: torch.dtype
) -> tuple[Tensor, Tensor]:
    of = rotation.width, rotation.base, (device := positions_P.device)
    temperature = 1.0  # of queries and keys, "attention scaling"
    with torch.inference_mode(False):  # what is computed there could not be used in training
        frequencies_W = _frequencies(*of)
        if rotation.yarn is not None:
            frequencies_W = _yarn_frequencies(*of, *rotation.yarn)
            temperature = 0.1 * math.log(rotation.yarn[0]) + 1
        if rotation.llama3 is not None:
            frequencies_W = _llama3_frequencies(*of, *rotation.llama3)
        if rotation.longrope is not None:  # Ding et al. 2024, arXiv 2402.13753
            factors, factor, trained_length = rotation.longrope
            frequencies_W = frequencies_W / torch.tensor(factors, device=device, dtype=torch.float64)
            temperature = math.sqrt(1 + math.log(factor) / math.log(trained_length))
        frequencies_W[int(rotation.proportion * len(frequencies_W)) :] = 0
        angles_PW = ((positions_P.double() / rotation.linear_scale)[:, None] * frequencies_W).to(angle_type)
        return (angles_PW.cos() * temperature).to(dtype), (angles_PW.sin() * temperature).to(dtype)


def rotate(x_BHPD: Tensor, cos_PW: Tensor, sin_PW: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first 2W dimensions in pairs (i, i + W), or (2i, 2i + 1) if interleaved; the others are unchanged.
    Computed in the type of the angles.
    """
    given = x_BHPD, cos_PW, sin_PW, interleaved
    if not torch.is_grad_enabled():
        return _turned(*given)
    rotated: Tensor = _Rotate.apply(*given, None)  # type: ignore[no-untyped-call]
    return rotated


def rotate_by(q_BHPD: Tensor, k_BHPD: Tensor, angles_BHPW: Tensor) -> tuple[Tensor, ...]:
    """As `rotate`, of queries and keys by angles of each position of each head; differentiable in all."""
    both_2BPHD = torch.stack([q_BHPD.transpose(1, 2), k_BHPD.transpose(1, 2)])  # as a projection has them in memory
    turns = angles_BHPW.transpose(1, 2)
    fixed = turns.detach()
    rotated: Tensor = _Rotate.apply(both_2BPHD, fixed.cos(), fixed.sin(), False, turns)  # type: ignore[no-untyped-call]
    return rotated.transpose(2, 3).unbind()


class _Rotate(torch.autograd.Function):
    """apply(x, cos, sin, interleaved, angles or None) -> x rotated, whose gradient is rotated back; with angles [B,
    ...] x is [2, B, ...], and they get a gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, angles: Tensor | None) -> Tensor:
        out = _turned(x, cos, sin, interleaved)
        ctx.save_for_backward(cos, sin, *([] if angles is None else [out]))
        ctx.interleaved = interleaved
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *rotated = ctx.saved_tensors
        of_angles, width = None, 2 * cos.shape[-1]
        for out in rotated:
            (first, second), (of_first, of_second) = (_pairs(x[..., :width], False) for x in (out, gradient))
            of_angles = (first * of_second.to(cos.dtype)).addcmul_(second, of_first, value=-1).sum(0)
        return _turned(gradient, cos, sin, ctx.interleaved, -1), None, None, None, of_angles


def _turned(x_BHPD: Tensor, cos_PW: Tensor, sin_PW: Tensor, interleaved: bool, direction: int = 1) -> Tensor:
    width = 2 * cos_PW.shape[-1]
    of_dimensions = _of_dimensions if cos_PW.dim() == 2 else _of_dimensions.__wrapped__  # of one layer
    out_BHPD = x_BHPD * of_dimensions(cos_PW, interleaved, x_BHPD.shape[-1] - width)
    first, second = _pairs(x_BHPD[..., :width], interleaved)
    out_first, out_second = _pairs(out_BHPD[..., :width], interleaved)
    out_first.addcmul_(second, sin_PW, value=-direction)
    out_second.addcmul_(first, sin_PW, value=direction)
    return out_BHPD.to(x_BHPD.dtype)


@lru_cache(maxsize=4)
def _of_dimensions(cos_PW: Tensor, interleaved: bool, others: int) -> Tensor:
    with torch.inference_mode(False):
        cos_PX = cos_PW.repeat_interleave(2, -1) if interleaved else torch.cat([cos_PW, cos_PW], dim=-1)
        return torch.nn.functional.pad(cos_PX, (0, others), value=1.0) if others else cos_PX


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
