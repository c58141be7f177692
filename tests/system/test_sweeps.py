"""Checked here: sweeps as they are typed: the ledger's skipping, resuming and retrying, two processes at one sweep,
SIGKILL and Ctrl-C in the middle, a job that fails; no process is left of a sweep that was killed. The processes are
forks of one whose imports are done, but where several jobs run at a time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rpr.records.record import Record, read_record
from tests.system.conftest import Family, WaitFor
from tests.system.faults import Started, Starter

FAULTS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
CODES = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
RECIPE = (
    "optim.max_steps=20 optim.checkpoint_every_n_steps=5 optim.validate_every_n_steps=20 hardware.threads=1 "
    "evaluation.test_splits=[test] evaluation.beam_size=1 evaluation.bootstrap_samples=0"
)
Sweep = Callable[..., Started]


@pytest.fixture
def words(tiny: list[str], tmp_path: Path, small_data: object) -> list[str]:
    """Of `rpr-cli` for a sweep of three tiny jobs."""
    file = tmp_path / "mine.yaml"
    shared = " ".join(word for word in tiny if not word.startswith("runs_dir="))
    jobs = ["position.clip_distance=0,2", "position=absolute"]
    file.write_text(json.dumps({"overrides": [shared, RECIPE], "jobs": jobs}))
    return ["sweep", str(file), f"runs_dir={tmp_path / 'runs'}"]


@pytest.fixture
def sweep(words: list[str], tmp_path: Path, starter: Starter) -> Sweep:
    """Starts it."""
    return lambda *more: starter.start([*words, *more], tmp_path, patch="forked_jobs")


def ended(process: Started, code: int = 0) -> tuple[str, str]:
    done = process.ended(200)
    assert done.code == code and "Traceback" not in done.err, done.err
    return done.out, done.err


def records(runs: Path) -> dict[str, Record]:
    return {path.parent.name: read_record(path) for path in runs.glob("*/record.json")}


@pytest.mark.slow  # quick: tests/sweep/test_sweeps.py and the second call in test_end_to_end.py
def test_once_again_and_with_more_seeds(sweep: Sweep, tmp_path: Path) -> None:
    _, err = ended(sweep())
    assert err.startswith("sweep mine: 3 jobs: 3 new\n") and err.endswith("sweep mine: 3 jobs: 3 finished\n")
    first = records(tmp_path / "runs")
    [k2] = [name for name in first if "relative-k2" in name]
    assert f"sweep mine: job 2 of 3: {k2}\n" in err
    assert len(first) == 3 and all(record.status == "finished" for record in first.values())
    assert all(record.sweeps == ("mine",) for record in first.values())
    assert "training: 20/20 steps" in (tmp_path / "runs" / k2 / "log.txt").read_text()
    out, err = ended(sweep())
    assert err == "sweep mine: 3 jobs: 3 finished\n" * 2 and out == ""
    assert records(tmp_path / "runs") == first
    out, _ = ended(sweep("seed=1,2", "--dry-run"))
    lines = out.splitlines()
    states = [f"# {number} of 6, {'finished' if number % 2 else 'new'}" for number in range(1, 7)]
    assert [line.split(":")[0] for line in lines[::2]] == [*states, "# 6 jobs"]
    assert "0.03 M parameters, 20 steps, at most 10.2 k tokens a side, about " in lines[0]
    assert "the median of 1 run with the same positions" in lines[0] and "3 new, 3 finished; remaining: " in lines[-1]
    _, err = ended(sweep("seed=1,2"))
    assert "since it was last started: 3 of its 6 jobs are new, 0 were removed" in err
    assert len(records(tmp_path / "runs")) == 6


def test_a_job_that_fails_is_left_until_it_is_retried(sweep: Sweep, tmp_path: Path) -> None:
    """Its settings are legal; its weights overflow. What fails stops no other job."""
    words = ("optim.learning_rate_scale=1,1e38", "optim.max_steps=5")
    _, err = ended(sweep(*words), 1)
    found = records(tmp_path / "runs")
    failed = {name: record for name, record in found.items() if record.status == "failed"}
    assert len(failed) == 3 and len(found) == 6  # each job twice
    for name, record in failed.items():
        assert record.config["optim"]["learning_rate_scale"] == 1e38 and record.error is not None
        assert record.error.startswith("step 2: the loss or its gradient is not finite (loss ")
        assert f"rpr-cli: failed: {name}: step 2: the loss" in err
    assert err.count("rpr-cli: failed: ") == err.count("\n  to retry: rpr-cli train ") == 3
    assert "sweep mine: 6 jobs: 3 finished, 3 failed\n" in err
    assert err.endswith("retry_failed=true runs failed jobs again, from their last checkpoint\n")
    _, err = ended(sweep(*words), 1)
    assert err.startswith("sweep mine: 6 jobs: 3 finished, 3 failed before\n") and "job 1 of" not in err
    assert "training: 5/5 steps" not in err
    # One that failed for a reason that is gone is finished by a retry.
    [name] = [name for name, record in found.items() if "k2" in name and record.status == "finished"]
    path = tmp_path / "runs" / name / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "failed", "error": "the disk was full"}))
    words = ("optim.learning_rate_scale=1", "optim.max_steps=5")
    _, err = ended(sweep(*words), 1)
    assert f"rpr-cli: failed: {name}: the disk was full\n    " in err and "training: 5/5 steps" in err
    _, err = ended(sweep(*words, "retry_failed=true"))
    assert "sweep mine: job 1 of 1: " in err and err.endswith("sweep mine: 3 jobs: 3 finished\n")


def test_two_processes_at_one_sweep_run_no_job_twice(sweep: Sweep, tmp_path: Path) -> None:
    both = [sweep("seed=1,2"), sweep("seed=1,2")]
    done = [process.ended(200) for process in both]
    for one in done:  # one may end while the other has a job
        assert one.code == ("the sweep is incomplete: 1 of its jobs is running in" in one.err), one.err
        assert "Traceback" not in one.err
    assert 0 in {one.code for one in done}
    found = records(tmp_path / "runs")
    assert len(found) == 6 and all(record.status == "finished" for record in found.values())
    for name in found:
        assert (tmp_path / "runs" / name / "log.txt").read_text().count("training: 20/20 steps") == 1, name


def test_killed_and_interrupted_again_and_again(sweep: Sweep, tmp_path: Path, wait_for: WaitFor) -> None:
    """The result is that of a sweep left alone, without cleaning up: the same scores, each job finished once."""
    chance, whole = random.Random(5), tmp_path / "whole"
    ended(sweep(f"runs_dir={whole}"))

    def written() -> int:
        return len([*tmp_path.glob("runs/*/checkpoints/*.ckpt")])

    for sign in FAULTS:
        process, before = sweep(), written()
        assert wait_for(lambda before=before: written() > before, 60)
        time.sleep(chance.uniform(0, 0.2))
        os.kill(process.pid, sign)
        _, err = ended(process, CODES[sign])  # or it ended before, and the fault would not count
        assert err.count("rpr-cli: interrupted; rerun the same command to resume") == (sign != signal.SIGKILL)
        time.sleep(0.3)
    _, err = ended(sweep())
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")
    cut, alone = (
        {name: record.scores for name, record in records(runs).items()} for runs in (tmp_path / "runs", whole)
    )
    assert cut == alone


@pytest.mark.slow
def test_no_process_is_left_of_a_sweep_at_once_that_was_killed(
    words: list[str], tmp_path: Path, family: Family, wait_for: WaitFor
) -> None:
    process = family.start(*words, "jobs=2")

    def in_training() -> int:
        return sum("rpr.commands.train" in line for line in family.living().values())

    assert wait_for(lambda: in_training() == 2, 100)
    process.kill()
    assert wait_for(lambda: not family.living(), 20), family.living()
    process.communicate()
    assert len(records(tmp_path / "runs")) == 2  # the third was not begun
    process = family.start(*words, "jobs=2")
    err = process.communicate(timeout=200)[1].decode()
    assert process.returncode == 0 and err.startswith("sweep mine: 3 jobs: 1 new, 2 interrupted, will resume\n")
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")


@pytest.mark.slow
def test_submitit(words: list[str], tmp_path: Path, family: Family) -> None:
    process = family.start(*words, "hydra/launcher=submitit_local")
    err = process.communicate(timeout=200)[1].decode()
    assert process.returncode == 0 and err.endswith("sweep mine: 3 jobs: 3 finished\n")
    assert all(record.status == "finished" for record in records(tmp_path / "runs").values())
