"""Paired tests as tables, a Markdown page and JSON; the page can be rendered again from the JSON document.

Holm's correction and the verdicts are of the comparisons in each table, computed whenever it is rendered.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from rpr.io.escape import escape_markdown
from rpr.records.measurement import single
from rpr.records.scores import METRIC_NAMES, hypotheses_note, score_digits, tokenised_in_words
from rpr.report.render import Cell, Column, Grid, bullets, markdown, shortened
from rpr.scoring.comparison import ALPHA, Family, System
from rpr.scoring.significance import LEVEL

_NAME = 60  # characters of a run's name: with its score and interval it fits in a line


@dataclass(frozen=True)
class PairedReport:
    """Tests, how they were done, and remarks on the runs."""

    title: str
    samples: int
    trials: int
    seed: int
    tests: tuple[Family, ...]
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """How the tests were done, and what they do not show."""
        # 1. How they were done.
        items = " and ".join(dict.fromkeys(family.items for family in self.tests))
        notes = [
            f"p boot.: paired bootstrap as in sacreBLEU, in effect one-sided, {self.samples:,} samples; p rand.: "
            f"approximate randomisation, two-sided, {self.trials:,} trials; seed {self.seed}.",
            f"Intervals and p concern the test {items}: whether the result would hold on another, similar test set.",
        ]
        corrected = any(len(family.comparisons) > 1 for family in self.tests)
        if corrected:
            notes.append("Holm: the p before it, corrected for all comparisons in the table.")
        # 2. What they do not show.
        if not any(verdict for family in self.tests for verdict in family.verdicts):
            holm = " after Holm's correction" * corrected
            notes.append(f"No difference is below p = {ALPHA} by both tests{holm}: no run is shown to be better.")
        for family in self.tests:
            count = len(family.comparisons)
            for least, number, what, remedy in (
                # No swap, and the swap of all, are as extreme as can be; p counts the observed difference, too.
                (2 ** (1 - family.num_sentences), family.num_sentences, f"{family.items} p rand.", "score"),
                (1 / (self.samples + 1), self.samples, "samples p boot.", "draw"),
                (1 / (self.trials + 1), self.trials, "trials p rand.", "draw"),
            ):
                if least * count >= ALPHA:
                    notes.append(
                        f"{family.split}: of {number:,} {what} is never below {least:.2g}, and of {count} comparisons "
                        f"Holm's not below {min(least * count, 1):.2g}: nothing can be found; {remedy} more "
                        f"{what.split()[0]}, or compare fewer runs."
                    )
        if 1 in (seeds := [mean.n for family in self.tests for mean in family.variants.values()]):
            start = "One run per variant:" if max(seeds) == 1 else "For a variant with one run,"
            notes.append(f"{start} these tests do not show how much another seed would differ.")
        notes += [
            f"{family.split}: {tokenised_in_words(family.tokenised)}." for family in self.tests if family.tokenised
        ]
        return [*dict.fromkeys([*notes, *self.remarks])]  # once, where it holds for several metrics


from_json = TypeAdapter(PairedReport).validate_json  # the tests of a document; raises ValueError if it is none


def as_json(report: PairedReport) -> dict[str, Any]:
    """The document, with what is computed from its tests."""
    tests = []
    for family in report.tests:
        document = asdict(family)
        document["variants"] = [
            {"variant": name, "mean": row.value, "sd": row.deviation, "n": row.n}
            for name, row in family.variants.items()
        ]
        corrected = zip(document["comparisons"], family.corrected, family.verdicts, strict=True)
        document["comparisons"] = [
            row | {"p_bootstrap_holm": bootstrap, "p_randomisation_holm": randomisation, "verdict": verdict}
            for row, (_, bootstrap, randomisation), verdict in corrected
        ]
        tests.append(document)
    return asdict(report) | {"level": LEVEL, "alpha": ALPHA, "tests": tests, "notes": report.notes}


def as_markdown(report: PairedReport) -> str:
    return "\n".join([f"# {escape_markdown(report.title)}\n", *map(markdown, grids(report)), bullets(report.notes)])


def grids(report: PairedReport) -> Iterator[Grid]:
    """For each test a table of numbered scores, then one of differences between the runs of these numbers."""
    for family in report.tests:
        metric = METRIC_NAMES[family.metric]
        where = f"{family.split} ({family.test_set}, {family.num_sentences:,} {family.items})"
        title = f"{f'{family.title}, ' if family.title else ''}{where}, {metric}: {family.signature}"
        columns = (
            Column("number", "", lambda row: str(row[0]), label=True),
            Column("run", "run", lambda row: shortened(row[1].run, _NAME), label=True),
            Column("score", "score", _score, score_digits(family.metric)),
        )
        yield Grid("scores", title, columns, tuple(enumerate(family.scores, start=1)))
        yield _differences(family)


def _score(row: tuple[int, System]) -> Cell:
    return Cell(single(row[1].score, row[1].interval), hypotheses_note(row[1].empty))


def _differences(family: Family) -> Grid:
    corrected, digits = len(family.comparisons) > 1, score_digits(family.metric)
    numbers = {system.run: number for number, system in enumerate(family.scores, start=1)}
    rows = tuple(family.corrected)
    columns = (
        Column("runs", "runs", lambda row: f"{numbers[row[0].run]} - {numbers[row[0].baseline]}", label=True),
        Column("difference", "difference", lambda row: single(row[0].difference, row[0].interval), digits, signed=True),
        Column("p_bootstrap", "p boot.", lambda row: single(row[0].p_bootstrap), 4),
        Column("p_bootstrap_holm", "Holm", lambda row: single(row[1]), 4),
        Column("p_randomisation", "p rand.", lambda row: single(row[0].p_randomisation), 4),
        Column("p_randomisation_holm", "Holm", lambda row: single(row[2]), 4),
    )
    remarks = [
        f"{variant}: mean {mean.value:.{digits}f}, standard deviation {mean.deviation:.{digits}f} over {mean.n} seeds"
        for variant, mean in family.variants.items()
        if mean.deviation is not None
    ]
    how = f"(p < {ALPHA} by both tests{', after Holm' * corrected})"
    remarks += [f"{verdict} {how}" for verdict in family.verdicts if verdict]
    shown = tuple(column for column in columns if corrected or column.heading != "Holm")
    return Grid("differences", "Differences", shown, rows, notes=tuple(remarks))
