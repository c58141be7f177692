"""Where a long source is split, by hand, and for any text and limit that parts are short enough and nothing is lost."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpr.data.pairs import normalise
from rpr.data.vocabulary import Vocabulary, count_words
from rpr.decode.split_long import split_long_source


def cut(vocabulary: Vocabulary, text: str, most: int) -> list[str]:
    return [vocabulary.decode(part) for part in split_long_source(vocabulary.encode(text), most, vocabulary)]


@pytest.mark.parametrize(("text", "parts"), [
    # a, b and c with the blank before them are one piece each, as are marks
    ("a b. c a b c a", ["a b.", "c a b c a"]),  # not after "c a", which also fits
    ("a b c a b c a", ["a b c a b", "c a"]),
    ('a b." c a b c', ['a b."', "c a b c"]),  # closing quotes belong to the sentence
    ("a! b! c! a! b!", ["a! b!", "c! a!", "b!"]),  # at the last end that fits
    ("a.b c a.b c a", ["a.b c", "a.b c a"]),  # no blank after the mark: not an end
])  # fmt: skip
def test_splits_at_sentence_ends(byte_fallback, text, parts):
    assert cut(byte_fallback, text, 5) == parts


def test_text_without_blanks_splits_between_characters(byte_fallback):
    assert cut(byte_fallback, "a。b！c", 4) == ["a。b！", "c"] and cut(byte_fallback, "a。b。c", 3) == ["a。", "b。c"]
    assert cut(byte_fallback, "a" + "ü" * 6, 8) == ["aüüü", "üüü"]  # two bytes each
    text = "⌘" * 40  # three bytes each
    parts = cut(byte_fallback, text, 8)
    assert "".join(parts) == text and len(parts) == 20 and "\ufffd" not in "".join(parts)


def test_sentence_ends_of_other_scripts():
    words = count_words(["यह है। वह था। तुम कौन؟", "は。」に。」の"] * 9)
    vocabulary = Vocabulary.learn(words, len({*"".join(words)}) + 5)
    assert cut(vocabulary, "यह है। वह था", 10) == ["यह है।", "वह था"]
    assert cut(vocabulary, "कौन؟ तुम कौन", 8) == ["कौन؟", "तुम कौन"]
    assert cut(vocabulary, "は。」に。」の", 6) == ["は。」", "に。」の"], "not before the bracket that closes"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(alphabet='ab z.!?")。！é⌘😀', min_size=1, max_size=80), st.integers(8, 20))
def test_parts_are_complete_and_short_enough(byte_fallback, text, most):
    text = normalise(text)
    pieces = byte_fallback.encode(text)
    parts = split_long_source(pieces, most, byte_fallback)
    assert list(itertools.chain.from_iterable(parts)) == pieces
    assert all(0 < len(part) <= most for part in parts) or not pieces
    assert (len(parts) == 1) == (len(pieces) <= most)
    for part in parts:
        if part and byte_fallback.piece(part[0]).startswith("\u2581"):
            assert byte_fallback.encode(byte_fallback.decode(part)) == part
        assert "\ufffd" not in byte_fallback.decode(part)


@pytest.mark.timeout(30)
def test_half_a_million_characters_split_quickly(byte_fallback):
    for text in ("abc " * 125_000, "x" * 500_000):
        pieces = byte_fallback.encode(text)
        parts = split_long_source(pieces, 500, byte_fallback)
        assert len(parts) == -(-len(pieces) // 500)
