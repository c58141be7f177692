"""For tests of what goes to W&B: a home without a key, and a server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rpr.runs import runtime
from rpr.tracking.wandb_client import tear_down
from tests.tracking.fake_wandb import FakeWandb


@pytest.fixture
def wandb_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No key, no cache and no settings of the person who runs the tests; process-wide settings left alone."""
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
    assert not list((tmp_path / "here").iterdir())  # nothing beside the run's folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    """A server, and an environment in which W&B finds it and a key."""
    with FakeWandb() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
