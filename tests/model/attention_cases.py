"""Inputs for the tests of attention, its implementations, and their comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rpr.model import attention
from rpr.model.attention import attend, composition
from rpr.model.attention.blocks import blockwise as in_blocks
from rpr.model.attention.inputs import AttentionInputs

NAMES = ("q", "k", "v", "key_table", "value_table", "bias_table", "distance_queries", "key_bias", "sink")


@dataclass(frozen=True)
class Case:
    """Sizes and options of one attention. A table is given by its k, None for no table.

    `mask` and `labels` name their axes, of "BHQK". With labels, tables have an extra row, so an even number.
    """

    num_queries: int
    num_keys: int
    first_query: int = 0
    keys: int | None = 2
    values: int | None = 1
    bias: int | None = None
    queries: int | None = None  # the width of the distance queries
    wide: int | None = None  # the width of queries and keys, if another one
    key_bias: bool = False
    sink: bool = False
    window: int | None = None
    causal: bool = False
    mask: str = ""
    labels: str = ""
    per_head: tuple[bool, bool] = (True, False)
    strided: bool = False
    batch: int = 2
    heads: int = 2
    width: int = 3
    seed: int = 0

    def inputs(self, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor | None], dict[str, Any]]:
        """[q, k, v, key table, value table, bias], rounded to bfloat16 so that every dtype holds them; options."""
        draw = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            if self.strided and len(shape) == 4:  # a view, like heads of one projection
                batch, heads, length, width = shape
                whole = torch.randn(batch, length, heads, width + 1, generator=draw).bfloat16().to(dtype)
                return whole[..., 1:].transpose(1, 2)
            return torch.randn(shape, generator=draw).bfloat16().to(dtype)

        def table(clip_distance: int | None, *last: int, per_head: bool) -> Tensor | None:
            if clip_distance is None:
                return None
            return normal(*([self.heads] if per_head else []), 2 * clip_distance + 1 + bool(self.labels), *last)

        sizes = ((self.num_queries, self.wide), (self.num_keys, self.wide), (self.num_keys, None))
        q, k, v = (normal(self.batch, self.heads, n, width or self.width) for n, width in sizes)
        tables = [
            table(self.keys, self.queries or self.wide or self.width, per_head=self.per_head[0]),
            table(self.values, self.width, per_head=self.per_head[1]),
            table(self.bias, per_head=True),
            None if self.queries is None else normal(self.batch, self.heads, self.num_queries, self.queries),
            normal(self.batch, self.heads, self.num_keys) if self.key_bias else None,
            normal(self.heads) if self.sink else None,
        ]
        options: dict[str, Any] = {"causal": self.causal, "first_query": self.first_query, "window": self.window}
        of_axes = {"B": self.batch, "H": self.heads, "Q": self.num_queries, "K": self.num_keys}
        if self.mask:
            shape = [size if axis in self.mask else 1 for axis, size in of_axes.items()]
            options["mask"] = torch.rand(shape, generator=draw) < 0.6
        if self.labels:
            rows = min([2 * k + 2 for k in (self.keys, self.values, self.bias) if k is not None], default=1)
            options["labels"] = torch.randint(rows, [of_axes[axis] for axis in self.labels], generator=draw)
        return [q, k, v, *tables], options

    def has_visible_key(self, options: dict[str, Any]) -> Tensor:
        """[B, H, Q, 1]; results of other queries are only guaranteed to be finite."""
        visible = options.get("mask", torch.ones(1, 1, 1, 1, dtype=torch.bool))
        visible = visible.expand(self.batch, self.heads, self.num_queries, self.num_keys)
        if self.causal:
            visible = visible & causal_mask(self.num_queries, self.first_query, self.num_keys)
        if self.window is not None:
            queries = self.first_query + torch.arange(self.num_queries)
            visible = visible & ((torch.arange(self.num_keys) - queries[:, None]).abs() < self.window)
        return visible.any(-1, keepdim=True)


CASES = {
    "whole": Case(6, 6, keys=1, values=3),
    "plain": Case(6, 6, keys=None, values=None),
    "k of 0": Case(7, 7, keys=0, values=0, bias=0),
    "unclipped": Case(5, 5, keys=9, values=4),
    "long": Case(24, 24, keys=16, values=1, per_head=(False, True), bias=3),
    "padding": Case(7, 7, keys=3, mask="BK"),
    "causal": Case(7, 7, values=3, causal=True),
    "causal, padding": Case(8, 8, keys=0, causal=True, mask="BK"),
    "step with cache": Case(1, 7, 6, values=4, causal=True, bias=3),
    "steps with cache": Case(3, 7, 4, keys=1, values=5, causal=True, mask="BK"),
    "fewer keys, causal": Case(6, 3, 1, causal=True),
    "far behind all keys": Case(17, 4, causal=True, values=2),
    "labels by sentence": Case(4, 6, labels="BQK", mask="BK", bias=2),
    "labels, causal": Case(4, 6, 2, labels="BQK", causal=True, mask="BHQK", per_head=(False, True)),
    "distance queries, causal": Case(7, 7, keys=9, queries=5, values=None, bias=1, causal=True, per_head=(False, True)),
    "distance queries, labels": Case(4, 6, 2, queries=2, labels="BQK", causal=True),
    "key bias": Case(6, 6, keys=None, values=None, key_bias=True, mask="BK"),
    "key bias, everything": Case(7, 9, 2, keys=3, bias=2, queries=1, key_bias=True, causal=True, mask="BHQK"),
    "window": Case(9, 9, keys=3, values=2, window=3),
    "window of 1": Case(6, 6, bias=2, causal=True, window=1),
    "window, padding": Case(9, 9, keys=2, values=6, causal=True, window=4, mask="BK", per_head=(False, True)),
    "window, steps with cache": Case(3, 11, 8, keys=4, bias=1, causal=True, window=3),
    "window, far behind all keys": Case(9, 4, 2, values=2, causal=True, window=3),
    "window, labels": Case(6, 6, 0, labels="BQK", bias=1, window=2, sink=True, causal=True),
    "window, everything": Case(
        13, 13, keys=2, bias=2, queries=2, key_bias=True, sink=True, window=5, mask="BHQK", causal=True
    ),
    "window wider than the text": Case(6, 6, keys=2, window=6),
    "sink": Case(6, 6, keys=1, values=1, sink=True),
    "sink, clipped on one side": Case(8, 8, keys=2, values=0, bias=1, sink=True, causal=True, per_head=(False, True)),
    "wider queries": Case(7, 7, values=3, causal=True, wide=6),
    "wider queries, plain": Case(9, 7, keys=None, values=None, wide=4, mask="BK", window=4),
    "views": Case(5, 5, strided=True, causal=True, mask="BK"),
}


def causal_mask(num_queries: int, first_query: int, num_keys: int) -> Tensor:
    return torch.arange(num_keys) <= first_query + torch.arange(num_queries)[:, None]


def by_fields(form: Callable[[AttentionInputs], Tensor]) -> Callable[..., Tensor]:
    """Called as `attend` is."""
    return lambda q, k, v, **others: form(AttentionInputs(q, k, v, **others))


composed, weights = map(by_fields, (composition.composed, composition.weights))


def blockwise(
    q: Tensor, k: Tensor, v: Tensor, *, queries_per_block: int | None = None, stored: bool = False, **options: Any
) -> Tensor:
    """Like `attend`, with any number of queries per block (None: all at once), with the weights stored or not."""
    given = AttentionInputs(q, k, v, **options)
    dense = given.labels is not None or given.change_scores is not None
    return attend(q, k, v, **options) if dense else in_blocks(given, queries_per_block, stored=stored)


def fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Torch's kernel, as on a GPU, for all that it computes; else `attend`."""
    given = AttentionInputs(q, k, v, **options)
    if given.change_adds and given.positions == {"change_scores"}:
        return attention._with_bias_of_pairs(given)
    fits = not given.positions and given.window is None
    return attention._fused(given) if fits else attend(q, k, v, **options)


