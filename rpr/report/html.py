"""One self-contained HTML page: it fetches nothing, its only script sorts tables, and all text is escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rpr import paper
from rpr.records.record import Record, flat, varying
from rpr.report.contents import Chapter, Report
from rpr.report.groups import Group
from rpr.report.render import Grid, layout, legend
from rpr.report.samples import FileOf, own_file, selected
from rpr.report.score_table import HEADINGS, alike
from rpr.report.sweep_files import sweep_file

MOST_ITEMS = 60  # per list: thousands of runs can have a note each, and report.json has all of them
MOST_FINDINGS = 3  # above a table
MOST_PICTURES = 6  # of what positions learned, per chapter
PICTURE_NAME = "positions.svg"
_TEMPLATES = Path(__file__).parent / "templates"
_JSON = json.JSONEncoder(ensure_ascii=False)  # json.dumps would create one per value
_SCRIPT = (_TEMPLATES / "sort.js").read_text(encoding="utf-8")
# Nothing is fetched, and no script runs but the one of this hash, whatever a record contains.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


class Family(NamedTuple):
    """The groups of one table, the best of their rows first, and its chapters."""

    grid: Grid
    chapters: tuple[Chapter, ...]

    @property
    def findings(self) -> list[str]:
        return [*dict.fromkeys(finding for chapter in self.chapters for finding in chapter.findings)]


def learned_pictures(group: Group, file_of: FileOf) -> tuple[tuple[tuple[str, bytes], ...], str]:
    """Captions and figures written by `rpr-cli report run=...`, one per variant, and a line about those left out."""
    # An SVG in an <img> runs no script and fetches nothing, so untrusted files are shown unchanged.
    having = []
    for variant in group.variants:
        pictures = [(run, path) for run in variant.records if own_file(path := file_of(run, PICTURE_NAME))]
        having += [(variant, *pair) for pair in pictures[:1]]
    shown, remark = selected(group, having, MOST_PICTURES, "rows with a picture are shown")
    return tuple((f"{variant.label}: {run.name}", path.read_bytes()) for variant, run, path in shown), remark


def html_page(report: Report) -> str:
    """The whole page, with the largest table first. The same report gives the same bytes, so it contains no times
    except those of the runs.
    """
    chapters = {id(chapter.group): chapter for chapter in report.chapters}
    grids = zip(
        report.tables.sections.get("scores", ()), alike([chapter.group for chapter in report.chapters]), strict=True
    )
    families = [Family(grid, tuple(chapters[id(group)] for group in groups)) for grid, groups in grids]
    families.sort(key=lambda family: -len(family.grid.rows))
    # Its extent and what its sweep asks: `Does k matter? 8 runs of 5 rows.`
    runs = [run for chapter in report.chapters for run in chapter.group.runs]
    shared = set[str].intersection(*({*run.sweeps} for run in runs)) if runs else set[str]()
    asked = str(sweep_file(*shared).get("description") or "") if len(shared) == 1 else ""
    about = asked[:1].upper() + asked[1:] or "Scores of Transformers by how they represent positions"
    rows = sum(len(chapter.group.variants) for chapter in report.chapters)
    extent = f"{about}. {_count(len(runs), 'run')} of {_count(rows, 'row')}."
    sections = {name: grids for name, grids in report.tables.sections.items() if name != "scores"}
    page = _ENVIRONMENT.get_template("page.html.j2")
    return page.render(report=report, families=families, sections=sections, extent=extent)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _recorded(run: Record) -> dict[str, Any]:
    """What a record says beside its command and its results, by dotted key."""
    results = {"command", "config", "training", "scores", "by_length", "by_context"}
    return flat(run.config) | flat(run.model_dump(exclude=results))


def _lines(run: Record, first: dict[str, Any] | None = None) -> str:
    """What a record says; if `first` is given, only what that one says otherwise."""
    recorded = _recorded(run)
    keys = recorded if first is None else varying([first, recorded])
    return "\n".join(f"{key}={_JSON.encode(recorded.get(key))}" for key in sorted(keys))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "image": lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
    "text": partial(html.escape, quote=False),  # outside of attributes; records are full of quotes
    "spaced": lambda heading: heading.replace(" | ", " · "),
    "no_break": lambda text: text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),  # inside `k = 16`
    "count": _count,
    "drawn": lambda grid, priority: layout(grid.up_to(priority)),
}
_ENVIRONMENT.globals |= {
    "recorded": _recorded,
    "lines_of": _lines,
    "legend_of": lambda grid: legend([grid]),
    "headings": HEADINGS,
    "most_items": MOST_ITEMS,
    "most_findings": MOST_FINDINGS,
    "policy": POLICY,
    "script": _SCRIPT,
    "source": paper.SOURCE,
}
