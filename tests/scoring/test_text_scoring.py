"""Bits per byte by length: against a loop over single tokens; the same bytes for every length; bounded memory."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from rpr.config.train import EvaluationConfig
from rpr.data.batches import Windows, context_blocks, scored_split, unigram_bits
from rpr.data.cache import prepare
from rpr.data.vocabulary import BOS, FIRST, text_vocabulary
from rpr.decode.engine import Engine
from rpr.errors import RunError
from rpr.model.config import TransformerConfig
from rpr.model.transformer import build_model
from rpr.scoring.statistics import interval
from rpr.scoring.text import by_context_length, document_statistics, token_nats
from tests.data.helpers import memory_growth
from tests.data.test_documents import text_config, write
from tests.shapes import scheme

LENGTHS = (4, 6, 16)
EVALUATION = EvaluationConfig.model_construct(
    context_lengths=LENGTHS, stride=4, max_tokens_per_batch=32, bootstrap_samples=100
)


def small_model(choice: str = "relative", vocabulary_size: int = 290) -> torch.nn.Module:
    torch.manual_seed(1)
    config = TransformerConfig(
        vocabulary_size=vocabulary_size, num_layers=2, d_model=16, num_heads=2, d_ff=32, dropout=0.1, norm="pre",
        norm_epsilon=1e-6, encoder_positions=None, decoder_positions=scheme(choice), architecture="decoder_only",
    )  # fmt: skip
    return build_model(config).double()


@cache
def nats_by_loop(model: torch.nn.Module, document: bytes, start: int, at: int) -> float:
    """-ln p of token `at` of a document, given those from `start` on and the one before."""
    tokens = [BOS, *(FIRST + byte for byte in document)]
    inputs = torch.tensor([tokens[start : at + 1]])
    with torch.no_grad():
        hidden = model.eval()(inputs.new_empty(1, 0), inputs)
        return -float(model.logits(hidden[0, -1]).log_softmax(0)[tokens[at + 1]])


def test_scores_by_length_and_position_are_those_of_a_loop_over_tokens(tmp_path):
    texts = {f"{index}.txt": np.random.default_rng(index).bytes(20 + index) for index in range(60)}
    write(tmp_path, texts)
    data = prepare(text_config(tmp_path))
    blocks = context_blocks(data, "test", 16, 32)
    assert len(blocks) == 32 // 16
    model = small_model()
    names = (data.directory / "test.names").read_text().splitlines()
    offsets = data.split("test").offsets("target")
    places = [
        (texts[names[document].strip('"')], int(start - offsets[document]))
        for document, start in zip(blocks.document_of(), blocks.starts, strict=True)
    ]
    engine = Engine(model)
    scores, positions = by_context_length(engine, blocks, data.vocabulary, EVALUATION, lambda *_: None)
    got = {(one.windows, one.length): one.bits_per_byte for one in scores}
    assert {one.num_bytes for one in scores} == {32}, "the same number of bytes for every length"
    assert got.keys() == {(kind, length) for kind in ("separate", "sliding") for length in LENGTHS}
    for n in LENGTHS:
        starts = {"separate": [at // n * n for at in range(16)], "sliding": [at // 4 * 4 + 4 - n for at in range(16)]}
        for kind, of_kind in starts.items():
            nats = [
                nats_by_loop(model, text, first + start, first + at)
                for text, first in places
                for at, start in enumerate(of_kind)
            ]
            assert got[kind, n] == pytest.approx(sum(nats) / 32 / math.log(2), abs=1e-9)
    assert [(one.first, one.last) for one in positions] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    for of in positions:
        within = range(of.first - 1, of.last)
        nats = [nats_by_loop(model, text, first, first + at) for text, first in places for at in within]
        assert of.bits_per_byte == pytest.approx(sum(nats) / len(nats) / math.log(2), abs=1e-9)
    assert got["separate", 4] == pytest.approx(got["sliding", 4], abs=1e-12), "the stride is the length"


@pytest.mark.parametrize("tokenizer, vocabulary_size", [("bytes", 260), ("bpe", 280)])
def test_documents_are_scored_whole_by_the_bytes_of_their_text_in_any_batch(tmp_path, tokenizer, vocabulary_size):
    texts = {f"{index}.txt": b"some text, " * (20 + index % 7) + b"\xe2\x82\xac\n" for index in range(60)}
    write(tmp_path, texts)
    config = text_config(tmp_path, tokenizer=tokenizer, vocabulary_size=vocabulary_size)
    data = prepare(config)
    windows, engine = scored_split(data, config, "test", 10**9), Engine(small_model("rope"))
    names = [name.strip('"') for name in (data.directory / "test.names").read_text().splitlines()]
    results = []
    for max_tokens in (16, 1000):
        statistics, documents = document_statistics(windows, token_nats(engine, windows, max_tokens), data.vocabulary)
        results.append(statistics.rows)
        assert documents.tolist() == [*range(len(names))]
    assert np.allclose(*results, rtol=0, atol=1e-9)
    assert results[0][:, 1].tolist() == [len(texts[name]) for name in names]
    assert statistics.score == pytest.approx(results[0][:, 0].sum() / math.log(2) / results[0][:, 1].sum())
    found = interval(statistics, 200)
    assert found.low < statistics.score < found.high
    assert interval(statistics.select(np.arange(len(statistics)) == 0), 200) is None
    # By the length of the context, of the same bytes for every length.
    blocks = context_blocks(data, "test", 16, 64)
    scores, _ = by_context_length(engine, blocks, data.vocabulary, EVALUATION, lambda *_: None)
    decode = text_vocabulary(data.vocabulary).decode_bytes
    size = sum(len(decode(blocks.row("target", index).tolist())) for index in range(len(blocks)))
    assert {one.num_bytes for one in scores} == {size} and (size > 64) == (tokenizer == "bpe")


def test_documents_without_finite_probabilities_are_an_error(tmp_path):
    write(tmp_path, {f"{index}.txt": b"some text" for index in range(60)})
    data, engine = prepare(text_config(tmp_path)), Engine(small_model("rope"))
    with torch.no_grad():
        engine.model.embedding_VM[ord("x")] = math.nan
    windows = scored_split(data, text_config(tmp_path), "test", 10**9)
    with pytest.raises(RunError, match="probabilities are not finite in windows of 9 tokens; use another run"):
        token_nats(engine, windows, 100)


@pytest.mark.parametrize(
    ("choice", "length", "vocabulary_size", "megabytes"),
    # Of a large vocabulary malloc may keep some of the freed logits.
    [("relative", 4096, 290, 120), pytest.param("none", 2048, 32_768, 400, marks=pytest.mark.slow)],
)
def test_a_long_context_and_a_large_vocabulary_need_little_memory(tmp_path, choice, length, vocabulary_size, megabytes):
    write(tmp_path, {f"{index}.txt": b"x" * length for index in range(3)})
    windows = Windows.of_documents(prepare(text_config(tmp_path)).split("test"), length, eos=False)
    engine = Engine(small_model(choice, vocabulary_size).float())
    growth = memory_growth(lambda: token_nats(engine, windows, length))
    assert growth < megabytes << 20, "the scores alone would be 128 MiB, float64 logits 512"


def test_decoder_only_models_of_one_seed_share_all_weights_but_those_of_their_positions():
    weights = {}
    for choice in ("none", "rope", "alibi", "relative", "t5", "learned", "transformer_xl"):
        torch.manual_seed(3)
        weights[choice] = dict(small_model(choice).named_parameters())
    for choice, of_model in weights.items():
        assert all(torch.equal(of_model[name], value) for name, value in weights["none"].items()), choice


def test_unigram_entropy_by_hand(tmp_path):
    """Of bytes a, a, b, b, c, c, d, d: two bits a byte; without ends of documents."""
    texts = {"train/0.txt": b"abc" * 9, "validation/0.txt": b"xyz", "test/0.txt": b"aabbc", "test/1.txt": b"cdd"}
    write(tmp_path, texts)
    assert unigram_bits(prepare(text_config(tmp_path))) == pytest.approx(2.0)
