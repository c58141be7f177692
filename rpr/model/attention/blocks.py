"""Attention with relative positions, computed in parts, with a hand-written backward pass.

Few passes over memory, which is the cost of relative positions on a CPU. Heads come first, so that a matmul
with one table per head is a single batched matmul; the scale is applied while copying q, the anchor's vector while
copying v; scores, softmax and their gradients share one buffer; results are written into the caller's layout. A part is
a slice of the heads and sentences, which bounds the size of the buffers. Longer sequences are split into blocks of
queries, which need only the keys up to their end if causal, and those of their window; for long ones the backward pass
recomputes each block's weights, so that nothing of size [B, H, Q, K] is stored.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R table rows, W table rows that occur,
# G = H*B matmuls of a part, T tables of a part (its heads, or 1 where heads share it), N positions that share a table.

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rpr.model import devices
from rpr.model.attention.composition import HALF, bias_of_keys, own_keys
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.attention.tables import Bias, Block, Distances, Layout, Table, scores_buffer

PART_BYTES = 2**23  # of q, and of P, in one part on a CPU; measured in sweeps/measured/speed.md


def blockwise(given: AttentionInputs, queries_per_block: int | None, *, stored: bool) -> Tensor:
    """Attention without labels; queries_per_block and stored as in `Layout`."""
    stored = stored and torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given[:8])
    with_sums = given.sink is not None
    layout = Layout(given.mask, given.causal, given.first_query, queries_per_block, stored, given.window, with_sums)
    results: Any = BlockwiseAttention.apply(*given[:8], layout)  # type: ignore[no-untyped-call]
    return _with_sink(given, *results) if with_sums else results


def _with_sink(given: AttentionInputs, z_BHQD: Tensor, sums_BHQ: Tensor) -> Tensor:
    """z with one more key of value zero and of score `sink`, from z without and the logarithms of its sums of
    exponentials, which are of scores less what the softmax does not see: the product with the key table's anchor.
    """
    assert given.sink is not None
    lengths = given.q.shape[2], given.k.shape[2], given.first_query
    table, wide = given.key_table, sums_BHQ.dtype
    if table is not None:
        edges = Distances.between(*lengths, table.shape[-2], causal=given.causal, window=given.window)
        if edges.anchor is not None:
            x_BHQX = given.q * given.scale if given.distance_queries is None else given.distance_queries
            anchor = table[..., edges.anchor, :].to(wide)
            sums_BHQ = sums_BHQ + (x_BHQX * (anchor if anchor.dim() == 1 else anchor[:, None])).sum(-1)
    share_BHQ = torch.sigmoid(sums_BHQ - given.sink.to(wide)[:, None])
    return (z_BHQD * share_BHQ[..., None]).to(z_BHQD.dtype)


class BlockwiseAttention(torch.autograd.Function):
    """apply(the differentiable fields of `AttentionInputs` but the sink in their order, layout) -> z_BHQD; with
    `layout.with_sums` also [B, H, Q], the logarithm of each query's sum of exponentials, relative as `_with_sink` says.

    In memory z is [B, Q, H, D], and the gradients of self-attention's q, k and v are one [B, Q, 3, H, D].
    Deterministic.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *differentiated, layout = arguments
        given = AttentionInputs(*differentiated)
        batch, heads, num_queries, _ = given.q.shape
        z_BHQD = given.q.new_empty(batch, num_queries, heads, given.v.shape[-1]).transpose(1, 2)
        wide = torch.float32 if given.q.dtype in HALF else given.q.dtype
        sums_BHQ = given.q.new_empty(batch, heads, num_queries, dtype=wide) if layout.with_sums else None
        saved: list[Tensor | None] = []
        ctx.tables = []
        differentiable = any(ctx.needs_input_grad)
        with torch.autocast(given.q.device.type, enabled=False):
            for at in _parts(z_BHQD, given.k.shape[2], layout):
                part = layout.part(*at)
                tables = _tables(given, part, at, ctx.needs_input_grad[5])
                z_GQD, kept = _forward(given, at, tables, part, None if sums_BHQ is None else sums_BHQ[at])
                _put(z_BHQD, at, z_GQD)
                if differentiable:
                    saved += [*kept[:-1], *kept.weights]
                    ctx.tables.append(tables)
                del z_GQD, kept
        ctx.save_for_backward(*differentiated[3:], *saved)
        ctx.layout, ctx.num_keys, ctx.width = layout, given.k.shape[2], given.q.shape[-1]
        return z_BHQD if sums_BHQ is None else (z_BHQD, sums_BHQ)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz_BHQD: Tensor, dsums_BHQ: Tensor | None = None) -> tuple[Tensor | None, ...]:
        # 1. Whole gradients, to which the parts are written; those of projections in their layout.
        *tables, queries_BHQX, key_bias_BHK = ctx.saved_tensors[:5]
        saved = ctx.saved_tensors[5:]
        d_queries = d_bias = None
        if queries_BHQX is not None:
            d_queries = torch.empty_like(queries_BHQX.transpose(1, 2), memory_format=torch.contiguous_format)
            d_queries = d_queries.transpose(1, 2)
        if key_bias_BHK is not None:
            d_bias = torch.empty_like(key_bias_BHK)
        d_qkv = _gradient_buffers(dz_BHQD, ctx.num_keys, ctx.width)
        d_tables = [None if table is None else torch.zeros_like(table) for table in tables]
        with torch.autocast(dz_BHQD.device.type, enabled=False):
            # 2. Each part from what its forward pass has kept; tables sum over the parts.
            parts = list(_parts(dz_BHQD, ctx.num_keys, ctx.layout))
            size, others = len(saved) // len(parts), len(_Kept._fields) - 1
            for number, at in enumerate(parts):
                of_part = saved[number * size : (number + 1) * size]
                kept = _Kept._make([*of_part[:others], of_part[others:]])
                dsums_GQ1 = None if dsums_BHQ is None else _heads_first(None, dsums_BHQ[at][..., None])
                layout = ctx.layout.part(*at)
                of_positions, of_tables = _backward(dz_BHQD[at], dsums_GQ1, ctx.tables[number], kept, layout)
                for whole, part in zip((*d_qkv, d_queries, d_bias), of_positions, strict=True):
                    if whole is not None and part is not None:
                        _put(whole, at, part)
                for place, (table, part) in enumerate(zip(d_tables, of_tables, strict=True)):
                    if table is not None and part is not None:
                        of_heads = table if place < 2 and table.dim() == 2 else table[at[1]]  # a bias is of each head
                        of_heads.add_(part)
        return *d_qkv, *d_tables, d_queries, d_bias, None


