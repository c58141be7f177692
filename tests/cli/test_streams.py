"""What the command line does where a standard stream is closed, where the reader of its stdout has gone,
and where its disk is full; in process with such a stdout, and in processes of its own. A reader's end of a pipe is
closed before anything is written to it, so that no test passes because the command was quicker.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rpr import __version__
from rpr.cli import app, stdio
from rpr.commands import train, translate

SCRIPT = Path(sys.executable).with_name("rpr-cli")
FULL = Path("/dev/full")
PROBE = """
import json, os, sys
from rpr.cli import stdio
before = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
stdio.reopen_closed_fds()
file = open(sys.argv[1], "w")
child = "import os, sys; from rpr.cli import stdio; os.fstat(0), os.fstat(1), os.fstat(2); sys.stderr.write('heard')"
json.dump([before, file.fileno(), sys.stderr is None, os.spawnv(os.P_WAIT, sys.executable, ["p", "-c", child])], file)
"""


def closing(redirections, *words):
    """A command with streams closed as a shell does it."""
    return ["sh", "-c", f"exec {shlex.join(map(str, words))} {redirections}"]


def environment(**more):
    """With buffers: what is printed goes out at the end, where Python would complain by itself."""
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}, **more}


def run(command, **options):
    return subprocess.run(command, text=True, timeout=120, **{"env": environment(), **options})


def pipe_without_reader():
    """Its writing end."""
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def asked(question, stdout, monkeypatch):
    """The exit code of a question in this process with another stdout, which can be closed afterwards as Python does it
    at its end, where it would complain if anything were left to be written.
    """
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as app sets it; undone after the test
    monkeypatch.setenv("COMP_LINE", "rpr-cli tr")
    monkeypatch.setattr(sys, "stdout", stdout)
    try:
        code = app.main(question.split())
    except SystemExit as ended:  # by Hydra
        code = ended.code
    if stdout is not None:
        stdout.close()
    return code


@pytest.mark.parametrize(
    "question", ["--help", "-sc query=bash", "train --help", "train --info config", "sweep quick --dry-run"]
)
def test_a_reader_that_is_gone_is_no_error(question, monkeypatch, capsys):
    assert asked(question, pipe_without_reader(), monkeypatch) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_nor_is_it_for_the_installed_command(unbuffered):
    with pipe_without_reader() as gone:
        ended = run(
            [SCRIPT, "--help"], stdout=gone, stderr=subprocess.PIPE, env=environment(PYTHONUNBUFFERED=unbuffered)
        )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_exit_code_of_what_was_done_stays(monkeypatch):
    def one_failed(name, arguments):
        print("to nobody")
        return 1

    monkeypatch.setattr(app, "_run", one_failed)
    assert asked("train", pipe_without_reader(), monkeypatch) == 1


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("question", ["--help", "train --cfg all"])
def test_a_full_disk_is_reported_in_one_line(question, monkeypatch, capsys):
    assert asked(question, FULL.open("w", buffering=2**20), monkeypatch) == 2
    ended = capsys.readouterr().err
    assert ended.startswith("rpr-cli: stdout: cannot be written (No space left on device); ") and ended.count("\n") == 1


@pytest.mark.parametrize(
    "question", ["--version", "train --help", "sweep quick --wandb-yaml", "report", "evaluate run=x", "train --cfg job"]
)
def test_output_to_nobody_is_refused(question, monkeypatch, capsys):
    assert asked(question, None, monkeypatch) == 2
    ended = capsys.readouterr().err
    assert ended.startswith(f"rpr-cli: stdout: closed, but {question.split()[0]} prints its result there; ")
    assert ended.count("\n") == 1


@pytest.mark.parametrize("words", ["train seed=1", "train -m seed=1"])
def test_training_has_a_stdout_that_goes_nowhere(words, monkeypatch, tmp_path):
    """joblib, for one, flushes it."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(train, "run", lambda config, **options: seen.append(sys.stdout and sys.stdout.name))
    asked(words, None, monkeypatch)
    assert seen and set(seen) == {os.devnull}


def test_translate_checks_for_a_closed_stdout_itself(monkeypatch, capsys):
    """It may write to a file."""
    monkeypatch.setattr(sys, "stdin", None)
    assert asked("translate run=x", None, monkeypatch) == 2
    assert capsys.readouterr().err == "rpr-cli: input: stdin is closed; give a file as input=FILE\n"
    monkeypatch.setattr(translate, "run", lambda config: stdio.require_stdout("translate", needed=True))
    assert asked("translate run=x", None, monkeypatch) == 2
    assert "translate prints its result there" in capsys.readouterr().err


def test_closed_streams_that_are_not_needed():
    ended = run(closing("<&-", SCRIPT, "--version"), capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"rpr-cli {__version__}\n", "")
    ended = run(closing("2>&-", SCRIPT, "trian"), stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (2, "")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", ""])
def test_no_file_gets_the_number_of_a_closed_stream(closed, tmp_path):
    """Nor is a stream missing in the processes that are started."""
    ended = run(closing(closed, sys.executable, "-c", PROBE, tmp_path / "file"), capture_output=True)
    assert ended.returncode == 0, ended.stderr
    before, number, without_stderr, child = json.loads((tmp_path / "file").read_text())
    assert before == ["<&-" in closed, " >&-" in f" {closed}", "2>&-" in closed]
    assert number > 2 and not without_stderr and child == 0
    assert ended.stdout == "" and ended.stderr == ("" if "2>&-" in closed else "heard")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_overrides, cache_dir):
    """The run of a training of which nobody heard anything."""
    folder = tmp_path_factory.mktemp("trained")
    words = [*tiny_overrides, "optim.max_steps=2", f"data.cache_dir={cache_dir}", "hardware.threads=1"]
    assert run(closing("<&- >&- 2>&-", SCRIPT, "train", *words), cwd=folder).returncode == 0
    (record,) = (folder / "runs").rglob("record.json")
    return record.parent


@pytest.mark.slow
def test_training_needs_no_streams(trained):
    record = json.loads((trained / "record.json").read_text())
    assert record["status"] == "finished" and record["error"] is None and record["scores"]


@pytest.mark.slow
def test_with_stderr_closed_stdout_holds_one_json_document(trained):
    command = closing("2>&-", SCRIPT, "evaluate", f"run={trained}", "format=json", "hardware.threads=1")
    ended = run(command, stdout=subprocess.PIPE, cwd=trained.parents[1])
    assert ended.returncode == 0 and json.loads(ended.stdout)["scores"]
