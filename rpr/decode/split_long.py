"""Splitting a source that is too long for the model at the least harmful places."""

import re
from collections.abc import Sequence

from rpr.data.vocabulary import Vocabulary

WORD_START = "\u2581"
# Also the full stops of Hindi, of verse and of Urdu, and Arabic's question mark.
_SENTENCE_END = re.compile(r"[.!?\u2026\u0964\u0965\u06d4\u061f][\"'\u2019\u201c\u201d\u00bb\u203a)\]]*$")
_WIDE_CLOSING = "\u300d\u300f\uff09\u201d\u2019"
_WIDE_SENTENCE_END = re.compile(rf"[\u3002\uff01\uff1f\uff0e][{_WIDE_CLOSING}]*$")  # not followed by a space
_CONTINUATION_BYTE = re.compile(r"<0x[89AB][0-9A-F]>")  # of a character encoded with byte fallback
_LONGEST_CLOSING = 16  # characters at the end of a word that are checked
WITHIN_A_CHARACTER, WITHIN_A_WORD, BETWEEN_WORDS, BETWEEN_SENTENCES = range(4)


def split_long_source(pieces: Sequence[int], max_pieces: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Consecutive parts of at most `max_pieces` > 3 tokens. Each ends at the last sentence end that fits; if there is
    none, at the last word end; else at the last character boundary. Linear in the number of tokens.

    A part that starts with a word has the same tokens as its text encoded alone, since no token crosses a space.
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
    """The kind of boundary before each piece."""
    kinds, word = [], ""
    for piece in pieces:
        starts = piece.startswith(WORD_START)
        if (starts and _SENTENCE_END.search(word)) or (
            _WIDE_SENTENCE_END.search(word) and piece[0] not in _WIDE_CLOSING
        ):
            kinds.append(BETWEEN_SENTENCES)
        elif starts:
            kinds.append(BETWEEN_WORDS)
        else:
            kinds.append(WITHIN_A_CHARACTER if _CONTINUATION_BYTE.fullmatch(piece) else WITHIN_A_WORD)
        word = piece if starts else (word + piece)[-_LONGEST_CLOSING:]
    return kinds
