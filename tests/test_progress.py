"""Progress bars on a terminal, progress lines without one, and the progress of a sweep."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

from rpr import progress
from rpr.compose import composition
from rpr.progress import Progress
from rpr.records.record import write_record
from rpr.sweep.status import Job, followed
from tests.fake_records import fake_record


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


class Terminal(io.StringIO):
    """Remembers all that was shown."""

    def isatty(self) -> bool:
        return True


def test_lines_without_a_terminal(clock, capsys):
    with Progress(1000, "steps", "training\x1b]0;owned\x07\n", done=100) as bar:
        for step in range(101, 1001):
            clock.now += 0.03
            bar.update(loss=step / 7, BLEU=None if step < 600 else 12.0, name="\x1b[2J\r")
    name = r"name \x1b[2J\r"
    assert [line.partition(r"\x1b]0;owned\x07\n: ")[2] for line in capsys.readouterr().err.splitlines()] == [
        f"434/1,000 steps, 0:00:17 left, 33.33 steps/s, loss 62, {name}",
        f"768/1,000 steps, 0:00:07 left, 33.33 steps/s, loss 109.7, BLEU 12, {name}",
        f"1,000/1,000 steps, 33.33 steps/s, loss 142.9, BLEU 12, {name}",
    ]


def test_bars_with_printed_lines_above(clock, monkeypatch):
    with monkeypatch.context() as patch:
        terminal = Terminal()
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdout", terminal)
        with Progress(200, "sentences", "translating") as bar, Progress(4, "steps", "one", keep=False) as inner:
            bar.update(10)
            assert terminal.getvalue() == ""
            clock.now = 2.0
            bar.update(90, **{"tokens/s": 1234.5})
            inner.update(last="{braces}")
            print("rpr-cli: a warning", file=sys.stderr)
            with progress.above_bars():
                print("a result")
        assert sys.stderr is terminal
    shown = terminal.getvalue()
    for printed in ("rpr-cli: a warning", "a result"):  # after the bars have been cleared
        assert re.search(rf"\r(\x1b\[A)*{printed}\n", shown), printed
    assert "| 100/200 sentences, 0:00:02 left, 50 sentences/s, 1,234 tokens/s" in shown
    assert "| 1/4 steps, 0:00:06 left, 0.5 steps/s, last {braces}" in shown and shown.endswith("\n")


@pytest.fixture
def jobs(tmp_path):
    configs = [composition.compose_train([f"seed={seed}", "optim.max_steps=100"]) for seed in (1, 2, 3)]
    return [Job((f"seed={config.seed}",), config, tmp_path / config.run_dir_name) for config in configs]


@pytest.fixture
def write(jobs):
    """Write the files of a job that has reached a step, the last line not to its end."""

    def write(number, step, status, **changes):
        run_dir = jobs[number].run_dir
        run_dir.mkdir(exist_ok=True)
        rows = [{"step": one, "time": 1.0, "train/loss": 5.5} for one in range(step + 1)]
        (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 99')
        write_record(run_dir / "record.json", fake_record(name=f"job{number + 1}", status=status, **changes))

    return write


def test_lines_of_a_sweep(clock, jobs, write, capsys, monkeypatch):
    """A path below the current folder is relative; an interrupted job is not done."""
    monkeypatch.chdir(jobs[0].run_dir.parent)
    write(2, 40, "failed", error="of an earlier attempt")
    with followed("mine", jobs) as poll:
        clock.now = 60.0
        write(0, 50, "running")
        poll()
        assert capsys.readouterr() == ("", "")
        write(0, 100, "finished")
        poll()
        done = f"job1: BLEU test 30.00: {jobs[0].run_dir.name} (1 of 3 jobs, 0:01:36 left)\n"
        assert capsys.readouterr() == (done, "")
        clock.now = 120.0
        write(1, 75, "failed", error="no \x1b luck")
        write(2, 50, "interrupted", error="Ctrl-C")
    why = f"{jobs[1].run_dir.name}: failed: no \\x1b luck (2 of 3 jobs)"
    interrupted = f"sweep mine: {jobs[2].run_dir.name}: interrupted: Ctrl-C (2 of 3 jobs)"
    assert capsys.readouterr() == ("", f"sweep mine: {why}\n{interrupted}\n")
