"""One process at a time in a folder of results, and what a killed one left there taken away.

The kernel's lock (flock) is on the folder itself: no file has to stay for it, and it goes with its process, however
that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder: Path, *left_over: str) -> Iterator[None]:
    """Work in a folder alone; where another process does, wait until it has ended, and say so. A folder that was not
    there is made, and does not stay where nothing came into it.

    Args:
        left_over: patterns of the names that unfinished files and folders have there. Whatever has one when the folder
            is ours is of a process that was killed, and is removed. Without locks on the file system nobody can know
            that: it stays, and nobody is waited for.

    Raises:
        OSError: the folder cannot be made or read.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        if made:
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _locked(descriptor, folder):
                remove(folder, *left_over)
            yield
        finally:
            os.close(descriptor)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


def remove(folder: Path, *left_over: str) -> None:
    """Files and folders of these patterns, as far as they can be removed: they are in nobody's way."""
    for path in [path for pattern in left_over for path in folder.glob(pattern)]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _locked(descriptor: int, folder: Path) -> bool:
    """False where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"rpr-cli: another process writes in {folder}; waiting for it", file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