PASSES = {name: partial(attend, implementation=name) for name in ("dense", "blockwise")}
EACH_PASS = pytest.mark.parametrize("form", PASSES.values(), ids=PASSES)
FORMS: dict[str, Callable[..., Tensor]] = {
    "composed": composed,
    "auto": attend,
    **PASSES,
    "fused": fused,
    "blocks of 1": partial(blockwise, queries_per_block=1),
    "blocks of 3": partial(blockwise, queries_per_block=3),
    "blocks of 3, stored": partial(blockwise, queries_per_block=3, stored=True),
}


def results(form: Callable[..., Tensor], inputs: list[Tensor | None], weight: Tensor, **options: Any) -> list[Tensor]:
    """z, and the gradients of sum(weight z) with respect to each input that is not None."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    z = form(*leaves[:3], **dict(zip(NAMES[3:], leaves[3:], strict=False)), **options)
    assert z.isfinite().all()
    present = [x for x in leaves if x is not None]
    gradients = torch.autograd.grad(z, present, weight, allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)
    return [z.detach(), *gradients]


def assert_same(actual: list[Tensor], expected: list[Tensor], name: str, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")


def assert_all_forms_agree(case: Case, z: Tensor | None = None) -> None:
    """Forward, backward and without gradients; `z`: expected in place of `composed`'s, 0 without a visible key."""
    inputs, options = case.inputs()
    valid = case.has_visible_key(options)
    shape = *inputs[0].shape[:3], case.width
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * valid
    expected = results(composed, inputs, weight, **options)
    expected[0] = expected[0] * valid if z is None else z
    tables = dict(zip(NAMES[3:], inputs[3:], strict=True))
    for name, form in FORMS.items():
        if name in ("blocks of 1", "blocks of 3, stored") and case.num_queries > 99:
            continue  # many small steps
        actual = results(form, inputs, weight, **options)
        with torch.no_grad():  # as in decoding
            no_grad = form(*inputs[:3], **tables, **options)
        assert_same([actual[0] * valid, *actual[1:]], expected, name)
        assert_same([no_grad * valid], expected[:1], name)
