"""What a report consists of, and its text for a terminal, as Markdown and for programs."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rpr.io.escape import escape_control_characters
from rpr.report.findings import findings
from rpr.report.groups import Group
from rpr.report.plot_style import Plot
from rpr.report.samples import Sample
from rpr.report.score_table import Line, Tables, alike, ranked
from rpr.tables import render
from rpr.tables.grid import figure_text, legend, number

MOST_FINDINGS = 5  # lines on a terminal
MOST_UNFOLDED = 4  # groups with findings in Markdown
LEAST_ROWS = 5  # of a table on a terminal: fewer say nothing
_LONGEST_LABEL = 44


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
        """The first findings of the groups in turn."""
        several = [chapter.group for chapter in self.chapters]
        by_chapter = [
            [f"{_short(chapter.group, several)}{finding}" for finding in chapter.findings] for chapter in self.chapters
        ]
        return [finding for turn in zip_longest(*by_chapter) for finding in turn if finding is not None]

    def summary(self, width: int, height: int) -> str:
        """The ranked table of each family of groups, at most five lines of findings, and where the rest is, in a window
        of this size, of which the last line is the prompt's.
        """
        # 1. What stands below the tables.
        said: list[str] = []
        for finding in dict.fromkeys(self.headlines):
            lines = textwrap.wrap(finding, width, break_long_words=False)
            if len(said) + len(lines) > MOST_FINDINGS:
                break
            said += lines
        tail = [*([""] if said else []), *said]
        tail += [escape_control_characters(line) for line in self.unfinished[:2]]
        if len(self.unfinished) > 2:
            tail.append(f"and {len(self.unfinished) - 2} more runs without a result, in the page")
        if self.problems:
            tail.append(f"Not in this report: {len(self.problems)} file(s) that cannot be read.")
        tail.append(f"Page: {self.out_dir / 'index.html'}")
        # 2. The tables, as far as there is room.
        groups = [chapter.group for chapter in self.chapters]
        head = ranked_tables(groups, width, height - 1 - len(tail)) or [f"{self.title}: no run has finished"]
        return "\n".join([*head, *tail])

    @property
    def markdown(self) -> str:
        parts = [f"# {render.escape_markdown(self.title)}"]
        many = len(self.chapters) > MOST_UNFOLDED or "recipes" in self.tables.sections
        parts += [f"<details><summary>Findings of {len(self.chapters)} groups of runs</summary>"] if many else []
        for chapter in self.chapters:
            drawn = [plot for plot in chapter.plots if plot.name != "learning_curves"] or chapter.plots
            pictures = [render.picture(plot.description, f"{plot.name}{chapter.suffix}.svg") for plot in drawn]
            parts += [f"## {render.escape_markdown(chapter.group.heading)}", render.bullets(chapter.findings)]
            parts += pictures
        parts += ["</details>"] if many else []
        parts += [render.markdown(grid, signs=False) for grid in self.tables.grids]
        parts += ["## How to read the tables", render.bullets([*self.tables.rules, *legend(self.tables.grids)])]
        for heading, lines in (
            ("Remarks", self.remarks),
            ("Without a result", self.unfinished),
            ("Not in this report", self.problems),
        ):
            parts += [f"## {heading}", render.bullets(lines)] if lines else []
        return page_of(parts)

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
        return {
            "title": self.title,
            "tables": [render.as_json(grid) for grid in self.tables.grids],
            "groups": groups,
            "rules": list(self.tables.rules),
            "remarks": list(self.remarks),
            "unfinished": list(self.unfinished),
            "problems": list(self.problems),
        }


def _short(group: Group, groups: Sequence[Group]) -> str:
    """The start of a finding of one of several groups: what distinguishes it from them."""
    if len(groups) == 1:
        return ""
    alike = [other for other in groups if other.corpus == group.corpus]
    return f"{group.corpus if len(alike) == 1 else group.heading}: "


def ranked_tables(groups: Sequence[Group], width: int, room: int) -> list[str]:
    """The ranked table of each family of groups, with an empty line between two, as many as fit into `room` lines."""
    lines: list[str] = []
    families = alike(groups)
    for at, family in enumerate(families):
        left = len(families) - at
        own = (room - len(lines) - bool(lines) - (left > 1)) // min(left, 3)
        if lines and own < LEAST_ROWS:
            return [*lines, f"and {left} more table{'s' * (left > 1)}, in the page"]
        lines += [*([""] if lines else []), *ranked_text(family, width, max(own, LEAST_ROWS))]
    return lines


def ranked_text(family: Sequence[Group], width: int, room: int) -> list[str]:
    """The rows of groups that are alike, the best first, in at most `room` lines of at most `width` characters: the
    baseline, the paper's row, the best and the worst, and then the others from the best on.
    """
    lines, first = [line for line in ranked(family) if line.variant.finished], family[0]
    # 1. Which rows.
    pinned = {0, len(lines) - 1}
    pinned |= {at for at, line in enumerate(lines) if line.variant in (line.group.baseline, line.group.papers_relative)}
    shown = [*sorted(pinned), *(at for at in range(len(lines)) if at not in pinned)]
    heading = (first.common_heading if len(family) > 1 else first.heading).replace(" | ", " · ")
    heads = textwrap.wrap(f"{heading} · {first.split} · change from {first.baseline.label}", width)
    fits = len(lines) < room - len(heads)
    chosen = sorted(shown if fits else shown[: max(room - len(heads) - 2, 2)])
    # 2. Their cells.
    paper, solved = any(line.papers_change.value is not None for line in lines), first.task
    headings = ["", "n", first.kind.heading, "change, 95%", *["paper"] * paper, *["solved"] * solved, "verdict"]
    cells = [[headings[0], *headings[1:]], *(_cells(lines[at], len(family) > 1, paper, solved) for at in chosen)]
    longest = max(20, width - sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[1:]))
    for row in cells:
        row[0] = render.shortened(row[0], min(longest, _LONGEST_LABEL if width < 100 else longest))
    # 3. The text.
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust, *[str.rjust] * (len(headings) - 2), str.ljust]
    texts = [
        "  ".join(side(text, size) for side, text, size in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if not fits:
        gap = next((at for at in range(1, len(chosen)) if chosen[at] > chosen[at - 1] + 1), len(chosen) - 1)
        texts.insert(gap + 1, f"  ... {len(lines) - len(chosen)} more rows (a taller window shows them)")
    return [*heads, *texts]


def _cells(line: Line, several: bool, paper: bool, solved: bool) -> list[str]:
    group, split, digits = line.group, line.group.split, line.group.digits
    score, change, verdict = line.score(split), line.change(split), line.verdict(split)
    label = f"{line.variant.label}, {group.distinctly()}" if several and group.distinct else line.variant.label
    own = line.variant is group.baseline or change.value is None
    shown = "" if own else " ".join(figure_text(change, digits, signed=True))
    papers = line.papers_change.value
    cells = [label, str(len(line.variant.finished)), figure_text(score, digits)[0], shown.rstrip()]
    cells += ["" if papers is None else number(papers, 1, signed=True)] * paper + [line.solved] * solved
    return [*cells, verdict]


def page_of(parts: Sequence[str]) -> str:
    """A Markdown page of these parts."""
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
