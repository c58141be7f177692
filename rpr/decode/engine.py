"""Beam search and teacher forcing on token IDs, by which test sets, translations and checks use a model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rpr.config.train import EvaluationConfig, HardwareConfig
from rpr.data.vocabulary import BOS, EOS, PAD, Vocabulary
from rpr.errors import not_finite
from rpr.model.beam_search import NBest, Search, beam_search
from rpr.model.cache import float32_matmuls
from rpr.model.transformer import Transformer

Progress = Callable[[int, int], None]  # called with (translated, total) sentences after each batch
Rows = Sequence[Sequence[int]]
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]  # of sources and targets, each with EOS


SEARCH_SETTINGS = tuple(field.name for field in fields(Search) if field.name != "n_best")  # of a run and an export


def search_of(evaluation: EvaluationConfig, *, greedy: bool = False) -> Search:
    """The search of a run's configuration; `greedy` sets the beam size to 1."""
    search = Search(**{name: getattr(evaluation, name) for name in SEARCH_SETTINGS})
    return replace(search, beam_size=1) if greedy else search


class Engine:
    """A model that searches and scores, on its device; its training mode is restored."""

    def __init__(self, model: Transformer, *, bfloat16: bool = False, matmul_precision: str | None = None) -> None:
        """`bfloat16` enables autocast; `matmul_precision` is the precision of float32 matmuls (highest | high |
        medium), None for the process's own. Below `highest` a translation can depend on the rest of its batch.
        """
        self.model, self.bfloat16, self.matmul_precision = model, bfloat16, matmul_precision

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode and the engine's precision; then each module's own mode again."""
        modes = [(module, module.training) for module in self.model.modules()]
        device = self.model.embedding_VM.device.type
        self.model.eval()
        try:
            with float32_matmuls(self.matmul_precision), torch.autocast(device, torch.bfloat16, enabled=self.bfloat16):
                yield
        finally:
            for module, training in modes:
                module.training = training

    def search(self, sources: Rows, search: Search, *, progress: Progress | None = None) -> NBest:
        """Up to `n_best` translations of each source (token IDs with EOS), best first, in the order of the sources.
        Sentences of similar length share a batch, the longest first. Raises RunError if the model gives no finite
        probability.
        """
        results: NBest = [[] for _ in sources]
        device, max_tokens = self.model.embedding_VM.device, search.max_tokens_per_batch // search.beam_size
        with self.evaluating():
            for batch in length_batches([*map(len, sources)], max_tokens, progress):
                hypotheses = beam_search(self.model, pad_rows([sources[index] for index in batch], device), search, EOS)
                for index, best in zip(batch, hypotheses, strict=True):
                    results[index] = best
        if not all(results):
            raise not_finite(", so there is no translation")
        return results

    def score(self, sources: Rows, targets: Rows, max_tokens: int, progress: Progress | None = None) -> list[Tensor]:
        """log p of each token of the targets (without EOS) and of the final EOS, with teacher forcing; on the CPU."""

        def log_p(source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
            return self.model.logits(self.model(source_BS, inputs_BT)).log_softmax(dim=-1)

        with self.evaluating():
            return target_scores(log_p, sources, targets, max_tokens, self.model.embedding_VM.device, progress)


def target_scores(
    log_p: Callable[[Tensor, Tensor], Tensor],
    sources: Rows,
    targets: Rows,
    max_tokens: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Tensor]:
    """As `Engine.score`, of any program: `log_p` is [B, T, V] of sources [B, S] and decoder inputs [B, T]."""
    scores: list[Tensor] = [torch.empty(0)] * len(sources)
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    with torch.inference_mode():
        for batch in length_batches(lengths, max_tokens, progress):
            source_BS, inputs_BT = pad_pairs([(sources[index], [*targets[index], EOS]) for index in batch], device)
            outputs_BT = pad_rows([[*targets[index], EOS] for index in batch], device)
            log_p_BT = log_p(source_BS, inputs_BT).gather(-1, outputs_BT[..., None])[..., 0].cpu()
            for row, index in enumerate(batch):
                scores[index] = log_p_BT[row, : len(targets[index]) + 1]
    return scores


class Translated(NamedTuple):
    """The best translation of each source, and which of them ended within the length limit, with EOS."""

    texts: list[str]
    finished: list[bool]


def translate_sources(
    engine: Engine, sources: Rows, vocabulary: Vocabulary, search: Search, progress: Progress | None = None
) -> Translated:
    """The arguments are as for Engine.search; a source without tokens has an empty translation."""
    n_best_lists = iter(engine.search([source for source in sources if source], search, progress=progress))
    best = [next(n_best_lists)[0] if source else None for source in sources]
    texts = ["" if hypothesis is None else vocabulary.decode(hypothesis.pieces) for hypothesis in best]
    return Translated(texts, [hypothesis is None or hypothesis.finished for hypothesis in best])


def engine_of(model: Transformer, hardware: HardwareConfig, matmul_precision: str) -> Engine:
    """The engine of this model in the precision of `hardware`."""
    model = model.double() if hardware.precision == "64" else model
    return Engine(model, bfloat16=hardware.precision == "bf16", matmul_precision=matmul_precision)


def length_batches(lengths: Sequence[int], max_tokens: int, progress: Progress | None = None) -> Iterator[list[int]]:
    """Sentence indices in batches of rows * longest <= max_tokens (a longer sentence: alone), the longest first, so
    that memory runs out in the first batch or never. `progress` is called once a batch has been used.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // max(1, lengths[order[start]]))
        batch = order[start : start + rows]
        yield batch
        start += len(batch)
        if progress is not None:
            progress(start, len(order))


def pad_rows(rows: Rows, device: torch.device | str = "cpu") -> Tensor:
    """Token IDs padded on the right: int64 [B, S]."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64).to(device)


def pad_pairs(pairs: Pairs, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Sources [B, S] and decoder inputs [B, T]: BOS, then the target without EOS."""
    inputs = [[BOS, *target[:-1]] for _, target in pairs]
    return pad_rows([source for source, _ in pairs], device), pad_rows(inputs, device)


def pair_batches(pairs: Pairs, max_tokens: int, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of `length_batches`, by the longer side of each pair, as from `pad_pairs`."""
    for batch in length_batches([max(len(source), len(target)) for source, target in pairs], max_tokens):
        yield pad_pairs([pairs[index] for index in batch], device)
