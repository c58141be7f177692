"""Reads lines as they arrive and writes lines as they are ready, without losing any, for `rpr-cli translate`. Lines are
bytes, and only a newline ends a line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rpr.errors import DataError
from rpr.io.atomic import put_in_place
from rpr.io.locks import try_lock

CHUNK_BYTES = 2**16


def batches(descriptor: int, name: str, max_lines: int) -> Iterator[list[bytes]]:
    """The lines of a file in batches of `max_lines`; of a pipe or a terminal, those that have arrived, at least one.
    They are without their newlines; the last may have none. At most one chunk is read beyond a batch, so an endless
    input waits in its pipe.

    Raises:
        DataError: the input `name` cannot be read.
    """
    of_file = _is_file(descriptor)
    lines: list[bytes] = []
    partial: list[bytes] = []  # of a line whose end has not arrived
    while chunk := _read(descriptor, name):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            lines.append(b"".join([*partial, end]))
            partial = []
        partial.append(rest)
        while len(lines) >= max_lines or (lines and not of_file):
            yield lines[:max_lines]
            lines = lines[max_lines:]
    if last := b"".join(partial):
        lines.append(last)
    if lines:
        yield lines


def _read(descriptor: int, name: str) -> bytes:
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror})") from None


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def count_lines(descriptor: int) -> int | None:
    """Lines from the current file position, which is not changed; None if it is not a regular file."""
    if not _is_file(descriptor):
        return None
    place, lines, last = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while chunk := os.pread(descriptor, 16 * CHUNK_BYTES, place):
        place, lines, last = place + len(chunk), lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


class Output:
    """Standard output, or a file that appears once complete; until then its lines are in FILE.part."""

    def __init__(self, to: int | Path) -> None:
        """`to`: a descriptor, or a path, whose FILE.part is opened without changing it.

        Raises:
            OSError: FILE.part cannot be written.
            DataError: another process is writing it.
        """
        self._bytes: int | None = None  # of complete lines; None until the first is written
        if isinstance(to, int):
            self._descriptor, self._path, self._name = to, None, "output"
            return
        self._path, self._part = to, part_of(to)
        self._name, self._existed = f"output {self._part}", self._part.exists()
        self._descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o666)
        with suppress(OSError):  # no locks on this file system
            if not try_lock(self._descriptor):
                raise DataError(f"output: another process is writing {self._part}; wait for it, or give another file")

    def write(self, lines: bytes) -> None:
        """Write complete lines, unbuffered.

        Raises:
            BrokenPipeError: the reader of a pipe is gone.
            DataError: the disk is full.
        """
        if self._path is not None and self._bytes is None:
            os.ftruncate(self._descriptor, 0)
        self._bytes = self._bytes or 0
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DataError(f"{self._name}: cannot be written ({error.strerror})") from None
        self._bytes += len(lines)

    def finish(self) -> None:
        """Put the file in its place."""
        if self._path is None:
            return
        os.ftruncate(self._descriptor, self._bytes or 0)  # an empty input wrote nothing
        try:
            put_in_place(self._part, self._path)  # while it is still locked
        except OSError as error:
            raise DataError(f"output {self._path}: cannot be written ({error.strerror}); see {self._part}") from None
        os.close(self._descriptor)

    def give_up(self) -> str:
        """Stop early; returns words that say where the lines written so far are, or an empty string."""
        if self._path is None:
            return ""
        if self._bytes is not None:
            os.ftruncate(self._descriptor, self._bytes)
        elif not self._existed:
            self._part.unlink()
        os.close(self._descriptor)
        return f" in {self._part}; {self._path} was not written" if self._bytes else ""


def part_of(path: Path) -> Path:
    """The file that holds the lines of an unfinished output."""
    return path.with_name(f"{path.name}.part")
