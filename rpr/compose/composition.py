"""Overrides -> Hydra -> plain settings: one job composed, many expanded, and Hydra's errors in one line."""

from __future__ import annotations

import copy
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rpr.errors import ConfigError, RprError, did_you_mean
from rpr.io.escape import visible
from rpr.paths import data_dir

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import TrainConfig
    from rpr.validation import Section

# Faults of the places that a user gives; a file that is not there is told where it is looked for, or else is ours.
_NOT_TO_BE_WRITTEN = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
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
    """The jobs of a multirun, as Hydra's basic sweeper makes them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(typed_choices(overrides))
    jobs: list[list[str]] = []
    for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None):
        jobs.extend([list(job) for job in batch])
    return jobs


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


def compose(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The settings of one job of a sub-command, as plain values.

    Raises:
        ConfigError: as `plain`.
    """
    return plain(_composed(name, overrides))


def _composed(name: str, overrides: Sequence[str]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    overrides = typed_choices(overrides)
    refuse_ways_out(overrides)
    # Within a running job (bench composes its variants) Hydra's global state is the job's: set aside, and put back.
    state = GlobalHydra.instance()
    running, state.hydra = state.hydra, None
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(data_dir("conf"))):
            return hydra_compose(config_name=name, overrides=overrides)
    finally:
        state.hydra = running


def training(overrides: Sequence[str]) -> TrainConfig:
    """One job of train, composed and validated.

    Raises:
        ConfigError: its settings are refused.
    """
    from rpr import validation
    from rpr.config import train as config

    return validation.validated(config.TrainConfig, compose("train", overrides))


def trainings(jobs: Sequence[Sequence[str]]) -> list[TrainConfig]:
    """Jobs of train, none with a comma list, each as `training` makes it.

    To read conf/ is nearly all the work of that (50 ms a job), so it is read once for all jobs with the same choices.
    Their values are put in afterwards, by the function by which Hydra does it.

    Raises:
        ConfigError: the settings of a job are refused.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from rpr import validation
    from rpr.config import train as config

    parser = OverridesParser.create()
    read: dict[tuple[str, ...], Any] = {}
    made = []
    for job in jobs:
        values = [word for word in job if _VALUE.match(word)]
        choices = tuple(word for word in job if not _VALUE.match(word))
        if not all(_CHOICE.match(word) for word in choices):
            made.append(training(job))
            continue
        if choices not in read:
            read[choices] = _composed("train", choices)
        settings = copy.deepcopy(read[choices])
        ConfigLoaderImpl._apply_overrides_to_config(parser.parse_overrides(values), settings)
        made.append(validation.validated(config.TrainConfig, plain(settings)))
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


def one_line(error: BaseException, kind: type[Section] | None = None) -> str | None:
    """The text of an error that is the user's to mend, on one line; None for any other. `kind` is what was composed, by
    default a job of train.
    """
    text = _text(error, kind)
    return None if text is None else visible(text)


def _text(error: BaseException, kind: type[Section] | None) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, RprError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in _NOT_TO_BE_WRITTEN:
        where = error.filename2 or error.filename or "a file"
        return f"{where}: cannot be read or written ({error.strerror}); mend that, or choose another place"
    if isinstance(error, OverrideParseException):
        reason = " ".join(str(error.message).split("\n", 1)[0].rstrip(".;").split())
        override = " ".join(str(error.override).split())
        return (
            f"{override}: cannot be read as a setting ({reason}); write key=value, and quote what holds blanks, "
            "commas or brackets: \"key='a b'\""
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        asked = error.missing_cfg_file
        group, _, choice = asked.rpartition("/") if asked.startswith("hydra/") else asked.partition("/")
        options = [option for option in error.options if not option.startswith("_")]
        return f"{group}: no such choice {choice!r}" + did_you_mean(choice, options)
    if isinstance(error, (HydraException, OmegaConfBaseException)) or _refused_by_hydra(error):
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
        text = "; ".join(line.rstrip(".;") for line in lines)
        return _unknown_key(text, kind) or _no_choice(text) or text
    return None


def _refused_by_hydra(error: BaseException) -> bool:
    """Whether it is a plain ValueError from Hydra's own reading of what was typed: of `model=3`, where a choice is a
    word, or `seed=range(1,5,0)`.
    """
    last = error.__traceback__
    if last is None or not isinstance(error, ValueError):
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return str(last.tb_frame.f_globals.get("__name__")).startswith("hydra.")


def _no_choice(text: str) -> str | None:
    """A group that has no choice, or something else in its place."""
    if found := re.match(r"Error resolving interpolation '([^']+)', possible interpolation keys: (.*)", text):
        group = next(name for name in re.findall(r"\w+(?=\})", found[1]) if name not in found[2].split(", "))
        return f"{group}: it has no choice, and other settings hang on it; give one of conf/{group}/ as {group}=..."
    if text.startswith("Config group override must be"):
        return f"{text}; a choice is a word: write GROUP=CHOICE, e.g. model=tiny"
    if found := re.match(r"Config group override deletion value must be .*input_line='(.+?)', config_loader", text):
        return f"{found[1]}: what is taken away is a group, or a choice, which is a word; write ~GROUP or GROUP=CHOICE"
    if found := re.match(r"In '[\w/]+': Could not load '(?!hydra/)([\w/]+)/([^'/]*)'", text):
        return f"{found[1]}: no such choice {found[2]!r}{did_you_mean(found[2], choices_of(found[1]))}"
    return None


def _unknown_key(text: str, kind: type[Section] | None) -> str | None:
    """`Could not override 'model.kk'...` with the settings that the command has there."""
    from rpr import validation
    from rpr.config import train as config

    found = re.match(r"Could not override '(?:[\w/]+@)?([\w.]+)'", text)
    if found is None:
        return None
    path = found[1].split(".")
    if path[0] == "hydra":  # its own, which no section of ours holds
        return None
    for depth, part in enumerate(path):
        sections_there = validation.sections_at(kind or config.TrainConfig, path[:depth])
        names = {name for section in sections_there for name in section.model_fields}
        if sections_there and part not in names:
            return f"{'.'.join(path[: depth + 1])}: no such setting" + did_you_mean(part, names)
    if len(path) > 1:
        return f"{found[1]}: the choice of {path[0]} has no such setting, though others have; see --cfg job"
    return None
