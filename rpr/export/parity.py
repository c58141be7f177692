"""Is an export the model? Translations and probabilities of both, compared sentence by sentence."""

# Shape suffixes: B sentences, S source length, T target length, V vocabulary.

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.decode.torch_engine import Engine, Progress, Search, TorchEngine, length_batches
from rpr.model.transformer import Transformer

Rows = Sequence[Sequence[int]]
# What float32 may differ from float64 in the log p of one piece: so many times what our own float32 does on the same
# pieces, for rounding grows with layers, widths and what was learned. Measured on a trained model of 3 layers: 9.6e-6
# by CTranslate2; 1.8e-4 where the norms' epsilon is lost (1e-5 for 1e-6), which changes no translation of 60.
ROUNDINGS, LEAST_TOLERANCE = 5, 1e-5


class ScoringEngine(Engine, Protocol):
    """An engine that also says what it thinks of given translations."""

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """log p of each piece of the targets (without EOS), and of EOS behind them."""


@dataclass(frozen=True)
class Flip:
    """The first piece of a greedy translation in which two engines differ, counted from 0, and by how much log p our
    piece is likelier than the other's, to our model.
    """

    sentence: int
    piece: int
    margin: float


@dataclass(frozen=True)
class Parity:
    """What was compared, and what differed. Largest difference: of the log p of any piece, EOS counted, of our greedy
    translations and of the references.
    """

    sentences: int
    identical: int
    near_ties: tuple[Flip, ...]
    different: tuple[Flip, ...]
    largest_difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return not self.different and self.largest_difference <= self.tolerance

    def __str__(self) -> str:
        words = f"{self.identical} of {self.sentences} greedy translations identical"
        if self.near_ties:
            margin = max(flip.margin for flip in self.near_ties)
            words += f", {len(self.near_ties)} other at a tie (log p of the two pieces within {margin:.1e})"
        if self.different:
            worst = max(self.different, key=lambda flip: flip.margin)
            words += (
                f", {len(self.different)} other beyond rounding (sentence {worst.sentence + 1}, piece "
                f"{worst.piece + 1}: log p differs by {worst.margin:.1e})"
            )
        return f"{words}; log p of a piece differs by at most {self.largest_difference:.1e}"


def parity(
    model: Transformer,
    engine: ScoringEngine,
    sources: Rows,
    references: Rows,
    search: Search,
    *,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Parity:
    """An engine, greedy, against our own model in float64.

    Where the two likeliest pieces are as good as equal, another order of summation may choose the other: a flip of less
    than `tolerance` is counted as a tie, and no fault.

    Args:
        sources, references: pieces with EOS at their ends.
        search: its limits; the beam is 1 here.
        tolerance: of the log p of a piece; None: as ROUNDINGS says.
        progress: called with (done, of all) sentences of our own translations.
    """
    assert len(sources) == len(references)
    exact = in_float64(model)
    greedy = replace(search, beam_size=1, n_best=1, length_penalty=0.0)
    ours = _first(TorchEngine(exact, exact.embedding_VM.device), sources, greedy, progress)
    theirs = _first(engine, sources, greedy, None)
    targets = [*(row[0] for row in ours), *(list(reference[:-1]) for reference in references)]
    twice = [*sources, *sources]
    our_scores = piece_scores(exact, twice, targets, search.max_tokens_per_batch)
    if tolerance is None:
        with _exact_products():
            rounded = piece_scores(model, twice, targets, search.max_tokens_per_batch)
        tolerance = max(LEAST_TOLERANCE, ROUNDINGS * _largest_difference(our_scores, rounded))
    flips = _flips(exact, sources, ours, theirs, search)
    their_scores = [torch.tensor(row, dtype=torch.float64) for row in engine.score(twice, targets)]
    largest = _largest_difference(our_scores, their_scores)
    return Parity(
        sentences=len(sources),
        identical=len(sources) - len(flips),
        near_ties=tuple(flip for flip in flips if flip.margin < tolerance),
        different=tuple(flip for flip in flips if not flip.margin < tolerance),
        largest_difference=largest,
        tolerance=tolerance,
    )


def identical_share(engine: Engine, other: Engine, sources: Rows, search: Search) -> float:
    """The share of sentences, 0 to 1, that two engines translate alike, greedily."""
    greedy = replace(search, beam_size=1, n_best=1, length_penalty=0.0)
    pairs = zip(_first(engine, sources, greedy, None), _first(other, sources, greedy, None), strict=True)
    return sum(one == two for one, two in pairs) / len(sources)


def in_float64(model: Transformer) -> Transformer:
    """A copy that rounds less, by the plain algorithms: the GPU's own kernels know no float64."""
    exact = copy.deepcopy(model).double().eval()
    exact.use_attention("auto")
    return exact


def padded(rows: Rows, device: torch.device) -> Tensor:
    """Pieces with PAD behind the shorter ones: int64 [B, S]."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64).to(device)


def piece_scores(model: Transformer, sources: Rows, targets: Rows, max_tokens: int) -> list[Tensor]:
    """log p of each piece of the targets (without EOS) and of EOS behind them, on the CPU, all fed at once."""
    found: list[Tensor] = [torch.empty(0)] * len(sources)
    device = model.embedding_VM.device
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    with torch.inference_mode():
        for batch in length_batches(lengths, max_tokens):
            inputs_BT = padded([[BOS, *targets[index]] for index in batch], device)
            outputs_BT = padded([[*targets[index], EOS] for index in batch], device)
            logits_BTV = model.logits(model(padded([sources[index] for index in batch], device), inputs_BT))
            log_p_BTV = logits_BTV.log_softmax(dim=-1)
            log_p_BT = log_p_BTV.gather(-1, outputs_BT[..., None])[..., 0].cpu()
            for row, index in enumerate(batch):
                found[index] = log_p_BT[row, : len(targets[index]) + 1]
    return found


def _largest_difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """NaN is infinite: it is no agreement."""
    differences = torch.cat([one - other for one, other in zip(ours, theirs, strict=True)])
    return float(differences.abs().nan_to_num(nan=torch.inf).max())


@contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products as float32 has them; a run's hardware may allow coarser ones."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _first(
    engine: Engine, sources: Rows, search: Search, progress: Progress | None
) -> list[tuple[tuple[int, ...], bool]]:
    """Pieces of each best translation, and whether it is finished."""
    found = engine.search(sources, search, progress=progress)
    return [(hypotheses[0].pieces, hypotheses[0].finished) for hypotheses in found]


def _flips(
    model: Transformer,
    sources: Rows,
    ours: Sequence[tuple[tuple[int, ...], bool]],
    theirs: Sequence[tuple[tuple[int, ...], bool]],
    search: Search,
) -> list[Flip]:
    flips = []
    for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        if one == two:
            continue
        our, their = ((*pieces, *([EOS] if finished else [])) for pieces, finished in (one, two))
        at = next((at for at, pair in enumerate(zip(our, their, strict=False)) if len({*pair}) > 1), None)
        if at is None:  # one goes on where the other stops: no tie explains that
            flips.append(Flip(index, min(len(our), len(their)), float("inf")))
            continue
        prefix = list(our[:at])
        rows = [[*prefix, our[at]], [*prefix, their[at]]]
        scores = piece_scores(model, [sources[index]] * 2, rows, search.max_tokens_per_batch)
        flips.append(Flip(index, at, (scores[0][at] - scores[1][at]).item()))
    return flips
