"""What a trained Transformer's positions do: norms and neighbours of its tables, and attention by signed distance."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, M model width, R = 2k+1 table rows,
# W = 2 max_distance + 1 distances.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rpr.analysis.position_numbers import (
    AbsoluteTable,
    LayerAttention,
    LayerBias,
    LayerTables,
    PositionNumbers,
    Stack,
    StackPairs,
    TableNumbers,
)
from rpr.data.vocabulary import BOS, PAD
from rpr.decode.torch_engine import length_batches
from rpr.model.attention import weights
from rpr.model.layer_positions import LayerPositions
from rpr.model.transformer import DecoderLayer, EncoderLayer, SelfAttention, Transformer
from rpr.model.vectors import LearnedPositions, glorot_bound, relative_rows

HIDES = -1e8  # a bias below it leaves nothing of a key


def measure(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    max_distance: int,
    max_tokens_per_batch: int,
    device: torch.device | str,
    progress: Callable[[int, int], None] | None = None,
) -> PositionNumbers:
    """All the numbers: of the tables as they stand, and of the attention on these sentences.

    Mean attention at distance d = j - i: the mean of P_ij over all pairs of a sentence and a query i of it for which
    the key i + d exists and may be seen, that is 0 <= i + d < n, and d <= 0 besides in the decoder. Every such pair
    weighs the same. Padding is neither query nor key; n counts EOS in the encoder, and BOS (but no EOS) in the
    decoder, which reads what it reads in training.

    Args:
        model: on `device`, in evaluation mode.
        pairs: at least one; the pieces of source and target, each with its EOS.
        max_distance: attention is summed for the distances -max_distance .. max_distance.
        max_tokens_per_batch: bound on rows * longest side n of a batch (a longer pair: alone). One layer's attention,
            rows * n * n numbers a head, is held at a time.
        progress: called with (measured, of all) pairs after each batch.
    """
    assert not model.training, "attention without dropout: call model.eval() first"
    assert len(pairs) > 0, "no sentence to measure attention on"
    encoder, decoder = (_Measured(attention, max_distance) for attention in _self_attention(model))
    hooks = [hook for stack in (encoder, decoder) for hook in stack.watch()]
    lengths = [max(len(source), len(target)) for source, target in pairs]
    measured = 0
    try:
        with torch.inference_mode():
            for batch in length_batches(lengths, max_tokens_per_batch):
                source_BS = _padded([[*pairs[index][0]] for index in batch]).to(device)
                target_BT = _padded([[BOS, *pairs[index][1][:-1]] for index in batch]).to(device)
                encoder.begin(source_BS != PAD)
                decoder.begin(target_BT != PAD)
                model(source_BS, target_BT)
                measured += len(batch)
                if progress is not None:
                    progress(measured, len(pairs))
    finally:
        for hook in hooks:
            hook.remove()
    assert all(sums.any() for stack in (encoder, decoder) for sums in stack.sums_HW), "a layer's hook did not run"
    longest = max(len(source) for source, _ in pairs), max(len(target) for _, target in pairs)
    return PositionNumbers(
        num_sentences=len(pairs),
        max_distance=max_distance,
        tables=(*_tables("encoder", encoder.attention), *_tables("decoder", decoder.attention)),
        absolute=tuple(_absolute_tables(model, longest)),
        attention=(*encoder.layers("encoder"), *decoder.layers("decoder")),
        stacks=(encoder.pairs("encoder"), decoder.pairs("decoder")),
        biases=(
            *_biases("encoder", encoder.attention, max_distance),
            *_biases("decoder", decoder.attention, max_distance),
        ),
    )


def table_numbers(table: Tensor) -> TableNumbers:
    """Norms and neighbours' cosines of w^K or w^V, [R, D] or [H, R, D]; in float64."""
    table_HRD = (table if table.dim() == 3 else table[None]).detach().double().cpu()
    norms_HR = table_HRD.norm(dim=-1)
    products = (table_HRD[:, :-1] * table_HRD[:, 1:]).sum(dim=-1)
    cosines = (products / (norms_HR[:, :-1] * norms_HR[:, 1:])).tolist()  # 0 / 0 is NaN: no direction
    return TableNumbers(
        norms=tuple(map(tuple, norms_HR.tolist())),
        cosines=tuple(tuple(None if math.isnan(cosine) else cosine for cosine in head) for head in cosines),
        # Each of the D numbers is uniform in (-bound, bound), of variance bound^2 / 3.
        expected_initial_norm=glorot_bound(table.shape) * math.sqrt(table.shape[-1] / 3),
    )


