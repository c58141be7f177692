"""Requests to SLURM, its queue and its errors, with fake commands; tests/system/test_slurm.py needs a real one."""

import os

import pytest

from rpr.errors import RunError
from rpr.sweep import slurm


@pytest.fixture(autouse=True)
def _no_slurm_environment(monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "SUBMITIT_")):
            monkeypatch.delenv(name)


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Replace squeue by a script."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", -1.0)

    def write(script):
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def test_job_is_done_when_it_has_left_the_queue(squeue):
    queue = slurm.Queue()
    queue.register_job("7_0")
    squeue("echo 7_0; echo 7_1; echo 9")
    assert not queue.is_done("7_0") and queue.get_state("7_0") == "queued"
    squeue("echo 7_1")
    assert not queue.is_done("7_0", mode="cache")
    assert queue.is_done("7_0") and not queue.is_done("7_1") and queue.get_state("7_0") == "no longer queued"
    squeue("true")
    assert queue.is_done("7_1", mode="force")


def test_squeue_failure_is_reported_once_and_ends_the_wait(squeue, capsys, monkeypatch):
    squeue("echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    queue = slurm.Queue()
    queue.register_job("7")
    assert not queue.is_done("7")
    monkeypatch.setenv("PATH", "/nowhere")
    assert not queue.is_done("7")
    assert capsys.readouterr().err == (
        "rpr-cli: squeue does not list the remaining jobs (slurm_load_jobs error: Unable to contact slurm controller); "
        "trying again for 60 minutes\n"
    )
    monkeypatch.setattr(slurm, "_SILENT_SECONDS", 0.0)
    with pytest.raises(RunError, match=r"^squeue has not listed the remaining jobs for 0 minutes \(.*squeue"):
        queue.is_done("7")


def test_follow_jobs_replaces_the_watcher_of_submitit(monkeypatch):
    from submitit.slurm.slurm import SlurmExecutor, SlurmJob

    def lost(job):
        raise RuntimeError("Job 3 (task: 0) with path x/3_0_result.pkl\nhas not produced any output (state: gone)")

    monkeypatch.setattr(SlurmJob, "watcher", None)
    monkeypatch.setattr(SlurmJob, "results", lost)
    monkeypatch.setattr(SlurmExecutor, "_submitit_command_str", None)  # so that monkeypatch undoes follow_jobs
    slurm.follow_jobs()
    assert isinstance(SlurmJob.watcher, slurm.Queue)
    [failed] = SlurmJob.results(object())  # instead of an end to the wait for all others
    with pytest.raises(RunError, match="left no result"):
        failed.return_value  # noqa: B018


def test_job_without_a_result_is_reported_in_one_line(tmp_path):
    error = RuntimeError(
        f"Job 3 (task: 0) with path {tmp_path}/3_0_result.pkl\nhas not produced any output (state: no longer queued)\n"
        "Error stream produced:\n----\nsrun: forcing job termination"
    )
    message = "Job 3 (task: 0) left no result: cancelled, timed out or lost with its node"
    end = f"; its logs are in {tmp_path}; rerun the same command to resume"
    (tmp_path / "3_0_log.err").write_text("srun: forcing job termination\n")
    assert slurm.format_error(error) == message + end
    (tmp_path / "3_1_log.err").write_text("rpr-cli: no luck\nsrun: forcing job termination\n")
    assert slurm.format_error(error) == f"{message}; its last message: no luck{end}"
    assert slurm.format_error(RuntimeError("two\nlines")) == "two lines"


def test_request_for_four_nodes_of_eight_gpus(submitted, monkeypatch, capsys, tmp_path):
    words = ["hardware=slurm_8xgpu", "hardware.num_nodes=4", "model=base,big", "hydra.launcher.partition=gpu"]
    monkeypatch.setenv("RPR_SCHEMES_DIR", str(tmp_path))
    script = submitted(monkeypatch, *words).read_text()
    requested = {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")}
    assert requested >= {
        "--array=0-1%2", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=32", "--time=4320",
        "--partition=gpu", "--signal=USR2@120", "--open-mode=append",
    }  # fmt: skip
    (job,) = [line for line in script.splitlines() if line.startswith("srun ")]  # for SBATCH_EXPORT=NONE as well
    assert " --kill-on-bad-exit=1 --cpus-per-task=32 /usr/bin/env PYTHONSAFEPATH=1 SUBMITIT_EXECUTOR=slurm " in job
    assert f" RPR_SCHEMES_DIR={tmp_path} " in job and " LRU_CACHE_CAPACITY=64 " in job
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rpr-cli: SlurmLauncher: ")]
    assert error.endswith("sbatch: error: not submitted")
