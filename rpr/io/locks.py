"""Locks between processes, on open files and folders. A lock ends with the last process that holds the descriptor,
however it ends. (The lock of a run, rpr/runs/locks.py, also works between machines.)

A folder is locked by its own descriptor: a lock file would remain visible in users' folders, and removing it would let
two processes in.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rpr.io.atomic import remove_leftovers


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder; False if another process holds the lock.

    Raises:
        OSError: the file system has no locks.
    """
    from filelock import lock_descriptor  # takes up to 0.1 s, which commands that lock nothing should not wait for

    return lock_descriptor(descriptor, blocking=False)


def try_shared_lock(descriptor: int) -> bool:
    """Take a shared lock, as other processes may too; False if a process holds it exclusively (try_lock)."""
    import fcntl  # Unix only

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, problem: str | None = None) -> bool:
    """Lock an open file or folder; waits for another process if necessary, and then prints `problem`, if given. False
    if the file system has no locks.
    """
    from filelock import lock_descriptor

    try:
        held = try_lock(descriptor)
    except OSError:
        return False
    if not held:
        if problem is not None:
            print(f"rpr-cli: {problem}; waiting for it", file=sys.stderr, flush=True)
        lock_descriptor(descriptor)
    return True


@contextmanager
def exclusive(folder: Path, *patterns: str, quiet: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of a folder; waits for another process, with a message unless `quiet`. A folder that does
    not exist is created, and removed again if it stays empty.

    Args:
        patterns: of the names of files and folders that are written there. What killed processes left of them is
            removed first, except on a file system without locks, where they may still be running.

    Raises:
        OSError: the folder cannot be created or read.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        if created:
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if lock(descriptor, None if quiet else f"another process writes in {folder}"):
                remove_leftovers(folder, *patterns)
            yield
        finally:
            os.close(descriptor)
    finally:
        for path in created:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
