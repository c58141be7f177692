"""Variables that other programs left in the environment: which of them a command heeds."""

import os
import subprocess
import sys
from pathlib import Path

import rpr.paths
from rpr import environment
from rpr.compose.composition import compose_train
from rpr.environment import is_first_rank
from rpr.paths import user_path
from rpr.records.record import Git

LEFT_OVER = {
    "RANK": "1", "LOCAL_RANK": "3", "WORLD_SIZE": "", "NODE_RANK": "1", "TORCHELASTIC_RUN_ID": "1",
    "SLURM_JOB_ID": "71", "LSB_JOBID": "7", "LSB_DJOB_RANKFILE": "x", "JSM_NAMESPACE_RANK": "1", "PMI_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1", "PL_TRAINER_FAST_DEV_RUN": "1", "GIT_DIR": "/nowhere", "WANDB_RUN_ID": "left",
    "WANDB_SERVICE": "3-1-tcp-x-1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}  # fmt: skip
KEPT = {
    "SLURM_CONF": "x", "SBATCH_PARTITION": "gpu", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
    "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "1", "WANDB_PROJECT": "mine", "PYTHONHASHSEED": "0",
}  # fmt: skip


def test_what_others_left_is_removed(monkeypatch):
    """Torchrun's variables too: who starts a command by it gets as many, each of which starts its own ranks."""
    for name, value in {**LEFT_OVER, **KEPT}.items():
        monkeypatch.setenv(name, value)
    for_child = environment.for_child().keys() & LEFT_OVER.keys()
    assert not is_first_rank() and for_child == {"WANDB_RUN_ID", "WANDB_SERVICE"}
    environment.hide_foreign()
    assert {name: value for name, value in os.environ.items() if name in {**LEFT_OVER, **KEPT}} == KEPT
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as a notebook's kernel exports it
    environment.set_up()
    assert os.environ["MPLBACKEND"] == "agg"
    assert is_first_rank()


def test_settings_and_folders_may_name_what_is_hidden(monkeypatch):
    """A job of an array reads its seed and folder from SLURM's variables."""
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    config = compose_train(["seed=${oc.env:SLURM_ARRAY_TASK_ID}", "runs_dir=/a/$SLURM_JOB_ID/runs"])
    environment.hide_foreign()
    assert "SLURM_JOB_ID" not in os.environ
    assert (config.seed, user_path(config.runs_dir)) == (7, Path("/a/42/runs"))


def test_commit_is_of_this_checkout_also_in_a_git_hook_and_in_one_of_another_user(monkeypatch, tmp_path):
    """As of a folder mounted into a container, where git itself refuses."""
    before = Git.here()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(tmp_path / ".git"))
        patch.setenv("GIT_WORK_TREE", str(tmp_path))
        assert Git.here().commit == before.commit
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert subprocess.run(["git", "-C", rpr.paths.HERE, "status"], capture_output=True).returncode == 128
    assert Git.here() == before and before.commit


def test_processes_run_the_code_of_the_command(tmp_path):
    """Not the current folder's."""
    for name in ("tokenize.py", "rpr.py"):
        (tmp_path / name).write_text("raise SystemExit('of the current folder')")
    program = (
        "import subprocess, sys; from rpr import environment\n"
        "environment.set_up(); environment.hide_foreign()\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'rpr', '--version']))"
    )
    started = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.startswith("rpr-cli "), ended.stderr
