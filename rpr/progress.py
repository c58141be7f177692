"""Progress of a command: a bar of tqdm's on a terminal; elsewhere plain lines, at most one every ten seconds."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Literal

from rpr.io.escape import escape_control_characters

_AS_LINES = (10.0, 10.0)  # seconds before the first, and between two
_ON_TERMINAL = (0.5, 0.2)  # shorter work shows no bar
_LOCK = threading.RLock()  # of all bars: a sweep's are drawn by a thread of their own
_open_bars = 0
_stderr: Any = None  # the stream that bars are drawn on, while there are any


class Progress:
    """A counter with a progress display, redrawn only when it counts. It must be closed, as a context manager is.

    It counts `total` items called `unit` ("steps"), if that is known, of which `done` are done. `keep`: whether
    the bar stays on the terminal. `lines` without a terminal: "none"; "slow": from the tenth second on; "last": in any
    case one at the end.
    """

    def __init__(
        self,
        total: int | None,
        unit: str,
        description: str,
        *,
        done: int = 0,
        keep: bool = True,
        lines: Literal["none", "slow", "last"] = "slow",
    ) -> None:
        self._total, self._unit, self._description = total, unit, escape_control_characters(description)
        self._done = self._first = done
        self._fields: dict[str, object] = {}
        self._on_terminal, self._keep = sys.stderr.isatty(), keep
        self._lines = "none" if self._on_terminal else lines
        self._started, self._shown_at = time.monotonic(), -math.inf
        self._printed: int | None = None  # the count in the last line
        self._bar: Any = None

    def update(self, number: int = 1, **fields: object) -> None:
        """Count `number` more. A field (loss=3.2) is shown until it has another value; None leaves its place empty."""
        self.reach(self._done + number, self._total, **fields)

    def reach(self, done: int, total: int | None, **fields: object) -> None:
        """Set the count to `done` of `total`."""
        self._done, self._total = done, total
        self._fields |= fields
        now, (first, between) = time.monotonic(), _ON_TERMINAL if self._on_terminal else _AS_LINES
        due = now - self._started >= first and now - self._shown_at >= between
        if due and (self._on_terminal or self._lines != "none"):
            self._shown_at = now
            self._show()

    def close(self) -> None:
        """Show the final count, and end the display. Closing again has no effect."""
        global _open_bars
        if self._bar is not None:
            self._show()
            with _LOCK:
                self._bar.close()
                _open_bars -= 1
                if _open_bars == 0:
                    sys.stderr = _stderr
            self._bar = None
        elif self._printed != self._done and (self._lines == "last" or self._printed is not None):
            self._show()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def left(self) -> str:
        """`0:12:30 left` at the mean speed so far; empty if there is no speed yet, or nothing is left."""
        left = 0 if self._total is None else self._total - self._done
        return f"{timedelta(seconds=round(min(left / self._rate, 1e9)))} left" if left > 0 and self._rate > 0 else ""

    @property
    def _rate(self) -> float:
        return (self._done - self._first) / max(time.monotonic() - self._started, 1e-9)

    def _show(self) -> None:
        of_all = "" if self._total is None else f"/{self._total:,}"
        fields = {f"{self._unit}/s": self._rate or None, **self._fields}
        shown = [(name, _format(value)) for name, value in fields.items() if value is not None]
        parts = [f"{value} {name}" if name.endswith("/s") else f"{name} {value}" for name, value in shown]
        parts = [*filter(None, [f"{self._done:,}{of_all} {self._unit}", self.left]), *parts]
        if not self._on_terminal:
            self._printed = self._done
            print(f"{self._description}: {', '.join(parts)}", file=sys.stderr, flush=True)
            return
        text = ", ".join(parts).replace("{", "{{").replace("}", "}}")
        bar_format = "{desc}: " + ("" if self._total is None else "{percentage:3.0f}%|{bar}| ") + text
        with _LOCK:
            if self._bar is None:
                self._bar = _add_bar(self._total, self._done, self._description, self._keep, bar_format)
            self._bar.n, self._bar.total, self._bar.bar_format = self._done, self._total, bar_format
            self._bar.refresh()


def _add_bar(total: int | None, done: int, description: str, keep: bool, bar_format: str) -> Any:
    """While there are bars, tqdm's own file replaces stderr, so that printed lines appear above them."""
    from tqdm import tqdm
    from tqdm.contrib import DummyTqdmFile

    global _open_bars, _stderr
    if _open_bars == 0:
        tqdm.monitor_interval = 0  # no thread of tqdm's in a process that forks
        tqdm.set_lock(_LOCK)
        _stderr, sys.stderr = sys.stderr, DummyTqdmFile(sys.stderr)
    _open_bars += 1
    display = {"leave": keep, "dynamic_ncols": True, "bar_format": bar_format}
    return tqdm(total=total, initial=done, desc=description, file=_stderr, **display)


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else escape_control_characters(str(value))


@contextmanager
def bars(unit: str, name: str, *, keep: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for each part of some work, one after another; yields a function of (done, total, part)."""
    with ExitStack() as current:
        by_part: dict[str, Progress] = {}

        def show(done: int, total: int, part: str) -> None:
            if part not in by_part:
                current.close()
                by_part.clear()
                by_part[part] = current.enter_context(Progress(total, unit, f"{name}: {part}", done=done, keep=keep))
            by_part[part].reach(done, total)

        yield show


def above_bars() -> AbstractContextManager[Any]:
    """Within this context, whatever is printed on either stream appears above the bars, if there are any."""
    from tqdm import tqdm

    return tqdm.external_write_mode(file=_stderr) if _open_bars else nullcontext()
