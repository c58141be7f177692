"""Assigning GPUs to processes: a slot each, waiting for one, and the names of GPUs."""

import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from rpr.errors import ConfigError
from rpr.sweep import gpus
from rpr.sweep.gpus import parse_gpus, take_slots

HOLD_GPUS = """
import sys
from pathlib import Path
from rpr.sweep.gpus import take_slots
with take_slots(("0", "1", "2"), 2, Path(sys.argv[1])) as granted:
    print(",".join(granted.gpus), flush=True)
    sys.stdin.read()
"""


def test_parse_gpus():
    assert parse_gpus("0,0,3") == ("0", "0", "3")
    assert parse_gpus("[GPU-1a2b,MIG-3/4]") == ("GPU-1a2b", "MIG-3/4")
    for words in ("", "a", "0,-1", "../x"):
        with pytest.raises(ConfigError, match="gpus: invalid value .*: expected GPUs"):
            parse_gpus(words)


def test_gpus_are_exclusive_and_freed_by_a_kill(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.05)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_GPUS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "0,1\n"
    with take_slots(("0", "1", "2"), 1, tmp_path) as granted:
        assert granted.gpus == ("2",) and len(granted.descriptors) == 1
    capsys.readouterr()
    threading.Timer(0.3, other.kill).start()
    began = time.monotonic()
    with take_slots(("0", "1", "2"), 3, tmp_path) as granted:  # waits for two
        assert granted.gpus == ("0", "1", "2") and time.monotonic() - began > 0.2
    assert capsys.readouterr().err == "rpr-cli: gpus: waiting for 3 of the GPUs 0, 1, 2, which other jobs use\n"
    other.communicate()


def test_two_processes_that_need_all_gpus_do_not_deadlock(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.01)
    assigned: list[tuple[str, ...]] = []

    def take(order):
        for _ in range(5):
            with take_slots(order, 2, tmp_path) as granted:
                assigned.append(granted.gpus)

    threads = [threading.Thread(target=take, args=(order,)) for order in (("0", "1"), ("1", "0"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(assigned) == 10


def test_a_gpu_named_twice_takes_two_jobs(tmp_path):
    named = ("0", "0", "1")
    with ExitStack() as jobs:
        assigned = [jobs.enter_context(take_slots(named, 1, tmp_path)).gpus for _ in range(3)]
        assert assigned == [("0",), ("1",), ("0",)], "the first slot of each GPU first"
        assert gpus._lock_free(named, 1, tmp_path, jobs) == {}
    with take_slots(named, 2, tmp_path) as both:
        assert both.gpus == ("0", "1") and len(both.descriptors) == 2
        with take_slots(named, 1, tmp_path) as other:
            assert other.gpus == ("0",)
