"""Checked here: what the command line does where a standard stream is closed, where the reader of its stdout has gone,
and where its disk is full; in process with such a stdout, and in processes of its own. A reader's end of a pipe is
closed before anything is written to it, so that no test passes because the command was quicker.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from rpr import __version__
from rpr.cli import app, stdio
from rpr.commands import train, translate

SCRIPT = Path(sys.executable).with_name("rpr-cli")
FULL = Path("/dev/full")
QUESTIONS = [
    "--help",
    "--version",
    "-sc query=bash",
    "-sc install=bash",
    "train --help",
    "train --hydra-help",
    "train --info config",
    "train --cfg all",
    "sweep --help",
    "sweep quick --dry-run",
    "sweep quick --wandb-yaml",
]
PROBE = """
import json, os, sys
from rpr.cli import stdio
before = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
stdio.reopen_closed_fds()
file = open(sys.argv[1], "w")
child = "import os, sys; from rpr.cli import stdio; os.fstat(0), os.fstat(1), os.fstat(2); sys.stderr.write('heard')"
json.dump([before, file.fileno(), sys.stderr is None, os.spawnv(os.P_WAIT, sys.executable, ["p", "-c", child])], file)
"""


def closing(redirections: str, *words: str | Path) -> list[str]:
    """A command with streams closed as a shell does it."""
    return ["sh", "-c", f"exec {shlex.join(map(str, words))} {redirections}"]


def environment(**more: str) -> dict[str, str]:
    """With buffers: what is printed goes out at the end, where Python would complain by itself."""
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}, **more}


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, timeout=120, **{"env": environment(), **options})  # type: ignore[call-overload]


def pipe_without_reader() -> IO[str]:
    """Its writing end."""
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def asked(question: str, stdout: IO[str] | None, monkeypatch: pytest.MonkeyPatch) -> int:
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


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_that_is_gone_is_no_error(
    question: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(question, pipe_without_reader(), monkeypatch) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("question, unbuffered", [("--help", "1"), ("train --info config", "")])
def test_nor_is_it_for_the_installed_command(question: str, unbuffered: str) -> None:
    with pipe_without_reader() as gone:
        command = [str(SCRIPT), *question.split()]
        told = run(command, stdout=gone, stderr=subprocess.PIPE, env=environment(PYTHONUNBUFFERED=unbuffered))
    assert (told.returncode, told.stderr) == (0, "")


def test_the_exit_code_of_what_was_done_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def some_failed(name: str, arguments: list[str]) -> int:
        print("told to nobody")
        return 1

    monkeypatch.setattr(app, "_run", some_failed)
    assert asked("train", pipe_without_reader(), monkeypatch) == 1


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("question", QUESTIONS[::3])
def test_a_full_disk_is_told_in_one_line(
    question: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(question, FULL.open("w", buffering=2**20), monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith("rpr-cli: stdout: cannot be written (No space left on device); ") and told.count("\n") == 1


@pytest.mark.parametrize("question", [*QUESTIONS[1::3], "report", "diff a b", "evaluate run=x", "train --cfg job"])
def test_what_would_be_printed_to_nobody_is_refused(
    question: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(question, None, monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"rpr-cli: stdout: closed, but {question.split()[0]} prints its result there; ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("words", ["train seed=1", "train -m seed=1,2", "sweep quick"])
def test_training_has_a_stdout_that_goes_nowhere(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """joblib, for one, flushes it."""
    monkeypatch.chdir(tmp_path)
    seen: list[str | None] = []
    monkeypatch.setattr(train, "run", lambda config, **options: seen.append(sys.stdout and sys.stdout.name))
    asked(words, None, monkeypatch)
    assert seen and set(seen) == {os.devnull}


def test_translate_sees_to_a_closed_stdout_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may write to a file."""
    monkeypatch.setattr(sys, "stdin", None)
    assert asked("translate run=x", None, monkeypatch) == 2
    assert capsys.readouterr().err == "rpr-cli: input: stdin is closed; give a file as input=FILE\n"
    monkeypatch.setattr(translate, "run", lambda config: stdio.require_stdout("translate", needed=True))
    assert asked("translate run=x", None, monkeypatch) == 2
    assert "translate prints its result there" in capsys.readouterr().err


@pytest.mark.parametrize("question", ["--version", "train --cfg job"])
def test_a_closed_stdin_is_not_missed(question: str) -> None:
    told = run(closing("<&-", SCRIPT, *question.split()), capture_output=True)
    assert (told.returncode, told.stderr) == (0, "") and told.stdout


def test_a_closed_stderr_is_told_nothing(tmp_path: Path) -> None:
    told = run(closing("2>&-", SCRIPT, "--version"), stdout=subprocess.PIPE)
    assert (told.returncode, told.stdout) == (0, f"rpr-cli {__version__}\n")
    told = run(closing("2>&-", SCRIPT, "trian"), stdout=subprocess.PIPE)
    assert (told.returncode, told.stdout) == (2, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ""])
def test_no_file_gets_the_number_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    """Nor is a stream missing in the processes that are started."""
    told = run(closing(closed, sys.executable, "-c", PROBE, tmp_path / "file"), capture_output=True)
    assert told.returncode == 0, told.stderr
    before, number, without_stderr, child = json.loads((tmp_path / "file").read_text())
    assert before == ["<&-" in closed, " >&-" in f" {closed}", "2>&-" in closed]
    assert number > 2 and not without_stderr and child == 0
    assert told.stdout == "" and told.stderr == ("" if "2>&-" in closed else "heard")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: tuple[str, ...], cache_dir: Path) -> Path:
    """The run of a training of which nobody heard anything."""
    folder = tmp_path_factory.mktemp("trained")
    words = [*tiny_overrides, "optim.max_steps=2", f"data.cache_dir={cache_dir}", "hardware.threads=1"]
    assert run(closing("<&- >&- 2>&-", SCRIPT, "train", *words), cwd=folder).returncode == 0
    (record,) = (folder / "runs").rglob("record.json")
    return record.parent


@pytest.mark.slow
def test_training_needs_no_streams(trained: Path) -> None:
    record = json.loads((trained / "record.json").read_text())
    assert record["status"] == "finished" and record["error"] is None and record["scores"]


@pytest.mark.slow
def test_with_stderr_closed_stdout_holds_one_json_document(trained: Path) -> None:
    command = closing("2>&-", SCRIPT, "evaluate", f"run={trained}", "format=json", "hardware.threads=1")
    told = run(command, stdout=subprocess.PIPE, cwd=trained.parents[1])
    assert told.returncode == 0 and json.loads(told.stdout)["scores"]
