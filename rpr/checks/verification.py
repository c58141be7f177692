"""Invariants that every trained model must satisfy. Unless stated otherwise each is measured in float64, where two ways
to compute the same number differ by a relative rounding error of 1e-16, and a bug by far more.
"""

# Shape suffixes: B sentences, S source length, T target length, M model width, V vocabulary.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.decode.engine import Engine, Pairs, Rows, pad_pairs, pair_batches
from rpr.decode.exported import Kind
from rpr.errors import ConfigError, DataError, RunError
from rpr.export.writing import EXACT, check_supported, largest_of, prove, write_files
from rpr.model.beam_search import Search, penalty
from rpr.model.positions import of_user
from rpr.model.transformer import Transformer
from rpr.runs.loading import TrainedModel

Outcome = Literal["passed", "failed", "not applicable"]
SHIFTS = (1, 7)
FLOAT32 = 1e-4  # of log p


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    what: str
    outcome: Outcome
    sentences: int
    difference: float | None = None  # the largest one found, of the quantity that `what` names
    tolerance: float | None = None
    reason: str | None = None  # also why it does not apply


def check_model(exact: Transformer, pairs: Pairs, search: Search, max_length: int) -> Iterator[Check]:
    """All checks of the model, which is in float64 and evaluation mode; text, whose sources are empty, is not
    translated. `max_length` is the maximum sentence length in training, in tokens. A scheme of the user's own may
    compute in float32: what is equal within its rounding passes, and says so.
    """
    own = {part.name for stack in exact.config.stacks() for part in stack.scheme.parts if of_user(part)}
    for check in _checks(exact, pairs, search, max_length):
        if own and check.outcome == "failed" and check.reason is None and (check.difference or 0) <= FLOAT32:
            reason = f"position={min(own)} computes in float32; equal within its rounding"
            check = replace(check, outcome="passed", tolerance=FLOAT32, reason=reason)
        yield check


def _checks(exact: Transformer, pairs: Pairs, search: Search, max_length: int) -> Iterator[Check]:
    yield cached_decoding(exact, pairs, search.max_tokens_per_batch, "cached decoding")
    joined = beyond(pairs, max_length)
    yield cached_decoding(exact, joined, search.max_tokens_per_batch, f"cached decoding beyond {max_length} pieces")
    yield padding_invariance(exact, pairs, search.max_tokens_per_batch)
    yield shift_invariance(exact, pairs)
    if any(len(source) for source, _ in pairs):
        yield batch_independence(exact, [source for source, _ in pairs], search)
        yield scores_of_hypotheses(exact, [source for source, _ in pairs], search)
    yield exact_matches(exact, pairs, search)


def cached_decoding(exact: Transformer, pairs: Pairs, max_tokens: int, name: str) -> Check:
    """log p of the whole vocabulary at every target position: token by token with the KV cache, and teacher-forced."""
    largest = 0.0
    with torch.inference_mode():
        for source_BS, inputs_BT in pair_batches(pairs, max_tokens, exact.embedding_VM.device):
            hidden_BTM = exact(source_BS, inputs_BT)
            state = exact.start_decoding(source_BS)
            for t in range(inputs_BT.shape[1]):
                real_B = inputs_BT[:, t] != PAD
                step_BV = exact.logits(exact.next_hidden(inputs_BT[:, t : t + 1], state)).log_softmax(dim=-1)
                full_BV = exact.logits(hidden_BTM[:, t]).log_softmax(dim=-1)
                largest = max(largest, largest_of(step_BV[real_B] - full_BV[real_B]))
    return _check(name, "log p of step-by-step decoding and of one full pass", largest, len(pairs))


