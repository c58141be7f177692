"""Translating a whole test set, in order."""

from __future__ import annotations

from collections.abc import Sequence

from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.torch_engine import Engine, Progress, Search


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
    return [vocabulary.decode(n_best[0].pieces) for n_best in hypotheses]
