"""Checked here: every choice of conf/ composes and validates together with every other; the paper's settings against
numbers copied by hand from the paper; every refusal by its message; where defaults stand; what a run's identity hangs
on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rpr.cli import app
from rpr.config import commands as commands_config
from rpr.config import train as config
from rpr.config.train import TrainConfig
from rpr.errors import ConfigError
from rpr.paths import data_dir
from rpr.validation import validate

CONF = data_dir("conf")


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))


GROUPS = {group: choices(group) for group in ("model", "position", "hardware", "data", "optim", "logger", "evaluation")}
LOCAL_ONLY = {"multi30k_en_fr", "wmt_mini_en_de", "wmt_mini_en_fr"}  # not on a hub: refused without data.path
GENERATED = {"synthetic", "copy", "reverse", "duplicate", "addition", "scan_length"}  # refused with data.path


def train(*overrides: str) -> TrainConfig:
    return validate(TrainConfig, app.compose("train", list(overrides)))


Choice = tuple[str, str]


def pairs(row: dict[str, str]) -> set[tuple[Choice, Choice]]:
    return set(itertools.combinations(sorted(row.items()), 2))


def combinations() -> Iterator[dict[str, str]]:
    """Rows in which each choice meets each choice of the other groups: the next one has, beside the first pair that is
    missing, the choices with which most of the missing ones meet.
    """
    missing = set.union(*(pairs(dict(zip(GROUPS, row, strict=True))) for row in itertools.product(*GROUPS.values())))
    while missing:
        row = dict(min(missing))
        for group in (name for name in GROUPS if name not in row):
            row[group] = max(GROUPS[group], key=lambda choice: len(pairs({**row, group: choice}) & missing))
        missing -= pairs(row)
        yield row


def test_every_choice_composes_and_validates_with_every_other() -> None:
    identities = set()
    rows = list(combinations())
    for row in rows:
        path = ["data.path=/a/folder"] if row["data"] in LOCAL_ONLY else []
        made = train(*(f"{group}={choice}" for group, choice in row.items()), *path)
        for group in ("model", "position", "hardware", "data", "optim"):
            assert getattr(made, group).name == row[group], row
        assert made.logger.mode == {"wandb": "online", "wandb_offline": "offline", "none": "none"}[row["logger"]]
        identities.add(made.run_id)
    assert len(identities) == len({tuple(sorted(row.items() - {("logger", row["logger"])})) for row in rows})


@pytest.mark.parametrize(
    "command, overrides",
    [
        ("evaluate", ["run=runs/x", "hardware=1xgpu"]),
        ("translate", ["run=runs/x", "hardware=cpu"]),
        ("report", ["sweep=quick"]),
        ("report", ["run=runs/x", "hardware=1xgpu"]),
        *[("prepare", [f"data={name}", "data.path=/x"]) for name in GROUPS["data"] if name not in GENERATED],
        *[("prepare", [f"data={name}"]) for name in GENERATED],
        *[("bench", [f"model={name}"]) for name in GROUPS["model"]],
        *[("export", ["run=runs/x", f"format={name}"]) for name in ("safetensors", "ctranslate2")],
        ("verify", ["run=runs/x", "hardware=1xgpu"]),
        ("compare", ["runs=[a,b]"]),
        ("compare", ["sweep=quick"]),
    ],
)
def test_the_other_commands_compose_and_validate(command: str, overrides: list[str]) -> None:
    validate(app._config_class(command), app.compose(command, overrides))


def test_every_command_has_its_file_in_conf_and_every_file_its_command() -> None:
    files = {path.stem for path in CONF.glob("*.yaml")} - {"shared"}
    assert files == set(app.COMMANDS) - {"sweep"}  # a sweep is a multirun of train


# --- the paper's settings, by hand from section 4 of the paper (and PAPER.md where tensor2tensor fills a gap)


def paper_recipe(made: TrainConfig) -> None:
    """What base and big have in common."""
    optim, model = made.optim, made.model
    assert (optim.adam_beta1, optim.adam_beta2, optim.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (optim.warmup_steps, optim.learning_rate_scale, optim.label_smoothing) == (4000, 1.0, 0.1)
    assert (optim.microbatches_per_step, optim.max_tokens_per_microbatch) == (
        8,
        4096,
    )  # 8 GPUs
    assert optim.gradient_clip_norm is None
    assert (model.num_layers, model.d_model // model.num_heads) == (6, 64)
    assert (model.norm, model.norm_epsilon) == ("post", 1e-6)
    assert (made.data.name, made.data.vocabulary_size) == ("wmt14_en_de", 32768)
    assert (made.data.validation_name, made.data.test_name) == ("newstest2013", "newstest2014")
    assert (made.evaluation.beam_size, made.evaluation.length_penalty) == (4, 0.6)
    assert (made.position.relative_keys, made.position.relative_values) == (True, True)
    assert made.position.absolute == "none"
    assert (made.hardware.accelerator, made.hardware.num_ranks) == ("gpu", 8)


def test_the_papers_big_model() -> None:
    made = train("model=big", "hardware=8xgpu")
    paper_recipe(made)
    model = made.model
    assert (model.d_model, model.num_heads, model.d_ff, model.dropout) == (1024, 16, 4096, 0.3)
    assert (made.position.clip_distance, made.position.tables) == (8, "shared_by_heads")
    assert made.optim.max_steps == 300_000
    assert (made.optim.average_checkpoints, made.optim.keep_checkpoints) == (20, 20)
    assert (made.optim.checkpoint_every_n_minutes, made.optim.checkpoint_every_n_steps) == (10, None)


def test_the_papers_big_model_has_less_dropout_for_french() -> None:
    assert train("model=big", "data=wmt14_en_fr").model.dropout == 0.1
    assert train("model=big", "data=wmt14_en_fr", "model.dropout=0.2").model.dropout == 0.2
    assert train("model=base", "data=wmt14_en_fr").model.dropout == 0.1
    assert train("model=big", "data=wmt14_en_de").model.dropout == 0.3
    with pytest.raises(ConfigError, match=r"^recipe: selected by model= and data=; override single settings"):
        train("recipe=big_wmt14_en_fr")


def test_the_papers_base_model() -> None:
    made = train("model=base", "hardware=8xgpu")
    paper_recipe(made)
    model = made.model
    assert (model.d_model, model.num_heads, model.d_ff, model.dropout) == (512, 8, 1024, 0.1)
    assert (made.position.clip_distance, made.position.tables) == (16, "per_head")
    assert made.optim.max_steps == 100_000
    assert made.optim.average_checkpoints == 1


@pytest.mark.parametrize(
    "position, absolute, keys, values",
    [
        ("absolute", "sinusoidal", False, False),  # Table 1, baseline
        ("relative", "none", True, True),  # Table 1 and 2; Table 3 yes, yes
        ("relative_keys", "none", True, False),  # Table 3
        ("relative_values", "none", False, True),  # Table 3
        ("none", "none", False, False),  # Table 3 no, no
        ("absolute_and_relative", "sinusoidal", True, True),  # section 4.2
        ("learned", "learned", False, False),
    ],
)
def test_the_rows_of_the_papers_tables(position: str, absolute: str, keys: bool, values: bool) -> None:
    made = train("model=base", f"position={position}").position
    assert (made.absolute, made.relative_keys, made.relative_values) == (absolute, keys, values)


def test_what_a_person_types_wins_over_what_the_model_brings() -> None:
    assert train("model=big", "data=multi30k_en_de").data.name == "multi30k_en_de"
    assert train("data=multi30k_en_de", "model=big").data.name == "multi30k_en_de"
    assert train("model=big", "optim=tiny").optim.max_steps == 700
    assert train("model=big", "position.clip_distance=0").position.clip_distance == 0
    assert train("model=big", "position.tables=per_head").position.tables == "per_head"
    assert train().model.name == "tiny" and train().data.name == "synthetic" and train().optim.name == "tiny"


def test_hardware_changes_nothing_that_is_learned() -> None:
    """All but the hardware section is the same on every machine: what a step learns from belongs to the recipe."""
    here = train("model=big").model_dump(exclude={"hardware"})
    for hardware in GROUPS["hardware"]:
        assert train("model=big", f"hardware={hardware}").model_dump(exclude={"hardware"}) == here


# --- refusals --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return app.compose("train", [])


def changed(plain: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    settings = deepcopy(plain)
    for key, value in changes.items():
        *path, last = key.split(".")
        section = settings
        for part in path:
            section = section[part]
        section[last] = value
    return settings


def test_three_problems_at_once_are_told_in_one_line(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^model\.dropout: .*; seed: .*"):
        validate(TrainConfig, changed(plain, {"model.dropout": -1, "seed": "x"}))


@pytest.mark.parametrize("key", ["model", "model.d_ff", "data.synthetic.seed", "seed"])
def test_a_missing_setting_is_named(plain: dict[str, Any], key: str) -> None:
    settings = deepcopy(plain)
    *path, last = key.split(".")
    section = settings
    for part in path:
        section = section[part]
    del section[last]
    with pytest.raises(ConfigError, match=rf"^{key}: missing; every default is in conf/$"):
        validate(TrainConfig, settings)


def test_legal_at_the_edge(plain: dict[str, Any]) -> None:
    """k = 0 is a row of the paper's Table 2; fewer or more devices than units are both legal where shares are equal."""
    validate(TrainConfig, changed(plain, {"position.clip_distance": 0, "model.dropout": 0, "seed": 0}))
    for devices in (1, 2, 4, 8, 16):
        validate(TrainConfig, changed(plain, {"hardware.devices": devices, "optim.microbatches_per_step": 8}))
    assert validate(TrainConfig, changed(plain, {"hardware.precision": 32})).hardware.precision == "32"


