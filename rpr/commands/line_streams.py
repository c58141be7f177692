"""Reads lines as they arrive and writes lines as they are ready, without losing any, for `rpr-cli translate`. Lines are
bytes, and only a newline ends a line.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rpr.errors import DataError
from rpr.io.atomic import put_in_place
from rpr.io.locks import try_lock

CHUNK_BYTES = 2**16
MAX_BATCH_BYTES = 2**20  # total of a batch's lines; a longer line is a batch of its own
MAX_LINE_BYTES = 2**24
PATIENCE_SECONDS = 0.02  # for more lines after the first: imperceptible at a terminal, and lets a fast pipe catch up


class LineReader:
    """The lines of a file, pipe or terminal in batches. A batch is the lines that have arrived when it is requested, at
    least one. At most one chunk is read beyond a batch, so an endless input waits in its pipe.
    """

    def __init__(self, descriptor: int, name: str, max_lines: int) -> None:
        """`name` is the input's name in messages; a batch has at most `max_lines` lines."""
        self._descriptor = descriptor
        self._name = name
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []  # of a line whose end has not arrived
        self._num_lines = 0
        self._ended = False

    def batches(self) -> Iterator[list[bytes]]:
        """The lines without their newlines; the last line may have none.

        Raises:
            DataError: the input cannot be read, or a line has more than MAX_LINE_BYTES.
        """
        while self._wait_for_lines():
            batch = [self._lines.popleft()]
            size = len(batch[0])
            while self._lines and len(batch) < self._max_lines and size + len(self._lines[0]) <= MAX_BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            yield batch

    def _wait_for_lines(self) -> bool:
        """Wait for a line, then PATIENCE_SECONDS for more. False at the end of the input."""
        deadline: float | None = None
        size = sum(map(len, self._lines))
        while not self._ended and len(self._lines) < self._max_lines and size < MAX_BATCH_BYTES:
            if self._lines and deadline is None:
                deadline = time.monotonic() + PATIENCE_SECONDS
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], seconds)[0]:
                break
            size += self._read()
        return bool(self._lines)

    def _read(self) -> int:
        """Read a chunk of the input; returns the number of bytes in the lines it completed."""
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except OSError as error:
            raise DataError(f"{self._name}: cannot be read ({error.strerror})") from None
        *ends, rest = chunk.split(b"\n")
        before = len(self._lines)
        if not chunk:
            self._ended = True
            if self._partial:
                self._lines.append(b"".join(self._partial))
        for end in ends:
            self._lines.append(b"".join([*self._partial, end]))
            self._partial = []
        if rest:
            self._partial.append(rest)
        self._num_lines += len(self._lines) - before
        if len(self._partial) > MAX_LINE_BYTES // CHUNK_BYTES and sum(map(len, self._partial)) > MAX_LINE_BYTES:
            raise DataError(
                f"{self._name}: line {self._num_lines + 1} has more than {MAX_LINE_BYTES // 2**20} MiB; give text with "
                "one sentence per line"
            )
        return sum(len(self._lines[index]) for index in range(before, len(self._lines)))


def count_lines(descriptor: int) -> int | None:
    """Lines from the current file position, which is not changed; None if it is not a regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    place, lines, last = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while chunk := os.pread(descriptor, 16 * CHUNK_BYTES, place):
        place, lines, last = place + len(chunk), lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


class DescriptorOutput:
    """Standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, lines: bytes) -> None:
        """Write complete lines, unbuffered.

        Raises:
            BrokenPipeError: the reader is gone.
            DataError: the disk is full.
        """
        _write_all(self._descriptor, lines, "output")

    def finish(self) -> None:
        """Nothing is buffered."""

    def give_up(self) -> str:
        """As of FileOutput."""
        return ""


class FileOutput:
    """A file that appears once complete; until then its lines are in FILE.part."""

    def __init__(self, path: Path) -> None:
        """Opens FILE.part without changing it. Raises OSError if it cannot be written, DataError if another process is
        writing it.
        """
        self.path = path
        self.part = part_of(path)
        self._bytes: int | None = None  # of complete lines
        while True:
            self._existed = self.part.exists()
            self._descriptor = os.open(self.part, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                locked = try_lock(self._descriptor)
            except OSError:  # no locks on this file system
                return
            if not locked:
                os.close(self._descriptor)
                raise DataError(f"output: another process is writing {self.part}; wait for it, or give another file")
            with suppress(FileNotFoundError):  # another process may just have renamed the opened file
                if os.path.samestat(os.fstat(self._descriptor), self.part.stat()):
                    return
            os.close(self._descriptor)

    def write(self, lines: bytes) -> None:
        """Write complete lines, unbuffered. Raises DataError if the disk is full."""
        if self._bytes is None:
            os.ftruncate(self._descriptor, 0)
            self._bytes = 0
        _write_all(self._descriptor, lines, f"output {self.part}")
        self._bytes += len(lines)

    def finish(self) -> None:
        if self._bytes is None:  # an empty input
            os.ftruncate(self._descriptor, 0)
        try:
            put_in_place(self.part, self.path)  # while it is still locked
        except OSError as error:
            raise DataError(f"output {self.path}: cannot be written ({error.strerror}); see {self.part}") from None
        os.close(self._descriptor)

    def give_up(self) -> str:
        """Stop early; returns words that say where the lines written so far are, or an empty string."""
        if self._bytes is not None:
            os.ftruncate(self._descriptor, self._bytes)
        if self._bytes is None and not self._existed:
            self.part.unlink()
        os.close(self._descriptor)
        return f" in {self.part}; {self.path} was not written" if self._bytes else ""


Output = DescriptorOutput | FileOutput


def part_of(path: Path) -> Path:
    """The file that holds the lines of an unfinished output."""
    return path.with_name(f"{path.name}.part")


def _write_all(descriptor: int, content: bytes, name: str) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{name}: cannot be written ({error.strerror})") from None
