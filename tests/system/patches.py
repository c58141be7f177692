"""What a command that is started for a test meets in place of the usual: see `Starter.start`."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any


def slow_disk() -> None:
    """Every file takes a moment to come to its place, a translation more: another process has its model to load, before
    it asks for that place.
    """
    replace = os.replace

    def slowly(*names: Any) -> None:
        time.sleep(6 if str(names[0]).endswith(".part") else 0.1)
        replace(*names)

    os.replace = slowly  # type: ignore[assignment]


def clock_set_back() -> None:
    """Python's clocks that tell the time of day go back by an hour when the first metrics of a training are written."""
    from rpr.records import provenance
    from rpr.runs import locks
    from rpr.training import callbacks

    now, write = time.time, callbacks.Metrics._write
    back = 0

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(time.time(), tz)

    def set_back(*arguments: Any) -> None:
        nonlocal back
        back = 3600
        write(*arguments)

    time.time = lambda: now() - back
    callbacks.Metrics._write = set_back  # type: ignore[method-assign]
    for module in (provenance, locks):
        module.datetime = Now  # type: ignore[attr-defined]
