"""Everything this project uses of Hydra, its private API as of hydra-core 1.3 included; no other module imports that
(tests/test_source_rules.py).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpr.errors import ConfigError
from rpr.paths import choice_dirs, data_dir


def quote_text(text: str) -> str:
    """A text quoted for Hydra's override grammar, in which `${` means itself: a backslash is special only before `${`
    and a quote.
    """
    escaped = re.sub(r"(\\*)(\$\{|'|$)", lambda match: 2 * match[1] + (f"\\{match[2]}" if match[2] else ""), text)
    return f"'{escaped}'"


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun, as Hydra's basic sweeper generates them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        parsed = OverridesParser.create().parse_overrides([*overrides])
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
        return [list(job) for batch in batches for job in batch]
    except ValueError as error:  # for seed=range(1,5,0)
        raise ConfigError(str(error)) from None


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None, *, with_hydra: bool = False) -> Any:
    """Compose one job's settings with Hydra, `with_hydra` also its own as `settings.hydra`. The choices are conf/'s and
    those of the user's folders, `config_dir` among them, which no other program that uses Hydra sees.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    conf, folders = data_dir("conf"), choice_dirs(config_dir)
    for folder in folders:
        for own in conf.rglob("*.yaml"):
            file = folder / own.relative_to(conf)
            if file.exists() and not file.samefile(own):
                raise ConfigError(f"{file}: conf/ has {file.relative_to(folder)}, which comes first; rename yours")
    places = ",".join(quote_text(f"file://{folder}") for folder in folders)
    with initialize_config_dir(str(conf), job_name=name, version_base="1.3"):
        words = [*overrides, *([f"hydra.searchpath=[{places}]"] if folders else [])]
        try:
            return hydra_compose(name, words, return_hydra_config=with_hydra)
        except ValueError as error:  # for model=3, as a choice must be text
            raise ConfigError(str(error)) from None
