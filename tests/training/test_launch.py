"""Checked here: the words with which torchrun is started on one node and on each of several, and what is refused
(tests/system/test_ranks.py starts them); nodes whose names mean nothing; time that is up; a worker's log, GPUs and
inherited locks.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rpr.commands import train
from rpr.config.train import TrainConfig
from rpr.errors import ConfigError, InterruptedRun
from rpr.runs import runtime
from rpr.training import launch

Config = Callable[..., TrainConfig]
IN_A_JOB = {
    "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "41234", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "2",
    "SLURM_JOB_NODELIST": "gpu[07-09],gpu12",
}  # fmt: skip


@pytest.fixture
def nodes(tiny_config: Config) -> TrainConfig:
    return tiny_config("hardware=8xgpu", "hardware.num_nodes=4", "optim.microbatches_per_step=8")


def test_one_node(tiny_config: Config) -> None:
    flags = launch._torchrun(tiny_config("hardware=2xcpu", "optim.microbatches_per_step=2").hardware)
    assert flags == ["--standalone", "--nproc-per-node=2", "--max-restarts=0"]


def test_several_nodes_of_a_slurm_job(nodes: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IN_A_JOB.items():
        monkeypatch.setenv(name, value)
    flags = launch._torchrun(nodes.hardware)
    assert {"--nnodes=4", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=41234"} <= set(flags)
    assert "--rdzv-endpoint=gpu07:21234" in flags
    assert "--local-addr=gpu09" in flags
    assert any("is_host=0," in flag for flag in flags)
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert any("is_host=1," in flag for flag in launch._torchrun(nodes.hardware))


def test_a_node_whose_name_means_nothing(
    nodes: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told by the first node as by the others, before a corpus is prepared; there the process ends, and the job."""
    monkeypatch.setattr(runtime, "check_devices", lambda hardware: None)
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0)
    for name, value in {**IN_A_JOB, "SLURM_JOB_NODELIST": "localhost,gpu[07-09].invalid"}.items():
        monkeypatch.setenv(name, value)
    said = (
        f"hardware.num_nodes: {socket.gethostname()} cannot resolve the host name of node gpu07.invalid ("
        "{reason}); the nodes of a job connect by the names that SLURM gives them: add them to DNS or to /etc/hosts on "
        "every node"
    )
    began = time.monotonic()
    with pytest.raises(SystemExit, match="2"):
        train.run(nodes, command="rpr-cli train")
    told = capsys.readouterr().err
    assert told.startswith(f"rpr-cli: {said.partition('{')[0]}") and told.endswith(f"{said.partition('}')[2]}\n")
    monkeypatch.setenv("SLURM_NODEID", "0")
    with pytest.raises(ConfigError) as refused:
        train.run(nodes, command="rpr-cli train")
    assert f"rpr-cli: {refused.value}\n" == told
    assert time.monotonic() - began < 30 and not Path(nodes.runs_dir).exists()


@pytest.mark.parametrize("in_a_job_of", [None, "2"])
def test_several_nodes_that_nobody_started(
    in_a_job_of: str | None, nodes: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_a_job_of is not None:
        for name, value in {**IN_A_JOB, "SLURM_JOB_NUM_NODES": in_a_job_of}.items():
            monkeypatch.setenv(name, value)
    reason = r"^hardware\.num_nodes: 4 nodes must be started by SLURM .*torchrun --nnodes 4 --n"
    with pytest.raises(ConfigError, match=reason):
        launch._torchrun(nodes.hardware)


def test_as_many_processes_as_devices(nodes: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "32")
    runtime.check_world(nodes.hardware)
    monkeypatch.setenv("WORLD_SIZE", "16")
    reason = r"torchrun started 16 processes for 4 nodes of 8 devices; set hardware\.num_n"
    with pytest.raises(ConfigError, match=reason):
        runtime.check_world(nodes.hardware)


def test_a_worker_writes_to_its_log_sees_its_gpus_and_holds_what_it_inherits(
    tiny_config: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, sys\n"
        "print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"
        "print('and complains', file=sys.stderr)\n"
        "os.fstat(int(sys.argv[1]))\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    reader, writer = os.pipe()
    try:
        for gpus in (("5", "7"), ()):
            code = launch.run_worker(
                "worker", Path(str(writer)), tiny_config().hardware, keep_open=(writer,), log=log, gpus=gpus
            )
            assert code == 3
            assert capfd.readouterr() == ("", "")
    finally:
        os.close(reader)
        os.close(writer)
    assert log.read_text() == "before\nsees 5,7\nand complains\nsees None\nand complains\n"


def test_time_that_is_up_is_an_interruption(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit raises it from its handler of SIGUSR2 while the worker is waited for."""

    def handler(number: int, frame: object) -> None:
        raise RuntimeError("timed-out too many times")

    (tmp_path / "worker.py").write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGUSR2)\ntime.sleep(60)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reason = r"^the SLURM time limit was reached \(timed-out too many times\); the same command resumes"
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(InterruptedRun, match=reason):
            launch.run_worker("worker", tmp_path, tiny_config().hardware)
    finally:
        signal.signal(signal.SIGUSR2, before)
