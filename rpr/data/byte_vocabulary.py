"""Bytes as pieces: nothing to learn, any text or binary content, and exactly as many pieces as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import NUM_BYTE_PIECES
from rpr.data.vocabulary import BYTES_MODEL, EOS, Vocabulary
from rpr.io.atomic import replace_file

FIRST = NUM_BYTE_PIECES - 256  # the piece of byte 0, after the special ones
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")


class ByteVocabulary(Vocabulary):
    """IDs 0 to 3 are PAD, UNK, BOS and EOS, as in every vocabulary; byte b is 4 + b."""

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

    def encode_batch(
        self, sentences: Sequence[str], *, eos: bool = False, threads: int | None = None
    ) -> list[list[int]]:
        """The pieces of each text, without BOS."""
        end = [EOS] if eos else []
        return [[*self.encode_text(text.encode("utf-8", "surrogateescape")).tolist(), *end] for text in sentences]

    def encode_text(self, text: bytes) -> NDArray[np.generic]:
        """The pieces (N,) of a text of N bytes."""
        return np.frombuffer(text, np.uint8).astype(self.piece_type) + np.uint16(FIRST)

    def decode_bytes(self, pieces: Iterable[int]) -> bytes:
        """The content up to the first EOS, without the other special pieces."""
        array = np.fromiter(pieces, np.int64)
        ends = np.flatnonzero(array == EOS)
        array = array[: ends[0]] if len(ends) else array
        return (array[array >= FIRST] - FIRST).astype(np.uint8).tobytes()

    def decode(self, pieces: Iterable[int]) -> str:
        """As `decode_bytes`, as text; bytes that are not UTF-8 become surrogates, as in file names."""
        return self.decode_bytes(pieces).decode("utf-8", "surrogateescape")

    @property
    def piece_bytes(self) -> NDArray[np.int64]:
        """(V,) bytes of text that each piece stands for; none for a special piece."""
        return (np.arange(len(self)) >= FIRST).astype(np.int64)


def byte_vocabulary(vocabulary: Vocabulary) -> ByteVocabulary:
    """The vocabulary of a corpus of documents."""
    assert isinstance(vocabulary, ByteVocabulary)
    return vocabulary
