"""Tab completion: what fits the word that is being typed, in the form in which Hydra's hook of a shell asks for it."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Any

from rpr.composition import key_of
from rpr.errors import ConfigError
from rpr.paths import data_dir
from rpr.words import settings_of

# Words of sweep's own, beside the settings of its jobs. retry has one value only.
SWEEP_WORDS = ("at_once=", "gpus=", "jobs_per_gpu=", "retry=failed")
SWEEP_FLAGS = ("--dry-run", "--wandb-yaml")
_BETWEEN = {"bash": " ", "zsh": " ", "fish": "\n"}  # two suggestions


def answer(request: Sequence[str], commands: Collection[str]) -> None:
    """Print what `rpr-cli -sc query=bash` asks of the line in COMP_LINE, or the hook that `-sc install=bash` asks for.

    Raises:
        ConfigError: no request that Hydra's hooks make.
    """
    asked, _, shell = (request[0] if len(request) == 1 else "").partition("=")
    if asked not in ("install", "uninstall", "query") or shell not in _BETWEEN:
        raise ConfigError(
            f"-sc: {' '.join(request)!r} is nothing a shell asks; give install=SHELL, uninstall=SHELL or query=SHELL, "
            f"for one of {', '.join(_BETWEEN)}"
        )
    if asked == "query":
        print(_BETWEEN[shell].join(suggestions(os.environ.get("COMP_LINE", ""), commands)))
    else:
        _hook(asked, shell)


def _hook(asked: str, shell: str) -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.plugins.completion_plugin import CompletionPlugin

    with initialize_config_dir(version_base="1.3", config_dir=str(data_dir("conf"))):
        found: list[Any] = Plugins.instance().discover(CompletionPlugin)
        plugin = {kind.provides(): kind for kind in found}[shell](GlobalHydra.instance().config_loader())
        plugin.install() if asked == "install" else plugin.uninstall()


def suggestions(line: str, commands: Collection[str]) -> list[str]:
    """What fits the last word of a line, which is empty behind a blank; nothing where the line cannot be understood:
    half typed, it may be wrong in any way, and whatever is said of that is printed into it.
    """
    before = line.split()
    word = before.pop() if line and not line[-1].isspace() else ""
    program = 2 if before and re.fullmatch(r"python[\d.]*", PurePath(before[0]).name) else 1
    if len(before) < program:
        return []
    if len(before) == program:
        return [name for name in commands if name.startswith(word)]
    name, *before = before[program:]
    if name not in commands or "--" in before:  # behind which there are files
        return []
    own: list[str] = []
    if name == "sweep":
        if not before:
            return sorted(path.stem for path in data_dir("sweeps").glob("*.yaml") if path.stem.startswith(word))
        own = [one for one in (*SWEEP_WORDS, *SWEEP_FLAGS) if one.startswith(word)]
        keys = {key_of(one) for one in SWEEP_WORDS}
        settings = [one for one in before[1:] if key_of(one) not in keys and one not in SWEEP_FLAGS]
        name, before = "train", ["--multirun", *settings]  # a comma list is no fault
    if word.startswith("-"):
        return own
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return sorted({*own, *_of_hydra(name, [*settings_of(name, before), word])})
    except (Exception, SystemExit, KeyboardInterrupt):
        return own


def _of_hydra(name: str, words: Sequence[str]) -> list[str]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    with initialize_config_dir(version_base="1.3", config_dir=str(data_dir("conf"))):
        plugin = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())
        found: list[str] = plugin._query(config_name=name, line=" ".join(words))
        # recipe follows from model= and data=; a name with an underscore before it is no choice
        return [one for one in found if key_of(one) != "recipe" and "=_" not in one]
