"""The command line with closed standard streams, a closed pipe, a full disk, or a stdout that cannot encode everything.

The reading end of a pipe is closed before anything is written, so that no test depends on timing.
"""

import errno
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.io import system

FULL = Path("/dev/full")
PROBE = """
import json, os, sys
from rpr.io import system
before = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
system.reopen_closed_fds()
file = open(sys.argv[1], "w")
child = "import os, sys; from rpr.io import system; os.fstat(0), os.fstat(1), os.fstat(2); sys.stderr.write('printed')"
ended = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", child])
json.dump([before, file.fileno(), sys.stderr is None, ended], file)
"""


def closing(redirections, *words):
    """A command with streams closed as a shell does it."""
    return ["sh", "-c", f"exec {shlex.join(map(str, words))} {redirections}"]


def run(command, **options):
    """With buffered output: Python would complain at its exit."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(command, text=True, timeout=120, env=environment, **options)


def pipe_without_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def exit_code(arguments, stdout, monkeypatch):
    """The exit code of a command in this process with another stdout, which is then closed, as at Python's exit."""
    monkeypatch.setattr(sys, "stdout", stdout)
    try:
        code = app.main(arguments.split())
    except SystemExit as ended:  # by Hydra
        code = ended.code
    if stdout is not None:
        stdout.close()
    return code


@pytest.mark.parametrize("arguments", ["--help", "sweep quick --dry-run"])
def test_closed_pipe_is_no_error(arguments, monkeypatch, capsys):
    assert exit_code(arguments, pipe_without_reader(), monkeypatch) == 0
    assert capsys.readouterr().err == ""


LASTING = """
import sys
from rpr.io import system
sys.stdin.readline()  # until the reader is gone
system.outlive_readers("stdout", "stderr")
for _ in range(3):
    print("lost"), print("lost", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_outlives_the_reader_of_its_streams(terminal):
    """`|& head`, `|& tee` whose tee dies, or a closed terminal under nohup."""
    reading, writing = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", LASTING]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writing, stderr=writing, start_new_session=True)
    os.close(writing)
    os.close(reading)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 7


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", ["--help", "train --cfg job"])
def test_full_disk_is_reported_in_one_line(arguments, monkeypatch, capsys):
    assert exit_code(arguments, FULL.open("w", buffering=2**20), monkeypatch) == 2
    err = capsys.readouterr().err
    assert (
        err.startswith("rpr-cli: a file: cannot be read or written (No space left on device); ")
        and err.count("\n") == 1
    )


def test_what_is_printed_to_a_closed_stdout_is_discarded(monkeypatch, capsys):
    assert exit_code("--version", None, monkeypatch) == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert exit_code("translate run=x", None, monkeypatch) == 2
    assert capsys.readouterr().err == "rpr-cli: stdin is closed; give input=FILE, or prompt=TEXT to generate\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", ""])
def test_closed_descriptors_are_not_reused(closed, tmp_path):
    """Nor are they missing in child processes."""
    ended = run(closing(closed, sys.executable, "-c", PROBE, tmp_path / "file"), capture_output=True)
    assert ended.returncode == 0, ended.stderr
    before, number, without_stderr, child = json.loads((tmp_path / "file").read_text())
    assert before == ["<&-" in closed, " >&-" in f" {closed}", "2>&-" in closed]
    assert number > 2 and not without_stderr and child == 0
    assert ended.stdout == "" and ended.stderr == ("" if "2>&-" in closed else "printed")


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
    system.replace_unencodable()
    print("1 ± 2 → \udcff", flush=True)
    text = "1 ± 2 → ?" if encoding == "utf-8" else "1 ? 2 ? ?" if encoding == "ascii" else "1 ± 2 ? ?"
    assert raw.getvalue().decode(encoding) == text + "\n"
