"""Relative attention in tiles, on a GPU: what `reference` computes, without anything of size Q x K.

The tables enter as two narrow side tables and leave as two (flash attention, Dao et al. 2022, with equations 3 and 4
of Shaw et al. 2018):

    in:   R = q w_K^T;                                                            backward also G = dz w_V^T
    out:  S[i, row] = sum of P_ij over the keys j whose row is `row`;             backward also dR, the same of dE

A query's distances with |j - i| < k belong to one key each, so their cells of S and dR are plain stores. All keys
further left or right share one row: their sums travel with the running sum of the softmax. Nothing is added
atomically: the same inputs give the same bits. The small products with the tables are torch's.

The kernels' arithmetic is proven in Triton's interpreter, and they compile to machine code for A100 and H100. They
were NOT yet run on a GPU: their speed is unknown, and the tile sizes are chosen from the compiler's register counts.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows (k+1 with a causal mask);
# G groups that have a table of their own (1 or H), N = the queries of a group (H*B*Q or B*Q).
# In kernels Q, K and D are one tile's, and logits are in units of log 2, because exp2 is what a GPU has.

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ModuleNotFoundError as error:
    raise ImportError(
        "tiled attention needs triton: it comes with torch's CUDA builds, or pip install triton"
    ) from error

HALF = (torch.bfloat16, torch.float16)

# Where a tile lies: all its keys k or more to the left of its queries, near them, or all k or more to the right.
LEFT = tl.constexpr(0)
NEAR = tl.constexpr(1)
RIGHT = tl.constexpr(2)
LOG2_E = tl.constexpr(math.log2(math.e))

# Lengths change with every batch: no new compilation for one that is 1 or a multiple of 16.
LENGTHS = ["num_batch", "num_queries", "num_keys", "first_query", "mask_stride_b", "mask_stride_h", "mask_stride_q"]
LENGTHS += ["key_rows", "value_rows", "key_clip", "value_clip", "near_clip"]


class Tiles(NamedTuple):
    """(queries, keys) of a tile in each kernel, powers of two and at least 16."""

    forward: tuple[int, int]
    backward_query: tuple[int, int]
    backward_key: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 1


# By kind of product and D: the largest tiles tried whose registers (nearly) all fit, as ptxas counts them for an H100;
# shared memory is at most 80 KiB (an A100 has 163). A table and no timing at start-up: another tile adds in another
# order, and the results would hang on how busy the GPU was.
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


def fused_attention(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    first_query: int = 0,
    tiles: Tiles | None = None,
) -> Tensor:
    """The attention of `rpr.model.attention.reference`, forward and backward, in memory linear in Q and K.

    A query that sees no key gets zeros and gives no gradient (`reference` gives it the mean of the values). float32
    products are TF32 only where `torch.set_float32_matmul_precision` allows it.

    Args:
        q_BHQD, k_BHKD, v_BHKD: x W^Q, x W^K, x W^V, unscaled, of one dtype, D at most 256; views are read in place
            where D is contiguous.
        key_table, value_table: w^K, w^V: [R, D] shared by heads or [H, R, D] per head; None is no term. Their number
            of rows may differ. Products with them are made in q's dtype, and summed in float32 (or float64).
        mask: bool, broadcastable to [B, H, Q, K]; False hides the key from the query. Never expanded in memory.
        causal: the query at position p sees the keys 0 .. p only.
        first_query: position of the first query among the keys.
        tiles: None takes the table's.

    Returns:
        z: [B, H, Q, D], laid out so that z.transpose(1, 2).flatten(-2) is a view.
    """
    assert q_BHQD.dtype == k_BHKD.dtype == v_BHKD.dtype, (q_BHQD.dtype, k_BHKD.dtype, v_BHKD.dtype)
    batch, num_heads, num_queries, d_head = q_BHQD.shape
    num_keys = k_BHKD.shape[2]
    d_tile = max(16, triton.next_power_of_2(d_head))
    assert d_tile <= 256, f"d_head: {d_head} is more than the 256 whose tiles fit into shared memory"
    exact = q_BHQD.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    precision = "ieee" if exact else "tf32"
    if tiles is None:
        tiles = TILES["half" if q_BHQD.dtype in HALF else precision, max(64, d_tile)]
    key_table, key_clip = _occurring_rows(key_table, causal)
    value_table, value_clip = _occurring_rows(value_table, causal)
    if mask is not None:
        assert mask.dtype == torch.bool, mask.dtype
        mask = mask.view(torch.uint8).expand(batch, num_heads, num_queries, num_keys)  # stride 0 where it is broadcast
    settings = {
        **{f"mask_stride_{axis}": 0 if mask is None else mask.stride(i) for i, axis in enumerate("bhqk")},
        "num_batch": batch,
        "num_heads": num_heads,
        "num_queries": num_queries,
        "num_keys": num_keys,
        "first_query": first_query,
        "key_rows": 1 if key_table is None else key_table.shape[-2],
        "value_rows": 1 if value_table is None else value_table.shape[-2],
        "key_clip": key_clip,
        "value_clip": value_clip,
        "near_clip": max(key_clip, value_clip),
        "SCALE": d_head**-0.5,
        "D_HEAD": d_head,
        "D_TILE": d_tile,
        "MASK_BY_QUERY": mask is not None and mask.stride(2) != 0,
        "CAUSAL": causal,
        "PRECISION": precision,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
    inputs = (q_BHQD, k_BHKD, v_BHKD, key_table, value_table, mask)
    z_BHQD: Tensor = _FusedAttention.apply(*inputs, settings, tiles)  # type: ignore[no-untyped-call]
    return z_BHQD


def _occurring_rows(table: Tensor | None, causal: bool) -> tuple[Tensor | None, int]:
    """The rows that the kernels read, and their k >= 1: with a causal mask none lies right of the diagonal."""
    if table is None:
        return None, 1
    assert table.shape[-2] % 2 == 1, f"a table has 2k+1 rows, this one {table.shape[-2]}"
    if table.shape[-2] == 1:  # k = 0 is k = 1 with three equal rows: the kernels need no case of its own
        table = table.expand(*table.shape[:-2], 3, -1)
    clip_distance = (table.shape[-2] - 1) // 2
    return (table[..., : clip_distance + 1, :] if causal else table), clip_distance


class _FusedAttention(torch.autograd.Function):
    """The kernels, and the products with the tables around them. Side tables lie [H, B, Q, R]: a group is a matrix."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        v_BHKD: Tensor,
        key_table: Tensor | None,
        value_table: Tensor | None,
        mask: Tensor | None,
        settings: dict[str, Any],
        tiles: Tiles,
    ) -> Tensor:
        q_BHQD, k_BHKD, v_BHKD = (_rows_contiguous(x) for x in (q_BHQD, k_BHKD, v_BHKD))
        batch, heads, queries, width = q_BHQD.shape
        wide = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
        # The value table's term is added after the kernel, to sums that are not rounded before.
        z_BQHD = q_BHQD.new_empty(batch, queries, heads, width, dtype=q_BHQD.dtype if value_table is None else wide)
        lse_HBQ = q_BHQD.new_empty(heads, batch, queries, dtype=wide)
        s_HBQR = None
        if value_table is not None:  # -inf: cells of distances that do not occur are never stored
            s_HBQR = lse_HBQ.new_full((heads, batch, queries, value_table.shape[-2]), -math.inf)
        with _plain(q_BHQD):
            r_HBQR = _project(q_BHQD, key_table)
            strided, others = (q_BHQD, k_BHKD, v_BHKD), (r_HBQR, z_BQHD, lse_HBQ, s_HBQR, mask)
            _launch(_forward_kernel, queries, 0, tiles.forward, strided, others, settings)
            if value_table is not None and s_HBQR is not None:
                s_HBQR.sub_(lse_HBQ[..., None]).exp2_()  # the kernel stores logits
                z_BQHD += _unproject(s_HBQR, value_table, q_BHQD.dtype)
        z_BHQD = z_BQHD.to(q_BHQD.dtype).transpose(1, 2)
        ctx.save_for_backward(q_BHQD, k_BHKD, v_BHKD, key_table, value_table, mask, z_BHQD, lse_HBQ, s_HBQR)
        ctx.settings, ctx.tiles = settings, tiles
        return z_BHQD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz_BHQD: Tensor) -> tuple[Tensor | None, ...]:
        q_BHQD, k_BHKD, v_BHKD, key_table, value_table, mask, z_BHQD, lse_HBQ, s_HBQR = ctx.saved_tensors
        dz_BHQD = _rows_contiguous(dz_BHQD)
        batch, heads, queries, width = q_BHQD.shape
        keys = k_BHKD.shape[2]
        dq_dtype = q_BHQD.dtype if key_table is None else lse_HBQ.dtype
        dq_BQHD = q_BHQD.new_empty(batch, queries, heads, width, dtype=dq_dtype)
        dk_BKHD, dv_BKHD = (k_BHKD.new_empty(batch, keys, heads, width) for _ in range(2))
        delta_HBQ = torch.empty_like(lse_HBQ)
        dr_HBQR = None if key_table is None else lse_HBQ.new_zeros(*lse_HBQ.shape, key_table.shape[-2])
        d_key_table = d_value_table = None
        with _plain(q_BHQD):
            strided = (q_BHQD, k_BHKD, v_BHKD, dz_BHQD)
            # R again instead of kept: a small product, and the layers' tables would add up.
            sides = (_project(q_BHQD, key_table), _project(dz_BHQD, value_table), lse_HBQ, delta_HBQ)
            by_query = (*sides, z_BHQD, dq_BQHD, dr_HBQR, mask)
            _launch(_backward_query_kernel, queries, 0, ctx.tiles.backward_query, strided, by_query, ctx.settings)
            by_key = (*sides, dk_BKHD, dv_BKHD, mask)
            _launch(_backward_key_kernel, keys, 1, ctx.tiles.backward_key, strided, by_key, ctx.settings)
            if dr_HBQR is not None:
                dq_BQHD += _unproject(dr_HBQR, key_table, q_BHQD.dtype)
                if ctx.needs_input_grad[3]:
                    d_key_table = _table_gradient(dr_HBQR, q_BHQD, key_table)
            if s_HBQR is not None and ctx.needs_input_grad[4]:
                d_value_table = _table_gradient(s_HBQR, dz_BHQD, value_table)
        gradients = (dq_BQHD.to(q_BHQD.dtype), dk_BKHD, dv_BKHD)
        return *(x.transpose(1, 2) for x in gradients), d_key_table, d_value_table, None, None, None


