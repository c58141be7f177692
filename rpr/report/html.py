"""One self-contained HTML page: no network, no script, light and dark, for phone and paper; all text is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rpr import paper
from rpr.io.escape import escape_control_characters
from rpr.records.record import Record, flat
from rpr.report.groups import Group
from rpr.report.plot_style import FIRST, Plot
from rpr.report.samples import FileOf, Samples, own_file, sampled, word_diff
from rpr.report.statements import Statement
from rpr.report.tables import HEADINGS, Tables
from rpr.tables.grid import legend

MOST_ITEMS = 60  # per list: thousands of runs can have a note each, and report.json has all of them
MOST_TABLES = 8  # unfolded
PICTURE_NAME = "positions.svg"
MOST_PICTURES, LARGEST_PICTURE = 6, 3_000_000  # pictures of what positions learned, per chapter; bytes
_JSON = json.JSONEncoder(ensure_ascii=False)  # json.dumps would create one per value
# Nothing is fetched and no script runs, whatever a record contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Learned(NamedTuple):
    """The figure of what a run's positions learned."""

    caption: str
    svg: bytes


@dataclass(frozen=True)
class Chapter:
    """A group with its plots, sample translations, and what its runs' positions learned."""

    group: Group
    statements: tuple[Statement, ...] = ()
    plots: tuple[Plot, ...] = ()
    samples: Samples = field(default_factory=Samples)
    learned: tuple[Learned, ...] = ()
    learned_remark: str = ""


def learned_pictures(group: Group, file_of: FileOf, problems: list[str]) -> tuple[tuple[Learned, ...], str]:
    """The figures written by `rpr-cli report run=...`, one per variant, and a line about those left out.

    An SVG in an <img> runs no script and fetches nothing, so untrusted files are shown unchanged.

    Args:
        problems: a line is appended for each file that is too large.
    """
    having = []
    for variant in group.variants:
        found = [(run, path) for run in variant.records if own_file(path := file_of(run, PICTURE_NAME))]
        having += [(variant, *pair) for pair in found[:1]]
    shown, remark = sampled(having, MOST_PICTURES, "variants with a picture are shown")
    pictures = []
    for variant, run, path in shown:
        size = path.stat().st_size
        if size > LARGEST_PICTURE:
            limit = f"more than the limit of {LARGEST_PICTURE:,}; recreate it with `rpr-cli report run=...`"
            problems.append(escape_control_characters(f"{path}: {size:,} bytes, {limit}"))
        else:
            pictures.append(Learned(f"{variant.label}: {run.name}", path.read_bytes()))
    return tuple(pictures), remark


def html_page(
    title: str,
    chapters: Sequence[Chapter],
    tables: Tables,
    headlines: Sequence[Statement],
    problems: Sequence[str] = (),
) -> str:
    """The whole page. The same input gives the same bytes, so it contains no times except those of the runs.

    Args:
        tables: of all groups; tables by length are shown in the chapters.
        headlines: the main findings of all chapters.
        problems: lines about unusable files.
    """
    return _TEMPLATES.get_template("page.html.j2").render(
        title=title,
        policy=POLICY,
        extent=_extent(chapters),
        chapters=chapters,
        # With a single chapter its first findings are already at the top of the page.
        above=headlines if len(chapters) == 1 else (),
        tables=tables,
        headlines=headlines,
        hero=_first_plot(chapters),
        problems=problems,
        source=paper.SOURCE,
    )


def _first_plot(chapters: Sequence[Chapter]) -> Plot | None:
    """The first plot of the group with the most variants that learned, preferring curves over k or the context."""

    def interest(chapter: Chapter) -> tuple[bool, int]:
        return chapter.plots[0].name in FIRST[:2], sum(one.unlearned is None for one in chapter.group.variants)

    best = max((chapter for chapter in chapters if chapter.plots), key=interest, default=None)
    return None if best is None else best.plots[0]


def _extent(chapters: Sequence[Chapter]) -> str:
    """The extent of the report: `8 runs of 5 position variants: 6 finished, 2 without a result.`"""
    runs = [run for chapter in chapters for run in chapter.group.runs]
    variants, finished = sum(len(one.group.variants) for one in chapters), sum(run.status == "finished" for run in runs)
    words = f"{_count(len(runs), 'run')} of {_count(variants, 'position variant')}"
    groups = f" in {len(chapters)} groups trained alike" if len(chapters) > 1 else ""
    left = f": {finished:,} finished, {len(runs) - finished:,} without a result" if finished < len(runs) else ""
    return f"{words}{groups}{left}. Scores of Transformers by how they represent positions."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _details(group: Group) -> dict[str, Any]:
    """The provenance of a group's figures, as the template shows it: the first run's settings, and for each run the
    command, the facts and the settings in which it differs.
    """
    first = flat(group.runs[0].config)

    def own(run: Record) -> str:
        settings = flat(run.config)
        # 1 and 1.0 are different values.
        changed = {key for key in {*first, *settings} if repr(settings.get(key, "")) != repr(first.get(key, ""))}
        differs = "settings: " + _settings({key: settings.get(key) for key in changed}, " ") if changed else ""
        return "\n".join(
            filter(None, (run.command, *(f"{name + ':':<10}{text}" for name, text in _facts(run).items()), differs))
        )

    return {"settings": _settings(first), "own": own}


def _facts(run: Record) -> dict[str, str]:
    """The facts about a run other than its configuration and scores."""
    dirty = {True: ", with uncommitted changes", False: "", None: ", state of the checkout unknown"}[run.git.dirty]
    steps = run.steps if run.steps is not None else "an unknown number of"
    facts = {
        "run": f"{run.run_id}, seed {run.seed}",
        "status": run.outcome or f"finished after {steps} steps",
        "commit": f"{run.git.commit}{dirty}" if run.git.commit else "no checkout",
        "device": f"{run.device} (hardware={run.hardware})",
        "started": run.started,
        "finished": run.finished or "not",
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    if run.config.get("origin"):
        origin = run.config["origin"]
        facts["from"] = f"{origin['run']}, run {origin['run_id']}, weights {origin['weights']}"
        facts["dropped"], facts["new"] = map(", ".join, (run.dropped_parameters, run.new_parameters))
    if run.data is not None:
        read = f"{run.data.train_pairs:,} {run.examples}, {run.data.dropped_pairs:,} dropped"
        facts["data"] = "; ".join([f"{run.data.name}, key {run.data.key}, {read}", *run.data.notes])
    if run.wandb is not None:
        facts["W&B"] = f"{run.wandb.id} ({run.wandb.mode}{f', {run.wandb.url}' if run.wandb.url else ''})"
    return facts


def _settings(settings: Mapping[str, Any], between: str = "\n") -> str:
    return between.join(f"{key}={_JSON.encode(value)}" for key, value in sorted(settings.items()))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "image": lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
    "spaced": lambda heading: heading.replace(" | ", " · "),
    "no_break": lambda text: text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),  # inside `k = 16`
}
_TEMPLATES.globals |= {
    "word_diff": word_diff,
    "count": _count,
    "details_of": _details,
    "legend_of": lambda grid: legend([grid]),
    "headings": HEADINGS,
    "most_items": MOST_ITEMS,
    "most_tables": MOST_TABLES,
}
