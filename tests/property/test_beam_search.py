"""Checked here, on tiny random models in float64: the n best of a beam search are distinct, best first, within their
limit, and score what decoding them at once says; and with a beam as wide as the tree of all outputs they are exactly
what enumerating it gives.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rpr.model.beam_search import Hypothesis, beam_search
from rpr.model.transformer import Transformer
from tests.property.sizes import SIZES, Size
from tests.shapes import shape

PAD, BOS = 0, 2


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Case:
    """A model and sources, by numbers; `eos` is any piece but the other special ones."""

    vocabulary_size: int
    norm: str
    absolute: str
    relative: tuple[bool, bool]
    clip_distance: int
    tables: str
    lengths: tuple[int, ...]  # of the sources, EOS counted
    eos: int
    alpha: float
    seed: int

    def model(self) -> Transformer:
        torch.manual_seed(self.seed)
        model = Transformer(
            shape(
                vocabulary_size=self.vocabulary_size, num_layers=1, d_model=8, num_heads=2, d_ff=8, dropout=0.1,
                norm=self.norm, norm_epsilon=1e-6, absolute=self.absolute, max_positions=3,
                relative_keys=self.relative[0], relative_values=self.relative[1], clip_distance=self.clip_distance,
                tables=self.tables,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        model.embedding_VM.data.mul_(2)  # so that hypotheses differ
        return model.double().eval()

    def sources(self) -> Tensor:
        rows = torch.full((len(self.lengths), max(self.lengths)), PAD)
        for row, length in zip(rows, self.lengths, strict=True):
            row[:length] = torch.randint(3, self.vocabulary_size, (length,))
            row[length - 1] = self.eos
        return rows

    def penalty(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


def cases(largest_vocabulary: int, longest: int) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        vocabulary_size=st.integers(5, largest_vocabulary),
        norm=st.sampled_from(["post", "pre"]),
        absolute=st.sampled_from(["none", "sinusoidal", "learned"]),
        relative=st.tuples(st.booleans(), st.booleans()),
        clip_distance=st.integers(0, 3),
        tables=st.sampled_from(["per_head", "shared_by_heads", "shared_by_heads_and_layers"]),
        lengths=st.lists(st.integers(1, longest), min_size=1, max_size=3).map(tuple),
        eos=st.sampled_from([1, 3, 4]),
        alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
        seed=st.integers(0, 999),
    )


def log_probability(model: Transformer, source_S: Tensor, pieces: tuple[int, ...]) -> float:
    """Of these pieces, all at once."""
    with torch.no_grad():
        hidden = model(source_S[None], torch.tensor([[BOS, *pieces[:-1]]]))[0]
        table = model.logits(hidden).log_softmax(-1)
    return float(table[torch.arange(len(pieces)), list(pieces)].sum())


@SIZES
def test_the_n_best_are_distinct_best_first_and_score_what_they_say(size: Size) -> None:
    @size(25)
    @given(cases(9, 5), st.integers(1, 5), st.integers(1, 5), st.integers(0, 4))
    def property_(case: Case, beam: int, n_best: int, extra: int) -> None:
        model, sources = case.model(), case.sources()
        n_best = min(n_best, beam)
        found = beam_search(
            model, sources, beam_size=beam, n_best=n_best, length_penalty=case.alpha, max_extra_length=extra,
            eos=case.eos,
        )  # fmt: skip
        assert len(found) == len(case.lengths)
        for row, (length, hypotheses) in enumerate(zip(case.lengths, found, strict=True)):
            assert 1 <= len(hypotheses) <= n_best
            assert len({hypothesis.pieces for hypothesis in hypotheses}) == len(hypotheses)
            scores = [hypothesis.score for hypothesis in hypotheses]
            assert scores == sorted(scores, reverse=True)
            for hypothesis in hypotheses:
                assert not {PAD, BOS, case.eos} & {*hypothesis.pieces}
                pieces = (*hypothesis.pieces, case.eos) if hypothesis.finished else hypothesis.pieces
                assert len(pieces) <= length + extra
                assert hypothesis.finished or (len(pieces) == length + extra and len(hypotheses) == 1)
                log_p = log_probability(model, sources[row, :length], pieces)
                assert hypothesis.log_probability == pytest.approx(log_p, abs=1e-9)
                assert hypothesis.score == pytest.approx(log_p / case.penalty(len(pieces)), abs=1e-9)

    property_()


def every_output(case: Case, model: Transformer, source_S: Tensor, limit: int) -> list[Hypothesis]:
    """All that end within the limit, best first."""
    usable = [piece for piece in range(case.vocabulary_size) if piece not in (PAD, BOS, case.eos)]
    found = []
    for length in range(1, limit + 1):
        for pieces in itertools.product(usable, repeat=length - 1):
            log_p = log_probability(model, source_S, (*pieces, case.eos))
            found.append(Hypothesis(pieces, log_p / case.penalty(length), log_p, True))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@SIZES
def test_a_beam_as_wide_as_the_tree_finds_what_enumeration_finds(size: Size) -> None:
    @size(8)
    @given(cases(6, 2), st.integers(0, 1), st.integers(1, 5))
    def property_(case: Case, extra: int, n_best: int) -> None:
        model, sources = case.model(), case.sources()
        usable = case.vocabulary_size - 3
        beam = sum(usable**length for length in range(max(case.lengths) + extra + 1))
        found = beam_search(
            model, sources, beam_size=beam, n_best=min(n_best, beam), length_penalty=case.alpha,
            max_extra_length=extra, eos=case.eos,
        )  # fmt: skip
        for row, (length, hypotheses) in enumerate(zip(case.lengths, found, strict=True)):
            expected = every_output(case, model, sources[row, :length], length + extra)[:n_best]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-9)
            assert {h.pieces for h in hypotheses} == {h.pieces for h in expected}

    property_()
