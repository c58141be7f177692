"""One split of a token cache (rpr/data/cache.py), read from its files on demand."""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.data.vocabulary import BOS

TWO_OFFSETS = struct.Struct("=qq")
READ_AT_ONCE = 1 << 20  # offsets per read when computing lengths


class TokenSplit:
    """The encoded pairs of one split. A pickle holds only the path.

    Files are read with pread, not memory-mapped: batches access sentences at random, so a map would soon count fully as
    memory (1.2 GB for 4.5 million pairs) of every process that reads it.
    """

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type

    def __getstate__(self) -> dict[str, object]:
        return {key: self.__dict__[key] for key in ("directory", "name", "_count", "_piece_type")}

    def __len__(self) -> int:
        return self._count

    def source(self, index: int) -> NDArray[Any]:
        """Token IDs of one source, EOS included; uint16 or uint32."""
        return self.rows("source", [index])[0]

    def target(self, index: int) -> NDArray[Any]:
        """Token IDs of one target, EOS included; uint16 or uint32."""
        return self.rows("target", [index])[0]

    def first(self, side: str, most: int | None = None) -> list[list[int]]:
        """The token IDs of the first sources or targets, EOS included; None: of all."""
        return [self.rows(side, [index])[0].tolist() for index in range(len(self))[:most]]

    def tokens(self, start: int, length: int) -> NDArray[Any]:
        """`length` token IDs of the targets one after the other, from token `start` on."""
        size = np.dtype(self._piece_type).itemsize
        return np.frombuffer(os.pread(self._descriptors["target"][0], size * length, size * start), self._piece_type)

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) what stands before each target: BOS."""
        return np.full(len(indices), BOS, np.int64)

    @cached_property
    def target_offsets(self) -> NDArray[np.int64]:
        """(N + 1,) target i has the tokens offsets[i] : offsets[i + 1]."""
        return np.fromfile(self._file("target", "offsets"), np.int64)

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """(N,) tokens per source, EOS included."""
        return self._lengths("source")

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """(N,) tokens per target, EOS included."""
        return self._lengths("target")

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The token IDs of the selected sources or targets, concatenated, and the length of each."""
        pieces, offsets = self._descriptors[side]
        size = np.dtype(self._piece_type).itemsize
        rows = []
        for index in indices:
            start, end = TWO_OFFSETS.unpack(os.pread(offsets, TWO_OFFSETS.size, 8 * index))
            rows.append(os.pread(pieces, size * (end - start), size * start))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // size
        return np.frombuffer(b"".join(rows), self._piece_type), lengths

    def _lengths(self, side: str) -> NDArray[np.int32]:
        if not self._file(side, "offsets").exists():
            return np.zeros(self._count, np.int32)  # documents have no sources
        lengths = np.empty(self._count, np.int32)
        with self._file(side, "offsets").open("rb") as offsets:
            before = np.fromfile(offsets, np.int64, 1)
            for first in range(0, self._count, READ_AT_ONCE):
                ends = np.fromfile(offsets, np.int64, min(READ_AT_ONCE, self._count - first))
                lengths[first : first + len(ends)] = np.diff(ends, prepend=before)
                before = ends[-1:]
        return lengths

    @cached_property
    def _descriptors(self) -> dict[str, list[int]]:
        """Those of the pieces and offsets of each side, closed when this object is garbage-collected. Documents have no
        source side.
        """
        opened = {}
        for side in ("source", "target"):
            if not self._file(side, "pieces").exists():
                continue
            opened[side] = [os.open(self._file(side, kind), os.O_RDONLY) for kind in ("pieces", "offsets")]
            for descriptor in opened[side]:
                weakref.finalize(self, os.close, descriptor)
        return opened

    def _file(self, side: str, kind: str) -> Path:
        return self.directory / f"{self.name}.{side}.{kind}"
