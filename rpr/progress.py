"""Progress of a command: a bar on a terminal; elsewhere plain lines, at most one every ten seconds."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import IO, Any, Literal

from rpr.io.escape import escape_control_characters

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.2
SECONDS_BEFORE_A_BAR = 0.5  # shorter work shows none
_LOCK = threading.RLock()  # of all bars: a sweep's are drawn by a thread of their own
_terminal_disabled = False


class Progress:
    """A counter with a progress display. It must be closed; used as a context manager, it is closed at the end.

    A bar is redrawn only by `update` and `reach`: it does not move while nothing is done.
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
        """Count items called `unit` ("steps"): `total` of them, if known, of which `done` are already done.

        Args:
            keep: whether the bar stays on the terminal after it is closed.
            lines: which lines are printed without a terminal: "none"; "slow": from the tenth second on; "last": in any
                case one at the end.
        """
        self._total, self._unit, self._description = total, unit, escape_control_characters(description)
        self._done = self._first = done
        self._fields: dict[str, object] = {}
        self._on_terminal = sys.stderr.isatty() and not _terminal_disabled
        self._keep, self._lines = keep, "none" if sys.stderr.isatty() else lines
        self._started = time.monotonic()
        self._shown_at: float | None = None
        self._printed: int | None = None  # the count in the last line
        self._bar: Any = None

    def update(self, number: int = 1, **fields: object) -> None:
        """Count `number` more. A field (loss=3.2) is shown until it has another value; None leaves its place empty."""
        self.reach(self._done + number, self._total, **fields)

    def reach(self, done: int, total: int | None, **fields: object) -> None:
        """Set the count to `done` of `total`."""
        self._done, self._total = done, total
        self._fields |= fields
        if not self._on_terminal:
            wait = math.inf if self._lines == "none" else SECONDS_BETWEEN_LINES
        else:
            wait = SECONDS_BEFORE_A_BAR if self._shown_at is None else SECONDS_BETWEEN_DRAWINGS
        now = time.monotonic()
        if now - (self._started if self._shown_at is None else self._shown_at) >= wait:
            self._shown_at = now
            self._show()

    def close(self) -> None:
        """Show the final count, and end the display. Closing again has no effect."""
        if self._bar is not None:
            self._show()
            with _LOCK:
                self._bar.close()
                _Terminal.end()
            self._bar = None
        elif self._printed != self._done and (self._lines == "last" or self._printed is not None):
            self._show()
        self._on_terminal, self._lines, self._printed = False, "none", None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def left(self) -> str:
        """`0:12:30 left` at the mean speed so far; empty if there is no speed yet, or nothing is left."""
        rate = self._rate
        left = 0 if self._total is None else self._total - self._done
        return f"{timedelta(seconds=round(min(left / rate, 1e9)))} left" if left > 0 and rate > 0 else ""

    @property
    def _rate(self) -> float:
        return (self._done - self._first) / max(time.monotonic() - self._started, 1e-9)

    def _show(self) -> None:
        of_all = "" if self._total is None else f"/{self._total:,}"
        parts = [f"{self._done:,}{of_all} {self._unit}", self.left]  # a narrow terminal cuts the end
        if self._rate > 0:
            parts.append(f"{_format(self._rate)} {self._unit}/s")
        for name, value in self._fields.items():
            if value is not None:
                shown = _format(value)
                parts.append(f"{shown} {name}" if name.endswith("/s") else f"{name} {shown}")
        text = ", ".join(part for part in parts if part)
        if self._on_terminal:
            self._draw(text.replace("{", "{{").replace("}", "}}"))
        else:
            self._printed = self._done
            print(f"{self._description}: {text}", file=sys.stderr, flush=True)

    def _draw(self, text: str) -> None:
        from tqdm import tqdm

        with _LOCK:
            bar_format = "{desc}: " + ("" if self._total is None else "{percentage:3.0f}%|{bar}| ") + text
            if self._bar is None:
                tqdm.monitor_interval = 0  # no tqdm thread in a process that forks
                tqdm.set_lock(_LOCK)
                self._bar = tqdm(
                    total=self._total,
                    initial=self._done,
                    desc=self._description,
                    file=_Terminal.begin(),
                    leave=self._keep,
                    dynamic_ncols=True,
                    bar_format=bar_format,
                )
            self._bar.n, self._bar.total, self._bar.bar_format = self._done, self._total, bar_format
            self._bar.refresh()


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


def disable_terminal() -> None:
    """From now on this process shows no progress on a terminal: the process that started it draws there."""
    global _terminal_disabled
    _terminal_disabled = True


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else escape_control_characters(str(value))


class _Terminal:
    """stderr, which tqdm's own file replaces while there are bars, so that printed lines appear above them."""

    bars = 0
    stream: IO[str]

    @classmethod
    def begin(cls) -> IO[str]:
        """Add a bar; returns the stream to draw it on."""
        from tqdm.contrib import DummyTqdmFile

        if cls.bars == 0:
            cls.stream = sys.stderr
            sys.stderr = DummyTqdmFile(cls.stream)
        cls.bars += 1
        return cls.stream

    @classmethod
    def end(cls) -> None:
        """Remove a bar."""
        cls.bars -= 1
        if cls.bars == 0:
            sys.stderr = cls.stream


@contextmanager
def above_bars() -> Iterator[None]:
    """Within this context, whatever is printed on either stream appears above the bars, if there are any."""
    if not _Terminal.bars:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode(file=_Terminal.stream):
        yield
