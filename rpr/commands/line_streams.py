"""Reads lines as they arrive and writes lines as they are ready, without losing any, for `rpr-cli translate` and
`generate`. Lines are bytes, and only a newline ends a line.
"""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rpr.errors import DataError
from rpr.io.atomic import put_in_place
from rpr.io.locks import try_lock

CHUNK_BYTES = 2**16


def batches(descriptor: int, max_lines: int) -> Iterator[list[bytes]]:
    """The lines of a file in batches of `max_lines`; of a pipe or a terminal, those that have arrived, at least one.
    They are without their newlines; the last may have none. At most one chunk is read beyond a batch, so an endless
    input waits in its pipe.
    """
    of_file = _is_file(descriptor)
    lines: list[bytes] = []
    partial: list[bytes] = []  # of a line whose end has not arrived
    while chunk := os.read(descriptor, CHUNK_BYTES):
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


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def count_lines(descriptor: int) -> int | None:
    """Lines from the current file position, which is not changed; None if it is not a regular file."""
    if not _is_file(descriptor):
        return None
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    with open(descriptor, "rb", closefd=False) as file:
        lines = sum(1 for _ in file)
    os.lseek(descriptor, place, os.SEEK_SET)
    return lines


class Output:
    """Standard output, or a file that appears once complete; until then its whole lines are in FILE.part."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, FILE.part is opened without changing it. Raises OSError if it cannot be written, DataError if
        another process is writing it.
        """
        self._path, self._bytes = path, 0  # of whole lines
        if path is None:
            self._descriptor, self._name = sys.stdout.fileno(), "stdout"
            return
        self._part = part_of(path)
        self._descriptor, self._name = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o666), str(self._part)
        with suppress(OSError):  # no locks on this file system
            if not try_lock(self._descriptor):
                raise DataError(f"output: another process is writing {self._part}; wait for it, or give another file")

    def write(self, lines: bytes) -> None:
        """Write whole lines, unbuffered. BrokenPipeError: the reader of a pipe is gone; OSError: the disk is full."""
        if self._path is not None and not self._bytes:
            os.ftruncate(self._descriptor, 0)
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            error.filename = self._name
            raise
        self._bytes += len(lines)

    def finish(self) -> None:
        """Put the file in its place."""
        if self._path is not None:
            os.ftruncate(self._descriptor, self._bytes)  # an empty input wrote nothing
            put_in_place(self._part, self._path)  # while it is still locked
            os.close(self._descriptor)
            self._path = None

    def give_up(self) -> str:
        """Stop early, unless it is finished; returns words that say where the lines written so far are, if any."""
        if self._path is None:
            return ""
        if self._bytes:
            os.ftruncate(self._descriptor, self._bytes)
        elif not os.fstat(self._descriptor).st_size:
            self._part.unlink()
        os.close(self._descriptor)
        return f" in {self._part}; {self._path} was not written" if self._bytes else ""


def part_of(path: Path) -> Path:
    """The file that holds the lines of an unfinished output."""
    return path.with_name(f"{path.name}.part")
