"""One vocabulary for both languages, of byte-pair pieces or whole words (both in sentencepiece's format), the same for
the same sentences on every machine.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from rpr.errors import DataError
from rpr.io.atomic import replace_file

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MAX_TRAINING_PAIRS = 2_000_000
# Byte pairs are learned within words, so sentencepiece, given each word with its count, finds the pieces and scores
# that it finds in the sentences (compared: 100,000 and 2,000,000 pairs), but holds the distinct words alone: 32,768
# pieces of 2,000,000 pairs of 25 words a side took 0.56 GB in place of 2.16. With as many words as this it is 0.9 GB
# (tried on 6 million distinct ones). WMT14 may have 3 million; the rare ones say little of what is frequent: 32,768
# pieces from the most frequent 28% of 714,000 words spell 20,000 pairs with 0.3% more of them than those from all.
MAX_WORDS = 1_000_000
MAX_SENTENCE_BYTES, RESERVED = 4192, "\u2585"  # sentencepiece's: it leaves out a longer sentence, and one with this
# 256 of the pieces stand for the bytes of characters not seen in training. Below this size they would take a quarter or
# more of a vocabulary whose corpus is tiny or synthetic, with embeddings that are never trained: there an unseen
# character becomes UNK instead.
BYTE_FALLBACK_FROM = 1024
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def num_threads() -> int:
    """Threads for sentencepiece: the cores this process may use. BPE pieces and scores do not depend on it
    (measured: 1, 2, 16).
    """
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def training_sample(num_pairs: int, seed: int = 0) -> Callable[[int], NDArray[np.bool_] | None]:
    """Which pairs the vocabulary is learned from: all, or about MAX_TRAINING_PAIRS drawn by our own seeded generator.
    To be asked for the next `count` pairs, block by block; None is all of them.

    sentencepiece's own sampling (input_sentence_size) draws differently in every process, whatever its seed.
    """
    if num_pairs <= MAX_TRAINING_PAIRS:
        return lambda count: None
    draw = np.random.Generator(np.random.PCG64(seed))
    return lambda count: draw.random(count) < MAX_TRAINING_PAIRS / num_pairs


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """How often each word occurs in normalised sentences, without those that sentencepiece leaves out: longer than
    4,192 bytes, or with its own sign for what is unknown.
    """
    counts: Counter[str] = Counter()
    for sentence in sentences:
        short = len(sentence) <= MAX_SENTENCE_BYTES // 4 or len(sentence.encode()) <= MAX_SENTENCE_BYTES
        if short and RESERVED not in sentence:
            counts.update(sentence.split())
    return counts


def add_words(counts: dict[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Both counts in one, `counts` itself unless that became too large."""
    for word, count in more.items():
        counts[word] = counts.get(word, 0) + count
    return counts if len(counts) <= 2 * MAX_WORDS else most_frequent(counts)


def most_frequent(counts: dict[str, int]) -> dict[str, int]:
    """The MAX_WORDS most frequent words; of equally frequent ones those that came first."""
    if len(counts) <= MAX_WORDS:
        return counts
    kept = np.zeros(len(counts), np.bool_)
    kept[np.argsort(-np.fromiter(counts.values(), np.int64, len(counts)), kind="stable")[:MAX_WORDS]] = True
    return dict(itertools.compress(counts.items(), kept))


