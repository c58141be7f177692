"""One self-contained HTML page: no network, no script, light and dark, for phone and paper; all text is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rpr import paper as the_paper
from rpr.report.findings import findings
from rpr.report.learned import Learned
from rpr.report.page_runs import runs_part
from rpr.report.page_style import style_sheet
from rpr.report.page_tables import badge, items, length_part, main_table, paper_part, spaced
from rpr.report.paper_claims import HEADINGS, claims
from rpr.report.paper_rows import PaperTable
from rpr.report.rows import Table
from rpr.report.samples import Kind, Sample, compared

MOST_FINDINGS = 12  # of a chapter; all are in report.json
# At the top of a page of more chapters than these so many of each, and all others in the chapter.
FEW_CHAPTERS, MOST_AT_THE_TOP = 3, 5
MOST_PAPER_TABLES = 8  # in sight; the others are folded
# Nothing is fetched and nothing runs, whatever a record holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_MARKS: dict[Kind, str] = {"added": "ins", "moved": "mark", "missing": "del"}


@dataclass(frozen=True)
class Drawing:
    """An svg element, inserted as it stands, with what is said of it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Chapter:
    """A table with its drawings, sample translations, and what its runs' positions learned."""

    table: Table
    drawings: tuple[Drawing, ...] = ()
    samples: tuple[Sample, ...] = ()
    sample_remarks: tuple[str, ...] = ()
    learned: Learned | None = None


def html_page(
    title: str, chapters: Sequence[Chapter], problems: Sequence[str] = (), paper: Sequence[PaperTable] = ()
) -> str:
    """The whole page; the same input gives the same bytes, so it names no time but that of the runs.

    Args:
        problems: lines about what could not be used.
        paper: the paper's own tables with our figures in them.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style_sheet()}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(_extent(chapters))}</p></header>',
        "<main>",
        *_headlines(chapters),
    ]
    if problems:
        parts.append(f'<h3 id="problems">Not in this report</h3><ul class="problems">{items(problems)}</ul>')
    if len(chapters) > 1:
        parts += _contents(chapters, paper)
    if paper:
        parts += _paper(paper)
    for number, chapter in enumerate(chapters, start=1):
        parts += _chapter(chapter, f"t{number}", alone=len(chapters) == 1)
    footer = f"The figures in the columns “paper” are of {the_paper.SOURCE}. All others come from the runs named here."
    return "\n".join([*parts, f"</main><footer>{escape(footer)}</footer></body></html>"]) + "\n"


def _extent(chapters: Sequence[Chapter]) -> str:
    """How much there is: `8 runs of 5 position variants: 6 finished, 2 without a result.`"""
    runs = [run for chapter in chapters for row in chapter.table.rows for run in row.records]
    variants = sum(len(chapter.table.rows) for chapter in chapters)
    finished = Counter(run.status for run in runs)["finished"]
    words = f"{_count(len(runs), 'run')} of {_count(variants, 'position variant')}"
    if len(chapters) > 1:
        words += f" in {len(chapters)} tables"
    left = f": {finished:,} finished, {len(runs) - finished:,} without a result" if finished < len(runs) else ""
    return f"{words}{left}. Scores of Transformers by how they represent positions, beside the paper's figures."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _headlines(chapters: Sequence[Chapter]) -> list[str]:
    """The findings of all chapters, each under a link to its chapter; nothing where there are none."""
    found = [(number, chapter.table, findings(chapter.table)) for number, chapter in enumerate(chapters, start=1)]
    found = [entry for entry in found if entry[2]]
    if not found:
        return []
    parts = ['<section class="findings" id="findings" aria-label="Headline findings">']
    most = MOST_FINDINGS if len(chapters) <= FEW_CHAPTERS else MOST_AT_THE_TOP
    for number, table, lines in found:
        if len(chapters) > 1:
            parts.append(f'<h4><a href="#t{number}">{escape(spaced(table.heading))}</a>{badge(table.synthetic)}</h4>')
        parts.append(f"<ul>{items(lines, most)}</ul>")
    return [*parts, "</section>"]


def _contents(chapters: Sequence[Chapter], paper: Sequence[PaperTable]) -> list[str]:
    entries = ['<li><a href="#paper">The paper\'s tables</a></li>'] if paper else []
    for number, chapter in enumerate(chapters, start=1):
        name = f"t{number}"
        named = [
            ("plots", "plots", bool(chapter.drawings)),
            ("learned", "what positions learned", chapter.learned is not None),
            ("samples", "sample translations", bool(chapter.samples)),
        ]
        links = [f'<a href="#{name}-{part}">{words}</a>' for part, words, there in named if there]
        links.append(f'<a href="#{name}-runs">{_count(sum(len(r.records) for r in chapter.table.rows), "run")}</a>')
        heading = escape(spaced(chapter.table.heading))
        entries.append(
            f'<li><a href="#{name}">{heading}</a>{badge(chapter.table.synthetic)}<br>'
            f'<span class="parts">{" · ".join(links)}</span></li>'
        )
    return [f'<nav id="contents" aria-label="Contents"><h3>Contents</h3><ol>{"".join(entries)}</ol></nav>']


def _paper(tables: Sequence[PaperTable]) -> list[str]:
    """The paper's tables, and above them what of it ours agree with."""
    parts = [f'<section id="paper"><h2>The paper\'s tables<small>{escape(the_paper.SOURCE)}</small></h2>']
    found = claims(tables)
    for verdict, heading in HEADINGS.items():
        if texts := [spaced(claim.text) for claim in found if claim.verdict == verdict]:
            parts.append(f'<h4>{escape(heading)}</h4><ul class="notes">{items(texts, MOST_FINDINGS)}</ul>')
    for number, table in enumerate(tables, start=1):
        parts.append(paper_part(table, f"paper-{number}", folded=number > MOST_PAPER_TABLES))
    return [*parts, "</section>"]