@pytest.mark.parametrize("overrides", [["seed=1", "model=bgi"], ["position.clip_distance=[1]"]])
def test_a_refusal_is_the_users_error(overrides: list[str]) -> None:
    with pytest.raises(Exception) as error:
        train(*overrides)
    text = app.format_user_error(error.value)
    assert text is not None and "\n" not in text


# --- form ------------------------------------------------------------------------------------------


def sections() -> list[type[config.StrictModel]]:
    assert commands_config  # its sections are among them once it is imported
    return config.StrictModel.__subclasses__()


def test_no_default_value_in_the_typed_configuration() -> None:
    """Two defaults for one key were JoeyNMT's trouble: here every field is required, so every default is in conf/."""
    assert len(sections()) > 10
    optional = [f"{s.__name__}.{n}" for s in sections() for n, f in s.model_fields.items() if not f.is_required()]
    assert optional == []


def test_the_configuration_is_frozen_and_closed(plain: dict[str, Any]) -> None:
    for section in sections():
        assert section.model_config["frozen"] and section.model_config["extra"] == "forbid", section
    made = validate(TrainConfig, plain)
    with pytest.raises(ValidationError, match="frozen"):
        made.seed = 2
    with pytest.raises(ValidationError, match="frozen"):
        made.model.dropout = 0.5


