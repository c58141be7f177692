"""The kernels that triton_attention.py describes and launches: forward, backward by query, by key, and of the bias. A
program handles one (sentence, head) and one tile of queries or keys, and loops over tiles of the other. The loop is
written once and compiled for each SIDE, so that only the tiles near the diagonal gather and compare.
"""

# Shape suffixes: Q queries, K keys and D head width, each of one tile. Logits are in units of log 2, since GPUs compute
# exp2 natively.

import math

try:
    import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ModuleNotFoundError as error:
    raise ImportError(
        "tiled attention needs triton: it comes with torch's CUDA builds, or pip install triton"
    ) from error

# A tile's side: all its keys k or more to the left of its queries, near them, or all k or more to the right.
LEFT = tl.constexpr(0)
NEAR = tl.constexpr(1)
RIGHT = tl.constexpr(2)
LOG2_E = tl.constexpr(math.log2(math.e))

# Lengths change with every batch: do not recompile for one that is 1 or a multiple of 16.
LENGTHS = ["num_batch", "num_queries", "num_keys", "first_query", "mask_stride_b", "mask_stride_h", "mask_stride_q"]
LENGTHS += ["key_rows", "value_rows", "bias_rows", "key_clip", "value_clip", "bias_clip", "near_clip", "window"]

# fmt: off


