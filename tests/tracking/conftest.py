"""Fixtures for tests of W&B: a home without a key, a fake server and a terminal."""

import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpr.runs import runtime
from rpr.tracking.wandb_client import tear_down
from tests.tracking.fake_wandb import FakeWandb


@pytest.fixture
def wandb_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home without a key, cache or settings; a run may write only into its own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(runtime, "set_up", lambda hardware: None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    tear_down()
    assert not list((tmp_path / "here").iterdir())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    """A fake server, with its address and key in the environment."""
    with FakeWandb() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal on stdin that is never typed at."""
    asked, answers = pty.openpty()
    with os.fdopen(answers, "r+b", buffering=0) as end, os.fdopen(end.fileno(), closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert sys.stdin.isatty()
        yield
    os.close(asked)
