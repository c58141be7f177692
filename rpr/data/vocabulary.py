"""Vocabularies: of sentence pairs one for both languages, BPE or whole words; of documents byte-pair pieces or bytes,
both lossless: every piece stands for bytes of the text, which they give back one after the other. All but bytes are
sentencepiece's; the same text gives the same vocabulary on every machine.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from rpr.config.train import NUM_BYTE_PIECES
from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.io.system import num_cores
from rpr.signals import signals_deferred

PAD, UNK, BOS, EOS = 0, 1, 2, 3
FIRST = NUM_BYTE_PIECES - 256  # the piece of byte 0 of a ByteVocabulary, after the special ones
BYTES_MODEL = b"rpr: bytes as pieces\n"  # its model file
# BPE merges never cross words, so word counts give sentencepiece the same pieces and scores as the sentences, in a
# quarter of the memory: 0.9 GB with MAX_WORDS words. WMT14 may have 3 million. Pieces learned from a sample of 28% of
# its words encode Multi30k with at most 0.4% more than those from all; from the most frequent 28% it was up to 19%.
MAX_WORDS = 1_000_000
MAX_SENTENCE_BYTES, RESERVED = 4192, "\u2585"  # sentencepiece skips longer lines and those with this character
SPACE, NEWLINE = "\u2581", "\n"  # sentencepiece's own space; a piece of documents alone
# Byte fallback reserves 256 pieces for characters not seen in training. Below this size, at which they would be a
# quarter of the vocabulary, an unseen character becomes UNK.
BYTE_FALLBACK_FROM = 1024
THREADS = min(16, num_cores())  # of sentencepiece, on which no pieces depend
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# Lines, long ones cut: sentencepiece needs a hundred times their memory. It would read SPACE as a space.
_PART = re.compile(rf"[^\n{SPACE}]{{0,9999}}\n|[^\n{SPACE}]{{1,9999}}|{SPACE}")


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """Word counts of normalised sentences, without words that sentencepiece skips, as the sentences that have them."""
    counts = Counter(itertools.chain.from_iterable(map(str.split, sentences))).items()
    return {word: n for word, n in counts if RESERVED not in word and len(word.encode()) <= MAX_SENTENCE_BYTES}


@cache
def _text_word() -> re.Pattern[str]:
    """Words with the spaces before them, and runs of spaces; no piece goes beyond one. Not what sentencepiece skips. To
    Python a combining mark, as the vowels of Hindi, and a joiner end a word. (The look ahead is for speed.)
    """
    marks = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return re.compile(
        rf" *(?:\w+(?:(?=[^\x00-\u02ff])[{marks}\u200c\u200d]+\w*)*|[^\w\s\x00-\x1f{SPACE}{RESERVED}]+)| +"
    )


def count_text_words(text: str) -> Counter[str]:
    """The words of a text that byte-pair pieces are learned from."""
    return Counter(word for word in _text_word().findall(text) if len(word) <= 1000)


class Words:
    """Word counts to learn from: all words, or of more than MAX_WORDS a sample whose counts stand for all. In it rare
    words count more often, as in text without spaces, where nearly all "words" are rare and the first seen would be of
    the first documents.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, more: Mapping[str, int]) -> None:
        counts = self._counts
        for word, count in more.items():
            counts[word] = counts.get(word, 0) + count
        if len(counts) > 2 * MAX_WORDS:
            self._counts = self._sample(MAX_WORDS + 1)[0]  # so that one is left to cut

    def learned(self) -> dict[str, int]:
        if len(self._counts) <= MAX_WORDS:
            return self._counts
        kept, cut = self._sample(MAX_WORDS)
        return {word: max(count, round(cut)) for word, count in kept.items()}

    def _sample(self, size: int) -> tuple[dict[str, int], float]:
        """`size` words by priority sampling (Duffield et al. 2007): those with the highest count / u, where u in (0, 1]
        is a hash of the word. max(count, the highest that is left out) is an unbiased estimate of its count.
        """
        counts, number = self._counts, len(self._counts)
        chances = np.fromiter((1 + zlib.crc32(word.encode()) for word in counts), np.float64, number) / 2**32
        priorities = np.fromiter(counts.values(), np.float64, number) / chances
        cut = np.partition(priorities, -size - 1)[-size - 1]
        return dict(itertools.compress(counts.items(), priorities > cut)), float(cut)


