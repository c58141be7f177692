"""A complete report from run records: its text for a terminal, as Markdown and for programs, plots and one HTML page.

Each file is written atomically. The page fetches nothing, its only script sorts tables, and all text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rpr import paper
from rpr.errors import RecordError, RprError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters, escape_markdown
from rpr.records.files import KEPT_METRICS, WHOLE, metrics_of, read_documents
from rpr.records.record import RECORD_NAME, Record, flat, read_text, varying
from rpr.report import plots
from rpr.report.groups import SOLVED, Beside, Group, heading_of, run_groups, run_key, sweep_files_of
from rpr.report.plots import Plot, lines_of, own_file, texts_of
from rpr.report.render import DASH, Grid, aligned, as_json, bullets, latex, layout, legend, markdown, shortened
from rpr.report.tables import HEADINGS, Line, Tables, alike, all_rows, findings

SAMPLES = {"test": 3, "long": 2}  # of a split; 2 of the user's own
MOST_FINDINGS = 5  # lines on a terminal
MOST_ABOVE = 3  # findings above a table of the page
MOST_UNFOLDED = 4  # groups: of more, findings are folded in Markdown, and one variant alone is not drawn
LEAST_ROWS = 5  # of a table on a terminal: fewer say nothing
_LONGEST_LABEL, _REMARKS = 44, "remarks.txt"
_SHORT = {"change": "change, 95%", "paper's change": "paper", f"seeds ≥ {SOLVED:g}%": "solved"}  # on a terminal
Records = Sequence[tuple[Path, Record]]


class Chapter(NamedTuple):
    """A group with its findings and plots."""

    group: Group
    findings: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    suffix: str = ""  # of the files of its plots


@dataclass(frozen=True)
class Report:
    """A report in `out_dir`; `unfinished`: lines about runs without a result, `problems`: about unreadable files."""

    title: str
    out_dir: Path
    chapters: Sequence[Chapter]
    tables: Tables
    problems: Sequence[str] = ()
    remarks: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    files: list[Path] = field(default_factory=list)

    def summary(self, width: int, height: int) -> str:
        """Ranked tables, five lines of findings and the page's address, in a window less a line for the prompt."""
        # 1. The findings of the groups in turn, each with what distinguishes its group.
        several = len(self.chapters) > 1
        of_groups = [[f"{one.group.heading}: " * several + line for line in one.findings] for one in self.chapters]
        turns = [line for turn in zip_longest(*of_groups) for line in turn if line is not None]
        wrapped = [textwrap.wrap(line, width, break_long_words=False) for line in dict.fromkeys(turns)]
        fits = [length <= MOST_FINDINGS for length in accumulate(map(len, wrapped))]
        said = [line for lines in compress(wrapped, fits) for line in lines]
        # 2. What else stands below the tables.
        more, unread = len(self.unfinished) - 2, len(self.problems)
        tail = [*[""] * bool(said), *said, *self.unfinished[:2]]
        tail += [f"and {more} more runs without a result, in the page"] * (more > 0)
        tail += [f"Not in this report: {unread} file(s) that cannot be read."] * (unread > 0)
        tail += [f"Page: {self.out_dir / 'index.html'}"]
        # 3. The tables, as far as there is room.
        tables = ranked_groups([one.group for one in self.chapters], width, height - 1 - len(tail))
        return "\n".join([*(tables or [f"{self.title}: no run has finished"]), *tail])

    @property
    def markdown(self) -> str:
        parts = [f"# {escape_markdown(self.title)}"]
        many = len(self.chapters) > MOST_UNFOLDED or "recipes" in self.tables.sections
        parts += [f"<details><summary>Findings of {len(self.chapters)} groups of runs</summary>"] * many
        for chapter in self.chapters:
            drawn = [plot for plot in chapter.plots if plot.name != "learning_curves"] or chapter.plots
            parts += [f"## {escape_markdown(chapter.group.heading)}", bullets(chapter.findings)]
            parts += [f"![{escape_markdown(plot.description)}]({plot.name}{chapter.suffix}.svg)" for plot in drawn]
        parts += ["</details>"] * many
        parts += map(markdown, self.tables.grids)
        parts += ["## How to read the tables", bullets([*self.tables.rules, *legend(self.tables.grids)])]
        for heading, lines in self.appendices.items():
            parts += [f"## {heading}", bullets(lines)]
        return "\n\n".join(parts) + "\n"

    @property
    def appendices(self) -> dict[str, Sequence[str]]:
        """Lines by heading, as far as there are any."""
        lines = {"Remarks": self.remarks, "Without a result": self.unfinished, "Not in this report": self.problems}
        return {heading: texts for heading, texts in lines.items() if texts}

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it for programs."""
        groups = [
            {"heading": group.heading, "synthetic": group.synthetic, "baseline": group.baseline.label}
            | {"runs": [f"{run.name}-{run.run_id}" for run in group.runs], "findings": said}
            for group, said, *_ in self.chapters
        ]
        lists = {name: [*getattr(self, name)] for name in ("remarks", "unfinished", "problems")}
        tables = [*map(as_json, self.tables.grids)]
        return {"title": self.title, "tables": tables, "groups": groups, "rules": [*self.tables.rules], **lists}


# The terminal


def ranked_groups(groups: Sequence[Group], width: int, room: int) -> list[str]:
    """The score tables of groups, with an empty line between two, as many as fit into `room` lines."""
    lines: list[str] = []
    families = alike(groups)
    for at, family in enumerate(families):
        left = len(families) - at
        own = (room - len(lines) - bool(lines) - (left > 1)) // min(left, 3)
        if lines and own < LEAST_ROWS:
            return [*lines, f"and {left} more table{'s' * (left > 1)}, in the page"]
        lines += [*([""] if lines else []), *_ranked_text(all_rows(family), width, max(own, LEAST_ROWS))]
    return lines


def _ranked_text(table: Grid, width: int, room: int) -> list[str]:
    """The rows with runs, the best first, in a window; the baseline, the paper's, the best and the worst are pinned."""
    page, rows = layout(table, 0), list[Line](table.rows)
    # 1. Which rows.
    known, first = [at for at, line in enumerate(rows) if line.variant.finished], rows[0].group
    special = [at for at in known if rows[at].variant in (rows[at].group.baseline, rows[at].group.papers_relative)]
    setting = table.setting.replace(" | ", " · ")
    heads = textwrap.wrap(f"{setting} · {first.split} · change from {first.baseline.label}", width)
    fits = len(known) < room - len(heads)
    order = [*dict.fromkeys([*known[:1], *special, *known[-1:], *known])]
    chosen = sorted(order if fits else order[: max(room - len(heads) - 2, 2)])
    # 2. Their cells: of intervals those of changes, and of missing changes nothing.
    figures = [column for column in page.columns if column.kind != "label"]
    headings = (column.heading.removesuffix(f" {first.split}") for column in figures)
    cells = [["", *(_SHORT.get(heading, heading) for heading in headings)]]
    for at in chosen:
        shown = dict(zip(page.columns, page.lines[at], strict=True))
        name, *more = (f"{column.heading} {cell.text}" for column, cell in shown.items() if column.kind == "label")
        own = [f"{shown[column].text} {shown[column].interval * column.signed}".rstrip() for column in figures]
        own = ["" if text == DASH and column.signed else text for text, column in zip(own, figures, strict=True)]
        cells.append([", ".join([name.removeprefix("position "), *more]), *own])
    longest = max(20, width - sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[1:]))
    for row in cells:
        row[0] = shortened(row[0], min(longest, _LONGEST_LABEL if width < 100 else longest))
    lines = aligned(cells, [0, *(at for at, column in enumerate(figures, start=1) if column.kind == "words")])
    return [*heads, *lines, *[f"... {len(known) - len(chosen)} more rows (a taller window shows them)"] * (not fits)]


