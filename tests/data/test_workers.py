"""Worker processes: ordered results, a bounded number of tasks in flight, errors, and their end with the parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rpr.data.pairs import Chunk
from rpr.data.workers import Workers
from rpr.errors import DataError, RunError


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


_power = max  # of a pair; a function that workers can import


def test_data_errors_and_dead_workers_are_reported():
    chunk = Chunk([b"gr\xfcn\n"], [b"x\n"], [40], "line", (Path("a.en"), Path("a.de")))
    not_utf8 = r"^data.path: line 41 of a.en is not UTF-8 \(byte 0xfc at 2\); convert"
    died = "or one died, perhaps because memory ran out .*; rerun the same command, or start fewer"
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)])
def test_workers_end_with_their_parent(number, code, monkeypatch, processes, wait_for):
    monkeypatch.setenv(*processes.mark.split("="))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    pids = {int(pid) for pid in parent.stdout.readline().split()}
    assert len(pids) == 2 and pids <= processes.alive().keys()
    os.killpg(parent.pid, number)  # as Ctrl-C does, to the whole group
    assert parent.wait(10) == code
    assert wait_for(lambda: not pids & processes.alive().keys(), 10), "workers are still running"
    assert "Traceback" not in parent.stderr.read()
    parent.stdout.close()
    parent.stderr.close()


INTERRUPTED = """
import multiprocessing.util as util, os, signal
from rpr.data.workers import Workers
from rpr.signals import exit_on_sigterm
start = util.spawnv_passfds
def start_and_stop(path, words, descriptors):
    pid = start(path, words, descriptors)
    if "--multiprocessing-fork" in words:
        os.kill(os.getpid(), signal.SIGTERM)
    return pid
util.spawnv_passfds = start_and_stop
with exit_on_sigterm(), Workers(2) as workers:
    list(workers.map(len, ["a"]))
"""


def test_signal_while_workers_start_leaves_none_without_its_work():
    """Each would print a traceback."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (143, "")
