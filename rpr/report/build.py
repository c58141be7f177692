"""A complete report from run records: tables, plots and one HTML page, each file written atomically."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.metrics import read_metrics
from rpr.records.record import METRICS_NAME, Record, run_file
from rpr.report import html, plots
from rpr.report.agreement import FINDINGS_RULE, RULE, Comparison
from rpr.report.grouping import run_groups
from rpr.report.groups import Group, Variant
from rpr.report.learning import LEARNED_RULE, Learning, RunKey, learning_of, run_key
from rpr.report.learning import RULE as LEARNING_RULE
from rpr.report.samples import FileOf, samples
from rpr.report.sampling import lines_of, sample_evenly
from rpr.report.speed import SpeedRow
from rpr.report.statements import Statement, statements
from rpr.report.tables import Tables, alike, build_tables, summary_table
from rpr.tables.grid import Grid, legend
from rpr.tables.render import (
    as_csv,
    as_json,
    bullets,
    escape_markdown,
    latex,
    latex_narrow,
    markdown,
    shows_intervals,
    terminal,
    titled,
    wrapped,
)

CURVES = ("validation/bleu", "validation/loss", "train/loss")
MOST_LINES, MOST_ROWS, MOST_STATEMENTS = 40, 12, 5  # on a terminal
MOST_UNFOLDED = 4  # groups with findings in Markdown
LATEX_HEAD = (
    "% In the preamble: \\usepackage{booktabs}\n"
    "% Each table for the width of a page, with intervals and notes, then again for a column, labelled ...-narrow.\n"
)


@dataclass(frozen=True)
class Report:
    """The written files, the summary for a terminal, and the whole report as one JSON document."""

    summary: str
    document: dict[str, Any]
    files: tuple[Path, ...]
    problems: tuple[str, ...]
    chapters: Sequence[html.Chapter]
    tables: Tables

    @property
    def everything(self) -> str:
        """The whole report as text for a terminal."""
        parts = []
        for chapter in self.chapters:
            found = [str(one) for one in chapter.statements] or ["no finding; see the tables"]
            findings = wrapped(found, "- ")
            parts.append("\n".join([chapter.group.heading, *findings]))
        legend_lines = wrapped(how_to_read(self.tables, shows_intervals))
        return "\n\n".join([*parts, *map(titled, self.tables.grids), "\n".join(legend_lines)])


def build_report(
    records: Sequence[tuple[Path, Record]],
    out_dir: Path,
    title: str,
    problems: Sequence[str] = (),
    benches: Sequence[SpeedRow] = (),
    baseline: str | None = None,
    *,
    pdf: bool = False,
) -> Report:
    """Write report.md, .csv, .json and .tex, index.html and the plots as SVG into `out_dir`.

    Learning curves and samples are read from the files next to each record, if they exist. With several groups the
    file names of the plots include the group's name.

    Args:
        records: each with the path of its file, as find_records returns them.
        problems: lines about unusable records, which the report shows.
        pdf: whether the plots are also written as PDF, in the width of a column.
        baseline: the positions that others are compared with; None: absolute (sinusoidal).
        benches: speeds measured by alternating rounds, for the table of speeds.

    Raises:
        RecordError: if there is no record, or `out_dir` cannot be written.
    """
    shown = [(path, record.shown()) for path, record in records]
    paths = {run_key(record): path for path, record in shown}

    def file_of(record: Record, name: str) -> Path:
        return run_file(paths[run_key(record)], name)

    unusable = list(problems)
    groups = run_groups((record for _, record in shown), read_learning(shown, unusable), baseline)
    tables = build_tables(groups, benches)
    files: list[Path] = []
    try:
        chapters = []
        for group, suffix in zip(groups, suffixes(groups), strict=True):
            pictures = tuple(plots.all_plots(group, _curves(group, file_of), tables.recipes, pdf=pdf))
            for picture in pictures:
                for ending, content in (("svg", picture.svg), ("pdf", picture.pdf)):
                    if content is not None:
                        files.append(out_dir / f"{picture.name}{suffix}.{ending}")
                        replace_file(files[-1], content)
            learned, remark = html.learned_pictures(group, file_of, unusable)
            sentences = samples(group, file_of)
            chapters.append(html.Chapter(group, tuple(statements(group)), pictures, sentences, learned, remark))
        headlines = _headlines(chapters)
        document = {
            "title": title,
            "tables": [as_json(grid) for grid in tables.grids],
            "groups": [_group_json(chapter) for chapter in chapters],
            "problems": list(unusable),
        }
        texts = {
            "report.md": _markdown(title, chapters, tables, unusable),
            "report.csv": as_csv(tables.grids),
            "report.json": to_json(document, indent=1).decode() + "\n",
            "report.tex": "\n".join([LATEX_HEAD, *map(latex, tables.main), *map(latex_narrow, tables.main)]),
            "index.html": html.html_page(title, chapters, tables, headlines, unusable),
        }
        for name, text in texts.items():
            files.append(out_dir / name)
            replace_file(files[-1], text)
    except OSError as error:
        raise RecordError(f"{out_dir}: cannot write the report ({error}); choose another directory") from None
    summary = _summary(title, groups, tables, headlines, unusable, out_dir)
    return Report(summary, document, tuple(files), tuple(unusable), chapters, tables)


def read_learning(records: Sequence[tuple[Path, Record]], problems: list[str]) -> dict[RunKey, Learning]:
    """How the validation curve of each finished run ended, if its metrics file exists and is long enough."""
    found = {}
    for path, record in records:
        if record.status != "finished":
            continue
        try:
            losses = _series(read_metrics(run_file(path, METRICS_NAME)), "validation/loss")
        except RecordError as error:
            problems.append(str(error))
            continue
        if (learning := learning_of(record, losses)) is not None:
            found[run_key(record)] = learning
    return found


def how_to_read(tables: Tables, shown: Callable[[Grid], bool] = lambda grid: True) -> list[str]:
    """The legend of the tables: symbols, verdicts, `still learning` and `not learned`; `shown` as of `legend`."""
    return [
        *legend(tables.grids, shown),
        *([RULE] if tables.paper else []),
        FINDINGS_RULE,
        f"{LEARNING_RULE}.",
        f"{LEARNED_RULE}.",
    ]


def differs_line(tables: Tables) -> str:
    """One line with the kinds of differences from the paper's runs; empty without any."""
    kinds = dict.fromkeys(one.kind for grid in tables.paper for line in grid.rows for one in line.differs)
    return f"These runs differ from the paper's in {', '.join(kinds)}." if kinds else ""


