"""The lock of a run's folder: between real processes on this machine, and by heartbeats from another one."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rpr.errors import BusyError
from rpr.runs import locks
from rpr.runs.locks import LOCK_NAME, Holder, acquire, current_holder

HOLD_LOCK = """
import subprocess, sys
from pathlib import Path
from rpr.runs.locks import acquire
with acquire(Path(sys.argv[1])) as lock:
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,)) if len(sys.argv) > 2 else None
    print(child.pid if child else "held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holding_process(folder: Path, *child: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds the lock, and what it prints: with "child", the pid of a child that inherits it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(folder), *child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch):
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.01)


def write_remote_lock(folder: Path, host: str = "node7") -> Path:
    """The lock file of a process on another machine."""
    path = folder / LOCK_NAME
    path.write_text(json.dumps([host, 12, "2026-01-01T00:00:00+00:00"]))
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def assert_busy(folder: Path, message: str = "in use by") -> None:
    with pytest.raises(BusyError, match=message), acquire(folder):
        pass


def test_lock_is_exclusive_and_released(tmp_path):
    assert current_holder(tmp_path) is None
    with holding_process(tmp_path) as (process, printed):
        assert printed == "held"
        holder = current_holder(tmp_path)
        assert (holder.pid, holder.host) == (process.pid, socket.gethostname())
        assert_busy(tmp_path, rf"process {process.pid} on .*, since 20.*; wait for it")
        process.communicate("\n", timeout=10)
        assert (tmp_path / LOCK_NAME).read_text() == ""
    with acquire(tmp_path):
        assert current_holder(tmp_path).pid == os.getpid()
    assert current_holder(tmp_path) is None


@pytest.mark.parametrize("content", [None, "", '["nod', "[]", "{}"])
def test_damaged_lock_file_locks_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / LOCK_NAME).write_text(content)
    assert current_holder(tmp_path) is None
    with acquire(tmp_path):
        assert_busy(tmp_path)


def test_lock_is_held_until_the_last_inheriting_child_is_killed(tmp_path, wait_for):
    """A training outlives its killed sweep for a moment, and still writes."""
    with holding_process(tmp_path, "child") as (process, child):
        process.kill()
        process.wait(10)
        assert_busy(tmp_path)
        os.kill(int(child), signal.SIGKILL)

        def free():
            with suppress(BusyError), acquire(tmp_path):
                return True
            return False

        assert wait_for(free, 5)


def test_remote_holder_with_heartbeats_is_alive(tmp_path, capsys):
    path = write_remote_lock(tmp_path)
    assert current_holder(tmp_path) == Holder("node7", 12, "2026-01-01T00:00:00+00:00")
    threading.Timer(0.1, os.utime, (path,)).start()
    assert_busy(tmp_path, "process 12 on node7, since 2026-01-01")
    assert "checking whether process 12 on node7, since 2026-01-01T00:00:00+00:00 is" in capsys.readouterr().err
    age(path, 2 * locks.STALE_SECONDS)
    assert current_holder(tmp_path) is None


def test_remote_lock_without_heartbeats_becomes_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.3)
    write_remote_lock(tmp_path)
    began = time.monotonic()
    with acquire(tmp_path):
        assert 0.25 < time.monotonic() - began < 10


def test_heartbeat_touches_the_file_and_a_takeover_ends_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    lost = threading.Event()
    monkeypatch.setattr(locks.os, "kill", lambda pid, number: lost.set())
    with acquire(tmp_path):
        path = tmp_path / LOCK_NAME
        age(path, 50)
        time.sleep(0.12)
        assert time.time() - path.stat().st_mtime < 10
        with monkeypatch.context() as patch:
            patch.setattr(locks, "_read", MagicMock(side_effect=OSError(errno.EIO, "Input/output error")))
            time.sleep(0.12)
        assert not lost.is_set(), "an unreadable file is no takeover"
        write_remote_lock(tmp_path)
        assert lost.wait(5)
    assert json.loads((tmp_path / LOCK_NAME).read_text())[0] == "node7"  # not emptied on release


def test_heartbeats_alone_decide_without_flock(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", MagicMock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.5)
    path = write_remote_lock(tmp_path, socket.gethostname())
    threading.Timer(0.1, os.utime, (path,)).start()
    assert_busy(tmp_path)
    age(path, 2)
    with acquire(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [LOCK_NAME]
