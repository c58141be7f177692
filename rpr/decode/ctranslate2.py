"""Beam search with CTranslate2, on one of our exports."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from rpr.config.commands import ComputeType
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.decode.exported import FORMATS, REMEDY, library, read_export
from rpr.decode.torch_engine import Progress, Rows, length_batches
from rpr.errors import ConfigError, DataError
from rpr.model.beam_search import Hypothesis, NBest, Search, penalty

# Differences from our search, for model cards and pages.
DIFFERENCES = (
    "CTranslate2 ranks by log p / length^alpha; rpr, and the paper, by log p / ((5 + length) / 6)^alpha. Greedy "
    "translations are identical; those of beam search may differ.",
    "CTranslate2 stops once beam_size hypotheses are finished; rpr once no unfinished hypothesis can beat its n-th "
    "best finished one.",
    "CTranslate2 renormalises probabilities without PAD and BOS, which are never generated; rpr does not.",
    "For an empty source (only EOS) CTranslate2 returns an empty translation; rpr decodes it like any other.",
)


class CTranslate2Engine:
    """An engine (rpr.decode.torch_engine.Engine) that runs CTranslate2.

    CTranslate2 ranks hypotheses by log p / length^alpha (EOS counted), which is not the paper's formula. In a
    Hypothesis, `log_probability` is recovered from CTranslate2's score, which is normalised without PAD and BOS; with a
    minimum length the hypothesis is scored again. `score` is the paper's formula of it, so the hypotheses of one
    sentence need not be sorted by `score`.

    CTranslate2 has one length limit per batch, so only sentences with the same limit (source tokens + max_extra_length,
    EOS counted) share one. For a source of only EOS the result is empty, finished, with log p 0.
    """

    def __init__(
        self, folder: Path, *, compute_type: str = "float32", threads: int | None = None, device: str = "cpu"
    ) -> None:
        """Open an export of format=ctranslate2. Raises ConfigError if CTranslate2 is not installed, or does not support
        `compute_type` on this device, DataError if it is not such an export, or a damaged one.

        Args:
            compute_type: float32, int8 (matrices only; the rest is float32), bfloat16, float16, ...
            threads: CPU threads, all used for one batch; None: as many as torch uses.
            device: cpu or cuda.
        """
        ctranslate2 = library("ctranslate2")
        self.exported = read_export(folder, "ctranslate2")
        supported = ctranslate2.get_supported_compute_types(device)
        if compute_type not in supported:
            raise ConfigError(
                f"compute_type: CTranslate2 does not support {compute_type} on this {device}; "
                f"choose one of {', '.join(name for name in get_args(ComputeType) if name in supported)}"
            )
        vocabulary = self.exported.vocabulary()
        self._tokens = [vocabulary.piece(index) for index in range(len(vocabulary))]
        self._index = {token: index for index, token in enumerate(self._tokens)}
        try:
            # flash_attention would ignore the decoder's relative tables.
            self._translator = ctranslate2.Translator(
                str(folder),
                device=device,
                compute_type=compute_type,
                inter_threads=1,
                intra_threads=threads or torch.get_num_threads(),
                flash_attention=False,
            )
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{folder / FORMATS['ctranslate2'].weights}: CTranslate2 cannot load it ({reason}); {REMEDY}"
            ) from None

    def search(self, sources: Rows, search: Search, *, progress: Progress | None = None) -> NBest:
        """As Engine.search; raises DataError if a source is longer than the export's position table."""
        self._check_lengths([*map(len, sources)])
        limits = [self._limit(source, search) for source in sources]
        hypotheses: NBest = [[] for _ in sources]
        translated = 0
        for limit in sorted(set(limits), reverse=True):
            alike = [index for index, own in enumerate(limits) if own == limit]
            lengths = [len(sources[index]) for index in alike]
            for places in length_batches(lengths, search.max_tokens_per_batch // search.beam_size):
                batch = [alike[place] for place in places]
                results = self._translate([sources[index] for index in batch], search, limit)
                for index, result in zip(batch, results, strict=True):
                    hypotheses[index] = [Hypothesis((), 0.0, 0.0, True)]
                    if any(piece != EOS for piece in sources[index]):
                        hypotheses[index] = self._best(result, search)
                translated += len(batch)
                if progress is not None:
                    progress(translated, len(sources))
        if search.min_length:
            self._rescore(sources, hypotheses, search)
        return hypotheses

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[list[float]]:
        """log p of each token of the targets (given without EOS), and of the final EOS, in batches of `max_tokens`.
        Raises DataError if a source or a target is longer than the export's position table.
        """
        self._check_lengths([*map(len, sources), *(len(target) + 1 for target in targets)])  # BOS precedes a target
        results = self._translator.score_batch(
            self._texts(sources),
            self._texts(targets),
            max_batch_size=max_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        return [[float(log_p) for log_p in result.log_probs] for result in results]

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        rows, longest = self.exported.settings.position_rows, max(lengths, default=0)
        if rows is not None and longest > rows:
            raise DataError(
                f"{self.exported.folder}: a sentence of {longest} pieces is longer than the export's {rows} positions; "
                "split it, or export the run with format=safetensors"
            )

    def _limit(self, source: Sequence[int], search: Search) -> int:
        """The maximum length of a translation, EOS counted, as in our beam search."""
        limit = max(search.min_length + 1, len(source) + search.max_extra_length)
        rows = self.exported.settings.position_rows
        return limit if rows is None else min(limit, rows - 1)  # BOS precedes it when it is scored

    def _translate(self, sources: Rows, search: Search, limit: int) -> Any:
        """CTranslate2's results for one batch."""
        return self._translator.translate_batch(
            self._texts(sources),
            beam_size=search.beam_size,
            num_hypotheses=search.beam_size,  # unfinished ones may rank first, and are dropped
            length_penalty=search.length_penalty,
            max_input_length=0,
            min_decoding_length=search.min_length,
            max_decoding_length=limit,
            suppress_sequences=self._texts([[PAD], [BOS]]),
            return_end_token=True,
            return_scores=True,
        )

    def _best(self, result: Any, search: Search) -> list[Hypothesis]:
        """The n best finished hypotheses; if there is none, the best unfinished one."""
        scored = zip(result.hypotheses, result.scores, strict=True)
        ranked = [self._hypothesis(tokens, score, search) for tokens, score in scored]
        return [hypothesis for hypothesis in ranked if hypothesis.finished][: search.n_best] or ranked[:1]

    def _hypothesis(self, tokens: Sequence[str], score: float, search: Search) -> Hypothesis:
        finished = tokens[-1] == self._tokens[EOS]
        pieces = tuple(self._index[token] for token in (tokens[:-1] if finished else tokens))
        log_p = float(score) * len(tokens) ** search.length_penalty
        return Hypothesis(pieces, _paper_score(log_p, len(tokens), search), log_p, finished)

    def _rescore(self, sources: Rows, hypotheses: NBest, search: Search) -> None:
        """Score hypotheses with a minimum length again: CTranslate2 renormalises where EOS is not allowed."""
        rows = [(index, place) for index, n_best in enumerate(hypotheses) for place in range(len(n_best))]
        rows = [(index, place) for index, place in rows if hypotheses[index][place].pieces]
        targets = [hypotheses[index][place].pieces for index, place in rows]
        scores = self.score([sources[index] for index, _ in rows], targets, search.max_tokens_per_batch)
        for (index, place), log_ps in zip(rows, scores, strict=True):
            best = hypotheses[index][place]
            counted = log_ps if best.finished else log_ps[:-1]
            log_p = sum(counted)
            score = _paper_score(log_p, len(counted), search)
            hypotheses[index][place] = replace(best, log_probability=log_p, score=score)

    def _texts(self, rows: Rows) -> list[list[str]]:
        return [[self._tokens[piece] for piece in row] for row in rows]


def _paper_score(log_p: float, length: int, search: Search) -> float:
    return log_p / float(penalty(length, search.length_penalty))
