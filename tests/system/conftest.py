"""`rpr-cli` in separate processes, and small trained runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from rpr.cli import app
from rpr.data.vocabulary import EOS
from tests.conftest import TINY
from tests.system.faults import ForkServer
from tests.system.workspace import Workspace

SCRIPT = Path(sys.executable).with_name("rpr-cli")
FOUR_STEPS = (
    "optim.max_steps=4", "optim.warmup_steps=4", "optim.checkpoint_every_n_steps=2", "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[]", "hardware.threads=1", "model.relative_defaults.clip_distance=3",
)  # fmt: skip


class ProcessTree:
    """A command and all its descendants, recognised by a variable in their environment."""

    def __init__(self) -> None:
        self.mark = f"RPR_TEST_MARK={uuid4().hex}"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start `rpr-cli`, with Ctrl-C enabled also where the tests themselves run in the background."""
        name, value = self.mark.split("=")
        return subprocess.Popen(
            [SCRIPT, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", name: value, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def alive(self) -> dict[int, str]:
        """The command line of each living process, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() not in (folder / "environ").read_bytes():
                    continue
                if ") Z " in (folder / "stat").read_text():  # a zombie
                    continue
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # it ended meanwhile
                continue
        return found

    def find(self, words: str) -> int:
        """The id of a process whose command line contains these words."""
        return next(pid for pid, line in self.alive().items() if words in line)

    def kill(self) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def processes() -> Iterator[ProcessTree]:
    tree = ProcessTree()
    yield tree
    tree.kill()


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Starts commands without waiting for their imports."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "RPR_"))}
    server = ForkServer(environment, tmp_path_factory.mktemp("fork_server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, tiny_overrides: tuple[str, ...], fork_server: ForkServer
) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("faults"), tiny_overrides, fork_server)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, small_data: object) -> Callable[..., Path]:
    """The folder of a run of four steps with some overrides, trained once; not to be changed."""

    @cache
    def run(*overrides: str) -> Path:
        runs = tmp_path_factory.mktemp("small")
        command = ["train", *TINY, *FOUR_STEPS, *overrides, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
        assert app.main(command) == 0
        return next(runs.glob("*/record.json")).parent

    return run


@pytest.fixture(scope="session")
def random_run(small_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights, for which translations differ, some end with EOS, and beams are full."""
    made = small_run("model.norm=post", "model.relative_defaults.clip_distance=16")
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("random") / "run"))
    for path in (folder / "checkpoints").glob("step*.ckpt"):  # all equal, so that averaging changes nothing
        checkpoint = torch.load(path, weights_only=True)
        draw = torch.Generator().manual_seed(2)
        weights = checkpoint["state_dict"]
        for name, weight in weights.items():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=draw) * (1.0 if "embedding" in name else 0.4))
        eos = weights["model.embedding_VM"][EOS]  # raise its logit, as random weights hardly ever predict it
        weights["model.decoder.0.around_feed_forward.norm.bias"].copy_(5 * eos / eos.square().sum())
        torch.save(checkpoint, path)
    return folder
