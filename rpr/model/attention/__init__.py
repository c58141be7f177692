"""Attention with relative positions: which implementation is used.

`attend` is the one to call: by device and length it selects torch's kernels for plain attention, ours for a GPU, the
hand-written passes of `rpr.model.attention.blocks`, or `composed`. All take `AttentionInputs` (`attend` its fields) and
return z [B, H, Q, D]. A query that sees no key gets finite but meaningless values and finite gradients.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

import logging
import os
import shutil
import sysconfig
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model import devices
from rpr.model.attention.blocks import SplitHeads, blockwise, heads_of
from rpr.model.attention.composition import composed as composed
from rpr.model.attention.composition import masked_score, seen_keys
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
IN_KERNEL = {"key_table", "value_table", "bias_table", "distance_queries"}  # what the fused kernel for a GPU computes
SIDE_BYTES = 512 * 2**20  # of a side table of that kernel which is as wide as the keys
WINDOW_BLOCK = 128  # queries of a block with a window, on a CPU
CAUSAL = 128  # from this many keys on, blocks of causal attention on a CPU leave out later keys


def attend(q: Tensor, k: Tensor, v: Tensor, *, implementation: Implementation = "auto", **others: Any) -> Tensor:
    """Attention as used in training and decoding, of the fields of `AttentionInputs`.

    Args:
        implementation: `auto` selects one; `dense` stores the weights [B, H, Q, K] for the backward pass, `blockwise`
            computes them again block by block of queries; `composed` is the function of that name; `triton` is the
            fused kernel for a GPU (no bias of keys, no sink).

    Raises ValueError for tables, biases, distance queries or labels that do not fit.
    """
    return attention_of(AttentionInputs(q, k, v, **others), implementation)


def attention_of(given: AttentionInputs, implementation: Implementation = "auto") -> Tensor:
    """As `attend`."""
    # 1. Everything in its full shape; a window only where it hides something.
    given.check_shapes()
    if (mask := given.mask) is not None and mask.dim() < 4:
        given = given._replace(mask=mask.reshape((1,) * (4 - mask.dim()) + mask.shape))
    if given.window is not None and given.window > given.farthest:
        given = given._replace(window=None)
    # 2. Torch's kernels for plain attention, then ours for positions.
    auto = implementation == "auto"
    if auto and _fused_is_faster(given):
        return _fused(given)
    if auto and given.change_adds and given.positions == {"change_scores"} and devices.on_gpu(given.q):
        return _with_bias_of_pairs(given)
    if auto and _columns_are_faster(given):
        return _with_bias_as_columns(given)
    if implementation == "triton" and not _in_kernel(given):
        raise ValueError(
            "implementation: triton supports no labels, changed scores, bias of keys, sink, or values of another width "
            "than queries; choose auto"
        )
    if implementation == "triton" or (auto and _kernel_is_faster(given)):
        from rpr.model.kernels.triton_attention import fused_attention

        return fused_attention(given)
    # 3. Torch's operations, differentiated by autograd or by hand.
    few = torch.compiler.is_compiling() or _few_queries(given.q)  # it fuses them; of a cache, which is not copied
    dense_alone = given.labels is not None or given.change_scores is not None
    if implementation == "composed" or dense_alone or (auto and few):
        return composed(given)
    stored = implementation == "dense" or (auto and _stores_weights(given))
    whole = stored and given.window is None and not _leaves_out_later_keys(given)
    return blockwise(given, None if whole else _block(given), stored=stored)


def _leaves_out_later_keys(given: AttentionInputs) -> bool:
    return given.causal and given.k.shape[2] >= CAUSAL and not devices.on_gpu(given.q)


def _block(given: AttentionInputs) -> int:
    """Queries per block: so many that a CPU's caches hold the scores of a head, or that a GPU has enough to do."""
    batch, heads, num_keys, _ = given.k.shape
    on_gpu = devices.on_gpu(given.q)
    if given.window is not None:
        return max(WINDOW_BLOCK, given.window) if on_gpu else WINDOW_BLOCK
    if _leaves_out_later_keys(given):
        return 64 if num_keys < LONG else 128
    return max(64, GPU_BLOCK_SCORES // (batch * heads * num_keys) if on_gpu else BLOCK_SCORES // num_keys)


def _in_kernel(given: AttentionInputs) -> bool:
    return given.q.shape[3] == given.v.shape[3] and given.positions <= IN_KERNEL


def _kernel_is_faster(given: AttentionInputs) -> bool:
    """Where it can be used, for narrow tables, as measured (sweeps/measured/gpu.md); elsewhere it saves memory."""
    batch, heads, num_queries, _ = given.q.shape
    tables = [table for table in (given.key_table, given.value_table) if table is not None]
    rows = max([0, *(min(table.shape[-2], 2 * given.farthest + 1) for table in tables)])
    tf32 = given.q.dtype == torch.float32 and devices.matmul_precision() != "highest"
    return (
        devices.on_gpu(given.q)
        and _in_kernel(given)
        and (given.q.dtype in (torch.bfloat16, torch.float16) or tf32)
        and given.q.shape[3] <= WIDEST_TRITON_HEAD
        and not _few_queries(given.q)
        and (rows < given.k.shape[2] or 4 * batch * heads * num_queries * rows <= SIDE_BYTES)
        and not torch.are_deterministic_algorithms_enabled()  # one test on a GPU got other bits from a second call
        and _kernels_compile_here()
    )


@cache
def _kernels_compile_here() -> bool:
    """Triton compiles a launcher in C for each kernel. Says once what is missing."""
    needed = {
        "triton": find_spec("triton"),
        "a C compiler": os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        "Python's headers": Path(sysconfig.get_path("include"), "Python.h").exists(),
        "a GPU of compute capability 8.0 or newer": torch.cuda.get_device_capability() >= (8, 0),
    }
    if missing := [what for what, present in needed.items() if not present]:
        log.warning("attention: without the fused kernel, which is faster; missing: %s", ", ".join(missing))
    return not missing


_kernels_compile_here._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _stores_weights(given: AttentionInputs) -> bool:
    """Whether the backward pass reads the weights from memory: while they are small, it is the faster way."""
    batch, heads, num_queries, _ = given.q.shape
    pairs = num_queries * given.k.shape[2]
    size = batch * heads * pairs * given.q.element_size()
    if given.window is not None:  # blocks of few keys
        return pairs < LONG**2
    if devices.on_gpu(given.q):
        return pairs < LONG**2 or size <= GPU_STORED_BYTES
    return pairs < LONG**2 or (given.causal and size // 2 <= STORED_BYTES)


def split_heads(qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """q, k, v of self-attention from one projection, [B, Q, 3 H D] -> three views [B, H, Q, D]."""
    plain = torch.compiler.is_compiling() or devices.on_gpu(qkv_BQM)
    parts: tuple[Tensor, ...] = (heads_of if plain else SplitHeads.apply)(qkv_BQM, num_heads)
    return parts


def _fused_is_faster(given: AttentionInputs) -> bool:
    """Whether torch's fused kernels were measured to be faster than our passes (sweeps/measured/speed.md): on a CPU
    they gain little from bfloat16 matmuls, and of later keys they leave out only blocks of 512.
    """
    num_keys, dtype = given.k.shape[2], given.q.dtype
    if given.window is not None or given.positions:
        return False
    if devices.on_gpu(given.q):
        return True
    rounded = dtype == torch.float32 and devices.matmul_precision() == "medium"
    through_bfloat16 = dtype == torch.bfloat16 or rounded
    skips = given.causal and given.q.shape[2] == num_keys and _stores_weights(given)
    return num_keys >= (LONG if through_bfloat16 or skips else 256)


def _with_bias_of_pairs(given: AttentionInputs) -> Tensor:
    """Where the scores are changed by a bias of all pairs alone, which torch's kernels for a GPU take."""
    assert given.change_scores is not None
    visible, dtype = seen_keys(given), given.q.dtype
    bias = _bias_of_mask(visible, dtype, torch.promote_types(dtype, torch.float32))
    batch = bias.shape[0] if bias.dim() == 4 else 1
    bias = bias.expand(batch, given.q.shape[1], given.q.shape[2], given.k.shape[2])
    bias = given.change_scores(bias, visible).to(dtype)
    return F.scaled_dot_product_attention(*given[:3], attn_mask=bias, scale=given.scale)


def _columns_are_faster(given: AttentionInputs) -> bool:
    """Whether `_with_bias_as_columns` can be used: on a GPU it saves the bias of all pairs, on a CPU it was measured to
    be faster, at equal precision.
    """
    linear = given.positions == {"bias_table"} and given.slopes is not None
    known = linear or given.positions == {"key_bias"}
    if not known or not given.only_causal or given.q.shape[3] != given.v.shape[3]:
        return False
    on_cpu = not _stores_weights(given) and _exact(given.q) and not torch.is_autocast_enabled("cpu")
    return devices.on_gpu(given.q) or on_cpu


def _exact(x: Tensor) -> bool:
    single = x.dtype == torch.float32 and devices.matmul_precision() == "highest"
    return single or x.dtype == torch.float64


def _with_bias_as_columns(given: AttentionInputs) -> Tensor:
    """The bias of the keys as a few more columns of k, which queries multiply by constants. That of distances, slope
    (j - i), is slope j but for what all keys of a query share. Where products round to bfloat16, numbers are split into
    several that it holds: j into 256 a + b, others into their leading bits.
    """
    q, k, scale = given.q, given.k, given.scale
    if given.slopes is not None:
        of_queries, of_keys = _columns_of_slopes(given.slopes, scale, k.shape[2], _exact(q), q.dtype, q.device)
        q = torch.cat([q, of_queries.expand(*q.shape[:3], -1)], dim=-1)
    else:
        assert given.key_bias is not None
        of_keys = _columns(_leading_bits(given.key_bias / scale, 1 if _exact(q) else 3), q.dtype)
        q = F.pad(q, (0, of_keys.shape[-1]), value=1.0)
    k = torch.cat([k, of_keys.expand(*k.shape[:3], -1)], dim=-1)
    v = F.pad(given.v, (0, of_keys.shape[-1]))
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return z[..., : given.v.shape[3]]


@lru_cache(maxsize=4)  # the same for all layers
def _columns_of_slopes(
    slopes: tuple[float, ...], scale: float, keys: int, exact: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What the queries of each head have, [H, 1, E], and the keys, [K, E]."""
    with torch.inference_mode(False):
        places_K = torch.arange(keys, device=device)
        of_places = [(places_K, 1)] if exact else [(places_K // 256, 256), (places_K % 256, 1)]
        slopes_H = torch.tensor(slopes, dtype=torch.float64).to(device, non_blocking=True) / scale
        pairs = [
            (size * slope_H, place_K)
            for slope_H in _leading_bits(slopes_H, 1 if exact else 2)
            for place_K, size in of_places
        ]
        of_queries_HE, of_keys_KE = (_columns(part, dtype) for part in zip(*pairs, strict=True))
        return of_queries_HE[:, None], of_keys_KE


def _leading_bits(x: Tensor, number: int) -> list[Tensor]:
    """x as a sum of parts that bfloat16 holds, of which the first has its gradient; one part is x itself."""
    if number == 1:
        return [x]
    first = x.bfloat16().to(x.dtype)
    return [first, *_leading_bits((x - first).detach(), number - 1)]


def _columns(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    columns = torch.stack(tuple(parts), dim=-1).to(dtype)
    return columns if len(parts) == 1 else F.pad(columns, (0, 8 - len(parts)))


def _few_queries(q_BHQD: Tensor) -> bool:
    return q_BHQD.shape[2] <= 16 and not torch.is_grad_enabled()


def _fused(given: AttentionInputs) -> Tensor:
    q, k, v, scale = *given[:3], given.scale
    if q.shape[3] > v.shape[3]:  # the kernels that hold no weights have one width
        v = F.pad(v, (0, q.shape[3] - v.shape[3]))
    bias = None
    if given.causal and not given.only_causal:
        layout = Layout(given.mask, given.causal, given.first_query, None)
        (whole,) = layout.blocks(given.q.shape[2], given.k.shape[2])
        bias = layout.mask_bias(whole, like=given.q)  # None where the queries see all keys
    elif not given.causal and given.mask is not None:
        bias = _bias_of_mask(given.mask, given.q.dtype, given.q.dtype)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=given.only_causal, scale=scale)
    return z[..., : given.v.shape[3]]


@lru_cache(maxsize=4)  # a tensor is its own key: once for all layers
def _bias_of_mask(mask: Tensor, dtype: torch.dtype, wide: torch.dtype) -> Tensor:
    """An additive mask for scores of `dtype`: a boolean one gives NaN for queries that see no key."""
    with torch.inference_mode(False):
        zeros = torch.zeros(mask.shape, dtype=wide, device=mask.device)
        return zeros.masked_fill_(~mask, masked_score(dtype))
