"""A page of panels and text, laid out in inches; matplotlib places by fractions of a size that must be known before."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from rpr.report.drawing import INK, MUTED, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _RIGHT, _GAP, _PANEL_WIDTH, _LEAST_WIDTH = 0.75, 0.85, 0.24, 2.1, 9.6


class Sheet:
    """A figure filled from top to bottom, with `columns` panels beside each other; its height is known when it is full.

    All lengths are in inches; `top` is where the next thing goes, from the top of the page. Made and filled inside
    `drawing.styled()`.
    """

    def __init__(self, columns: int) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure()
        self.width = max(_LEAST_WIDTH, _LEFT + _RIGHT + columns * _PANEL_WIDTH + (columns - 1) * _GAP)
        self.right = self.width - _RIGHT  # where the last panel ends
        self.panel_width = (self.right - _LEFT - (columns - 1) * _GAP) / columns
        self.top = 0.2
        self._axes: list[tuple[Axes, tuple[float, float, float, float]]] = []
        self._texts: list[tuple[Any, float]] = []

    def text(
        self, text: str, *, size: float = 9.5, colour: str = MUTED, weight: str = "normal", below: float = 0.0
    ) -> None:
        drawn = self.figure.text(
            0.2 / self.width, 0.0, plain(text), fontsize=size, color=colour, fontweight=weight, va="top"
        )
        self._texts.append((drawn, self.top))
        self.top += below

    def heading(self, heading: str, explanation: str) -> None:
        """The start of a part: a line, and an explanation as wide as the page."""
        self.top += 0.12
        self.text(heading, size=12, colour=INK, weight="bold", below=0.27)
        lines = textwrap.wrap(explanation, int(13.2 * self.width))
        self.text("\n".join(lines), below=0.165 * len(lines) + 0.1)

    def panel(self, column: int, height: float, *, down: float = 0.0) -> Axes:
        """Axes in a column, `down` below the top."""
        return self.axes(_LEFT + column * (self.panel_width + _GAP), self.panel_width, height, down)

    def axes(self, left: float, width: float, height: float, down: float = 0.0) -> Axes:
        axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0), label=str(len(self._axes)))
        axes.tick_params(labelsize=8, length=2.5)
        self._axes.append((axes, (left, self.top + down, width, height)))
        return axes

    def finish(self) -> Figure:
        """The figure, as high as what it holds."""
        height = self.top + 0.1
        self.figure.set_size_inches(self.width, height)
        for axes, (left, top, width, tall) in self._axes:
            axes.set_position((left / self.width, 1 - (top + tall) / height, width / self.width, tall / height))
        for text, top in self._texts:
            text.set_y(1 - top / height)
        return self.figure
