"""How the paper's tables take figures from our groups of runs: rows, changes, differences, and how the runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rpr import paper
from rpr.records.position import SHARING
from rpr.records.record import Record
from rpr.records.scores import HEADLINE_METRIC
from rpr.report.paper_rows import Figure, PaperRow, figure
from rpr.report.remarks import (
    Difference,
    is_in,
    is_the_papers_corpus,
    protocol_differences,
    recipe_difference,
    score_notes,
)
from rpr.report.rows import Cell, Column, Row, Table, one_per_seed, summarise

# The kind of BLEU that the paper's group is known to have used; `paper.BLEU_KIND` says that the paper does not say.
GROUPS_METRIC = "bleu_tok_split"
NEVER_RUN = "never run"


@dataclass(frozen=True)
class Place:
    """One of our groups of runs as a place where the paper's tables look for figures."""

    table: Table

    @property
    def first(self) -> Record:
        return self.table.rows[0].records[0]

    @property
    def pair(self) -> str:
        """The languages, as `en_de`."""
        languages = [self.first.setting(f"data.{side}_language") for side in ("source", "target")]
        return "_".join(map(str, languages)) if all(languages) else "en_de"

    @property
    def papers_pair(self) -> paper.Pair | None:
        pairs: tuple[paper.Pair, ...] = ("en_de", "en_fr")
        return next((one for one in pairs if one == self.pair), None)

    @property
    def size(self) -> paper.Size:
        """The paper's model beside which this group's stands."""
        return "big" if "big" in self.table.model else "base"

    @property
    def sharings(self) -> list[str | None]:
        """How the rows' relative tables are shared, the paper's way first; [None] without such rows."""
        found = {row.position.tables for row in self.table.rows if row.position.tables and row.position.kind != "other"}
        return in_the_papers_order(found, self.size) or [None]

    def setting(self, tables: str | None) -> str:
        """The group in words, with the sharing of the relative tables where there are several."""
        several = len(self.sharings) > 1 and tables is not None
        return f"{self.table.heading} | tables {SHARING.get(str(tables), tables)}" if several else self.table.heading

    def row(self, kind: str, k: int | None = None, tables: str | None = None) -> Row | None:
        """The first row of a kind, with this k and this sharing of tables where they are given."""
        for row in self.table.rows:
            position = row.position
            if position.kind == kind and k in (None, position.clip_distance) and tables in (None, position.tables):
                return row
        return None

    def column(self, split: str, metric: str = HEADLINE_METRIC) -> Column | None:
        return next((one for one in self.table.columns if (one.split, one.metric) == (split, metric)), None)

    def test_set(self, split: str) -> str:
        column = self.column(split)
        return column.test_set if column else ""


def in_the_papers_order(sharings: Iterable[str | None], size: paper.Size) -> list[str | None]:
    return sorted(sharings, key=lambda name: (name != paper.MODELS[size].tables, str(name)))


def lettered(labels: Sequence[str]) -> list[str]:
    """The labels, those that occur more than once with a letter: `tiny, A`, `tiny, B`."""
    return [
        label if labels.count(label) == 1 else f"{label}, {chr(ord('A') + labels[:index].count(label))}"
        for index, label in enumerate(labels)
    ]


def pair_name(pair: str) -> str:
    return pair.upper().replace("_", "-")


def finished_runs(row: Row) -> list[Record]:
    return one_per_seed([run for run in row.records if run.status == "finished"])


def our_cell(place: Place, row: Row | None, split: str, metric: str = HEADLINE_METRIC) -> Cell:
    if row is None:
        return Cell(None, reason=NEVER_RUN)
    column = place.column(split, metric)
    if column is not None:
        return row.cells[column]
    reason = f"not evaluated on {split}" if finished_runs(row) else row.steps_per_second.reason
    return Cell(None, reason=reason or NEVER_RUN)