class Vocabulary:
    """Encodes and decodes sentences. IDs 0 to 3 are PAD, UNK, BOS and EOS; no text encodes to PAD, BOS or EOS."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(cls, words: dict[str, int], size: int, tokenizer: Literal["bpe", "word"] = "bpe") -> Vocabulary:
        """Learn exactly `size` pieces from word counts. bpe: byte-pair encoding; the size includes four special pieces
        and, from 1,024 on, 256 bytes. word: one piece for each of the `size` - 4 most frequent words; a run of other
        words is one UNK. Raises DataError when the corpus has too few or too many distinct characters and words for
        `size`, with sentencepiece's limit.
        """
        with_bytes = tokenizer == "bpe" and size >= BYTE_FALLBACK_FROM
        return cls(_train(words, size, tokenizer, character_coverage=1.0, byte_fallback=with_bytes))

    @classmethod
    def load(cls, path: Path, remedy: str = "run rpr-cli prepare again") -> Vocabulary:
        """Open a model written by `save`. Raises DataError, which ends with the remedy, if it is missing or not a
        sentencepiece model.
        """
        try:
            model = path.read_bytes()
            if not model:  # sentencepiece accepts an empty file, then logs an error on every use
                raise RuntimeError
            if model == BYTES_MODEL:
                return ByteVocabulary()
            vocabulary = cls(model)
            return vocabulary if vocabulary._processor.piece_to_id(NEWLINE) == UNK else TextVocabulary(model)
        except OSError as error:
            raise DataError(f"vocabulary {path}: cannot be read ({error.strerror}); {remedy}") from None
        except RuntimeError:
            raise DataError(f"vocabulary {path}: not a sentencepiece model; {remedy}") from None

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def piece_type(self) -> str:
        """The smallest type that holds every ID."""
        return "uint16" if len(self) <= 1 << 16 else "uint32"

    def save(self, path: Path) -> None:
        replace_file(path, self.model)

    @property
    def digest(self) -> str:
        """sha256 of the pieces and scores. The file itself also contains the number of training threads."""
        processor, ids = self._processor, range(len(self))
        lines = (f"{processor.id_to_piece(index)}\t{processor.get_score(index)!r}\n" for index in ids)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def piece(self, index: int) -> str:
        """The text of a piece as in sentencepiece, with U+2581 for a word start."""
        return str(self._processor.id_to_piece(index))

    def encode(self, sentence: str, *, eos: bool = False) -> list[int]:
        """Token IDs of one sentence, without BOS; `eos` appends EOS."""
        return self.encode_batch([sentence], eos=eos)[0]

    def encode_batch(self, sentences: Sequence[str], *, eos: bool = False) -> list[list[int]]:
        """Token IDs of each sentence, without BOS."""
        pieces: list[list[int]] = self._processor.encode([*sentences], add_eos=eos, num_threads=THREADS)
        return pieces

    def decode(self, pieces: Iterable[int]) -> str:
        """The text up to the first EOS, without PAD and BOS, as one line: runs of whitespace and control characters,
        which byte fallback can produce, become one space, and none is at an end.
        """
        before_eos = itertools.takewhile(lambda piece: piece != EOS, pieces)
        kept = [int(piece) for piece in before_eos if piece not in (PAD, BOS)]
        # sentencepiece surrounds each UNK with spaces, and keeps those of pieces that are only a word start.
        return " ".join(_CONTROL.sub(" ", str(self._processor.decode(kept))).split())


class TextVocabulary(Vocabulary):
    """Byte-pair pieces of UTF-8, and bytes for what has no other piece. Newline and tab are pieces of their own. IDs 0
    to 3, as in every vocabulary PAD, UNK, BOS and EOS, stand for no text.
    """

    @classmethod
    def learn_text(cls, words: Mapping[str, int], size: int) -> TextVocabulary:
        """Learn exactly `size` pieces from `count_text_words`, 256 bytes included; as `Vocabulary.learn`."""
        return cls(_train(
            words, size, "bpe", character_coverage=0.9995, byte_fallback=True, user_defined_symbols=[NEWLINE, "\t"],
            add_dummy_prefix=False, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        ))  # fmt: skip

    def encode_texts(self, texts: Sequence[bytes]) -> list[NDArray[np.generic]]:
        """The pieces (N,) of each text. Raises UnicodeDecodeError if they have to be of UTF-8."""
        parts = [_PART.findall(text.decode()) for text in texts]
        every = [*itertools.chain.from_iterable(parts)]
        space = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
        encoded = zip(every, self._processor.encode(every, num_threads=THREADS), strict=True)
        pieces = (space if part == SPACE else of_part for part, of_part in encoded)
        of_texts = (itertools.islice(pieces, len(of_text)) for of_text in parts)
        return [np.fromiter(itertools.chain.from_iterable(of_text), self.piece_type) for of_text in of_texts]

    @cached_property
    def contents(self) -> list[bytes]:
        ids = range(len(_SPECIAL), len(self))
        pieces = [(self.piece(index), self._processor.is_byte(index)) for index in ids]  # of a byte <0x41>
        texts = (bytes.fromhex(piece[3:5]) if byte else piece.replace(SPACE, " ").encode() for piece, byte in pieces)
        return [*[b""] * len(_SPECIAL), *texts]

    def encode_batch(self, sentences: Sequence[str], *, eos: bool = False) -> list[list[int]]:
        """The pieces of each text, without BOS. Raises DataError if they have to be of UTF-8."""
        try:
            encoded = self.encode_texts([text.encode("utf-8", "surrogateescape") for text in sentences])
            return [[*pieces.tolist(), *[EOS] * eos] for pieces in encoded]
        except UnicodeError:
            raise DataError("the text is not UTF-8, which byte-pair pieces are made of; convert it") from None

    def decode_bytes(self, pieces: Iterable[int]) -> bytes:
        """The content up to the first EOS, without the other special pieces."""
        return b"".join(self.contents[piece] for piece in itertools.takewhile(lambda piece: piece != EOS, pieces))

    def decode(self, pieces: Iterable[int]) -> str:
        """As `decode_bytes`, as text; bytes that are not UTF-8 become surrogates, as in file names."""
        return self.decode_bytes(pieces).decode("utf-8", "surrogateescape")

    @cached_property
    def piece_bytes(self) -> NDArray[np.int64]:
        """(V,) bytes of text that each piece stands for; none for a special piece."""
        return np.asarray([*map(len, self.contents)])


class ByteVocabulary(TextVocabulary):
    """Byte b is piece 4 + b: nothing to learn, any text or binary content, and exactly as many pieces as bytes."""

    model = BYTES_MODEL

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return NUM_BYTE_PIECES

    @property
    def digest(self) -> str:
        return hashlib.sha256(BYTES_MODEL).hexdigest()

    def piece(self, index: int) -> str:
        """`<s>` of a special piece, `a` of a printable byte, `<0x0A>` of another, as in sentencepiece."""
        byte = index - FIRST
        return _SPECIAL[index] if byte < 0 else chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def encode_texts(self, texts: Sequence[bytes]) -> list[NDArray[np.generic]]:
        return [np.frombuffer(text, np.uint8).astype(self.piece_type) + np.uint16(FIRST) for text in texts]

    @cached_property
    def contents(self) -> list[bytes]:
        return [b""] * FIRST + [bytes([byte]) for byte in range(256)]


def text_vocabulary(vocabulary: Vocabulary) -> TextVocabulary:
    assert isinstance(vocabulary, TextVocabulary)
    return vocabulary


def _train(words: Mapping[str, int], size: int, model_type: str, **options: Any) -> bytes:
    """sentencepiece's model of `size` pieces, learned from word counts."""
    stream, lines = io.BytesIO(), (f"{word}\t{count}" for word, count in words.items())
    options |= {"model_type": model_type, "vocab_size": size, "num_threads": THREADS, "input_format": "tsv"}
    options |= {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS, "minloglevel": 2}
    options["normalization_rule_name"] = "identity"
    try:
        with signals_deferred():
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=stream, **options)
    except RuntimeError as error:
        # sentencepiece's own words, with the limit
        reason = " ".join(str(error).rpartition("] ")[2].split()) or "train has no words"
        raise DataError(f"data.vocabulary_size: {size} pieces cannot be learned from this corpus: {reason}") from None
    return stream.getvalue()