class OnceOnly(yaml.SafeLoader):
    """A YAML reader that refuses a key given twice (YAML's own takes the last)."""


def _mapping(loader: OnceOnly, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key twice: {keys} {node.start_mark}"
    return dict(loader.construct_pairs(node, deep=True))


OnceOnly.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), OnceOnly)
    return loaded


def test_every_key_has_its_value_once() -> None:
    """Within a file no key twice; a command's own keys are neither those of shared.yaml nor those of a group."""
    for path in CONF.rglob("*.yaml"):
        assert isinstance(read_yaml(path), dict), path
    shared = set(read_yaml(CONF / "shared.yaml")) - {"defaults", "hydra"}
    for command in set(app.COMMANDS) - {"sweep"}:
        content = read_yaml(CONF / f"{command}.yaml")
        own = set(content) - {"defaults"}
        groups = {key for entry in content["defaults"] if isinstance(entry, dict) for key in entry}
        assert not own & shared and not own & groups, command


def test_every_file_of_conf_says_first_what_it_is() -> None:
    for path in [*CONF.rglob("*.yaml"), *data_dir("sweeps").glob("*.yaml")]:
        assert path.read_text(encoding="utf-8").startswith("# "), path


# --- identity --------------------------------------------------------------------------------------


def test_the_run_id_hangs_on_what_decides_the_result(plain: dict[str, Any]) -> None:
    first = validate(TrainConfig, plain)
    assert validate(TrainConfig, deepcopy(plain)).run_id == first.run_id
    assert len(first.run_id) == 8 and int(first.run_id, 16) >= 0
    for key, value in {
        "name": "x", "sweep": "y", "runs_dir": "/z", "data.cache_dir": "/c", "logger.mode": "none",
        "logger.project": "p", "logger.tags": ["t"],
    }.items():  # fmt: skip
        assert validate(TrainConfig, changed(plain, {key: value})).run_id == first.run_id, key
    deciding = {
        "seed": 2, "model.dropout": 0.2, "model.num_layers": 3, "position.clip_distance": 3,
        "position.tables": "shared_by_heads", "position.max_positions": 512, "data.train_limit": 100,
        "data.synthetic.seed": 2, "optim.max_steps": 701, "optim.microbatches_per_step": 2,
        "optim.average_checkpoints": 2,
        "hardware.precision": "bf16", "hardware.threads": 1, "evaluation.beam_size": 5,
    }  # fmt: skip
    ids = {key: validate(TrainConfig, changed(plain, {key: value})).run_id for key, value in deciding.items()}
    assert len({first.run_id, *ids.values()}) == 1 + len(deciding), ids


def test_the_runs_folder_is_named_after_its_choices() -> None:
    made = train("position.clip_distance=4", "seed=3")
    assert made.label == "synthetic-tiny-relative-k4-s3"
    assert made.run_dir_name == f"synthetic-tiny-relative-k4-s3-{made.run_id}"
    assert train("position=absolute").label == "synthetic-tiny-absolute-s1"  # no k where there is none
    assert train("name=mine").label == "mine"


def test_a_saved_configuration_reads_back_as_itself() -> None:
    """record.json, config.yaml and a worker's job.json carry model_dump(mode="json")."""
    made = train("model=big", "hardware=8xgpu", "logger.tags=[a,b]")
    again = validate(TrainConfig, yaml.safe_load(yaml.safe_dump(made.model_dump(mode="json"))))
    assert again == made and again.run_id == made.run_id
