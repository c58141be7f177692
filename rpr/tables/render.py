"""Grids as text for a terminal, Markdown, LaTeX and JSON. A missing figure is a dash with a reason."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from pydantic_core import to_jsonable_python

from rpr.io.escape import escape_control_characters
from rpr.tables.grid import DASH, Cell, Column, Grid, Layout, layout, legend

WIDTH = 100
_CONTEXT = 3  # common characters of two texts shown before the first difference


def terminal(grid: Grid) -> str:
    """Aligned text with footnotes; omits intervals, then the least important columns, to fit the width. Columns that
    still do not fit follow below, with those of the labels again.
    """
    page, intervals = _fitted(grid)
    parts = ("\n".join(aligned(part, intervals=intervals)) for part in _parts(page, intervals))
    lines = "\n\n".join(parts).split("\n")
    for number, text in enumerate(page.footnotes, start=1):
        lines += wrapped([text], f"[{number}] ")
    return "\n".join(lines)


def shows_intervals(grid: Grid) -> bool:
    """Whether the intervals of the grid fit a terminal."""
    return _fitted(grid)[1]


def _fitted(grid: Grid) -> tuple[Layout, bool]:
    for priority, intervals in ((3, True), (2, True), (2, False), (1, False), (0, False)):
        page = layout(grid.up_to(priority))
        if _fits(page, intervals):
            break
    return page, intervals


def _fits(page: Layout, intervals: bool) -> bool:
    return max(map(len, aligned(page, intervals=intervals))) <= WIDTH


def _parts(page: Layout, intervals: bool) -> Iterator[Layout]:
    """The columns in parts that fit the width, each with those up to the last label."""
    num_labels = max((at for at, column in enumerate(page.columns, start=1) if column.label), default=0)
    labels, shown = page.columns[:num_labels], list[Column]()
    for column in page.columns[num_labels:]:
        if shown and not _fits(page.only([*labels, *shown, column]), intervals):
            yield page.only([*labels, *shown])
            shown = []
        shown.append(column)
    yield page.only([*labels, *shown])


def titled(grid: Grid) -> str:
    """A table for a terminal, with its title and setting above and its notes below."""
    head = wrapped(filter(None, (grid.title, grid.setting)))
    return "\n".join([*head, terminal(grid), *wrapped(note.text for note in grid.notes)])


def aligned(page: Layout, *, intervals: bool = True) -> list[str]:
    """Aligned columns: text left-aligned, figures right-aligned."""
    headings = [column.heading for column in page.columns]
    cells = [[shown.line(intervals=intervals) for shown in line] for line in page.lines]
    widths = [max(map(len, texts)) for texts in zip(headings, *cells, strict=True)]
    sides = [str.rjust if column.kind == "figures" else str.ljust for column in page.columns]

    def line(texts: Sequence[str]) -> str:
        return "  ".join(side(text, width) for side, text, width in zip(sides, texts, widths, strict=True)).rstrip()

    return [line(headings), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, cells)]


def wrapped(texts: Iterable[str], mark: str = "") -> list[str]:
    """Wrap texts to lines of at most WIDTH characters, each after the mark."""
    indent = " " * (len(mark) or 2)
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=mark, subsequent_indent=indent, break_long_words=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def shortened(text: str, width: int, other: str = "") -> str:
    """The text in `width` characters: both ends, or the part from its first difference to `other`, if that is later."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    head = width - 1 - tail
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    if common < head or text == other:
        return f"{text[:head]}…{text[len(text) - tail :]}"
    rest = "…" + text[common - _CONTEXT :]
    return rest if len(rest) <= width else rest[: width - 1] + "…"


def markdown(grid: Grid, *, signs: bool = True) -> str:
    """A section of Markdown, with a legend if `signs`; text from records is escaped."""
    page = grid.page
    parts = [f"## {escape_markdown(grid.title)}", ""]
    if grid.setting:
        parts += [escape_markdown(grid.setting), ""]
    parts += [f"**Warning:** {escape_markdown(text)}\n" for text in page.warnings]
    parts += [*_pipes(page.main), ""]
    lines = [f"- [{number}] {escape_markdown(text)}" for number, text in enumerate(page.footnotes, start=1)]
    lines += [f"- {escape_markdown(note)}" for note in (*page.notes, *(legend([grid]) if signs else []))]
    if lines:
        parts += ["<details><summary>Notes</summary>", "", *lines, "", "</details>"]
    return "\n".join(parts).rstrip("\n") + "\n"


