"""The tables of the page: grids of text as HTML, a mark in a cell being a link to its footnote; all text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rpr import paper
from rpr.records.scores import HEADLINE_METRIC
from rpr.report.length_render import length_grid, length_heading, length_legend
from rpr.report.paper_render import paper_grid, paper_legend
from rpr.report.paper_rows import PaperTable
from rpr.report.render import grid, legend
from rpr.report.rows import Cell, LengthTable, Table

MOST_NOTES = 60  # of a list; thousands of runs can have a note each, and all stand in report.json
# `[35.1, 37.6]` and `(+9.3 to +10.4)` behind a figure: on a line of their own, so that tables are less wide.
_INTERVAL = re.compile(r" (?:\[[-\d.]+, [-\d.]+\]|\([-+\d.]+ to [-+\d.]+\))")
_LOUD = "NOT COMPARABLE"  # how a note begins that must be seen before the figures are used


@dataclass(frozen=True)
class Grid:
    """Cells as text. `words`: the columns that are words; `breaks`: the lines above which a new group begins."""

    headings: Sequence[str]
    words: Sequence[bool]
    cells: Sequence[Sequence[str]]
    breaks: frozenset[int] = frozenset()

    def without(self, columns: Iterable[int]) -> Grid:
        """Without some columns."""
        gone = set(columns)
        kept = [column for column in range(len(self.headings)) if column not in gone]
        cells = [[line[column] for column in kept] for line in self.cells]
        return Grid([self.headings[c] for c in kept], [self.words[c] for c in kept], cells, self.breaks)


def items(texts: Iterable[str], most: int = MOST_NOTES) -> str:
    """Items of a list; of very many the first, and how many there are besides."""
    texts = list(texts)
    shown = "".join(f"<li>{escape(text)}</li>" for text in texts[:most])
    more = len(texts) - most
    return shown + (f"<li>and {more:,} more, in report.json</li>" if more > 0 else "")


def main_table(table: Table, name: str) -> str:
    """The variants: sacreBLEU, the paper's figure, speed; the other metrics folded below."""
    headings, cells, footnotes = grid(table)
    words = [heading in ("position", "note") for heading in headings]
    kinds = [row.position.kind for row in table.rows]
    breaks = frozenset(line for line in range(1, len(kinds)) if kinds[line] != kinds[line - 1])
    whole = Grid(headings, words, cells, breaks)
    first_score = headings.index("seeds") + 1
    other = {first_score + place for place, column in enumerate(table.columns) if column.metric != HEADLINE_METRIC}
    parts = [_html(whole.without(other), name, len(footnotes))]
    figures = [cell for row in table.rows for cell in row.cells.values()]
    papers = f"paper: BLEU on {paper.TABLE2_TEST_SET}, EN-DE, base model"
    parts.append(_key(figures, papers))
    if other:
        metrics = "; ".join(dict.fromkeys(headings[column].split()[0] for column in sorted(other)))
        rest = whole.without(set(range(1, len(headings))) - other)
        parts.append(_folded(f"Other metrics: {metrics}", _html(rest, name, len(footnotes))))
    return "".join([*parts, _below(footnotes, legend(table), name)])


def length_part(lengths: LengthTable, name: str) -> str:
    """A metric by source length, under its heading."""
    headings, cells, footnotes = length_grid(lengths)
    words = [number == 0 for number in range(len(headings))]
    figures = [cell for row in lengths.cells.values() for cell in row]
    longer = "*: longer than any training source" if any(c.beyond_training for c in lengths.columns) else ""
    table = _html(Grid(headings, words, cells), name, len(footnotes)) + _key(figures, longer)
    body = table + _below(footnotes, length_legend(lengths), name)
    if lengths.metric == HEADLINE_METRIC:
        return f"<h3>{escape(length_heading(lengths))}</h3>{body}"
    return _folded(length_heading(lengths), body)


