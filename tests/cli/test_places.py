"""Paths with `~` and variables, and a stdout that cannot encode everything."""

import errno
import io
import sys
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.io import stdio
from rpr.paths import user_path


@pytest.mark.parametrize("typed, path", [
    ("~", "/home"), ("~/a", "/home/a"), ("$HOME/a", "/home/a"), ("${HOME}/a", "/home/a"), ("a/$HOME", "a//home"),
    ("a/~", "a/~"), ("a$5", "a$5"), ("a$HOME", "a/home"), ("$UNSET/a", "$UNSET/a"),
])  # fmt: skip
def test_user_path(monkeypatch, typed, path):
    monkeypatch.setenv("HOME", "/home")
    assert user_path(typed) == Path(path)


@pytest.mark.parametrize("words", [
    ("train", "RUNS_DIR/x", "--cfg", "job"), ("compare", "sweep=a", "RUNS_DIR"), ("evaluate", "~/none"),
    ("export", "run=~/none"), ("diff", "~/a", "~/b"), ("train", "run=~/none"), ("sweep", "~/none.yaml"),
    ("sweep", "quick", "RUNS_DIR", "data.cache_dir=~/cache", "--dry-run"), ("train", "--config-dir=~/none"),
])  # fmt: skip
def test_home_is_expanded_everywhere(monkeypatch, tmp_path, capfd, words):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    app.main([word.replace("RUNS_DIR", "runs_dir=~/runs") for word in words])
    printed = capfd.readouterr()
    refusal = printed.err.partition("rpr-cli: ")[2]
    assert "cannot be parsed" not in refusal and "~" not in refusal and list(tmp_path.iterdir()) == []


class File(io.BytesIO):
    """A file that can be replaced by a pipe, as by `dup2`."""

    now_a_pipe = False

    def tell(self):
        if self.now_a_pipe:
            raise OSError(errno.ESPIPE, "Illegal seek")
        return super().tell()


@pytest.mark.parametrize("now_a_pipe", [False, True])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_what_stdout_cannot_encode_is_replaced(monkeypatch, encoding, now_a_pipe):
    raw = File()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    raw.now_a_pipe = now_a_pipe
    stdio.replace_unencodable()
    print("1 ± 2 → \udcff", flush=True)
    text = "1 ± 2 → ?" if encoding == "utf-8" else "1 ? 2 ? ?" if encoding == "ascii" else "1 ± 2 ? ?"
    assert raw.getvalue().decode(encoding) == text + "\n"
