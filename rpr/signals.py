"""Handling of SIGTERM and Ctrl-C."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGTERM_EXIT = 128 + signal.SIGTERM


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Install a handler for these signals, and restore the previous ones at the end. Only the main thread may do so: on
    another, as of some launchers, nothing changes.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


_received: list[int] = []  # signals that were to end the work within the outermost of the contexts below


def _exit(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise SystemExit(128 + number)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within this context SIGTERM raises SystemExit (143) in the main thread, so that files and child processes are
    cleaned up.
    """
    within_another = signal.getsignal(signal.SIGTERM) == _exit
    try:
        with _handled(_exit, signal.SIGTERM):
            yield
    finally:
        if not within_another:
            _received.clear()


@contextmanager
def unhandled_sigcont() -> Iterator[None]:
    """Within this context SIGCONT, which SLURM sends before any other signal, has no handler: submitit's logs it, and
    logging would swallow the exception by which submitit's handler of SIGUSR2 reports the time limit.
    """
    with _handled(signal.SIG_DFL, signal.SIGCONT):
        yield


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Within this context Ctrl-C, SIGTERM, and SIGCHLD, whose handler raises the death of a loader worker, wait for its
    end, also by an error: no line is torn, and compiled code that calls Python does not turn their exception into an
    error of its own.
    """
    received: list[int] = []
    try:
        with _handled(lambda number, frame: received.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            yield
    finally:
        for number in sorted({*received}):  # first what stops the work, unless it is ignored
            signal.raise_signal(number)


def stop_before(error: BaseException) -> SystemExit | KeyboardInterrupt | None:
    """The SIGTERM or Ctrl-C in whose course an error was raised; None if there was none. An error of compiled code that
    the signal interrupted has lost what it was raised from.
    """
    earlier: BaseException | None = error
    while earlier is not None and not isinstance(earlier, (SystemExit, KeyboardInterrupt)):
        earlier = earlier.__context__
    if earlier is None and _received:
        return SystemExit(128 + _received[0])
    return earlier


def die_with_parent(parent: int) -> None:
    """Send this process SIGTERM if it is no longer a child of the process `parent`; on Linux also when that one dies,
    even by SIGKILL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