Part = tuple[slice, slice]  # sentences, heads
PartTables = tuple[Table | None, Table | None, Bias | None]  # of keys, of values


class _Kept(NamedTuple):
    """The tensors of a part saved for the backward pass."""

    q_GQD: Tensor  # scaled
    k_GKD: Tensor
    v_GKD: Tensor  # with the anchor's vector
    queries_GQX: Tensor | None  # the distance queries
    key_bias_HBK: Tensor | None
    sums_GQW: Tensor | None  # S
    weights: tuple[Tensor, ...]  # P of each block; none if it is recomputed


def _forward(
    given: AttentionInputs, at: Part, tables: PartTables, layout: Layout, log_sums_BHQ: Tensor | None
) -> tuple[Tensor, _Kept]:
    """z of a part, [G, Q, D]; the logarithms of its sums of exponentials are written into `log_sums_BHQ`."""
    # 1. Heads first, one matrix each; the anchor is added to all values.
    _, values, _ = tables
    q_BHQD = given.q[at]
    q_GQD = _heads_first(torch.mul, q_BHQD, given.scale)  # both terms of equation 5 are scaled
    k_GKD = _heads_first(None, given.k[at])
    anchor = None if values is None else values.anchor
    v_GKD = _heads_first(None if anchor is None else torch.add, given.v[at], anchor)
    queries, key_bias = given.distance_queries, given.key_bias
    queries_GQX = None if queries is None else _heads_first(None, queries[at].to(q_BHQD.dtype))
    key_bias_HBK = None if key_bias is None else key_bias[at].transpose(0, 1)
    kept = _Kept(q_GQD, k_GKD, v_GKD, queries_GQX, key_bias_HBK, None, ())
    z_GQD = q_GQD.new_empty(*q_GQD.shape[:2], v_GKD.shape[-1])
    # 2. The products of each block, and the sums of its weights by row of the value table.
    whole = layout.queries_per_block is None
    sums_GQW = None if values is None or whole else values.zero_sums(q_GQD)
    weights_of = _weights_of(kept, tables, layout, q_BHQD.shape[1], log_sums_BHQ)
    weights = []
    for block in layout.blocks(q_GQD.shape[1], k_GKD.shape[1]):
        weights_GQK = weights_of(block)
        if layout.stored:
            weights.append(weights_GQK)
        if whole:
            torch.bmm(weights_GQK, v_GKD, out=z_GQD)
        else:
            z_GQD[:, block.queries] = torch.bmm(weights_GQK, v_GKD[:, block.keys])
        if values is not None:
            sums_GQW = values.sums(weights_GQK, block, sums_GQW)
    # 3. The term of the value table, of all blocks at once.
    if values is not None and sums_GQW is not None:
        values.add_product(z_GQD, sums_GQW)
    return z_GQD, kept._replace(sums_GQW=sums_GQW, weights=tuple(weights))


