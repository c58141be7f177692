"""Pieces of documents, bytes or byte-pair pieces, both lossless: every piece stands for bytes of the text, which they
give back one after the other.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import NUM_BYTE_PIECES
from rpr.data.vocabulary import BYTES_MODEL, EOS, NEWLINE, RESERVED, SPACE, Vocabulary, train_model
from rpr.errors import DataError
from rpr.io.atomic import replace_file

FIRST = NUM_BYTE_PIECES - 256  # the piece of byte 0 of a ByteVocabulary, after the special ones
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# Words with the spaces before them, and runs of spaces; no piece goes beyond one. Not what sentencepiece skips.
_WORD = re.compile(rf" *(?:\w+|[^\w\s\x00-\x1f{SPACE}{RESERVED}]+)| +")
# Lines, long ones cut: sentencepiece needs a hundred times their memory. It would read SPACE as a space.
_PART = re.compile(rf"[^\n{SPACE}]{{0,9999}}\n|[^\n{SPACE}]{{1,9999}}|{SPACE}")


class TextVocabulary(Vocabulary):
    """IDs 0 to 3 are PAD, UNK, BOS and EOS, as in every vocabulary; they stand for no text."""

    @property
    @abstractmethod
    def contents(self) -> list[bytes]:
        """What each piece stands for."""

    @abstractmethod
    def encode_text(self, text: bytes) -> NDArray[np.generic]:
        """The pieces (N,) of a text. Raises UnicodeDecodeError if they have to be of UTF-8."""

    def encode_batch(
        self, sentences: Sequence[str], *, eos: bool = False, threads: int | None = None
    ) -> list[list[int]]:
        """The pieces of each text, without BOS. Raises DataError as `encode_text`."""
        end = [EOS] if eos else []
        try:
            return [[*self.encode_text(text.encode("utf-8", "surrogateescape")).tolist(), *end] for text in sentences]
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

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return NUM_BYTE_PIECES

    def save(self, path: Path) -> None:
        """Write the model atomically, for `Vocabulary.load`."""
        replace_file(path, BYTES_MODEL)

    @property
    def digest(self) -> str:
        """sha256 of what `save` writes."""
        return hashlib.sha256(BYTES_MODEL).hexdigest()

    def piece(self, index: int) -> str:
        """`<s>` of a special piece, `a` of a printable byte, `<0x0A>` of another, as in sentencepiece."""
        byte = index - FIRST
        return _SPECIAL[index] if byte < 0 else chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def encode_text(self, text: bytes) -> NDArray[np.generic]:
        return np.frombuffer(text, np.uint8).astype(self.piece_type) + np.uint16(FIRST)

    @cached_property
    def contents(self) -> list[bytes]:
        return [b""] * FIRST + [bytes([byte]) for byte in range(256)]


class BytePairVocabulary(TextVocabulary):
    """Byte-pair pieces of UTF-8, and bytes for what has no other piece. Newline and tab are pieces of their own."""

    @classmethod
    def learn_text(cls, words: Mapping[str, int], size: int, model_path: Path) -> BytePairVocabulary:
        """Learn exactly `size` pieces from `count_text_words`, 256 bytes included; as `Vocabulary.learn`."""
        model = train_model(
            words, size, "bpe", "4 special pieces, 256 bytes, newline and tab", character_coverage=0.9995,
            byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True, user_defined_symbols=[NEWLINE, "\t"],
        )  # fmt: skip
        replace_file(model_path, model)
        return cls(model)

    def encode_text(self, text: bytes) -> NDArray[np.generic]:
        parts = _PART.findall(text.decode())
        pieces = self._processor.encode(parts, num_threads=1)
        if SPACE in parts:
            space = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
            pieces = [space if part == SPACE else of_part for part, of_part in zip(parts, pieces, strict=True)]
        return np.fromiter(itertools.chain.from_iterable(pieces), self.piece_type)

    @cached_property
    def contents(self) -> list[bytes]:
        contents = [b""] * len(_SPECIAL)
        for index in range(len(_SPECIAL), len(self)):
            piece = self.piece(index)  # of a byte <0x41>
            is_byte = self._processor.is_byte(index)
            contents.append(bytes.fromhex(piece[3:5]) if is_byte else piece.replace(SPACE, " ").encode())
        return contents


def count_text_words(text: str) -> Counter[str]:
    """The words of a text that byte-pair pieces are learned from."""
    return Counter(word for word in _WORD.findall(text) if len(word) <= 1000)


def text_vocabulary(vocabulary: Vocabulary) -> TextVocabulary:
    """The vocabulary of a corpus of documents."""
    assert isinstance(vocabulary, TextVocabulary)
    return vocabulary
