"""The loss of a batch: label-smoothed cross entropy from hidden states, without ever materialising all scores over the
vocabulary. A training step differentiates it, and torch.compile compiles it as one graph.
"""

# Shape suffixes: B batch, S source length, T target length, M model width, N target pieces without padding,
# V vocabulary, C the rows of a chunk.

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from rpr.data.batches import bucket_boundaries
from rpr.data.vocabulary import PAD
from rpr.model import devices
from rpr.model.transformer import Transformer

MOST_SHAPES = 256  # for which graphs are compiled; beyond, torch runs the step without
# Rows of scores at once: enough for efficient matmuls, few enough that a chunk of scores, (C, V), stays small.
# On a CPU (V = 8,000 and 32,768) this takes half the time of computing all scores, their log-softmax and its gradient.
CHUNK_ROWS = 1024
CHUNK_BYTES = 128 * 2**20
GPU_SHARE = 64  # a chunk on a GPU takes one part in so many of its memory: each is 20 launches and a sum of gradients


def chunk_rows(hidden_NM: Tensor, vocabulary_size: int) -> int:
    if devices.on_gpu(hidden_NM):
        return max(1, devices.memory(hidden_NM) // GPU_SHARE // (4 * vocabulary_size))
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // (4 * vocabulary_size)))


def label_smoothed_loss(hidden_NM: Tensor, embedding_VM: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """Sum over N of the cross entropy of softmax(hidden embedding^T) against 1 - smoothing on the target and
    smoothing / (V - 1) on every other piece.

    As in tensor2tensor. Scores are summed in float32, or in float64 if the inputs are. The gradients, if needed, are
    computed in the forward pass, chunk by chunk with the loss; they cannot be differentiated again.
    """
    if not torch.is_grad_enabled():  # else autograd would ask for the gradient of a parameter even here
        embedding_VM = embedding_VM.detach()
    total: Tensor = _ProjectedLoss.apply(hidden_NM, embedding_VM, targets_N, smoothing)  # type: ignore[no-untyped-call]
    return total


class _ProjectedLoss(torch.autograd.Function):
    """With e = smoothing / (V - 1) and w = 1 - smoothing - e, the loss of a row is

        logsumexp(scores) - w scores[target] - e sum(scores)

    and its gradient by the scores softmax - w onehot(target) - e. The last term is the same for every piece, so in
    the matmuls it is one sum over the embedding and one over the rows, never a matrix.
    """

    @staticmethod
    def forward(ctx: Any, hidden_NM: Tensor, embedding_VM: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        # 1. The loss of a token is log(sum exp) - target * its score - other * the sum of all scores.
        vocabulary_size = embedding_VM.shape[0]
        other = smoothing / (vocabulary_size - 1)
        target = 1 - smoothing - other
        wide = torch.float64 if embedding_VM.dtype == torch.float64 else torch.float32
        narrow_VM = embedding_VM.to(hidden_NM.dtype)
        embedding_sum_M = embedding_VM.sum(dim=0)
        wanted = any(ctx.needs_input_grad[:2])
        grad_hidden_NM = torch.empty_like(hidden_NM, dtype=wide) if wanted else None
        grad_embedding_VM = None if len(hidden_NM) else torch.zeros_like(embedding_VM)
        total = torch.zeros((), dtype=wide, device=hidden_NM.device)
        # 2. In chunks, as all scores may be more than the memory holds; the scores become the softmax in place.
        rows = chunk_rows(hidden_NM, vocabulary_size)
        for start in range(0, hidden_NM.shape[0], rows):
            chunk = slice(start, start + rows)
            hidden_CM, targets_C1 = hidden_NM[chunk], targets_N[chunk, None]
            scores_CV = (hidden_CM @ narrow_VM.T).to(wide)
            of_target_C1 = scores_CV.gather(1, targets_C1)
            largest_C1 = scores_CV.amax(dim=1, keepdim=True)
            powers_CV = scores_CV.sub_(largest_C1).exp_()  # softmax before the division by their sum
            sum_C1 = powers_CV.sum(dim=1, keepdim=True)
            total += (largest_C1 + sum_C1.log() - target * of_target_C1).sum()
            total -= other * (hidden_CM.to(wide) @ embedding_sum_M.to(wide)).sum()
            if grad_hidden_NM is None:
                continue
            # 3. Both gradients while the softmax is there.
            expected_CM = (powers_CV.to(narrow_VM.dtype) @ narrow_VM) / sum_C1
            grad_hidden_NM[chunk] = expected_CM - target * embedding_VM[targets_C1[:, 0]] - other * embedding_sum_M
            powers_CV.scatter_add_(1, targets_C1, -target * sum_C1)  # one element of each row: no collisions
            of_chunk_VM = powers_CV.to(narrow_VM.dtype).T @ (hidden_CM / sum_C1).to(narrow_VM.dtype)
            of_earlier_VM = grad_embedding_VM
            grad_embedding_VM = of_chunk_VM.to(wide) if of_earlier_VM is None else of_earlier_VM.add_(of_chunk_VM)
        if grad_embedding_VM is not None:
            grad_embedding_VM -= other * hidden_NM.sum(dim=0, dtype=wide)
        ctx.save_for_backward(grad_hidden_NM, grad_embedding_VM)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden_NM, grad_embedding_VM = ctx.saved_tensors
        return grad_hidden_NM * grad_total, grad_embedding_VM * grad_total, None, None


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
