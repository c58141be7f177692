"""The launcher of a sweep, the GPUs of its jobs, and joblib's processes. No test here trains."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.commands import train
from rpr.compose import composition
from rpr.errors import ConfigError
from rpr.io.resources import num_cores
from rpr.runs import runtime
from rpr.sweep.gpus import share
from rpr.sweep.launcher import Launcher, Options, launcher_overrides
from tests.conftest import WaitFor
from tests.processes import ProcessTree

ONE_GPU = composition.compose_train(["hardware=1xgpu"]).hardware
EIGHT_GPUS = composition.compose_train(["hardware=8xgpu"]).hardware
CPU = composition.compose_train([]).hardware


def test_launcher_overrides() -> None:
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "hydra.launcher.batch_size=1"]
    assert launcher_overrides(["seed=1,2"], Options()) == []
    assert launcher_overrides(["seed=1,2"], Options(3)) == joblib
    assert launcher_overrides(["hydra.launcher.n_jobs=9", "hydra.launcher.verbose=1"], Options(3)) == [
        "hydra.launcher.verbose=1", *joblib
    ]  # fmt: skip
    assert launcher_overrides(["hydra/launcher=submitit_local", "seed=2"], Options()) == [
        "hydra/launcher=submitit_local"
    ]


def test_launcher_of_jobs_that_set_something_in_a_group_that_varies(tmp_path: Path) -> None:
    setting = "data.task.num_train=200"
    assert Launcher([[f"data={name}", setting, f"runs_dir={tmp_path}"] for name in ("reverse", "copy")], []).local


def test_jobs_on_different_slurm_nodes_are_refused(tmp_path: Path) -> None:
    jobs = [["hardware=slurm_8xgpu", f"hardware.num_nodes={n}", f"runs_dir={tmp_path}"] for n in (1, 2)]
    with pytest.raises(ConfigError, match=r"^hardware\.num_nodes: all jobs of a sweep request the same SLURM nodes"):
        Launcher(jobs, [])


@pytest.mark.parametrize("choices", [("cpu", "slurm_8xgpu"), (None, "slurm_8xgpu")])
def test_slurm_jobs_never_run_here(choices: tuple[str | None, str], tmp_path: Path) -> None:
    jobs = [[*([f"hardware={choice}"] if choice else []), f"runs_dir={tmp_path}"] for choice in choices]
    for order in (jobs, jobs[::-1]):
        with pytest.raises(ConfigError, match="^hardware: all jobs of a sweep request the same SLURM nodes"):
            Launcher(order, [])


@pytest.mark.parametrize("every_plugin", [False, True])
def test_missing_launcher_is_an_error(every_plugin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if every_plugin:  # none is installed, so their package does not exist
        for name in [name for name in sys.modules if name.startswith("hydra_plugins.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "hydra_plugins", None)
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"hydra/launcher: joblib is not installed; pip install 'rpr\[parallel\]'"):
        launcher_overrides([], Options(2))
    with pytest.raises(ConfigError, match=r"submitit_slurm is not installed; pip install 'rpr\[slurm\]'"):
        launcher_overrides(["hydra/launcher=submitit_slurm"], Options())


def test_number_of_jobs_follows_from_the_gpus() -> None:
    four = Options(gpus=("0", "1", "2", "3"))
    assert four.with_gpus_shared([ONE_GPU, ONE_GPU]).jobs == 4
    assert four.with_gpus_shared([ONE_GPU.model_copy(update={"devices": 2}), ONE_GPU]).jobs == 2
    assert Options(1, four.gpus).with_gpus_shared([ONE_GPU]).jobs == 1
    assert Options(gpus=("0", "1"), jobs_per_gpu=3).with_gpus_shared([ONE_GPU]).jobs == 6
    assert Options(2, ("0",), 3).with_gpus_shared([ONE_GPU]).jobs == 2
    assert Options().with_gpus_shared([CPU]) == Options()
    with pytest.raises(ConfigError, match="gpus: 4 named, but a job needs 8; name more"):
        four.with_gpus_shared([ONE_GPU, EIGHT_GPUS])


def test_number_of_concurrent_jobs() -> None:
    local = Launcher([["seed=1", "hardware=cpu"], ["seed=2", "hardware=cpu"]], [])
    assert local.local and local.at_once == 1
    jobs = [[f"seed={seed}"] for seed in range(100)]
    many = Launcher(jobs, ["hydra/launcher=joblib"])
    assert many.local and many.at_once == num_cores()
    assert Launcher(jobs, ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"]).at_once == 3
    assert Launcher(jobs[:2], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"]).at_once == 2
    assert Launcher(jobs, ["hydra/launcher=submitit_local"]).at_once == 100


def test_each_job_gets_a_gpu_and_its_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(runtime, "check_devices", lambda hardware: None)
    nvidia_smi = tmp_path / "bin" / "nvidia-smi"
    nvidia_smi.parent.mkdir()
    nvidia_smi.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {n}: NVIDIA H100 (UUID: GPU-{n}a)'\n" for n in range(8)))
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(nvidia_smi.parent), prepend=os.pathsep)
    assigned = []

    def run(config: Any, *, command: str, sweep_job: train.SweepJob) -> None:
        assert all(os.fstat(descriptor) for descriptor in sweep_job.keep_open) and sweep_job.keep_open
        assert sweep_job.concurrent_jobs == 1
        assigned.append((config.seed, sweep_job.gpus))

    monkeypatch.setattr(train, "run", run)
    Path("mine.yaml").write_text("jobs: [seed=1 hardware=1xgpu, seed=2 hardware=1xgpu]")
    assert app.main(["sweep", "mine.yaml", "gpus=5,7", "jobs=1"]) == 1  # without a record
    assert assigned == [(1, ("5",)), (2, ("5",))]
    assigned.clear()
    with share(("5",), 1, jobs_per_gpu=3) as other:  # of another sweep
        assert app.main(["sweep", "mine.yaml", "gpus=5,7", "jobs_per_gpu=3", "jobs=1"]) == 1
        assert other.gpus == ("5",) and assigned == [(1, ("7",)), (2, ("7",))]
    assigned.clear()
    capsys.readouterr()
    assert app.main(["sweep", "mine.yaml", "gpus=5,8,GPU-9,GPU-7"]) == 2
    assert capsys.readouterr().err == (
        "rpr-cli: gpus: this machine has no GPU 8, GPU-9 (nvidia-smi -L lists: 0, 1, 2, 3, 4, 5, 6, 7)\n"
    )
    assert assigned == []


FAKE_TRAINING = """
import collections, os, sys, time, types
from pathlib import Path

