"""One self-contained HTML page: no network, no script, light and dark, for phone and paper; all text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rpr.results import paper
from rpr.results.drawing import DARK, variable
from rpr.results.findings import findings
from rpr.results.length_render import length_grid, length_heading, length_legend
from rpr.results.record import Record
from rpr.results.render import grid, legend
from rpr.results.rows import LengthTable, Table


@dataclass(frozen=True)
class Sample:
    """One sentence of a test set with what each variant made of it."""

    split: str
    number: int
    source: str
    reference: str
    hypotheses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Chapter:
    """A table with its drawings (SVG elements, inserted as they stand) and sample translations."""

    table: Table
    drawings: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()


_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --muted: #5d6670; --line: #e4e7eb; --paper: #ffffff; --soft:
  #f5f7f9; --accent: #0072b2; --warn: #8a4b00; --warn-soft: #fff4e5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --muted: #9aa4af; --line: #2c333b; --paper: #15181c; --soft: #1c2127; --accent: #4aa8e0;
    --warn: #ffc078; --warn-soft: #33271a;
DARK }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 3rem 0 .75rem; padding-top: 1rem; border-top: 1px solid
  var(--line); }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
p.lead, .notes, figcaption { color: var(--muted); }
p.lead { margin: 0 0 1.5rem; }
a { color: var(--accent); }
.badge { font-size: .75rem; font-weight: 600; padding: .1rem .5rem; border-radius: 1rem; background:
  var(--warn-soft); color: var(--warn); white-space: nowrap; vertical-align: .15em; }
.findings { padding: .9rem 1.1rem .9rem 2rem; margin: 0 0 1.5rem; background: var(--soft); border-left: 3px solid
  var(--accent); border-radius: 0 6px 6px 0; }
.findings li { margin: .2rem 0; }
.problems { background: var(--warn-soft); color: var(--warn); padding: .8rem 1.1rem .8rem 2rem; border-radius: 6px;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .38rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--muted); border-bottom: 2px solid var(--line); vertical-align: bottom; }
th.words, td.words, tbody th { text-align: left; }
tbody th { font-weight: 500; color: var(--ink); border-bottom: 1px solid var(--line); }
tr.first > * { border-top: 2px solid var(--line); }
tbody tr:hover > * { background: var(--soft); }
sup { line-height: 0; } sup a { text-decoration: none; }
.notes { font-size: .82rem; padding-left: 1.4rem; overflow-wrap: anywhere; } .notes li { margin: .15rem 0; }
figure { margin: 2rem 0; } figure svg { display: block; width: 100%; height: auto; max-width: 52rem; }
figure svg text { font-family: "DejaVu Sans", Verdana, system-ui, sans-serif !important; }
dl.sample { display: grid; grid-template-columns: minmax(7rem, 13rem) 1fr; gap: .15rem 1rem; margin: 0 0 1rem;
  padding: .8rem 1rem; background: var(--soft); border-radius: 6px; font-size: .92rem; }
dl.sample dt { color: var(--muted); } dl.sample dd { margin: 0; overflow-wrap: anywhere; }
dl.sample .given { font-weight: 600; }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; font-size: .9rem; } summary { cursor: pointer;
  overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem .9rem; border-radius: 6px; font-size: .8rem;
  line-height: 1.45; white-space: pre-wrap; overflow-wrap: anywhere; }
.status { color: var(--muted); } .status.failed, .status.running { color: var(--warn); font-weight: 600; }
@media (max-width: 40rem) { body { padding: 1.25rem .9rem 3rem; font-size: 15px; } dl.sample {
  grid-template-columns: 1fr; gap: 0; } dl.sample dd { margin-bottom: .4rem; }
  figure { overflow-x: auto; } figure svg { min-width: 34rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } figure, dl.sample, tr { break-inside: avoid; }
  .scroll { overflow: visible; } a { color: inherit; } }
"""


def html_page(title: str, chapters: Sequence[Chapter], problems: Sequence[str] = ()) -> str:
    """The whole page; the same input gives the same bytes, so it names no time but that of the runs."""
    dark = "".join(f"    {variable(light)}: {colour};\n" for light, colour in DARK.items())
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_CSS.replace('DARK', dark)}</style></head><body>",
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="lead">Beside the figures of {escape(paper.SOURCE)}.</p></header>',
    ]
    if problems:
        parts.append(f'<h3>Not in this report</h3><ul class="problems">{_items(problems)}</ul>')
    for number, chapter in enumerate(chapters, start=1):
        parts += _chapter(chapter, f"t{number}")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _chapter(chapter: Chapter, name: str) -> list[str]:
    table = chapter.table
    badge = ' <span class="badge">synthetic data</span>' if table.synthetic else ""
    parts = [f"<section><h2>{escape(table.heading)}{badge}</h2>"]
    if found := findings(table):
        parts.append(f'<ul class="findings">{_items(found)}</ul>')
    parts += [_table(table, name)]
    parts += [_length_table(lengths, f"{name}-{lengths.metric}") for lengths in table.by_length]
    parts += [f"<figure>{drawing}</figure>" for drawing in chapter.drawings]
    parts.append(f'<h3>How these runs differ from the paper</h3><ul class="notes">{_items(table.differences)}</ul>')
    if chapter.samples:
        rule = "Evenly spaced lines of each test set, not chosen by their quality."
        parts.append(f'<h3>Sample translations</h3><p class="lead">{rule}</p>')
        parts += [_sample(sample) for sample in chapter.samples]
    parts.append("<h3>Runs</h3>")
    parts += [_provenance(run) for row in table.rows for run in row.records]
    return [*parts, "</section>"]


