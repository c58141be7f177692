"""Continuations against whole passes of one row alone, in float64: greedy and drawn with the same numbers; the
distribution of draws; whole characters and stop texts. Caches of every scheme: tests/model/test_decoder_only.py.
"""

import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest
import torch

from rpr.config.commands import SamplingConfig
from rpr.data.vocabulary import BOS, EOS, PAD, UNK, ByteVocabulary
from rpr.decode.engine import Engine
from rpr.decode.sampling import Continuation, continuations, draw
from rpr.errors import ConfigError, RunError
from rpr.model.transformer import Transformer
from tests.model.test_decoder_only import make_model

GREEDY = {"max_new_tokens": 7, "temperature": 0.0, "top_k": None, "seed": 1, "num_samples": 1, "stop": None}
DRAWN = GREEDY | {"temperature": 0.8, "top_k": 6, "num_samples": 2, "seed": 4}
PROMPTS = [[BOS], [9, 4, 17, EOS, BOS], [BOS, 5, 6, 7, 8, 9, 10, 11, 12], [BOS, 4]]
VOCABULARY = type("Numbers", (), {"__len__": lambda self: 23, "decode": lambda self, ids: " ".join(map(str, ids))})()


def settings(**changes: Any) -> SamplingConfig:
    return SamplingConfig(**(GREEDY | changes))


def by_whole_passes(
    model: Transformer, prompt: list[int], sample: int, sampling: SamplingConfig
) -> tuple[list[int], bool]:
    """The pieces after a prompt and whether EOS followed, each from a pass over all before it, without a cache."""
    numbers, pieces = random.Random(f"{sampling.seed} {sample}"), list[int]()
    for _ in range(sampling.max_new_tokens):
        with torch.no_grad():
            row = torch.tensor([[*prompt, *pieces]])
            logits = model.logits(model(row.new_empty(1, 0), row))[0, -1].tolist()
        choices = sorted((-logit, piece) for piece, logit in enumerate(logits) if piece not in (PAD, UNK, BOS))
        if sampling.temperature:
            choices = choices[: sampling.top_k]
            weights = [math.exp((choices[0][0] - one) / sampling.temperature) for one, _ in choices]
            left = numbers.random() * math.fsum(weights)
            upto = itertools.accumulate(weights)
            piece = next(one for (_, one), above in zip(choices, upto, strict=True) if above > left)
        else:
            piece = choices[0][1]
        if piece == EOS:
            return pieces, True
        pieces.append(piece)
    return pieces, False


class ByPiece(torch.nn.Module):
    """Added vectors of another form than rpr's own: [B, L, M], by place and piece."""

    def forward(self, first: int, pieces_BL: torch.Tensor) -> torch.Tensor:
        places_L = first + torch.arange(pieces_BL.shape[1])
        return torch.sin(places_L * (1 + pieces_BL % 3))[..., None] * torch.linspace(-1, 1, 12, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["learned", "by_piece", "rope", pytest.param("fox", marks=pytest.mark.slow)])
def test_continuations_are_those_of_whole_passes_alone_and_in_any_batch(kind):
    longest = {"max_positions": 17} if kind == "learned" else {"norm": "pre"}
    model = make_model("none" if kind == "by_piece" else kind, **longest)
    if kind == "by_piece":
        model.target_positions = ByPiece()
    model.embedding_VM[EOS] = 0.9 * model.embedding_VM[5]  # so that some end
    for changes in (GREEDY, DRAWN) if kind == "rope" else (DRAWN,):
        sampling = settings(**changes)
        expected = [
            [by_whole_passes(model, prompt, sample, sampling) for sample in range(sampling.num_samples)]
            for prompt in PROMPTS
        ]
        for max_tokens in (1, 40):
            found = continuations(Engine(model), VOCABULARY, PROMPTS, sampling, max_tokens)
            assert [[(one.pieces, one.finished) for one in of_prompt] for of_prompt in found] == expected
            assert found[0][0].text == " ".join(map(str, found[0][0].pieces))
    if kind == "rope":
        ends = {finished for of_prompt in expected for _, finished in of_prompt}
        assert ends == {True, False} and expected[0][0] != expected[0][1], expected