def run(config, *, command, sweep_job):
    from rpr.data.workers import Workers
    from rpr.errors import RunError
    with Workers(2) as workers:  # as when a run builds the token cache
        assert [*workers.map(abs, [-1, 2, -3])] == [1, 2, 3]
    assert sweep_job.concurrent_jobs == 2
    Path(f"{config.seed} of {os.getpid()}").touch()
    while len([*Path().glob("* of *")]) < 2:  # both run at the same time
        time.sleep(0.01)
    raise RunError("no luck")

sys.modules["rpr.commands.train"] = types.ModuleType("rpr.commands.train")
sys.modules["rpr.commands.train"].run = run
sys.modules["rpr.commands.train"].SweepJob = collections.namedtuple("SweepJob", "concurrent_jobs gpus keep_open")
"""


def test_two_concurrent_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAKE_TRAINING)
    (tmp_path / "mine.yaml").write_text("jobs: ['seed=1,2']")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert app.main(["sweep", "mine.yaml", "jobs=2", "hardware.threads=1"]) == 1
    ran = dict(path.name.split(" of ") for path in tmp_path.glob("* of *"))
    assert ran.keys() == {"1", "2"} and len({*ran.values(), str(os.getpid())}) == 3
    assert capsys.readouterr().err.count(": no luck\n") == 2


SIX_JOBS = """
import os, sys, time
from contextlib import nullcontext
from pathlib import Path
from joblib import Parallel, delayed
from rpr.sweep.launcher import exit_with_parent
from rpr.signals import exit_on_sigterm

def job(number, folder, sweeper):
    with exit_with_parent(sweeper):
        Path(folder, str(number)).touch()
        if number >= {waiting}:
            with exit_on_sigterm() if number % 2 else nullcontext():  # as in training; joblib catches it
                try:
                    time.sleep(60)
                finally:
                    time.sleep(0.5)  # as if a training process was terminated

if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(job)(number, sys.argv[1], os.getpid()) for number in range(6))
"""


@pytest.mark.parametrize("waiting", [4, 2], ids=["no job left", "two jobs left"])
def test_joblib_processes_end_with_their_parent(
    tmp_path: Path, waiting: int, wait_for: WaitFor, processes: ProcessTree
) -> None:
    (tmp_path / "six.py").write_text(SIX_JOBS.format(waiting=waiting))
    process = processes.start(program=(sys.executable, tmp_path / "six.py", tmp_path))
    started = {str(number) for number in range(waiting + 2)}
    assert wait_for(lambda: started <= {path.name for path in tmp_path.iterdir()}, 30)
    assert len(processes.alive()) > 2
    process.kill()
    assert wait_for(lambda: not processes.alive(), 10), processes.alive()
    process.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"six.py", *started}