def _table(table: Table, name: str) -> str:
    headings, cells, footnotes = grid(table)
    words = [heading in ("position", "note") for heading in headings]
    head = "".join(
        f'<th scope="col"{" class=words" if word else ""}>{escape(text)}</th>'
        for text, word in zip(headings, words, strict=True)
    )
    lines = []
    previous = None
    for row, texts in zip(table.rows, cells, strict=True):
        first = " class=first" if previous is not None and row.position.kind != previous else ""
        previous = row.position.kind
        tds = "".join(
            f"<td{' class=words' if word else ''}>{_marks(escape(text), name)}</td>"
            for text, word in zip(texts[1:], words[1:], strict=True)
        )
        lines.append(f'<tr{first}><th scope="row">{escape(texts[0])}</th>{tds}</tr>')
    return _scrolling(head, lines) + _below(footnotes, legend(table), name)


def _length_table(lengths: LengthTable, name: str) -> str:
    headings, cells, footnotes = length_grid(lengths)
    head = "".join(
        f'<th scope="col"{" class=words" if not number else ""}>{escape(text)}</th>'
        for number, text in enumerate(headings)
    )
    lines = []
    for texts in cells:
        tds = "".join(f"<td>{_marks(escape(text), name)}</td>" for text in texts[1:])
        lines.append(f'<tr><th scope="row">{escape(texts[0])}</th>{tds}</tr>')
    title = f"<h3>{escape(length_heading(lengths))}</h3>"
    return title + _scrolling(head, lines) + _below(footnotes, length_legend(lengths), name)


def _scrolling(head: str, lines: Sequence[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _below(footnotes: Sequence[str], notes: Sequence[str], name: str) -> str:
    numbered = "".join(
        f'<li id="{name}-note-{number}">{escape(note)}</li>' for number, note in enumerate(footnotes, start=1)
    )
    return (f'<ol class="notes">{numbered}</ol>' if numbered else "") + f'<ul class="notes">{_items(notes)}</ul>'


def _marks(escaped: str, name: str) -> str:
    return re.sub(r" ?\[(\d+)\]", rf'<sup> <a href="#{name}-note-\1">\1</a></sup>', escaped)


def _sample(sample: Sample) -> str:
    given = [(f"{sample.split}, line {sample.number:,}", sample.source), ("reference", sample.reference)]
    pairs = [f'<dt>{escape(label)}</dt><dd class="given">{escape(text)}</dd>' for label, text in given]
    pairs += [
        f"<dt>{escape(label)}</dt><dd>{escape(text) or '<em>empty</em>'}</dd>" for label, text in sample.hypotheses
    ]
    return f'<dl class="sample">{"".join(pairs)}</dl>'


def _provenance(run: Record) -> str:
    dirty = {True: ", with uncommitted changes", False: "", None: ", state of the checkout unknown"}[run.git.dirty]
    facts = {
        "run": f"{run.run_id}, seed {run.seed}",
        "status": run.outcome
        or f"finished after {run.steps if run.steps is not None else 'an unknown number of'} steps",
        "commit": f"{run.git.commit}{dirty}" if run.git.commit else "no checkout",
        "device": f"{run.device} (hardware={run.hardware})",
        "started": run.started,
        "finished": run.finished or "not",
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    if run.data is not None:
        facts["data"] = (
            f"{run.data.name}, key {run.data.key}, {run.data.train_pairs:,} pairs, {run.data.dropped_pairs:,} dropped"
        )
        facts["data"] += "".join(f"; {note}" for note in run.data.notes)
    if run.wandb is not None:
        facts["W&B"] = f"{run.wandb.id} ({run.wandb.mode}{f', {run.wandb.url}' if run.wandb.url else ''})"
    lines = "\n".join(f"{name + ':':<10}{value}" for name, value in facts.items())
    config = json.dumps(run.config, indent=1, ensure_ascii=False, sort_keys=True)
    return (
        f'<details><summary>{escape(run.name)} <span class="status {run.status}">{run.status}</span></summary>'
        f"<pre>{escape(run.command)}</pre><pre>{escape(lines)}</pre>"
        f"<details><summary>configuration</summary><pre>{escape(config)}</pre></details></details>"
    )
