"""Locks a run's folder for one process at a time, on one machine or on several that share it.

Two signs show that a run is in use. The first is the kernel's lock (flock) on a file in the folder: it lasts as long as
any process of the run is alive, children included, and ends with the last one, however that ends. Not every network
file system propagates it to other machines, so the holder also touches the file every few seconds (a heartbeat). A file
that names another machine and has not been touched for two minutes, by the file system's own clock, is stale, and the
lock is taken over. A machine is its host name and the id of its boot: containers on several may have one name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rpr.errors import BusyError
from rpr.io.escape import escape_control_characters
from rpr.io.locks import try_shared_lock
from rpr.records.record import RECORD_NAME, Found, Record, read_record

LOCK_NAME = ".lock"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0  # eight heartbeats: a busy file server may delay some
_FIRST_HEARTBEAT_SECONDS = 2.0  # without flock two machines may lock at once: one soon sees the other's name
_POLL_SECONDS = 1.0  # for the heartbeat of a machine that may be dead
_TRIES, _TRY_SECONDS = 10, 0.05  # a process that only checks a stale lock holds it for an instant


@dataclass(frozen=True)
class Holder:
    """The process that holds a run's lock."""

    host: str
    pid: int
    started: str
    token: str
    boot: str = ""  # not in locks of earlier versions

    def __str__(self) -> str:
        return escape_control_characters(f"process {self.pid} on {self.host}, since {self.started}")


class RunLock:
    """A lock that is held. Processes that inherit `descriptor` hold it too."""

    def __init__(self, path: Path, descriptor: int, holder: Holder) -> None:
        self.path, self.descriptor, self.holder = path, descriptor, holder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run lock", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        wait = _FIRST_HEARTBEAT_SECONDS
        while not self._end.wait(wait):
            wait = HEARTBEAT_SECONDS
            try:
                current = _read_holder(self.path)
            except FileNotFoundError:
                current = None
            except OSError:  # an unavailable file system, or no descriptor left; the next heartbeat tries again
                continue
            if current is None or current.token != self.holder.token:
                _end_process()
                return
            with contextlib.suppress(OSError):  # as above
                os.utime(self.path)

    def release(self) -> None:
        """Release the lock. The file stays, empty: deleting it would let two processes in."""
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if (current := _read(self.path)) is not None and current.token == self.holder.token:
                os.truncate(self.path, 0)
        os.close(self.descriptor)


@contextmanager
def acquire(folder: Path) -> Iterator[RunLock]:
    """Hold the lock of the run in `folder`, which must exist. When another machine has taken over the lock, because
    this one seemed dead (it may have been suspended), this process ends as by SIGTERM.

    Raises:
        BusyError: another process holds it.
        OSError: the folder cannot be written.
    """
    path = folder / LOCK_NAME
    lock = RunLock(path, *_lock_file(path))
    try:
        yield lock
    finally:
        lock.release()


def current_holder(folder: Path) -> Holder | None:
    """The process that holds the lock of the run in `folder` now; None if there is none."""
    path = folder / LOCK_NAME
    if _read(path) is None:  # properly released; and a lock that another process may be about to take is not touched
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        locks_work = True
        try:
            if not try_shared_lock(descriptor):
                return _read(path)
        except OSError:  # no locks on this file system: only the heartbeat tells
            locks_work = False
        current = _read(path)
        if current is None or (locks_work and not _on_other_host(current)):
            return None
        try:
            return current if _age(path) < STALE_SECONDS else None
        except OSError:  # the folder is not ours to write, and so the file system's time unknown
            return current if time.time() - path.stat().st_mtime < STALE_SECONDS else None
    finally:
        os.close(descriptor)


def with_killed_runs(found: Found) -> Found:
    """The records, where those that say `running` while no process holds their runs say that they were killed."""

    def as_it_is(path: Path, record: Record) -> Record:
        if record.status != "running" or path.name != RECORD_NAME or current_holder(path.parent) is not None:
            return record
        again = read_record(path)  # it may have finished in between
        changes = {"status": "interrupted", "error": f"killed (started {record.started}); the same command resumes it"}
        return again.model_copy(update=changes) if again.status == "running" else again

    return found._replace(records=[(path, as_it_is(path, record)) for path, record in found.records])


def _lock_file(path: Path) -> tuple[int, Holder]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # no link: the file is truncated
    try:
        locked = _flock(descriptor, path)
        current = _read(path)
        if current is not None and (_on_other_host(current) or not locked) and _is_alive(path, current):
            raise _busy(path, current)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        holder = Holder(socket.gethostname(), os.getpid(), started, uuid.uuid4().hex, _boot())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        os.fsync(descriptor)
        return descriptor, holder
    except BaseException:
        os.close(descriptor)
        raise


def _flock(descriptor: int, path: Path) -> bool:
    """Whether the kernel's lock is ours; False where the file system has none."""
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt == _TRIES - 1:
                raise _busy(path, _read(path)) from None
            time.sleep(_TRY_SECONDS)
        except OSError:
            return False
    raise AssertionError("the loop ends by return or raise")


def _busy(path: Path, current: Holder | None) -> BusyError:
    return BusyError(
        f"{path.parent}: in use by {current or 'another process'}; wait for it, or stop it and rerun the command"
    )


def _on_other_host(current: Holder) -> bool:
    return (current.host, current.boot) != (socket.gethostname(), _boot())


def _boot() -> str:
    """Empty where /proc hides it: then the host name alone decides."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _is_alive(path: Path, current: Holder) -> bool:
    """Whether a holder that the kernel's lock does not cover still touches the file; waits until that is known."""
    first, reported = path.stat().st_mtime_ns, False
    until = time.monotonic() + STALE_SECONDS  # a file time in the future must not make this wait for ever
    while _age(path) < STALE_SECONDS and time.monotonic() < until:
        if path.stat().st_mtime_ns != first:
            return True
        if not reported:
            reported = True
            print(f"rpr-cli: {path.parent.name}: checking whether {current} is still alive", file=sys.stderr)
        time.sleep(_POLL_SECONDS)
    return False


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the file system's clock alone: those of the machines may differ."""
    probe = path.with_name(f"{LOCK_NAME}.{uuid.uuid4().hex}.tmp")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    """The holder that the file names; None if it is empty, truncated by a crash, or cannot be read."""
    try:
        return _read_holder(path)
    except OSError:
        return None


def _read_holder(path: Path) -> Holder | None:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _end_process() -> None:
    print("rpr-cli: another machine has taken over this run; stopping here", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
