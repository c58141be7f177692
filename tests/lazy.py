"""Modules that are imported at their first use, so that collecting all tests does not import Lightning."""

import importlib
from typing import Any


class Lazy:
    """Has the attributes of a module, and its dictionary, in which monkeypatch looks for what it restores."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    @property
    def __dict__(self) -> Any:
        return vars(importlib.import_module(self._name))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("__", "_mock")):  # pytest asks each name of a module for __test__ and _mock_name
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(importlib.import_module(self._name), attribute, value)


callbacks, fit, training_module = (Lazy(f"rpr.training.{name}") for name in ("callbacks", "fit", "module"))
loggers = Lazy("rpr.tracking.loggers")
triton_attention = Lazy("rpr.model.kernels.triton_attention")
preflight = Lazy("rpr.commands.preflight")
