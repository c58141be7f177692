"""Measuring a trained Transformer's positions: norms of its tables, biases and attention by distance."""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, M model width, R = 2k+1 table rows,
# W = 2 max_distance + 1 distances.

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rpr.data.vocabulary import PAD
from rpr.decode.engine import Pairs, Progress, pair_batches
from rpr.model.attention.composition import sum_by_row
from rpr.model.attention.composition import weights as weights_of
from rpr.model.layer_positions import LayerPositions
from rpr.model.stack import SelfAttention
from rpr.model.transformer import StackModules, Transformer
from rpr.model.vectors import LearnedPositions, glorot_bound, rows_of

MASKING_BIAS = -1e8  # a bias below this masks the key
# What each number in positions.json is.
DEFINITIONS = {
    "norms": "Euclidean norm of each vector of w^K (keys) and w^V (values), by head, or once for all heads, and by "
    "offset j - i from -k to k; the outermost vectors also serve every distance beyond",
    "expected_initial_norm": "root mean square norm of a vector before training",
    "attention": "by head and distance j - i from -max_distance to max_distance: the mean softmaxed attention of query "
    "i to key j over all pairs that exist and may be seen; null where there is none; the encoder's positions include "
    "EOS, the decoder's start with BOS",
    "even_attention": "the same mean if each query attended evenly to every key that it may see",
    "pairs": "how many (sentence, query) pairs each mean is over",
    "bias": "by head and distance: the number that the scheme adds to a scaled score, whatever query and key hold; "
    "null where no key is seen",
    "absolute": "Euclidean norm of each vector of the learned absolute table, by position from 0; `longest` is the "
    "longest measured sentence",
}
Numbers = dict[str, Any]  # as in positions.json


def measure(
    model: Transformer, pairs: Pairs, *, max_distance: int, max_tokens_per_batch: int, progress: Progress | None = None
) -> Numbers:
    """All the numbers, by the keys of DEFINITIONS: lists `tables`, `absolute` and `biases` (empty if the model has
    none), with an entry for each stack or for the layers, from 1, that share them; `attention`, with one for each
    layer; and `stacks`, with what all layers of one share. None stands for "no such pair".

    The model is in evaluation mode; pairs, at least one, are token IDs, each side with EOS. `max_tokens_per_batch`
    bounds rows * longest side n of a batch (a longer pair: alone), and one layer's attention is in memory at a time:
    rows * n * n numbers per head. `progress` gets (measured, total) pairs after each batch.
    """
    # 1. Hooks that see the inputs of all layers.
    assert not model.training, "attention without dropout: call model.eval() first"
    assert len(pairs) > 0, "at least one pair is needed to measure attention"
    stacks = [_StackAttention(stack, max_distance) for stack in model.stacks()]
    measured = 0
    with ExitStack() as hooks, torch.inference_mode():
        for stack in stacks:
            stack.register_hooks(hooks)
        # 2. Sums over the batches.
        for batch in pair_batches(pairs, max_tokens_per_batch, model.embedding_VM.device):
            for stack, ids in zip(stacks, model.inputs(*batch), strict=True):
                stack.start_batch(ids != PAD)
            model(*batch)
            measured += len(batch[0])
            if progress is not None:
                progress(measured, len(pairs))
    # 3. The numbers.
    assert all(sums.any() for stack in stacks for sums in stack.sums_HW), "the hook of a layer did not run"
    return {
        "num_sentences": len(pairs),
        "max_distance": max_distance,
        "tables": [tables for stack in stacks for tables in _tables(stack.name, stack.attention)],
        "absolute": [*_absolute_tables(model, [stack.longest for stack in stacks])],
        "attention": [layer for stack in stacks for layer in stack.layers()],
        "stacks": [stack.shared() for stack in stacks],
        "biases": [bias for stack in stacks for bias in _biases(stack.name, stack.attention, max_distance)],
    }


def attention_weights(model: Transformer, source_1S: Tensor, target_input_1T: Tensor) -> dict[str, Tensor]:
    """The attention weights of one unpadded pair, by stack and `cross`, [layers, H, Q, K]; in evaluation mode."""
    by_name: dict[str, list[Tensor]] = {}

    def add(attention: Any, inputs: Any, _: Tensor, to: str) -> None:
        weights = attention.weights(*inputs) if to == "cross" else weights_of(attention.inputs(inputs[0], None))
        by_name.setdefault(to, []).append(weights[0])

    with ExitStack() as hooks:
        for stack in model.stacks():
            for layer in stack.layers:
                for attention, to in ((layer.self_attention, stack.shape.name), (layer.cross_attention, "cross")):
                    if attention is not None:
                        hooks.enter_context(attention.register_forward_hook(partial(add, to=to)))
        model(source_1S, target_input_1T)
    return {name: torch.stack(of_layers) for name, of_layers in by_name.items()}


def table_numbers(table: Tensor) -> Numbers:
    """Norms of w^K or w^V, [R, D] or [H, R, D], a row for each head; computed in float64."""
    norms = (table if table.dim() == 3 else table[None]).detach().double().cpu().norm(dim=-1)
    # Each of the D entries is uniform in (-bound, bound), with variance bound^2 / 3.
    initial = glorot_bound(table.shape) * math.sqrt(table.shape[-1] / 3)
    return {"norms": norms.tolist(), "expected_initial_norm": initial}


