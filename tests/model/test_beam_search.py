"""Checked here: beam search against the enumeration of every output (float64), greedy and cached stepping against full
decoding, scores by hand, forced beginnings, and that a sentence's result does not depend on the batch.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from rpr.model import beam_search as module
from rpr.model import incremental
from rpr.model.beam_search import Hypothesis, beam_search, best_extensions, penalty
from rpr.model.transformer import Transformer, TransformerConfig
from tests.shapes import changed, shape

PAD, UNK, BOS, EOS = 0, 1, 2, 3
NONE = shape(
    vocabulary_size=6,
    num_layers=2,
    d_model=8,
    num_heads=2,
    d_ff=16,
    dropout=0.1,
    norm="post",
    norm_epsilon=1e-6,
    absolute="none",
    max_positions=4,
    relative_keys=False,
    relative_values=False,
    clip_distance=2,
    tables="per_head",
)
RELATIVE = changed(NONE, relative_keys=True, relative_values=True)
VARIANTS = {
    "none": NONE,
    "sinusoidal": changed(NONE, absolute="sinusoidal"),
    "learned": changed(NONE, absolute="learned"),
    "per_head": RELATIVE,
    "shared_by_heads": changed(RELATIVE, tables="shared_by_heads"),
    "shared_by_heads_and_layers": changed(RELATIVE, tables="shared_by_heads_and_layers"),
    "keys_only": changed(NONE, relative_keys=True),
    "values_only": changed(NONE, relative_values=True),
    "clip_0": changed(RELATIVE, clip_distance=0),
    "absolute_and_relative": changed(RELATIVE, absolute="sinusoidal", norm="pre"),
}


def build(shape: TransformerConfig, seed: int = 0) -> Transformer:
    """Random, float64, with an output spread wide enough that hypotheses differ."""
    torch.manual_seed(seed)
    model = Transformer(shape).double().eval()
    model.embedding_VM.data.mul_(2)
    return model


def sources(lengths: list[int], vocabulary_size: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        row[: length - 1] = torch.randint(4, vocabulary_size, (length - 1,))
        row[length - 1] = EOS
    return rows


def full_log_probabilities(model: Transformer, source_S: torch.Tensor, pieces: tuple[int, ...]) -> torch.Tensor:
    """log p of every piece after BOS and each prefix of `pieces`, by decoding all at once: [T + 1, V]."""
    with torch.no_grad():
        hidden = model(source_S[None], torch.tensor([[BOS, *pieces]]))
        return model.logits(hidden)[0].log_softmax(-1)


def enumerate_all(model: Transformer, source_S: torch.Tensor, limit: int, alpha: float) -> list[tuple[float, tuple]]:
    """(score, pieces) of every output that ends within `limit` pieces, EOS counted, best first."""
    usable = [piece for piece in range(model.config.vocabulary_size) if piece not in (PAD, BOS, EOS)]
    found = []
    for length in range(limit):
        for pieces in itertools.product(usable, repeat=length):
            table = full_log_probabilities(model, source_S, pieces)
            log_p = sum(table[t, piece].item() for t, piece in enumerate((*pieces, EOS)))
            found.append((log_p / ((5 + length + 1) / 6) ** alpha, pieces))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wide_beam_finds_what_enumeration_finds(seed: int, alpha: float) -> None:
    """All 13 outputs of limit 3 and all 40 of limit 4, in order, with their scores."""
    model = build(RELATIVE, seed)
    source_BS = sources([2, 3], 6, seed)  # limits 3 and 4
    found = beam_search(model, source_BS, beam_size=60, length_penalty=alpha, max_extra_length=1)
    for row, (length, hypotheses) in enumerate(zip([2, 3], found, strict=True)):
        expected = enumerate_all(model, source_BS[row, :length], length + 1, alpha)
        assert [h.pieces for h in hypotheses] == [pieces for _, pieces in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-10)
        assert all(h.finished for h in hypotheses)


def plain_beam(
    model: Transformer, source_S: torch.Tensor, beam: int, alpha: float, limit: int, min_length: int = 0
) -> list[Hypothesis]:
    """The definition, one sentence, lists, no caches and no stopping before the limit."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[Hypothesis] = []
    for length in range(1, limit + 1):
        extended = []
        for log_p, pieces in alive:
            last = full_log_probabilities(model, source_S, pieces)[-1].tolist()
            never = (PAD, BOS, EOS) if length <= min_length else (PAD, BOS)
            extended += [(log_p + last[p], (*pieces, p)) for p in range(len(last)) if p not in never]
        best = sorted(extended, reverse=True)[: 2 * beam]
        weight = ((5 + length) / 6) ** alpha
        done += [Hypothesis(pieces[:-1], log_p / weight, log_p, True) for log_p, pieces in best if pieces[-1] == EOS]
        alive = [item for item in best if item[1][-1] != EOS][:beam]
    return sorted(done, key=lambda hypothesis: -hypothesis.score)[:beam]