@triton.jit  # type: ignore[untyped-decorator]
def _load_rows(ptr, rows, stride, num_rows, D_HEAD: tl.constexpr, D_TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, D_TILE)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(pointers, mask=(rows < num_rows)[:, None] & (columns < D_HEAD)[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store_rows(ptr, x, rows, stride, num_rows, D_HEAD: tl.constexpr, D_TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, D_TILE)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(pointers, x.to(ptr.dtype.element_ty), mask=(rows < num_rows)[:, None] & (columns < D_HEAD)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _visible(  # type: ignore[no-untyped-def]
    mask_ptr, stride_q, stride_k, queries, keys, num_queries, num_keys, distance,
    window, BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Which cells of a tile are visible; queries and keys are [Q, 1] and [1, K], or vice versa."""
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
    if WINDOWED:
        visible = visible & (distance > -window) & (distance < window)
    return visible


@triton.jit  # type: ignore[untyped-decorator]
def _logits(products, visible, distance, bias_ptr, bias_clip, SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    logits = products * (SCALE * LOG2_E)
    if bias_ptr is not None:
        rows = tl.minimum(tl.maximum(distance, -bias_clip), bias_clip) + bias_clip
        logits += tl.load(bias_ptr + rows, mask=visible, other=0.0)
    return tl.where(visible, logits, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _sides(  # type: ignore[no-untyped-def]
    low, high, near_clip, num_keys, window, K_TILE: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Of queries at positions low .. high: where their keys start, those near them start and stop, and keys stop."""
    start, stop = 0, num_keys
    if WINDOWED:
        start = tl.minimum(tl.maximum(low - window + 1, 0) // K_TILE * K_TILE, num_keys)
        stop = tl.minimum(high + window, num_keys)
    near_start = tl.minimum(tl.maximum(low - near_clip + 1, 0) // K_TILE * K_TILE, num_keys)
    near_stop = tl.minimum((high + near_clip + K_TILE - 1) // K_TILE * K_TILE, num_keys)
    if CAUSAL:
        near_stop = tl.minimum(high + 1, num_keys)
    return start, tl.maximum(near_start, start), tl.minimum(near_stop, stop), stop


@triton.jit
def _gather(ptr, offsets, distance, readable, clip):  # type: ignore[no-untyped-def]
    return tl.load(ptr + (offsets + tl.minimum(tl.maximum(distance, -clip), clip) + clip), mask=readable, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _edge(row_pointers, readable, clip, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    if SIDE == RIGHT:
        row_pointers = row_pointers + 2 * clip
    return tl.load(row_pointers, mask=readable, other=0.0)


@triton.jit
def _as_logit(sums, highest):  # type: ignore[no-untyped-def]
    return tl.where(sums == 0.0, float("-inf"), highest + tl.log2(tl.where(sums == 0.0, 1.0, sums)))


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, r_ptr, bias_ptr, z_ptr, lse_ptr, band_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, window, key_rows, value_rows, bias_rows,
    key_clip, value_clip, bias_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):
    """z (without the value table's term), lse = log sum exp of the logits, and band: the logits by table row."""
    # 1. The tile of queries, and where its head begins in each tensor.
    num_tiles = (num_queries + Q_TILE - 1) // Q_TILE
    first = tl.program_id(0) % num_tiles * Q_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    k_ptr += b * k_stride_b + h * k_stride_h
    v_ptr += b * v_stride_b + h * v_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    if bias_ptr is not None:
        bias_ptr += h * bias_rows
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
    # 2. A softmax whose maximum and sums run over the keys.
    wide: tl.constexpr = lse_ptr.dtype.element_ty
    acc_QD = tl.full([Q_TILE, D_TILE], 0.0, wide)
    highest_Q = tl.full([Q_TILE], float("-inf"), wide)  # the running maximum, and sums relative to it
    total_Q = tl.full([Q_TILE], 0.0, wide)
    left_Q = tl.full([Q_TILE], 0.0, wide)
    right_Q = tl.full([Q_TILE], 0.0, wide)
    # 3. Tiles of keys on the left, near and on the right.
    low, high = first_query + first, first_query + first + Q_TILE - 1  # positions of the first and last query
    keys_start, near_start, near_stop, keys_stop = _sides(
        low, high, near_clip, num_keys, window, K_TILE, CAUSAL, WINDOWED
    )
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = keys_start, near_start
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = near_stop, keys_stop
        if r_ptr is not None and SIDE != NEAR:
            edge_Q = _edge(r_ptr + local_Q * key_rows, inside_Q, key_clip, SIDE)
        for key in range(start, stop, K_TILE):
            keys_K = key + tl.arange(0, K_TILE)
            distance_QK = keys_K[None, :] - (first_query + queries_Q)[:, None]
            visible_QK = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[:, None], keys_K[None, :], num_queries, num_keys,
                distance_QK, window, MASK_BY_QUERY, CAUSAL and SIDE == NEAR, WINDOWED,
            )
            readable_QK = visible_QK & inside_Q[:, None]
            k_KD = _load_rows(k_ptr, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
            logits_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision=PRECISION)
            if r_ptr is not None:
                if SIDE == NEAR:
                    logits_QK += _gather(r_ptr, local_Q[:, None] * key_rows, distance_QK, readable_QK, key_clip)
                else:
                    logits_QK += edge_Q[:, None]
            logits_QK = _logits(logits_QK, visible_QK, distance_QK, bias_ptr, bias_clip, SCALE)
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
    # 4. The results; lse is +inf where nothing is visible: every exp2(logit - lse) is then 0, backward too.
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
def backward_query_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dz_ptr, r_ptr, g_ptr, bias_ptr, lse_ptr, delta_ptr, z_ptr, dq_ptr, dr_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    dz_stride_b, dz_stride_h, dz_stride_q, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, window, key_rows, value_rows, bias_rows,
    key_clip, value_clip, bias_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):
    """delta = sum of dz * z (for the key kernel too), dq (without the key table's term), and dR, as S was made."""
    # 1. The tile of queries, and where its head begins in each tensor.
    num_tiles = (num_queries + Q_TILE - 1) // Q_TILE
    first = tl.program_id(0) % num_tiles * Q_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    k_ptr += b * k_stride_b + h * k_stride_h
    v_ptr += b * v_stride_b + h * v_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    if bias_ptr is not None:
        bias_ptr += h * bias_rows
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
    lse_Q = tl.load(lse_ptr + local_Q, mask=inside_Q, other=float("inf"))
    # 2. What is summed over the keys.
    dq_QD = tl.full([Q_TILE, D_TILE], 0.0, wide)
    left_Q = tl.full([Q_TILE], 0.0, wide)
    right_Q = tl.full([Q_TILE], 0.0, wide)
    p_left_Q = tl.full([Q_TILE], 0.0, wide)
    p_right_Q = tl.full([Q_TILE], 0.0, wide)
    excess_Q = tl.full([Q_TILE], 0.0, wide)
    # 3. Tiles of keys on the left, near and on the right.
    low, high = first_query + first, first_query + first + Q_TILE - 1  # positions of the first and last query
    keys_start, near_start, near_stop, keys_stop = _sides(
        low, high, near_clip, num_keys, window, K_TILE, CAUSAL, WINDOWED
    )
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = keys_start, near_start
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = near_stop, keys_stop
        if r_ptr is not None and SIDE != NEAR:
            r_Q = _edge(r_ptr + local_Q * key_rows, inside_Q, key_clip, SIDE)
        if g_ptr is not None and SIDE != NEAR:
            g_Q = _edge(g_ptr + local_Q * value_rows, inside_Q, value_clip, SIDE)
        for key in range(start, stop, K_TILE):
            keys_K = key + tl.arange(0, K_TILE)
            distance_QK = keys_K[None, :] - (first_query + queries_Q)[:, None]
            visible_QK = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[:, None], keys_K[None, :], num_queries, num_keys,
                distance_QK, window, MASK_BY_QUERY, CAUSAL and SIDE == NEAR, WINDOWED,
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
            logits_QK = _logits(logits_QK, visible_QK, distance_QK, bias_ptr, bias_clip, SCALE)
            p_QK = tl.exp2(logits_QK - lse_Q[:, None])
            ds_QK = p_QK * (dp_QK - delta_Q[:, None]) * SCALE
            if dr_ptr is not None:
                excess_Q += tl.sum(ds_QK, 1)
                if SIDE == LEFT:
                    left_Q += tl.sum(ds_QK, 1)
                    p_left_Q += tl.sum(p_QK, 1)
                if SIDE == RIGHT:
                    right_Q += tl.sum(ds_QK, 1)
                    p_right_Q += tl.sum(p_QK, 1)
                if SIDE == NEAR:
                    far_left_QK = distance_QK <= -key_clip
                    far_right_QK = distance_QK >= key_clip
                    left_Q += tl.sum(tl.where(far_left_QK, ds_QK, 0.0), 1)
                    right_Q += tl.sum(tl.where(far_right_QK, ds_QK, 0.0), 1)
                    p_left_Q += tl.sum(tl.where(far_left_QK, p_QK, 0.0), 1)
                    p_right_Q += tl.sum(tl.where(far_right_QK, p_QK, 0.0), 1)
                    cells_QK = (distance_QK > -key_clip) & (distance_QK < key_clip) & readable_QK
                    offsets_QK = local_Q[:, None] * key_rows + distance_QK + key_clip
                    tl.store(dr_ptr + offsets_QK, ds_QK, mask=cells_QK)
            dq_QD += tl.dot(ds_QK.to(k_KD.dtype), k_KD, input_precision=PRECISION)
    # 4. The results.
    _store_rows(dq_ptr + z_offset, dq_QD, queries_Q, z_stride, num_queries, D_HEAD, D_TILE)
    if dr_ptr is not None:
        # The sum of ds over all keys is zero; what is left of it is delta's error, from rounding z to its dtype. In one
        # key it hardly shows; the sums of the far keys collect it.
        delta_Q += excess_Q / SCALE
        tl.store(dr_ptr + local_Q * key_rows, left_Q - p_left_Q * excess_Q, mask=inside_Q)
        if not CAUSAL:
            right_Q -= p_right_Q * excess_Q
            tl.store(dr_ptr + local_Q * key_rows + 2 * key_clip, right_Q, mask=inside_Q)
    tl.store(delta_ptr + local_Q, delta_Q, mask=inside_Q)


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def backward_key_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dz_ptr, r_ptr, g_ptr, bias_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    dz_stride_b, dz_stride_h, dz_stride_q, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, window, key_rows, value_rows, bias_rows,
    key_clip, value_clip, bias_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk and dv; tiles are [K, Q], so that no matmul needs a transposed intermediate."""
    # 1. The tile of keys, and where its head begins in each tensor.
    num_tiles = (num_keys + K_TILE - 1) // K_TILE
    first = tl.program_id(0) % num_tiles * K_TILE
    h = (tl.program_id(0) // num_tiles % num_heads).to(tl.int64)
    b = (tl.program_id(0) // num_tiles // num_heads).to(tl.int64)
    q_ptr += b * q_stride_b + h * q_stride_h
    dz_ptr += b * dz_stride_b + h * dz_stride_h
    if mask_ptr is not None:
        mask_ptr += b * mask_stride_b + h * mask_stride_h
    if bias_ptr is not None:
        bias_ptr += h * bias_rows
    keys_K = first + tl.arange(0, K_TILE)
    k_KD = _load_rows(k_ptr + b * k_stride_b + h * k_stride_h, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
    v_KD = _load_rows(v_ptr + b * v_stride_b + h * v_stride_h, keys_K, v_stride_k, num_keys, D_HEAD, D_TILE)
    wide: tl.constexpr = lse_ptr.dtype.element_ty
    dk_KD = tl.full([K_TILE, D_TILE], 0.0, wide)
    dv_KD = tl.full([K_TILE, D_TILE], 0.0, wide)
    # 2. Tiles of queries: these keys are to the right of early queries and to the left of late ones.
    near_start = tl.minimum(tl.maximum(first - first_query - near_clip + 1, 0) // Q_TILE * Q_TILE, num_queries)
    last = tl.maximum(first + K_TILE - 1 + near_clip - first_query, 0)
    near_stop = tl.minimum((last + Q_TILE - 1) // Q_TILE * Q_TILE, num_queries)
    if CAUSAL:
        near_start = tl.minimum(tl.maximum(first - first_query, 0) // Q_TILE * Q_TILE, num_queries)
    queries_start, queries_stop = 0, num_queries
    if WINDOWED:
        queries_start = tl.minimum(tl.maximum(first - first_query - window + 1, 0) // Q_TILE * Q_TILE, near_start)
        queries_stop = tl.minimum(tl.maximum(first + K_TILE - 1 + window - first_query, 0), num_queries)
        near_stop = tl.maximum(tl.minimum(near_stop, queries_stop), near_start)
    for SIDE in tl.static_range(3 - CAUSAL):
        start, stop = near_stop, queries_stop
        if SIDE == NEAR:
            start, stop = near_start, near_stop
        if SIDE == RIGHT:
            start, stop = queries_start, near_start
        for query in range(start, stop, Q_TILE):
            queries_Q = query + tl.arange(0, Q_TILE)
            flat = (h * num_batch + b) * num_queries + query
            local_Q = tl.arange(0, Q_TILE)
            inside_Q = queries_Q < num_queries
            distance_KQ = keys_K[:, None] - (first_query + queries_Q)[None, :]
            visible_KQ = _visible(
                mask_ptr, mask_stride_q, mask_stride_k, queries_Q[None, :], keys_K[:, None], num_queries, num_keys,
                distance_KQ, window, MASK_BY_QUERY, CAUSAL and SIDE == NEAR, WINDOWED,
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
            logits_KQ = _logits(logits_KQ, visible_KQ, distance_KQ, bias_ptr, bias_clip, SCALE)
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
    # 3. The results.
    offset = (b * num_keys * num_heads + h) * D_HEAD
    _store_rows(dk_ptr + offset, dk_KD, keys_K, num_heads * D_HEAD, num_keys, D_HEAD, D_TILE)
    _store_rows(dv_ptr + offset, dv_KD, keys_K, num_heads * D_HEAD, num_keys, D_HEAD, D_TILE)


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def bias_gradient_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dz_ptr, r_ptr, g_ptr, bias_ptr, lse_ptr, delta_ptr, out_ptr, mask_ptr,
    q_stride_b, q_stride_h, q_stride_q, k_stride_b, k_stride_h, k_stride_k, v_stride_b, v_stride_h, v_stride_k,
    dz_stride_b, dz_stride_h, dz_stride_q, mask_stride_b, mask_stride_h, mask_stride_q, mask_stride_k,
    num_batch, num_heads, num_queries, num_keys, first_query, window, key_rows, value_rows, bias_rows,
    key_clip, value_clip, bias_clip, near_clip,
    SCALE: tl.constexpr, D_HEAD: tl.constexpr, D_TILE: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr,
    MASK_BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):
    """The gradient of the scores, summed over the tiles [T, T] that lie at one offset from the diagonal: their cells
    have the same distances. A program adds up the tiles of a head and an offset, of every so many sentences.
    """
    # 1. The offset, head and sentences of this program.
    query_tiles = (num_queries + Q_TILE - 1) // Q_TILE
    key_tiles = (num_keys + K_TILE - 1) // K_TILE
    num_offsets = query_tiles + key_tiles - 1
    offset = tl.program_id(0) % num_offsets - (query_tiles - 1)
    h = (tl.program_id(0) // num_offsets % num_heads).to(tl.int64)
    first_sentence = tl.program_id(0) // num_offsets // num_heads
    step = tl.num_programs(0) // num_offsets // num_heads
    bias_ptr += h * bias_rows
    local_Q, local_K = tl.arange(0, Q_TILE), tl.arange(0, K_TILE)
    wide: tl.constexpr = lse_ptr.dtype.element_ty
    sum_QK = tl.full([Q_TILE, K_TILE], 0.0, wide)
    # 2. The tiles at this offset that have visible cells.
    start, stop = tl.maximum(0, -offset), tl.minimum(query_tiles, key_tiles - offset)
    nearest = offset * K_TILE - first_query  # between the first key and query of such a tile
    if CAUSAL:
        stop = tl.where(nearest - Q_TILE >= 0, start, stop)
    if WINDOWED:
        stop = tl.where((nearest - Q_TILE >= window) | (nearest + K_TILE <= -window), start, stop)
    for number in range(first_sentence, num_batch, step):
        sentence = number + tl.full([], 0, tl.int64)
        for tile in range(start, stop):
            queries_Q, keys_K = tile * Q_TILE + local_Q, (tile + offset) * K_TILE + local_K
            flat = (h * num_batch + sentence) * num_queries + tile * Q_TILE
            inside_Q = queries_Q < num_queries
            distance_QK = keys_K[None, :] - (first_query + queries_Q)[:, None]
            mask_tile_ptr = mask_ptr
            if mask_ptr is not None:
                mask_tile_ptr += sentence * mask_stride_b + h * mask_stride_h
            visible_QK = _visible(
                mask_tile_ptr, mask_stride_q, mask_stride_k, queries_Q[:, None], keys_K[None, :], num_queries, num_keys,
                distance_QK, window, MASK_BY_QUERY, CAUSAL, WINDOWED,
            )
            readable_QK = visible_QK & inside_Q[:, None]
            q_tile_ptr = q_ptr + sentence * q_stride_b + h * q_stride_h
            k_tile_ptr = k_ptr + sentence * k_stride_b + h * k_stride_h
            v_tile_ptr = v_ptr + sentence * v_stride_b + h * v_stride_h
            dz_tile_ptr = dz_ptr + sentence * dz_stride_b + h * dz_stride_h
            q_QD = _load_rows(q_tile_ptr, queries_Q, q_stride_q, num_queries, D_HEAD, D_TILE)
            k_KD = _load_rows(k_tile_ptr, keys_K, k_stride_k, num_keys, D_HEAD, D_TILE)
            v_KD = _load_rows(v_tile_ptr, keys_K, v_stride_k, num_keys, D_HEAD, D_TILE)
            dz_QD = _load_rows(dz_tile_ptr, queries_Q, dz_stride_q, num_queries, D_HEAD, D_TILE)
            lse_Q = tl.load(lse_ptr + flat + local_Q, mask=inside_Q, other=float("inf"))
            delta_Q = tl.load(delta_ptr + flat + local_Q, mask=inside_Q, other=0.0)
            products_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision=PRECISION)
            dp_QK = tl.dot(dz_QD, tl.trans(v_KD), input_precision=PRECISION)
            if r_ptr is not None:
                r_rows = r_ptr + flat * key_rows
                products_QK += _gather(r_rows, local_Q[:, None] * key_rows, distance_QK, readable_QK, key_clip)
            if g_ptr is not None:
                g_rows = g_ptr + flat * value_rows
                dp_QK += _gather(g_rows, local_Q[:, None] * value_rows, distance_QK, readable_QK, value_clip)
            logits_QK = _logits(products_QK, visible_QK, distance_QK, bias_ptr, bias_clip, SCALE)
            sum_QK += tl.exp2(logits_QK - lse_Q[:, None]) * (dp_QK - delta_Q[:, None])
    # 3. One tile for all.
    out_ptr += tl.program_id(0).to(tl.int64) * Q_TILE * K_TILE
    tl.store(out_ptr + local_Q[:, None] * K_TILE + local_K[None, :], sum_QK)
