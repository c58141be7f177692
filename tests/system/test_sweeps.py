"""Sweeps that are repeated, interrupted, killed, run by two processes, or have jobs that fail. The processes are forks;
those of parallel jobs that a killed sweep leaves none of: tests/sweep/test_pool.py.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from rpr.records.record import Git, read_record, write_record
from rpr.runs.lifecycle import start_record
from rpr.runs.locks import current_holder
from tests.conftest import TINY

FAULTS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
CODES = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
RECIPE = (
    "optim.max_steps=20 optim.checkpoint_every_n_steps=5 optim.validate_every_n_steps=20 hardware.threads=1 "
    "evaluation.test_splits=[test] evaluation.beam_size=1 evaluation.bootstrap_samples=0"
)


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory, cache_dir, small_data):
    """Three tiny jobs."""
    file = tmp_path_factory.mktemp("sweep") / "mine.yaml"
    jobs = ["position.clip_distance=0,2", "position=absolute"]
    file.write_text(json.dumps({"overrides": [*TINY, f"data.cache_dir={cache_dir}", RECIPE], "jobs": jobs}))
    return str(file)


@pytest.fixture
def sweep(sweep_file, tmp_path, fork_server):
    words = ["sweep", sweep_file, f"runs_dir={tmp_path / 'runs'}"]
    return lambda *more: fork_server.start([*words, *more], patch="forked_jobs")


@pytest.fixture(scope="module")
def concurrent(sweep_file, tmp_path_factory, fork_server):
    """The results of two concurrent processes of the sweep, and their runs_dir."""
    runs = tmp_path_factory.mktemp("concurrent")
    words = ["sweep", sweep_file, f"runs_dir={runs}"]
    processes = [fork_server.start(words, patch="forked_jobs") for _ in range(2)]
    return [process.wait(200) for process in processes], runs


def finish(process, code=0):
    done = process.wait(200)
    assert done.code == code and "Traceback" not in done.err, done.err
    return done.out, done.err


def records(runs):
    return {path.parent.name: read_record(path) for path in runs.glob("*/record.json")}


def test_failed_job_waits_for_retry(fork_server, sweep_file, tmp_path):
    """A failure stops no other job. Here weights overflow."""
    file = tmp_path / "mine.yaml"
    jobs = ["position=absolute optim.learning_rate_scale=1e38,1"]
    file.write_text(json.dumps(json.loads(Path(sweep_file).read_text()) | {"jobs": jobs}))

    def sweep(*more):
        words = ["sweep", str(file), f"runs_dir={tmp_path / 'runs'}", "optim.max_steps=5"]
        return fork_server.start([*words, *more], patch="forked_jobs")

    _, err = finish(sweep(), 1)
    found = {record.status: (name, record) for name, record in records(tmp_path / "runs").items()}
    assert found.keys() == {"finished", "failed"}
    failed, record = found["failed"]
    assert record.config["optim"]["learning_rate_scale"] == 1e38 and record.error is not None
    assert record.error.startswith("step 2: the loss or its gradient is not finite (loss ")
    assert f"sweep mine: job 1 of 2: {failed}\n" in err and f"rpr-cli: failed: {failed}: step 2: the loss" in err
    assert err.count("rpr-cli: failed: ") == err.count("\n  to retry: rpr-cli train ") == 1
    assert "sweep mine: 2 jobs: 1 finished, 1 failed\n" in err
    assert err.endswith("retry_failed=true runs failed jobs again, from their last checkpoint\n")
    _, err = finish(sweep(), 1)
    assert "\nsweep mine: 2 jobs: 1 finished, 1 failed\n" in err and "job 1 of" not in err
    assert "training: 5/5 steps" not in err
    # A retry finishes a job whose error is gone.
    name, _ = found["finished"]
    path = tmp_path / "runs" / name / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "failed", "error": "the disk was full"}))
    _, err = finish(sweep(), 1)
    assert f"rpr-cli: failed: {name}: the disk was full\n    " in err
    _, err = finish(sweep("retry_failed=true"), 1)
    assert "sweep mine: job 1 of 2: " in err and "sweep mine: 2 jobs: 1 finished, 1 failed\n" in err


def test_concurrent_sweep_processes_run_no_job_twice(concurrent):
    results, runs = concurrent
    for result in results:  # either may end while the other runs a job
        assert result.code == (": in use by process " in result.err), result.err
        assert "Traceback" not in result.err
    assert 0 in {result.code for result in results}
    found = records(runs)
    assert len(found) == 3 and all(record.status == "finished" for record in found.values())
    for name in found:
        assert (runs / name / "log.txt").read_text().count("training: 20/20 steps") == 1, name


@pytest.mark.slow
def test_repeatedly_interrupted_sweep_matches_uninterrupted_sweep(sweep, concurrent, tmp_path, wait_for):
    draw = random.Random(5)

    def written():
        return len([*tmp_path.glob("runs/*/checkpoints/*.ckpt")])

    for sign in FAULTS:
        process, before = sweep(), written()
        assert wait_for(lambda before=before: written() > before, 60)
        time.sleep(draw.uniform(0, 0.2))
        os.kill(process.pid, sign)
        _, err = finish(process, CODES[sign])
        assert err.count("rpr-cli: interrupted; rerun the same command to resume") == (sign != signal.SIGKILL)
        time.sleep(0.3)
    _, err = finish(sweep())
    assert err.endswith("sweep mine: 3 jobs: 3 finished\n")
    interrupted, uninterrupted = (
        {name: record.scores for name, record in records(runs).items()} for runs in (tmp_path / "runs", concurrent[1])
    )
    assert interrupted == uninterrupted


def test_resumed_run_records_most_concurrent_jobs(tiny_config, small_data, tmp_path):
    """Unknown if it was unknown before, as in records of older versions; without a checkpoint nothing is left of it."""
    path = tmp_path / "record.json"
    for trained, jobs, most in ((False, 2, 2), (False, 1, 1), (True, 2, 2), (True, 1, 2), (True, 3, 3)):
        if trained:
            (tmp_path / "checkpoints").mkdir(exist_ok=True)
            (tmp_path / "checkpoints" / "step00000001.ckpt").touch()
        start_record(tiny_config(), "rpr-cli train", tmp_path, small_data, concurrent_jobs=jobs)
        assert read_record(path).concurrent_jobs == most
    write_record(path, read_record(path).model_copy(update={"concurrent_jobs": None}))
    start_record(tiny_config(), "rpr-cli train", tmp_path, small_data, concurrent_jobs=2)
    assert read_record(path).concurrent_jobs is None


def test_run_again_stays_in_its_sweeps(tiny_config, small_data, tmp_path):
    (tmp_path / "run").mkdir()
    for words in (["sweep=first"], ["sweep=second", "again=true"]):
        start_record(tiny_config(*words), "rpr-cli train", tmp_path / "run", small_data)
    record = read_record(tmp_path / "run" / "record.json")
    assert (record.sweeps, record.again, record.setting("again")) == (("first", "second"), True, False)


def test_resumed_run_had_uncommitted_changes_if_a_part_of_it_had(
    tiny_config, small_data, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "record.json"
    states = [Git(commit=commit, dirty=dirty) for commit, dirty in (("1a", True), ("1a", False), ("2b", False))]
    monkeypatch.setattr("rpr.records.provenance.git_state", lambda: states.pop(0))
    for trained, dirty in ((False, True), (False, False), (True, True)):
        if trained:  # with what the last record says
            (tmp_path / "checkpoints").mkdir()
            (tmp_path / "checkpoints" / "step00000001.ckpt").touch()
            write_record(path, read_record(path).model_copy(update={"git": Git(commit="1a", dirty=True)}))
        start_record(tiny_config(), "rpr-cli train", tmp_path, small_data)
        assert read_record(path).git.dirty is dirty
    line = f"rpr-cli: {tmp_path.name}: started with commit 1a, now 2b; its record names the latter\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_parallel_sweep_interrupts_all_its_jobs(number, sweep, tmp_path, wait_for):
    runs = tmp_path / "runs"
    process = sweep("jobs=2", "optim.max_steps=100000")
    assert wait_for(lambda: len({path.parent for path in runs.glob("*/checkpoints/*.ckpt")}) == 2, 100)
    os.kill(process.pid, number)
    _, err = finish(process, CODES[number])
    assert err.endswith("rpr-cli: interrupted; rerun the same command to resume from the last checkpoint, if any\n")
    found = records(runs)
    assert len(found) == 2
    for record in found.values():
        assert (
            record.status == "interrupted"
            and record.error is not None
            and record.error.startswith("SIGTERM; " if number == signal.SIGTERM else "Ctrl-C; ")
        ), record.error
    assert not any(current_holder(runs / name) for name in found)
