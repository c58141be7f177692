"""Requests to SLURM, its queue and its errors, with fake commands; tests/system/test_slurm.py needs a real one."""

import contextlib
import os
from unittest.mock import MagicMock

import pytest

from rpr.commands import train
from rpr.errors import ConfigError, RprError, RunError
from rpr.records.record import read_record
from rpr.sweep import slurm
from rpr.sweep.status import Job


@pytest.fixture(autouse=True)
def _no_slurm_environment(monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "SUBMITIT_")):
            monkeypatch.delenv(name)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a script of this name, as squeue, before all others."""
    commands = tmp_path / "commands"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", -1.0)

    def write(name, script):
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)

    return write


def test_job_is_done_when_it_has_left_the_queue(fake):
    queue = slurm.Queue()
    queue.register_job("7_0")
    fake("squeue", "echo 7_0; echo 7_1; echo 9")
    assert not queue.is_done("7_0") and queue.get_state("7_0") == "queued"
    fake("squeue", "echo 7_1")
    assert not queue.is_done("7_0", mode="cache")
    assert queue.is_done("7_0") and not queue.is_done("7_1") and queue.get_state("7_0") == "no longer queued"
    fake("squeue", "true")
    assert queue.is_done("7_1", mode="force")


def test_squeue_failure_is_reported_once_and_ends_the_wait(fake, capsys, monkeypatch):
    fake("squeue", "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    queue = slurm.Queue()
    queue.register_job("7")
    assert not queue.is_done("7")
    monkeypatch.setenv("PATH", "/nowhere")
    assert not queue.is_done("7")
    (line,) = capsys.readouterr().err.splitlines()
    assert "(slurm_load_jobs error: Unable to contact slurm controller); trying again for 60 minutes" in line
    monkeypatch.setattr(slurm, "_SILENT_SECONDS", 0.0)
    with pytest.raises(RunError, match="squeue.*they may still run"):
        queue.is_done("7")


def test_a_lost_job_does_not_end_the_wait_for_the_others(tiny_config, tmp_path):
    lost, done = MagicMock(), MagicMock()
    lost.results.side_effect, done.results.return_value = RuntimeError("lost"), [None]
    executor = MagicMock(**{"submit.side_effect": [lost, done]})
    jobs = [Job((f"seed={seed}",), tiny_config(), tmp_path) for seed in (1, 2)]
    problems = slurm.run(jobs, ["", ""], executor)
    assert [(key, str(problem)) for key, problem in problems.items()] == [(("seed=1",), "lost")]


@pytest.mark.parametrize(
    "error", [ConfigError("a"), RunError("b"), OSError(28, "No space left"), MemoryError()], ids=repr
)
def test_an_error_on_one_of_several_nodes_ends_the_job_of_all(error, tiny_config, monkeypatch):
    """submitit takes what is raised for a result, and the other nodes would wait for this one."""
    monkeypatch.setattr(train, "run", MagicMock(side_effect=error))
    for nodes in (1, 2):
        config = tiny_config("hardware=2xcpu", f"hardware.num_nodes={nodes}").model_dump(mode="json")
        with contextlib.nullcontext() if nodes == 1 else pytest.raises(SystemExit, match="2"):
            assert isinstance(slurm.Task(config, "")(), RprError)


def test_request_for_four_nodes_of_eight_gpus(fake, cli, monkeypatch, tmp_path):
    words = ["hardware=slurm_8xgpu", "hardware.num_nodes=4", "model=base,big", "hydra.launcher.partition=gpu"]
    monkeypatch.setenv("RPR_SCHEMES_DIR", str(tmp_path))
    fake("srun", "exit 1")
    fake("sbatch", f'cp "$1" {tmp_path}/script.sh; echo "sbatch: error: not submitted" >&2; exit 1')
    err = cli("train", "-m", *words, "logger=none", f"runs_dir={tmp_path / 'runs'}", code=1).err
    script = (tmp_path / "script.sh").read_text()
    requested = {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")}
    assert requested >= {
        "--array=0-1%2", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=32", "--time=4320",
        "--partition=gpu", "--signal=USR2@120", "--open-mode=append",
    }  # fmt: skip
    (job,) = [line for line in script.splitlines() if line.startswith("srun ")]  # for SBATCH_EXPORT=NONE as well
    assert " --kill-on-bad-exit=1 --cpus-per-task=32 /usr/bin/env PYTHONSAFEPATH=1 SUBMITIT_EXECUTOR=slurm " in job
    assert f" RPR_SCHEMES_DIR={tmp_path} " in job and " LRU_CACHE_CAPACITY=64 " in job
    (error,) = [line for line in err.splitlines() if line.startswith("rpr-cli: SLURM: ")]
    assert error.endswith("sbatch: error: not submitted")
    retries = [line for line in err.splitlines() if line.startswith("  to retry: rpr-cli train ")]
    assert retries and all(" -m hydra.launcher.partition=gpu " in line for line in retries), "where the sweep runs"


SBATCH = """
export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=localhost SLURM_NTASKS=1
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
(sh "$1" >/dev/null 2>&1; touch "$DONE") >/dev/null 2>&1 &
echo Submitted batch job 7
"""


@pytest.mark.slow
def test_a_submitted_job_trains_and_its_result_is_read(fake, tiny, tiny_config, small_data, cli, monkeypatch, tmp_path):
    """submitit's own script and pickles; only SLURM is fake."""
    monkeypatch.setenv("DONE", str(tmp_path / "done"))
    fake("sbatch", SBATCH)
    fake("srun", 'while [ "$1" != /usr/bin/env ]; do shift; done\nexec "$@"')
    fake("squeue", '[ -e "$DONE" ] || echo 7')
    words = ["optim.max_steps=4", "evaluation.test_splits=[]", "hardware.threads=1"]
    err = cli("train", "-m", *tiny, *words, "hydra/launcher=submitit_slurm", "sweep=mine").err
    assert err.endswith("sweep mine: 1 job: 1 finished\n")
    config = tiny_config(*words, "sweep=mine")
    record = read_record(tmp_path / "runs" / config.run_dir_name / "record.json")
    assert (record.status, record.steps, record.sweeps) == ("finished", 4, ("mine",))
    assert " -m " not in record.command and "sweep=" not in record.command
