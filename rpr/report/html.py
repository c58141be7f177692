"""One self-contained HTML page: no network, no script, light and dark, for phone and paper; all text is escaped."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rpr import paper
from rpr.records.record import Record, flat, varying
from rpr.report.contents import Chapter, Report
from rpr.report.groups import Group
from rpr.report.plot_style import Plot
from rpr.report.samples import FileOf, own_file, selected
from rpr.report.score_table import HEADINGS
from rpr.report.sweep_files import sweep_file
from rpr.tables.grid import legend

MOST_ITEMS = 60  # per list: thousands of runs can have a note each, and report.json has all of them
MOST_TABLES = 8  # unfolded
PICTURE_NAME = "positions.svg"
MOST_PICTURES = 6  # of what positions learned, per chapter
_JSON = json.JSONEncoder(ensure_ascii=False)  # json.dumps would create one per value
# Nothing is fetched and no script runs, whatever a record contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


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
    """The whole page. The same report gives the same bytes, so it contains no times except those of the runs."""
    first_plot, extent = _first_plot(report.chapters), _extent(report.chapters)
    return _TEMPLATES.get_template("page.html.j2").render(report=report, hero=first_plot, extent=extent)


def _first_plot(chapters: Sequence[Chapter]) -> Plot | None:
    """The first plot of the group with the most variants that learned."""

    def interest(chapter: Chapter) -> int:
        return sum(not chapter.group.unlearned(variant) for variant in chapter.group.variants)

    best = max((chapter for chapter in chapters if chapter.plots), key=interest, default=None)
    return None if best is None else best.plots[0]


def _extent(chapters: Sequence[Chapter]) -> str:
    """The extent of the report: `8 runs of 5 position variants: 6 finished, 2 without a result.`"""
    runs = [run for chapter in chapters for run in chapter.group.runs]
    variants, finished = sum(len(one.group.variants) for one in chapters), sum(run.status == "finished" for run in runs)
    extent = f"{_count(len(runs), 'run')} of {_count(variants, 'position variant')}"
    groups = f" in {len(chapters)} groups trained alike" if len(chapters) > 1 else ""
    left = f": {finished:,} finished, {len(runs) - finished:,} without a result" if finished < len(runs) else ""
    sweeps = [{*run.sweeps} for run in runs]
    alike = {*set[str].intersection(*sweeps)} if sweeps else set[str]()
    asked = str(sweep_file(*alike).get("description") or "") if len(alike) == 1 else ""
    about = asked[:1].upper() + asked[1:] or "Scores of Transformers by how they represent positions"
    return f"{extent}{groups}{left}. {about}."


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


_FILES = FileSystemLoader(Path(__file__).parent / "templates")
_TEMPLATES = Environment(
    loader=_FILES, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_TEMPLATES.filters |= {
    "image": lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
    "text": partial(html.escape, quote=False),  # outside of attributes; records are full of quotes
    "spaced": lambda heading: heading.replace(" | ", " · "),
    "no_break": lambda text: text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),  # inside `k = 16`
}
_TEMPLATES.globals |= {
    "count": _count,
    "recorded": _recorded,
    "lines_of": _lines,
    "legend_of": lambda grid: legend([grid]),
    "headings": HEADINGS,
    "most_items": MOST_ITEMS,
    "most_tables": MOST_TABLES,
    "policy": POLICY,
    "source": paper.SOURCE,
}
