"""Checked here: GPUs shared out among processes: no two have the same, a killed one's are free again, who finds too few
waits; several that share one; and the names that are refused.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from rpr.errors import ConfigError
from rpr.sweep import gpus
from rpr.sweep.gpus import parse_gpus, share

HOLDING = """
import sys
from pathlib import Path
from rpr.sweep.gpus import share
with share(("0", "1", "2"), 2, Path(sys.argv[1])) as mine:
    print(",".join(mine.gpus), flush=True)
    sys.stdin.read()
"""


def test_names() -> None:
    assert parse_gpus("0,1,3") == ("0", "1", "3")
    assert parse_gpus("[GPU-1a2b,MIG-3/4]") == ("GPU-1a2b", "MIG-3/4")
    for words in ("", "0,0", "a", "0,-1", "../x"):
        with pytest.raises(ConfigError, match="gpus: invalid value .*: expected distinct GPUs"):
            parse_gpus(words)


def test_each_has_its_own_and_a_killed_ones_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.05)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "0,1\n"
    with share(("0", "1", "2"), 1, tmp_path) as mine:
        assert mine.gpus == ("2",) and len(mine.descriptors) == 1
    threading.Timer(0.3, other.kill).start()
    began = time.monotonic()
    with share(("0", "1", "2"), 3, tmp_path) as mine:  # waits for the two
        assert mine.gpus == ("0", "1", "2") and time.monotonic() - began > 0.2
    other.communicate()


def test_two_that_want_all_do_not_keep_each_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.01)
    had: list[tuple[str, ...]] = []

    def take(order: tuple[str, ...]) -> None:
        for _ in range(5):
            with share(order, 2, tmp_path) as mine:
                had.append(mine.gpus)

    threads = [threading.Thread(target=take, args=(order,)) for order in (("0", "1"), ("1", "0"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(had) == 10


def test_jobs_that_share_gpus_spread_over_them_and_leave_those_alone_that_one_has_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.05)
    both = ("0", "1")
    with ExitStack() as jobs:
        had = [jobs.enter_context(share(both, 1, tmp_path, jobs_per_gpu=2)).gpus for _ in range(3)]
        assert had == [("0",), ("1",), ("0",)]
        assert gpus._lock_free(both, 1, tmp_path, 1) == {}  # for itself: none
        taken = gpus._lock_free(both, 2, tmp_path, 2)
        gpus._close(taken)
        assert [*taken] == ["1"]  # one more place, and no second
    with share(both, 1, tmp_path) as alone:
        assert alone.gpus == ("0",)
        with share(both, 1, tmp_path, jobs_per_gpu=2) as first, share(both, 1, tmp_path, jobs_per_gpu=2) as second:
            assert (first.gpus, second.gpus) == (("1",), ("1",)) and len(first.descriptors) == 2
            assert gpus._lock_free(both, 1, tmp_path, 2) == {}
    with share(both, 2, tmp_path) as all_of_them:
        assert all_of_them.gpus == both
