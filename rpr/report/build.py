"""A complete report from run records: tables, plots and one HTML page, each file written atomically."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters
from rpr.records.files import KEPT_METRICS, metrics_of
from rpr.records.record import Record, run_file
from rpr.report import html, plots
from rpr.report.grouping import run_groups
from rpr.report.groups import Group, Variant
from rpr.report.learning import Learning, RunKey, learning_of, run_key
from rpr.report.plot_style import as_pdf
from rpr.report.samples import lines_of, own_file, samples, selected
from rpr.report.speed import SpeedRow
from rpr.report.statements import Statement, statements
from rpr.report.tables import Tables, alike, build_tables, summary_table
from rpr.tables import render
from rpr.tables.grid import legend

MOST_LINES, MOST_ROWS, MOST_STATEMENTS = 40, 12, 5  # on a terminal
MOST_UNFOLDED = 4  # groups with findings in Markdown
MOST_ALONE = 24  # groups that are drawn though they have one variant
_REMARKS = "remarks.txt"
LATEX_HEAD = (
    "% In the preamble: \\usepackage{booktabs}\n"
    "% Each table for the width of a page, with intervals and notes, then again for a column, labelled ...-narrow.\n"
)


@dataclass(frozen=True)
class Report:
    """A report in `out_dir`, and the files that were written there."""

    title: str
    out_dir: Path
    chapters: tuple[html.Chapter, ...]
    tables: Tables
    problems: tuple[str, ...]
    files: list[Path]
    remarks: tuple[str, ...] = ()

    @cached_property
    def headlines(self) -> list[Statement]:
        """The first statements of the groups in turn; of several only comparisons, as their rows say the rest."""
        several = len(self.chapters) > 1
        by_chapter = [[one for one in each.statements if one.comparisons or not several] for each in self.chapters]
        in_turn = [statement for turn in zip_longest(*by_chapter) for statement in turn if statement is not None]
        return in_turn[:MOST_STATEMENTS]

    @property
    def everything(self) -> str:
        """The whole report as text for a terminal."""
        parts = []
        for chapter in self.chapters:
            findings = [str(statement) for statement in chapter.statements] or ["no finding; see the tables"]
            parts.append("\n".join([chapter.group.heading, *render.wrapped(findings, "- ")]))
        parts += ["\n".join(["Remarks", *render.wrapped(self.remarks, "- ")])] if self.remarks else []
        how = render.wrapped([*legend(self.tables.grids, render.shows_intervals), *self.tables.rules])
        return "\n\n".join([*parts, *map(render.titled, self.tables.grids), "\n".join(how)])

    @property
    def summary(self) -> str:
        """At most MOST_LINES lines: variants next to the paper's figures, findings, differences, where the rest is."""
        groups, problems = [chapter.group for chapter in self.chapters], len(self.problems)
        several = len(groups) > 1
        findings: list[str] = []
        for finding in self.headlines:
            heading = f"{finding.group.heading}: " if several and finding.group else ""
            lines = render.wrapped([f"{heading}{finding}"], "- ")
            if findings and len(findings) + len(lines) > MOST_LINES // 2:
                break  # the other half is for the tables
            findings += lines
        tail = ["", "Findings", *findings] if findings else []
        tail += ["", *render.wrapped([differs_line(self.tables)])]
        if self.remarks:
            tail.append(f"What the records cannot say of themselves: {len(self.remarks)} remarks, in the page.")
        if problems:
            tail.append(f"Not in this report: {problems} file{'s' if problems > 1 else ''} that cannot be read.")
        tail.append(f"Everything else: {self.out_dir / 'index.html'} (or report.md; on the terminal: verbose=true)")
        runs = [run for group in groups for run in group.runs]
        finished = sum(run.status == "finished" for run in runs)
        summary = [f"{self.title}: {finished} of {len(runs)} runs finished"]
        families = alike(groups)
        for number, family in enumerate(families):
            left = len(families) - number
            table = _summary_lines(family, MOST_LINES - len(tail) - len(summary) - (2 if left > 1 else 0))
            if not table:
                summary += ["", f"and {left} more group{'s' if left > 1 else ''} of runs, in the page"]
                break
            summary += table
        return "\n".join([*summary, *tail])

    @property
    def markdown(self) -> str:
        parts = [f"# {render.escape_markdown(self.title)}"]
        many = len(self.chapters) > MOST_UNFOLDED or "recipes" in self.tables.sections
        parts += [f"<details><summary>Findings of {len(self.chapters)} groups of runs</summary>"] if many else []
        for chapter, suffix in zip(self.chapters, suffixes([one.group for one in self.chapters]), strict=True):
            drawn = [plot for plot in chapter.plots if plot.name != "learning_curves"] or chapter.plots
            pictures = [render.picture(plot.description, f"{plot.name}{suffix}.svg") for plot in drawn]
            if pictures or chapter.statements:
                parts += [f"## {render.escape_markdown(chapter.group.heading)}", *pictures[:1]]
                parts += [render.bullets(map(str, chapter.statements))] if chapter.statements else []
                parts += pictures[1:]
        parts += ["</details>"] if many else []
        parts += ["## Remarks", render.bullets(self.remarks)] if self.remarks else []
        parts += [render.markdown(grid, signs=False) for grid in self.tables.grids]
        parts += ["## How to read the tables", render.bullets([*legend(self.tables.grids), *self.tables.rules])]
        parts += ["## Not in this report", render.bullets(self.problems)] if self.problems else []
        return page_of(parts)

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it for programs."""
        groups = [
            {
                "heading": chapter.group.heading,
                "synthetic": chapter.group.synthetic,
                "runs": [f"{run.name}-{run.run_id}" for run in chapter.group.runs],
                "findings": [_finding(statement) for statement in chapter.statements],
            }
            for chapter in self.chapters
        ]
        tables = [render.as_json(grid) for grid in self.tables.grids]
        return {
            "title": self.title,
            "tables": tables,
            "groups": groups,
            "remarks": list(self.remarks),
            "problems": list(self.problems),
        }


def build_report(
    records: Sequence[tuple[Path, Record]],
    out_dir: Path,
    title: str,
    problems: Sequence[str] = (),
    benches: Sequence[SpeedRow] = (),
    baseline: str | None = None,
    remarks: Sequence[str] = (),
    *,
    pdf: bool = False,
) -> Report:
    """Write report.md, .csv, .json and .tex, index.html and the plots as SVG into `out_dir`, and remove the plots of an
    earlier report there.

    Learning curves and samples are read from the files next to each record, if they exist. With several groups the
    file names of the plots include the group's name.

    `problems`: lines about unusable records, which the report shows. `benches`: speeds measured by alternating rounds,
    for the table of speeds. `baseline`: as in `run_groups`. `remarks`: as `read_remarks` gives them. `pdf`: whether
    the plots are also written as PDF. Raises RecordError if there is no record, or `out_dir`
    cannot be written.
    """
    if problems and not records:
        raise RecordError(f"no run record to report{unusable_records(problems)}")
    shown = [(path, record.shown()) for path, record in records]
    paths = {run_key(record): path for path, record in shown}

    def file_of(record: Record, name: str) -> Path:
        return run_file(paths[run_key(record)], name)

    def metrics(record: Record) -> list[dict[str, Any]]:
        return metrics_of(paths[run_key(record)])

    unusable = list(problems)
    groups = run_groups((record for _, record in shown), read_learning(shown, unusable), baseline)
    tables = build_tables(groups, benches)
    contents: dict[str, str | bytes] = {}
    chapters = []
    for group, suffix in zip(groups, suffixes(groups), strict=True):
        # In a grid of recipes, or among many groups, one variant alone is a line of the tables.
        draws = len(group.variants) > 1 or ("recipes" not in tables.sections and len(groups) <= MOST_ALONE)
        drawn = tuple(plots.all_plots(group, _curves(group, metrics))) if draws else ()
        for plot in drawn:
            contents[f"{plot.name}{suffix}.svg"] = plot.svg
            if pdf:
                contents[f"{plot.name}{suffix}.pdf"] = as_pdf(plot.figure())
        learned, remark = html.learned_pictures(group, file_of)
        sentences = samples(group, file_of)
        chapters.append(html.Chapter(group, tuple(statements(group)), drawn, sentences, learned, remark))
    report = Report(title, out_dir, tuple(chapters), tables, tuple(unusable), [], tuple(remarks))
    contents |= {
        "report.md": report.markdown,
        "report.csv": render.as_csv(tables.grids),
        "report.json": to_json(report.document, indent=1).decode() + "\n",
        "report.tex": "\n".join([LATEX_HEAD, *map(render.latex, tables.main), *map(render.latex_narrow, tables.main)]),
        "index.html": html.html_page(report),
    }
    try:
        for name, content in contents.items():
            report.files.append(out_dir / name)
            replace_file(report.files[-1], content)
        for path in out_dir.iterdir():  # with plots of an earlier report, of other groups or as PDF
            if plots.FILE.fullmatch(path.name) and path not in report.files:
                path.unlink()
    except OSError as error:
        raise RecordError(f"{out_dir}: cannot write the report ({error}); choose another directory") from None
    return report


def unusable_records(problems: Sequence[str]) -> str:
    """The first of the lines about unusable records, as the end of a message that there is none; empty without any."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"; not read: {problems[0]}{more}" if problems else ""


