"""Properties of attention in float64: every implementation, also in blocks and parts of any size, matches `reference`
forward and backward; decoding step by step matches decoding all at once.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rpr.model import blockwise_attention
from rpr.model.architectures import build_model
from rpr.model.config import TransformerConfig
from tests.model.attention_cases import Case, assert_all_forms_agree
from tests.property.sizes import SIZES, Size
from tests.shapes import shape

BOS, EOS = 2, 3

pytestmark = pytest.mark.usefixtures("one_thread")

CLIPS = st.none() | st.integers(0, 7)
AXES = st.sets(st.sampled_from("BHQK")).map("".join)
CASES = st.builds(
    Case, num_queries=st.integers(1, 8), num_keys=st.integers(1, 8), first_query=st.just(0) | st.integers(0, 10),
    keys=CLIPS, values=CLIPS, bias=CLIPS, causal=st.booleans(), mask=st.just("") | AXES,
    labels=st.sampled_from(["", "", "QK", "BQK"]), per_head=st.tuples(st.booleans(), st.booleans()),
    strided=st.booleans(), batch=st.integers(1, 3), heads=st.integers(1, 3), width=st.integers(1, 4),
    seed=st.integers(0, 99),
)  # fmt: skip


@SIZES
def test_all_forms_match_reference_forward_and_backward(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    @size(20)
    @given(CASES, st.sampled_from([1, 300, 2**23]))
    @example(Case(1, 2, 9, keys=2, values=1, causal=True), 2**23)  # behind all keys by more than both clip distances
    def property_(case: Case, part_bytes: int) -> None:
        monkeypatch.setattr(blockwise_attention, "PART_BYTES", part_bytes)
        assert_all_forms_agree(case)

    property_()


SHAPES = st.builds(
    shape, vocabulary_size=st.just(9), num_layers=st.integers(1, 2), d_model=st.just(8),
    num_heads=st.sampled_from([1, 2, 4]), d_ff=st.just(8), dropout=st.just(0.1),
    norm=st.sampled_from(["post", "pre"]), norm_epsilon=st.just(1e-6),
    absolute=st.sampled_from(["none", "sinusoidal", "learned"]), max_positions=st.integers(1, 5),
    relative_keys=st.booleans(), relative_values=st.booleans(), clip_distance=st.integers(0, 5),
    tables=st.sampled_from(["per_head", "shared_by_heads", "shared_by_heads_and_layers"]),
)  # fmt: skip


@SIZES
def test_cached_decoding_matches_full_decoding(size: Size) -> None:
    """While hypotheses are reordered and sentences finish."""

    @size(8)
    @given(
        SHAPES, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 3), st.integers(2, 8), st.data(),
        st.integers(0, 99),
    )  # fmt: skip
    def property_(
        small: TransformerConfig, lengths: list[int], hypotheses: int, steps: int, data: st.DataObject, seed: int
    ) -> None:
        torch.manual_seed(seed)
        model = build_model(small).double().eval()
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
