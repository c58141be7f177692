"""The loss of a batch: what a training step differentiates, and torch.compile compiles as one graph."""

# Shape suffixes: B batch, S source length, T target length, M model width, N target pieces without padding.

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from rpr.data.batches import bucket_boundaries
from rpr.data.vocabulary import PAD
from rpr.model.transformer import Transformer
from rpr.training.loss import label_smoothed_loss

MOST_SHAPES = 256  # for which graphs are compiled; beyond, torch runs the step without


def loss_sum(
    model: Transformer,
    source_BS: Tensor,
    target_input_BT: Tensor,
    target_output_BT: Tensor,
    *,
    real: int | None,
    smoothing: float,
    bfloat16: bool,
    **how: bool,
) -> Tensor:
    """The sum of the losses of the `real` target pieces that are no padding; None, for shapes that depend on no count:
    of all, those of padding taken off. `bfloat16`: with all layers in it, from weights that are rounded once;
    embeddings, positions and the sums of the loss stay in float32. `how`: of `model`.
    """
    weights = narrow(model) if bfloat16 else {}
    hidden_BTM: Tensor = functional_call(model, weights, (source_BS, target_input_BT), how)
    hidden_NM, targets_N = hidden_BTM.flatten(0, 1), target_output_BT.flatten()
    if real is None:
        real_N = targets_N != model.config.pad
        whole = label_smoothed_loss(hidden_NM * real_N[:, None], model.embedding_VM, targets_N, smoothing)
        return whole - (~real_N).sum() * math.log(len(model.embedding_VM))  # of a row of zeros
    # Of real positions only: each other costs a row of V. Their number is known: finding them waits for no GPU.
    if real != len(targets_N):
        real_N = torch.nonzero_static(targets_N != model.config.pad, size=real)[:, 0]
        hidden_NM, targets_N = hidden_NM.index_select(0, real_N), targets_N[real_N]
    return label_smoothed_loss(hidden_NM, model.embedding_VM, targets_N, smoothing)


def compiled_loss_sum(*, fixed: bool) -> Callable[..., Tensor]:
    """`loss_sum` and its gradient as one graph for each shape. `fixed`: there is one shape, and what a step leaves is
    read before the next: a GPU then replays the graph without a launch from the CPU.
    """
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    return torch.compile(loss_sum, dynamic=False, mode="reduce-overhead" if fixed else None)


def to_edges(*of_pairs: Tensor) -> list[Tensor]:
    """Batches of pairs [B, L] with rows and columns of padding up to the boundaries of buckets: of few shapes."""
    edges = [[int(bucket_boundaries(size)[-1]) - size for size in x.shape] for x in of_pairs]
    return [F.pad(x, (0, columns, 0, rows), value=PAD) for x, (rows, columns) in zip(of_pairs, edges, strict=True)]


def narrow(model: Transformer) -> dict[str, Tensor]:
    """The parameters of linear maps and norms in bfloat16, by name."""
    weights = {
        f"{name}.{own}": parameter
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm))
        for own, parameter in module.named_parameters(recurse=False)
    }
    if torch.compiler.is_compiling():
        return {name: weight.bfloat16() for name, weight in weights.items()}
    return dict(zip(weights, _Narrow.apply(*weights.values()), strict=True))  # type: ignore[no-untyped-call]


class _Narrow(torch.autograd.Function):
    """apply(*tensors) -> their copies in bfloat16, of one buffer and by one operation, as are their gradients."""

    @staticmethod
    def forward(ctx: Any, *wide: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = wide[0].dtype
        return _copies(wide, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _copies(gradients, ctx.dtype)


def _copies(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    whole = torch.empty(sum(x.numel() for x in tensors), dtype=dtype, device=tensors[0].device)
    sizes = [x.numel() for x in tensors]
    parts = [part.view_as(x) for part, x in zip(torch.split(whole, sizes), tensors, strict=True)]
    torch._foreach_copy_(parts, tensors)
    return tuple(parts)