def _chapter(chapter: Chapter, name: str, *, alone: bool) -> list[str]:
    table = chapter.table
    corpus, _, rest = table.heading.partition(" | ")
    parts = [
        f'<section id="{name}"><h2>{escape(corpus)}{badge(table.synthetic)}<small>{escape(spaced(rest))}</small></h2>'
    ]
    # Of a single chapter they stand at the top of the page already.
    if not alone and (found := findings(table)):
        parts.append(f'<div class="findings"><ul>{items(found, MOST_FINDINGS)}</ul></div>')
    parts.append(main_table(table, name))
    parts += [f'<h3 id="{name}-plots">Plots</h3>'] if chapter.drawings else []
    parts += [_figure(drawing.svg, drawing.caption) for drawing in chapter.drawings]
    parts += [length_part(lengths, f"{name}-{lengths.metric}") for lengths in table.by_length]
    parts += _learned(chapter, name)
    parts += _samples(chapter, name)
    parts.append(f'<h3>How these runs differ from the paper</h3><ul class="notes">{items(table.differences)}</ul>')
    parts.append(f'<h3 id="{name}-runs">Runs</h3>{runs_part(table)}')
    return [*parts, "</section>"]


def _figure(svg: str, caption: str = "") -> str:
    # A box of its own that scrolls: on a phone a plot stays as large as its words need to be.
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><div>{svg}</div>{below}</figure>"


def _learned(chapter: Chapter, name: str) -> list[str]:
    learned = chapter.learned
    if learned is None:
        return []
    folded = [
        f"<details{'' if number else ' open'}><summary>{escape(label)}</summary>{_figure(svg)}</details>"
        for number, (label, svg) in enumerate(learned.pictures)
    ]
    return [f'<h3 id="{name}-learned">What positions learned</h3>', *_remarks(learned.remark), *folded]


def _remarks(*remarks: str) -> list[str]:
    return [f'<p class="lead">{escape(remark)}</p>' for remark in remarks if remark]


def _samples(chapter: Chapter, name: str) -> list[str]:
    if not chapter.samples:
        return []
    rule = "Evenly spaced lines of each test set, not chosen by their quality."
    marks = (
        "Against the reference: <ins>underlined</ins>, a word that it does not have; <mark>dotted</mark>, one that it "
        "has at another place; <del>struck out</del>, one that is missing."
    )
    parts = [f'<h3 id="{name}-samples">Sample translations</h3><p class="lead">{rule} {marks}</p>']
    return [*parts, *_remarks(*chapter.sample_remarks), *map(_sample, chapter.samples)]


def _sample(sample: Sample) -> str:
    given = [(f"{sample.split}, line {sample.number:,}", sample.source), ("reference", sample.reference)]
    above = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in given)
    below = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{_compared(sample.reference, text)}</dd></div>"
        for label, text in sample.hypotheses
    )
    return f'<div class="sample"><dl class="given">{above}</dl><dl class="made">{below}</dl></div>'


def _compared(reference: str, hypothesis: str) -> str:
    if not hypothesis:
        return "<em>empty</em>"
    pieces = []
    for kind, text in compared(reference, hypothesis):
        tag = _MARKS.get(kind)
        bare = text.strip()
        # Spaces at the edges are neither underlined nor struck out.
        pieces.append(escape(text).replace(escape(bare), f"<{tag}>{escape(bare)}</{tag}>", 1) if tag else escape(text))
    return "".join(pieces)
