"""Checked here, in float64, on shapes, clip distances, tables, masks, caches and labels that Hypothesis chooses: every
form of attention gives what `reference` gives (equations 3 and 4 written out), and the same gradients, also cut into
blocks of queries and parts of heads and sentences as small as can be; and decoding step by step gives what decoding all
at once gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from rpr.model import blockwise_attention
from rpr.model.attention import attend, composed, per_position, reference
from rpr.model.blockwise_attention import BlockwiseAttention, Layout
from rpr.model.edges import Distances, Edges, Labels
from rpr.model.transformer import Transformer, TransformerConfig
from tests.property.sizes import SIZES, Size
from tests.shapes import shape

BOS, EOS = 2, 3


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Case:
    """Sizes, and what there is besides q, k and v. A table is its k, None where there is none."""

    batch: int
    heads: int
    num_queries: int
    num_keys: int
    first_query: int
    width: int
    keys: int | None
    values: int | None
    per_head: tuple[bool, bool]
    mask: tuple[bool, bool, bool, bool] | None  # which axes it has
    labels: str  # none, shared, or of each sentence
    causal: bool
    strided: bool
    seed: int

    def inputs(self) -> tuple[list[Tensor | None], dict[str, Any]]:
        """q, k, v and the tables, with gradients wanted; and the other arguments."""
        draw = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            if self.strided and len(shape) == 4:  # a view, as heads are split from one projection
                whole = torch.randn(shape[0], shape[2], shape[1], shape[3] + 1, dtype=torch.float64, generator=draw)
                return whole[..., 1:].transpose(1, 2).requires_grad_()
            return torch.randn(shape, dtype=torch.float64, generator=draw).requires_grad_()

        def table(clip_distance: int | None, per_head: bool) -> Tensor | None:
            if clip_distance is None:
                return None
            heads = (self.heads,) if per_head else ()
            return normal(*heads, 2 * clip_distance + 1, self.width)

        q = normal(self.batch, self.heads, self.num_queries, self.width)
        k, v = (normal(self.batch, self.heads, self.num_keys, self.width) for _ in range(2))
        tables = [table(self.keys, self.per_head[0]), table(self.values, self.per_head[1])]
        others: dict[str, Any] = {"causal": self.causal, "first_query": self.first_query}
        if self.mask is not None:
            whole = (self.batch, self.heads, self.num_queries, self.num_keys)
            shape = [size if there else 1 for size, there in zip(whole, self.mask, strict=True)]
            others["mask"] = torch.rand(shape, generator=draw) < 0.7
        if self.labels != "none":
            rows = 2 * min([k for k in (self.keys, self.values) if k is not None], default=0) + 1
            sentences = (self.batch,) if self.labels == "of each sentence" else ()
            others["labels"] = torch.randint(rows, (*sentences, self.num_queries, self.num_keys), generator=draw)
        return [q, k, v, *tables], others

    def sees(self, others: dict[str, Any]) -> Tensor:
        """Which queries see any key, [B, H, Q, 1]; of the others nothing is promised but finite numbers."""
        shape = (self.batch, self.heads, self.num_queries, self.num_keys)
        visible = others.get("mask", torch.ones(1, 1, 1, 1, dtype=torch.bool)).expand(shape)
        if self.causal:
            places = self.first_query + torch.arange(self.num_queries)[:, None]
            visible = visible & (torch.arange(self.num_keys)[None] <= places)
        return visible.any(-1, keepdim=True)


CLIPS = st.none() | st.integers(0, 7)
CASES = st.builds(
    Case,
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    num_queries=st.integers(1, 8),
    num_keys=st.integers(1, 8),
    first_query=st.just(0) | st.integers(0, 10),
    width=st.integers(1, 4),
    keys=CLIPS,
    values=CLIPS,
    per_head=st.tuples(st.booleans(), st.booleans()),
    mask=st.none() | st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    labels=st.sampled_from(["none", "none", "shared", "of each sentence"]),
    causal=st.booleans(),
    strided=st.booleans(),
    seed=st.integers(0, 99),
)


# What chance meets seldom: one query, farther behind all keys than both clip distances.
FAR_BEHIND = Case(1, 1, 1, 2, 9, 2, 2, 1, (True, False), None, "none", True, False, 0)


def results(form: Callable[..., Tensor], case: Case) -> list[Tensor | None]:
    """z of the queries that see a key, and the gradients of a weighted sum of it by q, k, v and the tables."""
    inputs, others = case.inputs()
    q, k, v, key_table, value_table = inputs
    sees = case.sees(others)
    z = form(q, k, v, key_table=key_table, value_table=value_table, **others)
    assert z.isfinite().all()
    z = z * sees
    wanted = [x for x in inputs if x is not None]
    weight = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(case.seed + 1))
    gradients = iter(torch.autograd.grad((z * weight).sum(), wanted, allow_unused=True, materialize_grads=True))
    return [z.detach(), *(None if x is None else next(gradients) for x in inputs)]


def assert_same(form: Callable[..., Tensor], case: Case) -> None:
    names = ["z", "q", "k", "v", "key_table", "value_table"]
    for name, actual, expected in zip(names, results(form, case), results(reference, case), strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            torch.testing.assert_close(
                actual, expected, rtol=1e-10, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
            )


FORMS = {
    "per_position": per_position,
    "composed": composed,
    "auto": attend,
    "dense": partial(attend, implementation="dense"),
    "blockwise": partial(attend, implementation="blockwise"),
}


@SIZES
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_is_the_reference_forward_and_backward(size: Size, form: Callable[..., Tensor]) -> None:
    @size(40)
    @given(CASES)
    @example(FAR_BEHIND)
    def property_(case: Case) -> None:
        assert_same(form, case)

    property_()


@SIZES
def test_small_blocks_of_queries_and_parts_of_heads_and_sentences_change_nothing(
    size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_blocks(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_table: Tensor | None,
        value_table: Tensor | None,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool,
        first_query: int,
        queries_per_block: int | None,
    ) -> Tensor:
        def edges(table: Tensor | None) -> Edges | None:
            if table is None:
                return None
            if labels is not None:
                return Labels(labels, table.shape[-2])
            return Distances.between(q.shape[2], k.shape[2], first_query, table.shape[-2], causal=causal)

        layout = Layout(edges(key_table), edges(value_table), None, mask, causal, first_query, queries_per_block)
        return BlockwiseAttention.apply(q, k, v, key_table, value_table, None, layout)  # type: ignore[no-any-return]

    @size(50)
    @given(CASES, st.none() | st.integers(1, 4), st.sampled_from([1, 300, 2**23]))
    def property_(case: Case, queries_per_block: int | None, part_bytes: int) -> None:
        monkeypatch.setattr(blockwise_attention, "PART_BYTES", part_bytes)
        assert_same(partial(in_blocks, queries_per_block=queries_per_block), case)

    property_()


SHAPES = st.builds(
    shape,
    vocabulary_size=st.just(9),
    num_layers=st.integers(1, 2),
    d_model=st.just(8),
    num_heads=st.sampled_from([1, 2, 4]),
    d_ff=st.just(8),
    dropout=st.just(0.1),
    norm=st.sampled_from(["post", "pre"]),
    norm_epsilon=st.just(1e-6),
    absolute=st.sampled_from(["none", "sinusoidal", "learned"]),
    max_positions=st.integers(1, 5),
    relative_keys=st.booleans(),
    relative_values=st.booleans(),
    clip_distance=st.integers(0, 5),
    tables=st.sampled_from(["per_head", "shared_by_heads", "shared_by_heads_and_layers"]),
)


@SIZES
def test_decoding_step_by_step_is_decoding_at_once(size: Size) -> None:
    """Rows of hypotheses are reordered on the way, and sentences leave, at steps that Hypothesis chooses."""

    @size(15)
    @given(
        SHAPES, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 3), st.integers(2, 8), st.data(),
        st.integers(0, 99),
    )  # fmt: skip
    def property_(
        small: TransformerConfig, lengths: list[int], hypotheses: int, steps: int, data: st.DataObject, seed: int
    ) -> None:
        torch.manual_seed(seed)
        model = Transformer(small).double().eval()
        source = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
        for row, length in zip(source, lengths, strict=True):
            row[:length] = torch.tensor([*torch.randint(4, 9, (length - 1,)).tolist(), EOS])
        pieces = torch.full((len(lengths) * hypotheses, 1), BOS)
        with torch.no_grad():
            state = model.start_decoding(source)
            for step in range(steps):
                logits = model.next_logits(pieces[:, -1:], state)
                sources = source.repeat_interleave(hypotheses, dim=0)
                expected = model.logits(model(sources, pieces))[:, -1]
                torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
                if step == steps - 1:
                    break
                stays = data.draw(st.lists(st.sampled_from(range(len(source))), min_size=1, unique=True))
                order = data.draw(st.permutations(stays))
                parents = data.draw(st.lists(st.integers(0, hypotheses - 1), min_size=hypotheses, max_size=hypotheses))
                rows = torch.tensor([row * hypotheses + parent for row in order for parent in parents])
                in_place = order == list(range(len(source)))
                state.select(rows, None if in_place else torch.tensor(order))
                source, pieces = source[order], pieces[rows]
                pieces = torch.cat([pieces, torch.randint(4, 9, (len(pieces), 1))], dim=1)

    property_()
