"""Worker processes: ordered results, a bounded number of tasks in flight, errors, and their end with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpr.data.pairs import Chunk
from rpr.data.workers import Workers
from rpr.errors import DataError, RunError
from rpr.io.resources import num_cores, resident_peak


@pytest.mark.parametrize("processes", [1, 3])
def test_results_are_ordered_and_tasks_in_flight_bounded(processes):
    taken = []

    def tasks():
        for number in range(20):
            taken.append(number)
            yield number, 2 if number % 3 else 10_000  # every third takes long

    with Workers(processes) as workers:
        for done, result in enumerate(workers.map(_power, tasks())):
            assert result == _power((done, 2 if done % 3 else 10_000))
            assert len(taken) <= done + 1 + processes
        assert list(workers.map(len, ["ab", "c"])) == [2, 1] and list(workers.map(len, [])) == []
    assert (workers.peak_bytes > 5e6) == (processes > 1)


_power = max  # of a pair; a function that workers can import


def test_data_errors_and_dead_workers_are_reported():
    chunk = Chunk([b"gr\xfcn\n"], [b"x\n"], (Path("a.en"), Path("a.de")), [40])
    not_utf8 = r"^data.path: line 41 of a.en is not UTF-8 \(byte 0xfc at 2\); convert"
    died = "a worker process died, perhaps because memory ran out; rerun the same command"
    with Workers(2) as workers:
        with pytest.raises(DataError, match=not_utf8):
            list(workers.map(Chunk.pairs, [chunk, chunk, chunk]))
        with pytest.raises(RunError, match=died):
            list(workers.map(signal.raise_signal, [9] * 5))


PARENT = """
import operator, os, time
from rpr.data.workers import Workers
try:
    with Workers(2) as workers:
        while len(pids := {*workers.map(operator.call, [os.getpid] * 4)}) < 2:
            pass  # until both have started
        print(*pids, flush=True)
        list(workers.map(time.sleep, [1, 1, 0]))
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)])
def test_workers_end_with_their_parent(number, code):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    assert parent.stdout is not None and parent.stderr is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    os.killpg(parent.pid, number)  # as Ctrl-C does, to the whole group
    assert parent.wait(10) == code
    end = time.monotonic() + 10
    while any(map(alive, pids)):
        assert time.monotonic() < end, "workers are still running"
        time.sleep(0.02)
    assert "Traceback" not in parent.stderr.read()
    parent.stdout.close()
    parent.stderr.close()


def test_peak_memory_is_per_process():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    held = b"x" * 300_000_000
    del held
    assert resident_peak() > 300_000_000
    with Workers(2) as workers:
        list(workers.map(len, ["a"] * 3))
    assert workers.peak_bytes < 200_000_000, "a worker counts the memory of its parent"
