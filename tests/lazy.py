"""Modules that are imported at their first use, so that collecting all tests does not import Lightning."""

import importlib
from typing import Any


class Lazy:
    def __init__(self, name: str) -> None:
        vars(self)["module"] = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(vars(self)["module"]), attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(importlib.import_module(vars(self)["module"]), attribute, value)


callbacks, fit, training_module = (Lazy(f"rpr.training.{name}") for name in ("callbacks", "fit", "module"))
wandb_logger = Lazy("rpr.tracking.wandb_logger")
