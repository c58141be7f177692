"""Attention with tables in tiles on a GPU: the result of `composed`, without storing anything of size Q x K.

Matmuls outside the kernels turn the tables into narrow side tables, which the kernels read and write (flash attention,
Dao et al. 2022, with equations 3 and 4 of Shaw et al. 2018):

    in:   R = q w_K^T;                                                            backward also G = dz w_V^T
    out:  S[i, row] = sum of P_ij over the keys j whose row is `row`;             backward also dR, the same of dE

A query's distances with |j - i| < k belong to one key each, so their cells of S and dR are plain stores. All keys
further left or right share one row: their sums travel with the running sum of the softmax. A bias by distance is read
as it is; its gradient sums tiles at equal offsets from the diagonal, then their diagonals. Nothing is added atomically.
The small matmuls with the tables are torch's. The kernels have run on an H200 (sweeps/measured/gpu.md), before the sums
of far keys in dR were corrected, biases and windows.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows (k+1 with a causal mask);
# G groups that have a table of their own (1 or H), N = the queries of a group (H*B*Q or B*Q).

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import triton_op, wrap_triton

from rpr.model import devices
from rpr.model.attention.composition import HALF, keys_to_distances, sum_edges
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.kernels.triton_kernels import (
    backward_key_kernel,
    backward_query_kernel,
    bias_gradient_kernel,
    forward_kernel,
)

PROGRAMS = 1024  # of the bias's gradient: sentences are divided among as many if there are fewer offsets and heads


class Tiles(NamedTuple):
    """(queries, keys) of a tile in each kernel, powers of two and at least 16."""

    forward: tuple[int, int]
    backward_query: tuple[int, int]
    backward_key: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 1


# By matmul precision and D: the largest tiles tried whose registers (nearly) all fit an H100; shared memory is at most
# 80 KiB, in float64 twice that (an A100 has 163). On an H200 none of 13 others for heads of 64 and of 5 for 128 was
# faster by more than a tenth. No timing at start-up: another tile size adds in another order.
TILES = {
    ("half", 64): Tiles((64, 32), (64, 32), (32, 64), num_stages=3),
    ("half", 128): Tiles((64, 32), (64, 32), (16, 64), num_stages=2),
    ("half", 256): Tiles((64, 16), (32, 32), (32, 32), num_stages=2),
    ("tf32", 64): Tiles((64, 32), (64, 16), (32, 64), num_stages=2),
    ("tf32", 128): Tiles((32, 32), (32, 32), (32, 32)),
    ("tf32", 256): Tiles((32, 16), (16, 16), (16, 16)),
    ("ieee", 64): Tiles((32, 32), (32, 32), (32, 32), num_warps=8),
    ("ieee", 128): Tiles((32, 16), (16, 16), (16, 32), num_warps=8),
    ("ieee", 256): Tiles((16, 16), (16, 16), (16, 16), num_warps=8),
}


def fused_attention(given: AttentionInputs, tiles: Tiles | None = None) -> Tensor:
    """Attention without labels, changed scores, bias of keys and sink, forward and backward, in memory linear in Q and
    K, but for tables as wide as the keys. A query that sees no key gets zeros and gives no gradient (`composed` gives
    it the mean of the values). float32 matmuls use TF32 only if `torch.set_float32_matmul_precision` allows it. q, k
    and v are of one dtype, D at most 256; views are read in place where D is contiguous. Matmuls with the tables use
    q's dtype and sum in float32 (or float64). The mask is never expanded in memory. z is laid out so that
    z.transpose(1, 2).flatten(-2) is a view.
    """
    q_BHQD, mask, bias = given.q, given.mask, given.bias_table
    width = q_BHQD.shape[3]
    assert width <= 256, f"d_head: {width} is more than the 256 whose tiles fit into shared memory"
    exact = q_BHQD.dtype == torch.float64 or devices.matmul_precision() == "highest"
    precision = "ieee" if exact else "tf32"
    if tiles is None:
        tiles = TILES["half" if q_BHQD.dtype in HALF else precision, max(64, _power_of_two(width))]
    if mask is not None:
        # Viewed as bytes; but Triton fails to compile a float64 matmul after a mask of 8 or 16 bits.
        mask = mask.to(torch.int32) if q_BHQD.dtype == torch.float64 else mask.view(torch.uint8)
        mask = mask.expand(*q_BHQD.shape[:3], given.k.shape[2])  # stride 0 where it is broadcast
    queries = given.distance_queries
    inputs = (*given[:3], None if queries is None else queries.to(q_BHQD.dtype))
    tables = [_occurring_rows(table, given) for table in (given.key_table, given.value_table)]
    bias = None if bias is None else _occurring_rows(bias[..., None], given)
    sizes = [*tiles.forward, *tiles.backward_query, *tiles.backward_key, tiles.num_warps, tiles.num_stages]
    how = (given.causal, given.first_query, given.window or 0, sizes, precision)
    z_BHQD: Tensor = _attention(*inputs, *tables, None if bias is None else bias[..., 0], mask, *how)[0]
    return z_BHQD


def _occurring_rows(table: Tensor | None, given: AttentionInputs) -> Tensor | None:
    """The rows of distances that occur, 2k+1 with k >= 1; with a causal mask none right of the diagonal, k+1."""
    if table is None:
        return None
    if table.shape[-2] == 1:  # k = 0 is k = 1 with three equal rows: no special case in the kernels
        table = table.expand(*table.shape[:-2], 3, -1)
    whole = (table.shape[-2] - 1) // 2
    clip_distance = min(whole, max(1, given.farthest))
    return table[..., whole - clip_distance : whole + 1 + (0 if given.causal else clip_distance), :]


@triton_op("rpr::attention", mutates_args=())
def _attention(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, queries_BHQX: Tensor | None, key_table: Tensor | None,
    value_table: Tensor | None, bias_HR: Tensor | None, mask_BHQK: Tensor | None, causal: bool, first_query: int,
    window: int, tiles: list[int], precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """z, the logarithm of each query's sum of exponentials, and S (nothing without a value table). Side tables are
    stored [H, B, Q, R], so that a group is a matrix.
    """
    q_BHQD, k_BHKD, v_BHKD = map(_rows_contiguous, (q_BHQD, k_BHKD, v_BHKD))
    batch, heads, queries, width = q_BHQD.shape
    wide = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
    # The value table's term is added after the kernel, before the sums are rounded.
    z_BQHD = q_BHQD.new_empty(batch, queries, heads, width, dtype=q_BHQD.dtype if value_table is None else wide)
    lse_HBQ = q_BHQD.new_empty(heads, batch, queries, dtype=wide)
    s_HBQR = None
    if value_table is not None:  # -inf: cells of distances that do not occur are never stored
        s_HBQR = lse_HBQ.new_full((heads, batch, queries, value_table.shape[-2]), -math.inf)
    tables = key_table, value_table, bias_HR
    settings = _settings(q_BHQD, k_BHKD, tables, mask_BHQK, causal, first_query, window, tiles, precision)
    with _plain(q_BHQD):
        r_HBQR = _scores_by_row(q_BHQD, queries_BHQX, key_table)
        strided, others = (q_BHQD, k_BHKD, v_BHKD), (r_HBQR, _in_log2(bias_HR, wide), z_BQHD, lse_HBQ, s_HBQR)
        _launch(forward_kernel, -(-queries // tiles[0]), tiles[0:2], strided, others, mask_BHQK, settings)
        if value_table is not None and s_HBQR is not None:
            s_HBQR.sub_(lse_HBQ[..., None]).exp2_()  # the kernel stores logits
            z_BQHD += _unproject(s_HBQR, value_table, q_BHQD.dtype)
    z_BHQD = z_BQHD.to(q_BHQD.dtype).transpose(1, 2)
    return z_BHQD, lse_HBQ, lse_HBQ.new_empty(0) if s_HBQR is None else s_HBQR


@triton_op("rpr::attention_backward", mutates_args=())
def _attention_backward(
    dz_BHQD: Tensor, z_BHQD: Tensor, lse_HBQ: Tensor, s_HBQR: Tensor, q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor,
    queries_BHQX: Tensor | None, key_table: Tensor | None, value_table: Tensor | None, bias_HR: Tensor | None,
    mask_BHQK: Tensor | None, causal: bool, first_query: int, window: int, tiles: list[int], precision: str,
    learned: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the seven inputs that are not the mask; nothing for those that are None, and for tables that
    are not `learned` (key table, value table, bias).
    """
    # 1. What is computed again, not stored: a small matmul, while the stored tables of all layers would add up.
    q_BHQD, k_BHKD, v_BHKD, dz_BHQD = map(_rows_contiguous, (q_BHQD, k_BHKD, v_BHKD, dz_BHQD))
    z_BQHD = z_BHQD.transpose(1, 2).contiguous()  # a view, unless a hook on saved tensors changed z's layout
    batch, heads, queries, width = q_BHQD.shape
    keys, nothing = k_BHKD.shape[2], lse_HBQ.new_empty
    # The queries' gradient of the key table's term is added before it is rounded.
    own = key_table is not None and queries_BHQX is None
    dq_BQHD = q_BHQD.new_empty(batch, queries, heads, width, dtype=lse_HBQ.dtype if own else q_BHQD.dtype)
    dk_BKHD, dv_BKHD = (k_BHKD.new_empty(batch, keys, heads, width) for _ in range(2))
    delta_HBQ = torch.empty_like(lse_HBQ)
    dr_HBQR = None if key_table is None else lse_HBQ.new_zeros(*lse_HBQ.shape, key_table.shape[-2])
    d_queries, d_key_table, d_value_table, d_bias = (nothing(0) for _ in range(4))
    tables = key_table, value_table, bias_HR
    settings = _settings(q_BHQD, k_BHKD, tables, mask_BHQK, causal, first_query, window, tiles, precision)
    strided = (q_BHQD, k_BHKD, v_BHKD, dz_BHQD)
    with _plain(q_BHQD):
        r_HBQR, g_HBQR = _scores_by_row(q_BHQD, queries_BHQX, key_table), _project(dz_BHQD, value_table)
        sides = (r_HBQR, g_HBQR, _in_log2(bias_HR, lse_HBQ.dtype), lse_HBQ, delta_HBQ)
        # 2. The kernels; the one of the bias sums over tiles as large as both sides allow.
        by_query, by_key = (*sides, z_BQHD, dq_BQHD, dr_HBQR), (*sides, dk_BKHD, dv_BKHD)
        programs = -(-queries // tiles[2]), -(-keys // tiles[5])
        _launch(backward_query_kernel, programs[0], tiles[2:4], strided, by_query, mask_BHQK, settings)
        _launch(backward_key_kernel, programs[1], tiles[4:6], strided, by_key, mask_BHQK, settings)
        if bias_HR is not None and learned[2]:
            size = min(tiles[2:4])
            num_tiles = -(-queries // size), -(-keys // size)
            offsets = max(0, sum(num_tiles) - 1)
            parts = max(1, min(batch, PROGRAMS // max(1, offsets * heads)))
            tiles_PHOTT = nothing(parts, heads, offsets, size, size)
            _launch(
                bias_gradient_kernel, parts * offsets, [size] * 2, strided, (*sides, tiles_PHOTT), mask_BHQK,
                settings, of_heads=heads,
            )  # fmt: skip
            lowest = 1 - num_tiles[0] * size - first_query
            d_bias = _by_row(tiles_PHOTT.sum(0), lowest, settings["bias_clip"])[:, : bias_HR.shape[1]].to(bias_HR.dtype)
        # 3. The matmuls with the tables.
        if dr_HBQR is not None and key_table is not None:
            x_BHQX, scale = (q_BHQD, 1.0) if queries_BHQX is None else (queries_BHQX, width**0.5)
            dx_BQHX = _unproject(dr_HBQR, key_table, q_BHQD.dtype)
            if queries_BHQX is None:
                dq_BQHD += dx_BQHX
            else:
                d_queries = (dx_BQHX * scale).to(q_BHQD.dtype).transpose(1, 2)
            if learned[0]:
                d_key_table = _table_gradient(dr_HBQR, x_BHQX * scale, key_table)
        if value_table is not None and learned[1]:
            d_value_table = _table_gradient(s_HBQR, dz_BHQD, value_table)
    dq_BHQD, dk_BHKD, dv_BHKD = (x.transpose(1, 2) for x in (dq_BQHD.to(q_BHQD.dtype), dk_BKHD, dv_BKHD))
    return dq_BHQD, dk_BHKD, dv_BHKD, d_queries, d_key_table, d_value_table, d_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:8])
    ctx.how = inputs[8:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dz_BHQD: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:7]
    gradients = _attention_backward(dz_BHQD, *ctx.saved_tensors, *ctx.how, [*wanted[4:7]])
    return *(x if want else None for x, want in zip(gradients, wanted, strict=True)), *[None] * 6


_attention.register_autograd(_gradients, setup_context=_keep)


def _settings(
    q_BHQD: Tensor, k_BHKD: Tensor, tables: tuple[Tensor | None, ...], mask_BHQK: Tensor | None, causal: bool,
    first_query: int, window: int, tiles: list[int], precision: str,
) -> dict[str, Any]:  # fmt: skip
    """What every kernel gets besides tensors; `tables` are of keys, values and bias."""
    batch, num_heads, num_queries, d_head = q_BHQD.shape
    key_rows, value_rows, bias_rows = (
        1 if table is None else table.shape[-1 if place == 2 else -2] for place, table in enumerate(tables)
    )
    clips = [max(1, rows - 1 if causal else (rows - 1) // 2) for rows in (key_rows, value_rows, bias_rows)]
    return {
        "num_batch": batch, "num_heads": num_heads, "num_queries": num_queries, "num_keys": k_BHKD.shape[2],
        "first_query": first_query, "window": window,
        "key_rows": key_rows, "value_rows": value_rows, "bias_rows": bias_rows,
        "key_clip": clips[0], "value_clip": clips[1], "bias_clip": clips[2], "near_clip": max(clips[:2]),
        "SCALE": d_head**-0.5, "D_HEAD": d_head, "D_TILE": max(16, _power_of_two(d_head)),
        "MASK_BY_QUERY": mask_BHQK is not None and mask_BHQK.stride(2) != 0, "CAUSAL": causal, "WINDOWED": window > 0,
        "PRECISION": precision, "num_warps": tiles[6], "num_stages": tiles[7],
    }  # fmt: skip


def _power_of_two(width: int) -> int:
    return 1 << (width - 1).bit_length()


def _in_log2(bias_HR: Tensor | None, wide: torch.dtype) -> Tensor | None:
    return None if bias_HR is None else (bias_HR.to(wide) * math.log2(math.e)).contiguous()


def _scores_by_row(q_BHQD: Tensor, queries_BHQX: Tensor | None, key_table: Tensor | None) -> Tensor | None:
    if queries_BHQX is None:
        return _project(q_BHQD, key_table)
    return _project(queries_BHQX * q_BHQD.shape[3] ** 0.5, key_table)


def _by_row(tiles_HOTT: Tensor, lowest: int, clip_distance: int) -> Tensor:
    """The sums of the diagonals of tiles at consecutive offsets, the first of distance `lowest`, by row: [H, 2k+1]."""
    heads, offsets, size = tiles_HOTT.shape[:3]
    diagonals_HO2T = F.pad(keys_to_distances(tiles_HOTT).sum(-2), (0, 1)).view(heads, offsets, 2, size)
    parts = [F.pad(diagonals_HO2T[:, :, half].flatten(1), (half * size, (1 - half) * size)) for half in (0, 1)]
    highest = lowest + (offsets + 1) * size - 1
    by_distance = F.pad(parts[0] + parts[1], (max(0, lowest + clip_distance), max(0, clip_distance - highest)))
    return sum_edges(by_distance, max(0, -clip_distance - lowest), max(0, highest - clip_distance))


@contextmanager
def _plain(x: Tensor) -> Iterator[None]:
    device = torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
    with device, torch.autocast(x.device.type, enabled=False):
        yield


def _launch(
    kernel: Any, programs: int, tile: list[int], strided: tuple[Tensor, ...], others: tuple[Tensor | None, ...],
    mask: Tensor | None, settings: dict[str, Any], *, of_heads: int | None = None,
) -> None:  # fmt: skip
    """Launch so many programs for each head of each sentence, or only of so many heads, on the one axis that is not
    limited to 65,535.
    """
    programs *= settings["num_batch"] * settings["num_heads"] if of_heads is None else of_heads
    if programs:
        strides = [x.stride(a) for x in strided for a in range(3)]
        strides += [0] * 4 if mask is None else mask.stride()
        names = {"Q_TILE": tile[0], "K_TILE": tile[1]}
        wrap_triton(kernel)[(programs,)](*strided, *others, mask, *strides, **names, **settings)


def _rows_contiguous(x_BHXD: Tensor) -> Tensor:
    return x_BHXD if x_BHXD.stride(-1) == 1 else x_BHXD.contiguous()


def _project(x_BHQD: Tensor, table: Tensor | None) -> Tensor | None:
    return None if table is None else _times(x_BHQD.transpose(0, 1), table.transpose(-2, -1), x_BHQD.dtype)


def _unproject(x_HBQR: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    return _times(x_HBQR, table, dtype).permute(1, 2, 0, 3)


def _times(x_HBQX: Tensor, matrix: Tensor, dtype: torch.dtype) -> Tensor:
    product = _matmul(_by_group(x_HBQX, matrix), matrix if matrix.dim() == 3 else matrix[None], dtype)
    return product.view(*x_HBQX.shape[:3], matrix.shape[-1])


def _table_gradient(x_HBQR: Tensor, y_BHQD: Tensor, table: Tensor) -> Tensor:
    x_GNR, y_GND = _by_group(x_HBQR, table), _by_group(y_BHQD.transpose(0, 1), table)
    return _matmul(x_GNR.transpose(1, 2), y_GND, y_BHQD.dtype).view(table.shape).to(table.dtype)


def _by_group(x_HBQX: Tensor, table: Tensor) -> Tensor:
    return x_HBQX.flatten(1, 2) if table.dim() == 3 else x_HBQX.flatten(0, 2)[None]


def _matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, rounded to dtype before and summed in float32 (float64 for float64), which is also the result's dtype.

    A table's gradient sums over every query of the batch; bfloat16 additions would lose most of it.
    """
    a, b = a.to(dtype), b.to(dtype)
    if dtype not in HALF:
        return a @ b
    if a.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):  # torch 2.8 and later, on GPUs only
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
