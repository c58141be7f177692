"""Worker processes that apply a function to tasks, with results in task order: the standard library's pool. Workers
ignore Ctrl-C, and exit when their parent exits, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TypeVar

from rpr.errors import ConfigError, RunError
from rpr.io.escape import note
from rpr.io.resources import resident_peak
from rpr.signals import signals_deferred

ORPHAN_SECONDS = 10
_LONGEST_FOLDER = 70  # bytes, with which the names of sockets stay below the system's limit of 107
T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """A pool of worker processes; with `processes`=1 the work is done in this process."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.peak_bytes = 0  # of the largest worker
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield function(task) for each task, in order. Functions and tasks must be picklable. At most `processes` + 1
        tasks and results are in memory.

        Raises what the function raises; RunError if workers cannot be started or one dies.
        """
        if self.processes == 1:
            yield from map(function, tasks)
            return
        pending: deque[Future[tuple[R, int]]] = deque()
        try:
            for task in tasks:
                pending.append(self._submit(function, task))
                if len(pending) > self.processes:
                    yield self._result(pending)
            while pending:
                yield self._result(pending)
        except BrokenProcessPool:
            raise RunError(
                "a worker process died, perhaps because memory ran out; rerun the same command to resume the build"
            ) from None

    def _submit(self, function: Callable[[T], R], task: T) -> Future[tuple[R, int]]:
        """Workers start here, on demand, with SIGINT blocked: Ctrl-C would interrupt their imports with a traceback, as
        a signal to this process would that ends it before they know what to do.
        """
        try:
            with signals_deferred():
                if self._pool is None:
                    spawn = multiprocessing.get_context("spawn")
                    self._pool = ProcessPoolExecutor(self.processes, spawn, _follow_parent)
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    return self._pool.submit(_measured, function, task)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except OSError as error:
            raise RunError(
                f"cannot start {self.processes} worker processes ({error.strerror or error}); start fewer: "
                "rpr-cli prepare ... processes=1"
            ) from None

    def _result(self, pending: deque[Future[tuple[R, int]]]) -> R:
        result, peak = pending.popleft().result()  # a worker that dies ends the wait
        self.peak_bytes = max(self.peak_bytes, peak)
        return result


def _measured(function: Callable[[T], R], task: T) -> tuple[R, int]:
    return function(task), resident_peak()


def _follow_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # blocked so far, or not if another thread started this process
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def shorten_socket_paths() -> None:
    """Let this process and its loader workers, which send batches through sockets in the temporary folder, create them
    in /tmp if TMPDIR is too long for the name of a socket. Raises ConfigError if /tmp cannot be written.
    """
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return
    tempfile.tempdir = "/tmp"
    try:
        multiprocessing.util.get_temp_dir()  # created once, and known to the workers
    except OSError as error:
        raise ConfigError(
            f"TMPDIR: {folder} is too long for sockets, and /tmp cannot be written ({error.strerror}); set a TMPDIR of "
            f"at most {_LONGEST_FOLDER} bytes, or hardware.num_workers=0"
        ) from None
    finally:
        tempfile.tempdir = folder


def set_up_loader_worker(_: int) -> None:
    """In a new worker of a DataLoader: SIGTERM sent to all processes of a run leaves it to the main process to end its
    workers, for some seconds; and a batch that cannot be sent ends the worker, which the main process notices.
    Otherwise it would wait for that batch. Where the main process has ended, Python's thread that passes batches on has
    lost its connection, of which it would print a traceback below the run's last line.
    """
    sys.excepthook = _print_unless_connection_lost
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(ORPHAN_SECONDS))  # SIGALRM ends it
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _print_unless_connection_lost(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def _end_worker(error: Exception, _: object) -> None:
    note(f"a loader worker cannot send a batch ({type(error).__name__}: {error})")
    os._exit(1)