# The page

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPT = (_TEMPLATES / "sort.js").read_text(encoding="utf-8")
# Nothing is fetched, and no script runs but the one of this hash, whatever a record contains.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


def html_page(report: Report) -> str:
    """The whole page, with the largest table first; the same report gives the same bytes."""
    groups, sections = [chapter.group for chapter in report.chapters], {**report.tables.sections}
    own = ([chapter for chapter in report.chapters if chapter.group in family] for family in alike(groups))
    families = sorted(zip(sections.pop("scores", ()), own, strict=True), key=lambda family: -len(family[0].rows))
    runs = [run for group in groups for run in group.runs]
    asked = [str(file["description"]) for file in sweep_files_of(runs) if file.get("description")]
    about = asked[0][:1].upper() + asked[0][1:] if len(asked) == 1 else "Scores of Transformers by their positions"
    shown = {"report": report, "families": families, "sections": sections, "about": about, "runs": len(runs)}
    return _ENVIRONMENT.get_template("page.html.j2").render(**shown, samples_of=samples, learned_by=_learned)


def _recorded(run: Record, first: Record | None = None) -> str:
    results = {"command", "config", "training", "scores", "by_length", "by_context"}
    facts = [flat(one.config) | flat(one.model_dump(exclude=results)) for one in (run, first or run)]
    keys = facts[0] if first is None else varying(facts)
    return "\n".join(f"{key}={json.dumps(facts[0].get(key), ensure_ascii=False)}" for key in sorted(keys))