class Vocabulary:
    """Sentences to pieces and back. Pieces 0 to 3 are PAD, UNK, BOS and EOS; no text encodes to PAD, BOS or EOS."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def train(cls, sentences: Iterable[str], size: int, model_path: Path) -> Vocabulary:
        """As learn, from the sentences themselves."""
        return cls.learn(count_words(sentences), size, model_path)

    @classmethod
    def learn(
        cls, words: dict[str, int], size: int, model_path: Path, tokenizer: Literal["bpe", "word"] = "bpe"
    ) -> Vocabulary:
        """Exactly `size` pieces from words and how often each occurs, written to model_path, at once or not at all.

        bpe: byte pairs are learned; the four special pieces, and from 1,024 on 256 bytes, are among them. word: nothing
        is learned, the `size` - 4 most frequent words are a piece each; any others in a row are one UNK.

        Text is taken as it is (no NFKC: a fi ligature or a fraction stays what it was). Raises DataError when the
        sentences have too few or too many distinct characters and words for `size`, with the limit that sentencepiece
        names.
        """
        stream, with_bytes = io.BytesIO(), tokenizer == "bpe"
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{word}\t{count}" for word, count in words.items()),
                input_format="tsv",
                model_writer=stream,
                model_type=tokenizer,
                vocab_size=size,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                character_coverage=1.0,
                byte_fallback=with_bytes and size >= BYTE_FALLBACK_FROM,
                normalization_rule_name="identity",
                num_threads=num_threads(),
                minloglevel=2,
            )
        except RuntimeError as error:
            raise DataError(_explain(size, str(error), with_bytes)) from None
        replace_file(model_path, stream.getvalue())
        return cls(stream.getvalue())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Open a model written by `train`. Raises DataError when it is absent or no such model."""
        try:
            model = path.read_bytes()
            if not model:  # of which sentencepiece makes an empty model, and says so each time it is asked
                raise RuntimeError
            vocabulary = cls(model)
        except OSError as error:
            raise DataError(
                f"vocabulary {path}: cannot be read ({error.strerror}); run rpr-cli prepare again"
            ) from None
        except RuntimeError:
            raise DataError(
                f"vocabulary {path}: not a sentencepiece model; delete it and run rpr-cli prepare again"
            ) from None
        return vocabulary

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def save(self, path: Path) -> None:
        """Write the model, at once or not at all; `load` opens it."""
        replace_file(path, self._processor.serialized_model_proto())

    @property
    def digest(self) -> str:
        """sha256 over pieces and scores. The file's bytes would not do: they hold the number of threads it was
        trained with.
        """
        digest = hashlib.sha256()
        for piece in range(len(self)):
            digest.update(f"{self._processor.id_to_piece(piece)}\t{self._processor.get_score(piece)!r}\n".encode())
        return digest.hexdigest()

    def piece(self, index: int) -> str:
        """The piece as sentencepiece writes it, a word's start as U+2581."""
        return str(self._processor.id_to_piece(index))

    def encode(self, sentence: str, *, eos: bool = False) -> list[int]:
        """Pieces of one sentence, without BOS, with EOS behind if asked."""
        return self.encode_batch([sentence], eos=eos)[0]

    def encode_batch(
        self, sentences: Sequence[str], *, eos: bool = False, threads: int | None = None
    ) -> list[list[int]]:
        """Pieces of many sentences, by all cores unless `threads` says how many."""
        pieces: list[list[int]] = self._processor.encode(
            list(sentences), add_eos=eos, num_threads=threads or num_threads()
        )
        return pieces

    def decode(self, pieces: Iterable[int]) -> str:
        """The sentence up to the first EOS, PAD and BOS left out; runs of blanks come back as one."""
        kept = []
        for piece in pieces:
            if piece == EOS:
                break
            if piece not in (PAD, BOS):
                kept.append(int(piece))
        return str(self._processor.decode(kept))


def _explain(size: int, message: str, with_bytes: bool) -> str:
    """sentencepiece's refusal as a line about data.vocabulary_size."""
    if found := _TOO_LARGE.search(message):
        limit = int(found[1])
        if with_bytes and size >= BYTE_FALLBACK_FROM > limit:
            limit -= 256  # at that size the bytes are left out
        return (
            f"data.vocabulary_size: {size} is more than this corpus supports; "
            f"it yields at most {limit} pieces: set data.vocabulary_size={limit} or less"
        )
    if found := _TOO_SMALL.search(message):
        limit = int(found[1])
        if limit >= BYTE_FALLBACK_FROM > size:
            limit += 256  # at that size the bytes come in
        special = "4 special pieces and 256 bytes" if limit >= BYTE_FALLBACK_FROM else "4 special pieces"
        return (
            f"data.vocabulary_size: {size} is too few for the characters of this corpus; "
            f"with {special} they need {limit}: set data.vocabulary_size={limit} or more"
        )
    if "!sentences_.empty()" in message:
        return "data: no sentence to learn a vocabulary from; all are empty or above 4,192 bytes: check the train split"
    return (
        f"data.vocabulary_size: sentencepiece cannot learn {size} pieces from this corpus "
        f"({' '.join(message.split())}); try another size"
    )