def change_from(place: Place, row: Row | None, reference: Row | None, split: str, name: str) -> Cell:
    """Ours less ours in the reference row: seed by seed where both have the same seeds, else of the means alone."""
    mine, its = our_cell(place, row, split), our_cell(place, reference, split)
    column = place.column(split)
    if mine.value is None:
        return mine
    if its.value is None or row is None or reference is None or column is None:
        return Cell(None, reason=f"nothing to count from: {name}: {its.reason}")
    if row is reference:
        return Cell(0.0, None, mine.n)
    ways, scores = set(), []
    for one in (row, reference):
        found = {run.seed: score for run in finished_runs(one) for score in run.scores if is_in(column, score)}
        ways |= {(s.signature, s.num_sentences, s.beam_size, s.length_penalty) for s in found.values()}
        scores.append({seed: score.score for seed, score in found.items()})
    if len(ways) > 1:
        return Cell(None, reason=f"{split}: scored in another way than {name}")
    if scores[0].keys() == scores[1].keys():
        return summarise([score - scores[1][seed] for seed, score in scores[0].items()])
    return Cell(mine.value - its.value, None, min(mine.n, its.n))


def difference_from_paper(place: Place, row: Row | None, split: str, printed: Cell, printed_set: str) -> Cell:
    """Ours less the paper's, where corpus, test set and kind of BLEU are the same; else why it would mean nothing."""
    mine = our_cell(place, row, split)
    if mine.value is None:
        return mine
    if printed.value is None or row is None:
        return printed
    pair = place.papers_pair
    if pair is None or not is_the_papers_corpus(finished_runs(row), pair):
        theirs = f"WMT 2014 {pair_name(place.pair)}" if pair else "WMT 2014"
        return Cell(None, reason=f"another corpus: {place.table.data}; the paper's: {theirs}")
    if place.test_set(split) != printed_set:
        return Cell(None, reason=f"another test set: {place.test_set(split)}; the paper's: {printed_set}")
    alike = our_cell(place, row, split, GROUPS_METRIC)
    if alike.value is None:
        return Cell(None, reason=f"another kind of BLEU: {GROUPS_METRIC}, the paper's group's, was not computed")
    return replace(alike, value=alike.value - printed.value, interval=None)


def differs(rows: Iterable[tuple[Place, Row | None]], size: paper.Size) -> tuple[Difference, ...]:
    """How the finished runs of these rows differ from the paper's, each way once."""
    found: dict[str, Difference] = {}
    for place, row in rows:
        runs = finished_runs(row) if row is not None else []
        if not runs:
            continue
        pair = place.papers_pair
        same_data = pair is not None and is_the_papers_corpus(runs, pair)
        ways = [way for way in protocol_differences(runs, size, pair or "en_de") if way.word != "data" or not same_data]
        recipe = recipe_difference(runs[0], size)
        for way in [*ways, *([recipe] if recipe else [])]:
            found.setdefault(way.text, way)
        for run in runs:
            if run.steps is not None and run.steps != run.max_steps:
                text = f"{run.name} stopped at step {run.steps:,} of {run.max_steps:,}"
                found.setdefault(text, Difference("cut", text, smaller=True))
            if run.training is not None and run.training.skipped_steps:
                text = (
                    f"{run.name}: {run.training.skipped_steps} steps changed nothing, as their gradient was not finite"
                )
                found.setdefault(text, Difference("skipped steps", text))
    return tuple(found.values())


def left_out(row: Row | None) -> tuple[str, ...]:
    """Seeds without a result beside those that have one."""
    if row is None or not finished_runs(row):
        return ()
    done = {run.seed for run in finished_runs(row)}
    return tuple(f"seed {run.seed} {run.outcome}" for run in row.records if run.outcome and run.seed not in done)


def speed_of(row: Row | None, column: str = "") -> tuple[Figure, Figure]:
    missing = Cell(None, reason=NEVER_RUN)
    return (
        figure(column, "steps_per_second", row.steps_per_second if row else missing),
        figure(column, "relative_speed", row.relative_speed if row else missing),
    )


def scoring_notes(places: Sequence[Place], rows: Sequence[PaperRow], splits: Sequence[str]) -> tuple[str, ...]:
    """How the runs of these rows were scored: the headline columns alone."""
    shown = {id(run) for row in rows for run in row.records}
    found: dict[str, None] = {}
    for place in places:
        runs = [run for row in place.table.rows for run in finished_runs(row) if id(run) in shown]
        columns = [column for split in splits if (column := place.column(split)) is not None]
        found |= dict.fromkeys(score_notes(columns, runs, empty_by_run=False))
    return tuple(found)
