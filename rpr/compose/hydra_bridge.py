"""Everything this project uses of Hydra's private API; no other module imports it.

Written for hydra-core 1.3. tests/compose/test_hydra_bridge.py names each private name used here, and fails when one
moves.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpr.errors import ConfigError
from rpr.paths import choice_dirs, data_dir


def flag_parser() -> argparse.ArgumentParser:
    """Hydra's argument parser: its flags, followed by overrides."""
    from hydra._internal.utils import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    return parser


def quote_value(value: str) -> str:
    """A value quoted for Hydra's override grammar, in which a backslash is special only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def quote_text(text: str) -> str:
    """As `quote_value`, of a text in which `${` means itself."""
    return quote_value(re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun, as Hydra's basic sweeper generates them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]


def compose(config_name: str, overrides: Sequence[str], config_dir: Path | None = None) -> Any:
    """Compose one job's settings, without Hydra's own.

    Args:
        config_dir: a folder with more choices, as for --config-dir.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import setup_globals

    setup_globals()  # ${now:...}
    words = list(overrides)
    if folders := choice_dirs(config_dir):
        words.append(_search_path(folders))
    # Within a running job (bench composes its variants) Hydra's global state belongs to that job: save and restore it.
    state = GlobalHydra.instance()
    running, state.hydra = state.hydra, None
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(data_dir("conf"))):
            return hydra_compose(config_name=config_name, overrides=words)
    finally:
        state.hydra = running


def _search_path(folders: Sequence[Path]) -> str:
    return f"hydra.searchpath=[{','.join(quote_value(f'file://{folder}') for folder in folders)}]"


def set_values(settings: Any, overrides: Sequence[str]) -> None:
    """Set values (not choices of groups) in composed settings with Hydra's own functions; not several at once."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    ConfigLoaderImpl.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, settings)


@dataclass(frozen=True)
class Session:
    """Hydra, set up but not running, and composed settings that include its own (`settings.hydra`)."""

    hydra: Any
    settings: Any

    def launch(self, task: Callable[[Any], Any], jobs: Sequence[Sequence[str]]) -> list[Any]:
        """Run the task for each job with the launcher of the settings; returns Hydra's JobReturns."""
        from hydra._internal.callbacks import Callbacks
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.plugins import Plugins
        from hydra.core.utils import configure_log
        from hydra.types import HydraContext

        configure_log(self.settings.hydra.hydra_logging, self.settings.hydra.verbose)
        GlobalHydra.instance().initialize(self.hydra)
        try:
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(self.hydra.config_loader, Callbacks(self.settings)),
                task_function=task,
                config=self.settings,
            )
            return list(launcher.launch([list(job) for job in jobs], initial_job_idx=0))
        finally:
            GlobalHydra.instance().clear()


def _all_choices(config_dir: Path | None) -> Any:
    """The search path of conf/ and the user's own folders."""
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery

    search_path = create_config_search_path(str(data_dir("conf")))
    for folder in reversed(choice_dirs(config_dir)):
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return search_path


def session(config_name: str, overrides: Sequence[str], *, multirun: bool, config_dir: Path | None = None) -> Session:
    """Compose Hydra's own settings together with the job's, as Hydra does before it runs anything.

    Raises:
        ConfigError: a folder of hydra.searchpath does not exist.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    version.setbase("1.3")
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a folder of hydra.searchpath that does not exist
            hydra = Hydra.create_main_hydra2(config_name, _all_choices(config_dir))
            settings = hydra.compose_config(
                config_name=config_name,
                # An entry of a pattern of positions exists only once the pattern's layers have been read.
                overrides=[word for word in overrides if ".entries." not in word.partition("=")[0]],
                run_mode=RunMode.MULTIRUN if multirun else RunMode.RUN,
            )
    except UserWarning as warning:
        raise ConfigError(f"hydra: {warning}") from None
    finally:
        GlobalHydra.instance().clear()
    return Session(hydra, settings)


def answer(name: str, arguments: Sequence[str]) -> None:
    """Let Hydra answer --cfg, --info or --hydra-help on stdout; it may end the process."""
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raises errors instead of printing them; they are then reported in one line
    before = sys.argv
    folders = [] if any("hydra.searchpath" in word for word in arguments) else choice_dirs()
    words = list(arguments)
    if folders:  # beside the other overrides: argparse takes them from one place only
        at = next((at for at, word in enumerate(words) if "=" in word and not word.startswith("-")), 0)
        words.insert(at, _search_path(folders))
    sys.argv = [before[0], f"--config-name={name}", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(data_dir("conf")))(lambda settings: None)()
    finally:
        sys.argv = before


def completions(config_name: str, line: str) -> list[str]:
    """Completions of the last word of a line of overrides."""
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    GlobalHydra.instance().clear()
    try:
        hydra = Hydra.create_main_hydra2(config_name, _all_choices(None))
        found: list[str] = DefaultCompletionPlugin(hydra.config_loader)._query(config_name=config_name, line=line)
        return found
    finally:
        GlobalHydra.instance().clear()


def completion_hook(shell: str, *, install: bool) -> None:
    """Print the shell code that enables or disables completion."""
    from hydra.core.plugins import Plugins
    from hydra.plugins.completion_plugin import CompletionPlugin

    found: list[Any] = Plugins.instance().discover(CompletionPlugin)
    plugin = {kind.provides(): kind for kind in found}[shell](None)  # without choices to complete
    plugin.install() if install else plugin.uninstall()


def is_parsing_error(error: BaseException) -> bool:
    """Whether it is a plain ValueError that Hydra raised while it parsed overrides: for `model=3`, as a choice must be
    text, or for `seed=range(1,5,0)`.
    """
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, ValueError) and modules != [] and modules[-1].startswith("hydra.")
