"""Lines in as they arrive and lines out as they are made, without losing any: what `rpr-cli translate` reads from and
writes to. Lines are bytes, and only a newline ends one.
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
from typing import Protocol

from rpr.errors import DataError
from rpr.io.atomic import put_in_place
from rpr.io.locks import try_lock

READ_AT_ONCE = 2**16
MAX_BATCH_BYTES = 2**20  # of the lines of a batch together; a line above it goes alone
MAX_LINE_BYTES = 2**24
PATIENCE_SECONDS = 0.02  # for more lines, once there is one: nobody at a terminal feels it, and a fast pipe catches up


class LineReader:
    """The lines of a file, pipe or terminal in batches: those that have arrived when a batch is asked for, at least
    one. Beyond a batch no more than one chunk is read, so an endless input waits in its pipe.
    """

    def __init__(self, descriptor: int, name: str, max_lines: int) -> None:
        """`name` is what messages call it; a batch has at most `max_lines`."""
        self._descriptor = descriptor
        self._name = name
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []  # a line whose end has not come
        self._num_lines = 0
        self._ended = False

    def batches(self) -> Iterator[list[bytes]]:
        """The lines without their newlines; the last one may lack it.

        Raises:
            DataError: the input cannot be read, or a line has more than MAX_LINE_BYTES.
        """
        while self._arrived():
            batch = [self._lines.popleft()]
            size = len(batch[0])
            while self._lines and len(batch) < self._max_lines and size + len(self._lines[0]) <= MAX_BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            yield batch

    def _arrived(self) -> bool:
        """Wait for a line, and then only for what comes at once. False at the end of the input."""
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
        """One chunk of the input into lines: the bytes of those that have ended."""
        try:
            chunk = os.read(self._descriptor, READ_AT_ONCE)
        except OSError as error:
            raise DataError(f"{self._name}: cannot be read ({error.strerror})") from None
        *ends, rest = chunk.split(b"\n")
        before = len(self._lines)
        if not chunk:
            self._ended = True
            if self._begun:
                self._lines.append(b"".join(self._begun))
        for end in ends:
            self._lines.append(b"".join([*self._begun, end]))
            self._begun = []
        if rest:
            self._begun.append(rest)
        self._num_lines += len(self._lines) - before
        if len(self._begun) > MAX_LINE_BYTES // READ_AT_ONCE and sum(map(len, self._begun)) > MAX_LINE_BYTES:
            raise DataError(
                f"{self._name}: line {self._num_lines + 1} has more than {MAX_LINE_BYTES // 2**20} MiB; give text with "
                "a sentence on each line"
            )
        return sum(len(self._lines[index]) for index in range(before, len(self._lines)))


def count_lines(descriptor: int) -> int | None:
    """How many lines there are from where the file stands, which stays there; None: no regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    place, lines, last = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while chunk := os.pread(descriptor, 16 * READ_AT_ONCE, place):
        place, lines, last = place + len(chunk), lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


class Output(Protocol):
    """Where lines go."""

    def write(self, lines: bytes) -> None:
        """Whole lines, out at once."""

    def finish(self) -> None:
        """All is written."""

    def give_up(self) -> str:
        """No more will come; the words that say where what was written is, or none."""


class DescriptorOutput:
    """Standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, lines: bytes) -> None:
        """Raises BrokenPipeError when the reader is gone, DataError when the disk is full."""
        _write_all(self._descriptor, lines, "output")

    def finish(self) -> None:
        """Nothing is kept back."""

    def give_up(self) -> str:
        return ""


class FileOutput:
    """A file that is there when it is whole; until then its lines are in FILE.part."""

    def __init__(self, path: Path) -> None:
        """Opens FILE.part without changing it. Raises OSError when it cannot be written, DataError when another process
        is writing it.
        """
        self.path = path
        self.part = part_of(path)
        self._bytes: int | None = None  # of whole lines
        while True:
            self._was_there = self.part.exists()
            self._descriptor = os.open(self.part, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                locked = try_lock(self._descriptor)
            except OSError:  # no locks on this file system
                return
            if not locked:
                os.close(self._descriptor)
                raise DataError(f"output: another process is writing {self.part}; wait for it, or give another file")
            with suppress(FileNotFoundError):  # what was opened may have become another process's output just now
                if os.path.samestat(os.fstat(self._descriptor), self.part.stat()):
                    return
            os.close(self._descriptor)

    def write(self, lines: bytes) -> None:
        """Raises DataError when the disk is full."""
        if self._bytes is None:
            os.ftruncate(self._descriptor, 0)
            self._bytes = 0
        _write_all(self._descriptor, lines, f"output {self.part}")
        self._bytes += len(lines)

    def finish(self) -> None:
        if self._bytes is None:  # an empty input
            os.ftruncate(self._descriptor, 0)
        try:
            put_in_place(self.part, self.path)  # before it is closed, and another process may have it
        except OSError as error:
            raise DataError(f"output {self.path}: cannot be written ({error.strerror}); see {self.part}") from None
        os.close(self._descriptor)

    def give_up(self) -> str:
        if self._bytes is not None:
            os.ftruncate(self._descriptor, self._bytes)
        if self._bytes is None and not self._was_there:
            self.part.unlink()
        os.close(self._descriptor)
        return f" in {self.part}, and {self.path} is not written" if self._bytes else ""


def part_of(path: Path) -> Path:
    """The file that holds the first lines of an output."""
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