# A terminal


def _headlines(chapters: Sequence[html.Chapter]) -> list[Statement]:
    """The first statements of the groups, round robin; one statement covers all groups that were still learning."""
    learning = [one for chapter in chapters for one in chapter.statements if one.learning]
    if len(learning) > 1:
        variants = [variant for chapter in chapters for variant in chapter.group.variants]
        falling = sum(variant.still_learning is not None for variant in variants)
        documents = all(chapter.group.documents for chapter in chapters)
        decided = "comparisons are at equal tokens" if documents else "no comparison with them is decided"
        words = f"{falling} of the {len(variants)} variants were still learning when training"
        learning = [Statement(f"{words} ended: {decided}. Train longer; the page says how long.")]
    others = [[one for one in chapter.statements if not one.learning] for chapter in chapters]
    in_turn = [one for turn in zip_longest(*others) for one in turn if one is not None]
    return [*learning, *in_turn][:MOST_STATEMENTS]


def _summary(
    title: str,
    groups: Sequence[Group],
    tables: Tables,
    headlines: Sequence[Statement],
    problems: Sequence[str],
    out_dir: Path,
) -> str:
    """At most MOST_LINES lines: variants next to the paper's figures, findings, differences, where to find the rest."""
    heads = [f"{one.group.heading}: " if len(groups) > 1 and one.group else "" for one in headlines]
    findings = wrapped([f"{head}{line}" for head, line in zip(heads, headlines, strict=True)], "- ")
    differs = differs_line(tables)
    tail = ["", "Findings", *findings] if findings else []
    tail += ["", *wrapped([differs])] if differs else [""]
    if problems:
        tail.append(f"Not in this report: {len(problems)} file{'s' if len(problems) > 1 else ''} that cannot be read.")
    tail.append(f"Everything else: {out_dir / 'index.html'} (or report.md; on the terminal: verbose=true)")
    runs = [run for group in groups for run in group.runs]
    finished = sum(run.status == "finished" for run in runs)
    lines = [f"{title}: {finished} of {len(runs)} runs finished"]
    families = alike(groups)
    for number, family in enumerate(families):
        rows = [(variant, group) for group in family for variant in group.variants]
        left = len(families) - number
        room = MOST_LINES - len(tail) - len(lines) - (1 if left == 1 else 3)
        heading = wrapped([family[0].common_heading if len(family) > 1 else family[0].heading])
        # Each row is a line, below the heading, the columns and a rule, and above a line on those left out.
        shown = sample_evenly(rows, max(0, min(MOST_ROWS, room - len(heading) - 3)))
        table = [*heading, *terminal(summary_table(shown)).split("\n")] if shown else []
        if len(shown) < len(rows):
            table.append(f"and {len(rows) - len(shown)} more variants, in the page")
        if not shown or len(table) > room:
            lines += ["", f"and {left} more group{'s' if left > 1 else ''} of runs, in the page"]
            break
        lines += ["", *table]
    return "\n".join([*lines, *tail])