@pytest.mark.parametrize("min_length", [1, 3])
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_eos_is_refused_before_the_minimum_length(beam: int, min_length: int) -> None:
    model = build(changed(RELATIVE, vocabulary_size=11), seed=3)
    with torch.no_grad():
        model.embedding_VM[EOS] *= 3  # likely at once
    source_BS = sources([2, 5, 3], 11, 4)
    search = {"beam_size": beam, "length_penalty": 0.6, "max_extra_length": 2}
    assert any(not hypotheses[0].pieces for hypotheses in beam_search(model, source_BS, **search))
    found = beam_search(model, source_BS, **search, min_length=min_length)
    for length, source_S, hypotheses in zip([2, 5, 3], source_BS, found, strict=True):
        limit = max(length + 2, min_length + 1)
        assert all(min_length <= len(one.pieces) < limit + 1 - one.finished for one in hypotheses)
        expected = plain_beam(model, source_S[:length], beam, 0.6, limit, min_length)
        if beam > 1 and expected:
            assert [one.pieces for one in hypotheses] == [one.pieces for one in expected]
            assert [one.score for one in hypotheses] == pytest.approx([one.score for one in expected], abs=1e-9)
        if beam == 1:
            chain: tuple[int, ...] = ()
            while len(chain) < limit and (not chain or chain[-1] != EOS):
                log_p_V = full_log_probabilities(model, source_S[:length], chain)[-1].clone()
                log_p_V[[PAD, BOS, *([EOS] if len(chain) < min_length else [])]] = -torch.inf
                chain += (int(log_p_V.argmax()),)
            assert hypotheses[0].pieces == tuple(piece for piece in chain if piece != EOS)


def test_the_greatest_length_leaves_room_for_the_minimum_and_eos() -> None:
    model = fixed({EOS: -0.1, 4: -3.0})
    for beam in (1, 2):
        [[best, *_]] = beam_search(
            model, sources([1], 6), beam_size=beam, length_penalty=0.6, max_extra_length=0, min_length=4
        )
        assert (best.pieces, best.finished) == ((4, 4, 4, 4), True)


@pytest.mark.parametrize("name", ["none", "learned", "per_head"])
@pytest.mark.parametrize("beam", [2, 4])
def test_a_narrow_beam_equals_the_definition(name: str, beam: int) -> None:
    """Stopping early loses nothing here: the bound is exact for the N kept. 5 sentences of different limits."""
    model = build(changed(VARIANTS[name], vocabulary_size=11), seed=3)
    lengths = [2, 7, 4, 3, 5]
    source_BS = sources(lengths, 11)
    found = beam_search(model, source_BS, beam_size=beam, length_penalty=0.6, max_extra_length=4)
    for row, length in enumerate(lengths):
        expected = plain_beam(model, source_BS[row, :length], beam, 0.6, length + 4)
        assert [h.pieces for h in found[row]] == [h.pieces for h in expected]
        for ours, theirs in zip(found[row], expected, strict=True):
            assert (ours.score, ours.log_probability) == pytest.approx((theirs.score, theirs.log_probability))


