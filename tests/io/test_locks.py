"""Checked here: one process at a time in a folder, with a real second one that waits; what a killed one left is removed
then, and only then; folders that were created for nothing are removed; a lock is inherited by child processes.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpr.io.locks import exclusive, lock, try_lock

WAITING = """
import sys
from pathlib import Path
from rpr.io.locks import exclusive
with exclusive(Path(sys.argv[1]), "a"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", WAITING, str(folder)], text=True, **pipes)


def test_one_at_a_time_and_the_second_waits(tmp_path: Path) -> None:
    unfinished = tmp_path / ".a.1.tmp"
    with exclusive(tmp_path):
        second = start(tmp_path)
        assert second.stderr is not None and second.stdout is not None
        assert second.stderr.readline() == f"rpr-cli: another process writes in {tmp_path}; waiting for it\n"
        unfinished.touch()  # ours, and of one that is at work
        time.sleep(0.1)
        assert unfinished.exists() and second.poll() is None
    assert second.stdout.readline() == "locked\n"
    assert not unfinished.exists()
    second.kill()
    second.communicate()
    with exclusive(tmp_path):  # its lock went with it
        pass


def test_without_locks_nothing_is_known_to_be_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / ".a.1.tmp").touch()
    with exclusive(tmp_path, "a"):
        assert (tmp_path / ".a.1.tmp").exists()


def test_folders_that_were_created_for_nothing_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "all"
    with pytest.raises(KeyError), exclusive(folder):
        assert folder.is_dir()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with exclusive(folder):
        (folder / "index.html").touch()
    assert (folder / "index.html").exists()
    with exclusive(folder), pytest.raises(KeyError):
        raise KeyError
    assert folder.exists()


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError), exclusive(folder):
            pass


def test_a_lock_is_held_until_its_last_process_has_ended(tmp_path: Path) -> None:
    """Also by a child that was prepared by Python code after the fork, as the processes of a training are."""
    with open(tmp_path / "file", "w") as file, open(tmp_path / "file", "w") as another:
        assert lock(file.fileno()) and not try_lock(another.fileno())
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=(file.fileno(),),
            preexec_fn=lambda: None,
        )
        file.close()
        assert not try_lock(another.fileno())
        child.communicate()
        assert try_lock(another.fileno())
