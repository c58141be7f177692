"""Overrides to settings: composes jobs, expands multiruns, and rejects secrets and paths outside conf/."""

from __future__ import annotations

import copy
import functools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.compose import hydra_bridge
from rpr.errors import ConfigError
from rpr.paths import choice_dirs, data_dir, schemes_dir

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import TrainConfig

# Variables that hold a secret, by the ends of their names (WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY), or by a
# password in their value (HTTPS_PROXY).
_SECRET = re.compile(r".*(_KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD)", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_SHORTEST_SECRET = 8  # characters; a shorter value may occur in a setting by chance
# `model=big`, `position@position.encoder=rope`, `seed=3`, `model.d_model=64`: a choice of a group of conf/, or a value.
# Not an addition (+), a deletion (~) or Hydra's own.
_CHOICE_OR_VALUE = re.compile(r"(?!hydra\b)[\w.]+(@[\w.]+)?=")
_NO_SIDE = re.compile(r"position@position\.(encoder|decoder)=null")
_BOTH_SIDES = re.compile(r"\+{0,2}position(\.(?!(encoder|decoder)\b)[\w.]+)?=")
_SIDE = re.compile(r"^position\.(encoder|decoder)=")
_DECODER_ONLY = re.compile(r"\+*model\.architecture=(['\"]?)decoder_only\1")
_OWN_CONFIG = ("--config-name", "-cn")


def quote_home(overrides: Sequence[str]) -> list[str]:
    """Quote values that begin with `~`, which Hydra's grammar does not know: cache_dir=~/cache."""
    value = re.compile(r"(?<=[=,])~[^,'\"\[\]{}()]*")
    quoted = [value.sub(lambda match: hydra_bridge.quote_value(match[0]), word) for word in overrides]
    return [word if word.startswith("-") else new for word, new in zip(overrides, quoted, strict=True)]


def typed_choices(overrides: Sequence[str]) -> list[str]:
    """Rewrite `position.encoder=rope` in Hydra's syntax for a group's choice in another package,
    `position@position.encoder=rope`, and drop `position.encoder=null`, which is the default, with what it replaces;
    from a configuration of the user's own, which may have another default, the scheme is deleted. Raises ConfigError
    for a setting of both stacks if each has its own scheme.
    """
    rewritten = [_SIDE.sub(r"position@position.\1=", word) for word in quote_home(overrides)]
    last = {override_key(word): word for word in rewritten}
    without = {key for key, word in last.items() if _NO_SIDE.fullmatch(word)}
    rewritten = [word for word in rewritten if not _NO_SIDE.fullmatch(word) and override_key(word) not in without]
    sides = {override_key(word) for word in rewritten} & {"position@position.encoder", "position@position.decoder"}
    both = next((word for word in rewritten if _BOTH_SIDES.match(word)), None)
    if len(sides) == 2 and both is not None:
        key = override_key(both)
        instead = f"write {key.replace('.', '.encoder.', 1)} or {key.replace('.', '.decoder.', 1)}"
        instead = "leave it out" if key in ("position", "position.name") else instead
        raise ConfigError(f"{key}: has no effect, since encoder and decoder have positions of their own; {instead}")
    return [*rewritten, *(f"~{key}" for key in sorted(without) if _choose_config(rewritten))]


def check_read(unread: Iterable[tuple[str, str]], overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override of one of the settings that are not read, which come with the reason."""
    keys = [override_key(word) for word in overrides]
    for setting, why in unread:
        if typed := next((key for key in keys if f"{key}.".startswith(f"{setting}.")), None):
            raise ConfigError(f"{typed}: has no effect {why}; leave it out")


def _choose_corpus(overrides: Sequence[str]) -> bool:
    return _choose_config(overrides) or any(override_key(word).partition("@")[0] == "data" for word in overrides)


def _choose_config(overrides: Sequence[str]) -> bool:
    return any(word.startswith(_OWN_CONFIG) for word in overrides)


def _choose_decoder_only(overrides: Sequence[str]) -> bool:
    """By the last word on it."""
    architectures = [word for word in overrides if override_key(word) == "model.architecture"]
    return bool(architectures) and _DECODER_ONLY.fullmatch(architectures[-1]) is not None


def with_corpus(overrides: Sequence[str]) -> list[str]:
    """Words of train, with data=python_library for a decoder-only model if they choose neither a corpus nor a
    configuration of the user's own.
    """
    at = next((at for at, word in enumerate(overrides) if _DECODER_ONLY.fullmatch(word)), None)
    if at is None or not _choose_decoder_only(overrides) or _choose_corpus(overrides):
        return [*overrides]
    return [*overrides[:at], "data=python_library", *overrides[at:]]


def expand_multirun(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun: the product of all comma lists, each `with_corpus`."""
    return [with_corpus(job) for job in hydra_bridge.expand(typed_choices(overrides))]


def check_choices(overrides: Sequence[str]) -> None:
    """Raises ConfigError for recipe=, a choice outside its group's folder, and several: Hydra would merge
    `model=../position/none`, and `position=[rope,none]`.
    """
    groups = {path.name for path in data_dir("conf").iterdir() if path.is_dir()}
    for override in overrides:
        group, _, choice = override.lstrip("+~").partition("=")
        group = group.partition("@")[0]
        if group == "recipe":
            raise ConfigError("recipe: selected by model= and data=; override single settings, e.g. model.dropout=0.1")
        if group in groups and choice.strip("'\"").startswith("["):
            key = override.partition("=")[0].partition("@")[2] or group
            layers = f"; layers in turn: {key}=pattern '{key}.layers={choice}'" if group == "position" else ""
            raise ConfigError(f"{key}: {choice} would mix the settings of several choices; give one{layers}")
        choices = re.split(r"[\[\],'\"\s]+", choice)
        if group in groups and any({"", ".."} & {*word.split("/")[:-1]} for word in choices):
            available = choices_of(group)
            raise ConfigError(f"{group}: {choice} is outside conf/{group}/; choose one of {', '.join(available)}")


def choices_of(group: str, config_dir: Path | None = None) -> list[str]:
    """The choices of conf/GROUP/; names with a leading underscore are base files, not choices."""
    folders = [data_dir("conf"), *choice_dirs(config_dir)]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("[!_]*.yaml")})


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Compose the settings of one job of a command, as plain values; raises ConfigError as `to_plain`."""
    overrides = typed_choices(overrides)
    check_choices(overrides)
    choices, entries = _choices(overrides, config_dir), entries_of_layers(name, overrides, config_dir)
    if not all(_CHOICE_OR_VALUE.match(word) for word in overrides):
        return to_plain(hydra_bridge.compose(name, [*overrides, *entries], config_dir))
    settings = copy.deepcopy(_of_choices(name, (*choices, *entries), config_dir))
    hydra_bridge.set_values(settings, [word for word in overrides if word not in choices])
    return to_plain(settings)


def _choices(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """The overrides that choose a file of a group, and the one that says where there are more of them."""
    folders = [data_dir("conf"), *choice_dirs(config_dir)]
    choosing = {"hydra.searchpath"} | {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}
    return [word for word in overrides if override_key(word).partition("@")[0] in choosing]


def entries_of_layers(name: str, overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """The choices that the layers of a pattern name, as overrides: `position.layers=[rope,none]` needs position=rope at
    position.entries.rope. Names may end in a number: `rope_1` and `rope_2` are two position=rope with settings of their
    own.
    """
    known = choices_of("position", config_dir)
    settings = _of_choices(name, tuple(_choices(overrides, config_dir)), config_dir)
    entries = []
    for path in ("position", "position.encoder", "position.decoder"):
        section = functools.reduce(lambda part, key: part and part.get(key), path.split("."), settings)
        if section and "entries" in section:
            given = [word.partition("=")[2] for word in overrides if override_key(word) == f"{path}.layers"]
            for entry in dict.fromkeys(re.findall(r"[\w-]+", given[-1]) if given else section["layers"]):
                choice = entry if entry in known else re.sub(r"_\d+$", "", entry)
                entries.append(f"+position@{path}.entries.{entry}={choice}")
    return entries


@functools.lru_cache(64)
def _of_choices(name: str, choices: tuple[str, ...], config_dir: Path | None) -> Any:
    """Settings before values are set. Reading conf/ takes nearly all the time: jobs with the same choices share it."""
    return hydra_bridge.compose(name, choices, config_dir)


def compose_train(
    overrides: Sequence[str], config_dir: Path | None = None, config_name: str | None = None
) -> TrainConfig:
    """Compose and validate one job of train, without a comma list. Raises ConfigError for invalid settings, RprError if
    it cannot start from the run that `from` names.
    """
    from rpr.config.train import TrainConfig, too_few_samples
    from rpr.config.unread import unread
    from rpr.validation import validate

    settings = compose(config_name or "train", overrides, config_dir)
    run = settings.get("from")
    config = validate(TrainConfig, {**settings, "from": None})
    check_read(unread(config), overrides)
    chosen = _choose_decoder_only(overrides) or _choose_corpus(overrides)
    by_file = config.model.architecture == "decoder_only" and config_name in (None, "train")
    if by_file and config.data.synthetic and not chosen:
        raise ConfigError(
            f"data: model={config.model.name} is decoder-only; choose data=python_library, which has documents to "
            "continue, or data=synthetic, which has pairs, for this model too"
        )
    if problem := too_few_samples(config.evaluation.bootstrap_samples):
        raise ConfigError(f"evaluation.{problem}")
    for scheme in (config.position.encoder, config.position.decoder):
        if problem := scheme.without_effect(config.longest_row, config.longest_context):
            raise ConfigError(f"position.{problem}")
    if run is None:
        return config
    from rpr.runs.origin import origin_of  # torch

    return config.model_copy(update={"origin": origin_of(config, str(run))})


def to_plain(settings: Any) -> dict[str, Any]:
    """Settings as plain Python values. Raises ConfigError if a mandatory value is missing (`???`), or a value contains
    a secret of the environment (as ${oc.env:WANDB_API_KEY} would).
    """
    from omegaconf import OmegaConf

    given = _texts(OmegaConf.to_container(settings, resolve=False), "")  # missing_keys takes ten times as long
    missing = sorted(key for key, text in given if text == "???")
    if missing:
        example = "run=runs/NAME-HASH" if missing[0] == "run" else f"{missing[0]}=..."
        raise ConfigError(f"{missing[0]}: required; add {example}")
    values: dict[str, Any] = OmegaConf.to_container(settings, resolve=True)  # type: ignore[assignment]
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST_SECRET and (_SECRET.fullmatch(name) or _PASSWORD.search(value))
    }
    for key, text in _texts(values, ""):
        if holding := next((name for secret, name in secrets.items() if secret in text), None):
            raise ConfigError(
                f"{key}: contains the value of {holding}; settings are stored in records and sent to W&B, so they must "
                "not contain secrets: leave it in the environment"
            )
    return values


def _texts(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string among the settings, with its dotted key."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, Mapping | list):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _texts(value, f"{path}.{key}" if path else str(key))


def override_key(override: str) -> str:
    """The key of the setting that an override changes."""
    return override.partition("=")[0].lstrip("+~")


def recorded_command(overrides: Sequence[str], config_dir: Path | None, config_name: str | None = None) -> str:
    """As `train_command`, for a record: what belongs to this call alone is left out."""
    own = ("sweep", "again", "stop_after_minutes")
    return train_command([word for word in overrides if override_key(word) not in own], config_dir, config_name)


def train_command(overrides: Sequence[str], config_dir: Path | None = None, config_name: str | None = None) -> str:
    """The command line that trains with these settings, for a shell."""
    flags = {"--config-dir": config_dir, "--config-name": config_name}
    given = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    if (folder := schemes_dir()) is not None:
        given.append(f"schemes_dir={folder}")
    return shlex.join(["rpr-cli", "train", *given, *overrides])
