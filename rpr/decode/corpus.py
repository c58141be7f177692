"""A whole test set through an engine: its translations in the order they came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.torch_engine import Engine, Progress, Search

# A model that spells unseen characters in bytes can spell these; a translation is one line.
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def as_a_line(vocabulary: Vocabulary, pieces: Iterable[int]) -> str:
    """The text of a translation."""
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
        split: a split of a token cache, or sources as pieces, each with its EOS.
        limit: only the first so many sources.
        progress: called with (translated, of all) sentences after each batch.
    """
    total = len(split) if limit is None else min(limit, len(split))
    found = engine.search([_pieces(split, index) for index in range(total)], search, progress=progress)
    return [as_a_line(vocabulary, hypotheses[0].pieces) for hypotheses in found]


def _pieces(split: TokenSplit | Sequence[Sequence[int]], index: int) -> list[int]:
    row = split.source(index) if isinstance(split, TokenSplit) else split[index]
    pieces = [int(piece) for piece in row]
    assert pieces and pieces[-1] == EOS, f"source {index} has no EOS at its end"
    return pieces
