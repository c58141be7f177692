"""Checked here: sweeps as they are typed, in processes of their own: the ledger's skipping, resuming and retrying, two
processes at one sweep, SIGKILL and Ctrl-C in the middle, a job that fails, launchers (joblib, submitit_local), GPUs
shared out; no process is left of a sweep that was killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rpr.records.record import Record, read_record
from tests.system.conftest import Family

SCRIPT = Path(sys.executable).with_name("rpr-cli")
FAULTS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
CODES = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
RECIPE = "optim.max_steps=20 optim.checkpoint_every_n_steps=5 optim.validate_every_n_steps=20 hardware.threads=1"


@pytest.fixture
def sweep(tiny: list[str], tmp_path: Path, small_data: object) -> Callable[..., subprocess.Popen[str]]:
    """Starts `rpr-cli sweep` on a file of three tiny jobs."""
    file = tmp_path / "mine.yaml"
    shared = " ".join(word for word in tiny if not word.startswith("runs_dir="))
    file.write_text(
        json.dumps({"overrides": [shared, RECIPE], "jobs": ["position.clip_distance=0,2", "position=absolute"]})
    )

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SCRIPT, "sweep", str(file), f"runs_dir={tmp_path / 'runs'}", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # also where the tests run in the background
        )

    return start


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    return out, err


def records(tmp_path: Path) -> dict[str, Record]:
    return {path.parent.name: read_record(path) for path in (tmp_path / "runs").glob("*/record.json")}


def test_once_again_and_with_more_seeds(sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    _, err = ended(sweep())
    assert err.startswith("sweep mine: 3 jobs: 3 new\n") and err.endswith("sweep mine: 3 jobs: 3 finished\n")
    first = records(tmp_path)
    [k2] = [name for name in first if "relative-k2" in name]
    assert f"sweep mine: job 2 of 3: {k2}\n" in err
    assert len(first) == 3 and all(record.status == "finished" for record in first.values())
    assert all(record.sweeps == ("mine",) for record in first.values())
    assert "training: 20/20 steps" in (tmp_path / "runs" / next(iter(first)) / "log.txt").read_text()
    out, err = ended(sweep())
    assert err == "sweep mine: 3 jobs: 3 finished\n" * 2 and out == ""
    assert records(tmp_path) == first
    out, _ = ended(sweep("seed=1,2", "--dry-run"))
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == [
        *(f"# {number} of 6, {'finished' if number % 2 else 'new'}" for number in range(1, 7)), "# 6 jobs"
    ]  # fmt: skip
    assert "0.03 M parameters, 20 steps, at most 10.2 k tokens a side, about " in lines[0]
    assert "the median of 1 run with the same positions" in lines[0] and "3 new, 3 finished; remaining: " in lines[-1]
    _, err = ended(sweep("seed=1,2", "jobs=2"))
    assert "since it was last started: 3 of its 6 jobs are new, 0 were removed" in err
    assert len(records(tmp_path)) == 6


@pytest.mark.slow
def test_a_job_that_fails_is_told_and_left_until_it_is_asked_for(
    sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    listed, _ = ended(sweep("--dry-run"))
    assert listed.count("\nrpr-cli train ") == 3
    rates = "optim.learning_rate_scale=1,1e30"
    _, err = ended(sweep(rates), 1)
    failed = [name for name, record in records(tmp_path).items() if record.status == "failed"]
    assert len(failed) == 3 and len(records(tmp_path)) == 6  # each job twice; 1e30 fails
    assert err.count("rpr-cli: failed: ") == 3 and all(f"rpr-cli: failed: {name}: step " in err for name in failed)
    assert "gradient" in err and "\n  to retry: rpr-cli train " in err
    assert "sweep mine: 6 jobs: 3 finished, 3 failed\n" in err
    assert (
        err.endswith("retry_failed=true runs failed jobs again, from their last checkpoint\n")
        and "Traceback" not in err
    )
    _, err = ended(sweep(rates), 1)
    assert err.startswith("sweep mine: 6 jobs: 3 finished, 3 failed before\n") and "job 1 of" not in err
    _, err = ended(sweep(rates, "retry_failed=true"), 1)
    assert "sweep mine: job 3 of 3" in err


@pytest.mark.slow
def test_what_failed_for_a_reason_that_is_mended_is_finished_by_retry(
    sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    listed, _ = ended(sweep("--dry-run"))
    _, err = ended(sweep("optim.max_steps=5"))
    spoilt = next(path for path in (tmp_path / "runs").glob("*k2*"))
    record = json.loads((spoilt / "record.json").read_text())
    (spoilt / "record.json").write_text(json.dumps(record | {"status": "failed", "error": "the disk was full"}))
    _, err = ended(sweep("optim.max_steps=5"), 1)
    assert f"rpr-cli: failed: {spoilt.name}: the disk was full\n    " in err and "training: 5/5 steps" in err
    _, err = ended(sweep("optim.max_steps=5", "retry_failed=true"))
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")
    assert listed.count("rpr-cli train") == 3


def test_two_processes_at_one_sweep_run_no_job_twice(
    sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    both = [sweep("seed=1,2"), sweep("seed=1,2")]
    told = [process.communicate(timeout=200)[1] for process in both]
    for process, err in zip(both, told, strict=True):  # one may end while the other has a job
        assert process.returncode == ("the sweep is incomplete: 1 of its jobs is running in" in err), err
    assert 0 in {process.returncode for process in both}
    found = records(tmp_path)
    assert len(found) == 6 and all(record.status == "finished" for record in found.values())
    for name in found:
        assert (tmp_path / "runs" / name / "log.txt").read_text().count("training: 20/20 steps") == 1, name
    assert all("Traceback" not in err for err in told)


@pytest.mark.slow
def test_killed_and_interrupted_again_and_again(
    sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is that of a sweep left alone, without cleaning up: the same scores, each job finished once."""
    chance = random.Random(5)
    for sign in FAULTS:
        process = sweep()
        time.sleep(chance.uniform(2.0, 4.0))
        assert process.poll() is None  # or the fault would not count
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        assert process.returncode == CODES[sign]
        assert err.count("rpr-cli: interrupted; rerun the same command to resume") == (process.returncode > 0)
        time.sleep(0.5)
    with capsys.disabled():
        print(f"\na sweep: {len(FAULTS)} faults survived")
    _, err = ended(sweep())
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")
    cut = {name: [score.score for score in record.scores] for name, record in records(tmp_path).items()}
    whole = tmp_path / "whole"
    ended(sweep(f"runs_dir={whole}"))
    alone = {path.parent.name: read_record(path) for path in whole.glob("*/record.json")}
    assert cut == {name: [score.score for score in record.scores] for name, record in alone.items()}


@pytest.mark.slow
def test_no_process_is_left_of_a_sweep_at_once_that_was_killed(
    sweep: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    family: Family,
    wait_for: Callable[[Callable[[], bool], float], bool],
) -> None:
    process = sweep("jobs=2", RPR_TEST_MARK=family.mark)

    def in_training() -> int:
        return sum("rpr.commands.train" in line for line in family.living().values())

    assert wait_for(lambda: in_training() == 2, 100)
    process.kill()
    assert wait_for(lambda: not family.living(), 20), family.living()
    process.communicate()
    assert len(records(tmp_path)) == 2  # the third was not begun
    _, err = ended(sweep("jobs=2"))
    assert err.startswith("sweep mine: 3 jobs: 1 new, 2 interrupted, will resume\n")
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")


@pytest.mark.slow
def test_submitit(sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    _, err = ended(sweep("hydra/launcher=submitit_local"))
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")
    assert all(record.status == "finished" for record in records(tmp_path).values())
