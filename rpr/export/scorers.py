"""Other programs that read an export, by which rpr.export.parity compares it with its model."""

# Shape suffixes: B rows, L positions, V vocabulary.

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rpr.data.vocabulary import BOS, EOS, PAD, ByteVocabulary, Vocabulary
from rpr.decode.engine import Rows, length_batches, pad_rows
from rpr.decode.exported import library
from rpr.errors import DataError, RunError
from rpr.model.beam_search import Search

Greedy = tuple[tuple[int, ...], bool]  # the token IDs of a translation, and whether it is finished


class Scorer(Protocol):
    """Scores given targets."""

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> Sequence[Sequence[float] | Tensor]:
        """log p of each token of the targets (given without EOS), and of the final EOS, in batches of at most
        `max_tokens`; the sources have EOS, or are empty.
        """


class TranslatorScorer:
    """An encoder-decoder export of format=ctranslate2. Raises DataError if CTranslate2 cannot load it."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, threads: int, compute_type: str = "float32") -> None:
        self._names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        self._index = {name: index for index, name in enumerate(self._names)}
        try:
            self._translator = library("ctranslate2").Translator(
                str(folder), compute_type=compute_type, inter_threads=1, intra_threads=threads, flash_attention=False
            )
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{folder}: CTranslate2 cannot load it ({' '.join(str(error).split())[:200]})") from None

    def greedy(self, sources: Rows, search: Search) -> list[Greedy]:
        """The most probable token each time, as our own search with its limits."""
        limits = [max(search.min_length + 1, len(source) + search.max_extra_length) for source in sources]
        results = self._translator.translate_batch(
            self._texts(sources),
            max_batch_size=search.max_tokens_per_batch,
            batch_type="tokens",
            beam_size=1,
            max_input_length=0,
            min_decoding_length=search.min_length,
            max_decoding_length=max(limits),
            suppress_sequences=self._texts([[PAD], [BOS]]),
            return_end_token=True,
        )
        rows = [
            [self._index[name] for name in result.hypotheses[0][:limit]]  # of a batch all have the longest limit
            for result, limit in zip(results, limits, strict=True)
        ]
        return [(tuple(row[:-1]), True) if row[-1:] == [EOS] else (tuple(row), False) for row in rows]

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[list[float]]:
        """As Scorer.score."""
        results = self._translator.score_batch(
            self._texts(sources),
            self._texts(targets),
            max_batch_size=max_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        return [[float(log_p) for log_p in result.log_probs] for result in results]

    def _texts(self, rows: Rows) -> list[list[str]]:
        return [[self._names[piece] for piece in row] for row in rows]


class GeneratorScorer:
    """A decoder-only export of format=ctranslate2, in float32."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, threads: int) -> None:
        self._names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        self._generator = library("ctranslate2").Generator(
            str(folder), compute_type="float32", inter_threads=1, intra_threads=threads, flash_attention=False
        )

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[list[float]]:
        """As Scorer.score."""
        rows = [(*source, BOS, *target, EOS) for source, target in zip(sources, targets, strict=True)]
        results = self._generator.score_batch(
            [[self._names[piece] for piece in row] for row in rows],
            max_batch_size=max_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        return [
            [float(log_p) for log_p in result.log_probs[len(source) :]]  # of every token but the first
            for source, result in zip(sources, results, strict=True)
        ]

    def continued(self, prompts: Rows) -> list[tuple[int, float]]:
        """The most probable next token of each prompt, with its log p: prompts are read in another way than targets."""
        results = self._generator.generate_batch(
            [[self._names[piece] for piece in prompt] for prompt in prompts],
            max_batch_size=1,  # of a batch only the shortest is read at once
            max_length=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            return_end_token=True,
            return_scores=True,
        )
        return [(result.sequences_ids[0][0], float(result.scores[0])) for result in results]


class TransformersScorer:
    """An export of format=transformers, in float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        transformers = library("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except (KeyError, ValueError, OSError) as error:  # p-RoPE is from 5.5 on
            reason = f"transformers {transformers.__version__} cannot load it ({' '.join(str(error).split())[:200]})"
            raise RunError(f"export: {reason}; the export was removed: update transformers") from None

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[list[float]]:
        """As Scorer.score; the sources are empty. Raises RunError if the exported tokenizer does not give these targets
        from their text.
        """
        scores: list[list[float]] = [[] for _ in targets]
        for target in targets:
            text = ByteVocabulary().decode_bytes(target).decode("utf-8", "ignore")  # a window may cut a character
            expected = [BOS, *ByteVocabulary().encode(text)]
            if self._tokenizer(text)["input_ids"] != expected or self._tokenizer.decode(expected[1:]) != text:
                raise RunError(
                    "export: the exported tokenizer does not reproduce the pieces of the data; the export was removed: "
                    "report this with the run's record"
                )
        with torch.inference_mode():
            for batch in length_batches([len(target) + 1 for target in targets], max_tokens):
                pieces_BL = pad_rows([[BOS, *targets[index], EOS] for index in batch])
                inputs_BL = pieces_BL[:, :-1]
                logits_BLV = self._model(inputs_BL, attention_mask=torch.ones_like(inputs_BL), use_cache=False).logits
                log_p_BLV = logits_BLV.double().log_softmax(-1)
                log_p_BL = log_p_BLV.gather(-1, pieces_BL[:, 1:, None])[..., 0]
                for row, index in enumerate(batch):
                    scores[index] = log_p_BL[row, : len(targets[index]) + 1].tolist()
        return scores
