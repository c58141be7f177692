"""Corpora that are made, not read: the default one (synthetic.py), and tasks on which positions decide everything,
trained on short examples and tested on short and longer ones. Each task is registered in a module of this package,
discovered automatically, and has one file of conf/data/; no other module but the report's published figures names one.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from rpr.data.generated.task import REGISTERED
from rpr.data.generated.task import GeneratedTask as GeneratedTask
from rpr.data.generated.task import Pair as Pair
from rpr.data.generated.task import Task as Task
from rpr.validation import one_of

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"rpr.data.generated.{_module.name}")

TASKS = dict(sorted(REGISTERED.items()))

if TYPE_CHECKING:
    AnyTask = GeneratedTask
else:
    AnyTask = one_of("kind", TASKS, f"no such task; choose one of {', '.join(TASKS)}")
