"""The jobs of a sweep on this machine: their GPUs, a slot each, and their processes. No test here trains."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rpr.cli import app
from rpr.commands import train
from rpr.compose.composition import compose_train
from rpr.errors import ConfigError
from rpr.records.record import RECORD_NAME, read_record, write_record
from rpr.runs import runtime
from rpr.signals import exit_on_sigterm
from rpr.sweep import pool, status
from rpr.sweep.pool import Options, take_slots
from rpr.sweep.status import Job
from rpr.training.launch import ended
from tests.fake_records import fake_record
from tests.system.faults import forked_jobs

HOLD_GPUS = """
import sys
from pathlib import Path
from rpr.sweep.pool import take_slots
with take_slots(("0", "1", "2"), 2, Path(sys.argv[1])) as taken:
    print(",".join(taken), flush=True)
    sys.stdin.read()
"""


def options(jobs=None, gpus=()):
    return Options(jobs=jobs, gpus=gpus, retry_failed=False)


def test_number_of_jobs_follows_from_the_gpus():
    one, eight, cpu = (compose_train([f"hardware={name}"]).hardware for name in ("1xgpu", "8xgpu", "cpu"))
    two = one.model_copy(update={"devices": 2})
    four = options(gpus=["0", "1", "GPU-1a2b", "MIG-3/4"])
    assert [four.for_jobs([machine] * 9).jobs for machine in (one, two)] == [4, 2]
    assert options(1, four.gpus).for_jobs([one] * 9).jobs == 1
    assert options(gpus=["0", "0", "1"]).for_jobs([one] * 9).jobs == 3
    assert options().for_jobs([cpu]).jobs == 1 and options(4).for_jobs([cpu, cpu]).jobs == 2
    for machine, used in ((eight, 8), (cpu, 0)):
        with pytest.raises(ConfigError, match=f"4 named, but a job uses {used}"):
            four.for_jobs([one, machine])


def test_gpus_are_exclusive_and_freed_by_a_kill(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "_GPU_SECONDS", 0.05)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_GPUS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "0,1\n"
    with take_slots(("0", "1", "2"), 1, tmp_path) as taken:
        assert taken == ["2"]
    capsys.readouterr()
    threading.Timer(0.3, other.kill).start()
    began = time.monotonic()
    with take_slots(("0", "1", "2"), 3, tmp_path) as taken:  # waits for two
        assert taken == ["0", "1", "2"] and time.monotonic() - began > 0.2
    assert capsys.readouterr().err.startswith("rpr-cli: gpus: waiting for 3 of the GPUs 0, 1, 2")
    other.communicate()


def test_two_processes_that_need_all_gpus_do_not_deadlock(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "_GPU_SECONDS", 0.01)
    assigned = []

    def take(order):
        for _ in range(5):
            with take_slots(order, 2, tmp_path) as taken:
                assigned.append(taken)

    threads = [threading.Thread(target=take, args=(order,)) for order in (("0", "1"), ("1", "0"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(assigned) == 10


def test_a_gpu_named_twice_takes_two_jobs(tmp_path):
    named = ("0", "0", "1")
    with ExitStack() as jobs:
        assigned = [jobs.enter_context(take_slots(named, 1, tmp_path)) for _ in range(3)]
        assert assigned == [["0"], ["1"], ["0"]], "the first slot of each GPU first"
        assert pool._lock_free(named, 1, tmp_path, jobs) == []
    with take_slots(named, 2, tmp_path) as both, take_slots(named, 1, tmp_path) as other:
        assert both == ["0", "1"] and other == ["0"]


def test_each_job_gets_a_gpu_that_no_other_command_has(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(runtime, "check_devices", lambda hardware: None)
    assigned = tmp_path / "assigned"

    def run(config, *, command, concurrent_jobs):
        with assigned.open("a") as file:
            assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as nvidia-smi numbers them
            gpu = os.environ["CUDA_VISIBLE_DEVICES"]
            file.write(f"{config.seed}: {gpu} of {concurrent_jobs}, ")

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(pool, "subprocess", pool.subprocess)
    forked_jobs()
    Path("mine.yaml").write_text("jobs: [seed=1 hardware=1xgpu, seed=2 hardware=1xgpu]")
    assert app.main(["sweep", "mine.yaml", "gpus=5,7", "jobs=1"]) == 1  # without a record
    assert assigned.read_text() == "1: 5 of 1, 2: 5 of 1, "
    assigned.unlink()
    with take_slots(("5",), 1):  # of another sweep
        assert app.main(["sweep", "mine.yaml", "gpus=5,7,7", "jobs=1"]) == 1
        assert assigned.read_text() == "1: 7 of 1, 2: 7 of 1, "


def test_the_last_jobs_of_a_sweep_have_as_many_threads_as_all(monkeypatch, tmp_path, tiny_config):
    """Else a sweep that is continued would finish its runs with other rounding."""
    environments = []
    process = MagicMock(returncode=0, **{"poll.return_value": 0})
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *_, env, **__: environments.append(env) or process)
    monkeypatch.setattr(pool, "_problem", lambda *_: None)
    monkeypatch.setattr(pool.system, "num_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for words, jobs in (([], 1), ([], 4), ([], 8), (["hardware=2xcpu"], 2)):
        config = tiny_config(*words)
        pool.run([Job((), config, tmp_path)], [""], options(jobs).for_jobs([config.hardware] * 4), "mine")
    assert [env.get("OMP_NUM_THREADS") for env in environments] == [None, "2", "2", None], "ranks: as without a sweep"


def test_job_has_its_request_and_is_known_before_a_signal_acts(monkeypatch, tmp_path, tiny_config):
    """Else it would print a traceback, and run on."""
    process = MagicMock(returncode=143, **{"poll.return_value": 143})
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM) or process)
    monkeypatch.setattr(pool, "_problem", lambda *_: None)
    with pytest.raises(SystemExit, match="143"), exit_on_sigterm():
        pool.run([Job((), tiny_config(), tmp_path)], [""], options(1), "mine")
    process.stdin.write.assert_called_once()
    process.send_signal.assert_called_once_with(signal.SIGTERM)


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
