"""Overrides to settings: composes jobs, expands multiruns, and rejects secrets."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
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
_STACK = re.compile(r"^\+{0,2}(?:position@)?(position\.(?:encoder|decoder))=(.*)", re.DOTALL)
_ENTRY = re.compile(r"\+{0,2}position(\.encoder|\.decoder)?\.entries\.")


def typed_choices(overrides: Sequence[str]) -> list[str]:
    """Rewrite `position.encoder=rope` in Hydra's syntax for a group's choice in another package,
    `position@position.encoder=rope`, and `position.encoder=null` as its deletion; the last one for a stack counts.
    """
    stacks = {match[1]: match[2] for word in overrides if (match := _STACK.fullmatch(word))}
    choices = [f"~position@{at}" if name.lower() == "null" else f"position@{at}={name}" for at, name in stacks.items()]
    return [*(word for word in overrides if not _STACK.fullmatch(word)), *choices]


def expand_multirun(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun: the product of all comma lists."""
    _check_choices(overrides)
    return hydra_bridge.expand([_STACK.sub(r"position@\1=\2", word) for word in overrides])  # null: in each job


def _check_choices(overrides: Sequence[str]) -> None:
    """Raises ConfigError for several choices or settings in place of one: Hydra would merge `position=[rope,none]` and
    `position={max_positions:9}` into the default choice.
    """
    for word in overrides:
        key, _, choice = word.partition("=")
        group, _, package = key.lstrip("+~").partition("@")
        if choice.strip("'\"").startswith(("[", "{")) and "." not in group and (data_dir("conf") / group).is_dir():
            name = package or group
            layers = f"; layers in turn: {name}=pattern '{name}.layers=[A,B]'" if group == "position" else ""
            raise ConfigError(f"{name}: {choice} would mix the settings of several choices; give one{layers}")


def choices_of(group: str, config_dir: Path | None = None) -> list[str]:
    """The choices of conf/GROUP/; names with a leading underscore are base files, not choices."""
    folders = [data_dir("conf"), *choice_dirs(config_dir)]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("[!_]*.yaml")})


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """The settings of one job of a command, as plain values. Raises ConfigError if a mandatory value is missing
    (`???`), or a value contains a secret of the environment (as ${oc.env:WANDB_API_KEY} would).
    """
    from omegaconf import OmegaConf

    from rpr.records.record import flat

    settings = _compose_settings(name, overrides, config_dir)
    # 1. No value is missing (missing_keys of OmegaConf takes ten times as long).
    given: dict[str, Any] = OmegaConf.to_container(settings, resolve=False)  # type: ignore[assignment]
    if missing := sorted(key for key, value in flat(given).items() if value == "???"):
        example = "run=runs/NAME-HASH" if missing[0] == "run" else f"{missing[0]}=..."
        raise ConfigError(f"{missing[0]}: required; add {example}")
    # 2. None contains a secret.
    values: dict[str, Any] = OmegaConf.to_container(settings, resolve=True)  # type: ignore[assignment]
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST_SECRET and (_SECRET.fullmatch(name) or _PASSWORD.search(value))
    }
    for key, value in flat(values).items():
        text = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        if holding := next((name for secret, name in secrets.items() if secret in text), None):
            raise ConfigError(
                f"{key}: contains the value of {holding}; settings are stored in records and sent to W&B, so they must "
                "not contain secrets: leave it in the environment"
            )
    return values


def as_yaml(name: str, overrides: Sequence[str], config_dir: Path | None = None, *, resolve: bool = False) -> str:
    """The settings that `compose` returns, as a file."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(_compose_settings(name, overrides, config_dir), resolve=resolve)


def _compose_settings(name: str, overrides: Sequence[str], config_dir: Path | None) -> Any:
    """As `compose`, with interpolations. A decoder-only model for which no corpus is chosen learns python_library."""
    if name == "evaluate":  # whose position is no choice, but some settings of a trained run's
        own = [re.sub(r"^\+*position(?=[.=])", "++position", word) for word in overrides]
        return hydra_bridge.compose(name, own, config_dir)
    # 1. The choices and settings, but for the entries of a pattern, which exist once its layers are known.
    rewritten = typed_choices(overrides)
    _check_choices(rewritten)
    others = [word for word in rewritten if not _ENTRY.match(word)]
    settings = hydra_bridge.compose(name, others, config_dir)
    chosen = name != "train" or any(re.match(r"data(=|\.synthetic\.)", word.lstrip("+")) for word in rewritten)
    if not chosen and settings.model.architecture == "decoder_only" and settings.data.text is None:
        return _compose_settings(name, ["data=python_library", *overrides], config_dir)
    # 2. Those entries.
    entries = [*_entries_of_layers(settings, config_dir), *filter(_ENTRY.match, rewritten)]
    if entries:
        settings = hydra_bridge.compose(name, [*others, *entries], config_dir)
    # 3. Of the two settings of the learning rate, a recipe has one; the other one, typed alone, takes its place.
    typed = {override_key(word) for word in rewritten}
    for rate, other in (("learning_rate", "learning_rate_scale"), ("learning_rate_scale", "learning_rate")):
        if f"optim.{rate}" in typed and f"optim.{other}" not in typed and settings.optim[rate] is not None:
            settings.optim[other] = None
    return settings


def _entries_of_layers(settings: Any, config_dir: Path | None) -> Iterator[str]:
    """The choices that the layers of a pattern name, as overrides: `position.layers=[rope,none]` needs position=rope at
    position.entries.rope. Names may end in a number: `rope_1` and `rope_2` are two entries of position=rope.
    """
    from omegaconf import ListConfig, OmegaConf

    known = choices_of("position", config_dir)
    for path in ("position", "position.encoder", "position.decoder"):
        section = OmegaConf.select(settings, path)
        layers = section.get("layers") if section and "entries" in section else None
        for entry in dict.fromkeys(map(str, layers if isinstance(layers, ListConfig) else [])):
            if entry not in section.entries:  # of the choice's own file
                choice = entry if entry in known else re.sub(r"_\d+$", "", entry)
                yield f"+position@{path}.entries.{entry}={choice}"


def compose_train(overrides: Sequence[str], config_dir: Path | None = None) -> TrainConfig:
    """Compose and validate one job of train, without a comma list. Raises ConfigError for invalid settings, RprError if
    it cannot start from the run that `from` names.
    """
    from rpr.config.train import TrainConfig
    from rpr.validation import validate

    settings = compose("train", overrides, config_dir)
    run = settings.get("from")
    config = validate(TrainConfig, {**settings, "from": None})
    if run is None:
        return config
    from rpr.runs.loading import origin_of  # torch

    return config.model_copy(update={"origin": origin_of(config, str(run))})


def override_key(override: str) -> str:
    """The key of the setting that an override changes."""
    return override.partition("=")[0].lstrip("+~")


def is_hydra_override(override: str) -> bool:
    """Whether an override configures Hydra (its launcher), not a job."""
    return override_key(override).startswith(("hydra/", "hydra."))


def recorded_command(overrides: Sequence[str], config_dir: Path | None) -> str:
    """As `train_command`, for a record: what belongs to this call alone is left out."""
    own = ("sweep", "again", "stop_after_minutes")
    return train_command([word for word in overrides if override_key(word) not in own], config_dir)


def train_command(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """The command line that trains with these settings, for a shell."""
    given = [] if config_dir is None else [f"--config-dir={config_dir}"]
    if (folder := schemes_dir()) is not None:
        given.append(f"schemes_dir={folder}")
    return shlex.join(["rpr-cli", "train", *given, *overrides])
