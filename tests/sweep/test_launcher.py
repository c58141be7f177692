"""The launcher of a sweep, the GPUs of its jobs, and their processes on this machine. No test here trains."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

from rpr.cli import app
from rpr.commands import train
from rpr.compose import composition
from rpr.errors import ConfigError, RprError, RunError
from rpr.records.record import RECORD_NAME, read_record, write_record
from rpr.runs import runtime
from rpr.signals import exit_on_sigterm
from rpr.sweep import launcher, pool, status
from rpr.sweep.gpus import Options, take_slots
from rpr.sweep.launcher import Launcher
from rpr.sweep.status import Job
from rpr.training.launch import ended
from tests.fake_records import fake_record
from tests.system.faults import forked_jobs


@pytest.mark.parametrize("word", ["hydra/launcher=submitit_slurm", "hardware=slurm_8xgpu"])
def test_missing_launcher_is_an_error(word, monkeypatch, cli):
    composition.compose("train", [])  # reads Hydra's plug-ins
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], "submitit_slurm.yaml")
    err = cli("train", "-m", word, "model=base", "seed=1,2", code=2).err
    assert err == "rpr-cli: hydra/launcher: SLURM's is not installed; pip install hydra-submitit-launcher\n"


def test_number_of_jobs_follows_from_the_gpus():
    words = (["hardware=1xgpu"], ["hardware=8xgpu"], [])
    one_gpu, eight_gpus, cpu = (composition.compose_train(each).hardware for each in words)
    four = Options(gpus=("0", "1", "2", "3"))
    assert four.with_jobs_of([one_gpu, one_gpu]).jobs == 4
    assert four.with_jobs_of([one_gpu.model_copy(update={"devices": 2}), one_gpu]).jobs == 2
    assert Options(1, four.gpus).with_jobs_of([one_gpu]).jobs == 1
    assert Options(gpus=("0", "0", "1")).with_jobs_of([one_gpu]).jobs == 3
    assert Options().with_jobs_of([cpu]) == Options()
    with pytest.raises(ConfigError, match="gpus: 4 named, but a job needs 8; name more"):
        four.with_jobs_of([one_gpu, eight_gpus])


def test_launcher_decides_where_jobs_run(tmp_path):
    jobs = [[f"seed={seed}", f"runs_dir={tmp_path}"] for seed in (1, 2)]
    assert Launcher(jobs, ["hydra/launcher=basic"], Options(2))._local
    assert not Launcher(jobs, ["hydra/launcher=submitit_local"])._local
    setting = "data.task.num_train=200"  # in a group that varies
    assert Launcher([[f"data={name}", setting, f"runs_dir={tmp_path}"] for name in ("reverse", "copy")], [])._local


def test_each_job_gets_a_gpu_and_its_lock(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(runtime, "check_devices", lambda hardware: None)
    assigned = tmp_path / "assigned"

    def run(config, *, command, sweep_job):
        assert all(os.fstat(descriptor) for descriptor in sweep_job.keep_open) and sweep_job.keep_open
        with assigned.open("a") as file:
            assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as nvidia-smi numbers them
            gpu = os.environ["CUDA_VISIBLE_DEVICES"]
            file.write(f"{config.seed}: {gpu} of {sweep_job.concurrent_jobs}, ")

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(pool, "subprocess", pool.subprocess)
    forked_jobs()
    Path("mine.yaml").write_text("jobs: [seed=1 hardware=1xgpu, seed=2 hardware=1xgpu]")
    assert app.main(["sweep", "mine.yaml", "gpus=5,7", "jobs=1"]) == 1  # without a record
    assert assigned.read_text() == "1: 5 of 1, 2: 5 of 1, "
    assigned.unlink()
    with take_slots(("5",), 1) as other:  # of another sweep
        assert app.main(["sweep", "mine.yaml", "gpus=5,7,7", "jobs=1"]) == 1
        assert other.gpus == ("5",) and assigned.read_text() == "1: 7 of 2, 2: 7 of 2, "


def test_the_last_jobs_of_a_sweep_have_as_many_threads_as_all(monkeypatch, tmp_path, tiny_config):
    """Else a sweep that is continued would finish its runs with other rounding."""
    environments = []
    process = MagicMock(returncode=0, **{"poll.return_value": 0})
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *_, env, **__: environments.append(env) or process)
    monkeypatch.setattr(pool, "_problem", lambda *_: None)
    monkeypatch.setattr(pool.resources, "num_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = Job((), tiny_config(), tmp_path)
    for jobs in (1, 4, 8):
        Launcher([[f"seed={seed}"] for seed in range(4)], [], Options(jobs)).run([job], "mine")
    assert [env.get("OMP_NUM_THREADS") for env in environments] == [None, "2", "2"]
    ranks = Job((), tiny_config("hardware=2xcpu"), tmp_path)
    Launcher([["seed=1"], ["seed=2"]], [], Options(2)).run([ranks], "mine")
    assert "OMP_NUM_THREADS" not in environments[-1], "as many for each rank as without a sweep"


def test_job_has_its_request_and_is_known_before_a_signal_acts(monkeypatch, tmp_path, tiny_config):
    """Else it would print a traceback, and run on."""
    process = MagicMock(returncode=143, **{"poll.return_value": 143})
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM) or process)
    monkeypatch.setattr(pool, "_problem", lambda *_: None)
    with pytest.raises(SystemExit, match="143"), exit_on_sigterm():
        pool.run([Job((), tiny_config(), tmp_path)], [""], Options(1), "mine")
    process.stdin.write.assert_called_once()
    process.send_signal.assert_called_once_with(signal.SIGTERM)


@pytest.mark.parametrize(
    "error", [ConfigError("a"), RunError("b"), OSError(28, "No space left"), MemoryError()], ids=repr
)
def test_an_error_on_one_of_several_nodes_ends_the_job_of_all(error, tiny_config, monkeypatch):
    """submitit takes what is raised for a result, and the other nodes would wait for this one."""
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(job=SimpleNamespace(num=0)))
    monkeypatch.setattr(train, "run", MagicMock(side_effect=error))
    for nodes in (1, 2):
        config = tiny_config("hardware=2xcpu", f"hardware.num_nodes={nodes}").model_dump(mode="json")
        with contextlib.nullcontext() if nodes == 1 else pytest.raises(SystemExit, match="2"):
            assert isinstance(launcher._task("mine", [config], [""], 1)(None), RprError)


@pytest.mark.parametrize("before", ["failed", "interrupted"])
def test_a_job_killed_before_it_wrote_its_record_has_its_own_reason(tmp_path, tiny_config, before):
    """As when memory runs out while the corpus is prepared."""
    path = tmp_path / RECORD_NAME
    write_record(path, fake_record(status=before).model_copy(update={"error": "yesterday's"}))
    job = Job((), tiny_config(), tmp_path).read()
    reading, writing = os.pipe()
    os.close(writing)
    process = MagicMock(returncode=-9, stdout=os.fdopen(reading, "rb"))
    problem = pool._problem(process, job, ended(-9))
    record = read_record(path)
    assert (record.status, record.error) == ("interrupted", str(ended(-9))) and "SIGKILL" in record.error
    assert status._reason(record, problem) == record.error


FAKE_TRAINING = """
import collections, os, sys, time, types
from pathlib import Path

