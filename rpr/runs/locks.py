"""One process at a time on a run's folder, on one machine or on several that share it.

Two signs say that a run is being worked on. The first is the kernel's lock (flock) on a file in the folder: it is there
as long as any process of the run lives, children too, and gone the moment the last has ended, however it ended. Not
every network file system passes it on to other machines, so the holder also touches the file every few seconds. A file
that names another machine and has not been touched for two minutes, by the clock of the file system itself, is left
over, and is taken.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rpr.errors import BusyError
from rpr.io.escape import visible

LOCK_NAME = ".lock"
BEAT_SECONDS = 15.0
STALE_SECONDS = 120.0  # eight beats: a busy file server may delay some
_FIRST_BEAT_SECONDS = 2.0  # where flock does not reach, two machines may have come at once: soon one sees the other's
_TRIES, _TRY_SECONDS = 10, 0.05  # whoever only looks at a lock that was left over holds it for an instant


@dataclass(frozen=True)
class Holder:
    """Who works on a run."""

    host: str
    pid: int
    started: str
    token: str

    def __str__(self) -> str:
        return visible(f"process {self.pid} on {self.host}, since {self.started}")


class RunLock:
    """A lock that is held. Processes that inherit `descriptor` hold it too."""

    def __init__(self, path: Path, descriptor: int, holder: Holder, lost: Callable[[], None]) -> None:
        self.path, self.descriptor, self.holder = path, descriptor, holder
        self._lost = lost
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run lock", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        wait = _FIRST_BEAT_SECONDS
        while not self._end.wait(wait):
            wait = BEAT_SECONDS
            found = _read(self.path)
            if found is None or found.token != self.holder.token:
                self._lost()
                return
            with contextlib.suppress(OSError):  # a full or absent file system for a moment; the next beat tries again
                os.utime(self.path)

    def release(self) -> None:
        """Let go; the file stays, empty: deleting it would let two in."""
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if (found := _read(self.path)) is not None and found.token == self.holder.token:
                os.truncate(self.path, 0)
        os.close(self.descriptor)


@contextmanager
def hold(folder: Path, lost: Callable[[], None] | None = None) -> Iterator[RunLock]:
    """Work on the run in `folder`, which exists, alone.

    Args:
        lost: called on another thread when another machine has taken the lock, believing this one dead (it may have
            slept); by default the process ends as by SIGTERM.

    Raises:
        BusyError: another process works on it.
        OSError: the folder cannot be written.
    """
    path = folder / LOCK_NAME
    lock = RunLock(path, *_acquire(path), lost or _end_process)
    try:
        yield lock
    finally:
        lock.release()


def holder_of(folder: Path) -> Holder | None:
    """Who works on the run in `folder` at this moment; None when nobody does."""
    path = folder / LOCK_NAME
    if _read(path) is None:  # let go in order; and no need to touch a lock that another may be about to take
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(path)
        except OSError:  # no locks on this file system: the beats alone say it
            pass
        found = _read(path)
        return found if found is not None and _foreign(found) and _age(path) < STALE_SECONDS else None
    finally:
        os.close(descriptor)


def _acquire(path: Path) -> tuple[int, Holder]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # it is emptied
    try:
        locked = _flock(descriptor, path)
        found = _read(path)
        if found is not None and (_foreign(found) or not locked) and _beats(path, found):
            raise _busy(path, found)
        mine = Holder(
            socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"), uuid.uuid4().hex
        )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(mine)).encode(), 0)
        os.fsync(descriptor)
        return descriptor, mine
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


def _busy(path: Path, found: Holder | None) -> BusyError:
    return BusyError(
        f"{path.parent}: {found or 'another process'} works on this run; wait for it, or end it and repeat the command"
    )


def _foreign(found: Holder) -> bool:
    return found.host != socket.gethostname()


def _beats(path: Path, found: Holder) -> bool:
    """Whether the holder, out of reach of the kernel's lock, still touches the file; watched until that is known."""
    first, told = path.stat().st_mtime_ns, False
    until = time.monotonic() + STALE_SECONDS  # where the file's time lies ahead, its age alone would not end this
    while _age(path) < STALE_SECONDS and time.monotonic() < until:
        if path.stat().st_mtime_ns != first:
            return True
        if not told:
            told = True
            print(f"rpr-cli: {path.parent.name}: is {found} still at work? waiting for a sign", file=sys.stderr)
        time.sleep(1.0)
    return False


def _age(path: Path) -> float:
    """Seconds since the file was touched, both times by the file system's clock: machines' own may differ."""
    probe = path.with_name(f"{LOCK_NAME}.{uuid.uuid4().hex}.tmp")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    """What the file says; None when it is empty, or cut by a crash."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _end_process() -> None:
    print("rpr-cli: another machine has taken over this run; it is ended here", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
