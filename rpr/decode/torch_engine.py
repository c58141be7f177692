"""Pieces of source sentences to pieces of translations, by whatever engine: the one interface that test sets, the
translator and the checks use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from rpr.config.train import EvaluationConfig
from rpr.data.vocabulary import EOS, PAD
from rpr.model.beam_search import Hypothesis, beam_search
from rpr.model.transformer import Transformer

Progress = Callable[[int, int], None]  # called with (translated, of all) sentences after each batch


@dataclass(frozen=True)
class Search:
    """How translations are looked for; what the words mean stands in conf/evaluation/default.yaml.

    `n_best` of the `beam_size` hypotheses are wanted: a search for fewer stops sooner, with the same ones first.
    EOS is refused before `min_length` pieces.
    `max_tokens_per_batch` bounds rows * longest source * beam_size of a batch; a source above it goes alone.
    """

    beam_size: int
    length_penalty: float
    max_extra_length: int
    max_tokens_per_batch: int
    n_best: int = 1
    min_length: int = 0


def search_of(evaluation: EvaluationConfig, *, greedy: bool = False) -> Search:
    """As a run's configuration says; greedily, with a beam of one, if asked."""
    return Search(
        1 if greedy else evaluation.beam_size,
        evaluation.length_penalty,
        evaluation.max_extra_length,
        evaluation.max_tokens_per_batch,
        min_length=evaluation.min_length,
    )


class Engine(Protocol):
    """A model that translates."""

    def search(
        self,
        sources: Sequence[Sequence[int]],
        search: Search,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """The up to `n_best` best translations of each source, best first, in the order of the sources.

        Args:
            sources: pieces, each with its EOS.
            prefixes: the pieces that each translation begins with, without BOS; empty ones force nothing.
        """


class TorchEngine:
    """Our own beam search; the model's training mode is left as it was."""

    def __init__(
        self,
        model: Transformer,
        device: torch.device | str,
        *,
        bfloat16: bool = False,
        matmul_precision: str | None = None,
    ) -> None:
        """`model` is on `device` already; `bfloat16` is autocast; `matmul_precision` is how float32 products are
        computed (highest | high | medium), None as the process has it. Below `highest` a translation can depend on
        what else is in its batch.
        """
        self.model = model
        self.device = torch.device(device)
        self.bfloat16 = bfloat16
        self.matmul_precision = matmul_precision

    def search(
        self,
        sources: Sequence[Sequence[int]],
        search: Search,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """As Engine.search: sentences of like length together, the longest first."""
        found: list[list[Hypothesis]] = [[] for _ in sources]
        translated = 0
        with (
            _evaluating(self.model),
            _products(self.matmul_precision),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16),
        ):
            for batch in length_batches(
                [len(source) for source in sources], search.max_tokens_per_batch // search.beam_size
            ):
                longest = max(len(sources[index]) for index in batch)
                rows = [[*sources[index], *[PAD] * (longest - len(sources[index]))] for index in batch]
                hypotheses = beam_search(
                    self.model,
                    torch.tensor(rows, dtype=torch.int64).to(self.device),
                    beam_size=search.beam_size,
                    length_penalty=search.length_penalty,
                    max_extra_length=search.max_extra_length,
                    eos=EOS,
                    n_best=search.n_best,
                    min_length=search.min_length,
                    prefixes=None if prefixes is None else [prefixes[index] for index in batch],
                )
                for index, best in zip(batch, hypotheses, strict=True):
                    found[index] = best
                translated += len(batch)
                if progress is not None:
                    progress(translated, len(sources))
        return found


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


@contextmanager
def _products(precision: str | None) -> Iterator[None]:
    """Float32 products computed so inside; after it as before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
