"""A pseudo-terminal that this process writes to, and what its screen would show."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from types import TracebackType
from typing import IO

WIDTH = 150


class Terminal:
    """Programs write to `stream`; `read` returns everything they have written."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        self.stream: IO[str] = os.fdopen(self._theirs, "w", buffering=1)
        self._text = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._ours)
        self.stream.close()

    def read(self) -> str:
        while select.select([self._ours], [], [], 0.05)[0]:
            self._text += os.read(self._ours, 65536)
        return self._text.decode("utf-8", errors="replace")


def screen(text: str) -> list[str]:
    """The lines that a terminal shows after `text`, without blank ones. Escape sequences other than cursor up fail."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for part in re.findall(r"\x1b\[\d*[A-Za-z]|\x1b.?|[^\x1b]", text):
        if part.startswith("\x1b"):
            assert part.endswith("A"), part
            row = max(0, row - int(part[2:-1] or 1))
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [[]] * (row == len(rows))
        else:
            assert part.isprintable(), part
            rows[row] = [*rows[row], *" " * (column - len(rows[row]))]
            rows[row][column : column + 1] = part
            column += 1
    return [line for line in ("".join(cells).rstrip() for cells in rows) if line]
