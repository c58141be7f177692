"""Beam search over a batch of sources, as tensor2tensor's of 2018: the n best translations of each, scored by
log p / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14 without coverage).

Each step keeps, of a sentence, the best 2N extensions of its N alive hypotheses. At most N of these end, so N go on.
"""

# Shape suffixes: B sentences still searched, S source length, T pieces so far, N hypotheses of one sentence (the beam),
# C = 2N candidates, V vocabulary, W pieces considered of one row.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.transformer import DecoderState, Transformer

NEVER = -math.inf
FREE = -1  # where no piece is forced


@dataclass(frozen=True)
class Hypothesis:
    """One translation. `pieces` are without EOS; the length in `score` counts it, if there is one.

    `finished` is False where the limit came before any EOS: then this is the best that was alive.
    """

    pieces: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool


def beam_search(
    model: Transformer,
    source_BS: Tensor,
    *,
    beam_size: int,
    length_penalty: float,
    max_extra_length: int,
    eos: int = 3,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The up to `beam_size` best translations of each source, best first.

    A sentence is done when the worst of its `beam_size` finished hypotheses is at least as good as the best alive one
    can still become (its log p under the penalty of the greatest length), or at the greatest length: as many pieces,
    EOS counted, as the source has with its EOS, plus `max_extra_length`. It leaves the batch then; nothing of one
    sentence depends on the others. Equal scores: the better parent first, then the lower piece (pieces of one parent
    that tie round its 2N-th place: as torch.topk has them). PAD and BOS are not generated; probabilities are not
    renormalised for that. With `beam_size` 1 it is greedy: the likeliest piece each
    time, up to EOS.

    Args:
        model: in evaluation mode.
        source_BS: int64 pieces with EOS, padded.
        length_penalty: alpha >= 0.
        prefixes: for each source the pieces its translations begin with; their log p counts as any other's. A prefix
            as long as the greatest length leaves one piece after it.
    """
    assert not model.training, "beam search without dropout: call model.eval() first"
    assert beam_size >= 1 and length_penalty >= 0 and max_extra_length >= 0
    if not len(source_BS):
        return []
    with torch.inference_mode():
        limit_B = ((source_BS != model.shape.pad).sum(dim=1) + max_extra_length).clamp(min=1)
        forced_BT = _forced(prefixes, source_BS.device) if prefixes is not None else limit_B.new_empty(len(limit_B), 0)
        limit_B = torch.maximum(limit_B, (forced_BT != FREE).sum(dim=1) + 1)
        state = model.start_decoding(source_BS)
        if beam_size == 1:
            return _greedy(model, state, limit_B, length_penalty, eos, forced_BT)
        return _search(model, state, limit_B, beam_size, length_penalty, eos, forced_BT)


def penalty(length: Tensor | int, length_penalty: float) -> Tensor:
    """((5 + length) / 6)^alpha in float64; `length` in pieces, EOS counted."""
    return ((5 + torch.as_tensor(length, dtype=torch.float64)) / 6) ** length_penalty


def _search(
    model: Transformer,
    state: DecoderState,
    limit_B: Tensor,
    beam_size: int,
    length_penalty: float,
    eos: int,
    forced_BT: Tensor,
) -> list[list[Hypothesis]]:
    """N > 1. Scores and sums of log p are float64: the stopping rule compares quotients of them."""
    device, num_sentences = limit_B.device, len(limit_B)
    results: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
    sentence_B = torch.arange(num_sentences, device=device)
    best_possible_B = penalty(limit_B, length_penalty)
    alive_BNT = torch.full((num_sentences, 1, 1), model.shape.bos, device=device)  # BOS, then the pieces
    alive_BN = torch.zeros(num_sentences, 1, dtype=torch.float64, device=device)
    done_BNT = torch.full((num_sentences, beam_size, 1), model.shape.bos, device=device)
    done_scores_BN = torch.full((num_sentences, beam_size), NEVER, dtype=torch.float64, device=device)
    done_BN = done_scores_BN.clone()
    length = 0
    while True:
        length += 1
        logits = model.next_logits(alive_BNT[:, :, -1].reshape(-1, 1), state)
        log_p_BNV = _log_probabilities(logits, model).view(*alive_BN.shape, -1)
        if length <= forced_BT.shape[1]:
            log_p_BNV = _only(forced_BT[:, length - 1, None].expand_as(alive_BN), log_p_BNV)
        log_p_BC, parents_BC, pieces_BC = _candidates(log_p_BNV, alive_BN, 2 * beam_size, model)
        candidates_BCT = torch.cat(
            [torch.take_along_dim(alive_BNT, parents_BC[..., None], dim=1), pieces_BC[..., None]], dim=-1
        )
        ends_BC = pieces_BC == eos

        # The finished: the new ones against those kept so far, an older one first where equal.
        scores_BC = (log_p_BC / penalty(length, length_penalty).to(device)).masked_fill(~ends_BC, NEVER)
        done_scores_BN, order_BN = _best(torch.cat([done_scores_BN, scores_BC], dim=1), beam_size)
        done_BN = torch.cat([done_BN, log_p_BC], dim=1).gather(1, order_BN)
        done_BNT = torch.cat([F.pad(done_BNT, (0, 1), value=model.shape.pad), candidates_BCT], dim=1)
        done_BNT = torch.take_along_dim(done_BNT, order_BN[..., None], dim=1)

        # The alive: the first N that do not end (candidates are sorted).
        order_BN = ends_BC.to(torch.int8).argsort(dim=1, stable=True)[:, :beam_size]
        rows_BN = (
            parents_BC.gather(1, order_BN) + alive_BN.shape[1] * torch.arange(len(alive_BN), device=device)[:, None]
        )
        alive_BN = log_p_BC.gather(1, order_BN)
        alive_BNT = torch.take_along_dim(candidates_BCT, order_BN[..., None], dim=1)

        leaves_B = (done_scores_BN[:, -1] >= alive_BN[:, 0] / best_possible_B) | (limit_B <= length)
        stays = (~leaves_B).nonzero()[:, 0]  # the one synchronisation of a step
        if len(stays) == len(leaves_B):
            state.select(rows_BN.flatten())
            continue
        leaving = leaves_B.nonzero()[:, 0]
        found = _hypotheses(done_BNT[leaving], done_scores_BN[leaving], done_BN[leaving], eos, finished=True)
        alive_scores_BN = alive_BN[leaving, :1] / penalty(length, length_penalty).to(device)
        unfinished = _hypotheses(alive_BNT[leaving, :1], alive_scores_BN, alive_BN[leaving, :1], eos, finished=False)
        for sentence, finished, alive in zip(sentence_B[leaving].tolist(), found, unfinished, strict=True):
            results[sentence] = finished or alive
        if not len(stays):
            return results
        state.select(rows_BN[stays].flatten(), stays)
        sentence_B, limit_B, best_possible_B = sentence_B[stays], limit_B[stays], best_possible_B[stays]
        forced_BT = forced_BT[stays]
        alive_BN, alive_BNT = alive_BN[stays], alive_BNT[stays]
        done_BN, done_scores_BN, done_BNT = done_BN[stays], done_scores_BN[stays], done_BNT[stays]


def _greedy(
    model: Transformer, state: DecoderState, limit_B: Tensor, length_penalty: float, eos: int, forced_BT: Tensor
) -> list[list[Hypothesis]]:
    """N = 1: no candidates, and no reordering but when a sentence leaves."""
    device, num_sentences = limit_B.device, len(limit_B)
    results: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
    sentence_B = torch.arange(num_sentences, device=device)
    pieces_BT = torch.full((num_sentences, 1), model.shape.bos, device=device)
    log_p_B = torch.zeros(num_sentences, dtype=torch.float64, device=device)
    length = 0
    while True:
        length += 1
        log_p_BV = _log_probabilities(model.next_logits(pieces_BT[:, -1:], state), model)
        if length <= forced_BT.shape[1]:
            log_p_BV = _only(forced_BT[:, length - 1], log_p_BV)
        best_B, piece_B = log_p_BV.max(dim=-1)  # the lowest piece of equals
        log_p_B = log_p_B + best_B
        pieces_BT = torch.cat([pieces_BT, piece_B[:, None]], dim=1)
        ends_B = piece_B == eos
        leaves_B = ends_B | (limit_B <= length)
        stays = (~leaves_B).nonzero()[:, 0]
        if len(stays) == len(leaves_B):
            continue
        scores_B = log_p_B / penalty(length, length_penalty).to(device)
        for finished in (True, False):
            leaving = (leaves_B & (ends_B == finished)).nonzero()[:, 0]
            found = _hypotheses(
                pieces_BT[leaving, None], scores_B[leaving, None], log_p_B[leaving, None], eos, finished=finished
            )
            for sentence, hypotheses in zip(sentence_B[leaving].tolist(), found, strict=True):
                results[sentence] = hypotheses
        if not len(stays):
            return results
        state.select(stays, stays)
        sentence_B, limit_B, pieces_BT, log_p_B = sentence_B[stays], limit_B[stays], pieces_BT[stays], log_p_B[stays]
        forced_BT = forced_BT[stays]


def _log_probabilities(logits: Tensor, model: Transformer) -> Tensor:
    """Log softmax over the last axis, in float32 whatever the products' precision; PAD and BOS at minus infinity."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_p = logits.log_softmax(dim=-1, dtype=wide)
    log_p[..., [model.shape.pad, model.shape.bos]] = NEVER
    return log_p


def _forced(prefixes: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The prefixes as rows of equal length, FREE behind each."""
    rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=FREE).to(device)


def _only(pieces: Tensor, log_p: Tensor) -> Tensor:
    """`log_p` [..., V] where the piece is FREE; elsewhere every piece but this one at minus infinity."""
    others = torch.arange(log_p.shape[-1], device=log_p.device) != pieces[..., None]
    return log_p.masked_fill(others & (pieces != FREE)[..., None], NEVER)


def _candidates(
    log_p_BNV: Tensor, alive_BN: Tensor, num_candidates: int, model: Transformer
) -> tuple[Tensor, Tensor, Tensor]:
    """The best one-piece extensions, sorted: log p (float64), alive parent and piece, [B, C] each.

    First the best C pieces of each row, then the best C of all rows: the same as of all rows' vocabularies at once.
    Where fewer than C exist, the rest has log p of minus infinity.
    """
    width = min(num_candidates, log_p_BNV.shape[-1])
    log_p_BNW, pieces_BNW = log_p_BNV.topk(width, dim=-1)
    # topk promises no order of equals: sort by piece, and then stably by log p.
    pieces_BNW, order_BNW = pieces_BNW.sort(dim=-1)
    log_p = (alive_BN[..., None] + log_p_BNW.gather(-1, order_BNW)).flatten(1)
    pieces = pieces_BNW.flatten(1)
    missing = max(0, num_candidates - log_p.shape[1])
    log_p, pieces = F.pad(log_p, (0, missing), value=NEVER), F.pad(pieces, (0, missing), value=model.shape.pad)
    log_p_BC, order_BC = _best(log_p, num_candidates)
    parents_BC = (order_BC // width).clamp(max=alive_BN.shape[1] - 1)
    return log_p_BC, parents_BC, pieces.gather(1, order_BC)


def _best(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The greatest along axis 1 and their places, sorted; of equals the first."""
    values, order = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :number], order[:, :number]


def _hypotheses(
    pieces_BNT: Tensor, scores_BN: Tensor, log_p_BN: Tensor, eos: int, *, finished: bool
) -> list[list[Hypothesis]]:
    """Rows (BOS first, PAD behind EOS) as hypotheses; those of score minus infinity are none."""
    found = []
    for rows, scores, log_ps in zip(pieces_BNT.tolist(), scores_BN.tolist(), log_p_BN.tolist(), strict=True):
        found.append(
            [
                Hypothesis(tuple(row[1 : row.index(eos) if finished else None]), score, log_p, finished)
                for row, score, log_p in zip(rows, scores, log_ps, strict=True)
                if score > NEVER
            ]
        )
    return found