_LOOKS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
_ENVIRONMENT = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, **_LOOKS)
_ENVIRONMENT.filters["image"] = lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
_ENVIRONMENT.filters["drawn"] = layout
_ENVIRONMENT.globals |= {"recorded": _recorded, "legend_of": lambda grid: legend([grid]), "headings": HEADINGS}
_ENVIRONMENT.globals |= {"most_findings": MOST_ABOVE, "policy": POLICY, "script": _SCRIPT, "source": paper.SOURCE}


# From records to files


def build_report(
    records: Records,
    out_dir: Path,
    title: str,
    problems: Sequence[str] = (),
    baseline: str | None = None,
    remarks: Sequence[str] = (),
    *,
    published: bool | None = None,
    pdf: bool = False,
) -> Report:
    """Write report.md, .json and .tex, index.html and the plots as SVG (and PDF) into `out_dir`.

    Learning curves, samples and the nats of documents are read from the files next to each record, if they exist. With
    several groups the file names of the plots include the group's name.
    `problems`: lines about unusable records, which the report shows. `baseline`, `published`: as in `run_groups`.
    `remarks`: as `read_remarks` gives them. Raises RecordError if `out_dir` cannot be written.
    """
    # 1. The groups with a result, and the runs without one.
    shown, unusable = [(path, record.shown()) for path, record in records], list(problems)
    beside = {run_key(record): read_beside(path, record, unusable) for path, record in shown}
    every = run_groups((record for _, record in shown), beside, baseline, published=published)
    groups = [group for group in every if group.finished]
    without = [run for group in every for variant in group.variants for run in variant.unfinished]
    # 2. Tables and pictures.
    tables, contents = Tables(groups), dict[str, str | bytes]()
    chapters = []
    for group, suffix in zip(groups, _suffixes(groups), strict=True):
        drawn = plots.all_plots(group) if len(group.variants) > 1 or len(groups) <= MOST_UNFOLDED else []
        contents |= {f"{plot.name}{suffix}.svg": plot.svg for plot in drawn}
        contents |= {f"{plot.name}{suffix}.pdf": plots.rendered(plot.figure(), "pdf") for plot in drawn if pdf}
        chapters.append(Chapter(group, (*findings(group),), drawn, suffix))
    # 3. The files.
    unfinished = [_unfinished(run, beside[run_key(run)].path) for run in without]
    report = Report(title, out_dir, chapters, tables, unusable, remarks, unfinished)
    contents |= {
        "report.md": report.markdown,
        "report.json": json.dumps(report.document, indent=1, ensure_ascii=False) + "\n",
        "report.tex": "\n".join(["% In the preamble: \\usepackage{booktabs}\n", *map(latex, tables.main)]),
        "index.html": html_page(report),
    }
    try:
        for name, content in contents.items():
            replace_file(out_dir / name, content)
    except OSError as error:
        raise RecordError(f"{out_dir}: cannot write the report ({error}); choose another directory") from None
    report.files.extend(out_dir / name for name in contents)
    return report


