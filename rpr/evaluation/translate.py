"""A whole test set through an engine: its translations in the order they came."""

from __future__ import annotations

from collections.abc import Sequence

from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.evaluation.decoding import Engine, Progress, Search


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
    return [vocabulary.decode(hypotheses[0].pieces) for hypotheses in found]


def _pieces(split: TokenSplit | Sequence[Sequence[int]], index: int) -> list[int]:
    row = split.source(index) if isinstance(split, TokenSplit) else split[index]
    pieces = [int(piece) for piece in row]
    assert pieces and pieces[-1] == EOS, f"source {index} has no EOS at its end"
    return pieces
