"""Comparing an export with its model: translations and log-probabilities, sentence by sentence, or the
log-probabilities of windows of documents.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rpr.data.vocabulary import BOS, EOS
from rpr.decode.engine import Engine, Progress, Rows
from rpr.export.ctranslate2 import CTranslate2Scorer
from rpr.model.beam_search import Search
from rpr.model.cache import float32_matmuls
from rpr.model.rotation import float32_angles
from rpr.model.transformer import Transformer

# Tolerance for the log p of one token: ROUNDINGS times the rounding error of our own float32, angles of RoPE included,
# against float64 on the same tokens. Measured on a trained model of 3 layers: 9.6e-6 for CTranslate2; 1.8e-4 with a
# wrong layer norm epsilon (1e-5 for 1e-6), which changes none of 60 translations.
ROUNDINGS, LEAST_TOLERANCE = 5, 1e-5
# Tolerance for hidden states and log p in float64. Sums of a thousand products of size 10 are exact to 1e-12; the same
# sum is not always the same to the last bit (2.1e-15 with a scheme that adds to the scores).
EXACT = 1e-8


class Scorer(Protocol):
    """Scores given targets."""

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> Sequence[Sequence[float] | Tensor]:
        """log p of each token of the targets (given without EOS), and of the final EOS, in batches of at most
        `max_tokens`; the sources have EOS, or are empty.
        """


@dataclass(frozen=True)
class Parity:
    """The result of a comparison. `largest_difference` is that of the log p of any token, EOS included, in our greedy
    translations and the references, and of a token generated after half of them; `identical` counts greedy
    translations, None if the export has none; `margins` are of the others log p of our first other token minus that of
    theirs, under our model.
    """

    sentences: int
    identical: int | None
    margins: tuple[float, ...]
    largest_difference: float
    tolerance: float

    @property
    def different(self) -> int:
        """The translations that no tie within rounding explains."""
        return sum(not margin < self.tolerance for margin in self.margins)

    @property
    def passed(self) -> bool:
        return not self.different and self.largest_difference <= self.tolerance < math.inf

    def __str__(self) -> str:
        """As commands, checks and cards say it."""
        log_p = f"log p of a token differs by at most {self.largest_difference:.1e} (tolerance: {self.tolerance:.0e})"
        if self.identical is None:
            return log_p
        return (
            f"{self.identical} greedy translations are identical to the model's, {len(self.margins) - self.different} "
            f"differ at a tie within rounding, {self.different} by more; {log_p}"
        )


def parity(
    model: Transformer,
    engine: Scorer,
    sources: Rows,
    references: Rows,
    search: Search,
    *,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compare an engine's greedy search, if it has one and there are sources, and its scores with our own model in
    float64. Sources (empty for windows of documents) and references are token IDs with EOS; `tolerance` is of the log p
    of a token, by default derived from ROUNDINGS. Translations whose first other tokens differ by less are a tie, which
    another order of summation may swap.
    """
    assert len(sources) == len(references)
    exact, max_tokens = Engine(in_float64(model)), search.max_tokens_per_batch
    targets, both = [list(reference[:-1]) for reference in references], sources
    # 1. Our greedy translations, which are scored, too.
    ours: Rows = []
    if all(sources):
        ours = _greedy(exact, sources, search, progress)
        targets, both = [*map(_pieces, ours), *targets], [*sources, *sources]
    our_scores = exact.score(both, targets, max_tokens, progress if not ours else None)
    # 2. How far our own float32 is from them.
    if tolerance is None:
        with float32_matmuls("highest"), float32_angles():  # a run's hardware may allow less than these matmuls
            # An engine may have made the model float64, in place.
            rounded = Engine(copy.deepcopy(model).float()).score(both, targets, max_tokens)
        tolerance = max(LEAST_TOLERANCE, ROUNDINGS * _largest_difference(our_scores, rounded))
    # 3. The other engine's translations and scores.
    margins: list[float] = []
    identical, continues = None, isinstance(engine, CTranslate2Scorer) and engine.generator
    if ours and not continues and isinstance(engine, (Engine, CTranslate2Scorer)):
        margins = _margins(exact, sources, ours, _greedy(engine, sources, search), max_tokens)
        identical = len(sources) - len(margins)
    difference = _largest_difference(our_scores, engine.score(both, targets, max_tokens))
    # 4. The token with which a generator continues the first half of a target.
    if isinstance(engine, CTranslate2Scorer) and engine.generator:
        starts = [list(target[: -(-len(target) // 2)]) for target in targets]
        added = engine.continued([[*source, BOS, *start] for source, start in zip(both, starts, strict=True)])
        ends = [[*start, *([piece] * (piece != EOS))] for start, (piece, _) in zip(starts, added, strict=True)]
        scored = zip(starts, exact.score(both, ends, max_tokens), strict=True)
        next_scores = [of_row[len(start) :][:1] for start, of_row in scored]
        difference = max(difference, _largest_difference(next_scores, [[log_p] for _, log_p in added]))
    return Parity(len(sources), identical, tuple(margins), difference, tolerance)


def in_float64(model: Transformer) -> Transformer:
    """A float64 copy with the default attention, so that a check does not depend on the configured kernel."""
    exact = copy.deepcopy(model).double().eval()
    exact.use_attention("auto")
    return exact


def largest_of(differences: Tensor) -> float:
    """The largest absolute value, 0 of nothing; NaN counts as infinite."""
    return float(differences.abs().nan_to_num(nan=torch.inf).max()) if differences.numel() else 0.0


def _largest_difference(ours: Sequence[Tensor], others: Sequence[Sequence[float] | Tensor]) -> float:
    pairs = zip(ours, others, strict=True)
    return largest_of(torch.cat([our - torch.as_tensor(their, dtype=torch.float64) for our, their in pairs]))


def _greedy(
    engine: Engine | CTranslate2Scorer, sources: Rows, search: Search, progress: Progress | None = None
) -> Rows:
    """Token IDs, with EOS if they are finished."""
    if isinstance(engine, CTranslate2Scorer):
        return engine.greedy(sources, search)
    greedy = replace(search, beam_size=1, n_best=1, length_penalty=0.0)
    n_best_lists = engine.search(sources, greedy, progress=progress)
    return [[*hypotheses[0].pieces, *([EOS] * hypotheses[0].finished)] for hypotheses in n_best_lists]


def _pieces(row: Sequence[int]) -> list[int]:
    return [piece for piece in row if piece != EOS]


def _margins(exact: Engine, sources: Rows, ours: Rows, others: Rows, max_tokens: int) -> list[float]:
    """Of the translations that differ; infinite if one only goes on where the other stops."""
    margins = []
    for source, our, their in zip(sources, ours, others, strict=True):
        if _pieces(our) == _pieces(their):
            continue
        at = next((at for at, tokens in enumerate(zip(our, their, strict=False)) if len({*tokens}) > 1), None)
        margin = math.inf
        if at is not None:
            scores = exact.score([source] * 2, [our[: at + 1], their[: at + 1]], max_tokens)
            margin = (scores[0][at] - scores[1][at]).item()
        margins.append(margin)
    return margins
