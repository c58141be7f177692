"""Processes of the command line, looked at from outside, and small runs that it has trained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rpr.cli import app
from rpr.config.train import TrainConfig
from tests.conftest import TINY
from tests.system.faulted_world import World
from tests.system.faults import Starter

SCRIPT = Path(sys.executable).with_name("rpr-cli")
FOUR_STEPS = (
    "optim.max_steps=4", "optim.warmup_steps=4", "optim.checkpoint_every_n_steps=2", "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[]", "hardware.threads=1", "model.relative_defaults.clip_distance=3",
)  # fmt: skip
Config = Callable[..., TrainConfig]  # what `tiny_config` gives
Same = Callable[[Any, Any], None]  # `assert_same`
WaitFor = Callable[[Callable[[], bool], float], bool]


class Family:
    """All living processes that descend from one command: they have its mark in their environment."""

    def __init__(self) -> None:
        self.mark = uuid4().hex

    @property
    def environment(self) -> dict[str, str]:
        """For the command."""
        return {**os.environ, "OMP_NUM_THREADS": "1", "RPR_TEST_MARK": self.mark}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """`rpr-cli`, started. It hears Ctrl-C even where the tests themselves run in the background."""
        return subprocess.Popen(
            [SCRIPT, *arguments],
            env=self.environment | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def train(self, *arguments: str) -> subprocess.Popen[bytes]:
        """`rpr-cli train`, started."""
        return self.start("train", *arguments)

    def living(self) -> dict[int, str]:
        """Process numbers with command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"RPR_TEST_MARK={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                if ") Z " in (folder / "stat").read_text():  # dead, only not yet waited for
                    continue
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # gone meanwhile
                continue
        return found

    def one(self, words: str) -> int:
        """One whose command line has these words."""
        return next(pid for pid, line in self.living().items() if words in line)

    def kill(self) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def family() -> Iterator[Family]:
    processes = Family()
    yield processes
    processes.kill()


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """Commands that start at once: their imports are done."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "RPR_"))}
    starter = Starter(environment, tmp_path_factory.mktemp("starter"))
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: tuple[str, ...], starter: Starter) -> World:
    """A folder in which commands are hit by faults."""
    return World(tmp_path_factory.mktemp("faults"), tiny_overrides, starter)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, small_data: object) -> Callable[..., Path]:
    """The folder of a run of four steps with such settings, trained once; not to be changed."""

    @cache
    def run(*overrides: str) -> Path:
        runs = tmp_path_factory.mktemp("small")
        command = ["train", *TINY, *FOUR_STEPS, *overrides, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
        assert app.main(command) == 0
        return next(runs.glob("*/record.json")).parent

    return run


@pytest.fixture(scope="session")
def wait_for() -> WaitFor:
    """Whether a condition came true within some seconds."""

    def wait(condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.002)
        return condition()

    return wait
