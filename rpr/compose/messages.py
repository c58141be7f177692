"""Errors of Hydra, OmegaConf, the file system and this project in one line that says what to change. The only module
that reads Hydra's messages: tests/compose/test_messages.py fails where one of them is worded otherwise.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from rpr.compose.composition import choices_of
from rpr.compose.hydra_bridge import refused_by_hydra
from rpr.errors import RprError, did_you_mean
from rpr.io.escape import visible
from rpr.migrations import renamed_to

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
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
    if isinstance(error, (HydraException, OmegaConfBaseException)) or refused_by_hydra(error):
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
        text = "; ".join(line.rstrip(".;") for line in lines)
        return _unknown_key(text, kind) or _no_choice(text) or text
    return None


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
    if new := renamed_to(found[1]):
        return f"{found[1]}: renamed to {new}"
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