def _backward(
    dz_BHQD: Tensor, dlog_sums_GQ1: Tensor | None, tables: PartTables, kept: _Kept, layout: Layout
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
    """The gradients of a part: of q, k, v, the distance queries and the key bias, [G, ...]; of its tables."""
    # 1. What the blocks add to; with one block products are written where they belong.
    keys, values, bias = tables
    q_GQD, k_GKD, v_GKD, queries_GQX, key_bias_HBK, sums_GQW, stored = kept
    scale = v_GKD.shape[-1] ** -0.5
    dz_GQD = _heads_first(None, dz_BHQD)
    projected_GQW = None if values is None else values.project(dz_GQD)
    dq_GQD, dk_GKD, dv_GKD = torch.empty_like(q_GQD), torch.empty(0), torch.empty(0)
    dsums_GQW = dbias_table = dkey_bias_GK = None
    # 2. What multiplies the key table, and its gradient.
    x_GQX, alpha = (q_GQD, scale) if queries_GQX is None else (queries_GQX, 1.0)
    dx_GQX = dq_GQD if queries_GQX is None else torch.zeros_like(queries_GQX)
    drows_TWX = None
    if keys is not None and keys.edges.in_place:
        drows_TWX = torch.zeros_like(keys.rows_TWD, dtype=keys.table.dtype)
    if key_bias_HBK is not None:
        dkey_bias_GK = key_bias_HBK.new_zeros(k_GKD.shape[:2])
    whole = layout.queries_per_block is None
    if not whole:
        wide = torch.float32 if k_GKD.dtype in HALF else k_GKD.dtype
        dk_GKD, dv_GKD = torch.zeros_like(k_GKD, dtype=wide), torch.zeros_like(v_GKD, dtype=wide)
        dsums_GQW = None if keys is None or drows_TWX is not None else keys.zero_sums(q_GQD)
    # 3. Of each block the gradient of the scores, and what follows from it.
    weights_of = None if stored else _weights_of(kept, tables, layout, dz_BHQD.shape[1])
    for number, block in enumerate(layout.blocks(q_GQD.shape[1], k_GKD.shape[1])):
        queries, of_keys = block.queries, block.keys
        weights_GQK = stored[number] if weights_of is None else weights_of(block)
        dscores_GQK = scores_buffer(q_GQD.shape[0], block.num_queries, block.num_keys, like=q_GQD)
        torch.bmm(dz_GQD[:, queries], v_GKD[:, of_keys].transpose(1, 2), out=dscores_GQK)
        if values is not None and projected_GQW is not None:
            values.add_to_scores(dscores_GQK, projected_GQW, block)
        of_softmax = torch.ops.aten._softmax_backward_data.out  # P * (dP - sum_j P dP), written over dP
        of_softmax(dscores_GQK, weights_GQK, -1, weights_GQK.dtype, grad_input=dscores_GQK)
        if dlog_sums_GQ1 is not None:
            dscores_GQK.addcmul_(weights_GQK, dlog_sums_GQ1[:, queries].to(weights_GQK.dtype))
        if whole:
            torch.baddbmm(dq_GQD, dscores_GQK, k_GKD, beta=0, alpha=scale, out=dq_GQD)
            dv_GKD = torch.bmm(weights_GQK.transpose(1, 2), dz_GQD)
            dk_GKD = torch.bmm(dscores_GQK.transpose(1, 2), q_GQD)
        else:
            dq_GQD[:, queries] = torch.bmm(dscores_GQK, k_GKD[:, of_keys]).mul_(scale)
            dv_GKD[:, of_keys] += torch.bmm(weights_GQK.transpose(1, 2), dz_GQD[:, queries])
            dk_GKD[:, of_keys] += torch.bmm(dscores_GQK.transpose(1, 2), q_GQD[:, queries])
        if keys is not None and drows_TWX is not None:
            keys.add_gradients(dscores_GQK, block, x_GQX, dx_GQX, drows_TWX, alpha)
        elif keys is not None:
            dsums_GQW = keys.sums(dscores_GQK, block, dsums_GQW)
        if bias is not None and bias.learned:
            of_block = bias.gradient(dscores_GQK, block)
            dbias_table = of_block if dbias_table is None else dbias_table + of_block
        if dkey_bias_GK is not None:
            dkey_bias_GK[:, of_keys] += dscores_GQK.sum(1, dtype=dkey_bias_GK.dtype)
            if layout.with_sums or dscores_GQK.dtype in HALF:  # as `bias_of_keys` says
                own_Q = own_keys(layout.first_query + queries.start, block.num_queries, dkey_bias_GK)
                dkey_bias_GK.index_add_(1, own_Q, dscores_GQK.sum(2, dtype=dkey_bias_GK.dtype), alpha=-1)
    # 4. The terms of the tables, of all blocks at once.
    dkey_table = dvalue_table = None
    if keys is not None and drows_TWX is not None:
        dkey_table = keys.of_all_rows(drows_TWX)
    elif keys is not None and dsums_GQW is not None:
        keys.add_product(dx_GQX, dsums_GQW, alpha=alpha)
        dkey_table = keys.gradient(dsums_GQW, x_GQX, weights_sum_to_one=False)
    if values is not None and sums_GQW is not None:
        dvalue_table = values.gradient(sums_GQW, dz_GQD, weights_sum_to_one=True)
    of_positions = dq_GQD, dk_GKD, dv_GKD, None if queries_GQX is None else dx_GQX, dkey_bias_GK
    return of_positions, (dkey_table, dvalue_table, dbias_table)


def _weights_of(
    kept: _Kept, tables: PartTables, layout: Layout, num_heads: int, log_sums_BHQ: Tensor | None = None
) -> Callable[[Block], Tensor]:
    """The function that computes P of any block of a part's queries, [G, Q, K], and fills `log_sums_BHQ`."""
    # 1. For all blocks at once: the scores by row of the key table, [G, Q, W], are few.
    q_GQD, k_GKD, _, queries_GQX, key_bias_HBK, *_ = kept
    keys, _, bias = tables
    projected_GQW = None
    if keys is not None:
        projected_GQW = keys.project(q_GQD if queries_GQX is None else queries_GQX)

    def weights(block: Block) -> Tensor:
        # 2. The products, in one buffer to which all else is added.
        scores_GQK = scores_buffer(q_GQD.shape[0], block.num_queries, block.num_keys, like=q_GQD)
        torch.bmm(q_GQD[:, block.queries], k_GKD[:, block.keys].transpose(1, 2), out=scores_GQK)
        if keys is not None and projected_GQW is not None:
            keys.add_to_scores(scores_GQK, projected_GQW, block)
        # 3. Biases by distance and by key, and what is hidden.
        scores_HBQK = scores_GQK.view(num_heads, -1, block.num_queries, block.num_keys)
        mask_bias = layout.mask_bias(block, like=scores_GQK)
        if bias is not None:
            biases_HBQK = bias.of_pairs(block)
            if mask_bias is not None and mask_bias.dim() == 2:  # causal, small compared with the scores: one pass
                biases_HBQK, mask_bias = biases_HBQK + mask_bias, None
            scores_HBQK.add_(biases_HBQK)
        if key_bias_HBK is not None:
            of_block = key_bias_HBK[..., block.keys], block.first_query, scores_HBQK
            scores_HBQK.add_(bias_of_keys(*of_block, relative=layout.with_sums))
        if mask_bias is not None:
            scores_HBQK.add_(mask_bias if mask_bias.dim() == 2 else mask_bias.transpose(0, 1))
        # 4. The weights take the place of the scores.
        if log_sums_BHQ is not None:
            of_block_HBQ = scores_HBQK.to(log_sums_BHQ.dtype).logsumexp(-1)
            log_sums_BHQ[..., block.queries] = of_block_HBQ.transpose(0, 1)
        return torch.softmax(scores_GQK, dim=-1, out=scores_GQK)

    return weights


def _tables(given: AttentionInputs, layout: Layout, at: Part, learned_bias: bool) -> PartTables:
    def table_of(table: Tensor | None) -> Table | None:
        if table is None:
            return None
        lengths = given.q.shape[2], given.k.shape[2], layout.first_query
        edges = Distances.between(*lengths, table.shape[-2], causal=layout.causal, window=layout.window)
        return Table(table if table.dim() == 2 else table[at[1]], edges, given.q.dtype)

    bias = None
    if given.bias_table is not None:
        bias = Bias(given.bias_table[at[1]], layout, learned=learned_bias)
    return table_of(given.key_table), table_of(given.value_table), bias


def heads_of(qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    parts = qkv_BQM.view(*qkv_BQM.shape[:2], 3, num_heads, -1).unbind(2)
    return tuple(part.transpose(1, 2) for part in parts)


class SplitHeads(torch.autograd.Function):
    """apply(qkv_BQM, num_heads) -> q, k, v, views [B, H, Q, D] of one projection's output.

    If the three gradients have the memory layout that BlockwiseAttention writes, together they are the projection's
    gradient; torch's own chunk would copy them again, which took a tenth of a layer's time.
    """

    @staticmethod
    def forward(ctx: Any, qkv_BQM: Tensor, num_heads: int) -> tuple[Tensor, ...]:
        return heads_of(qkv_BQM, num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        batch, heads, length, width = gradients[0].shape
        row = 3 * heads * width
        first = gradients[0]
        for index, gradient in enumerate(gradients):
            if (
                gradient.stride() != (length * row, width, row, 1)
                or gradient.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
                or gradient.storage_offset() != first.storage_offset() + index * heads * width
            ):
                return torch.stack([x.transpose(1, 2) for x in gradients], dim=2).flatten(2), None
        return first.as_strided((batch, length, row), (length * row, row, 1)), None


def _parts(x_BHQD: Tensor, num_keys: int, layout: Layout) -> Iterator[Part]:
    """Slices of sentences and heads: everything at once, or on a CPU few enough that q and P stay below PART_BYTES."""
    batch, heads, num_queries, width = x_BHQD.shape
    if devices.on_gpu(x_BHQD):
        yield slice(0, batch), slice(0, heads)
        return
    queries = min(num_queries, layout.queries_per_block or num_queries)
    keys = num_keys if layout.window is None else queries + (1 if layout.causal else 2) * (layout.window - 1)
    numbers = max(num_queries * width, queries * min(keys, num_keys))  # of q, and of the largest block's scores
    affordable = max(1, PART_BYTES // (numbers * x_BHQD.element_size()))
    heads_at_once = min(heads, max(1, affordable // batch))
    sentences_at_once = -(-batch // -(-batch // affordable))
    for head in range(0, heads, heads_at_once):
        for sentence in range(0, batch, sentences_at_once):
            yield slice(sentence, sentence + sentences_at_once), slice(head, head + heads_at_once)


def _heads_first(operation: Callable[..., Tensor] | None, x_BHQD: Tensor, operand: Any = None) -> Tensor:
    """Copy to a contiguous [G, Q, D], applying an operation on the way."""
    x_HBQD = x_BHQD.transpose(0, 1)
    if operation is None:
        return x_HBQD.contiguous().view(-1, *x_HBQD.shape[2:])
    out = torch.empty_like(x_HBQD, memory_format=torch.contiguous_format)
    operation(x_HBQD, operand, out=out)
    return out.view(-1, *x_HBQD.shape[2:])


def _put(whole_BHQD: Tensor, at: Part, part_GQD: Tensor) -> None:
    place = whole_BHQD[at].transpose(0, 1)
    place.copy_(part_GQD.view(place.shape))


def _gradient_buffers(dz_BHQD: Tensor, num_keys: int, width: int) -> tuple[Tensor, ...]:
    """Of q, k and v; the width is that of queries and keys."""
    batch, heads, num_queries, of_values = dz_BHQD.shape
    if num_keys == num_queries and width == of_values:  # the layout of the projection, which then needs no copy
        packed = dz_BHQD.new_empty(batch, num_queries, 3, heads, width)
        return tuple(part.transpose(1, 2) for part in packed.unbind(2))
    sizes = ((num_queries, width), (num_keys, width), (num_keys, of_values))
    return tuple(dz_BHQD.new_empty(batch, n, heads, size).transpose(1, 2) for n, size in sizes)