def paper_part(table: PaperTable, name: str, *, folded: bool) -> str:
    """One of the paper's tables with our figures beside its own."""
    headings, words, cells, footnotes = paper_grid(table)
    spreads = dict.fromkeys(one.spread for row in table.rows for one in row.figures if one.spread)
    marks = [f"{'[a, b]' if 'sentences' in spread else '(a to b)'}: {spread}" for spread in spreads]
    key = f'<p class="key">{escape("; ".join([*marks, "n: seeds"]))}.</p>' if marks else ""
    body = (
        _html(Grid(headings, words, cells), name, len(footnotes)) + key + _below(footnotes, paper_legend(table), name)
    )
    if folded:
        return _folded(" · ".join(filter(None, (table.title, spaced(table.setting)))), body)
    setting = f'<p class="lead">{escape(spaced(table.setting))}</p>' if table.setting else ""
    return f"<h3>{escape(table.title)}{badge(table.synthetic)}</h3>{setting}{body}"


def spaced(heading: str) -> str:
    """A heading of the reports, its parts set apart as on the page."""
    return heading.replace(" | ", " · ")


def badge(synthetic: bool) -> str:
    """What stands beside the heading of a table of made sentences."""
    return ' <span class="badge">synthetic data</span>' if synthetic else ""


def _html(grid: Grid, name: str, footnotes: int) -> str:
    head = "".join(
        f'<th scope="col"{" class=words" if word or not column else ""}>{escape(text)}</th>'
        for column, (text, word) in enumerate(zip(grid.headings, grid.words, strict=True))
    )
    lines = []
    for number, texts in enumerate(grid.cells):
        tds = "".join(
            f"<td{' class=words' if word else ''}>{_marks(escape(text), name, footnotes)}</td>"
            for text, word in zip(texts[1:], grid.words[1:], strict=True)
        )
        first = " class=first" if number in grid.breaks else ""
        lines.append(
            f'<tr{first}><th scope="row">{_marks(_together(escape(texts[0])), name, footnotes)}</th>{tds}</tr>'
        )
    body = "".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _together(text: str) -> str:
    """`k = 16` never breaks in two lines."""
    return text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _marks(escaped: str, name: str, footnotes: int) -> str:
    """`[2]` as a link to the second footnote; a number in brackets that no footnote has is left as it is."""

    def link(match: re.Match[str]) -> str:
        number = int(match[1])
        return f'<sup> <a href="#{name}-note-{number}">{number}</a></sup>' if 0 < number <= footnotes else match[0]

    return _INTERVAL.sub(r"<small>\g<0></small>", re.sub(r" ?\[(\d+)\]", link, escaped))


def _key(cells: Iterable[Cell], more: str) -> str:
    """How to read the cells, in one line."""
    known = [cell for cell in cells if cell.value is not None]
    words = ["±: standard deviation over the seeds"] if any(cell.sd is not None for cell in known) else []
    level = next((f"{cell.interval.level:.0%}" for cell in known if cell.interval is not None), None)
    if level is not None:
        words.append(f"[a, b]: {level} interval of one run over the test sentences")
    line = "; ".join([*words, *([more] if more else [])])
    return f'<p class="key">{escape(line)}.</p>' if line else ""


def _below(footnotes: Sequence[str], notes: Sequence[str], name: str) -> str:
    """Footnotes in sight, since cells lead to them; how the figures were made folded, unless it forbids comparing."""
    numbered = "".join(
        f'<li id="{name}-note-{number}">{escape(note)}</li>' for number, note in enumerate(footnotes, start=1)
    )
    loud = [note for note in notes if note.startswith(_LOUD)]
    quiet = [note for note in notes if not note.startswith(_LOUD)]
    parts = [f'<p class="warning">{escape(note)}</p>' for note in loud]
    parts += [f'<ol class="notes">{numbered}</ol>'] if numbered else []
    if quiet:
        parts.append(_folded("How these figures were made", f'<ul class="notes">{items(quiet)}</ul>'))
    return "".join(parts)


def _folded(summary: str, body: str) -> str:
    return f'<details class="quiet"><summary>{escape(summary)}</summary>{body}</details>'
