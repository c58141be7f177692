"""Where a long source is split, by hand, and for any text and limit that parts are short enough and nothing is lost."""

from __future__ import annotations

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpr.data.pairs import normalise
from rpr.data.vocabulary import Vocabulary, count_words
from rpr.decode.split_long import split_long_source


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """Large enough for byte fallback."""
    words = ["".join(letters) for letters in itertools.product(string.ascii_lowercase[:12], repeat=3)]
    sentences = [*words, 'a b c . ! ? " ) , 。 ！ ？'] * 2
    return Vocabulary.learn(count_words(sentences), 1024, tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


def cut(vocabulary: Vocabulary, text: str, most: int) -> list[str]:
    return [vocabulary.decode(part) for part in split_long_source(vocabulary.encode(text), most, vocabulary)]


def test_short_source_is_not_split(vocabulary):
    pieces = vocabulary.encode("abc. abd. abe.")
    assert split_long_source(pieces, len(pieces), vocabulary) == [pieces]
    assert len(split_long_source(pieces, len(pieces) - 1, vocabulary)) == 2
    assert split_long_source([], 8, vocabulary) == [[]]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # a, b and c with the blank before them are one piece each, as are marks
        ("a b. c a b c a", ["a b.", "c a b c a"]),  # not after "c a", which also fits
        ("a b c a b c a", ["a b c a b", "c a"]),
        ('a b." c a b c', ['a b."', "c a b c"]),  # closing quotes belong to the sentence
        ("a! b! c! a! b!", ["a! b!", "c! a!", "b!"]),  # at the last end that fits
        ("a.b c a.b c a", ["a.b c", "a.b c a"]),  # no blank after the mark: not an end
    ],
)
def test_splits_at_sentence_ends(vocabulary, text, parts):
    assert cut(vocabulary, text, 5) == parts


def test_text_without_blanks_splits_between_characters(vocabulary):
    assert cut(vocabulary, "a。b！c", 4) == ["a。b！", "c"] and cut(vocabulary, "a。b。c", 3) == ["a。", "b。c"]
    assert cut(vocabulary, "a" + "ü" * 6, 8) == ["aüüü", "üüü"]  # two bytes each
    text = "⌘" * 40  # three bytes each
    parts = cut(vocabulary, text, 8)
    assert "".join(parts) == text and len(parts) == 20 and "\ufffd" not in "".join(parts)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(alphabet='ab z.!?")。！é⌘😀', min_size=1, max_size=80), st.integers(8, 20))
def test_parts_are_complete_and_short_enough(vocabulary, text, most):
    text = normalise(text)
    pieces = vocabulary.encode(text)
    parts = split_long_source(pieces, most, vocabulary)
    assert list(itertools.chain.from_iterable(parts)) == pieces
    assert all(0 < len(part) <= most for part in parts) or not pieces
    for part in parts:
        if part and vocabulary.piece(part[0]).startswith("\u2581"):
            assert vocabulary.encode(vocabulary.decode(part)) == part
        assert "\ufffd" not in vocabulary.decode(part)


@pytest.mark.timeout(30)
def test_half_a_million_characters_split_quickly(vocabulary):
    for text in ("abc " * 125_000, "x" * 500_000):
        pieces = vocabulary.encode(text)
        parts = split_long_source(pieces, 500, vocabulary)
        assert len(parts) == -(-len(pieces) // 500)
