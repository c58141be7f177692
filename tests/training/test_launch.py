"""The arguments of torchrun on several nodes (tests/system/test_ranks.py runs it), and worker processes."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rpr.errors import ConfigError, InterruptedRun
from rpr.training import launch

SLURM_JOB = {
    "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "41234", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "2",
    "SLURM_JOB_NODELIST": "gpu[07-09],gpu12",
}  # fmt: skip


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Writes the code of a module that `launch.run_worker("worker", ...)` runs."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return (tmp_path / "worker.py").write_text


def test_torchrun_on_several_nodes_of_slurm(tiny_config, monkeypatch):
    for name, value in SLURM_JOB.items():
        monkeypatch.setenv(name, value)
    words = ("hardware=8xgpu", "hardware.num_nodes=4", "optim.microbatches_per_step=8")
    flags = launch._torchrun(four_nodes := tiny_config(*words).hardware)
    assert {"--nnodes=4", "--nproc-per-node=8", "--master-addr=gpu07", "--master-port=21234"} <= set(flags)
    assert {"--node-rank=2", "--rdzv-conf=timeout=3600"} <= set(flags)
    of_one_node = launch._torchrun(four_nodes.model_copy(update={"num_nodes": 1}))
    assert {"--standalone", "--local-addr=127.0.0.1"} <= set(of_one_node)  # its own name may not resolve
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(ConfigError, match=r"^hardware\.num_nodes: 4 nodes must be started by SLURM: rpr-cli train -m"):
        launch._torchrun(four_nodes)


def test_worker_log_and_inherited_descriptors(worker, tiny_config, tmp_path, capfd):
    worker("import os, sys\nprint('starts', flush=True)\nos.fstat(int(sys.argv[1]))\nsys.exit('and complains')")
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    reader, writer = os.pipe()
    try:
        code = launch.run_worker("worker", Path(str(writer)), tiny_config().hardware, keep_open=(writer,), log=log)
        assert code == 1
        assert capfd.readouterr() == ("", "")
    finally:
        os.close(reader)
        os.close(writer)
    assert log.read_text() == "before\nstarts\nand complains\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and dying with a parent is Linux's")
@pytest.mark.parametrize("hardware", ["cpu", pytest.param("2xcpu", marks=pytest.mark.slow)])
def test_no_rank_outlives_a_killed_command(hardware, worker, tiny_config, tmp_path, monkeypatch, processes, wait_for):
    """The same of whole trainings: tests/system/test_ranks.py."""
    worker("import os, pathlib, sys, time\npathlib.Path(sys.argv[1], f'{os.getpid()}.rank').touch()\ntime.sleep(60)")
    monkeypatch.setenv(*processes.mark.split("="))
    settings = tiny_config(f"hardware={hardware}", "optim.microbatches_per_step=2").hardware
    if (command := os.fork()) == 0:
        os._exit(launch.run_worker("worker", tmp_path, settings))
    ranks = settings.num_ranks
    assert wait_for(lambda: len([*tmp_path.glob("*.rank")]) == ranks or os.waitpid(command, os.WNOHANG)[0], 60)
    assert len(processes.alive()) == ranks + (ranks > 1)  # and torchrun
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    assert wait_for(lambda: not processes.alive(), 40), processes.alive()


def test_slurm_time_limit_interrupts_the_run(worker, tiny_config, tmp_path):
    """submitit raises from its handler of SIGUSR2."""

    def handler(number, frame):
        raise RuntimeError("timed-out too many times")

    worker("import os, signal, time\nos.kill(os.getppid(), signal.SIGUSR2)\ntime.sleep(60)")
    reason = r"^the SLURM time limit was reached \(timed-out too many times\); the same command resumes"
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(InterruptedRun, match=reason):
            launch.run_worker("worker", tmp_path, tiny_config().hardware)
    finally:
        signal.signal(signal.SIGUSR2, before)
