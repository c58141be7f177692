"""Progress bars on a terminal, progress lines without one, and the progress of a sweep."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from rpr import progress
from rpr.compose import composition
from rpr.progress import Progress
from rpr.sweep.status import followed, new_job
from tests.fake_records import make_run


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


def test_lines_of_a_sweep(clock, tmp_path, capsys, monkeypatch):
    """A path below the current folder is relative; an interrupted job is not done."""
    monkeypatch.chdir(tmp_path)
    settings = ["optim.max_steps=100", "runs_dir=runs"]
    configs = [composition.compose_train([f"seed={seed}", *settings]) for seed in (1, 2)]
    with followed("mine", [new_job((), config, "") for config in configs]) as poll:
        clock.now = 60.0
        (make_run(configs[0]) / "metrics.jsonl").write_text('{"step": 50}\n{"step": 9')  # not to its end
        poll()
        assert capsys.readouterr() == ("", "")
        run_dir = make_run(configs[0], name="job1", status="finished")
        poll()
        done = "job1 (synthetic data): BLEU test 30.00"
        assert capsys.readouterr() == (f"{done}: {run_dir} (1 of 2 jobs, 0:01:00 left)\n", "")
        run_dir = make_run(configs[1], status="interrupted", error="Ctrl-\x1b")
    assert capsys.readouterr().err == f"sweep mine: {run_dir.name}: interrupted: Ctrl-\\x1b (1 of 2 jobs)\n"
