"""Checked here: the flat keys by which W&B groups runs, against the configurations that they are of; that none of them
hides a section; what a run's configuration becomes where `wandb agent` has given it parts of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.config.train import TrainConfig
from rpr.tracking import naming, wandb_logger
from tests.tracking.fake_wandb import FakeWandb

Make = Callable[..., TrainConfig]


@pytest.mark.parametrize("overrides, variant", [
    (["position.clip_distance=4"], "relative, k = 4"),
    (["position=relative_keys", "position.clip_distance=0"], "keys only, k = 0"),
    (["position=relative_values"], "values only, k = 16"),
    (["position=absolute"], "absolute (sinusoidal)"),
    (["position=learned"], "absolute (learned)"),
    (["position=none"], "none"),
    (["position=absolute_and_relative"], "sinusoidal + relative, k = 16"),
    (["position.tables=shared_by_heads"], "relative, k = 16, shared by heads"),
    (["position.name=mine"], "mine (relative, k = 16)"),
    (["position.absolute=learned", "position.name=mine"], "mine (learned + relative, k = 16)"),
])  # fmt: skip
def test_variants_in_words(overrides: list[str], variant: str, tiny_config: Make) -> None:
    assert naming.variant(tiny_config(*overrides)) == variant


def test_seeds_share_a_variant_and_what_is_compared_does_not(tiny_config: Make) -> None:
    one, two = (naming.flat(tiny_config(f"seed={seed}")) for seed in (1, 2))
    assert {name for name in one if one[name] != two[name]} == {"seed", "run_id"}
    absolute = naming.flat(tiny_config("position=absolute"))
    assert absolute["k"] is None and absolute["tables"] is None


def test_no_flat_key_hides_a_section(tiny_config: Make) -> None:
    config = tiny_config()
    flat, sections = naming.flat(config), naming.sections(config, {})
    assert not flat.keys() & sections.keys()
    whole = json.loads(config.model_dump_json())
    assert {**sections, "seed": flat["seed"], "sweep": flat["sweep"]} == whole


@pytest.mark.usefixtures("wandb_home")
def test_what_an_agent_gives_hides_no_setting(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeWandb
) -> None:
    """W&B keeps an agent's own parameters: here the choice of a section, a setting in it, and a flat key."""
    given = {"position": "absolute", "optim.max_steps": 25, "seed": 1}
    lines = "".join(f"{name}:\n  value: {value}\n" for name, value in given.items())
    (tmp_path / "parameters.yaml").write_text("wandb_version: 1\n" + lines)
    agent = {"SWEEP_ID": "s1", "RUN_ID": "a1", "PROJECT": "rpr", "SWEEP_PARAM_PATH": str(tmp_path / "parameters.yaml")}
    for name, value in agent.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    config = tiny_config("position=absolute", "optim.max_steps=25", "logger=wandb")
    (tmp_path / "run").mkdir()
    wandb_logger.finish(wandb_logger.start(config, tmp_path / "run", synthetic=True), {}, failed=False)
    (run,) = server.runs.values()
    assert {name: run.config[name] for name in given} == given
    assert run.config["position.absolute"] == "sinusoidal" and run.config["variant"] == "absolute (sinusoidal)"
    assert {f"position.{name}" for name in config.position.model_dump()} <= run.config.keys()
    assert run.config["optim"]["max_steps"] == 25 and run.config["model"]["d_model"] == 32


def test_a_resumed_run_keeps_its_sections(tiny_config: Make) -> None:
    config = tiny_config()
    earlier: dict[str, Any] = {**naming.flat(config), **naming.sections(config, {})}
    assert naming.sections(config, earlier) == naming.sections(config, {})
