"""Run records: how they are written, read and compared; `rpr.records(folder)` is a pandas DataFrame of them."""

import sys
from types import ModuleType
from typing import Any


class _Records(ModuleType):
    """This package, which can be called."""

    def __call__(self, folder: Any) -> Any:
        """As rpr.records.frame.frame."""
        from rpr.records.frame import frame

        return frame(folder)


sys.modules[__name__].__class__ = _Records
