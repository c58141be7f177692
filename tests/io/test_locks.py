"""Locks on folders, between real processes."""

import subprocess
import sys
import time

import pytest

from rpr.io.locks import exclusive

HOLD_LOCK = """
import sys
from pathlib import Path
from rpr.io.locks import exclusive
with exclusive(Path(sys.argv[1]), "a"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_lock_is_exclusive_and_leftovers_are_removed(tmp_path):
    unfinished = tmp_path / ".a.1.tmp"
    with exclusive(tmp_path):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        second = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(tmp_path)], text=True, **pipes)
        assert second.stderr.readline() == f"rpr-cli: another process writes in {tmp_path}; waiting for it\n"
        unfinished.touch()
        time.sleep(0.1)
        assert unfinished.exists() and second.poll() is None
    assert second.stdout.readline() == "locked\n"
    assert not unfinished.exists()
    second.kill()
    second.communicate()
    with exclusive(tmp_path):  # the kill released its lock
        pass


def test_created_folders_are_removed_after_an_error(tmp_path):
    folder = tmp_path / "reports" / "all"
    with pytest.raises(KeyError), exclusive(folder):
        assert folder.is_dir()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with exclusive(folder):
        (folder / "index.html").touch()
    with exclusive(folder), pytest.raises(KeyError):
        raise KeyError
    assert (folder / "index.html").exists()
