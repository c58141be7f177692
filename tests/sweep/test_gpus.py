"""Assigning GPUs to processes: exclusive ones, shared ones, waiting for them, and their names."""

import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from rpr.errors import ConfigError, RunError
from rpr.sweep import gpus
from rpr.sweep.gpus import parse_gpus, share

HOLD_GPUS = """
import sys
from pathlib import Path
from rpr.sweep.gpus import share
with share(("0", "1", "2"), 2, Path(sys.argv[1])) as granted:
    print(",".join(granted.gpus), flush=True)
    sys.stdin.read()
"""


def test_parse_gpus():
    assert parse_gpus("0,1,3") == ("0", "1", "3")
    assert parse_gpus("[GPU-1a2b,MIG-3/4]") == ("GPU-1a2b", "MIG-3/4")
    for words in ("", "0,0", "a", "0,-1", "../x"):
        with pytest.raises(ConfigError, match="gpus: invalid value .*: expected distinct GPUs"):
            parse_gpus(words)


def test_gpus_are_exclusive_and_freed_by_a_kill(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.05)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_GPUS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "0,1\n"
    with share(("0", "1", "2"), 1, tmp_path) as granted:
        assert granted.gpus == ("2",) and len(granted.descriptors) == 1
    with monkeypatch.context() as patched:
        patched.setattr(gpus, "_LONGEST_WAIT_DAYS", 1e-9)
        with pytest.raises(RunError, match="^gpus: other jobs have used 2 of the GPUs 0, 1 for "):
            share("01", 2, tmp_path).__enter__()
    capsys.readouterr()
    threading.Timer(0.3, other.kill).start()
    began = time.monotonic()
    with share(("0", "1", "2"), 3, tmp_path) as granted:  # waits for two
        assert granted.gpus == ("0", "1", "2") and time.monotonic() - began > 0.2
    assert capsys.readouterr().err == "rpr-cli: gpus: waiting for 3 of the GPUs 0, 1, 2, which other jobs use\n"
    other.communicate()


def test_two_processes_that_need_all_gpus_do_not_deadlock(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.01)
    assigned: list[tuple[str, ...]] = []

    def take(order):
        for _ in range(5):
            with share(order, 2, tmp_path) as granted:
                assigned.append(granted.gpus)

    threads = [threading.Thread(target=take, args=(order,)) for order in (("0", "1"), ("1", "0"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(assigned) == 10


def test_shared_gpus_are_balanced_and_exclusive_ones_avoided(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.05)
    both = ("0", "1")
    with ExitStack() as jobs:
        assigned = [jobs.enter_context(share(both, 1, tmp_path, jobs_per_gpu=2)).gpus for _ in range(3)]
        assert assigned == [("0",), ("1",), ("0",)]
        assert gpus._lock_free(both, 1, tmp_path, 1) == {}  # none is unused
        locked = gpus._lock_free(both, 2, tmp_path, 2)
        gpus._close(locked)
        assert [*locked] == ["1"]  # the only place left
    with share(both, 1, tmp_path) as exclusive:
        assert exclusive.gpus == ("0",)
        with share(both, 1, tmp_path, jobs_per_gpu=2) as first, share(both, 1, tmp_path, jobs_per_gpu=2) as second:
            assert (first.gpus, second.gpus) == (("1",), ("1",)) and len(first.descriptors) == 2
            assert gpus._lock_free(both, 1, tmp_path, 2) == {}
    with share(both, 2, tmp_path) as everything:
        assert everything.gpus == both
