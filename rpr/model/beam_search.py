"""Beam search over a batch of sources, as in tensor2tensor of 2018: the n best translations of each, scored by
log p / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14 without coverage).

Each step selects, for each sentence, the best 2N extensions of its N alive hypotheses. At most N of them end, so N
remain alive.
"""

# Shape suffixes: B sentences still searched, S source length, T pieces so far, N hypotheses of one sentence (the beam),
# C = 2N candidates, P sentences of a part, V vocabulary, K pieces of one hypothesis.

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.cache import DecoderState
from rpr.model.transformer import Transformer

NEVER = -math.inf
ROWS = 512  # hypotheses whose vocabulary scores are held at once, which bounds their memory


@dataclass(frozen=True)
class Hypothesis:
    """One translation. `pieces` exclude EOS, which the length in `score` includes; not `finished`: the best alive one
    when the length limit was reached before any EOS.
    """

    pieces: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool


NBest = list[list[Hypothesis]]  # of each sentence, best first


@dataclass(frozen=True)
class Search:
    """The settings of beam search, documented in conf/evaluation/default.yaml."""

    beam_size: int
    length_penalty: float  # alpha >= 0
    max_extra_length: int
    max_tokens_per_batch: (
        int  # bounds rows * longest source * beam_size of a caller's batch; a longer source is its own
    )
    n_best: int = 1  # hypotheses returned; fewer stop earlier with the same best ones
    min_length: int = 0  # pieces before EOS; the maximum length is raised to allow it


def beam_search(model: Transformer, source_BS: Tensor, search: Search, eos: int = 3) -> NBest:
    """The up to `n_best` best translations of each source (pieces with EOS, padded), by a model in evaluation mode.

    A sentence is done when the worst of its `n_best` finished hypotheses is at least as good as the best alive one
    can still become (its log p under the penalty of the maximum length), or at the maximum length: the length of the
    source plus `max_extra_length`, EOS included in both. It then leaves the batch; results do not depend on the other
    sentences. No hypothesis is dropped that could still rank before the `n_best`. Ties: the better parent first, then
    the lower piece id (ties of one parent around its 2N-th candidate: in the order of torch.topk). PAD and BOS are
    never generated; probabilities are not renormalised. `beam_size` 1 is greedy search: the most probable piece at each
    step, up to EOS.
    """
    assert not model.training, "beam search without dropout: call model.eval() first"
    if not len(source_BS):
        return []
    with torch.inference_mode():
        lengths_B = (source_BS != model.config.pad).sum(dim=1)
        limit_B = (lengths_B + search.max_extra_length).clamp(min=search.min_length + 1)
        of_beam = _greedy if search.beam_size == 1 else _search
        return of_beam(model, model.start_decoding(source_BS), limit_B, search, eos)


def penalty(length: Tensor | int, length_penalty: float) -> Tensor:
    """((5 + length) / 6)^alpha in float64; `length` in pieces, including EOS."""
    return ((5 + torch.as_tensor(length, dtype=torch.float64)) / 6) ** length_penalty


