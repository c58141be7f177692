"""A pseudo-terminal that a command or this process writes to, and what its screen would show."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
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

    def run(self, *command: str, interrupt_when: Callable[[str], bool] | None = None, seconds: float = 200) -> int:
        """The exit code of a command; Ctrl-C is typed once when the condition holds for the output."""

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run in the background

        process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            preexec_fn=own_terminal,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        end = time.monotonic() + seconds
        while process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                raise TimeoutError(self.read())
            if interrupt_when is not None and interrupt_when(self.read()):
                os.write(self._ours, b"\x03")
                interrupt_when = None
            self.read()
        return process.returncode


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
