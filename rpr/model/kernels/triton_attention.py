"""Relative attention in tiles on a GPU: the result of `reference`, without storing anything of size Q x K.

Matmuls outside the kernels turn the tables into narrow side tables, which the kernels read and write (flash attention,
Dao et al. 2022, with equations 3 and 4 of Shaw et al. 2018):

    in:   R = q w_K^T;                                                            backward also G = dz w_V^T
    out:  S[i, row] = sum of P_ij over the keys j whose row is `row`;             backward also dR, the same of dE

A query's distances with |j - i| < k belong to one key each, so their cells of S and dR are plain stores. All keys
further left or right share one row: their sums travel with the running sum of the softmax. Nothing is added
atomically. The small matmuls with the tables are torch's.

The kernels' arithmetic is tested in Triton's interpreter, they compile to machine code for A100 and H100, and they have
run on an H200 (sweeps/measured/gpu.md), before the sums of far keys in dR were corrected.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows (k+1 with a causal mask);
# G groups that have a table of their own (1 or H), N = the queries of a group (H*B*Q or B*Q).

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model.attention.equations import HALF
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.kernels.triton_kernels import backward_key_kernel, backward_query_kernel, forward_kernel


class Tiles(NamedTuple):
    """(queries, keys) of a tile in each kernel, powers of two and at least 16."""

    forward: tuple[int, int]
    backward_query: tuple[int, int]
    backward_key: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 1


# By matmul precision and D: the largest tiles tried whose registers (nearly) all fit, as ptxas counts them for an H100;
# shared memory is at most 80 KiB, in float64 twice that (an A100 has 163). On an H200 none of 13 others for heads of 64
# and of 5 for 128 was faster by more than a tenth. A table instead of timing at start-up: another tile size adds in
# another order, so results would depend on how busy the GPU was.
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
    """`rpr.model.attention.reference` with tables alone, forward and backward, in memory linear in Q
    and K.

    A query that sees no key gets zeros and gives no gradient (`reference` gives it the mean of the values). float32
    matmuls use TF32 only if `torch.set_float32_matmul_precision` allows it.

    Args:
        given: q, k and v of one dtype, D at most 256; views are read in place where D is contiguous. Matmuls with the
            tables use q's dtype and sum in float32 (or float64). The mask is never expanded in memory.
        tiles: None: from TILES.

    Returns:
        z: [B, H, Q, D], laid out so that z.transpose(1, 2).flatten(-2) is a view.
    """
    q_BHQD, mask = given.q, given.mask
    assert q_BHQD.dtype == given.k.dtype == given.v.dtype, (q_BHQD.dtype, given.k.dtype, given.v.dtype)
    batch, num_heads, num_queries, d_head = q_BHQD.shape
    num_keys = given.k.shape[2]
    d_tile = max(16, 1 << (d_head - 1).bit_length())
    assert d_tile <= 256, f"d_head: {d_head} is more than the 256 whose tiles fit into shared memory"
    exact = q_BHQD.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    precision = "ieee" if exact else "tf32"
    if tiles is None:
        tiles = TILES["half" if q_BHQD.dtype in HALF else precision, max(64, d_tile)]
    key_table, key_clip = _occurring_rows(given.key_table, given.causal)
    value_table, value_clip = _occurring_rows(given.value_table, given.causal)
    if mask is not None:
        assert mask.dtype == torch.bool, mask.dtype
        # Viewed as bytes; but Triton fails to compile a float64 matmul after a mask of 8 or 16 bits.
        mask = mask.to(torch.int32) if q_BHQD.dtype == torch.float64 else mask.view(torch.uint8)
        mask = mask.expand(batch, num_heads, num_queries, num_keys)  # stride 0 where it is broadcast
    settings = {
        "num_batch": batch,
        "num_heads": num_heads,
        "num_queries": num_queries,
        "num_keys": num_keys,
        "first_query": given.first_query,
        "key_rows": 1 if key_table is None else key_table.shape[-2],
        "value_rows": 1 if value_table is None else value_table.shape[-2],
        "key_clip": key_clip,
        "value_clip": value_clip,
        "near_clip": max(key_clip, value_clip),
        "SCALE": d_head**-0.5,
        "D_HEAD": d_head,
        "D_TILE": d_tile,
        "MASK_BY_QUERY": mask is not None and mask.stride(2) != 0,
        "CAUSAL": given.causal,
        "PRECISION": precision,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
    inputs = (*given[:3], key_table, value_table, mask)
    z_BHQD: Tensor = _FusedAttention.apply(*inputs, settings, tiles)  # type: ignore[no-untyped-call]
    return z_BHQD


def _occurring_rows(table: Tensor | None, causal: bool) -> tuple[Tensor | None, int]:
    """The rows that the kernels read, and their k >= 1; with a causal mask none right of the diagonal."""
    if table is None:
        return None, 1
    assert table.shape[-2] % 2 == 1, f"a table has 2k+1 rows, this one {table.shape[-2]}"
    if table.shape[-2] == 1:  # k = 0 is k = 1 with three equal rows: no special case in the kernels
        table = table.expand(*table.shape[:-2], 3, -1)
    clip_distance = (table.shape[-2] - 1) // 2
    return (table[..., : clip_distance + 1, :] if causal else table), clip_distance


class _FusedAttention(torch.autograd.Function):
    """apply(q, k, v, key table, value table, mask, settings, tiles): the kernels and the matmuls with the tables. Side
    tables are stored [H, B, Q, R], so that a group is a matrix."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *qkv, key_table, value_table, mask, settings, tiles = arguments
        q_BHQD, k_BHKD, v_BHKD = map(_rows_contiguous, qkv)
        batch, heads, queries, width = q_BHQD.shape
        wide = torch.float64 if q_BHQD.dtype == torch.float64 else torch.float32
        # The value table's term is added after the kernel, before the sums are rounded.
        z_BQHD = q_BHQD.new_empty(batch, queries, heads, width, dtype=q_BHQD.dtype if value_table is None else wide)
        lse_HBQ = q_BHQD.new_empty(heads, batch, queries, dtype=wide)
        s_HBQR = None
        if value_table is not None:  # -inf: cells of distances that do not occur are never stored
            s_HBQR = lse_HBQ.new_full((heads, batch, queries, value_table.shape[-2]), -math.inf)
        with _plain(q_BHQD):
            r_HBQR = _project(q_BHQD, key_table)
            strided, others = (q_BHQD, k_BHKD, v_BHKD), (r_HBQR, z_BQHD, lse_HBQ, s_HBQR)
            _launch(forward_kernel, queries, 0, tiles.forward, strided, others, mask, settings)
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
        z_BQHD = z_BHQD.transpose(1, 2).contiguous()  # a view, unless a hook on saved tensors changed z's layout
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
            # R is recomputed, not stored: a small matmul, while the stored tables of all layers would add up.
            sides = (_project(q_BHQD, key_table), _project(dz_BHQD, value_table), lse_HBQ, delta_HBQ)
            by_query = (*sides, z_BQHD, dq_BQHD, dr_HBQR)
            _launch(backward_query_kernel, queries, 0, ctx.tiles.backward_query, strided, by_query, mask, ctx.settings)
            by_key = (*sides, dk_BKHD, dv_BKHD)
            _launch(backward_key_kernel, keys, 1, ctx.tiles.backward_key, strided, by_key, mask, ctx.settings)
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
    """On x's device and without autocast, which would round the matmuls with the tables."""
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
    mask: Tensor | None,
    settings: dict[str, Any],
) -> None:
    """Launch one program for each sentence, head and tile of an axis of this `length`: 0 queries, 1 keys.

    The grid has one axis, since the others are limited to 65,535.
    """
    programs = settings["num_batch"] * settings["num_heads"] * math.ceil(length / tile[axis])
    if programs:
        strides = [x.stride(a) for x in strided for a in range(3)]
        strides += [0] * 4 if mask is None else mask.stride()
        kernel[(programs,)](*strided, *others, mask, *strides, Q_TILE=tile[0], K_TILE=tile[1], **settings)