def read_remarks(root: Path, records: Sequence[tuple[Path, Record]] = ()) -> list[str]:
    """What records cannot say of themselves: the lines of remarks.txt in `root` and, after the name of the folder, of
    those beside the records below it. Raises RecordError if one cannot be read.
    """
    remarks: list[str] = []
    beside = (path.with_name(_REMARKS) for path, _ in records)
    for path in dict.fromkeys([root / _REMARKS, *filter(own_file, beside)]):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: cannot be read as text ({error}); mend it, or remove it") from None
        where = "" if path.parent == root else f"{path.parent.relative_to(root).as_posix()}: "
        remarks += [escape_control_characters(f"{where}{line}") for line in text.splitlines() if line.strip()]
    return remarks


def read_learning(records: Sequence[tuple[Path, Record]], problems: list[str]) -> dict[RunKey, Learning]:
    """How the validation curve of each finished run ended, if its metrics file exists and is long enough."""
    by_run = {}
    for path, record in records:
        try:
            metrics = metrics_of(path) if record.status == "finished" else []
        except RecordError as error:
            problems.append(str(error))
            continue
        if (learning := learning_of(record, _series(metrics, "validation/loss"))) is not None:
            by_run[run_key(record)] = learning
    return by_run


def differs_line(tables: Tables) -> str:
    """One line with the kinds of differences from the paper's runs; empty without any."""
    papers = tables.sections.get("paper", ())
    kinds = dict.fromkeys(difference.kind for grid in papers for line in grid.rows for difference in line.differs)
    return f"These runs differ from the paper's in {', '.join(kinds)}." if kinds else ""


