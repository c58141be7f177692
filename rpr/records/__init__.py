"""Run records: how they are written, read and compared; `rpr.records(folder)` is a pandas DataFrame of them."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Records(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("rpr.api").records(*arguments, **options)


sys.modules[__name__].__class__ = _Records
