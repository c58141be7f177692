"""Locks between processes, on open files and folders. They end with the last process that holds the descriptor, however
it ended. (The lock of a run, rpr/runs/locks.py, also works between machines.)

A folder is locked by its own descriptor: a lock file would remain in folders that people look into, and removing it
would let two processes in.
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
    """Lock an open file or folder; False if another process has it.

    Raises:
        OSError: the file system has no locks.
    """
    from filelock import lock_descriptor  # takes up to 0.1 s, which commands that lock nothing should not wait for

    return lock_descriptor(descriptor, blocking=False)


def try_shared_lock(descriptor: int) -> bool:
    """As try_lock, beside others that lock it so; what has it for itself by try_lock excludes all of them, and the
    other way round.
    """
    import fcntl  # Unix alone

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, problem: str | None = None) -> bool:
    """Lock an open file or folder, if necessary after waiting for another process, and print that `problem` if given.
    False if the file system has no locks.
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
    """Be the only process in a folder; wait until another one has left it, and say so unless `quiet`. A folder that
    does not exist is created, and removed again if it stays empty.

    Args:
        patterns: of the names of files and folders that are written there. What killed processes left of them is
            removed first; not where the file system has no locks, since they may still be at work.

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
