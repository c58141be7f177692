"""Tab completion, in the protocol of Hydra's shell hooks."""

import contextlib
import io
import os
import re
from collections.abc import Collection, Sequence
from pathlib import PurePath

from rpr.cli.positionals import to_overrides
from rpr.compose import hydra_bridge
from rpr.compose.composition import override_key
from rpr.errors import ConfigError
from rpr.paths import sweep_files
from rpr.sweep import spec

_SEPARATORS = {"bash": " ", "zsh": " ", "fish": "\n"}  # between suggestions


def answer(request: Sequence[str], commands: Collection[str]) -> None:
    """Print completions of the line in COMP_LINE for `rpr-cli -sc query=SHELL`, or the shell code for `-sc
    install=SHELL` and `-sc uninstall=SHELL`; raises ConfigError for a request that is not of Hydra's hooks.
    """
    action, _, shell = (request[0] if len(request) == 1 else "").partition("=")
    if action not in ("install", "uninstall", "query") or shell not in _SEPARATORS:
        shells = "|".join(_SEPARATORS)
        raise ConfigError(
            f"-sc: invalid request {' '.join(request)!r}: expected install=, uninstall= or query=<{shells}>"
        )
    if action == "query":
        print(_SEPARATORS[shell].join(suggestions(os.environ.get("COMP_LINE", ""), commands)))
    else:
        hydra_bridge.completion_hook(shell, install=action == "install")


def suggestions(line: str, commands: Collection[str]) -> list[str]:
    """Completions of the last word of a line, an empty word after a blank. None for a line that cannot be parsed: it is
    half typed and may have any error, and an error message would be printed into it.
    """
    before = line.split()
    word = before.pop() if line and not line[-1].isspace() else ""
    program = 2 if before and re.fullmatch(r"python[\d.]*", PurePath(before[0]).name) else 1
    if len(before) < program:
        return []
    if len(before) == program:
        return [name for name in commands if name.startswith(word)]
    name, *before = (entry for entry in before[program:] if not entry.startswith("schemes_dir="))
    if name not in commands or "--" in before:  # files follow
        return []
    own: list[str] = []
    if name == "sweep":
        if not before:
            return sorted(sweep for sweep in sweep_files() if sweep.startswith(word))
        own = [entry for entry in (*spec.SETTINGS, *spec.FLAGS) if entry.startswith(word)]
        keys = {override_key(entry) for entry in spec.SETTINGS}
        settings = [entry for entry in before[1:] if override_key(entry) not in keys and entry not in spec.FLAGS]
        name, before = "train", ["--multirun", *settings]  # so that comma lists are valid
    if word.startswith("-"):
        return own
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return sorted({*own, *_hydra_completions(name, [*to_overrides(name, before), word])})
    except (Exception, SystemExit, KeyboardInterrupt):
        return own


def _hydra_completions(name: str, overrides: Sequence[str]) -> list[str]:
    completions = hydra_bridge.completions(name, " ".join(overrides))
    # recipe is selected by model= and data=; names with a leading underscore are base files, not choices
    return [completion for completion in completions if override_key(completion) != "recipe" and "=_" not in completion]
