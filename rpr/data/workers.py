"""Worker processes that apply a function to tasks, with results in task order.

A worker is a fresh Python process that reads pickled tasks from stdin and writes results to stdout. It has its own
process group, so Ctrl-C reaches only the parent. However the parent ends, the worker's stdin closes and it exits after
its current task at the latest. Each worker holds one task, which bounds memory.
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


class Workers:
    """A pool of worker processes; with `processes`=1 the work is done in this process."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.peak_bytes = 0  # of the largest worker; set on exit
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
                with contextlib.suppress(BrokenPipeError):  # the worker died while a task was being sent
                    worker.stdin.close()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield function(task) for each task, in order. Functions and tasks must be picklable.

        Raises DataError if the function does; RunError if a worker dies.
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
    """Command and environment for running a module of this package in a fresh Python, from any folder."""
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
        raise _death_of(worker) from None


def _receive(worker: subprocess.Popen[bytes]) -> Any:
    assert worker.stdout is not None
    try:
        done, result = pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError):
        raise _death_of(worker) from None
    if not done:
        raise DataError(result)
    return result


def _death_of(worker: subprocess.Popen[bytes]) -> RunError:
    try:
        code = worker.wait(10)
    except subprocess.TimeoutExpired:  # alive, but its output is not a result
        worker.kill()
        code = worker.wait()
    reason = f"was killed by signal {-code}; perhaps memory ran out" if code < 0 else f"exited with code {code}"
    return RunError(f"a worker process {reason}; rerun the same command to resume the build")


def _peak(task: None) -> int:
    return peak_bytes()


def main() -> None:
    tasks = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep stray prints out of the results
    while True:
        try:
            function, task = pickle.load(tasks)
        except (EOFError, pickle.UnpicklingError):  # the parent has exited, perhaps while sending a task
            return
        try:
            answer = True, function(task)
        except DataError as error:
            answer = False, str(error)
        try:
            pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent has exited; closing `results` would only fail again


if __name__ == "__main__":
    main()
