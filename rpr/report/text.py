"""How cells, notes and whole grids of text are written: for a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rpr.io.escape import visible
from rpr.records.scores import Interval
from rpr.report.rows import Cell

DASH = "–"  # an en dash: no one reads it as a minus or a zero
WIDTH = 100


class Footnotes:
    """Numbers the reasons and remarks in the order in which they occur, each text once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def cell_text(cell: Cell, digits: int, footnotes: Footnotes, *, intervals: bool = True) -> str:
    """`36.4 [35.1, 37.6]` of one run, `36.4 ± 0.3` over several seeds, or a dash with the number of its footnote."""
    if cell.value is None:
        assert cell.reason is not None
        return f"{DASH} {footnotes.mark(cell.reason)}"
    deviation = f" ± {cell.sd:.{digits}f}" if cell.sd is not None else ""
    within = ""
    if intervals and cell.interval is not None:
        within = f" [{cell.interval.low:.{digits}f}, {cell.interval.high:.{digits}f}]"
    return f"{cell.value:.{digits}f}{deviation}{within}"


def interval_note(interval: Interval) -> str:
    """What the brackets of `cell_text` are."""
    return (
        f"[a, b] is the {interval.level:.0%} interval of one run over the sentences of its test set, not over "
        f"trainings ({interval.method}, {interval.samples:,} samples, seed {interval.seed})"
    )


def aligned(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    # Words stand left, figures right: the first and the remark column are words.
    widths = [max(len(line[index]) for line in [headings, *cells]) for index in range(len(headings))]

    def line(texts: Sequence[str]) -> str:
        words = {0} | ({len(headings) - 1} if headings[-1] == "note" else set())
        pairs = enumerate(zip(texts, widths, strict=True))
        return "  ".join(
            text.ljust(width) if index in words else text.rjust(width) for index, (text, width) in pairs
        ).rstrip()

    return [line(headings), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, cells)]


def wrapped(items: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for mark, text in items:
        folded = textwrap.wrap(
            text, WIDTH, initial_indent=mark, subsequent_indent=" " * (len(mark) or 2), break_long_words=False
        )
        lines += folded
    return lines


def escape_markdown(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    for character in "|*`#":
        escaped = escaped.replace(character, "\\" + character)
    return visible(" ".join(escaped.split()))


def escape_latex(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        DASH: "--",
    }
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    return "".join(
        special.get(character, f"\\{character}" if character in "&%$#_{}" else character) for character in text
    )
