"""Sweeps that are repeated, interrupted, run by two processes, or have jobs that fail. The processes are forks;
those of parallel jobs that a killed sweep leaves none of: tests/sweep/test_pool.py.
"""

import json
import os
import signal

import pytest

from rpr.records.record import Git, read_record, write_record
from rpr.runs.lifecycle import start_record
from rpr.runs.locks import current_holder
from rpr.sweep import pool
from tests.conftest import TINY
from tests.system.bad_files import update_record
from tests.system.faults import forked_jobs

RECIPE = (
    "optim.max_steps=4 optim.checkpoint_every_n_steps=2 optim.validate_every_n_steps=4 hardware.threads=1 "
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
    err = cli(*words, "optim.learning_rate_scale=1", "retry_failed=true").err
    assert "sweep mine: job 1 of 1: " in err and "sweep mine: 1 job: 1 finished\n" in err


def test_concurrent_sweep_processes_run_no_job_twice(write_sweep, tmp_path, forks):
    runs, file = tmp_path / "runs", write_sweep("position.clip_distance=0,2")
    processes = [forks.start(["sweep", file, f"runs_dir={runs}"]) for _ in range(2)]
    results = [process.wait(200) for process in processes]
    for result in results:  # either may end while the other runs a job
        assert result.code == (": in use by process " in result.err), result.err
        assert "Traceback" not in result.err
    assert 0 in {result.code for result in results}
    found = records(runs)
    assert len(found) == 2 and all(record.status == "finished" for record in found.values())
    for name in found:
        assert (runs / name / "log.txt").read_text().count("training: 4/4 steps") == 1, name


def test_interrupted_parallel_sweep_interrupts_all_its_jobs(sweep_file, tmp_path, forks, wait_for):
    runs = tmp_path / "runs"
    process = forks.start(["sweep", sweep_file, f"runs_dir={runs}", "jobs=2", "optim.max_steps=100000"])
    assert wait_for(lambda: len({path.parent for path in runs.glob("*/checkpoints/*.ckpt")}) == 2, 100)
    os.kill(process.pid, signal.SIGINT)
    done = process.wait(200)
    assert done.code == 130 and "Traceback" not in done.err, done.err
    found = records(runs)
    outcomes = [(record.status, (record.error or "").partition(";")[0]) for record in found.values()]
    assert outcomes == [("interrupted", "Ctrl-C")] * 2
    assert not any(current_holder(runs / name) for name in found)


def test_record_of_a_resumed_run_has_the_most_of_its_parts(tiny_config, small_data, tmp_path, monkeypatch):
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
    write_record(path, read_record(path).model_copy(update={"concurrent_jobs": None}))
    assert start(2, "2b", False)[0] is None