def test_draws_have_the_distribution_of_the_most_probable_pieces():
    logits = torch.tensor([1.0, 0.2, -math.inf, 1.5, 0.2, 0.2, -3.0], dtype=torch.float64)
    for temperature, top_k, kept in ((1.0, None, [3, 0, 1, 4, 5, 6]), (0.5, 3, [3, 0, 1]), (2.0, 4, [3, 0, 1, 4])):
        sampling = settings(temperature=temperature, top_k=top_k)
        number, stream = 40_000, random.Random(7).random
        drawn = draw(sampling, [stream] * number, logits.log_softmax(0).expand(number, -1), torch.arange(number))
        counts = Counter(drawn.tolist())
        weights = {piece: math.exp(float(logits[piece]) / temperature) for piece in kept}
        assert counts.keys() == weights.keys()
        for piece, weight in weights.items():
            share = weight / sum(weights.values())
            assert abs(counts[piece] / number - share) < 5 * math.sqrt(share * (1 - share) / number)
    lowest_and_highest = [lambda: 0.0, lambda: 1 - 2.0**-53]
    for temperature, expected in ((1.0, [3, 6]), (1e-310, [3, 3])):
        two = logits.log_softmax(0).expand(2, -1)
        assert draw(settings(temperature=temperature), lowest_and_highest, two, torch.arange(2)).tolist() == expected


CHARACTERS = "caf\u00e9 \u4e16\n"


@pytest.mark.parametrize(
    "stop, expected", [(None, CHARACTERS), ("\u00e9 ", "caf"), ("\u4e16\n", "caf\u00e9 "), ("x", CHARACTERS)]
)
def test_text_has_whole_characters_and_ends_before_the_stop_text(stop, expected):
    vocabulary, one, shown = ByteVocabulary(), Continuation(), ""
    for piece in vocabulary.encode(CHARACTERS):
        if one.finished:
            break
        one.add(piece, vocabulary, stop)
        settled = one.settled(stop)
        assert settled.startswith(shown) and expected.startswith(settled)
        shown = settled
    assert one.text == expected and one.finished == (expected != CHARACTERS)


def test_streamed_text_is_the_text():
    engine, shown = Engine(make_model("t5")), [""]

    def on_text(text, ends):
        shown[-1] += text
        if ends:
            shown.append("")

    for stop in (None, " 1", "1"):
        sampling = settings(**DRAWN | {"stop": stop, "num_samples": 4})
        expected = continuations(engine, VOCABULARY, PROMPTS, sampling, 10_000)
        shown[:] = [""]
        assert continuations(engine, VOCABULARY, PROMPTS, sampling, 10_000, on_text) == expected
        assert shown == [*(one.text for of_prompt in expected for one in of_prompt), ""]
        assert stop is None or not any(stop in text for text in shown)


def test_what_a_model_cannot_continue_is_refused():
    model, nine = make_model("learned", max_positions=12), settings(max_new_tokens=9)
    assert len(continuations(Engine(model), VOCABULARY, [[BOS] * 4], nine, 99)) == 1
    for prompt, remedy in (([BOS] * 5, "set max_new_tokens=8 or less"), ([BOS] * 13, "shorten")):
        with pytest.raises(ConfigError, match=f"^max_new_tokens: 9 after a prompt of .* learned positions; {remedy}"):
            continuations(Engine(model), VOCABULARY, [[BOS], prompt], nine, 99)
    model.embedding_VM.fill_(math.nan)
    for changes in ({}, {"temperature": 1.0}):
        with pytest.raises(RunError, match="not finite"):
            continuations(Engine(model), VOCABULARY, [[BOS]], settings(**changes), 99)
