"""What a report consists of, and its text for a terminal, as Markdown and for programs."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rpr.io.escape import escape_control_characters, escape_markdown
from rpr.report.findings import findings
from rpr.report.groups import SOLVED, Group
from rpr.report.plots import Plot
from rpr.report.render import DASH, Grid, as_json, bullets, layout, legend, markdown, shortened
from rpr.report.samples import Sample
from rpr.report.score_table import Line, Tables, alike, all_rows

MOST_FINDINGS = 5  # lines on a terminal
MOST_UNFOLDED = 4  # groups with findings in Markdown
LEAST_ROWS = 5  # of a table on a terminal: fewer say nothing
_LONGEST_LABEL = 44
_SHORT = {
    "change": "change, 95%",
    "paper's change": "paper",
    f"seeds ≥ {SOLVED:g}%": "solved",
}  # headings on a terminal


@dataclass(frozen=True)
class Chapter:
    """A group with its plots, sample translations, and figures with captions of what its runs' positions learned."""

    group: Group
    plots: tuple[Plot, ...] = ()
    samples: tuple[Sample, ...] = ()
    learned: tuple[tuple[str, bytes], ...] = ()
    learned_remark: str = ""
    suffix: str = ""  # of the files of its plots

    @cached_property
    def findings(self) -> list[str]:
        return findings(self.group)