class _StackAttention:
    """The self-attention of one stack, and its float64 sums by distance over all batches so far."""

    def __init__(self, stack: StackModules, max_distance: int) -> None:
        self.name, self.max_distance = stack.shape.name, max_distance
        self.attention: list[SelfAttention] = [layer.self_attention for layer in stack.layers]
        # -max_distance - 1 .. max_distance + 1: the outermost two collect all larger distances.
        num_columns = 2 * max_distance + 3
        self.sums_HW = [torch.zeros(a.num_heads, num_columns, dtype=torch.float64) for a in self.attention]
        self.even_W = torch.zeros(num_columns, dtype=torch.float64)
        self.pairs_W = torch.zeros(num_columns, dtype=torch.float64)
        self.longest = 0

    def start_batch(self, real_BK: Tensor) -> None:
        """Set the next batch's mask, true where a position is not padding, and count its pairs."""
        self.longest = max(self.longest, int(real_BK.sum(dim=1).max()))
        self.mask = real_BK[:, None, None, :]
        visible_BQK = real_BK[:, :, None] & real_BK[:, None, :]
        if self.attention[0].causal:
            visible_BQK = visible_BQK.tril()
        self.visible_BQK = visible_BQK.double()
        seen_BQ = self.visible_BQK.sum(dim=-1, keepdim=True).clamp(min=1)
        self.pairs_W += self._by_distance(self.visible_BQK.sum(dim=0))
        self.even_W += self._by_distance((self.visible_BQK / seen_BQ).sum(dim=0))

    def register_hooks(self, hooks: ExitStack) -> None:
        """Hook the layers, so that each one's attention is added to the sums during the forward pass."""
        for attention, sums_HW in zip(self.attention, self.sums_HW, strict=True):

            def add(attention: Any, inputs: Any, _: Tensor, sums: Tensor = sums_HW) -> None:
                p_BHQK = weights_of(attention.inputs(inputs[0], self.mask))
                # Summed over the sentences of the batch in which neither position is padding.
                sums += self._by_distance(torch.einsum("bhqk,bqk->hqk", p_BHQK.double(), self.visible_BQK))

            hooks.enter_context(attention.register_forward_hook(add))

    def layers(self) -> Iterator[Numbers]:
        for number, sums_HW in enumerate(self.sums_HW, start=1):
            yield {"stack": self.name, "layers": [number], "attention": [self._means(head_W) for head_W in sums_HW]}

    def shared(self) -> Numbers:
        counts = self.pairs_W[1:-1].int().tolist()
        return {"stack": self.name, "pairs": counts, "even_attention": self._means(self.even_W)}

    def _by_distance(self, values: Tensor) -> Tensor:
        # Sums over the diagonals of [..., Q, K]: [..., W + 2].
        return sum_by_row(values, 2 * self.max_distance + 3, first_query=0).cpu()

    def _means(self, sums_W: Tensor) -> list[float | None]:
        counted = zip(sums_W[1:-1], self.pairs_W[1:-1], strict=True)
        return [float(total / count) if count else None for total, count in counted]


def _owners(layers: Sequence[SelfAttention]) -> dict[LayerPositions, list[int]]:
    owners: dict[LayerPositions, list[int]] = {}
    for number, attention in enumerate(layers, start=1):
        if attention.tables is not None:
            owners.setdefault(attention.tables, []).append(number)
    return owners


def _tables(stack: str, layers: Sequence[SelfAttention]) -> Iterator[Numbers]:
    """The clipped tables of vectors, one entry per group of layers that share them."""
    for positions, numbers in _owners(layers).items():
        if (clip_distance := positions.scheme.k) is None:
            continue
        tables = positions.at(clip_distance, layers[0].qkv.weight.device)
        keys, values = (None if table is None else table_numbers(table) for table in (tables.keys, tables.values))
        if keys is not None or values is not None:
            yield {"stack": stack, "layers": numbers, "keys": keys, "values": values}


def _biases(stack: str, layers: Sequence[SelfAttention], max_distance: int) -> Iterator[Numbers]:
    def by_distance(of_rows_HR: Tensor) -> Tensor:
        rows_W = rows_of(torch.arange(-max_distance, max_distance + 1), of_rows_HR.shape[1])
        return of_rows_HR.detach().double().cpu()[:, rows_W]

    for positions, numbers in _owners(layers).items():
        tables, site = positions.at(max_distance, layers[0].qkv.weight.device), positions.site
        if tables.bias is None:
            continue
        bias_HW = by_distance(tables.bias)
        if tables.keys is not None and not positions.scheme.has_projections:  # a query of zero may get a bias, too
            nothing_1H1D = layers[0].qkv.weight.new_zeros(1, site.num_heads, 1, site.d_head)
            q_HD1 = positions.prepare(nothing_1H1D, nothing_1H1D, nothing_1H1D[0, 0, :, 0].long())[0][0].transpose(1, 2)
            bias_HW += by_distance((tables.keys @ q_HD1)[..., 0]) * site.d_head**-0.5
        if layers[0].causal:
            bias_HW[:, max_distance + 1 :] = MASKING_BIAS
        bias = [[value if value > MASKING_BIAS else None for value in head] for head in bias_HW.tolist()]
        yield {"stack": stack, "layers": numbers, "bias": bias}


def _absolute_tables(model: Transformer, longest: Sequence[int]) -> Iterator[Numbers]:
    for stack, length in zip(model.stacks(), longest, strict=True):
        if isinstance(stack.positions, LearnedPositions):
            norms = stack.positions.weight_LM.detach().double().norm(dim=-1)
            yield {"stack": stack.shape.name, "absolute": norms.tolist(), "longest": length}
