"""Locks a run's folder for one process at a time, on one machine or on several that share it.

Two signs show that a run is in use. The first is the kernel's lock (flock) on a file in the folder: it lasts as long as
any process of the run is alive, children included, and ends with the last one, however that ends. Not every network
file system propagates it to other machines, so the holder also touches the file every few seconds (a heartbeat). A file
that names another machine and has not been touched for two minutes, by the file system's own clock, is stale, and the
lock is taken over. A machine is its host name and the id of its boot: containers on several may have one name.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rpr.errors import BusyError
from rpr.io.escape import escape_control_characters, note
from rpr.io.locks import try_lock, try_shared_lock
from rpr.records import provenance
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


class RunLock(NamedTuple):
    """A lock that is held. Processes that inherit `descriptor` hold it too."""

    descriptor: int
    holder: Holder


@contextmanager
def acquire(folder: Path) -> Iterator[RunLock]:
    """Hold the lock of the run in `folder`, which must exist and be writable (OSError); raises BusyError if another
    process holds it. When another machine has taken over the lock, because this one seemed dead (it may have been
    suspended), this process ends as by SIGTERM. The lock's file stays, empty: deleting it would let two processes in.
    """
    path, released = folder / LOCK_NAME, threading.Event()
    lock = _lock_file(path)
    heartbeat = threading.Thread(target=_beat, args=(path, lock.holder, released), name="run lock", daemon=True)
    heartbeat.start()
    try:
        yield lock
    finally:
        released.set()
        heartbeat.join()
        if _read(path) == lock.holder:
            with contextlib.suppress(OSError):
                os.truncate(path, 0)
        os.close(lock.descriptor)


def _beat(path: Path, holder: Holder, released: threading.Event) -> None:
    wait = _FIRST_HEARTBEAT_SECONDS
    while not released.wait(wait):
        wait = HEARTBEAT_SECONDS
        with contextlib.suppress(OSError):  # no file system or descriptor: the next heartbeat tries again
            try:
                current = _read_holder(path)
            except FileNotFoundError:
                current = None
            if current != holder:
                _end_process()
                return
            os.utime(path)


def current_holder(folder: Path) -> Holder | None:
    """The process that holds the lock of the run in `folder` now; None if there is none."""
    path = folder / LOCK_NAME
    if _read(path) is None:  # properly released; and a lock that another process may be about to take is not touched
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        locked = try_shared_lock(descriptor)
        current = _read(path)
        if locked and current is not None and not _on_other_host(current):
            return None
    except OSError:  # no locks on this file system: only the heartbeat tells
        locked, current = True, _read(path)
    finally:
        os.close(descriptor)
    return current if current is None or not locked or _age(path) < STALE_SECONDS else None


def current_record(path: Path) -> tuple[Record, Holder | None]:
    """A run's record, and the process that holds the run unless it has finished. One that says `running` while no
    process holds the run says that it was killed. Raises RecordError if it is damaged.
    """
    record = read_record(path)
    if record.status == "finished" or path.name != RECORD_NAME:
        return record, None
    if (holder := current_holder(path.parent)) is None:
        record = read_record(path)  # it may have finished in between
        if record.status == "running":
            why = f"killed (started {record.started}); the same command resumes it"
            record = record.model_copy(update={"status": "interrupted", "error": why})
    return record, holder


def with_killed_runs(found: Found) -> Found:
    """The records as `current_record` has them."""
    running = {path: current_record(path)[0] for path, record in found.records if record.status == "running"}
    return found._replace(records=[(path, running.get(path, record)) for path, record in found.records])


def _lock_file(path: Path) -> RunLock:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # no link: the file is truncated
    try:
        locked = _flock(descriptor, path)
        current = _read(path)
        if current is not None and (_on_other_host(current) or not locked) and _is_alive(path, current):
            raise _busy(path, current)
        holder = Holder(socket.gethostname(), os.getpid(), provenance.now(), uuid.uuid4().hex, _boot())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        os.fsync(descriptor)
        return RunLock(descriptor, holder)
    except BaseException:
        os.close(descriptor)
        raise


def _flock(descriptor: int, path: Path) -> bool:
    """Whether the kernel's lock is ours; False where the file system has none."""
    for _ in range(_TRIES):
        try:
            if try_lock(descriptor):
                return True
        except OSError:
            return False
        time.sleep(_TRY_SECONDS)
    raise _busy(path, _read(path))


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
            note(f"{path.parent.name}: checking whether {current} is still alive")
        time.sleep(_POLL_SECONDS)
    return False


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the file system's clock: those of the machines may differ."""
    probe = path.with_name(f"{LOCK_NAME}.{uuid.uuid4().hex}.tmp")
    try:
        probe.touch()
        now = probe.stat().st_mtime
    except OSError:  # the folder is not ours to write
        now = time.time()
    finally:
        with contextlib.suppress(OSError):  # nor, on a read-only file system, is what is not there
            probe.unlink()
    return now - path.stat().st_mtime


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
    note("another machine has taken over this run; stopping here")
    os.kill(os.getpid(), signal.SIGTERM)