@dataclass(frozen=True)
class Report:
    """A report in `out_dir`, and the files that were written there. `unfinished` are lines about runs without a result,
    each with the command that removes it; `problems` about files that cannot be read.
    """

    title: str
    out_dir: Path
    chapters: tuple[Chapter, ...]
    tables: Tables
    problems: tuple[str, ...]
    files: list[Path]
    remarks: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @cached_property
    def headlines(self) -> list[str]:
        """The first findings of the groups in turn, each with what distinguishes its group."""
        corpora, by_chapter = [chapter.group.corpus for chapter in self.chapters], []
        for group, lines in ((chapter.group, chapter.findings) for chapter in self.chapters):
            start = f"{group.corpus if corpora.count(group.corpus) == 1 else group.heading}: " * (len(corpora) > 1)
            by_chapter.append([f"{start}{line}" for line in lines])
        return [*dict.fromkeys(line for turn in zip_longest(*by_chapter) for line in turn if line is not None)]

    def summary(self, width: int, height: int) -> str:
        """The ranked tables, at most five lines of findings, and where the rest is, in a window of this size, of which
        the last line is the prompt's.
        """
        # 1. What stands below the tables.
        said: list[str] = []
        for finding in self.headlines:
            lines = textwrap.wrap(finding, width, break_long_words=False)
            if len(said) + len(lines) > MOST_FINDINGS:
                break
            said += lines
        tail = [*([""] if said else []), *said, *map(escape_control_characters, self.unfinished[:2])]
        if len(self.unfinished) > 2:
            tail.append(f"and {len(self.unfinished) - 2} more runs without a result, in the page")
        if self.problems:
            tail.append(f"Not in this report: {len(self.problems)} file(s) that cannot be read.")
        tail.append(f"Page: {self.out_dir / 'index.html'}")
        # 2. The tables, as far as there is room.
        tables = ranked_tables(self.tables.sections.get("scores", ()), width, height - 1 - len(tail))
        return "\n".join([*(tables or [f"{self.title}: no run has finished"]), *tail])

    @property
    def markdown(self) -> str:
        parts = [f"# {escape_markdown(self.title)}"]
        many = len(self.chapters) > MOST_UNFOLDED or "recipes" in self.tables.sections
        parts += [f"<details><summary>Findings of {len(self.chapters)} groups of runs</summary>"] if many else []
        for chapter in self.chapters:
            drawn = [plot for plot in chapter.plots if plot.name != "learning_curves"] or chapter.plots
            parts += [f"## {escape_markdown(chapter.group.heading)}", bullets(chapter.findings)]
            parts += [f"![{escape_markdown(plot.description)}]({plot.name}{chapter.suffix}.svg)" for plot in drawn]
        parts += ["</details>"] if many else []
        parts += [markdown(grid, signs=False) for grid in self.tables.grids]
        parts += ["## How to read the tables", bullets([*self.tables.rules, *legend(self.tables.grids)])]
        for heading, lines in self.appendices.items():
            parts += [f"## {heading}", bullets(lines)]
        return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"

    @property
    def appendices(self) -> dict[str, tuple[str, ...]]:
        """Lines by heading, as far as there are any."""
        lines = {"Remarks": self.remarks, "Without a result": self.unfinished, "Not in this report": self.problems}
        return {heading: texts for heading, texts in lines.items() if texts}

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it for programs."""
        groups = [
            {
                "heading": chapter.group.heading,
                "synthetic": chapter.group.synthetic,
                "baseline": chapter.group.baseline.label,
                "runs": [f"{run.name}-{run.run_id}" for run in chapter.group.runs],
                "findings": chapter.findings,
            }
            for chapter in self.chapters
        ]
        lists = {"rules": self.tables.rules, "remarks": self.remarks, "unfinished": self.unfinished}
        lists |= {"problems": self.problems}
        tables = [as_json(grid) for grid in self.tables.grids]
        return {"title": self.title, "tables": tables, "groups": groups} | {name: [*of] for name, of in lists.items()}


def ranked_groups(groups: Sequence[Group], width: int, room: int) -> list[str]:
    """The score tables of groups, as `ranked_tables` has them."""
    return ranked_tables([*map(all_rows, alike(groups))], width, room)


def ranked_tables(tables: Sequence[Grid], width: int, room: int) -> list[str]:
    """These score tables, with an empty line between two, as many as fit into `room` lines."""
    lines: list[str] = []
    for at, table in enumerate(tables):
        left = len(tables) - at
        own = (room - len(lines) - bool(lines) - (left > 1)) // min(left, 3)
        if lines and own < LEAST_ROWS:
            return [*lines, f"and {left} more table{'s' * (left > 1)}, in the page"]
        lines += [*([""] if lines else []), *_ranked_text(table, width, max(own, LEAST_ROWS))]
    return lines


def _ranked_text(table: Grid, width: int, room: int) -> list[str]:
    """The rows with runs, the best first, in at most `room` lines of at most `width` characters: the baseline, the
    paper's row, the best and the worst, and then the others from the best on.
    """
    page, rows = layout(table.up_to(0)), list[Line](table.rows)
    # 1. Which rows.
    known, first = [at for at, line in enumerate(rows) if line.variant.finished], rows[0].group
    special = [at for at in known if rows[at].variant in (rows[at].group.baseline, rows[at].group.papers_relative)]
    setting = table.setting.replace(" | ", " · ")
    heads = textwrap.wrap(f"{setting} · {first.split} · change from {first.baseline.label}", width)
    fits = len(known) < room - len(heads)
    order = [*dict.fromkeys([*sorted({known[0], *special, known[-1]}), *known])] if known else []
    chosen = sorted(order if fits else order[: max(room - len(heads) - 2, 2)])
    # 2. Their cells: of intervals those of changes, and of missing changes nothing.
    figures = [column for column in page.columns if not column.label]
    headings = (column.heading.removesuffix(f" {first.split}") for column in figures)
    cells = [["", *(_SHORT.get(heading, heading) for heading in headings)]]
    for at in chosen:
        shown = dict(zip(page.columns, page.lines[at], strict=True))
        name, *more = (f"{column.heading} {cell.text}" for column, cell in shown.items() if column.label)
        own = [f"{shown[column].text} {shown[column].interval * column.signed}".rstrip() for column in figures]
        own = ["" if text == DASH and column.signed else text for text, column in zip(own, figures, strict=True)]
        cells.append([", ".join([name.removeprefix("position "), *more]), *own])
    longest = max(20, width - sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[1:]))
    for row in cells:
        row[0] = shortened(row[0], min(longest, _LONGEST_LABEL if width < 100 else longest))
    # 3. The text.
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust, *(str.ljust if column.words else str.rjust for column in figures)]
    texts = [
        "  ".join(side(text, size) for side, text, size in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if not fits:
        places = [known.index(at) for at in chosen]
        gap = next((at for at in range(1, len(places)) if places[at] > places[at - 1] + 1), len(places) - 1)
        texts.insert(gap + 1, f"  ... {len(known) - len(chosen)} more rows (a taller window shows them)")
    return [*heads, *texts]
