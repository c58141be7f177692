"""A whole test set through beam search: sentences of like length together, the translations in the order they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import EOS, PAD, Vocabulary
from rpr.model.beam_search import beam_search
from rpr.model.transformer import Transformer


def translate_split(
    model: Transformer,
    split: TokenSplit | Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    *,
    beam_size: int,
    length_penalty: float,
    max_extra_length: int,
    max_tokens_per_batch: int,
    device: torch.device | str,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """The best translation of every source, in the order of the split; the model's training mode is left as it was.

    Args:
        model: on `device` already.
        split: a split of a token cache, or sources as pieces, each with its EOS.
        max_tokens_per_batch: bound on rows * longest source * beam_size; a source above it goes alone.
        limit: only the first so many sources.
        progress: called with (translated, of all) sentences after each batch.
    """
    total = len(split) if limit is None else min(limit, len(split))
    sources = [_pieces(split, index) for index in range(total)]
    translations = [""] * total
    translated = 0
    with _evaluating(model):
        for batch in length_batches([len(source) for source in sources], max_tokens_per_batch // beam_size):
            longest = max(len(sources[index]) for index in batch)
            rows = [sources[index] + [PAD] * (longest - len(sources[index])) for index in batch]
            found = beam_search(
                model,
                torch.tensor(rows, dtype=torch.int64).to(device),
                beam_size=beam_size,
                length_penalty=length_penalty,
                max_extra_length=max_extra_length,
                eos=EOS,
            )
            for index, hypotheses in zip(batch, found, strict=True):
                translations[index] = vocabulary.decode(hypotheses[0].pieces)
            translated += len(batch)
            if progress is not None:
                progress(translated, total)
    return translations


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Places of sentences in batches of rows * longest <= max_tokens (a longer one: alone), the longest first, so that
    memory runs out at once or never.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // lengths[order[start]])
        yield order[start : start + rows]
        start += rows


def _pieces(split: TokenSplit | Sequence[Sequence[int]], index: int) -> list[int]:
    row = split.source(index) if isinstance(split, TokenSplit) else split[index]
    pieces = [int(piece) for piece in row]
    assert pieces and pieces[-1] == EOS, f"source {index} has no EOS at its end"
    return pieces


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; after it each module in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
