"""Checked here: text comes back from its pieces, also text never seen; the vocabulary is the same in another
process; refusals name the way out.
"""

from __future__ import annotations

import io
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from rpr.data import vocabulary as module
from rpr.data.pairs import normalise
from rpr.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary, add_words, count_words, most_frequent, training_sample
from rpr.errors import DataError


def sentences(number: int = 600) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuwzäöüß", k=draw.randint(2, 9))) for _ in range(900)]
    return [" ".join(draw.choices(words, k=8)) for _ in range(number)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary.train(sentences(), 1100, tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


ODD = [
    "naïve 中文 ☃ 😀",
    "ﬁne ½ ² Å",
    "x\u200dy a\u0301\u0323 \U0001f468\u200d\U0001f469",
    "<s> </s> <unk> <0x41>",
    "ПРИВЕТ שלום 🏴",
    "\u00ad",
]


@pytest.mark.parametrize("text", [*ODD, *sentences(3)])
def test_text_comes_back_from_its_pieces(large: Vocabulary, text: str) -> None:
    text = normalise(text)
    pieces = large.encode(text)
    assert not {PAD, UNK, BOS, EOS} & set(pieces)
    assert large.decode(pieces) == text
    assert large.encode(text, eos=True) == [*pieces, EOS]
    assert large.encode_batch([text, "ab"], eos=True) == [[*pieces, EOS], large.encode("ab", eos=True)]


def test_decoding_stops_at_eos_and_ignores_padding(large: Vocabulary) -> None:
    pieces = large.encode("abc def")
    assert large.decode([BOS, PAD, *pieces, EOS, *pieces]) == "abc def"
    assert large.decode([]) == large.decode([EOS]) == large.decode([PAD, BOS]) == ""


def test_special_pieces_stand_at_the_front_and_the_size_is_exact(large: Vocabulary) -> None:
    assert [large.piece(index) for index in (PAD, UNK, BOS, EOS)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(large) == 1100


def test_small_vocabularies_do_without_bytes(tmp_path: Path) -> None:
    small = Vocabulary.train(sentences(), 200, tmp_path / "small.model")
    assert len(small) == 200 and UNK in small.encode("中") and UNK not in small.encode(sentences(1)[0])


TRAIN = """
import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])
import test_vocabulary as t; from rpr.data import vocabulary as v
v.num_threads = lambda: 1
print(v.Vocabulary.train(t.sentences(), 1100, Path(sys.argv[2])).digest)
"""


def test_the_same_in_another_process_with_another_number_of_threads(large: Vocabulary, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN, str(Path(__file__).parent), str(tmp_path / "other.model")]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert there == large.digest == Vocabulary.load(tmp_path / "other.model").digest
    assert Vocabulary.train(sentences(599), 1100, tmp_path / "less.model").digest != large.digest
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["less.model", "other.model"]


def test_a_vocabulary_can_be_sent_to_another_process(large: Vocabulary) -> None:
    assert pickle.loads(pickle.dumps(large)).digest == large.digest


@pytest.mark.parametrize("size", [900, 30_000])
def test_too_large_names_a_limit_that_works(tmp_path: Path, size: int) -> None:
    with pytest.raises(
        DataError, match=rf"^data.vocabulary_size: {size} is more than .*set data.vocabulary_size=\d+ or less$"
    ) as error:
        Vocabulary.train(["a b c d", "d e f"], size, tmp_path / "v.model")
    limit = int(str(error.value).rsplit("=", 1)[1].split()[0])
    assert not list(tmp_path.iterdir())
    assert len(Vocabulary.train(["a b c d", "d e f"], limit, tmp_path / "v.model")) == limit


@pytest.mark.parametrize(("num_characters", "size"), [(40, 16), (2000, 1100), (1100, 500)])
def test_too_small_names_a_limit_that_works(tmp_path: Path, num_characters: int, size: int) -> None:
    text = [
        " ".join(chr(0x4E00 + index) * 2 for index in range(first, first + 10))
        for first in range(0, num_characters, 10)
    ]
    with pytest.raises(
        DataError, match=rf"^data.vocabulary_size: {size} is too few .*set data.vocabulary_size=\d+ or more$"
    ) as error:
        Vocabulary.train(text, size, tmp_path / "v.model")
    limit = int(str(error.value).rsplit("=", 1)[1].split()[0])
    assert len(Vocabulary.train(text, limit, tmp_path / "v.model")) == limit


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sentence to learn a vocabulary from.*check the train split"):
        Vocabulary.train([], 100, tmp_path / "v.model")


def test_loading_what_is_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none\.model: cannot be read \(No such file or directory\); run rpr-cli prepare"
    ):
        Vocabulary.load(tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(DataError, match=r"bad\.model: not a sentencepiece model; delete it"):
        Vocabulary.load(tmp_path / "bad.model")


def test_training_pairs_are_sampled_the_same_way_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert training_sample(1000)(300) is None, "all pairs"
    monkeypatch.setattr(module, "MAX_TRAINING_PAIRS", 100)
    whole = training_sample(1000)(1000)
    assert whole is not None and 60 < whole.sum() < 140
    draw = training_sample(1000)
    assert np.array_equal(whole, np.concatenate([draw(count) for count in (1, 499, 500)]))  # type: ignore[list-item]
    assert not np.array_equal(whole, training_sample(1000, seed=1)(1000))


def from_sentences(sentences: list[str], size: int) -> list[tuple[str, float]]:
    """The pieces and scores that sentencepiece finds in the sentences themselves."""
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=stream, model_type="bpe", vocab_size=size,
        pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS, character_coverage=1.0,
        byte_fallback=size >= module.BYTE_FALLBACK_FROM, normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    return pieces(sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue()))


def pieces(processor: sentencepiece.SentencePieceProcessor) -> list[tuple[str, float]]:
    return [(processor.id_to_piece(index), processor.get_score(index)) for index in range(processor.get_piece_size())]


@pytest.mark.parametrize("size", [200, 1100])
def test_words_and_their_counts_give_the_vocabulary_of_the_sentences(tmp_path: Path, size: int) -> None:
    left_out = ["\u2585 qqq", "\u2585", "zzz " * 1100, "é" * 2100, "\u00fc" * 4192]
    kept = ["a\u2581b \u2581", "<unk> <s>x</s> <0x41>", "x" * 4192, "yyy " * 1000]
    text = [normalise(sentence) for sentence in [*sentences(), *kept, *left_out]]
    learned = Vocabulary.train(text, size, tmp_path / "v.model")
    assert pieces(learned._processor) == from_sentences(text, size)
    assert not {"q", "z", "é"} & set(count_words(text))


def test_only_the_most_frequent_words_are_kept_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"a": 1, "b": 5, "c": 2, "d": 2, "e": 1}
    assert add_words({}, counts) == counts == add_words(dict(counts), {})
    monkeypatch.setattr(module, "MAX_WORDS", 3)
    assert len(add_words(dict(counts), {"f": 1})) == 6, "twice as many may gather"
    assert add_words(dict(counts), {"f": 2, "g": 9}) == {"b": 5, "c": 2, "g": 9}, "d and f come after c"
    assert most_frequent(counts) == {"b": 5, "c": 2, "d": 2}
    assert most_frequent(dict.fromkeys("xyzw", 1)) == dict.fromkeys("xyz", 1)
