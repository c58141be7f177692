"""Everything this project uses of Hydra's private API, as of hydra-core 1.3; no other module imports it
(tests/test_source_rules.py).
"""

import argparse
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), value)
    return f"'{escaped}'"


def quote_text(text: str) -> str:
    """As `quote_value`, of a text in which `${` means itself."""
    return quote_value(re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", text))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun, as Hydra's basic sweeper generates them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]


@contextmanager
def _initialized(config_name: str, config_dir: Path | None = None) -> Iterator[Any]:
    """Hydra with conf/ and the user's own choices, which another program that uses Hydra does not see. Within a running
    job (bench composes its variants) Hydra's global state belongs to that job, and is restored.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    version.setbase("1.3")
    conf = data_dir("conf")
    search_path = create_config_search_path(str(conf))
    for folder in choice_dirs(config_dir):
        _check_names(folder, conf)
        search_path.prepend("rpr", f"file://{folder}", "schema")  # the end: conf/ comes first
    state = GlobalHydra.instance()
    running, state.hydra = state.hydra, None
    try:
        yield Hydra.create_main_hydra2(config_name, search_path)
    finally:
        state.hydra = running


def _check_names(folder: Path, conf: Path) -> None:
    """Raises ConfigError if a file of the user's folder would be hidden by one of conf/."""
    for own in conf.rglob("*.yaml"):
        file = folder / own.relative_to(conf)
        if file.exists() and not file.samefile(own):
            raise ConfigError(f"{file}: conf/ has {file.relative_to(folder)}, which comes first; rename yours")


def compose(
    config_name: str, overrides: Sequence[str], config_dir: Path | None = None, *, with_hydra: bool = False
) -> Any:
    """Compose one job's settings, `with_hydra` also Hydra's own as `settings.hydra`; `config_dir` is a folder with more
    choices, as for --config-dir. Raises ConfigError if a folder of hydra.searchpath does not exist.
    """
    from hydra import compose as hydra_compose

    try:
        with _initialized(config_name, config_dir), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a folder of hydra.searchpath that does not exist
            # An entry of a pattern of positions exists only once the pattern's layers have been read.
            known = [word for word in overrides if not (with_hydra and ".entries." in word.partition("=")[0])]
            return hydra_compose(config_name, known, return_hydra_config=with_hydra)
    except UserWarning as warning:
        raise ConfigError(f"hydra: {warning}") from None


def set_values(settings: Any, overrides: Sequence[str]) -> None:
    """Set values (not choices of groups) in composed settings with Hydra's own functions; not several at once."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    ConfigLoaderImpl.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, settings)


def launch(
    config_name: str,
    overrides: Sequence[str],
    config_dir: Path | None,
    task: Callable[[Any], Any],
    jobs: Sequence[Sequence[str]],
) -> list[Any]:
    """Run the task for each job with the launcher that the overrides select; returns Hydra's JobReturns."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.plugins import Plugins
    from hydra.core.utils import configure_log
    from hydra.types import HydraContext

    settings = compose(config_name, overrides, config_dir, with_hydra=True)
    configure_log(settings.hydra.hydra_logging, settings.hydra.verbose)
    with _initialized(config_name, config_dir) as hydra:
        context = HydraContext(hydra.config_loader, Callbacks())
        launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=settings)
        return list(launcher.launch([list(job) for job in jobs], initial_job_idx=0))


def answer(config_name: str, flags: argparse.Namespace, overrides: list[str], config_dir: Path | None) -> None:
    """Let Hydra answer --cfg, --info or --hydra-help on stdout."""
    with _initialized(config_name, config_dir) as hydra:
        if flags.hydra_help:
            hydra.hydra_help(config_name, flag_parser(), flags)
        elif flags.cfg:
            hydra.show_cfg(config_name, overrides, flags.cfg, flags.package, flags.resolve)
        else:
            hydra.show_info(flags.info, config_name, overrides)


def completions(config_name: str, line: str) -> list[str]:
    """Completions of the last word of a line of overrides."""
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    with _initialized(config_name) as hydra:
        plugin = DefaultCompletionPlugin(hydra.config_loader)
        suggestions: list[str] = plugin._query(config_name=config_name, line=line)
    return suggestions


def completion_hook(shell: str, *, install: bool) -> None:
    """Print the shell code that enables or disables completion."""
    from hydra.core.plugins import Plugins
    from hydra.plugins.completion_plugin import CompletionPlugin

    plugins: list[Any] = Plugins.instance().discover(CompletionPlugin)
    plugin = {kind.provides(): kind for kind in plugins}[shell](None)  # without choices to complete
    plugin.install() if install else plugin.uninstall()


def is_parsing_error(error: BaseException) -> bool:
    """Whether it is a plain ValueError that Hydra raised while it parsed overrides: for `model=3`, as a choice must be
    text, or for `seed=range(1,5,0)`.
    """
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, ValueError) and modules != [] and modules[-1].startswith("hydra.")
