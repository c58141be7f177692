"""Atomic replacement of files and folders, leftovers of a killed process, and locks between real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpr.io.atomic import exclusive, remove_leftovers, replacing


def tree(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_text() for path in folder.rglob("*")}


def replace(path: Path, content: str, *, folder: bool) -> None:
    with replacing(path) as temporary:
        if folder:
            (temporary / "deep").mkdir(parents=True)
            temporary /= "deep/file"
        temporary.write_text(content)


@pytest.mark.parametrize("folder", [False, True])
def test_failed_replacement_leaves_the_old_content(tmp_path, folder, monkeypatch):
    path = tmp_path / "there"
    replace(path, "old", folder=folder)
    old = tree(tmp_path)
    move = os.replace

    def no_space(*_):
        raise OSError(28, "No space left on device")

    def interrupted(source, target):
        if source.suffix == ".tmp":
            raise KeyboardInterrupt
        move(source, target)

    for step, failure, error in (("fsync", no_space, OSError), ("replace", interrupted, KeyboardInterrupt)):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, failure)
            with pytest.raises(error):
                replace(path, "new", folder=folder)
        assert tree(tmp_path) == old
    replace(path, "new", folder=folder)
    assert tree(tmp_path) == {name: content and "new" for name, content in old.items()}


def test_remove_leftovers_removes_only_matching_names(tmp_path):
    for name in (".a.1.tmp", ".b.1.tmp", ".a.x.tmp", "a", "a.tmp", "a.1.tmp"):
        (tmp_path / name).write_text("x")
    kept = tree(tmp_path).keys() - {".a.1.tmp"}
    (tmp_path / ".a.2.tmp" / "deep").mkdir(parents=True)
    (tmp_path / ".a.3.tmp").symlink_to(tmp_path / "a")
    remove_leftovers(tmp_path, "a", "c*")
    assert tree(tmp_path).keys() == kept
    remove_leftovers(tmp_path / "not there", "*")


def test_moved_folder_is_restored_unless_replaced(tmp_path):
    for name in (".lost.1.old", ".replaced.v2.1.old", "replaced.v2"):
        replace(tmp_path / name, name, folder=True)
    remove_leftovers(tmp_path, "*")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost", "replaced.v2"]
    assert (tmp_path / "lost" / "deep" / "file").read_text() == ".lost.1.old"


HOLD_LOCK = """
import sys
from pathlib import Path
from rpr.io.atomic import exclusive
with exclusive(Path(sys.argv[1]), "a", name=sys.argv[2]):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("name", ["", ".a.lock"])
def test_lock_is_exclusive_and_leftovers_are_removed(tmp_path, name):
    unfinished = tmp_path / ".a.1.tmp"
    with exclusive(tmp_path, name=name):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        second = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(tmp_path), name], text=True, **pipes)
        assert second.stderr.readline() == f"rpr-cli: another process writes in {tmp_path}; waiting for it\n"
        unfinished.touch()
        time.sleep(0.1)
        assert unfinished.exists() and second.poll() is None
    assert second.stdout.readline() == "locked\n"
    assert not unfinished.exists()
    second.kill()
    second.communicate()
    with exclusive(tmp_path, name=name):  # the kill released its lock
        pass