@pytest.mark.parametrize("name", VARIANTS)
def test_beam_1_is_the_argmax_chain_of_full_decoding(name: str) -> None:
    model = build(changed(VARIANTS[name], vocabulary_size=9), seed=2)
    lengths = [4, 2, 6]
    source_BS = sources(lengths, 9)
    found = beam_search(model, source_BS, beam_size=1, length_penalty=0.6, max_extra_length=5)
    for row, length in enumerate(lengths):
        pieces: tuple[int, ...] = ()
        log_p = 0.0
        while len(pieces) < length + 5 and (not pieces or pieces[-1] != EOS):
            last = full_log_probabilities(model, source_BS[row, :length], pieces)[-1]
            last[[PAD, BOS]] = -torch.inf
            log_p += last.max().item()
            pieces = (*pieces, int(last.argmax()))
        (only,) = found[row]
        assert only.finished == (pieces[-1] == EOS)
        assert only.pieces == (pieces[:-1] if only.finished else pieces)
        assert only.log_probability == pytest.approx(log_p)
        assert only.score == pytest.approx(log_p / ((5 + len(pieces)) / 6) ** 0.6)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_does_not_depend_on_its_batch(beam: int) -> None:
    model = build(changed(RELATIVE, vocabulary_size=20), seed=5)
    lengths = [9, 2, 5, 14, 3, 7]
    source_BS = sources(lengths, 20)
    settings = {"beam_size": beam, "length_penalty": 0.6, "max_extra_length": 6}
    together = beam_search(model, source_BS, **settings)
    for row, length in enumerate(lengths):
        (alone,) = beam_search(model, source_BS[row : row + 1, :length], **settings)
        assert [h.pieces for h in together[row]] == [h.pieces for h in alone]
        assert [h.score for h in together[row]] == pytest.approx([h.score for h in alone], rel=1e-10)


def fixed(log_p_of: dict[int, float], vocabulary_size: int = 6) -> Transformer:
    """A model that gives every prefix the same probabilities, so that scores can be worked by hand."""
    model = build(changed(NONE, vocabulary_size=vocabulary_size))
    logits_V = torch.full((vocabulary_size,), -1e4, dtype=torch.float64)
    for piece, probability in log_p_of.items():
        logits_V[piece] = probability
    scores = model.logits
    model.logits = lambda hidden: scores(hidden) * 0 + logits_V  # type: ignore[method-assign]
    return model


def test_length_penalty_by_hand() -> None:
    """p(EOS) = 0.3, p(4) = 0.7: "" scores log .3 = -1.2040; "4 4 4" log(.7^3 .3) = -2.2740, at alpha 2 over
    (9/6)^2 = 2.25 it is -1.0107 and wins; at alpha 0 the shorter always wins.
    """
    model = fixed({EOS: torch.tensor(0.3).log().item(), 4: torch.tensor(0.7).log().item()})
    source_BS = torch.tensor([[4, EOS]])
    settings = {"beam_size": 4, "max_extra_length": 2}
    (plain,) = beam_search(model, source_BS, length_penalty=0.0, **settings)
    assert [h.pieces for h in plain] == [(), (4,), (4, 4), (4, 4, 4)]
    assert [h.score for h in plain] == pytest.approx([-1.20397, -1.56065, -1.91732, -2.27400], abs=1e-5)
    (penalised,) = beam_search(model, source_BS, length_penalty=2.0, **settings)
    assert [h.pieces for h in penalised] == [(4, 4, 4), (4, 4), (4,), ()]
    assert penalised[0].score == pytest.approx(-1.01067, abs=1e-5)
    assert penalised[0].log_probability == pytest.approx(-2.27400, abs=1e-5)
    assert penalty(7, 0.6).item() == pytest.approx(2**0.6)