def run(config, *, command, sweep_job):
    assert sweep_job.concurrent_jobs == 2
    assert os.environ["OMP_NUM_THREADS"] == "1"
    Path(f"{config.seed} of {os.getpid()}").touch()
    time.sleep(100)

train = sys.modules["rpr.commands.train"] = types.ModuleType("rpr.commands.train")
train.run, train.FAULT_EXIT = run, 2
train.SweepJob = collections.namedtuple("SweepJob", "concurrent_jobs keep_open")
"""


@pytest.mark.slow
def test_two_jobs_at_a_time_end_when_the_sweep_is_killed(tmp_path, wait_for, processes):
    (tmp_path / "sitecustomize.py").write_text(FAKE_TRAINING)
    (tmp_path / "mine.yaml").write_text("jobs: ['seed=1,2,3']")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = processes.start("sweep", "mine.yaml", "jobs=2", cwd=tmp_path, PYTHONPATH=path)
    assert wait_for(lambda: len([*tmp_path.glob("* of *")]) == 2, 100), process.poll()
    process.kill()
    assert wait_for(lambda: not processes.alive(), 20), processes.alive()
    process.communicate()
    started = dict(path.name.split(" of ") for path in tmp_path.glob("* of *"))
    assert started.keys() == {"1", "2"} and len({*started.values()}) == 2  # the third was not started


def test_dry_run_says_what_each_job_asks_slurm_for(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("jobs: [model=base seed=1]")
    given = ("mine.yaml", "hardware=slurm_8xgpu", "hardware.num_nodes=2", "hydra.launcher.partition=gpu")
    *commands, total, request = cli("sweep", *given, "--dry-run").out.splitlines()
    assert commands[1].startswith("rpr-cli train -m hydra.launcher.partition=gpu model=base ")
    asked = "partition=gpu, nodes=2, gpus_per_node=8, cpus_per_task=32, timeout_min=4320"
    assert total.startswith("# 1 job") and request.startswith(f"# each in a SLURM job of its own: {asked}; ")
    _, command, *_, total = cli("sweep", "mine.yaml", "hydra/launcher=submitit_local", "--dry-run").out.splitlines()
    assert command.startswith("rpr-cli train -m hydra/launcher=submitit_local model=base ")
    assert total.startswith("# 1 job"), "other launchers than SLURM's have no request in words"
