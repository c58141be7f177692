"""Attention with relative positions: the paper's equations, and the implementation in use.

Pure functions with the same result, forward and backward:

- `reference` follows equations 3 and 4 with a_ij written out; for tests and for reading.
- `composed` projects onto the table first and spreads the result over the keys, in differentiable torch operations
  that `torch.compile` can fuse and autograd can differentiate twice.
- `attend` is the one to call: by device and length it selects the fused kernels for plain attention, the hand-written
  passes of `rpr.model.attention.blocks`, or `composed` under `torch.compile`.

They take `AttentionInputs` (`attend` its fields) and return z [B, H, Q, D], empty if q is. A query that sees no key
gets finite but meaningless values and finite gradients.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

import logging
import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.attention.blocks import SplitHeads, blockwise
from rpr.model.attention.composition import composed as composed
from rpr.model.attention.composition import weights as weights
from rpr.model.attention.distances import bias_of_pairs
from rpr.model.attention.equations import reference as reference
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.attention.tables import Layout
from rpr.model.config import WIDEST_TRITON_HEAD

Implementation = Literal["auto", "dense", "blockwise", "composed", "triton"]

log = logging.getLogger(__name__)

LONG = 1024  # from this many keys on, the backward pass recomputes the weights block by block instead of storing them
STORED_BYTES = 100 * 2**20  # but on a CPU it stores causal weights of so many bytes a layer
BLOCK_SCORES = 2**18  # scores per head and sentence in a block of queries, on a CPU
GPU_STORED_BYTES = 256 * 2**20  # but on a GPU it stores weights of so many bytes a layer
GPU_BLOCK_SCORES = 2**25  # of all heads and sentences, on a GPU: 64 MiB in bfloat16
VECTORS = {"key_table", "value_table"}  # the positions that the fused kernel for a GPU computes
WINDOW_BLOCK = 128  # queries of a block with a window, on a CPU
CAUSAL = 128  # from this many keys on, blocks of causal attention on a CPU leave out later keys


def attend(q: Tensor, k: Tensor, v: Tensor, *, implementation: Implementation = "auto", **others: Any) -> Tensor:
    """Attention as used in training and decoding.

    Args:
        q, k, v, others: the fields of `AttentionInputs`.
        implementation: `auto` selects one; `dense` stores the weights [B, H, Q, K] for the backward pass, `blockwise`
            computes them again block by block of queries; `composed` is the function of that name; `triton` is the
            fused kernel for long sequences on a GPU (tables of vectors only).

    Raises:
        ValueError: tables, biases, distance queries or labels that do not fit.
    """
    return attention_of(AttentionInputs(q, k, v, **others), implementation)


def attention_of(given: AttentionInputs, implementation: Implementation = "auto") -> Tensor:
    """As `attend`."""
    given.check_shapes()
    q_BHQD, k_BHKD, v_BHKD = given[:3]
    if (mask := given.mask) is not None:
        given = given._replace(mask=mask.reshape((1,) * (4 - mask.dim()) + mask.shape))
    if k_BHKD.shape[0] < q_BHQD.shape[0]:
        k_BHKD, v_BHKD = (x.expand(q_BHQD.shape[0], -1, -1, -1) for x in (k_BHKD, v_BHKD))
        given = given._replace(k=k_BHKD, v=v_BHKD)
    if given.window is not None and given.window > given.farthest:
        given = given._replace(window=None)
    if not q_BHQD.numel() or not k_BHKD.numel():
        return reference(given)
    if implementation == "auto" and _fused_is_faster(given):
        return _fused(given)
    if implementation == "auto" and _column_is_faster(given):
        return _with_bias_as_column(given)
    of_one_width = given.q.shape[3] == given.v.shape[3]
    if implementation == "triton" and not (of_one_width and given.positions <= VECTORS and not given.windowed):
        raise ValueError(
            "implementation: triton supports only key and value tables by distance, no labels, score bias, queries "
            "of their own, window or sink; choose auto"
        )
    if implementation == "composed" or given.dense_alone or (implementation == "auto" and _composed_is_better(q_BHQD)):
        return composed(given)
    if implementation == "triton" or (implementation == "auto" and _kernel_is_faster(given)):
        from rpr.model.kernels.triton_attention import fused_attention

        return fused_attention(given)
    stored = implementation == "dense" or (implementation == "auto" and _stores_weights(given))
    whole = stored and given.window is None and not _leaves_out_later_keys(given)
    return blockwise(given, None if whole else _block(given), stored=stored)


def _leaves_out_later_keys(given: AttentionInputs) -> bool:
    return given.causal and given.k.shape[2] >= CAUSAL and given.q.device.type == "cpu"


def _block(given: AttentionInputs) -> int:
    """Queries per block: so many that a CPU's caches hold the scores of a head, or that a GPU has enough to do."""
    batch, heads, num_keys, _ = given.k.shape
    if given.window is not None:
        return WINDOW_BLOCK if given.q.device.type == "cpu" else max(WINDOW_BLOCK, given.window)
    if _leaves_out_later_keys(given):
        return 64 if num_keys < LONG else 128
    of_a_query = num_keys if given.q.device.type == "cpu" else batch * heads * num_keys
    return max(64, (BLOCK_SCORES if given.q.device.type == "cpu" else GPU_BLOCK_SCORES) // of_a_query)


def _kernel_is_faster(given: AttentionInputs) -> bool:
    """Whether the fused kernel for tables can be used, and was measured to be faster (sweeps/measured/gpu.md)."""
    positions, tables = given.positions, [table for table in (given.key_table, given.value_table) if table is not None]
    num_keys = given.k.shape[2]
    tf32 = given.q.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return (
        given.q.is_cuda
        and bool(positions)
        and given.q.shape[3] == given.v.shape[3]
        and positions <= VECTORS
        and not given.windowed
        and (given.q.dtype in (torch.bfloat16, torch.float16) or tf32)
        and given.q.shape[3] <= WIDEST_TRITON_HEAD
        and max(table.shape[-2] for table in tables) < num_keys  # as wide as that, the side tables are weights too
        and not torch.are_deterministic_algorithms_enabled()  # one test on a GPU got other bits from a second call
        and _kernels_compile_here()
    )


@cache
def _kernels_compile_here() -> bool:
    """Triton compiles a launcher in C for each kernel. Says once what is missing."""
    missing = []
    if find_spec("triton") is None:
        missing.append("triton")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        missing.append("a C compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python's headers")
    if torch.cuda.get_device_capability() < (8, 0):
        missing.append("a GPU of compute capability 8.0 or newer")
    if missing:
        log.warning("attention: without the fused kernel, which is faster; missing: %s", ", ".join(missing))
    return not missing


def _stores_weights(given: AttentionInputs) -> bool:
    """Whether the backward pass reads the weights from memory: while they are small, it is the faster way."""
    batch, heads, num_queries, _ = given.q.shape
    pairs = num_queries * given.k.shape[2]
    size = batch * heads * pairs * given.q.element_size()
    if given.window is not None:  # blocks of few keys
        return pairs < LONG**2
    if given.q.device.type == "cpu":
        return pairs < LONG**2 or (given.causal and size // 2 <= STORED_BYTES)
    return pairs < LONG**2 or size <= GPU_STORED_BYTES


def split_heads(qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of self-attention from one projection, [B, Q, 3 H D] -> three views [B, H, Q, D]."""
    if torch.compiler.is_compiling():
        q, k, v = qkv_BQM.view(*qkv_BQM.shape[:2], 3, num_heads, -1).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    parts: tuple[Tensor, Tensor, Tensor] = SplitHeads.apply(qkv_BQM, num_heads)  # type: ignore[no-untyped-call]
    return parts


def _fused_is_faster(given: AttentionInputs) -> bool:
    """Whether torch's fused kernels for attention were measured to be faster than our passes.

    On a GPU always, also with a bias of scores, whose gradient for each pair they store. On a CPU the kernel gains
    little from bfloat16 matmuls (sweeps/measured/speed.md), and of later keys it leaves out only blocks of
    512.
    """
    num_keys = given.k.shape[2]
    if given.windowed:
        return False
    if given.q.device.type != "cpu":
        return given.positions <= {"bias_table"}
    if given.positions:
        return False
    through_bfloat16 = given.q.dtype == torch.bfloat16 or (
        given.q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    )
    skips = given.causal and given.q.shape[2] == num_keys and _stores_weights(given)
    return num_keys >= (LONG if through_bfloat16 or skips else 256)


def _column_is_faster(given: AttentionInputs) -> bool:
    """Whether `_with_bias_as_column` can be used, at equal precision, and was measured to be faster."""
    return (
        given.key_bias is not None
        and given.positions == {"key_bias"}
        and given.only_causal
        and given.sink is None
        and given.q.shape[3] == given.v.shape[3]
        and not _stores_weights(given)
        and given.q.device.type == "cpu"
        and given.q.dtype == given.key_bias.dtype
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.is_autocast_enabled("cpu")  # which would round running sums with the column
    )


def _with_bias_as_column(given: AttentionInputs) -> Tensor:
    """The bias of the keys is one more column of k, which queries multiply by one: plain attention, a little wider."""
    assert given.key_bias is not None
    scale = given.q.shape[-1] ** -0.5
    q_BHQE = F.pad(given.q, (0, 1), value=1 / scale)
    k_BHKE = torch.cat([given.k, given.key_bias[..., None]], dim=-1)
    return F.scaled_dot_product_attention(q_BHQE, k_BHKE, F.pad(given.v, (0, 1)), is_causal=True, scale=scale)[..., :-1]


def _composed_is_better(q_BHQD: Tensor) -> bool:
    """Under torch.compile, which fuses it, and for a few queries to a cache, which it does not copy."""
    return torch.compiler.is_compiling() or (q_BHQD.shape[2] <= 16 and not torch.is_grad_enabled())


def _fused(given: AttentionInputs) -> Tensor:
    if (wider := given.q.shape[3] - given.v.shape[3]) > 0:  # the kernels that hold no weights have one width
        return _fused(given._replace(v=F.pad(given.v, (0, wider))))[..., :-wider]
    if given.only_causal and given.bias_table is None:
        return F.scaled_dot_product_attention(given.q, given.k, given.v, is_causal=True)
    layout = Layout(given.mask, given.causal, given.first_query, None)
    num_queries, num_keys = given.q.shape[2], given.k.shape[2]
    # An additive mask: a boolean one gives NaN for queries that see no key.
    (whole,) = layout.blocks(num_queries, num_keys)
    bias = layout.mask_bias(whole, like=given.q)
    if given.bias_table is not None:
        of_pairs_HQK = bias_of_pairs(given.bias_table, num_queries, num_keys, given.first_query).to(given.q.dtype)
        bias = of_pairs_HQK[None] if bias is None else of_pairs_HQK + bias
    return F.scaled_dot_product_attention(given.q, given.k, given.v, attn_mask=bias)
