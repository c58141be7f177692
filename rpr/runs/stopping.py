"""SIGTERM as orderly as Ctrl-C, for commands that do all their work in one process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT = 128 + signal.SIGTERM


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """While it is entered, SIGTERM raises SystemExit (143), so that what is being written is removed. Off the main
    thread, which alone hears signals: nothing.
    """

    def stop(signum: int, frame: object) -> None:
        raise SystemExit(EXIT)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def told_when_stopped() -> Iterator[None]:
    """The same, and told in one line. Also for a function, as its decorator."""
    try:
        with sigterm_stops():
            yield
    except SystemExit as stopped:
        if stopped.code == EXIT:
            print("rpr-cli: interrupted", file=sys.stderr)
        raise
