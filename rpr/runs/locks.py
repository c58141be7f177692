"""Locks a run's folder for one process at a time, on one machine or on several that share it.

The kernel's lock (flock) on a file in the folder lasts as long as any process of the run is alive, children included.
Not every network file system propagates it to other machines, so the holder also touches the file every few seconds (a
heartbeat). A file that names another machine and is not touched for two minutes is stale, and the lock is taken over.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rpr.errors import BusyError
from rpr.io.atomic import try_lock
from rpr.io.escape import escape_control_characters, note
from rpr.records.record import RECORD_NAME, Found, Record, read_record
from rpr.version import utc_now

LOCK_NAME = ".lock"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0  # eight heartbeats: a busy file server may delay some
_POLL_SECONDS = 1.0


class Holder(NamedTuple):
    """The process that holds a run's lock."""

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return escape_control_characters(f"process {self.pid} on {self.host}, since {self.started}")

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()


@contextlib.contextmanager
def acquire(folder: Path) -> Iterator[int]:
    """Hold the lock of the run in `folder`, which must exist and be writable (OSError); yields the descriptor, with
    which child processes hold it, too. Raises BusyError if another process holds it. When another machine has taken
    over the lock, because this one seemed dead (it may have been suspended), this process ends as by SIGTERM. The
    lock's file stays, empty: deleting it would let two processes in.
    """
    path, released = folder / LOCK_NAME, threading.Event()
    holder = Holder(socket.gethostname(), os.getpid(), utc_now())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # no link: the file is truncated
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        heartbeat = threading.Thread(target=_beat, args=(path, holder, released), name="run lock", daemon=True)
        heartbeat.start()
        try:
            yield descriptor
        finally:
            released.set()
            heartbeat.join()
            with contextlib.suppress(OSError):
                if _read(path) == holder:
                    os.truncate(path, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Take the kernel's lock, where there is one; raises BusyError if the file is another process's."""
    try:
        covered = locked = try_lock(descriptor)
    except OSError:  # the file system has none
        covered, locked = False, True
    other = _read(path)
    if locked and other is not None and not (covered and other.is_here):  # alive while it touches the file
        note(f"{path.parent.name}: checking whether {other} is still alive")
        before, until = path.stat().st_mtime_ns, time.monotonic() + STALE_SECONDS
        while (locked := path.stat().st_mtime_ns == before) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    if not locked:
        raise BusyError(
            f"{path.parent}: in use by {other or 'another process'}; wait for it, or stop it and rerun the command"
        )


def _beat(path: Path, holder: Holder, released: threading.Event) -> None:
    while not released.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):  # the next heartbeat tries again
            if not path.exists() or _read(path) != holder:
                note("another machine has taken over this run; stopping here")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            os.utime(path)


def current_holder(folder: Path) -> Holder | None:
    """The process that holds the lock of the run in `folder` now; None if there is none. What decides is `acquire`:
    children may outlive their holder for a moment.
    """
    with contextlib.suppress(OSError):
        holder, touched = _read(folder / LOCK_NAME), (folder / LOCK_NAME).stat().st_mtime
        if holder is not None and time.time() - touched < STALE_SECONDS and (_is_running(holder) or not holder.is_here):
            return holder
    return None


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


def _is_running(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except OSError as error:  # no such process, unless it is another user's
        return isinstance(error, PermissionError)
    return True


def _read(path: Path) -> Holder | None:
    with contextlib.suppress(ValueError, TypeError):
        return Holder(*json.loads(path.read_text("utf-8", "replace")))
    return None