def padding_invariance(exact: Transformer, pairs: Pairs, max_tokens: int) -> Check:
    """log p of each sentence alone, compared with the same in a padded batch."""
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]))
    mixed = [pairs[index] for pair in zip(order, reversed(order), strict=True) for index in pair][: len(pairs)]
    rows = max(2, max_tokens // max(max(len(source), len(target)) for source, target in pairs))
    largest = 0.0
    with torch.inference_mode():
        for first in range(0, len(mixed), rows):
            batch = mixed[first : first + rows]
            source_BS, inputs_BT = pad_pairs(batch, exact.embedding_VM.device)
            hidden_BTM = exact(source_BS, inputs_BT)
            for row, pair in enumerate(batch):
                log_p_1TV = _log_p(exact, pair)
                log_p_TV = exact.logits(hidden_BTM[row, : log_p_1TV.shape[1]]).log_softmax(dim=-1)
                largest = max(largest, largest_of(log_p_TV - log_p_1TV[0]))
    return _check("padding", "log p, alone and in a padded batch", largest, len(pairs))


def shift_invariance(exact: Transformer, pairs: Pairs) -> Check:
    """log p with masked PAD before the source: equal for shift-invariant positions, different for others."""
    largest, least = 0.0, float("inf")
    with torch.inference_mode():
        for pair in pairs:
            log_p_1TV = _log_p(exact, pair)
            for shift in SHIFTS:
                difference = largest_of(_log_p(exact, pair, shift) - log_p_1TV)
                largest, least = max(largest, difference), min(least, difference)
    what = f"log p with everything {', '.join(map(str, SHIFTS))} positions later"
    positions = exact.config.stacks()[0].scheme
    if positions.shift_invariant:
        return _check("shift", what, largest, len(pairs))
    if least > EXACT or positions.shift_invariant is None:
        reason = f"{positions.label}: a shift is meant to change it"
        reason += "" if least > EXACT else ", of longer sentences"
        return Check("shift", what, "not applicable", len(pairs), largest, None, reason)
    reason = f"{positions.label} should depend on a shift, but for some text it changes nothing"
    return _check("shift", what, least, len(pairs), reason)


def batch_independence(exact: Transformer, sources: Rows, search: Search) -> Check:
    """Translations of each sentence alone, in batches as configured, and all in one batch."""
    everything = search.beam_size * len(sources) * max(1, *map(len, sources))
    budgets = (1, search.max_tokens_per_batch, everything)
    searches = [Engine(exact).search(sources, replace(search, max_tokens_per_batch=tokens)) for tokens in budgets]
    different = sum(len({hypotheses[0].pieces for hypotheses in same}) > 1 for same in zip(*searches, strict=True))
    log_ps = [[hypotheses[0].log_probability for hypotheses in same] for same in zip(*searches, strict=True)]
    largest = max(max(row) - min(row) for row in log_ps)
    what = f"beam {search.beam_size}: translations alone, as configured and all together; their log p"
    wrong = f"{different} sentences have different translations in different batches" if different else None
    return _check("batches", what, largest, len(sources), wrong)


def scores_of_hypotheses(exact: Transformer, sources: Rows, search: Search) -> Check:
    """All hypotheses of the beam: distinct, sorted by score, and with the score that teacher forcing gives."""
    n_best_lists = Engine(exact).search(sources, replace(search, n_best=search.beam_size))
    largest, different = 0.0, 0
    for source, hypotheses in zip(sources, n_best_lists, strict=True):
        pieces = [hypothesis.pieces for hypothesis in hypotheses]
        ranks = [hypothesis.score for hypothesis in hypotheses]
        different += ranks != sorted(ranks, reverse=True) or len(set(pieces)) < len(pieces)
        rows = Engine(exact).score([source] * len(pieces), pieces, search.max_tokens_per_batch)
        for row, hypothesis in zip(rows, hypotheses, strict=True):
            counted = row if hypothesis.finished else row[:-1]  # EOS is the last
            again = float(counted.sum() / penalty(len(counted), search.length_penalty))
            largest = max(largest, largest_of(torch.tensor(again - hypothesis.score, dtype=torch.float64)))
    what = f"beam {search.beam_size}: sorted, distinct, and scored as in one full pass"
    wrong = f"the hypotheses of {different} sentences are not sorted by score, or not distinct" if different else None
    return _check("n best", what, largest, len(sources), wrong)


def exact_matches(exact: Transformer, pairs: Pairs, search: Search) -> Check:
    """Greedy search generates a target exactly if each of its tokens is the most probable one after those before it in
    one full pass: for the targets of the pairs, and for what the search generates.
    """
    longest = max(len(target) for _, target in pairs)
    greedy = replace(search, beam_size=1, n_best=1, min_length=0, max_extra_length=longest)
    sources = [source for source, _ in pairs]
    best = [hypotheses[0] for hypotheses in Engine(exact).search(sources, greedy)]
    generated = [[*hypothesis.pieces, *([EOS] if hypothesis.finished else [])] for hypothesis in best]
    device, largest, different = exact.embedding_VM.device, 0.0, 0
    with torch.inference_mode():
        for (source, target), own in zip(pairs, generated, strict=True):
            for tokens in (list(target), own):
                logits_TV = exact.logits(exact(*pad_pairs([(source, tokens)], device))[0])
                logits_TV[:, [PAD, BOS]] = -torch.inf  # never generated
                behind_T = logits_TV.amax(dim=1) - logits_TV[range(len(tokens)), tokens]
                largest = max(largest, largest_of(behind_T)) if tokens is own else largest
                different += (largest_of(behind_T) <= EXACT) != (tokens == own[: len(tokens)])
    what = "greedy: the tokens generated against the most probable ones of one full pass; their log p"
    wrong = f"{different} targets are exact in one of the two only" if different else None
    return _check("exact matches", what, largest, len(pairs), wrong)


def export_check(kind: Kind, trained: TrainedModel, folder: Path) -> Check:
    """Write an export to an empty folder, read it back and compare it with the model."""
    name, what = f"export, {kind}", "log p, the export against the model"
    what += "" if trained.documents else "; greedy translations"
    try:
        check_supported(kind, trained.model.config, trained.config.data.tokenizer)
    except ConfigError as error:
        return Check(name, what, "not applicable", 0, reason=str(error))
    write_files(kind, folder, trained)
    try:
        proven = prove(kind, folder, trained)
    except (DataError, RunError) as error:
        return Check(name, what, "failed", len(trained.sources), reason=str(error))
    outcome: Outcome = "passed" if proven.passed else "failed"
    return Check(name, what, outcome, proven.sentences, proven.largest_difference, proven.tolerance, str(proven))


def beyond(pairs: Pairs, length: int) -> list[tuple[list[int], list[int]]]:
    """Concatenate pairs, in order, until both sides have more than `length` tokens; the last one is filled up with the
    first pairs. Pairs with a side of only EOS, which no token cache has, are skipped. Text has no sources: its
    targets alone are joined. Raises DataError if none is left.
    """
    text = not any(len(source) for source, _ in pairs)
    pairs = [pair for pair in pairs if min(map(len, pair[text:])) > 1]
    if not pairs:
        raise DataError("split: none of its first examples has two tokens; choose another split, or more sentences")
    joined = list[tuple[list[int], list[int]]]()
    source, target, index = list[int](), list[int](), 0
    while index < len(pairs) or target:
        next_source, next_target = pairs[index % len(pairs)]
        source, target, index = [*source, *next_source[:-1]], [*target, *next_target[:-1]], index + 1
        if min(map(len, (source, target)[text:])) >= length:
            joined.append(([] if text else [*source, EOS], [*target, EOS]))
            source, target = [], []
    return joined


def _log_p(exact: Transformer, pair: tuple[Sequence[int], Sequence[int]], shift: int = 0) -> Tensor:
    hidden_1TM = exact(*pad_pairs([pair], exact.embedding_VM.device), shift=shift)
    return exact.logits(hidden_1TM).log_softmax(dim=-1)


def _check(name: str, what: str, largest: float, sentences: int, wrong: str | None = None) -> Check:
    passed = largest <= EXACT and wrong is None
    return Check(name, what, "passed" if passed else "failed", sentences, largest, EXACT, wrong)
