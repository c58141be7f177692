"""Dropout, with a CPU implementation that draws 16 random bits per element instead of a whole random float."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rpr.model import devices

LEVELS = 2**16


class Dropout(nn.Module):
    """Zero each element with probability p < 1 and scale the others by 1 / (1 - p), in training only.

    On a CPU 64 random bits are four 16-bit levels: a quarter of torch's draws. p is then exact to 1 / 65,536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if devices.on_gpu(x) or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return self.add(x.new_zeros(()).expand_as(x), x)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x), of equal shapes; on a CPU in one pass."""
        if not self.training or self.p == 0:
            return residual + x
        if devices.on_gpu(x) or torch.compiler.is_compiling():
            return residual + F.dropout(x, self.p)
        dropped_levels = min(round(self.p * LEVELS), LEVELS - 1)  # one level is kept: no division by 0
        out: Tensor = _DropAndAdd.apply(residual, x, dropped_levels)  # type: ignore[no-untyped-call]
        return out


class _DropAndAdd(torch.autograd.Function):
    """residual + scale * keep * x, where keep is 0 for elements whose level is below `dropped_levels`, else 1."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, dropped_levels: int) -> Tensor:
        random_words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        levels = random_words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(levels, dropped_levels - LEVELS // 2, out=keep)
        ctx.save_for_backward(keep)
        ctx.scale = LEVELS / (LEVELS - dropped_levels)
        return torch.addcmul(residual, x, keep, value=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None]:
        (keep,) = ctx.saved_tensors
        return grad_out, torch.addcmul(grad_out.new_zeros(()), grad_out, keep, value=ctx.scale), None
