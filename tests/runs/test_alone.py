"""Checked here: one process at a time in a folder, with a real second one that waits; what a killed one left is removed
then, and only then; folders that were made for nothing go again.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpr.runs.alone import alone, remove

WAITING = """
import sys
from pathlib import Path
from rpr.runs.alone import alone
with alone(Path(sys.argv[1]), "*.tmp"):
    print("alone", flush=True)
    sys.stdin.readline()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", WAITING, str(folder)], text=True, **pipes)


def test_one_at_a_time_and_the_second_waits(tmp_path: Path) -> None:
    unfinished = tmp_path / "a.tmp"
    with alone(tmp_path):
        second = start(tmp_path)
        assert second.stderr is not None and second.stdout is not None
        assert second.stderr.readline() == f"rpr-cli: another process writes in {tmp_path}; waiting for it\n"
        unfinished.touch()  # ours, and of one that is at work
        time.sleep(0.1)
        assert unfinished.exists() and second.poll() is None
    assert second.stdout.readline() == "alone\n"
    assert not unfinished.exists()
    second.kill()
    second.communicate()
    with alone(tmp_path):  # its lock went with it
        pass


def test_what_was_left_over_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".a.1.tmp", ".b.1.tmp", "a", "a.tmp"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".a.2.tmp" / "deep").mkdir(parents=True)
    (tmp_path / ".a.3.tmp").symlink_to(tmp_path / "a")
    with alone(tmp_path, ".a.*.tmp"):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".b.1.tmp", "a", "a.tmp"]
    assert (tmp_path / "a").read_text() == "x"
    remove(tmp_path / "not there", "*")


def test_without_locks_nothing_is_known_to_be_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / "a.tmp").touch()
    with alone(tmp_path, "*.tmp"):
        assert (tmp_path / "a.tmp").exists()


def test_folders_that_were_made_for_nothing_go_again(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "all"
    with pytest.raises(KeyError), alone(folder):
        assert folder.is_dir()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with alone(folder):
        (folder / "index.html").touch()
    assert (folder / "index.html").exists()
    with alone(folder), pytest.raises(KeyError):
        raise KeyError
    assert folder.exists()


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError), alone(folder):
            pass
