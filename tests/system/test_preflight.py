"""fast_dev_run=true: what it prints, on one process and on two ranks; that nothing of it stays, however it ends."""

import os
import signal
import subprocess

import pytest

from tests.lazy import preflight
from tests.processes import SCRIPT

ROWS = ("peak memory", "speed", "whole training", "disk", "resumed", "evaluation")
TWO = ("hardware=2xcpu", "optim.microbatches_per_step=2")


def check(out, tmp_path):
    """A line for each row below the head, and an empty place where the runs would be."""
    head, *rows = out.splitlines()
    assert head.startswith("synthetic-tiny-relative-k16-s1: 20 steps of ")
    assert [row[2:16].rstrip() for row in rows] == [*ROWS]
    assert "3,200 steps in " in out and "5 checkpoints of " in out and "10 sentences of test translated" in out
    assert not (tmp_path / "runs").exists()


def test_prints_its_table_and_leaves_nothing(tiny, small_data, tmp_path, cli):
    printed = cli("train", *tiny, "fast_dev_run=true", "hardware.threads=1")
    check(printed.out, tmp_path)
    assert "  resumed         the weights of a training never stopped\n" in printed.out


def test_documents_are_read_instead_and_a_wrong_resume_is_an_error(tiny, tmp_path, cli, monkeypatch):
    (tmp_path / "text.txt").write_text("as read, so scored\n" * 200)
    text = [word for word in tiny if not word.startswith(("data.synthetic", "data.vocab"))]
    text += ["data=text", f"data.path={tmp_path / 'text.txt'}", "model.architecture=decoder_only", "fast_dev_run=true"]
    text += ["data.context_length=32", "hardware.threads=1"]
    assert "1,024 tokens of test read" in cli("train", *text).out
    monkeypatch.setattr(preflight, "_difference", lambda one, other: 0.5)
    assert "a resumed training has other weights, by up to 0.5" in cli("train", *text, code=2).err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [TWO, ["-m", "jobs=1"]])
def test_ranks_and_multiruns(how, tiny, small_data, tmp_path):
    """A job of a multirun prints to stderr, as stdout is that of the multirun."""
    command = [SCRIPT, "train", *tiny, "fast_dev_run=true", *how]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (done.stdout or done.stderr).splitlines()
    first = next(at for at, line in enumerate(lines) if ": 20 steps of " in line)
    check("\n".join(lines[first : first + 1 + len(ROWS)]), tmp_path)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tiny, small_data, tmp_path, processes, wait_for):
    process = processes.start("train", *tiny, "fast_dev_run=true", *TWO)
    assert wait_for(lambda: bool(list(tmp_path.glob("runs/.preflight-*/checkpoints/*.ckpt"))), 200), process.poll()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not (tmp_path / "runs").exists()
