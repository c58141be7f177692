"""One split of a token cache (rpr/data/cache.py), memory-mapped."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TokenSplit:
    """The pieces of one split, read from disk as they are touched. Pickling it sends only its address."""

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type

    def __getstate__(self) -> dict[str, object]:
        return {key: self.__dict__[key] for key in ("directory", "name", "_count", "_piece_type")}

    def __len__(self) -> int:
        return self._count

    def source(self, index: int) -> NDArray[Any]:
        """Pieces of one source, EOS included; uint16 or uint32."""
        pieces, offsets = self._source
        return pieces[offsets[index] : offsets[index + 1]]

    def target(self, index: int) -> NDArray[Any]:
        """Pieces of one target, EOS included; uint16 or uint32."""
        pieces, offsets = self._target
        return pieces[offsets[index] : offsets[index + 1]]

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """(N,) pieces of each source, EOS included."""
        return np.diff(self._source[1]).astype(np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """(N,) pieces of each target, EOS included."""
        return np.diff(self._target[1]).astype(np.int32)

    def source_rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """All pieces of the side, and where the chosen sources start in them, and their lengths."""
        pieces, offsets = self._source
        return pieces, offsets[indices], offsets[indices + 1] - offsets[indices]

    def target_rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """As source_rows, for the targets."""
        pieces, offsets = self._target
        return pieces, offsets[indices], offsets[indices + 1] - offsets[indices]

    @cached_property
    def _source(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._mapped("source")

    @cached_property
    def _target(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._mapped("target")

    def _mapped(self, side: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        stem = self.directory / f"{self.name}.{side}"
        # As plain arrays: np.memmap's own indexing and slicing cost several times as much.
        pieces = np.asarray(np.memmap(f"{stem}.pieces", np.dtype(self._piece_type), mode="r"))
        return pieces, np.asarray(np.memmap(f"{stem}.offsets", np.int64, mode="r"))
