"""One split of a token cache (rpr/data/cache.py), whose files are mapped into memory."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.data.vocabulary import BOS


class TokenSplit:
    """The encoded pairs or documents of one split; documents are targets without sources. A pickle holds the path."""

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type
        self._maps: dict[tuple[str, str], NDArray[Any]] = {}

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
        """(N,) tokens per source, EOS included; documents have none."""
        return self._lengths("source") if self._has_sources else np.zeros(self._count, np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per target, EOS included."""
        return self._lengths("target")

    def pieces(self, side: str) -> NDArray[Any]:
        """All token IDs of a side one after the other, not in memory until they are read."""
        return self._mapped(side, "pieces")

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The token IDs of the selected sources or targets, concatenated, and the length of each."""
        pieces, offsets = self.pieces(side), self._mapped(side, "offsets")
        rows = [pieces[offsets[index] : offsets[index + 1]] for index in indices]
        return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))

    def hashes(self) -> Iterator[int]:
        """Of the tokens of each pair or document; other ones in another process."""
        sides = ("source", "target") if self._has_sources else ("target",)
        return map(hash, zip(*map(self._hashes, sides), strict=True))

    def _hashes(self, side: str) -> Iterator[int]:
        pieces = self.pieces(side)
        for start, end in itertools.pairwise(self._mapped(side, "offsets")):
            yield hash(pieces[start:end].tobytes())

    @property
    def _has_sources(self) -> bool:
        return self._file("source", "offsets").exists()

    def _lengths(self, side: str) -> NDArray[np.int32 | np.int64]:
        lengths = np.diff(self._mapped(side, "offsets"))
        return lengths.astype(np.int32) if lengths.max(initial=0) < 1 << 31 else lengths

    def _mapped(self, side: str, kind: str) -> NDArray[Any]:
        if (side, kind) not in self._maps:
            dtype = np.int64 if kind == "offsets" else self._piece_type
            self._maps[side, kind] = np.asarray(np.memmap(self._file(side, kind), dtype, "r"))
        return self._maps[side, kind]

    def _file(self, side: str, kind: str) -> Path:
        return self.directory / f"{self.name}.{side}.{kind}"