def _rows_contiguous(x_BHXD: Tensor) -> Tensor:
    return x_BHXD if x_BHXD.stride(-1) == 1 else x_BHXD.contiguous()


def _project(x_BHQD: Tensor, table: Tensor | None) -> Tensor | None:
    """x w^T, [H, B, Q, R]; None without a table."""
    if table is None:
        return None
    batch, heads, queries = x_BHQD.shape[:3]
    x_GND = _by_group(x_BHQD.transpose(0, 1), table)
    r_GNR = _matmul(x_GND, _per_group(table).transpose(1, 2), x_BHQD.dtype)
    return r_GNR.view(heads, batch, queries, table.shape[-2])


def _unproject(x_HBQR: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """x w, [B, Q, H, D]."""
    z_GND = _matmul(_by_group(x_HBQR, table), _per_group(table), dtype)
    return z_GND.view(*x_HBQR.shape[:3], table.shape[-1]).permute(1, 2, 0, 3)


def _table_gradient(x_HBQR: Tensor, y_BHQD: Tensor, table: Tensor) -> Tensor:
    """x^T y, summed over all queries that share a table, in the table's shape and dtype."""
    x_GNR, y_GND = _by_group(x_HBQR, table), _by_group(y_BHQD.transpose(0, 1), table)
    return _matmul(x_GNR.transpose(1, 2), y_GND, y_BHQD.dtype).view(table.shape).to(table.dtype)


def _per_group(table: Tensor) -> Tensor:
    return table if table.dim() == 3 else table[None]


def _by_group(x_HBQX: Tensor, table: Tensor) -> Tensor:
    """[G, N, X]: one matrix per group of queries that share a table."""
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
