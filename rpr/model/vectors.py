"""Position vectors: sinusoids and learned vectors (absolute), and the paper's tables (relative)."""

# Shape suffixes: H heads, Q queries, K keys, D head width, M model width, R = 2k+1 table rows, L positions.

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def rows_of(distances: Tensor, num_rows: int) -> Tensor:
    """Rows of a table of 2k+1: clip(j - i, k) + k for the distance from query i to key j (Shaw et al. 2018, section
    3.2). Row 0 means "k or more to the left", row 2k "k or more to the right".
    """
    clip_distance = (num_rows - 1) // 2
    return distances.clamp(-clip_distance, clip_distance) + clip_distance


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """Sinusoidal positions, float32 [L, M], for an even M: sine half and cosine half (tensor2tensor's layout of Vaswani
    et al. 2017). Wavelengths are geometric from 2 pi to 10,000 * 2 pi.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000.0) / max(1, half - 1)))
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class SinusoidalPositions(nn.Module):
    """Sinusoids, row p for position p: in training after an offset drawn for each sentence, 0 to max_offset, in
    evaluation after evaluation_offset. With mean_over, the mean of that many first rows is subtracted from every row.
    """

    def __init__(self, d_model: int, *, max_offset: int = 0, evaluation_offset: int = 0, mean_over: int = 0) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_offset, self.evaluation_offset, self.mean_over = max_offset, evaluation_offset, mean_over
        # Not a buffer: DDP compares buffers between ranks, and this one grows with a rank's longest sentence so far.
        self._table_LM = self._table(256)

    def forward(self, first: int | Tensor, pieces_BL: Tensor) -> Tensor:
        """Vectors [L, M] of positions first .. first + L - 1 or of given ones, int64 [L]; or [B, L, M], of [B, L]."""
        batch, length = pieces_BL.shape
        drawn = self.training and self.max_offset
        if not drawn and isinstance(first, int):
            return self.rows(self.evaluation_offset + first, length, pieces_BL.device)
        positions = torch.arange(first, first + length) if isinstance(first, int) else first
        last = first + length if isinstance(first, int) else int(first.max()) + 1
        # Always on the CPU, whose generator a resumed run restores.
        offsets = torch.randint(self.max_offset + 1, (batch, 1)) if drawn else torch.tensor(self.evaluation_offset)
        positions = positions.to(pieces_BL.device, non_blocking=True) + offsets.to(pieces_BL.device, non_blocking=True)
        return self.rows(0, last + max(self.max_offset, self.evaluation_offset), pieces_BL.device)[positions]

    def rows(self, first: int, length: int, device: torch.device) -> Tensor:
        """Vectors of positions first .. first + length - 1: [L, M]."""
        with torch.inference_mode(False):  # a table grown while decoding must serve training afterwards
            if first + length > self._table_LM.shape[0]:
                self._table_LM = self._table(2 * (first + length))
            if self._table_LM.device != device:
                self._table_LM = self._table_LM.to(device)
        return self._table_LM[first : first + length]

    def _table(self, length: int) -> Tensor:
        table_LM = sinusoids(length, self.d_model)
        return table_LM - sinusoids(self.mean_over, self.d_model).mean(dim=0) if self.mean_over else table_LM


class LearnedPositions(nn.Module):
    """A learned vector for each absolute position; those from num_positions on share the last one."""

    def __init__(self, num_positions: int, d_model: int, initial_std: float | None = None) -> None:
        super().__init__()
        self.weight_LM = nn.Parameter(torch.empty(num_positions, d_model))
        nn.init.normal_(self.weight_LM, std=initial_std or d_model**-0.5)

    def forward(self, first: int | Tensor, pieces_BL: Tensor) -> Tensor:
        """As of `SinusoidalPositions`."""
        length, device = pieces_BL.shape[1], pieces_BL.device
        positions = torch.arange(first, first + length, device=device) if isinstance(first, int) else first
        return self.weight_LM[positions.clamp(max=self.weight_LM.shape[0] - 1)]


class _Units(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=1e-12)
        unit: Tensor = x / norms
        ctx.save_for_backward(unit, norms)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, norms = ctx.saved_tensors
        along = (gradient * unit).sum(-1, keepdim=True)
        return torch.addcmul(gradient, unit, along, value=-1).div_(norms)


def units(x: Tensor) -> Tensor:
    """Vectors [..., D] divided by their Euclidean norms; of 0, 0."""
    unit: Tensor = _Units.apply(x)  # type: ignore[no-untyped-call]
    return unit


class _OfCounts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_BHQK: Tensor, visible: Tensor, products_BHQL: Tensor) -> Tensor:
        last = products_BHQL.shape[-1] - 1
        gates = scores_BHQK.sigmoid().mul_(visible)
        counts = gates.flip(-1).cumsum(-1).flip(-1).clamp_(max=last)
        below = counts.long()
        above = (below + 1).clamp_(max=last)
        share = counts.sub_(below)
        lower, upper = products_BHQL.gather(-1, below), products_BHQL.gather(-1, above)
        slope = upper - lower
        ctx.save_for_backward(gates, below, above, share, slope)
        ctx.like = products_BHQL.shape[-1], products_BHQL.dtype
        return torch.addcmul(lower, share, slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        gates, below, above, share, slope = ctx.saved_tensors  # at the last vector the slope is 0
        of_scores = torch.ops.aten.sigmoid_backward(torch.cumsum(gradient * slope, -1), gates)
        of_upper = gradient * share
        of_products = gradient.new_zeros(*gradient.shape[:-1], ctx.like[0])
        of_products.scatter_add_(-1, above, of_upper).scatter_add_(-1, below, gradient - of_upper)
        return of_scores, None, of_products.to(ctx.like[1])


def of_counts(scores_BHQK: Tensor, visible: Tensor, products_BHQL: Tensor) -> Tensor:
    """For each pair the product of its query with vector c, interpolated between two of L: c is the sum of
    sigmoid(score) over this key and all later ones that the query sees, at most L - 1.
    """
    added: Tensor = _OfCounts.apply(scores_BHQK, visible, products_BHQL)  # type: ignore[no-untyped-call]
    return added


def relative_table(clip_distance: int, d_head: int, num_heads: int | None) -> Tensor:
    """The initial 2k+1 vectors w^K or w^V, Glorot-uniform: [R, D] for all heads, [H, R, D] if each has its own."""
    rows = (2 * clip_distance + 1, d_head)
    shape = rows if num_heads is None else (num_heads, *rows)
    bound = glorot_bound(shape)
    return torch.empty(shape).uniform_(-bound, bound)


def glorot_bound(shape: Sequence[int]) -> float:
    """The b of U(-b, b) for a table [R, D] or [H, R, D], which counts as tensor2tensor's one variable [R, H D]."""
    *heads, rows, width = shape
    return math.sqrt(6.0 / (rows + math.prod(heads) * width))
