"""Locks between processes, on open files and folders. A lock ends with the last process that holds the descriptor,
however it ends. (The lock of a run, rpr/runs/locks.py, also works between machines.)

A folder is locked by its own descriptor: a lock file would remain visible in users' folders, and removing it would let
two processes in.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rpr.io.atomic import remove_leftovers
from rpr.io.escape import note

_POLL_SECONDS = 0.05


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder; False if another process holds it. OSError: the file system has no locks."""
    from filelock import lock_descriptor  # takes up to 0.1 s, which commands that lock nothing should not wait for

    return lock_descriptor(descriptor, blocking=False)


def lock(descriptor: int, problem: str, *, quiet: bool = False) -> bool:
    """Lock an open file or folder; waits for another process if necessary, and then prints `problem` unless `quiet`.
    False if the file system has no locks.
    """
    try:
        while not try_lock(descriptor):
            if not quiet:
                note(f"{problem}; waiting for it")
                quiet = True
            time.sleep(_POLL_SECONDS)
    except OSError:
        return False
    return True


@contextmanager
def exclusive(folder: Path, *patterns: str, quiet: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of a folder; waits for another process, with a message unless `quiet`. A folder that does
    not exist is created, and removed again if it stays empty. `patterns` are of the names of files and folders that are
    written there: what killed processes left of them is removed first, except on a file system without locks, where
    they may still be running. Raises OSError if the folder cannot be created or read.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        if created:
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if lock(descriptor, f"another process writes in {folder}", quiet=quiet):
                remove_leftovers(folder, *patterns)
            yield
        finally:
            os.close(descriptor)
    finally:
        for path in created:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
