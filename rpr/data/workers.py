"""Processes that apply a function to one task after the other, results in the order of the tasks.

A worker is a fresh Python that reads pickled tasks from its standard input and writes results to its standard output.
It has its own process group, so Ctrl-C reaches only the parent; and however the parent ends, the worker's input ends
with it, and the worker too, at the latest when its task is done. Each holds one task, so what is in flight is bounded.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import rpr
from rpr.errors import DataError, RunError

T = TypeVar("T")
R = TypeVar("R")
MOST = 16  # by default; the parent reads and writes for all of them


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """The most memory that this process has held."""
    try:
        # Not getrusage: a process begins there with what its parent held when it was started.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


class Workers:
    """With `processes` = 1 everything is done in this process, without any other."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.peak_bytes = 0  # of the worker that held most; known at the end
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for worker in self._workers:
                    _send(worker, (_peak, None))
                    self.peak_bytes = max(self.peak_bytes, _receive(worker))
        finally:
            for worker in self._workers:
                worker.kill()
                worker.wait()
                assert worker.stdin is not None and worker.stdout is not None
                worker.stdout.close()
                with contextlib.suppress(BrokenPipeError):  # it died with a task half sent
                    worker.stdin.close()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """function(task) of each. Functions and tasks must be picklable.

        Raises the DataError that the function raises; RunError when a worker ends early.
        """
        if self.processes == 1:
            for task in tasks:
                yield function(task)
            return
        if not self._workers:
            self._workers = [_start() for _ in range(self.processes)]
        idle, busy = deque(self._workers), deque[subprocess.Popen[bytes]]()
        for task in tasks:
            done = []
            if not idle:
                idle.append(busy.popleft())
                done.append(_receive(idle[0]))
            busy.append(idle.popleft())
            _send(busy[-1], (function, task))
            yield from done
        while busy:
            yield _receive(busy.popleft())


def own_python(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a fresh Python that runs a module of this very package, from any folder."""
    path = os.pathsep.join(filter(None, [str(Path(rpr.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-P", "-m", module], os.environ | {"PYTHONPATH": path}


def _start() -> subprocess.Popen[bytes]:
    command, environment = own_python("rpr.data.workers")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0)


def _send(worker: subprocess.Popen[bytes], task: Any) -> None:
    assert worker.stdin is not None
    try:
        pickle.dump(task, worker.stdin, pickle.HIGHEST_PROTOCOL)
        worker.stdin.flush()
    except BrokenPipeError:
        raise _ended(worker) from None


def _receive(worker: subprocess.Popen[bytes]) -> Any:
    assert worker.stdout is not None
    try:
        done, result = pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError):
        raise _ended(worker) from None
    if not done:
        raise DataError(result)
    return result


def _ended(worker: subprocess.Popen[bytes]) -> RunError:
    try:
        code = worker.wait(10)
    except subprocess.TimeoutExpired:  # it lives, but what it says is no result
        worker.kill()
        code = worker.wait()
    reason = f"was killed by signal {-code}; perhaps memory ran out" if code < 0 else f"ended with exit code {code}"
    return RunError(f"a process that prepares the corpus {reason}; the same command goes on where this one stopped")


def _peak(task: None) -> int:
    return peak_bytes()


def main() -> None:
    tasks = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the results
    while True:
        try:
            function, task = pickle.load(tasks)
        except (EOFError, pickle.UnpicklingError):  # the parent has ended, perhaps while it sent a task
            return
        try:
            answer = True, function(task)
        except DataError as error:
            answer = False, str(error)
        try:
            pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent has ended; closing `results` would only fail again


if __name__ == "__main__":
    main()
