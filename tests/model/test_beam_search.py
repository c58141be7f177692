"""Beam and greedy search, on tiny random models in float64, against a plain definition without batches or caches, which
is itself compared with the enumeration of all outputs and their scores; ties; early stopping.
"""

import itertools
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st

from rpr.model import beam_search as module
from rpr.model.beam_search import Hypothesis, Search, beam_search
from rpr.model.transformer import Transformer, build_model
from tests.model.test_transformer import sentences
from tests.property.sizes import sized
from tests.shapes import shape

PAD, UNK, BOS, EOS = 0, 1, 2, 3
RELATIVE = {"relative_keys": True, "relative_values": True}


def build(vocabulary_size: int = 6, seed: int = 0, **settings: object) -> Transformer:
    """Random, float64, with an output spread wide enough that hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout": 0.1, "norm_epsilon": 1e-6}
    given_settings = {"norm": "post", "max_positions": 4, **sizes, **settings}
    model = build_model(shape(vocabulary_size=vocabulary_size, **given_settings)).double().eval()
    model.embedding_VM.data.mul_(2)
    return model


def weight(length: int, alpha: float) -> float:
    return float(((5 + length) / 6) ** alpha)


def next_log_probabilities(model: Transformer, source_S: torch.Tensor, pieces: list[tuple[int, ...]]) -> torch.Tensor:
    """log p of the next piece after each prefix (of equal lengths), without a cache: [N, V]."""
    with torch.no_grad():
        hidden = model(source_S.expand(len(pieces), -1), torch.tensor([[BOS, *some] for some in pieces]))
        return model.logits(hidden)[:, -1].log_softmax(-1)


def definition(
    model: Transformer, source_S: torch.Tensor, *, beam: int, alpha: float, extra: int, eos: int = EOS,
    min_length: int = 0,
) -> list[Hypothesis]:  # fmt: skip
    """Beam search of one sentence without caches or early stopping; a beam of 1 is greedy."""
    limit = max(len(source_S) + extra, min_length + 1)
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[Hypothesis] = []
    for length in range(1, limit + 1):
        extended = []
        of_alive = next_log_probabilities(model, source_S, [pieces for _, pieces in alive]).tolist()
        never = {PAD, BOS, eos} if length <= min_length else {PAD, BOS}
        for (log_p, pieces), last in zip(alive, of_alive, strict=True):
            extended += [(log_p + last[piece], (*pieces, piece)) for piece in {*range(len(last))} - never]
        best = sorted(extended, reverse=True)[: 2 * beam if beam > 1 else 1]
        done += [
            Hypothesis(pieces[:-1], log_p / weight(length, alpha), log_p, True)
            for log_p, pieces in best
            if pieces[-1] == eos
        ]
        alive = [item for item in best if item[1][-1] != eos][:beam]
        if not alive:
            break
    log_p, pieces = alive[0] if alive else (0.0, ())
    unfinished = Hypothesis(pieces, log_p / weight(limit, alpha), log_p, False)
    return sorted(done, key=lambda hypothesis: -hypothesis.score)[:beam] or [unfinished]


def assert_equal(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [(h.pieces, h.finished) for h in found] == [(h.pieces, h.finished) for h in expected]
    for name in ("score", "log_probability"):
        assert [getattr(h, name) for h in found] == pytest.approx([getattr(h, name) for h in expected], abs=1e-9)


# A model, source lengths (with EOS) and search settings; `eos` is any piece but PAD and BOS.
Case = partial(
    SimpleNamespace,
    norm="post", absolute="none", relative=(True, True), clip_distance=2, tables="per_head", vocabulary_size=9,
    lengths=(4, 2, 6), eos=EOS, alpha=0.6, beam=3, n_best=5, extra=3, min_length=0, eos_scale=1.0, seed=0,
)  # fmt: skip
CASES = st.builds(
    Case,
    norm=st.sampled_from(["post", "pre"]),
    absolute=st.sampled_from(["none", "sinusoidal", "learned"]),
    relative=st.tuples(st.booleans(), st.booleans()),
    clip_distance=st.integers(0, 3),
    tables=st.sampled_from(["per_head", "shared_by_heads", "shared_by_heads_and_layers"]),
    vocabulary_size=st.integers(8, 12),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    eos=st.sampled_from([1, 3, 4]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    beam=st.integers(1, 5),
    n_best=st.integers(1, 5),
    extra=st.integers(0, 4),
    min_length=st.sampled_from([0, 0, 1, 3]),
    eos_scale=st.sampled_from([1.0, 3.0]),
    seed=st.integers(0, 999),
)


@sized(5, CASES)
@example(Case(beam=1, absolute="sinusoidal", relative=(False, False)))
@example(Case(beam=4, eos_scale=3.0, min_length=3))  # EOS is likely at the first step
@example(Case(beam=1, lengths=(2, 7), extra=0))  # the first ends early
@example(Case(beam=3, lengths=(2, 7), extra=0))
def test_n_best_match_the_definition(case):
    model = build(
        case.vocabulary_size, case.seed, norm=case.norm, absolute=case.absolute, relative_keys=case.relative[0],
        relative_values=case.relative[1], clip_distance=case.clip_distance, tables=case.tables, num_layers=2,
    )  # fmt: skip
    model.embedding_VM.data[case.eos] *= case.eos_scale
    source_BS = sentences(*case.lengths, size=case.vocabulary_size, eos=case.eos, seed=case.seed)
    n_best = min(case.n_best, case.beam)
    search = Search(case.beam, case.alpha, case.extra, 0, n_best, case.min_length)
    found = beam_search(model, source_BS, search, case.eos)
    for source_S, length, hypotheses in zip(source_BS, case.lengths, found, strict=True):
        expected = definition(
            model, source_S[:length], beam=case.beam, alpha=case.alpha, extra=case.extra, eos=case.eos,
            min_length=case.min_length,
        )  # fmt: skip
        assert_equal(hypotheses, expected[:n_best])


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_wide_beam_and_definition_match_enumeration(alpha):
    """All 13 outputs up to length 3 and all 40 up to length 4, in order, with their scores."""
    model = build(**RELATIVE)
    source_BS = sentences(2, 3, size=6, eos=EOS)
    search = Search(60, alpha, 1, 0, n_best=60)
    for row, (limit, found) in enumerate(zip([3, 4], beam_search(model, source_BS, search), strict=True)):
        expected = []
        source = source_BS[row, : limit - 1]
        next_of = cache(lambda pieces, source=source: next_log_probabilities(model, source, [pieces])[0])
        for length in range(limit):
            for pieces in itertools.product([UNK, 4, 5], repeat=length):
                log_p = sum(next_of(pieces[:t])[piece].item() for t, piece in enumerate((*pieces, EOS)))
                expected.append(Hypothesis(pieces, log_p / weight(length + 1, alpha), log_p, True))
        expected.sort(key=lambda hypothesis: -hypothesis.score)
        assert_equal(found, expected)
        assert_equal(definition(model, source, beam=60, alpha=alpha, extra=1), expected)


def fixed(log_p_of: dict[int, float], vocabulary_size: int = 6) -> Transformer:
    """A model with the same probabilities after every prefix, so that scores can be computed by hand."""
    model = build(vocabulary_size)
    logits_V = torch.full((vocabulary_size,), -1e4, dtype=torch.float64)
    for piece, probability in log_p_of.items():
        logits_V[piece] = probability
    scores = model.logits
    model.logits = lambda hidden: scores(hidden) * 0 + logits_V
    return model


def test_ties_prefer_the_lower_piece():
    model = fixed({UNK: 0.0, EOS: 0.0, 4: 0.0, 5: 0.0})
    (found,) = beam_search(model, torch.tensor([[4, EOS]]), Search(3, 0.0, 1, 0, n_best=3))
    assert [h.pieces for h in found] == [(), (UNK,), (4,)]
    assert [h.score for h in found] == pytest.approx([-1.38629, -2.77259, -2.77259], abs=1e-5)


@pytest.mark.parametrize("beam, rows", [(1, 3), (3, 4), (3, 512)])
def test_growing_caches_and_logits_in_parts_do_not_change_hypotheses(beam, rows, monkeypatch):
    """Up to 40 pieces with an initial capacity of 3, while sentences finish and hypotheses are reordered."""
    model = build(30, seed=6, **RELATIVE, tables="shared_by_heads")
    source_BS = sentences(9, 3, 30, 12, 5, size=30, eos=EOS)
    search = Search(beam, 0.6, 10, 0, n_best=beam)
    expected = beam_search(model, source_BS, search)
    assert max(len(found[0].pieces) for found in expected) > 20
    monkeypatch.setattr("rpr.model.cache.INITIAL_CAPACITY", 3)
    monkeypatch.setattr(module, "ROWS", rows)
    for found, right in zip(beam_search(model, source_BS, search), expected, strict=True):
        assert_equal(found, right)


def test_smaller_n_best_gives_the_first_hypotheses_in_fewer_steps():
    model = fixed({EOS: 0.0, 4: -1.0, 5: -2.0, 6: -3.0, 7: -4.0}, 8)
    steps = []
    next_hidden = model.next_hidden
    model.next_hidden = lambda pieces, state: steps.append(len(pieces)) or next_hidden(pieces, state)
    source_BS = sentences(4, 6, 3, size=8, eos=EOS)
    search = Search(4, 0.6, 20, 0, n_best=4)
    everything = beam_search(model, source_BS, search)
    rows = [sum(steps)]
    for n_best in (2, 1):
        steps.clear()
        fewer = beam_search(model, source_BS, replace(search, n_best=n_best))
        assert fewer == [found[:n_best] for found in everything]
        rows.append(sum(steps))
    assert rows[0] > rows[1] > rows[2]