def _search(model: Transformer, state: DecoderState, limit_B: Tensor, search: Search, eos: int) -> NBest:
    """N > 1. Scores and sums of log p are float64, since the stopping rule compares quotients of them."""
    device, num_sentences, beam_size = limit_B.device, len(limit_B), search.beam_size
    results: NBest = [[] for _ in range(num_sentences)]
    sentence_B = torch.arange(num_sentences, device=device)
    best_possible_B = penalty(limit_B, search.length_penalty)
    alive_BNT = torch.full((num_sentences, 1, 1), model.config.bos, device=device)  # BOS, then the pieces
    alive_BN = torch.zeros(num_sentences, 1, dtype=torch.float64, device=device)
    done_BNT = torch.full((num_sentences, beam_size, 1), model.config.bos, device=device)
    done_scores_BN = torch.full((num_sentences, beam_size), NEVER, dtype=torch.float64, device=device)
    done_BN = done_scores_BN.clone()
    length = 0
    while True:
        # 1. The best candidates.
        length += 1
        hidden_BNM = model.next_hidden(alive_BNT[:, :, -1].reshape(-1, 1), state).view(*alive_BN.shape, -1)
        never = _never(model, eos, length, search.min_length)
        size = max(1, ROWS // alive_BN.shape[1])  # sentences
        of_parts = (
            best_extensions(_log_probabilities(model, hidden_PNM, never), alive_PN, 2 * beam_size)
            for hidden_PNM, alive_PN in zip(torch.split(hidden_BNM, size), torch.split(alive_BN, size), strict=True)
        )
        log_p_BC, parents_BC, pieces_BC = map(torch.cat, zip(*of_parts, strict=True))
        before_BCT = torch.take_along_dim(alive_BNT, parents_BC[..., None], dim=1)
        candidates_BCT = torch.cat([before_BCT, pieces_BC[..., None]], dim=-1)
        ends_BC = pieces_BC == eos

        # 2. Finished hypotheses: the new ones compete with those kept so far; older ones win ties.
        scores_BC = (log_p_BC / penalty(length, search.length_penalty)).masked_fill(~ends_BC, NEVER)
        done_scores_BN, order_BN = _best(torch.cat([done_scores_BN, scores_BC], dim=1), beam_size)
        done_BN = torch.cat([done_BN, log_p_BC], dim=1).gather(1, order_BN)
        done_BNT = torch.cat([F.pad(done_BNT, (0, 1), value=model.config.pad), candidates_BCT], dim=1)
        done_BNT = torch.take_along_dim(done_BNT, order_BN[..., None], dim=1)

        # 3. Alive hypotheses: the first N that do not end (candidates are sorted).
        order_BN = ends_BC.to(torch.int8).argsort(dim=1, stable=True)[:, :beam_size]
        firsts_B1 = alive_BN.shape[1] * torch.arange(len(alive_BN), device=device)[:, None]
        rows_BN = parents_BC.gather(1, order_BN) + firsts_B1
        alive_BN = log_p_BC.gather(1, order_BN)
        alive_BNT = torch.take_along_dim(candidates_BCT, order_BN[..., None], dim=1)

        # 4. Sentences that are done leave.
        leaves_B = (done_scores_BN[:, search.n_best - 1] >= alive_BN[:, 0] / best_possible_B) | (limit_B <= length)
        leaving = leaves_B.nonzero()[:, 0]  # the only synchronisation per step
        if not len(leaving):
            state.select(rows_BN.flatten())
            continue
        stays = _filling_gaps(leaves_B, leaving)
        finished_B = _hypotheses(done_BNT[leaving], done_scores_BN[leaving], done_BN[leaving], eos, finished=True)
        alive_scores_BN = alive_BN[leaving, :1] / penalty(length, search.length_penalty)
        unfinished = _hypotheses(alive_BNT[leaving, :1], alive_scores_BN, alive_BN[leaving, :1], eos, finished=False)
        for sentence, finished, alive in zip(sentence_B[leaving].tolist(), finished_B, unfinished, strict=True):
            results[sentence] = finished[: search.n_best] or alive
        if not len(stays):
            return results
        state.select(rows_BN[stays].flatten(), stays)
        sentence_B, limit_B, best_possible_B = sentence_B[stays], limit_B[stays], best_possible_B[stays]
        alive_BN, alive_BNT = alive_BN[stays], alive_BNT[stays]
        done_BN, done_scores_BN, done_BNT = done_BN[stays], done_scores_BN[stays], done_BNT[stays]


def _greedy(model: Transformer, state: DecoderState, limit_B: Tensor, search: Search, eos: int) -> NBest:
    """N = 1: no candidates, and no reordering except when a sentence leaves."""
    first_B = torch.full_like(limit_B, model.config.bos)
    extended = extensions(model, state, first_B, limit_B, eos, most_probable, search.min_length)
    pieces: list[list[int]] = [[] for _ in limit_B]
    log_p_B = torch.zeros(len(limit_B), dtype=torch.float64)
    for step in list(extended):  # all steps first: reading one waits for the device
        for sentence, piece in zip(step.sentence_B.tolist(), step.piece_B.tolist(), strict=True):
            pieces[sentence].append(piece)
        log_p_B[step.sentence_B.cpu()] = step.log_p_B.cpu()
    scores_B = log_p_B / penalty(torch.tensor([*map(len, pieces)]), search.length_penalty)
    return [
        [Hypothesis(tuple(row[:-1] if row[-1] == eos else row), score, log_p, row[-1] == eos)] if score > NEVER else []
        for row, score, log_p in zip(pieces, scores_B.tolist(), log_p_B.tolist(), strict=True)
    ]


@dataclass
class Extension:
    """The newest piece of each sentence that is still extended, by its index."""

    sentence_B: Tensor
    piece_B: Tensor
    log_p_B: Tensor  # of all its pieces
    leaves_B: Tensor  # whether it is the last one; may be set before the next step


def most_probable(log_p_BV: Tensor, sentence_B: Tensor) -> Tensor:
    """The most probable piece; the lowest piece id on ties."""
    return log_p_BV.max(dim=-1).indices


def extensions(
    model: Transformer, state: DecoderState, piece_B: Tensor, limit_B: Tensor, eos: int,
    choose: Callable[[Tensor, Tensor], Tensor], min_length: int = 0,
) -> Iterator[Extension]:  # fmt: skip
    """Extend one hypothesis of each sentence of a state by a piece at a time, from the first ones fed, until EOS or its
    limit of pieces. A sentence then leaves the batch, also where the caller sets `leaves_B`. `choose` gives the pieces
    that follow, from their log p [B, V] and the sentences' indices [B]. For callers in inference mode.
    """
    sentence_B = torch.arange(len(limit_B), device=limit_B.device)
    log_p_B = torch.zeros(len(limit_B), dtype=torch.float64, device=limit_B.device)
    for length in itertools.count(1):
        # 1. The pieces that follow, chosen in parts, which bounds the memory of log p.
        hidden_BM = model.next_hidden(piece_B[:, None], state)
        never = _never(model, eos, length, min_length)
        chosen = []
        for hidden_PM, sentence_P in zip(torch.split(hidden_BM, ROWS), torch.split(sentence_B, ROWS), strict=True):
            log_p_PV = _log_probabilities(model, hidden_PM, never)
            piece_P = choose(log_p_PV, sentence_P)
            chosen.append((piece_P, log_p_PV.gather(1, piece_P[:, None])[:, 0]))
        piece_B, more_B = map(torch.cat, zip(*chosen, strict=True))
        log_p_B = log_p_B + more_B
        # 2. The caller sees the step, and may end sentences.
        step = Extension(sentence_B, piece_B, log_p_B, (piece_B == eos) | (limit_B <= length))
        yield step
        # 3. Those that are done leave.
        leaving = step.leaves_B.nonzero()[:, 0]
        if len(leaving) == len(piece_B):
            return
        if len(leaving):
            stays = _filling_gaps(step.leaves_B, leaving)
            state.select(stays, stays)
            sentence_B, limit_B, piece_B = sentence_B[stays], limit_B[stays], piece_B[stays]
            log_p_B = log_p_B[stays]


def _never(model: Transformer, eos: int, length: int, min_length: int) -> list[int]:
    return [model.config.pad, model.config.bos, *([eos] if length <= min_length else [])]


def _log_probabilities(model: Transformer, hidden: Tensor, never: list[int]) -> Tensor:
    logits = model.logits(hidden)
    log_p = logits.log_softmax(dim=-1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    for piece in never:  # indexing with a list would copy it to the device and synchronise
        log_p[..., piece] = NEVER
    return log_p


def _filling_gaps(leaves_B: Tensor, leaving: Tensor) -> Tensor:
    staying = len(leaves_B) - len(leaving)
    order = torch.arange(staying, device=leaves_B.device)
    order[leaving[leaving < staying]] = (~leaves_B[staying:]).nonzero()[:, 0] + staying
    return order


def best_extensions(log_p_BNV: Tensor, alive_BN: Tensor, num_candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best one-piece extensions, sorted: total log p (float64; minus infinity where fewer than C exist), parent and
    piece, [B, C] each.
    """
    best_BNK, pieces_BNK = log_p_BNV.topk(min(num_candidates, log_p_BNV.shape[2]), dim=2)
    pieces_BNK, order_BNK = pieces_BNK.sort(dim=2)  # of equal sums the lower piece is first
    sums_BNK = best_BNK.gather(2, order_BNK) + alive_BN[..., None]
    log_p_BC, places_BC = _best(sums_BNK.flatten(1), num_candidates)
    missing = num_candidates - log_p_BC.shape[1]
    log_p_BC, places_BC = F.pad(log_p_BC, (0, missing), value=NEVER), F.pad(places_BC, (0, missing))
    return log_p_BC, places_BC // sums_BNK.shape[2], pieces_BNK.flatten(1).gather(1, places_BC)


def _best(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    values, order = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :number], order[:, :number]


def _hypotheses(pieces_BNT: Tensor, scores_BN: Tensor, log_p_BN: Tensor, eos: int, *, finished: bool) -> NBest:
    """Of rows (BOS first, PAD after EOS), but for those with a score of minus infinity."""
    return [
        [
            Hypothesis(tuple(row[1 : row.index(eos) if finished else None]), score, log_p, finished)
            for row, score, log_p in zip(*of_sentence, strict=True)
            if score > NEVER
        ]
        for of_sentence in zip(pieces_BNT.tolist(), scores_BN.tolist(), log_p_BN.tolist(), strict=True)
    ]
