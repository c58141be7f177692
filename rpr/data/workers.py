"""Worker processes that apply a function to tasks, with results in task order: the standard library's pool."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rpr.errors import RunError
from rpr.signals import signals_deferred

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """A pool of worker processes; with `processes`=1 the work is done in this process."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
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
        pending: deque[Future[R]] = deque()
        try:
            for task in tasks:
                pending.append(self._submit(function, task))
                if len(pending) > self.processes:
                    yield pending.popleft().result()  # a worker that dies ends the wait
            while pending:
                yield pending.popleft().result()
        except (BrokenProcessPool, OSError) as error:
            raise RunError(
                f"worker processes cannot be started, or one died, perhaps because memory ran out ({error}); rerun the "
                "same command, or start fewer: rpr-cli prepare ... processes=1"
            ) from None

    def _submit(self, function: Callable[[T], R], task: T) -> Future[R]:
        """A worker that is starting has no handler yet: signals are for this process, which ends it."""
        with signals_deferred():
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.processes, spawn, _follow_parent)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return self._pool.submit(function, task)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _follow_parent() -> None:
    """Ignore Ctrl-C, and exit when the parent does, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
