"""Shared by all tests: a small synthetic corpus that is prepared once, a model that trains in seconds on it, and an
environment in which neither W&B, torchrun nor a debugging switch of the person who runs the tests can be felt. At the
end of a session each reason for which tests were not run is printed once, with their number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData, prepare
from rpr.validation import validate

SMALL_CORPUS = (
    "data.synthetic.num_train=2000",
    "data.synthetic.num_validation=24",
    "data.synthetic.num_test=24",
    "data.synthetic.num_long=12",
    "data.vocabulary_size=300",
)
TINY = (
    *SMALL_CORPUS,
    "logger=none",
    "model.norm=post",  # as in the paper's models
    "model.num_layers=1",
    "model.d_model=32",
    "model.num_heads=2",
    "model.d_ff=64",
    "optim.max_tokens_per_microbatch=512",
    "evaluation.validation_sentences=0",
    "evaluation.max_extra_length=5",
)
MARKERS = {
    "gpu": "make test-gpu",
    "slow": "make test-slow",
    "slurm": "make test-slurm",
}  # of tests that `make test` leaves out
NOT_RUN = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_RUN] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        marker = next((name for name in MARKERS if item.get_closest_marker(name)), None)
        if marker is not None:
            item.config.stash[NOT_RUN][f"{marker}: {MARKERS[marker]}"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = dict(session.config.stash[NOT_RUN])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has left out the same tests."""
    node.config.stash[NOT_RUN] |= Counter(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[NOT_RUN].copy()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        counts[reason.removeprefix("Skipped: ")] += 1
    for reason, number in counts.most_common():
        terminalreporter.write_line(f"not run: {number:4} ({reason})")


@pytest.fixture(autouse=True, scope="session")
def coverage_environment() -> dict[str, str]:
    """What makes coverage measure a process; taken away from the environment, as a command whose handler of a signal
    raises while coverage holds its lock would hang (measured: 7 of 100 translations that were told to stop).
    """
    names = [name for name in os.environ if name.startswith("COVERAGE_")]
    return {name: os.environ.pop(name) for name in names}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("WANDB_", "RPR_", "HYDRA_", "TORCHELASTIC_")) or name in (
            "RANK",
            "WORLD_SIZE",
            "COMP_LINE",
        ):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def _exact_products_in_fixtures() -> None:
    """Whatever a command has set that ran in this process before."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and on a busy machine wait for them (measured: 60 s, not 12)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _torch_as_it_is_at_the_start() -> Iterator[None]:
    """The same for a test, after the fixtures of its module."""
    torch.set_float32_matmul_precision("highest")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token cache for the whole session: it is keyed by content, so tests cannot disturb each other in it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tiny_overrides() -> tuple[str, ...]:
    """What makes a run tiny; without its folders."""
    return TINY


@pytest.fixture
def tiny(cache_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides of a run that takes seconds."""
    return [*TINY, f"data.cache_dir={cache_dir}", f"runs_dir={tmp_path / 'runs'}"]


@pytest.fixture
def tiny_config(tiny: list[str]) -> Callable[..., TrainConfig]:
    """The typed configuration of a tiny run with further overrides."""

    def make(*overrides: str) -> TrainConfig:
        return validate(TrainConfig, app.compose("train", [*tiny, *overrides]))

    return make


@pytest.fixture(scope="session")
def small_data(cache_dir: Path) -> PreparedData:
    """The small corpus, prepared."""
    settings: dict[str, Any] = app.compose("train", [*TINY, f"data.cache_dir={cache_dir}"])
    return prepare(validate(TrainConfig, settings).data)


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Any, Any], None]:
    """Two checkpoints, or parts of them, are the same, tensors bit for bit."""

    def same(one: Any, other: Any) -> None:
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
        elif isinstance(one, dict):
            assert one.keys() == other.keys()
            for key in one:
                same(one[key], other[key])
        elif isinstance(one, list | tuple):
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                same(a, b)
        else:
            assert one == other

    return same


@pytest.fixture
def submitted(tmp_path: Path) -> Callable[..., Path]:
    """The script that `rpr-cli train -m` with these words hands to SLURM, whose commands are replaced for a moment."""

    def script(monkeypatch: pytest.MonkeyPatch, *words: str) -> Path:
        commands = tmp_path / "slurm"
        commands.mkdir()
        for name, does in {
            "srun": "exit 1",
            "sbatch": f'cp "$1" {tmp_path}/script.sh; echo "sbatch: error: only looked at" >&2; exit 1',
        }.items():
            (commands / name).write_text(f"#!/bin/sh\n{does}\n")
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
        assert app.main(["train", "-m", *words, "logger=none", f"runs_dir={tmp_path / 'runs'}"]) == 1
        return tmp_path / "script.sh"

    return script