def picture(text: str, link: str) -> str:
    """A picture in Markdown, with its alternative text."""
    return f"![{escape_markdown(text)}]({link})"


def bullets(lines: Iterable[str]) -> str:
    """A list in Markdown; text from records is escaped."""
    return "\n".join(f"- {escape_markdown(line)}" for line in lines) or "Nothing."


def _pipes(page: Layout) -> list[str]:
    headings = [escape_markdown(column.heading) for column in page.columns]
    rule = ["---" if column.label or column.words else "---:" for column in page.columns]
    cells = [[escape_markdown(shown.line()) for shown in line] for line in page.lines]
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *cells)]


def latex(grid: Grid) -> str:
    """A table of one column of a paper for \\usepackage{booktabs}: the main figures, an interval below its figure where
    that is a change, and warnings; all else is in the report.
    """
    page = layout(grid.up_to(0))
    kinds = ["l" if column.label or column.words else "r" for column in page.columns]
    caption = "; ".join(filter(None, (grid.title, grid.setting)))
    label = re.sub(r"[^a-z0-9]+", "-", f"{grid.name} {grid.setting}".lower()).strip("-")
    lines = [r"\begin{table}\centering\footnotesize\setlength{\tabcolsep}{3pt}"]
    lines += [rf"\caption{{{escape_latex(caption)}}}", rf"\label{{tab:{label}}}"]
    lines += [rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\toprule"]
    lines += [" & ".join(escape_latex(column.heading) for column in page.columns) + r" \\", r"\midrule"]
    for line in page.lines:
        lines.append(" & ".join(escape_latex(shown.text) for shown in line) + r" \\")
        ends = [shown.interval if column.signed else "" for shown, column in zip(line, page.columns, strict=True)]
        if any(ends):
            lines.append(" & ".join(rf"\tiny {escape_latex(end)}" if end else "" for end in ends) + r" \\")
    warnings = [rf"\par {escape_latex(text)}" for text in grid.page.warnings]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *warnings, r"\end{table}"]) + "\n"


def as_json(grid: Grid) -> dict[str, Any]:
    """Every figure, reason and remark of a grid by column key; None for a missing figure."""
    rows = [{column.key: _json(cell) for column, cell in zip(grid.columns, line, strict=True)} for line in grid.cells]
    return {
        "name": grid.name,
        "title": grid.title,
        "setting": grid.setting,
        "synthetic": grid.synthetic,
        "columns": {column.key: column.heading for column in grid.columns},
        "rows": rows,
        "notes": [asdict(note) for note in grid.notes],
        "legend": legend([grid]),
    }


def _json(cell: Cell) -> Any:
    remarks = {"remarks": list(cell.remarks)} if cell.remarks else {}
    if isinstance(cell.value, str):
        return {"text": cell.value, **remarks} if remarks else cell.value
    figure = cell.value
    interval = figure.interval and to_jsonable_python(figure.interval, exclude_none=True)
    known = {"value": figure.value, "n": figure.n, "deviation": figure.deviation, "interval": interval}
    return known | ({} if figure.reason is None else {"missing_because": figure.reason}) | remarks


_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", **{character: f"\\{character}" for character in "\\|*`#"}})
# Where brackets make a link, an image or a definition of one, not an interval or a number; and addresses.
_LINK = re.compile(
    r"""(?=\][(\[]) | (?=\]:\s*\S+(\s+["'(].*)?$) | (?=\[\^) | (?<=:)(?=//) | (?<=www)(?=\.)""",
    re.IGNORECASE | re.VERBOSE,
)


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, without images and links, but to e-mail addresses."""
    return escape_control_characters(_LINK.sub(r"\\", " ".join(text.translate(_MARKDOWN).split())))


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "†": r"$\dagger$",
    DASH: "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
})  # fmt: skip


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX shows it literally; the minus of a number is typeset as one, not as a hyphen."""
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", text.translate(_LATEX))