class _Measured:
    """The self-attention of one stack and its sums over all batches so far, float64, by distance.

    Sums are over the columns -max_distance - 1 .. max_distance + 1, where the outermost two take all that is farther.
    """

    def __init__(self, attention: Sequence[SelfAttention], max_distance: int) -> None:
        self.attention = attention
        self.max_distance = max_distance
        num_columns = 2 * max_distance + 3
        self.sums_HW = [torch.zeros(a.num_heads, num_columns, dtype=torch.float64) for a in attention]
        self.even_W = torch.zeros(num_columns, dtype=torch.float64)
        self.pairs_W = torch.zeros(num_columns, dtype=torch.float64)

    def begin(self, real_BK: Tensor) -> None:
        """The next batch: which of its positions are no padding."""
        self.mask = real_BK[:, None, None, :]
        visible_BQK = real_BK[:, :, None] & real_BK[:, None, :]
        if self.attention[0].causal:
            visible_BQK = visible_BQK.tril()
        self.visible_BQK = visible_BQK.double()
        seen_BQ = self.visible_BQK.sum(dim=-1, keepdim=True).clamp(min=1)
        self.pairs_W += self._by_distance(self.visible_BQK.sum(dim=0))
        self.even_W += self._by_distance((self.visible_BQK / seen_BQ).sum(dim=0))

    def watch(self) -> Iterator[Any]:
        """Hooks on the projections of q, k and v: a layer's attention is summed while it runs, and not kept."""
        for attention, sums_HW in zip(self.attention, self.sums_HW, strict=True):

            def see(
                _: nn.Module, inputs: Any, qkv_BQM: Tensor, attention: SelfAttention = attention, sums: Tensor = sums_HW
            ) -> None:
                sums += self._by_distance(self._summed_over_sentences(attention, qkv_BQM))

            yield attention.qkv.register_forward_hook(see)

    def layers(self, stack: Stack) -> Iterator[LayerAttention]:
        for number, sums_HW in enumerate(self.sums_HW, start=1):
            yield LayerAttention(stack, number, tuple(self._means(head_W) for head_W in sums_HW))

    def pairs(self, stack: Stack) -> StackPairs:
        return StackPairs(stack, tuple(int(count) for count in self.pairs_W[1:-1]), self._means(self.even_W))

    def _summed_over_sentences(self, attention: SelfAttention, qkv_BQM: Tensor) -> Tensor:
        """Sum of P_ij over the sentences of the batch in which i and j are no padding: [H, Q, K]."""
        q_BHQD, k_BHKD, _, tables = attention.attended(qkv_BQM)
        p_BHQK = weights(
            q_BHQD,
            k_BHKD,
            key_table=tables.keys,
            bias_table=tables.bias,
            mask=self.mask,
            causal=attention.causal,
        )
        return torch.einsum("bhqk,bqk->hqk", p_BHQK.double(), self.visible_BQK)

    def _by_distance(self, values: Tensor) -> Tensor:
        """Sums over the diagonals of [..., Q, K]: [..., W + 2]."""
        num_queries, num_keys = values.shape[-2:]
        columns_QK = relative_rows(num_queries, num_keys, self.max_distance + 1)
        sums = torch.zeros(*values.shape[:-2], 2 * self.max_distance + 3, dtype=torch.float64)
        # On the CPU, where the order of summation is always the same.
        return sums.index_add_(-1, columns_QK.flatten(), values.flatten(-2).cpu())

    def _means(self, sums_W: Tensor) -> tuple[float | None, ...]:
        return tuple(
            float(total / count) if count else None
            for total, count in zip(sums_W[1:-1], self.pairs_W[1:-1], strict=True)
        )


def _self_attention(model: Transformer) -> tuple[list[SelfAttention], list[SelfAttention]]:
    encoder = [cast(EncoderLayer, layer).self_attention for layer in model.encoder]
    return encoder, [cast(DecoderLayer, layer).self_attention for layer in model.decoder]


def _owners(layers: Sequence[SelfAttention]) -> Iterator[tuple[LayerPositions, tuple[int, ...]]]:
    """Each object of positions with the layers, from 1, that share it."""
    owners: dict[int, tuple[LayerPositions, list[int]]] = {}
    for number, attention in enumerate(layers, start=1):
        if attention.tables is not None:
            owners.setdefault(id(attention.tables), (attention.tables, []))[1].append(number)
    for positions, numbers in owners.values():
        yield positions, tuple(numbers)


def _tables(stack: Stack, layers: Sequence[SelfAttention]) -> Iterator[LayerTables]:
    """The clipped tables of vectors; layers that share theirs stand together."""
    for positions, numbers in _owners(layers):
        if positions.clip_distance is None:
            continue
        tables = positions.at(0, layers[0].qkv.weight.device)
        keys, values = (None if table is None else table_numbers(table) for table in (tables.keys, tables.values))
        if keys is not None or values is not None:
            yield LayerTables(stack, numbers, keys, values)


def _biases(stack: Stack, layers: Sequence[SelfAttention], max_distance: int) -> Iterator[LayerBias]:
    for positions, numbers in _owners(layers):
        bias_HR = positions.at(max_distance, layers[0].qkv.weight.device).bias
        if bias_HR is None:
            continue
        clip_distance = (bias_HR.shape[1] - 1) // 2
        rows_W = torch.arange(-max_distance, max_distance + 1).clamp(-clip_distance, clip_distance) + clip_distance
        seen = max_distance + 1 if layers[0].causal else 2 * max_distance + 1
        heads = bias_HR.detach().double().cpu()[:, rows_W].tolist()
        yield LayerBias(
            stack,
            numbers,
            tuple(
                tuple(value if at < seen and value > HIDES else None for at, value in enumerate(head)) for head in heads
            ),
        )


def _absolute_tables(model: Transformer, longest: tuple[int, int]) -> Iterator[AbsoluteTable]:
    sides: tuple[tuple[Stack, nn.Module | None], ...] = (
        ("encoder", model.source_positions),
        ("decoder", model.target_positions),
    )
    for (stack, positions), length in zip(sides, longest, strict=True):
        if isinstance(positions, LearnedPositions):
            norms = positions.weight_LM.detach().double().norm(dim=-1)
            yield AbsoluteTable(stack, tuple(norms.tolist()), length)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64)
