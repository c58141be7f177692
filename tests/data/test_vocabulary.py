"""Vocabularies: decoding, training on word counts as sentencepiece on sentences, errors, and whole words. Any text is
decoded from its pieces: tests/property/test_corpora.py.
"""

import io
import random

import pytest
import sentencepiece

from rpr.data import vocabulary as module
from rpr.data.corpora import normalise
from rpr.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary, Words, count_words
from rpr.errors import DataError


def sentences(number: int = 600) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuwzäöüß", k=draw.randint(2, 9))) for _ in range(900)]
    return [" ".join(draw.choices(words, k=8)) for _ in range(number)]


@pytest.fixture(scope="module")
def large():
    return Vocabulary.learn(count_words(sentences()), 1100)


def test_decoding_stops_at_eos_and_ignores_padding(large):
    pieces = large.encode("abc def")
    assert large.encode_batch(["abc def", "ab"], eos=True) == [[*pieces, EOS], large.encode("ab", eos=True)]
    assert large.decode([BOS, PAD, *pieces, EOS, *pieces]) == "abc def"
    bare = next(index for index in range(4, len(large)) if large.piece(index) == "▁")
    control = [large.encode(chr(code))[-1] for code in (1, 0x7F)]
    for ids in (
        [UNK],
        [UNK, bare, bare, *pieces, bare, UNK, UNK],
        [*control, *pieces, *control, *control, *pieces, bare],
    ):
        text = large.decode(ids)
        assert text == normalise(text) != "", ids
    assert large.decode([]) == large.decode([EOS]) == large.decode([PAD, BOS]) == ""


def test_special_pieces_and_byte_fallback(large):
    assert [large.piece(index) for index in (PAD, UNK, BOS, EOS)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert UNK not in large.encode("中") and UNK in Vocabulary.learn(count_words(sentences()), 200).encode("中")


FEW, TEXT = count_words(["a b c d", "d e f"]), module.count_text_words("some words, and others " * 9)


@pytest.mark.parametrize(("learn", "words", "size", "reason"), [
    (Vocabulary.learn, FEW, 900, r"Vocabulary size too high \(900\). Please set it to a value <= 17"),
    (Vocabulary.learn, FEW, 8, "Vocabulary size is smaller than required_chars. 8 vs 11. Increase"),
    (module.TextVocabulary.learn_text, TEXT, 265, "Vocabulary size is smaller than required_chars. 265 vs 275"),
    (Vocabulary.learn, {}, 900, "train has no words"),
])  # fmt: skip
def test_impossible_size_is_an_error_naming_a_possible_one(learn, words, size, reason):
    message = f"^data.vocabulary_size: {size} pieces cannot be learned from this corpus: {reason}"
    with pytest.raises(DataError, match=message):
        learn(words, size)


def from_sentences(sentences: list[str], size: int) -> list[tuple[str, float]]:
    """The pieces and scores that sentencepiece learns from the sentences."""
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
def test_word_counts_give_the_vocabulary_of_the_sentences(size):
    ignored = ["x\u2585qqq", "\u2585", "é" * 2100, "\u00fc" * 4192]
    kept = ["a\u2581b \u2581", "<unk> <s>x</s> <0x41>", "x" * 4192, "yyy " * 1000]
    text = [normalise(sentence) for sentence in [*sentences(), *kept, *ignored]]
    learned = Vocabulary.learn(count_words(text), size)
    assert pieces(learned._processor) == from_sentences(text, size)
    assert count_words(["\u2585 qqq"]) == {"qqq": 1}  # is read by its words, too
    assert not {"x\u2585qqq", "é" * 2100} & set(count_words(text))
    long_line = "zzz " * 1100 + "ü Ω " + "é" * 2100  # is read by its words
    assert count_words([long_line]) == {"zzz": 1100, "ü": 1, "Ω": 1}


def test_counts_of_a_sample_of_words_stand_for_all(monkeypatch):
    """However many words are seen once, the last are drawn as the first, and together they count as much."""
    often, once = {"the": 900, "of": 500}, [f"{n}" for n in range(4000)]
    monkeypatch.setattr(module, "MAX_WORDS", 400)
    words = Words()
    for n in range(0, 4000, 100):
        words.add(often | dict.fromkeys(once[n : n + 100], 1))
        assert len(words._counts) <= 800
    learned = words.learned()
    assert len(learned) == 400 and {word: learned.pop(word) for word in often} == {"the": 36000, "of": 20000}
    assert sum(learned.values()) == pytest.approx(4000, rel=0.15)
    assert sum(learned[word] for word in once[2000:] if word in learned) == pytest.approx(2000, rel=0.2)


def test_marks_and_joiners_are_of_their_word():
    words = "हिन्दी", " भाषा", " الْعَرَبِيَّةُ", " ที่ดี", " क्‍ष", " a", "-", "b"
    assert [*module.count_text_words("".join(words))] == [*words]


def test_word_vocabulary_maps_other_words_to_unk():
    vocabulary = Vocabulary.learn({"b": 5, "long": 4, "aa": 3, "aab": 1}, 7, "word")
    assert [vocabulary.piece(index) for index in range(4, 7)] == ["▁b", "▁long", "▁aa"]
    assert vocabulary.encode("aa long aab b aab bb") == [6, 5, UNK, 4, UNK]
    assert vocabulary.decode([6, 5, 4]) == "aa long b"
    unknown = chr(0x2047)
    assert vocabulary.decode([UNK, 5, UNK, UNK, 4, UNK]) == f"{unknown} long {unknown} {unknown} b {unknown}"
    many = {f"w{number}": 1 for number in range(1200)}
    vocabulary = Vocabulary.learn(many, 1204, "word")
    assert vocabulary.encode("other") == [UNK] and len(vocabulary.encode("w1 w1199")) == 2
