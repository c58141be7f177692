"""Sweeps that are repeated, interrupted, killed, run by two processes, or have jobs that fail. The processes are forks;
those of parallel jobs that a killed sweep leaves none of: tests/sweep/test_pool.py.
"""

import json
import os
import random
import signal
import time

import pytest

from rpr.records.record import Git, read_record, write_record
from rpr.runs.lifecycle import start_record
from rpr.runs.locks import current_holder
from rpr.sweep import pool
from tests.conftest import TINY
from tests.system.bad_files import update_record
from tests.system.faults import forked_jobs

CODES = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
RECIPE = (
    "optim.max_steps=8 optim.checkpoint_every_n_steps=2 optim.validate_every_n_steps=8 hardware.threads=1 "
    "evaluation.test_splits=[test] evaluation.beam_size=1 evaluation.bootstrap_samples=0"
)


@pytest.fixture(scope="module")
def write_sweep(tmp_path_factory, cache_dir, small_data):
    """Writes the file of a sweep of tiny jobs."""

    def write(*jobs):
        file = tmp_path_factory.mktemp("sweep") / "mine.yaml"
        file.write_text(json.dumps({"overrides": [*TINY, f"data.cache_dir={cache_dir}", RECIPE], "jobs": jobs}))
        return str(file)

    return write


@pytest.fixture(scope="module")
def sweep_file(write_sweep):
    return write_sweep("position.clip_distance=0,2", "position=absolute")


@pytest.fixture
def sweep(sweep_file, tmp_path, forks):
    words = ["sweep", sweep_file, f"runs_dir={tmp_path / 'runs'}"]
    return lambda *more: forks.start([*words, *more])


@pytest.fixture(scope="module")
def concurrent(sweep_file, tmp_path_factory, forks):
    """The results of two concurrent processes of the sweep, and their runs_dir."""
    runs = tmp_path_factory.mktemp("concurrent")
    words = ["sweep", sweep_file, f"runs_dir={runs}"]
    processes = [forks.start(words) for _ in range(2)]
    return [process.wait(200) for process in processes], runs


def finish(process, code=0):
    done = process.wait(200)
    assert done.code == code and "Traceback" not in done.err, done.err
    return done.err


def records(runs):
    return {path.parent.name: read_record(path) for path in runs.glob("*/record.json")}


def test_failed_job_waits_for_retry(write_sweep, forks, tmp_path, cli, monkeypatch):
    """A failure stops no other job. Here weights overflow. A retry finishes a job whose error is gone."""
    monkeypatch.setattr(pool, "subprocess", pool.subprocess)
    forked_jobs()
    runs = tmp_path / "runs"
    words = ["sweep", write_sweep("position=absolute optim.learning_rate_scale=1e38,1"), f"runs_dir={runs}"]
    err = cli(*words, code=1).err
    found = {record.status: (name, record) for name, record in records(runs).items()}
    failed, record = found["failed"]
    assert record.config["optim"]["learning_rate_scale"] == 1e38 and "is not finite (loss " in record.error
    assert f"rpr-cli: failed: {failed}: step 2: the loss" in err and err.count("\n  to retry: rpr-cli train ") == 1
    assert "sweep mine: 2 jobs: 1 finished, 1 failed\n" in err
    name, _ = found["finished"]
    update_record(status="failed", error="the disk was full")(runs / name)
    err = cli(*words, code=1).err
    assert f"rpr-cli: failed: {name}: the disk was full\n  its output: " in err and "job 1 of" not in err
    err = cli(*words, "retry_failed=true", code=1).err
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
        assert (runs / name / "log.txt").read_text().count("training: 8/8 steps") == 1, name


@pytest.mark.slow
def test_repeatedly_interrupted_sweep_matches_uninterrupted_sweep(sweep, concurrent, tmp_path, wait_for):
    draw = random.Random(5)

    def written():
        return len([*tmp_path.glob("runs/*/checkpoints/*.ckpt")])

    for sign, code in CODES.items():
        process, before = sweep(), written()
        assert wait_for(lambda before=before: written() > before, 60)
        time.sleep(draw.uniform(0, 0.2))
        os.kill(process.pid, sign)
        err = finish(process, code)
        assert err.count("rpr-cli: interrupted; rerun the same command to resume") == (sign != signal.SIGKILL)
        time.sleep(0.3)
    assert finish(sweep()).endswith("sweep mine: 3 jobs: 3 finished\n")
    interrupted, uninterrupted = (
        {name: record.scores for name, record in records(runs).items()} for runs in (tmp_path / "runs", concurrent[1])
    )
    assert interrupted == uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_parallel_sweep_interrupts_all_its_jobs(number, sweep, tmp_path, wait_for):
    runs = tmp_path / "runs"
    process = sweep("jobs=2", "optim.max_steps=100000")
    assert wait_for(lambda: len({path.parent for path in runs.glob("*/checkpoints/*.ckpt")}) == 2, 100)
    os.kill(process.pid, number)
    finish(process, CODES[number])
    found = records(runs)
    reason = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    assert [(record.status, (record.error or "").partition(";")[0]) for record in found.values()] == [
        ("interrupted", reason)
    ] * 2
    assert not any(current_holder(runs / name) for name in found)


def test_record_of_a_resumed_run_has_the_most_of_its_parts(tiny_config, small_data, tmp_path, monkeypatch, capsys):
    """Concurrent jobs, unknown if they were before; uncommitted changes; without a checkpoint nothing is left of it."""
    path = tmp_path / "record.json"

    def start(jobs, commit, dirty):
        monkeypatch.setattr(Git, "here", lambda: Git(commit=commit, dirty=dirty))
        start_record(tiny_config(), "rpr-cli train", tmp_path, small_data, concurrent_jobs=jobs)
        record = read_record(path)
        return record.concurrent_jobs, record.git.dirty

    assert start(2, "1a", True) == (2, True)
    assert start(1, "1a", False) == (1, False)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step00000001.ckpt").touch()
    assert [start(2, "1a", True), start(1, "1a", False), start(3, "2b", False)] == [(2, True), (2, True), (3, True)]
    line = f"rpr-cli: {tmp_path.name}: started with commit 1a, now 2b; its record names the latter\n"
    assert capsys.readouterr().err == line
    write_record(path, read_record(path).model_copy(update={"concurrent_jobs": None}))
    assert start(2, "2b", False)[0] is None


def test_run_again_stays_in_its_sweeps(tiny_config, small_data, tmp_path):
    (tmp_path / "run").mkdir()
    for words in (["sweep=first"], ["sweep=second", "again=true"]):
        start_record(tiny_config(*words), "rpr-cli train", tmp_path / "run", small_data)
    record = read_record(tmp_path / "run" / "record.json")
    assert (record.sweeps, record.again, record.setting("again")) == (("first", "second"), True, False)
