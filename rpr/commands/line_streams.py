"""Reading lines as they arrive, for `rpr-cli translate` and `generate`."""

import os
import stat
import sys
from collections.abc import Iterator

from rpr.errors import ConfigError
from rpr.io.escape import note

CHUNK_BYTES = 2**16


def stdin() -> int:
    """The descriptor of stdin; raises ConfigError if it is closed."""
    if sys.stdin is None:
        raise ConfigError("stdin is closed; give input=FILE, or prompt=TEXT to generate")
    return sys.stdin.fileno()


def batches(descriptor: int, max_lines: int) -> Iterator[list[bytes]]:
    """The lines of a file in batches of `max_lines`; of a pipe or a terminal, those that have arrived, at least one.
    They are without their newlines; the last may have none. An input without any newline has a line at each carriage
    return. At most one chunk is read beyond a batch, so an endless input waits in its pipe.
    """
    if os.isatty(descriptor):
        note("reading from the terminal: press Enter to end a line, Ctrl-D to quit")
    of_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    lines: list[bytes] = []
    partial: list[bytes] = []  # of a line whose end has not arrived
    seen = False  # a newline
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            lines.append(b"".join([*partial, end]))
            partial, seen = [], True
        partial.append(rest)
        while len(lines) >= max_lines or (lines and not of_file):
            yield lines[:max_lines]
            lines = lines[max_lines:]
    if last := b"".join(partial):
        lines += [last] if seen else last.removesuffix(b"\r").split(b"\r")
    for start in range(0, len(lines), max_lines):
        yield lines[start : start + max_lines]
