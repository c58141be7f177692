"""Atomic writes: files and folders are complete or absent, also after a kill, on a full disk and after a power failure.
And locks between processes, on open files and folders, which end with the last process that holds the descriptor,
however it ends. (The lock of a run, rpr/runs/locks.py, also works between machines.)

Data is written next to its final path, as `.<name>.<pid>.tmp`. A folder to be replaced is first moved to
`.<name>.<pid>.old`, because a rename replaces only an empty folder. A folder is locked by its own descriptor: a lock
file would remain visible in users' folders.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rpr.io.escape import note


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically (temporary file, fsync, rename); after an OSError the old file is untouched."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file or a folder to; at the end, once it is on the disk, it replaces `path`, and after an error
    it is removed. After an OSError what was at `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    finished, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("tmp", "old"))
    try:
        yield finished
        for file in finished.rglob("*") if finished.is_dir() else (finished,):
            if not file.is_dir():
                _sync(file)
        if finished.is_dir() and path.exists():
            os.replace(path, old)
        os.replace(finished, path)
        with contextlib.suppress(OSError):  # not every file system can sync a folder; only the new name could be lost
            _sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        _remove(old)
        _remove(finished)


def remove_leftovers(folder: Path, *patterns: str) -> None:
    """Remove what killed processes left of files and folders whose names match one of the glob patterns; an old folder
    whose replacement was never completed is moved back. Call it only when no process writes them.
    """
    for pattern in patterns:
        for temporary in list(folder.glob(f".{pattern}.[0-9]*.tmp")):
            _remove(temporary)
        for old in list(folder.glob(f".{pattern}.[0-9]*.old")):
            path = folder / old.name[1:].rsplit(".", 2)[0]
            if path.exists():
                _remove(old)
            else:
                os.replace(old, path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Locks


def try_lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder; False if another process holds it. OSError: the file system has no locks."""
    from filelock import lock_descriptor  # takes up to 0.1 s, which commands that lock nothing should not wait for

    return lock_descriptor(descriptor, blocking=wait)


@contextmanager
def exclusive(folder: Path, *patterns: str, name: str = "") -> Iterator[None]:
    """Hold the exclusive lock of a folder, which is created, or of a file `name` in it, which stays: removing it would
    let two processes in. Waits for another process, with a message. `patterns` are of the names of files and folders
    that are written there: what killed processes left of them is removed first, except on a file system without locks,
    where they may still be running. Raises OSError if the folder cannot be created or read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT if name else os.O_RDONLY | os.O_DIRECTORY, 0o666)
    try:
        with contextlib.suppress(OSError):  # the file system has no locks
            if not try_lock(descriptor):
                note(f"another process writes in {folder}; waiting for it")
                try_lock(descriptor, wait=True)
            remove_leftovers(folder, *patterns)
        yield
    finally:
        os.close(descriptor)
