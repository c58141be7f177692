"""A source that is too long for the model, cut where it hurts least."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rpr.data.vocabulary import Vocabulary

WORD_START = "\u2581"
_SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u2019\u201c\u201d\u00bb\u203a)\]]*$")
_WIDE_SENTENCE_END = re.compile(r"[\u3002\uff01\uff1f]$")  # no blank follows it
_LATER_BYTE = re.compile(r"<0x[89AB][0-9A-F]>")  # of a character that is spelled in bytes
_LONGEST_CLOSING = 16  # characters of a word's end that are looked at
WITHIN_A_CHARACTER, WITHIN_A_WORD, BETWEEN_WORDS, BETWEEN_SENTENCES = range(4)


def parts_of(pieces: Sequence[int], max_pieces: int, vocabulary: Vocabulary) -> list[list[int]]:
    """The pieces in order, in parts of at most `max_pieces` > 3: each as long as it can be and end with a sentence, or
    else with a word, or else with a character. Linear in their number.

    A part that begins with a word has the pieces that its text alone would have: pieces never go across a blank.
    """
    if len(pieces) <= max_pieces:
        return [list(pieces)]
    kinds = _kinds([vocabulary.piece(piece) for piece in pieces])
    parts, start = [], 0
    while len(pieces) - start > max_pieces:
        places = range(start + max_pieces, start, -1)
        end = next(
            place
            for kind in (BETWEEN_SENTENCES, BETWEEN_WORDS, WITHIN_A_WORD)
            for place in places
            if kinds[place] == kind
        )
        parts.append(list(pieces[start:end]))
        start = end
    return [*parts, list(pieces[start:])]


def _kinds(pieces: Sequence[str]) -> list[int]:
    """What a cut in front of each piece would cut."""
    kinds, word = [], ""
    for piece in pieces:
        starts = piece.startswith(WORD_START)
        if (starts and _SENTENCE_END.search(word)) or _WIDE_SENTENCE_END.search(word):
            kinds.append(BETWEEN_SENTENCES)
        elif starts:
            kinds.append(BETWEEN_WORDS)
        else:
            kinds.append(WITHIN_A_CHARACTER if _LATER_BYTE.fullmatch(piece) else WITHIN_A_WORD)
        word = piece if starts else (word + piece)[-_LONGEST_CLOSING:]
    return kinds
