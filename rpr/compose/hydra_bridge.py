"""Everything this project uses of Hydra's private API, as of hydra-core 1.3; no other module imports it
(tests/test_source_rules.py).
"""

import copy
import functools
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpr.errors import ConfigError
from rpr.paths import choice_dirs, data_dir


def quote_value(value: str) -> str:
    """A value quoted for Hydra's override grammar, in which a backslash is special only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), value)
    return f"'{escaped}'"


def quote_text(text: str) -> str:
    """As `quote_value`, of a text in which `${` means itself."""
    return quote_value(re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", text))


@functools.lru_cache(1024)
def parse(word: str) -> Any:
    """As Hydra reads it; a value that its grammar does not know is text: `~/runs`, `/home/müller`, `a=1`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    key, equals, value = word.partition("=")
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except OverrideParseException:
        if not equals:
            raise
        return OverridesParser.create().parse_overrides([f"{key}={quote_value(value)}"])[0]


def _readable(overrides: Sequence[str]) -> list[str]:
    return [parse(word).input_line for word in overrides]


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun, as Hydra's basic sweeper generates them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    batches = BasicSweeper.split_arguments([parse(word) for word in overrides], max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


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
        for own in conf.rglob("*.yaml"):
            file = folder / own.relative_to(conf)
            if file.exists() and not file.samefile(own):
                raise ConfigError(f"{file}: conf/ has {file.relative_to(folder)}, which comes first; rename yours")
        search_path.prepend("rpr", f"file://{folder}", "schema")  # the end: conf/ comes first
    state = GlobalHydra.instance()
    running, state.hydra = state.hydra, None
    try:
        yield Hydra.create_main_hydra2(config_name, search_path)
    finally:
        state.hydra = running


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None, *, with_hydra: bool = False) -> Any:
    """Compose one job's settings with Hydra, `with_hydra` also its own as `settings.hydra`; `config_dir` is a folder
    with more choices.
    """
    from hydra import compose as hydra_compose

    with _initialized(name, config_dir):
        return hydra_compose(name, _readable(overrides), return_hydra_config=with_hydra)


def compose_quickly(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> Any:
    """As `compose`. The jobs of a sweep have few choices of groups and many values: a composition takes 0.15 s, and
    values are set in a copy of one with the same choices.
    """
    from hydra.core.override_parser.types import OverrideType
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folders = (data_dir("conf"), *choice_dirs(config_dir))
    groups = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}
    parsed = [*map(parse, overrides)]
    values = [one for one in parsed if one.key_or_group not in groups]
    plain = (one.type is OverrideType.CHANGE and one.package is None and not one.is_sweep_override() for one in values)
    if not all(plain) or any(one.key_or_group == "hydra.searchpath" for one in values):
        return compose(name, overrides, config_dir)
    choices = tuple(one.input_line for one in parsed if one.key_or_group in groups)
    settings = copy.deepcopy(_of_choices(name, choices, config_dir))
    try:
        for one in values:
            OmegaConf.update(settings, one.key_or_group, one.value())
    except OmegaConfBaseException:  # which Hydra explains
        return compose(name, overrides, config_dir)
    return settings


@functools.lru_cache(64)
def _of_choices(name: str, choices: tuple[str, ...], config_dir: Path | None) -> Any:
    return compose(name, choices, config_dir)


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
        return list(launcher.launch([_readable(job) for job in jobs], initial_job_idx=0))


def is_parsing_error(error: BaseException) -> bool:
    """Whether it is a plain ValueError that Hydra raised while it parsed overrides: for `model=3`, as a choice must be
    text, or for `seed=range(1,5,0)`.
    """
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, ValueError) and modules != [] and modules[-1].startswith("hydra.")
