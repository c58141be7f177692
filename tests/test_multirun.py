"""Checked here: which launcher a sweep gets, and from which words; GPUs named for its jobs; what is refused before one
of them starts. Training is replaced by a list of what was started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rpr import app, composition
from rpr.commands import train
from rpr.errors import ConfigError
from rpr.multirun import Launcher, Options, launcher_words
from rpr.runs import runtime

ONE_GPU = composition.training(["hardware=1xgpu"]).hardware
EIGHT_GPUS = composition.training(["hardware=8xgpu"]).hardware
CPU = composition.training([]).hardware


def test_words_for_the_launcher() -> None:
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"]
    assert launcher_words(["seed=1,2"], Options()) == []
    assert launcher_words(["seed=1,2"], Options(3)) == joblib
    assert launcher_words(["hydra.launcher.n_jobs=9", "hydra.launcher.verbose=1"], Options(3)) == [
        "hydra.launcher.verbose=1", *joblib
    ]  # fmt: skip
    assert launcher_words(["hydra/launcher=submitit_local", "seed=2"], Options()) == ["hydra/launcher=submitit_local"]
    with pytest.raises(ConfigError, match="at_once: hydra/launcher=submitit_local has its own way to run many"):
        launcher_words(["hydra/launcher=submitit_local"], Options(2))


def test_a_launcher_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"hydra/launcher: joblib is not installed; pip install 'rpr\[parallel\]'"):
        launcher_words([], Options(2))
    with pytest.raises(ConfigError, match=r"submitit_slurm is not installed; pip install 'rpr\[slurm\]'"):
        launcher_words(["hydra/launcher=submitit_slurm"], Options())


def test_as_many_jobs_as_there_are_gpus_for() -> None:
    four = Options(gpus=("0", "1", "2", "3"))
    assert four.sharing([ONE_GPU, ONE_GPU]).at_once == 4
    assert four.sharing([ONE_GPU.model_copy(update={"devices": 2}), ONE_GPU]).at_once == 2
    assert Options(1, four.gpus).sharing([ONE_GPU]).at_once == 1
    assert Options().sharing([CPU]) == Options()
    with pytest.raises(ConfigError, match="gpus: 4 named, and a job takes 8; name more"):
        four.sharing([ONE_GPU, EIGHT_GPUS])
    with pytest.raises(ConfigError, match="gpus: hardware=cpu uses none; leave gpus out"):
        four.sharing([ONE_GPU, CPU])


def test_what_all_jobs_share_chooses_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Launcher([["seed=1", "hardware=cpu"], ["seed=2", "hardware=cpu"]], [])
    assert local.here and local.one_by_one
    many = Launcher([["seed=1"]], ["hydra/launcher=joblib"])
    assert many.here and not many.one_by_one
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="hydra/launcher: submitit_slurm needs SLURM's commands"):
        Launcher([["seed=1", "hardware=slurm_8xgpu"], ["seed=2", "hardware=slurm_8xgpu"]], [])


def test_each_job_has_a_gpu_and_its_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(runtime, "check_devices", lambda hardware: None)
    had = []

    def run(config: Any, *, gpus: tuple[str, ...], keep_open: tuple[int, ...], **options: Any) -> None:
        assert all(os.fstat(descriptor) for descriptor in keep_open) and len(keep_open) == 1
        assert options["own_process"] and options["quiet"]
        had.append((config.seed, gpus))

    monkeypatch.setattr(train, "run", run)
    Path("mine.yaml").write_text("jobs: [seed=1 hardware=1xgpu, seed=2 hardware=1xgpu]")
    assert app.main(["sweep", "mine.yaml", "gpus=5,7", "at_once=1"]) == 1  # without a record
    assert had == [(1, ("5",)), (2, ("5",))]
    assert "gpus: 1 named, and a job takes 8" in refused(capsys, "sweep", "quick", "hardware=8xgpu", "gpus=3")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert app.main(arguments) == 2
    return capsys.readouterr().err
