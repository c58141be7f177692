"""Worker processes: ordered results, a bounded number of tasks in flight, errors, their end with the parent; loader
workers that get a signal, and batches that cannot be sent.
"""

import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from rpr.data.pairs import Chunk
from rpr.data.workers import Workers, set_up_loader_worker, shorten_socket_paths
from rpr.errors import DataError, RunError
from rpr.io.resources import num_cores, resident_peak
from rpr.signals import stop_before


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
    chunk = Chunk([b"gr\xfcn\n"], [b"x\n"], [40], "line", (Path("a.en"), Path("a.de")))
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


def test_peak_memory_is_per_process():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    held = b"x" * 300_000_000
    del held
    assert resident_peak() > 300_000_000
    with Workers(2) as workers:
        list(workers.map(len, ["a"] * 3))
    assert workers.peak_bytes < 200_000_000, "a worker counts the memory of its parent"


def loader(items):
    return DataLoader(items, batch_size=None, num_workers=1, worker_init_fn=set_up_loader_worker, timeout=60)


def test_sigterm_leaves_workers_to_the_main_process():
    batches = iter(loader(list(range(50))))
    assert next(batches) == 0
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGTERM)
    time.sleep(0.1)
    assert list(batches) == list(range(1, 50))


def test_batch_that_cannot_be_sent_ends_the_wait(capfd):
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid"):
        next(iter(loader([lambda: None])))
    assert time.monotonic() - started < 30
    assert "rpr-cli: a loader worker cannot send a batch (" in capfd.readouterr().err


class Printing(list):
    """Whose errors are printed as those of a thread of Python's own."""

    def __getitem__(self, index):
        error = super().__getitem__(index)("text of the error")
        sys.excepthook(type(error), error, None)
        return index


def test_lost_connection_of_a_worker_prints_nothing(capfd):
    assert list(loader(Printing([ConnectionResetError, EOFError]))) == [0, 1]
    assert "text of the error" not in capfd.readouterr().err
    assert list(loader(Printing([ValueError]))) == [0]
    assert "ValueError: text of the error" in capfd.readouterr().err


def test_sockets_are_in_tmp_if_tmpdir_is_too_long_for_them(monkeypatch, tmp_path):
    folder = tmp_path / (100 * "x")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delitem(multiprocessing.current_process()._config, "tempdir", raising=False)
    shorten_socket_paths()
    assert os.path.dirname(multiprocessing.util.get_temp_dir()) == "/tmp" and tempfile.gettempdir() == str(folder)


@pytest.mark.parametrize("stop", [SystemExit(143), KeyboardInterrupt()])
def test_error_of_a_stop_is_that_stop(stop):
    with pytest.raises(RuntimeError) as caught:
        try:
            raise stop
        finally:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")
    assert stop_before(caught.value) is stop
    assert stop_before(RuntimeError("alone")) is None
