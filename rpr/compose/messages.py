"""One-line messages, with the remedy, for errors of Hydra, OmegaConf, the file system and this project. The only module
that parses Hydra's messages; tests/system/refused.tsv fails when their wording changes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rpr.errors import did_you_mean, reason_of
from rpr.io.escape import escape_control_characters

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.validation import StrictModel

# What users of other tools, and readers of the paper, try first.
_SHORT = {"k": "position.clip_distance", "lr": "optim.learning_rate", "batch_size": "optim.max_tokens_per_microbatch"}


def format_user_error(error: BaseException, kind: type[StrictModel] | None = None) -> str | None:
    """The one-line text of an error that the user can fix; None for any other. `kind` is the configuration that was
    composed, by default train's.
    """
    text = _text(error, kind)
    return None if text is None else escape_control_characters(" ".join(text.split()))


def _text(error: BaseException, kind: type[StrictModel] | None) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if (reason := reason_of(error)) is not None:
        return reason
    if isinstance(error, YAMLError):
        return f"{error}; correct that file"
    if isinstance(error, OverrideParseException):
        typed = str(error.override)[:80]
        return f"{typed}: Hydra cannot read this; write KEY=VALUE, other characters in quotes: \"KEY='VALUE'\""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        recipe = "; a model without optim= has the recipe of its own name" if group == "optim" else ""
        options = [option for option in error.options if not option.startswith("_")]
        return f"{group}: no such choice {choice!r}{recipe}{did_you_mean(choice, options)}"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
        text = "; ".join(line.rstrip(".;") for line in lines)
        return _unknown_key(text, kind) or text
    return None


def _unknown_key(text: str, kind: type[StrictModel] | None) -> str | None:
    """The message for `Could not override 'model.kk'...`, with the settings that exist at that key; None for Hydra's
    own settings, of which we have no typed section.
    """
    from rpr.config.train import TrainConfig
    from rpr.validation import settings_at

    match = re.match(r"Could not override '(?:[\w/]+@)?([\w.]+)'", text)
    if match is None or match[1].startswith("hydra"):
        return None
    *sections, name = match[1].split(".")
    kind = kind or TrainConfig
    known, top = settings_at(kind, sections), settings_at(kind, [])
    if sections and sections[0] not in top:
        return f"{match[1]}: no such setting{did_you_mean(sections[0], top)}"
    within = {section: settings_at(kind, [*sections, section]) for section in sorted(known - {"from"})}
    elsewhere = [f"{section}.{name}" for section, settings in within.items() if name in settings]
    if kind is TrainConfig and name in _SHORT:
        elsewhere = [_SHORT[name]]
    if elsewhere:
        return f"{match[1]}: no such setting; did you mean {' or '.join(elsewhere)}?"
    if name in known:
        return f"{match[1]}: no such setting in the selected {sections[0]}, though others have it; see --cfg job"
    return f"{match[1]}: no such setting{did_you_mean(name, known)}"
