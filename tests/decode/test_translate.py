"""Translating many sources against beam search of single sentences (float64), order, token budget and training mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rpr.commands.scoring import torch_scored
from rpr.data.vocabulary import EOS, Vocabulary, count_words
from rpr.decode.corpus import translate_sources
from rpr.decode.torch_engine import Search, TorchEngine, length_batches
from rpr.model.beam_search import beam_search
from rpr.model.transformer import Transformer
from rpr.runs import runtime
from tests.shapes import shape

SEARCH = {"beam_size": 3, "length_penalty": 0.6, "max_extra_length": 4}
SETTINGS = Search(**SEARCH, max_tokens_per_batch=60)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    sentences = ["the cat sat on the mat", "a dog ran to the hill", "cats and dogs ran on"] * 3
    return Vocabulary.learn(count_words(sentences), 40, tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


@pytest.fixture(scope="module")
def model(vocabulary):
    torch.manual_seed(0)
    small = shape(
        vocabulary_size=len(vocabulary), num_layers=1, d_model=8, num_heads=2, d_ff=16, dropout=0.5, norm="post",
        norm_epsilon=1e-6, relative_keys=True, relative_values=True,
    )  # fmt: skip
    model = Transformer(small).double()
    model.embedding_VM.data.mul_(2)
    return model


def translated(model: Transformer, sources: Any, vocabulary: Vocabulary, **more: Any) -> list[str]:
    return translate_sources(TorchEngine(model), sources, vocabulary, SETTINGS, **more)


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    return [[*draw.integers(4, 40, length).tolist(), EOS] for length in (5, 1, 12, 3, 30, 3, 8, 5)]


def test_equals_translating_sentence_by_sentence(model, vocabulary, rows):
    together = translated(model, rows, vocabulary)
    model.eval()
    single = [beam_search(model, torch.tensor([row]), **SEARCH)[0][0].pieces for row in rows]
    assert together == [vocabulary.decode(pieces) for pieces in single]
    assert len(set(together)) > 4


def test_translation_is_one_line(model, vocabulary, rows, monkeypatch):
    """Byte pieces can spell line ends."""
    monkeypatch.setattr(Vocabulary, "decode", lambda self, pieces: "the\ncat\r\x85sat\u2028on")
    assert set(translated(model, rows, vocabulary)) == {"the cat sat on"}


def test_progress_and_order(model, vocabulary, rows):
    calls = []
    first = translated(model, rows[:4], vocabulary, progress=lambda done, of: calls.append((done, of)))
    assert first == translated(model, rows, vocabulary)[:4]
    assert calls == [(1, 4), (4, 4)]  # 13 pieces: 20 // 13 = 1 row; then 6 pieces: 3 rows
    assert translated(model, [], vocabulary) == []


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(model, vocabulary, rows, training):
    model.train(training)
    model.encoder[0].train(not training)  # frozen parts keep their own mode
    translated(model, rows[:2], vocabulary)
    assert (model.training, model.encoder[0].training) == (training, not training)

    def fail(done, total):
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        translated(model, rows[:2], vocabulary, progress=fail)
    assert (model.training, model.encoder[0].training) == (training, not training)


@pytest.mark.parametrize(
    ("flags", "matmuls", "recorded"), [({"amx_bf16"}, "medium", "32, medium products"), (set(), "highest", "32")]
)
def test_auto_matmul_precision_is_resolved_for_scoring(model, tiny_config, monkeypatch, flags, matmuls, recorded):
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: flags)
    words = ("hardware=cpu", "hardware.matmul_precision=auto", "evaluation.matmul_precision=null")
    scored = torch_scored(tiny_config(*words), model, "step 1")
    assert isinstance(scored.engine, TorchEngine)
    assert (scored.engine.matmul_precision, scored.precision) == (matmuls, recorded)


def test_batches_are_complete_and_within_the_budget():
    lengths = np.random.default_rng(1).integers(1, 60, 500).tolist()
    batches = list(length_batches(lengths, 50))
    assert sorted(index for batch in batches for index in batch) == list(range(500))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 50
    longest = [lengths[batch[0]] for batch in batches]
    assert longest == sorted(longest, reverse=True)


def test_source_without_eos_fails_an_assertion(model, vocabulary):
    with pytest.raises(AssertionError, match="source 1 does not end with EOS"):
        translated(model, [[5, EOS], [5, 6]], vocabulary)