def test_equal_scores_go_to_the_lower_piece() -> None:
    model = fixed({UNK: 0.0, EOS: 0.0, 4: 0.0, 5: 0.0})
    (found,) = beam_search(model, torch.tensor([[4, EOS]]), beam_size=3, length_penalty=0.0, max_extra_length=1)
    assert [h.pieces for h in found] == [(), (UNK,), (4,)]
    assert [h.score for h in found] == pytest.approx([-1.38629, -2.77259, -2.77259], abs=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_pad_and_bos_are_never_generated(beam: int) -> None:
    """They are given nearly all probability; what is left is not renormalised."""
    model = fixed({PAD: 5.0, BOS: 6.0, UNK: -1.0, EOS: -3.0, 4: 1.0, 5: 0.5})
    (found,) = beam_search(model, torch.tensor([[4, EOS]]), beam_size=beam, length_penalty=0.6, max_extra_length=8)
    assert all(not {PAD, BOS, EOS} & set(h.pieces) for h in found)
    assert found[0].log_probability < -4


@pytest.mark.parametrize("beam", [1, 3])
def test_nothing_finished_at_the_limit(beam: int) -> None:
    """EOS never among the best 2N: the best alive is returned, marked, with source (2 with EOS) + 3 pieces."""
    model = fixed({piece: -0.1 * piece for piece in range(4, 12)}, vocabulary_size=12)
    (found,) = beam_search(model, torch.tensor([[4, EOS, PAD]]), beam_size=beam, length_penalty=0.6, max_extra_length=3)
    (only,) = found
    assert (only.finished, only.pieces) == (False, (4,) * 5)
    assert only.log_probability == pytest.approx(5 * torch.arange(8).mul(-0.1).double().log_softmax(0)[0].item())
    assert only.score == pytest.approx(only.log_probability / (10 / 6) ** 0.6)


def test_an_empty_batch_and_a_model_in_training() -> None:
    model = build(NONE)
    settings = {"beam_size": 2, "length_penalty": 0.6, "max_extra_length": 3}
    assert beam_search(model, torch.empty(0, 4, dtype=torch.int64), **settings) == []
    with pytest.raises(AssertionError, match=r"model\.eval\(\) first"):
        beam_search(model.train(), torch.tensor([[4, EOS]]), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name, beam", [("per_head", 4), ("sinusoidal", 4), ("shared_by_heads", 1)])
def test_200_sentences_do_not_depend_on_their_batches(name: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in batches of 7 and 64 and all together, in the order of length and not; in float64, where the order of a
    sum moves scores by 1e-12 and no two hypotheses of these models are as close as that.
    """
    model = build(changed(VARIANTS[name], vocabulary_size=60), seed=8)
    torch.manual_seed(3)
    lengths = torch.randint(2, 14, (200,)).tolist()
    source_BS = sources(lengths, 60)
    settings = {"beam_size": beam, "length_penalty": 0.6, "max_extra_length": 8}
    alone = [beam_search(model, source_BS[row : row + 1, :n], **settings)[0] for row, n in enumerate(lengths)]
    assert len({h[0].pieces for h in alone}) > 50
    monkeypatch.setattr(module, "ROWS", 32)  # so that the vocabulary comes in several parts
    by_length = sorted(range(200), key=lambda row: lengths[row])
    for order, size in ((range(200), 7), (by_length, 64), (by_length, 200)):
        for start in range(0, 200, size):
            batch = list(order[start : start + size])
            longest = max(lengths[row] for row in batch)
            for row, found in zip(batch, beam_search(model, source_BS[batch, :longest], **settings), strict=True):
                assert [h.pieces for h in found] == [h.pieces for h in alone[row]]
                assert [h.score for h in found] == pytest.approx([h.score for h in alone[row]], abs=1e-10)


@pytest.mark.parametrize("n_best", [1, 2])
def test_a_search_for_fewer_finds_the_first_of_all_in_fewer_steps(n_best: int) -> None:
    model = build(changed(RELATIVE, vocabulary_size=15), seed=5)
    model.embedding_VM.data[EOS] *= 2  # so that most hypotheses end
    steps = []
    next_hidden = model.next_hidden
    model.next_hidden = lambda pieces, state: steps.append(len(pieces)) or next_hidden(pieces, state)  # type: ignore
    source_BS = sources([4, 6, 3, 9, 9, 2], 15)
    settings = {"beam_size": 4, "length_penalty": 0.6, "max_extra_length": 20}
    everything = beam_search(model, source_BS, **settings)
    all_rows = sum(steps)
    steps.clear()
    assert beam_search(model, source_BS, n_best=n_best, **settings) == [found[:n_best] for found in everything]
    assert sum(steps) < all_rows


@pytest.mark.parametrize("beam", [1, 3])
def test_forced_beginnings(beam: int) -> None:
    """Every translation begins as asked, with the log p that full decoding gives all its pieces; what follows is what
    a search of the definition finds from there. One prefix is as long as the greatest length, one is empty.
    """
    model = build(changed(RELATIVE, vocabulary_size=12), seed=4)
    lengths, prefixes = [3, 5, 2, 4], [[7, 9], [], [5, 5, 5, 6, 4, 8], [UNK]]
    source_BS = sources(lengths, 12)
    settings = {"beam_size": beam, "length_penalty": 0.6, "max_extra_length": 4}
    found = beam_search(model, source_BS, prefixes=prefixes, **settings)
    for row, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        for hypothesis in found[row]:
            assert hypothesis.pieces[: len(prefix)] == tuple(prefix)
            pieces = (*hypothesis.pieces, EOS) if hypothesis.finished else hypothesis.pieces
            table = full_log_probabilities(model, source_BS[row, :length], pieces)
            log_p = sum(table[t, piece].item() for t, piece in enumerate(pieces))
            assert hypothesis.log_probability == pytest.approx(log_p)
            assert len(pieces) <= max(length + 4, len(prefix) + 1)
    assert len(found[2][0].pieces) in (6, 7)  # the prefix has the six pieces of the limit; one more is allowed
    (unforced,) = beam_search(model, source_BS[1:2, :5], **settings)
    assert [h.pieces for h in found[1]] == [h.pieces for h in unforced]
    best = unforced[0].pieces
    (forced,) = beam_search(model, source_BS[1:2, :5], prefixes=[best[:2]], **settings)
    assert forced[0].pieces == best  # what was best of all is best among those that begin so


@pytest.mark.parametrize(("hypotheses", "vocabulary", "candidates"), [(4, 1000, 8), (1, 331, 8), (3, 70, 6), (2, 5, 8)])
def test_the_best_extensions_are_those_of_all_rows_vocabularies_at_once(
    hypotheses: int, vocabulary: int, candidates: int
) -> None:
    """Against sorting everything; vocabularies that are, and are not, whole numbers of columns."""
    torch.manual_seed(vocabulary)
    log_p_BNV = torch.randn(5, hypotheses, vocabulary).log_softmax(-1)
    log_p_BNV[:, :, [PAD, BOS]] = -torch.inf
    alive_BN = torch.randn(5, hypotheses, dtype=torch.float64)
    log_p, parents, pieces = best_extensions(log_p_BNV, alive_BN, candidates)
    everything = (log_p_BNV + alive_BN[..., None]).flatten(1)
    expected = everything.sort(dim=1, descending=True)
    exist = min(candidates, everything.shape[1])
    assert log_p.shape == parents.shape == pieces.shape == (5, candidates)
    assert torch.equal(log_p[:, :exist], expected.values[:, :exist])
    real = log_p > -torch.inf
    assert not real[:, exist:].any()
    places = (parents * vocabulary + pieces)[:, :exist]
    assert torch.equal(places[real[:, :exist]], expected.indices[:, :exist][real[:, :exist]])


def test_decoding_far_beyond_the_initial_cache_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 pieces with an initial capacity of 3, so that the caches grow while sentences leave and hypotheses change."""
    model = build(changed(VARIANTS["shared_by_heads"], vocabulary_size=30), seed=6)
    source_BS = sources([9, 3, 30, 12, 5], 30)
    settings = {"beam_size": 3, "length_penalty": 0.6, "max_extra_length": 10}
    expected = beam_search(model, source_BS, **settings)
    assert max(len(found[0].pieces) for found in expected) > 20
    monkeypatch.setattr(incremental, "INITIAL_CAPACITY", 3)
    assert beam_search(model, source_BS, **settings) == expected


@pytest.mark.parametrize("beam", [1, 3])
def test_a_forced_beginning_goes_on_when_another_sentence_has_left(beam: int) -> None:
    model = build(changed(RELATIVE, vocabulary_size=20), seed=5)
    source_BS = sources([2, 7], 20)  # the first leaves after 2 pieces at the latest
    prefix = (7, 8, 9, 10, 11)
    found = beam_search(model, source_BS, beam_size=beam, length_penalty=0.6, max_extra_length=0, prefixes=[(), prefix])
    assert found[1] and all(hypothesis.pieces[:5] == prefix for hypothesis in found[1])


@pytest.mark.parametrize("beam", [1, 3])
def test_a_prefix_beyond_the_greatest_length_leaves_one_piece_after_it(beam: int) -> None:
    model = fixed({piece: -0.1 * piece for piece in range(4, 12)}, vocabulary_size=12)  # EOS never among the best
    (found,) = beam_search(
        model, torch.tensor([[4, EOS]]), beam_size=beam, length_penalty=0.6, max_extra_length=0, prefixes=[(5, 5, 5)]
    )
    assert [(hypothesis.pieces, hypothesis.finished) for hypothesis in found] == [((5, 5, 5, 4), False)]


def test_probabilities_are_float32_where_products_are_bfloat16() -> None:
    model = build(NONE).to(torch.bfloat16)
    hidden_NM = torch.randn(3, 8).to(torch.bfloat16)
    log_p_NV = module._log_probabilities(model, hidden_NM, None, [PAD, BOS])
    exact_NV = model.logits(hidden_NM).double().log_softmax(-1)
    assert log_p_NV.dtype == torch.float32
    usable = [UNK, EOS, 4, 5]
    assert torch.allclose(log_p_NV[:, usable].double(), exact_NV[:, usable], rtol=0, atol=1e-6)
