"""Dropout, with a CPU form that draws 16 random bits for each number instead of a whole random float."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16


class Dropout(nn.Module):
    """Zero each number with probability p and scale the others by 1 / (1 - p), in training only.

    On a CPU torch draws its mask number by number, which takes up to a sixth of a small model's training step; cutting
    64 random bits into four 16-bit levels does the same at a quarter of the draws. p is then exact to 1 / 65,536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout: {p} is not in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped_levels = min(round(self.p * LEVELS), LEVELS - 1)  # a p next to 1 keeps one level: no division by 0
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        levels = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = (levels >= dropped_levels - LEVELS // 2).to(x.dtype)
        return x * keep.mul_(LEVELS / (LEVELS - dropped_levels))

    def extra_repr(self) -> str:
        return f"p={self.p}"