@contextmanager
def _plain(x: Tensor) -> Iterator[None]:
    """On x's device, and without autocast, which would round the products with the tables."""
    device = torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
    with device, torch.autocast(x.device.type, enabled=False):
        yield


def _launch(
    kernel: Any,
    length: int,
    axis: int,
    tile: tuple[int, int],
    strided: tuple[Tensor, ...],
    others: tuple[Tensor | None, ...],
    settings: dict[str, Any],
) -> None:
    """One program for each sentence, head and tile of the axis: 0 queries, 1 keys; `length` is that axis's.

    A grid of one axis: the others end at 65,535.
    """
    programs = settings["num_batch"] * settings["num_heads"] * triton.cdiv(length, tile[axis])
    if programs:
        strides = [x.stride(a) for x in strided for a in range(3)]
        kernel[(programs,)](*strided, *others, *strides, Q_TILE=tile[0], K_TILE=tile[1], **settings)


def _rows_contiguous(x_BHXD: Tensor) -> Tensor:
    return x_BHXD if x_BHXD.stride(-1) == 1 else x_BHXD.contiguous()


def _project(x_BHQD: Tensor, table: Tensor | None) -> Tensor | None:
    """x w^T, [H, B, Q, R]; None without a table."""
    if table is None:
        return None
    batch, heads, queries = x_BHQD.shape[:3]
    x_GND = _by_group(x_BHQD.transpose(0, 1), table)
    r_GNR = _product(x_GND, _per_group(table).transpose(1, 2), x_BHQD.dtype)
    return r_GNR.view(heads, batch, queries, table.shape[-2])