def _summary_lines(family: Sequence[Group], room: int) -> list[str]:
    """The table of groups that are alike, with so many variants that it fits into so many lines; empty if none do."""
    rows = [(variant, group) for group in family for variant in group.variants]
    heading = family[0].common_heading if len(family) > 1 else family[0].heading
    for most in range(min(MOST_ROWS, len(rows)), 0, -1):
        grid = summary_table(selected(family[0], rows, most, "rows are shown")[0])
        title = render.wrapped([" | ".join(filter(None, (heading, grid.setting)))])
        table = ["", *title, *render.terminal(grid).split("\n")]
        table += [f"and {len(rows) - most} more variants, in the page"] if most < len(rows) else []
        if len(table) <= room:
            return table
    return []


def page_of(parts: Sequence[str]) -> str:
    """A Markdown page of these parts."""
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _finding(statement: Statement) -> dict[str, Any]:
    comparisons = [
        {
            "variant": comparison.variant.label,
            "reference": comparison.reference.label,
            "split": comparison.split,
            "metric": comparison.group.metric,
            "change": comparison.change.value,
            "n": comparison.change.n,
            "interval": comparison.change.interval and asdict(comparison.change.interval),
            "verdict": comparison.verdict,
            "why": comparison.why_undecided or None,
            "holds_corrected": None if statement.holding is None else comparison in statement.holding,
        }
        for comparison in statement.comparisons
    ]
    verdict = statement.agreement and statement.agreement.verdict
    return {"text": statement.text, "agreement": verdict, "comparisons": comparisons}


def suffixes(groups: Sequence[Group]) -> list[str]:
    """What distinguishes the file names of the plots of several groups."""
    if len(groups) == 1:
        return [""]
    names = [f"-{group.data}-{group.model}-{group.max_steps}-{group.hardware}" for group in groups]
    names = [re.sub(r"[^A-Za-z0-9_]+", "-", name) for name in names]
    return [f"{name}-{names[:at].count(name) + 1}" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _curves(group: Group, metrics: Callable[[Record], list[dict[str, Any]]]) -> list[tuple[Variant, plots.Curves]]:
    """The curves of the variants that get a line; damaged files have been reported already."""
    curves = []
    for variant in lines_of(group)[0]:
        for record in variant.finished or variant.records:
            try:
                rows = metrics(record)
            except RecordError:
                continue
            series = {name: _series(rows, name) for name in KEPT_METRICS}
            if any(series.values()):
                curves.append((variant, series))
    return curves


def _series(metrics: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    # A resumed run repeats the steps since its checkpoint, and the later line counts.
    values = {line["step"]: line[name] for line in metrics if isinstance(line.get(name), (int, float))}
    return {step: float(value) for step, value in sorted(values.items()) if math.isfinite(value)}
