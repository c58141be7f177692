"""A home for tests of W&B without a key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rpr.runs import runtime
from rpr.tracking.wandb_client import tear_down


@pytest.fixture
def wandb_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home without a key, cache or settings; a run may write only into its own folder."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(runtime, "set_up", lambda hardware: None)
    monkeypatch.chdir(tmp_path / "here")
    yield
    tear_down()
    assert not list((tmp_path / "here").iterdir())
