"""Settings of Hydra itself: none may name code that Hydra would import, but one of its launchers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rpr.compose import hydra_bridge
from rpr.compose.composition import override_key
from rpr.errors import ConfigError

# What the launcher, the sweeper and logging may instantiate: the only settings whose values Hydra imports as code.
_ALLOWED_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_ALLOWED_LOGGING = {"class": "logging.", "()": "colorlog."}


def is_hydra_override(override: str) -> bool:
    """Whether an override configures Hydra (its launcher), not a job."""
    return override_key(override).startswith(("hydra/", "hydra."))


def check(name: str, overrides: Sequence[str], config_dir: Path | None) -> None:
    """Before Hydra acts on a single job: raises ConfigError if a setting of Hydra, or a choice of the user's own, names
    code to run, or a folder does not exist.
    """
    if config_dir is None and not any("hydra" in word for word in overrides):
        return
    check_settings(hydra_bridge.compose(name, overrides, config_dir, with_hydra=True))


def check_settings(settings: Any) -> None:
    """As `check`, of composed settings."""
    from omegaconf import OmegaConf

    hydra: Any = OmegaConf.to_container(settings.hydra, resolve=False)
    for key, value in _names_of_code(hydra, ()):
        raise ConfigError(
            f"hydra.{key}: invalid value {value}: no setting can name code to run, except one of Hydra's launchers: "
            "hydra/launcher=submitit_local or submitit_slurm"
        )
    if hydra["job"]["chdir"]:
        raise ConfigError("hydra.job.chdir: runs are found from where the command was started; leave it out")
    if hydra["mode"] is not None:
        raise ConfigError(f"hydra.mode: invalid value {hydra['mode']}: only -m makes a sweep; leave hydra.mode out")


def _names_of_code(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The dotted keys, with their values, from which Hydra or its logging would import foreign code."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            plugin = (
                key == "_target_" and path in (("launcher",), ("sweeper",)) and str(value).startswith(_ALLOWED_PLUGINS)
            )
            foreign = key in _ALLOWED_LOGGING and not str(value).startswith(_ALLOWED_LOGGING[key])
            if foreign or (key == "_target_" and not plugin):
                yield ".".join((*path, key)), value
            yield from _names_of_code(value, (*path, str(key)))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _names_of_code(value, (*path, str(number)))
    elif str(tree).startswith("ext://") and not str(tree).startswith("ext://sys."):
        yield ".".join(path), tree
