"""Overrides to settings: one job composed, or many; multiruns expanded; secrets and paths out of conf/ refused."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.compose import hydra_bridge
from rpr.errors import ConfigError
from rpr.paths import data_dir

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import TrainConfig

# Variables that hold a secret, by the ends of their names (WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY), or by a
# password in their value (HTTPS_PROXY).
_SECRET = re.compile(r".*(API_KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_SHORTEST_SECRET = 8  # characters; a shorter value may be in a setting by chance
# `seed=3`, `model.d_model=64`: a value, not a choice of conf/ nor anything added, taken away or said about Hydra.
_VALUE = re.compile(r"(seed|name|sweep|runs_dir|(?!hydra\.)\w+(\.\w+)+)=")
_CHOICE = re.compile(r"(?!hydra=)\w+(@[\w.]+)?=")
_NO_SIDE = re.compile(r"position\.(encoder|decoder)=null")
_BOTH_SIDES = re.compile(r"position\.(?!(encoder|decoder|name)\b)\w+=")
_SIDE = re.compile(r"^position\.(encoder|decoder)=")


def typed_choices(words: Sequence[str]) -> list[str]:
    """`position.encoder=rope` as Hydra writes a group's choice for another place, `position@position.encoder=rope`;
    without `position.encoder=null`, which is what the encoder has anyway.

    Raises:
        ConfigError: a setting for both stacks, where each has a choice of its own.
    """
    found = [_SIDE.sub(r"position@position.\1=", word) for word in words if not _NO_SIDE.fullmatch(word)]
    sides = {key_of(word) for word in found} & {"position@position.encoder", "position@position.decoder"}
    both = next((word for word in found if _BOTH_SIDES.match(word)), None)
    if len(sides) == 2 and both is not None:
        key = key_of(both)
        raise ConfigError(
            f"{key}: decides nothing, as encoder and decoder have positions of their own; write "
            f"{key.replace('.', '.encoder.', 1)} or {key.replace('.', '.decoder.', 1)}"
        )
    return found


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun: a comma list is swept over (the product of all lists)."""
    return hydra_bridge.expand(typed_choices(overrides))


def refuse_ways_out(overrides: Sequence[str]) -> None:
    """A choice is a file of its group's folder: Hydra would follow `model=../position/none`, and merge it in anywhere.

    Raises:
        ConfigError: a choice that leads elsewhere.
    """
    groups = {path.name: path for path in data_dir("conf").iterdir() if path.is_dir()}
    for override in overrides:
        group, _, choice = override.lstrip("+~").partition("=")
        group = group.partition("@")[0]
        if group == "recipe":
            raise ConfigError("recipe: follows from model= and data=; override single settings, like model.dropout=0.1")
        words = re.split(r"[\[\],'\"\s]+", choice)
        if group in groups and any({"", ".."} & {*word.split("/")[:-1]} for word in words):
            found = choices_of(groups[group].name)
            raise ConfigError(f"{group}: {choice} leads out of conf/{group}/; give one of {', '.join(found)}")


def choices_of(group: str) -> list[str]:
    """The choices of conf/GROUP/; a name with an underscore before it is what others inherit from."""
    return sorted(path.stem for path in (data_dir("conf") / group).glob("[!_]*.yaml"))


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """The settings of one job of a command, as plain values.

    Raises:
        ConfigError: as `plain`.
    """
    return plain(_composed(name, overrides, config_dir))


def _composed(name: str, overrides: Sequence[str], config_dir: Path | None) -> Any:
    overrides = typed_choices(overrides)
    refuse_ways_out(overrides)
    return hydra_bridge.compose(name, overrides, config_dir)


def training(overrides: Sequence[str]) -> TrainConfig:
    """One job of train, composed and validated.

    Raises:
        ConfigError: its settings are refused.
    """
    from rpr.config.train import TrainConfig
    from rpr.validation import validated

    return validated(TrainConfig, compose("train", overrides))


def trainings(jobs: Sequence[Sequence[str]], config_dir: Path | None = None) -> list[TrainConfig]:
    """Jobs of train, none with a comma list, each composed and validated.

    Nearly all the time is spent on reading conf/ (50 ms a job), so it is read once for all jobs with the same choices,
    and their values are set afterwards.

    Raises:
        ConfigError: the settings of a job are refused.
    """
    from rpr.config.train import TrainConfig
    from rpr.validation import validated

    read: dict[tuple[str, ...], Any] = {}
    made = []
    for job in jobs:
        values = [word for word in job if _VALUE.match(word)]
        choices = tuple(word for word in job if not _VALUE.match(word))
        if not all(_CHOICE.match(word) for word in choices):
            made.append(validated(TrainConfig, compose("train", job, config_dir)))
            continue
        if choices not in read:
            read[choices] = _composed("train", choices, config_dir)
        settings = copy.deepcopy(read[choices])
        hydra_bridge.set_values(settings, values)
        made.append(validated(TrainConfig, plain(settings)))
    return made


def plain(settings: Any) -> dict[str, Any]:
    """Settings as plain Python values; a mandatory one that is missing is refused, and so is a secret among them.

    Raises:
        ConfigError: a value is still `???`, or holds a secret of the environment (that of ${oc.env:WANDB_API_KEY}).
    """
    from omegaconf import OmegaConf

    missing = sorted(OmegaConf.missing_keys(settings))
    if missing:
        raise ConfigError(f"{missing[0]}: has no default and was not given; add {missing[0]}=...")
    values: dict[str, Any] = OmegaConf.to_container(settings, resolve=True)  # type: ignore[assignment]
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST_SECRET and (_SECRET.fullmatch(name) or _PASSWORD.search(value))
    }
    for key, text in _texts(values, ""):
        if holding := next((name for secret, name in secrets.items() if secret in text), None):
            raise ConfigError(
                f"{key}: it holds the value of {holding}; settings are written into records and sent to W&B, so no "
                "secret may be among them: leave it in the environment"
            )
    return values


def _texts(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text among settings, with its dotted key."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, Mapping | list):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _texts(value, f"{path}.{key}" if path else str(key))


def key_of(override: str) -> str:
    """The setting that an override is about."""
    return override.partition("=")[0].lstrip("+~")
