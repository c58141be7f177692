"""Worker processes that apply a function to tasks, with results in task order: the standard library's pool, whose
workers leave Ctrl-C to their parent and end when it does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rpr.errors import RunError

T = TypeVar("T")
R = TypeVar("R")
MAX_WORKERS = 16  # by default; the parent does all their I/O


def num_cores() -> int:
    """The number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    try:
        # Not getrusage: its value starts at the parent's memory at the time of the fork.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def process_pool(processes: int) -> ProcessPoolExecutor:
    """A pool of fresh Python processes. Use it in a `with` statement."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _follow_parent)


class Workers:
    """A pool of worker processes; with `processes`=1 the work is done in this process."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.peak_bytes = 0  # of the largest worker
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield function(task) for each task, in order. Functions and tasks must be picklable. At most one task per
        worker and one result are in memory.

        Raises what the function raises; RunError if a worker dies.
        """
        if self.processes == 1:
            yield from map(function, tasks)
            return
        if self._pool is None:
            self._pool = process_pool(self.processes)
        pending: deque[Future[tuple[R, int]]] = deque()
        try:
            for task in tasks:
                pending.append(self._pool.submit(_measured, function, task))
                if len(pending) > self.processes:
                    yield self._result(pending)
            while pending:
                yield self._result(pending)
        except BrokenProcessPool:
            raise RunError(
                "a worker process died, perhaps because memory ran out; rerun the same command to resume the build"
            ) from None

    def _result(self, pending: deque[Future[tuple[R, int]]]) -> R:
        result, peak = pending.popleft().result()
        self.peak_bytes = max(self.peak_bytes, peak)
        return result


def _measured(function: Callable[[T], R], task: T) -> tuple[R, int]:
    return function(task), peak_bytes()


def _follow_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
