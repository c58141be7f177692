"""How well a model predicts documents: bits per byte of windows, and by the length and the position in the window.

Every length is scored on the same bytes: blocks of the longest length that have as many tokens of their document before
them. `separate` windows of n tokens tile a block; a model's inputs are the token before the window and those of the
window but its last. `sliding` windows of n tokens end every `stride` tokens, and only their last `stride` tokens are
scored. No window crosses documents, and no EOS is scored.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rpr.config.train import EvaluationConfig
from rpr.data.batches import BatchDataset, Windows, scored_batches
from rpr.data.vocabulary import Vocabulary, text_vocabulary
from rpr.decode.engine import Engine, Progress
from rpr.errors import not_finite
from rpr.records.scores import ContextScore, PositionScore
from rpr.scoring.statistics import SufficientStatistics, bits_from_sums, interval

ROWS_AT_ONCE, LOGITS_AT_ONCE = 4096, 2**22


def token_nats(
    engine: Engine, windows: Windows, max_tokens: int, progress: Progress | None = None, *, last: int | None = None
) -> list[NDArray[np.float64]]:
    """-ln p of the last `last` tokens of each window, or of all, given those before them in the window. Raises RunError
    if one is not finite.
    """
    by_window: list[Any] = [None] * len(windows)
    dataset, done = BatchDataset(windows), 0
    with engine.evaluating(), torch.no_grad():
        for indices in scored_batches(windows, max_tokens):
            batch = dataset[indices]
            nats_BT = nats(engine.model, batch.target_input_BT, batch.target_output_BT).numpy()
            for row, index in enumerate(indices):
                end = int(windows.target_lengths[index])
                by_window[index] = nats_BT[row, 0 if last is None else max(0, end - last) : end]
                if not np.isfinite(by_window[index]).all():
                    remedy = "use another run, or shorter evaluation.context_lengths"
                    raise not_finite(f" in windows of {windows.longest} tokens", remedy)
            done += len(indices)
            if progress is not None:
                progress(done, len(windows))
    return by_window


def nats(model: Any, inputs_BT: Tensor, outputs_BT: Tensor) -> Tensor:
    """-ln p of every output, float64 [B, T] on the CPU; logits are computed for some rows at a time."""
    device = model.embedding_VM.device
    hidden_NM = model(inputs_BT.new_empty(len(inputs_BT), 0).to(device), inputs_BT.to(device)).flatten(0, 1)
    targets_N = outputs_BT.to(device).flatten()
    rows = max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // len(model.embedding_VM)))
    chunks = zip(*(torch.split(whole, rows) for whole in (hidden_NM, targets_N)), strict=True)
    parts = [F.cross_entropy(model.logits(hidden).double(), outputs, reduction="none") for hidden, outputs in chunks]
    return torch.cat(parts).view(outputs_BT.shape).cpu()


def document_statistics(
    windows: Windows, nats: list[NDArray[np.float64]], vocabulary: Vocabulary
) -> tuple[SufficientStatistics, NDArray[np.int64]]:
    """Nats and bytes of each document with scored tokens, (D, 2), and which documents these are, (D,)."""
    counts = np.asarray([len(of_window) for of_window in nats])
    ends = windows.starts + windows.target_lengths[:]
    pieces, piece_bytes = windows.documents.pieces("target"), text_vocabulary(vocabulary).piece_bytes
    bytes_of = [int(piece_bytes[pieces[end - count : end]].sum()) for end, count in zip(ends, counts, strict=True)]
    documents, place = np.unique(windows.document_of(), return_inverse=True)
    sums = [np.bincount(place, weights) for weights in ([of_window.sum() for of_window in nats], bytes_of)]
    return SufficientStatistics(np.stack(sums, axis=1), bits_from_sums), documents


def by_context_length(
    engine: Engine,
    blocks: Windows,
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
    progress: Callable[[int, int, str], None],
) -> tuple[list[ContextScore], list[PositionScore]]:
    """The scores by length, and those by position in separate windows of the longest length, which `blocks` are."""
    lengths, stride, samples = evaluation.context_lengths, evaluation.stride, evaluation.bootstrap_samples
    longest = lengths[-1]
    scores: list[ContextScore] = []
    positions: list[PositionScore] = []
    ways = [("separate", n) for n in lengths] + [("sliding", n) for n in lengths if stride is not None and n >= stride]
    for kind, n in ways:
        step = n if kind == "separate" or stride is None else stride
        ends = np.minimum(np.arange(step, longest + step, step), longest)
        counts = np.diff(ends, prepend=0)
        widths = counts if kind == "separate" else np.full_like(ends, n)
        starts = (blocks.starts[:, None] + ends - widths).ravel()
        windows = Windows(blocks.documents, starts, starts + np.tile(widths, len(blocks)))
        last = None if kind == "separate" else step

        def show(done: int, total: int, part: str = f"{kind} windows of {n}") -> None:
            progress(done, total, part)

        nats = token_nats(engine, windows, evaluation.max_tokens_per_batch, show, last=last)
        statistics, _ = document_statistics(windows, nats, vocabulary)
        size, ends_at = int(statistics.rows[:, 1].sum()), interval(statistics, samples)
        scores.append(ContextScore(kind, n, statistics.score, size, ends_at))  # type: ignore[arg-type]
        if (kind, n) == ("separate", longest):
            positions = by_position(blocks, np.stack(nats), vocabulary)
    return scores, positions


def by_position(blocks: Windows, nats_NL: NDArray[np.float64], vocabulary: Vocabulary) -> list[PositionScore]:
    """Of windows of one length, with the nats of all tokens: the positions 1, 2, 3 to 4, 5 to 8, ..."""
    pieces_NL = np.stack([blocks.row("target", index) for index in range(len(blocks))])
    bytes_NL = text_vocabulary(vocabulary).piece_bytes[pieces_NL]
    longest = nats_NL.shape[1]
    edges = [0, *(1 << power for power in range((longest - 1).bit_length())), longest]
    return [
        PositionScore(first + 1, end, float(bits_from_sums(np.asarray([[nats_NL[:, first:end].sum(), size]]))[0]))
        for first, end in itertools.pairwise(edges)
        if (size := int(bytes_NL[:, first:end].sum()))
    ]
