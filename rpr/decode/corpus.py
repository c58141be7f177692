"""Translating a whole test set, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.torch_engine import Engine, Progress, Search

# Byte fallback can produce these, but a translation is one line.
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def decode_line(vocabulary: Vocabulary, pieces: Iterable[int]) -> str:
    """The text of a translation, as one line."""
    return _NOT_IN_A_LINE.sub(" ", vocabulary.decode(pieces))


def translate_split(
    engine: Engine,
    split: TokenSplit | Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    search: Search,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """The best translation of every source, in the order of the split.

    Args:
        split: a split of a token cache, or sources as token IDs, each with EOS.
        limit: translate only the first `limit` sources.
        progress: called with (translated, total) sentences after each batch.
    """
    total = len(split) if limit is None else min(limit, len(split))
    hypotheses = engine.search([_pieces(split, index) for index in range(total)], search, progress=progress)
    return [decode_line(vocabulary, n_best[0].pieces) for n_best in hypotheses]


def _pieces(split: TokenSplit | Sequence[Sequence[int]], index: int) -> list[int]:
    row = split.source(index) if isinstance(split, TokenSplit) else split[index]
    pieces = [int(piece) for piece in row]
    assert pieces and pieces[-1] == EOS, f"source {index} does not end with EOS"
    return pieces