def read_beside(path: Path, record: Record, problems: list[str]) -> Beside:
    """A line about what cannot be read is added to `problems`."""
    splits = {score.split for score in record.scores} if record.kind.lower_is_better else ()
    try:
        rows = metrics_of(path)
        documents = {one: read_documents(path, WHOLE.format(one)) or read_documents(path, one) for one in splits}
    except RprError as error:
        problems.append(str(error))
        return Beside(path)
    curves = {}
    for name in KEPT_METRICS:
        # A resumed run repeats the steps since its checkpoint, and the later line counts.
        values = {line["step"]: float(line[name]) for line in rows if isinstance(line.get(name), (int, float))}
        curves[name] = {step: value for step, value in sorted(values.items()) if math.isfinite(value)}
    return Beside(path, {name: curve for name, curve in curves.items() if curve}, documents)


def samples(group: Group) -> list[tuple[Any, ...]]:
    """Evenly spaced lines of each test split: its name, the line's number, source and reference, and translations, each
    (label, text), of the drawn variants with the first one's sources.
    """
    sentences = []
    for split, count in (SAMPLES | dict.fromkeys(group.own_splits, 2)).items():
        every = {row.label: texts_of((run.path for run in row.beside.values()), split) for row in lines_of(group)[0]}
        read = {label: texts for label, texts in every.items() if texts is not None}
        sources, references, _ = next(iter(read.values()), ([], [], []))
        for line in sorted({(2 * at + 1) * len(sources) // (2 * count) for at in range(count)} if sources else ()):
            made = [(label, made[line]) for label, (other, _, made) in read.items() if other == sources]
            sentences.append((split, line + 1, sources[line], references[line], made))
    return sentences


def _learned(group: Group) -> dict[str, bytes]:
    """The figures written by `rpr-cli report run=...`, one for each variant, by caption."""
    # An SVG in an <img> runs no script and fetches nothing, so untrusted files are shown unchanged.
    pictures: dict[str, bytes] = {}
    for variant in group.variants:
        files = (run.path.with_name("positions.svg") for run in variant.beside.values())
        if (file := next(filter(own_file, files), None)) is not None:
            pictures[f"{variant.label}: {escape_control_characters(file.parent.name)}"] = file.read_bytes()
    return pictures


def _unfinished(run: Record, path: Path) -> str:
    root = path.parent.parent
    where = "" if root == Path("runs") else " " + shlex.quote(f"runs_dir={root}")
    removal = f"; to remove it: rpr-cli runs remove {shlex.quote(path.parent.name)}{where}"
    removable = path.name == RECORD_NAME and run.status != "running"
    return escape_control_characters(f"{run.name}: {run.outcome}{removal * removable}")


def _suffixes(groups: Sequence[Group]) -> list[str]:
    names = [re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(["", *map(str, heading_of(group.runs[0]))])) for group in groups]
    numbers = (f"-{names[:at].count(name) + 1}" * (names.count(name) > 1) for at, name in enumerate(names))
    return [""] if len(names) == 1 else [name + number for name, number in zip(names, numbers, strict=True)]


def read_remarks(root: Path, records: Records = ()) -> list[str]:
    """The lines of remarks.txt in `root` and, after its folder's name, of those beside records. Raises RecordError."""
    paths = dict.fromkeys([root / _REMARKS, *(path.with_name(_REMARKS) for path, _ in records)])
    texts = ((path.parent.relative_to(root).as_posix(), read_text(path)) for path in paths if own_file(path))
    lines = ((folder, line) for folder, text in texts for line in text.splitlines() if line.strip())
    return [escape_control_characters(line if folder == "." else f"{folder}: {line}") for folder, line in lines]