def _unproject(x_HBQR: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """x w, [B, Q, H, D]."""
    z_GND = _product(_by_group(x_HBQR, table), _per_group(table), dtype)
    return z_GND.view(*x_HBQR.shape[:3], table.shape[-1]).permute(1, 2, 0, 3)


def _table_gradient(x_HBQR: Tensor, y_BHQD: Tensor, table: Tensor) -> Tensor:
    """x^T y summed over all queries that share a table, in the table's shape and dtype."""
    x_GNR, y_GND = _by_group(x_HBQR, table), _by_group(y_BHQD.transpose(0, 1), table)
    return _product(x_GNR.transpose(1, 2), y_GND, y_BHQD.dtype).view(table.shape).to(table.dtype)


def _per_group(table: Tensor) -> Tensor:
    return table if table.dim() == 3 else table[None]


def _by_group(x_HBQX: Tensor, table: Tensor) -> Tensor:
    """[G, N, X]: one matrix of all queries that share a table."""
    return x_HBQX.flatten(1, 2) if table.dim() == 3 else x_HBQX.flatten(0, 2)[None]


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b of numbers rounded to dtype; sums and result in float32 (float64 for float64).

    A table's gradient sums over every query of the batch: in bfloat16 additions most of it would be lost.
    """
    a, b = a.to(dtype), b.to(dtype)
    if dtype not in HALF:
        return a @ b
    if a.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):  # torch 2.8 and later, and there on GPUs alone
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


# The kernels. A program has one (sentence, head) and one tile of queries or keys, and walks over tiles of the other.
# The walk is written once and compiled for each SIDE, so that only the tiles near the diagonal gather and compare.
# fmt: off


@triton.jit  # type: ignore[untyped-decorator]
def _load_rows(ptr, rows, stride, num_rows, D_HEAD: tl.constexpr, D_TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile [rows, D]: zero beyond the last row and beyond the head's width."""
    columns = tl.arange(0, D_TILE)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(pointers, mask=(rows < num_rows)[:, None] & (columns < D_HEAD)[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store_rows(ptr, x, rows, stride, num_rows, D_HEAD: tl.constexpr, D_TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rounding to the tensor's dtype is the last thing done to x."""
    columns = tl.arange(0, D_TILE)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(pointers, x.to(ptr.dtype.element_ty), mask=(rows < num_rows)[:, None] & (columns < D_HEAD)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _visible(  # type: ignore[no-untyped-def]
    mask_ptr, stride_q, stride_k, queries, keys, num_queries, num_keys, distance,
    BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr,
):
    """Which cells of a tile count; queries and keys are [Q, 1] and [1, K], or the other way round."""
    visible = keys < num_keys
    if mask_ptr is not None:
        pointers = mask_ptr + keys.to(tl.int64) * stride_k
        readable = visible
        if BY_QUERY:
            pointers = pointers + queries.to(tl.int64) * stride_q
            readable = readable & (queries < num_queries)
        visible = visible & (tl.load(pointers, mask=readable, other=0) != 0)
    if CAUSAL:
        visible = visible & (distance <= 0)
    return visible


@triton.jit
def _gather(ptr, offsets, distance, readable, clip):  # type: ignore[no-untyped-def]
    """R[i, row(i, j)] of a tile near the diagonal."""
    return tl.load(ptr + (offsets + tl.minimum(tl.maximum(distance, -clip), clip) + clip), mask=readable, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _edge(row_pointers, readable, clip, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """R[i, row(i, j)] of a tile on a clipped edge: one number for all its keys."""
    if SIDE == RIGHT:
        row_pointers = row_pointers + 2 * clip
    return tl.load(row_pointers, mask=readable, other=0.0)


@triton.jit
def _as_logit(sums, highest):  # type: ignore[no-untyped-def]
    """The one logit whose exponential would be the sum; -inf for none."""
    return tl.where(sums == 0.0, float("-inf"), highest + tl.log2(tl.where(sums == 0.0, 1.0, sums)))


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, r_ptr, z_ptr, lse_ptr, band_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, key_rows, value_rows, key_clip, value_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):
    """z (without the value table's term), lse = log sum exp of the logits, and band: the logits by table row."""
    num_tiles = (num_queries + Q_TILE - 1) // Q_TILE
    first = tl.program_id(0) % num_tiles * Q_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    k_ptr += b * k_stride_b + h * k_stride_h
    v_ptr += b * v_stride_b + h * v_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    queries_Q = first + tl.arange(0, Q_TILE)
    flat = (h * num_batch + b) * num_queries + first  # the tile's first row in lse and in the side tables
    lse_ptr += flat
    if r_ptr is not None:
        r_ptr += flat * key_rows
    if band_ptr is not None:
        band_ptr += flat * value_rows
    local_Q = tl.arange(0, Q_TILE)
    inside_Q = queries_Q < num_queries
    q_QD = _load_rows(q_ptr + b * q_stride_b + h * q_stride_h, queries_Q, q_stride_q, num_queries, D_HEAD, D_TILE)

    wide: tl.constexpr = lse_ptr.dtype.element_ty
    acc_QD = tl.full([Q_TILE, D_TILE], 0.0, wide)
    highest_Q = tl.full([Q_TILE], float("-inf"), wide)  # the running maximum, and sums relative to it
    total_Q = tl.full([Q_TILE], 0.0, wide)
    left_Q = tl.full([Q_TILE], 0.0, wide)
    right_Q = tl.full([Q_TILE], 0.0, wide)

    low, high = first_query + first, first_query + first + Q_TILE - 1  # positions of the first and last query
    near_start = tl.minimum(tl.maximum(low - near_clip + 1, 0) // K_TILE * K_TILE, num_keys)
    near_stop = tl.minimum((high + near_clip + K_TILE - 1) // K_TILE * K_TILE, num_keys)
    if CAUSAL:
        near_stop = tl.minimum(high + 1, num_keys)
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = 0, near_start
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = near_stop, num_keys
        if r_ptr is not None and SIDE != NEAR:
            edge_Q = _edge(r_ptr + local_Q * key_rows, inside_Q, key_clip, SIDE)
        for key in range(start, stop, K_TILE):
            keys_K = key + tl.arange(0, K_TILE)
            distance_QK = keys_K[None, :] - (first_query + queries_Q)[:, None]
            visible_QK = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[:, None], keys_K[None, :], num_queries, num_keys,
                distance_QK, MASK_BY_QUERY, CAUSAL and SIDE == NEAR,
            )
            readable_QK = visible_QK & inside_Q[:, None]
            k_KD = _load_rows(k_ptr, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
            logits_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision=PRECISION)
            if r_ptr is not None:
                if SIDE == NEAR:
                    logits_QK += _gather(r_ptr, local_Q[:, None] * key_rows, distance_QK, readable_QK, key_clip)
                else:
                    logits_QK += edge_Q[:, None]
            logits_QK = tl.where(visible_QK, logits_QK * (SCALE * LOG2_E), float("-inf"))
            new_highest_Q = tl.maximum(highest_Q, tl.max(logits_QK, 1))
            # Where nothing was visible so far the maximum is -inf, and -inf - -inf no number.
            shift_Q = tl.where(new_highest_Q == float("-inf"), 0.0, new_highest_Q)
            p_QK = tl.exp2(logits_QK - shift_Q[:, None])
            rescale_Q = tl.exp2(highest_Q - shift_Q)
            highest_Q = new_highest_Q
            added_Q = tl.sum(p_QK, 1)
            total_Q = total_Q * rescale_Q + added_Q
            if band_ptr is not None:
                left_Q *= rescale_Q
                right_Q *= rescale_Q
                if SIDE == LEFT:
                    left_Q += added_Q
                if SIDE == RIGHT:
                    right_Q += added_Q
                if SIDE == NEAR:
                    left_Q += tl.sum(tl.where(distance_QK <= -value_clip, p_QK, 0.0), 1)
                    right_Q += tl.sum(tl.where(distance_QK >= value_clip, p_QK, 0.0), 1)
                    cells_QK = (distance_QK > -value_clip) & (distance_QK < value_clip) & readable_QK
                    offsets_QK = local_Q[:, None] * value_rows + distance_QK + value_clip
                    tl.store(band_ptr + offsets_QK, logits_QK, mask=cells_QK)
            v_KD = _load_rows(v_ptr, keys_K, v_stride_k, num_keys, D_HEAD, D_TILE)
            acc_QD = acc_QD * rescale_Q[:, None] + tl.dot(p_QK.to(v_KD.dtype), v_KD, input_precision=PRECISION)

    # +inf where nothing is visible: every exp2(logit - lse) is then 0, here and in the backward pass.
    lse_Q = tl.where(total_Q == 0.0, float("inf"), _as_logit(total_Q, highest_Q))
    tl.store(lse_ptr + local_Q, lse_Q, mask=inside_Q)
    acc_QD /= tl.where(total_Q == 0.0, 1.0, total_Q)[:, None]
    z_ptr += (b * num_queries * num_heads + h) * D_HEAD
    _store_rows(z_ptr, acc_QD, queries_Q, num_heads * D_HEAD, num_queries, D_HEAD, D_TILE)
    if band_ptr is not None:
        tl.store(band_ptr + local_Q * value_rows, _as_logit(left_Q, highest_Q), mask=inside_Q)
        if not CAUSAL:
            tl.store(band_ptr + local_Q * value_rows + 2 * value_clip, _as_logit(right_Q, highest_Q), mask=inside_Q)


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def _backward_query_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dz_ptr, r_ptr, g_ptr, lse_ptr, delta_ptr, z_ptr, dq_ptr, dr_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    dz_stride_b, dz_stride_h, dz_stride_q, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, key_rows, value_rows, key_clip, value_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):
    """delta = sum of dz * z (for the key kernel too), dq (without the key table's term), and dR, as S was made."""
    num_tiles = (num_queries + Q_TILE - 1) // Q_TILE
    first = tl.program_id(0) % num_tiles * Q_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    k_ptr += b * k_stride_b + h * k_stride_h
    v_ptr += b * v_stride_b + h * v_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    queries_Q = first + tl.arange(0, Q_TILE)
    flat = (h * num_batch + b) * num_queries + first
    lse_ptr += flat
    delta_ptr += flat
    if r_ptr is not None:
        r_ptr += flat * key_rows
        dr_ptr += flat * key_rows
    if g_ptr is not None:
        g_ptr += flat * value_rows
    local_Q = tl.arange(0, Q_TILE)
    inside_Q = queries_Q < num_queries
    z_offset = (b * num_queries * num_heads + h) * D_HEAD
    z_stride = num_heads * D_HEAD
    wide: tl.constexpr = lse_ptr.dtype.element_ty
    q_QD = _load_rows(q_ptr + b * q_stride_b + h * q_stride_h, queries_Q, q_stride_q, num_queries, D_HEAD, D_TILE)
    dz_QD = _load_rows(dz_ptr + b * dz_stride_b + h * dz_stride_h, queries_Q, dz_stride_q, num_queries, D_HEAD, D_TILE)
    z_QD = _load_rows(z_ptr + z_offset, queries_Q, z_stride, num_queries, D_HEAD, D_TILE)
    delta_Q = tl.sum(dz_QD.to(wide) * z_QD.to(wide), 1)
    tl.store(delta_ptr + local_Q, delta_Q, mask=inside_Q)
    lse_Q = tl.load(lse_ptr + local_Q, mask=inside_Q, other=float("inf"))

    dq_QD = tl.full([Q_TILE, D_TILE], 0.0, wide)
    left_Q = tl.full([Q_TILE], 0.0, wide)
    right_Q = tl.full([Q_TILE], 0.0, wide)

    low, high = first_query + first, first_query + first + Q_TILE - 1  # positions of the first and last query
    near_start = tl.minimum(tl.maximum(low - near_clip + 1, 0) // K_TILE * K_TILE, num_keys)
    near_stop = tl.minimum((high + near_clip + K_TILE - 1) // K_TILE * K_TILE, num_keys)
    if CAUSAL:
        near_stop = tl.minimum(high + 1, num_keys)
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = 0, near_start
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = near_stop, num_keys
        if r_ptr is not None and SIDE != NEAR:
            r_Q = _edge(r_ptr + local_Q * key_rows, inside_Q, key_clip, SIDE)
        if g_ptr is not None and SIDE != NEAR:
            g_Q = _edge(g_ptr + local_Q * value_rows, inside_Q, value_clip, SIDE)
        for key in range(start, stop, K_TILE):
            keys_K = key + tl.arange(0, K_TILE)
            distance_QK = keys_K[None, :] - (first_query + queries_Q)[:, None]
            visible_QK = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[:, None], keys_K[None, :], num_queries, num_keys,
                distance_QK, MASK_BY_QUERY, CAUSAL and SIDE == NEAR,
            )
            readable_QK = visible_QK & inside_Q[:, None]
            k_KD = _load_rows(k_ptr, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
            logits_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision=PRECISION)
            v_KD = _load_rows(v_ptr, keys_K, v_stride_k, num_keys, D_HEAD, D_TILE)
            dp_QK = tl.dot(dz_QD, tl.trans(v_KD), input_precision=PRECISION)
            if r_ptr is not None:
                if SIDE == NEAR:
                    logits_QK += _gather(r_ptr, local_Q[:, None] * key_rows, distance_QK, readable_QK, key_clip)
                else:
                    logits_QK += r_Q[:, None]
            if g_ptr is not None:
                if SIDE == NEAR:
                    dp_QK += _gather(g_ptr, local_Q[:, None] * value_rows, distance_QK, readable_QK, value_clip)
                else:
                    dp_QK += g_Q[:, None]
            logits_QK = tl.where(visible_QK, logits_QK * (SCALE * LOG2_E), float("-inf"))
            ds_QK = tl.exp2(logits_QK - lse_Q[:, None]) * (dp_QK - delta_Q[:, None]) * SCALE
            if dr_ptr is not None:
                if SIDE == LEFT:
                    left_Q += tl.sum(ds_QK, 1)
                if SIDE == RIGHT:
                    right_Q += tl.sum(ds_QK, 1)
                if SIDE == NEAR:
                    left_Q += tl.sum(tl.where(distance_QK <= -key_clip, ds_QK, 0.0), 1)
                    right_Q += tl.sum(tl.where(distance_QK >= key_clip, ds_QK, 0.0), 1)
                    cells_QK = (distance_QK > -key_clip) & (distance_QK < key_clip) & readable_QK
                    offsets_QK = local_Q[:, None] * key_rows + distance_QK + key_clip
                    tl.store(dr_ptr + offsets_QK, ds_QK, mask=cells_QK)
            dq_QD += tl.dot(ds_QK.to(k_KD.dtype), k_KD, input_precision=PRECISION)

    _store_rows(dq_ptr + z_offset, dq_QD, queries_Q, z_stride, num_queries, D_HEAD, D_TILE)
    if dr_ptr is not None:
        tl.store(dr_ptr + local_Q * key_rows, left_Q, mask=inside_Q)
        if not CAUSAL:
            tl.store(dr_ptr + local_Q * key_rows + 2 * key_clip, right_Q, mask=inside_Q)


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def _backward_key_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dz_ptr, r_ptr, g_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    dz_stride_b, dz_stride_h, dz_stride_q, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, key_rows, value_rows, key_clip, value_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk and dv; tiles are [K, Q], so that each product finds its operands as they were made."""
    num_tiles = (num_keys + K_TILE - 1) // K_TILE
    first = tl.program_id(0) % num_tiles * K_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    q_ptr += b * q_stride_b + h * q_stride_h
    dz_ptr += b * dz_stride_b + h * dz_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    keys_K = first + tl.arange(0, K_TILE)
    k_KD = _load_rows(k_ptr + b * k_stride_b + h * k_stride_h, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
    v_KD = _load_rows(v_ptr + b * v_stride_b + h * v_stride_h, keys_K, v_stride_k, num_keys, D_HEAD, D_TILE)
    wide: tl.constexpr = lse_ptr.dtype.element_ty
    dk_KD = tl.full([K_TILE, D_TILE], 0.0, wide)
    dv_KD = tl.full([K_TILE, D_TILE], 0.0, wide)

    # Early queries have these keys on their right, late ones on their left.
    near_start = tl.minimum(tl.maximum(first - first_query - near_clip + 1, 0) // Q_TILE * Q_TILE, num_queries)
    last = tl.maximum(first + K_TILE - 1 + near_clip - first_query, 0)
    near_stop = tl.minimum((last + Q_TILE - 1) // Q_TILE * Q_TILE, num_queries)
    if CAUSAL:
        near_start = tl.minimum(tl.maximum(first - first_query, 0) // Q_TILE * Q_TILE, num_queries)
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = near_stop, num_queries
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = 0, near_start
        for query in range(start, stop, Q_TILE):
            queries_Q = query + tl.arange(0, Q_TILE)
            flat = (h * num_batch + b) * num_queries + query
            local_Q = tl.arange(0, Q_TILE)
            inside_Q = queries_Q < num_queries
            distance_KQ = keys_K[:, None] - (first_query + queries_Q)[None, :]
            visible_KQ = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[None, :], keys_K[:, None], num_queries, num_keys,
                distance_KQ, MASK_BY_QUERY, CAUSAL and SIDE == NEAR,
            )
            readable_KQ = visible_KQ & inside_Q[None, :]
            q_QD = _load_rows(q_ptr, queries_Q, q_stride_q, num_queries, D_HEAD, D_TILE)
            dz_QD = _load_rows(dz_ptr, queries_Q, dz_stride_q, num_queries, D_HEAD, D_TILE)
            lse_Q = tl.load(lse_ptr + flat + local_Q, mask=inside_Q, other=float("inf"))  # beyond the last query P = 0
            delta_Q = tl.load(delta_ptr + flat + local_Q, mask=inside_Q, other=0.0)
            logits_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision=PRECISION)
            if r_ptr is not None:
                r_tile_ptr = r_ptr + flat * key_rows
                if SIDE == NEAR:
                    logits_KQ += _gather(r_tile_ptr, local_Q[None, :] * key_rows, distance_KQ, readable_KQ, key_clip)
                else:
                    logits_KQ += _edge(r_tile_ptr + local_Q * key_rows, inside_Q, key_clip, SIDE)[None, :]
            logits_KQ = tl.where(visible_KQ, logits_KQ * (SCALE * LOG2_E), float("-inf"))
            p_KQ = tl.exp2(logits_KQ - lse_Q[None, :])
            dv_KD += tl.dot(p_KQ.to(dz_QD.dtype), dz_QD, input_precision=PRECISION)
            dp_KQ = tl.dot(v_KD, tl.trans(dz_QD), input_precision=PRECISION)
            if g_ptr is not None:
                g_tile_ptr = g_ptr + flat * value_rows
                if SIDE == NEAR:
                    dp_KQ += _gather(g_tile_ptr, local_Q[None, :] * value_rows, distance_KQ, readable_KQ, value_clip)
                else:
                    dp_KQ += _edge(g_tile_ptr + local_Q * value_rows, inside_Q, value_clip, SIDE)[None, :]
            ds_KQ = p_KQ * (dp_KQ - delta_Q[None, :]) * SCALE
            dk_KD += tl.dot(ds_KQ.to(q_QD.dtype), q_QD, input_precision=PRECISION)

    offset = (b * num_keys * num_heads + h) * D_HEAD
    _store_rows(dk_ptr + offset, dk_KD, keys_K, num_heads * D_HEAD, num_keys, D_HEAD, D_TILE)
    _store_rows(dv_ptr + offset, dv_KD, keys_K, num_heads * D_HEAD, num_keys, D_HEAD, D_TILE)
