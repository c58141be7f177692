"""Checked here: the lock of a run's folder, with real processes: one holder at a time, let go by its death and by that
of the last process that inherited it; a holder on another machine by the beats of its file alone, fresh, silent, cut
short, and with a clock that is wrong; and what a holder does whose lock was taken.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rpr.errors import BusyError
from rpr.runs import locks
from rpr.runs.locks import LOCK_NAME, Holder, acquire, current_holder

HOLDING = """
import subprocess, sys
from pathlib import Path
from rpr.runs.locks import acquire
with acquire(Path(sys.argv[1])) as lock:
    if sys.argv[2] == "child":
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.descriptor,))
        print(child.pid, flush=True)
    else:
        print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another_process(folder: Path, how: str = "alone") -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def elsewhere(folder: Path, **changed: object) -> Path:
    """The lock file as a process on another machine leaves it."""
    path = folder / LOCK_NAME
    path.write_text(
        json.dumps({"host": "node7", "pid": 12, "started": "2026-01-01T00:00:00+00:00", "token": "t", **changed})
    )
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_one_at_a_time_and_free_again_afterwards(tmp_path: Path) -> None:
    assert current_holder(tmp_path) is None
    with another_process(tmp_path) as (process, said):
        assert said == "held"
        holder = current_holder(tmp_path)
        assert holder is not None and (holder.pid, holder.host) == (process.pid, socket.gethostname())
        told = rf"process {process.pid} on .*, since 20.*; wait for it"
        with pytest.raises(BusyError, match=told), acquire(tmp_path):
            pass
        assert process.stdin is not None
        process.stdin.write("\n")  # an orderly end
        process.stdin.flush()
        process.wait(10)
        assert (tmp_path / LOCK_NAME).read_text() == ""
    with acquire(tmp_path) as lock:
        assert lock.holder.pid == os.getpid()
    assert current_holder(tmp_path) is None


def test_a_killed_holder_is_no_holder(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, _):
        process.kill()
        process.wait(10)
        assert current_holder(tmp_path) is None
        with acquire(tmp_path):
            pass


def test_a_child_that_lives_on_holds_it_too(tmp_path: Path) -> None:
    """The trainer of a sweep's job outlives a sweep that is killed for a moment, and still writes."""
    with another_process(tmp_path, "child") as (process, child):
        process.kill()
        process.wait(10)
        assert current_holder(tmp_path) is not None
        with pytest.raises(BusyError, match="in use by"), acquire(tmp_path):
            pass
        os.kill(int(child), signal.SIGKILL)
        for _ in range(100):
            if current_holder(tmp_path) is None:
                break
            time.sleep(0.05)
        with acquire(tmp_path):
            pass


def test_looking_does_not_take_it_from_who_comes(tmp_path: Path) -> None:
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            current_holder(tmp_path)

    watchers = [threading.Thread(target=look) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(10):
            with acquire(tmp_path):
                pass
    finally:
        end.set()
        for watcher in watchers:
            watcher.join()


def test_another_machine_that_beats_is_at_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = elsewhere(tmp_path)
    assert current_holder(tmp_path) == Holder("node7", 12, "2026-01-01T00:00:00+00:00", "t")
    threading.Timer(0.5, os.utime, (path,)).start()
    with pytest.raises(BusyError, match="process 12 on node7, since 2026-01-01"), acquire(tmp_path):
        pass
    assert "checking whether process 12 on node7, since 2026-01-01T00:00:00+00:00 is" in capsys.readouterr().err


def test_another_machine_that_is_silent_for_long_has_gone(tmp_path: Path) -> None:
    age(elsewhere(tmp_path), locks.STALE_SECONDS + 1)
    assert current_holder(tmp_path) is None
    with acquire(tmp_path) as lock:
        assert json.loads((tmp_path / LOCK_NAME).read_text())["token"] == lock.holder.token


@pytest.mark.parametrize("seconds", [0.0, -3600.0], ids=["just now", "an hour ahead of the clock"])
def test_another_machine_that_falls_silent_is_watched_and_then_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(locks, "STALE_SECONDS", 1.5)
    age(elsewhere(tmp_path), seconds)
    began = time.monotonic()
    with acquire(tmp_path):
        assert 1.0 < time.monotonic() - began < 10


@pytest.mark.parametrize("content", ["", '{"host": "nod', "[]", '{"host": "node7"}'])
def test_a_file_that_says_nothing_holds_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    assert current_holder(tmp_path) is None
    with acquire(tmp_path):
        pass


def test_the_holder_beats_and_notices_that_its_lock_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_FIRST_HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.1)
    lost = threading.Event()
    with acquire(tmp_path, lost.set):
        path = tmp_path / LOCK_NAME
        age(path, 50)
        time.sleep(0.5)
        assert time.time() - path.stat().st_mtime < 10 and not lost.is_set()
        elsewhere(tmp_path)
        assert lost.wait(5)
    assert json.loads((tmp_path / LOCK_NAME).read_text())["host"] == "node7"  # theirs is not emptied


def test_without_the_kernels_locks_the_beats_alone_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    monkeypatch.setattr(locks, "STALE_SECONDS", 1.5)
    path = elsewhere(tmp_path, host=socket.gethostname())
    threading.Timer(0.5, os.utime, (path,)).start()
    with pytest.raises(BusyError, match="in use by"), acquire(tmp_path):
        pass
    age(path, 2)
    with acquire(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [LOCK_NAME]
