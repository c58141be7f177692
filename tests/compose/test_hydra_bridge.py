"""The private names of Hydra that rpr/compose/hydra_bridge.py uses exist, and no other module uses one."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import rpr

PRIVATE = {
    "hydra._internal.utils.get_args_parser": [],
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper.split_arguments": ["overrides", "max_batch_size"],
    "hydra._internal.config_loader_impl.ConfigLoaderImpl._apply_overrides_to_config": ["overrides", "cfg"],
    "hydra._internal.config_loader_impl.ConfigLoaderImpl.validate_sweep_overrides_legal": [
        "overrides",
        "run_mode",
        "from_shell",
    ],
    "hydra._internal.callbacks.Callbacks": ["config"],
    "hydra.core.plugins.Plugins.instantiate_launcher": ["hydra_context", "task_function", "config"],
    "hydra.core.plugins.Plugins.register": ["clazz"],
    "hydra.core.global_hydra.GlobalHydra.config_loader": [],
    "hydra.plugins.completion_plugin.DefaultCompletionPlugin._query": ["config_name", "line"],
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_name_of_hydra(name: str) -> None:
    module, *attributes = re.split(r"\.(?=[A-Z]|get_|create_config)", name, maxsplit=1)
    found = importlib.import_module(module)
    for attribute in attributes[0].split("."):
        found = getattr(found, attribute)
    parameters = inspect.signature(found).parameters
    assert {*PRIVATE[name]} <= {*parameters}, f"{name}{inspect.signature(found)}"


def test_no_other_module_uses_private_names_of_hydra() -> None:
    modules = "plugins|global_hydra|override_parser|config_search_path"
    private = re.compile(rf"hydra\._|hydra\.core\.({modules})|plugin\._query\(")
    root = Path(rpr.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if private.search(path.read_text())}
    assert found == {"compose/hydra_bridge.py", "compose/hydra_settings.py"}  # refuses plugins by name
