"""One split of a token cache (rpr/data/cache.py), whose files are mapped into memory."""

import itertools
import mmap
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.data.vocabulary import BOS

# After so many reads of a batch its pages are given back. For 4,096 tokens of a corpus of 300 MB that costs 0.1 ms of
# CPU (windows of 256 tokens) to 0.6 ms (of 64); a training step on them takes tens of milliseconds.
READS_KEPT = 32
OFFSETS_AT_ONCE = 1 << 20  # when computing lengths
HASHED_AT_ONCE = 1000  # pairs or documents


class TokenSplit:
    """The encoded pairs or documents of one split; documents are targets without sources. A pickle holds only the path.

    Batches read at random, so all pages of a map would soon count as memory of every process that reads it (1.2 GB for
    4.5 million pairs). They are given back regularly, and stay in the system's cache.
    """

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type
        self._maps: dict[Path, mmap.mmap] = {}
        self._reads = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSplit, (self.directory, self.name, self._count, self._piece_type)

    def __len__(self) -> int:
        return self._count

    def row(self, side: str, index: int) -> NDArray[Any]:
        """Token IDs of one source or target, EOS included; uint16 or uint32."""
        return self.rows(side, [index])[0]

    def first(self, side: str, most: int | None = None) -> list[list[int]]:
        """The token IDs of the first sources or targets, EOS included; None: of all."""
        return [self.row(side, index).tolist() for index in range(len(self))[:most]]

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) what stands before each target: BOS."""
        return np.full(len(indices), BOS, np.int64)

    @property
    def target_offsets(self) -> NDArray[np.int64]:
        """(N + 1,) target i has the tokens offsets[i] : offsets[i + 1]."""
        return self._mapped("target", "offsets")

    @cached_property
    def source_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per source, EOS included."""
        return self._lengths("source")

    @cached_property
    def target_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per target, EOS included."""
        return self._lengths("target")

    def pieces(self, side: str) -> NDArray[Any]:
        """All token IDs of a side one after the other, not in memory until they are read."""
        self._reads += 1
        if self._reads % READS_KEPT == 0:
            self._advise(mmap.MADV_DONTNEED)
        return self._mapped(side, "pieces")

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The token IDs of the selected sources or targets, concatenated, and the length of each."""
        pieces, offsets = self.pieces(side), self._mapped(side, "offsets")
        rows = [pieces[offsets[index] : offsets[index + 1]] for index in indices]
        return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))

    def hashes(self) -> Iterator[int]:
        """Of the tokens of each pair or document; other ones in another process."""
        sides = [side for side in ("source", "target") if self._file(side, "offsets").exists()]
        for side, kind in itertools.product(sides, ("pieces", "offsets")):
            self._mapped(side, kind)
        self._advise(mmap.MADV_SEQUENTIAL)
        for first in range(0, self._count, HASHED_AT_ONCE):
            columns = []
            for side in sides:
                width = self._mapped(side, "pieces").itemsize
                ends = width * self._mapped(side, "offsets")[first : first + HASHED_AT_ONCE + 1]
                content = memoryview(self._maps[self._file(side, "pieces")])  # a document may be too large to copy
                columns.append([hash(content[start:end]) for start, end in itertools.pairwise(ends.tolist())])
            yield from map(hash, zip(*columns, strict=True))
            self._advise(mmap.MADV_DONTNEED)
        self._advise(mmap.MADV_RANDOM)

    def _lengths(self, side: str) -> NDArray[np.int32 | np.int64]:
        lengths = np.zeros(self._count, np.int32)
        if self._file(side, "offsets").exists():  # documents have no sources
            offsets = self._mapped(side, "offsets")
            if offsets[-1] >= 1 << 31:  # one document may have all of them
                lengths = np.zeros(self._count, np.int64)
            self._advise(mmap.MADV_SEQUENTIAL)
            for first in range(0, self._count, OFFSETS_AT_ONCE):
                end = first + OFFSETS_AT_ONCE
                lengths[first:end] = np.diff(offsets[first : end + 1])
                self._advise(mmap.MADV_DONTNEED)
            self._advise(mmap.MADV_RANDOM)
        return lengths

    def _mapped(self, side: str, kind: str) -> NDArray[Any]:
        if (path := self._file(side, kind)) not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[path].madvise(mmap.MADV_RANDOM)
        return np.frombuffer(self._maps[path], np.int64 if kind == "offsets" else self._piece_type)

    def _advise(self, advice: int) -> None:
        """How the kernel reads on (by default at random, a page at a time), or that it takes memory back."""
        for mapped in self._maps.values():
            mapped.madvise(advice)

    def _file(self, side: str, kind: str) -> Path:
        return self.directory / f"{self.name}.{side}.{kind}"
