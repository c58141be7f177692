"""Linear maps of few rows without gradients, as in decoding step by step, and dropout: faster than torch's on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rpr.model import devices

MOST_ROWS = 256
LEVELS = 2**16  # of dropout
SMALL_WEIGHT = 2**16  # elements: below, the copies around the product take longer than it saves
ONE_ROW_WEIGHT = 2**18  # above, a product with one row reads the weight at a third of the speed of one with two rows


class Linear(nn.Linear):
    """torch's, through `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The product, and x for what else reads it: in training on a GPU the product of the backward pass adds its
        gradient. torch.compile does so, too.
        """
        if not torch.is_grad_enabled() or not devices.on_gpu(x) or torch.compiler.is_compiling():
            return self(x), x
        both: tuple[Tensor, Tensor] = _Beside.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return both


class _Beside(torch.autograd.Function):
    """apply(x, weight, bias or None) -> as `Linear.beside`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias), x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dx: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = (part.flatten(0, -2) for part in ctx.saved_tensors)
        dy_NY = dy.flatten(0, -2)
        whole_NX = torch.addmm(dx.reshape(x.shape), dy_NY, weight)
        return whole_NX.view_as(dx), dy_NY.T @ x, dy_NY.sum(0) if ctx.has_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's function of the name, up to rounding. On a CPU few rows in exact float32 are multiplied as columns,
    W x^T: 1.2 to 4 times as fast as x W^T (MKL, EPYC).
    """
    rows = x.numel() // x.shape[-1]
    if (
        torch.is_grad_enabled()
        or not 0 < rows <= MOST_ROWS
        or weight.numel() < (ONE_ROW_WEIGHT if rows == 1 else SMALL_WEIGHT)
        or devices.on_gpu(x)
        or not x.dtype == weight.dtype == torch.float32
        or torch.is_autocast_enabled("cpu")
        or devices.matmul_precision() != "highest"
        or torch.compiler.is_compiling()
    ):
        return F.linear(x, weight, bias)
    flat = x.reshape(rows, -1)
    if rows == 1:
        flat = torch.cat([flat, flat])
    product = weight @ flat.T if bias is None else torch.addmm(bias[:, None], weight, flat.T)
    return product.T[:rows].reshape(*x.shape[:-1], -1)


class Dropout(nn.Module):
    """Zero each element with probability p < 1 and scale the others by 1 / (1 - p), in training only. On a CPU 64
    random bits are four 16-bit levels: a quarter of torch's draws; p is then exact to 1 / 65,536.
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
