"""Translating a whole test set, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.torch_engine import Engine, Progress, Search

# Byte fallback can produce these, but a translation is one line.
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def decode_line(vocabulary: Vocabulary, pieces: Iterable[int]) -> str:
    """The text of a translation, as one line."""
    return _NOT_IN_A_LINE.sub(" ", vocabulary.decode(pieces))


def translate_sources(
    engine: Engine,
    sources: Sequence[list[int]],
    vocabulary: Vocabulary,
    search: Search,
    progress: Progress | None = None,
) -> list[str]:
    """The best translation of each source (token IDs with EOS), in order; `progress` is called with (translated, total)
    sentences after each batch.
    """
    for index, source in enumerate(sources):
        assert source[-1:] == [EOS], f"source {index} does not end with EOS"
    hypotheses = engine.search(sources, search, progress=progress)
    return [decode_line(vocabulary, n_best[0].pieces) for n_best in hypotheses]