# Files


def _markdown(title: str, chapters: Sequence[html.Chapter], tables: Tables, problems: Sequence[str]) -> str:
    parts = [f"# {escape_markdown(title)}"]
    many = len(chapters) > MOST_UNFOLDED
    if many:
        parts.append(f"<details><summary>Findings of {len(chapters)} groups of runs</summary>")
    for chapter in chapters:
        if chapter.statements:
            parts += [f"## {escape_markdown(chapter.group.heading)}", bullets(map(str, chapter.statements))]
    if many:
        parts.append("</details>")
    parts += [markdown(grid, signs=False) for grid in tables.grids]
    parts += ["## How to read the tables", bullets(how_to_read(tables))]
    if problems:
        parts += ["## Not in this report", bullets(problems)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _group_json(chapter: html.Chapter) -> dict[str, Any]:
    group = chapter.group
    return {
        "heading": group.heading,
        "synthetic": group.synthetic,
        "runs": [f"{run.name}-{run.run_id}" for run in group.runs],
        "findings": [
            {
                "text": one.text,
                "agreement": one.agreement.verdict if one.agreement else None,
                "comparisons": [_comparison_json(found) for found in one.comparisons],
            }
            for one in chapter.statements
        ],
    }


def _comparison_json(one: Comparison) -> dict[str, Any]:
    interval = one.change.interval
    return {
        "variant": one.variant.label,
        "reference": one.reference.label,
        "split": one.split,
        "metric": one.group.metric,
        "change": one.change.value,
        "n": one.change.n,
        "interval": None if interval is None else asdict(interval),
        "verdict": one.verdict,
        "why": one.why_undecided or None,
    }


def suffixes(groups: Sequence[Group]) -> list[str]:
    """What distinguishes the file names of the plots of several groups."""
    if len(groups) == 1:
        return [""]
    names = [f"-{group.data}-{group.model}-{group.max_steps}-{group.hardware}" for group in groups]
    slugs = [re.sub(r"[^A-Za-z0-9_]+", "-", name) for name in names]
    return [
        one if slugs.count(one) == 1 else f"{one}-{slugs[: index + 1].count(one)}" for index, one in enumerate(slugs)
    ]


def _curves(group: Group, file_of: FileOf) -> list[tuple[Variant, plots.Curves]]:
    """The curves of the variants that get a line; damaged files have been reported already."""
    curves = []
    for variant in lines_of(group):
        for record in variant.finished or variant.records:
            try:
                metrics = read_metrics(file_of(record, METRICS_NAME))
            except RecordError:
                continue
            series = {name: _series(metrics, name) for name in CURVES}
            if any(series.values()):
                curves.append((variant, series))
    return curves


def _series(metrics: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    # A resumed run repeats the steps since its checkpoint, and the later line counts.
    values = {line["step"]: line[name] for line in metrics if isinstance(line.get(name), (int, float))}
    return {step: float(value) for step, value in sorted(values.items()) if math.isfinite(value)}
