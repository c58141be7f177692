"""Paired tests as tables and JSON. Holm's correction and the verdicts are of the comparisons in each
table, computed whenever it is rendered.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rpr.kinds import kind_of_metric
from rpr.records.measurement import single
from rpr.records.scores import METRIC_NAMES, hypotheses_note, tokenised_in_words
from rpr.report.render import Cell, Column, Grid, grid_of, shortened
from rpr.scoring.comparison import ALPHA, Family, System
from rpr.scoring.statistics import LEVEL, Comparison

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
        items = " and ".join(dict.fromkeys(family.items for family in self.tests))
        corrected = any(len(family.comparisons) > 1 for family in self.tests)
        seeds = [mean.n for family in self.tests for mean in family.variants.values()]
        notes = [
            f"p boot.: paired bootstrap as in sacreBLEU, in effect one-sided, {self.samples:,} samples; p rand.: "
            f"approximate randomisation, two-sided, {self.trials:,} trials; seed {self.seed}.",
            f"Intervals and p concern the test {items}: whether the result would hold on another, similar test set.",
        ]
        notes += ["Holm: the p before it, corrected for all comparisons in the table."] * corrected
        if not any(verdict for family in self.tests for verdict in family.verdicts):
            holm = " after Holm's correction" * corrected
            notes.append(f"No difference is below p = {ALPHA} by both tests{holm}: no run is shown to be better.")
        notes += ["Of a variant with one run these tests do not show how another seed would differ."] * (1 in seeds)
        notes += [f"{one.split}: {tokenised_in_words(one.tokenised)}." for one in self.tests if one.tokenised]
        return [*dict.fromkeys([*notes, *self.remarks])]  # once, where it holds for several metrics


def as_json(report: PairedReport) -> dict[str, Any]:
    """The document, with what is computed from its tests."""
    document = asdict(report) | {"level": LEVEL, "alpha": ALPHA, "notes": report.notes}
    for family, test in zip(report.tests, document["tests"], strict=True):
        means = family.variants.items()
        test["variants"] = [{"variant": name, "mean": of.value, "sd": of.deviation, "n": of.n} for name, of in means]
        tested = zip(test["comparisons"], family.corrected, family.verdicts, strict=True)
        for row, (_, bootstrap, randomisation), verdict in tested:
            row |= {"p_bootstrap_holm": bootstrap, "p_randomisation_holm": randomisation, "verdict": verdict}
    return document


def grids(family: Family) -> tuple[Grid, Grid]:
    """A table of numbered scores, and one of the differences between the runs of these numbers."""
    # 1. The scores, numbered.
    on = f"{family.split} ({family.test_set}, {family.num_sentences:,} {family.items})"
    title = f"{on}, {METRIC_NAMES[family.metric]}: {family.signature}"
    digits, several = kind_of_metric(family.metric).printed_digits, len(family.comparisons) > 1
    place = {system.run: at for at, system in enumerate(family.scores, start=1)}

    def scores(run: System) -> Iterator[tuple[Column, Any]]:
        yield Column("number", "", kind="label"), str(place[run.run])
        yield Column("run", "run", kind="label"), shortened(run.run, _NAME)
        yield Column("score", "score", digits), Cell(single(run.score, run.interval), hypotheses_note(run.empty))

    # 2. The differences, by these numbers.
    def differences(tested: tuple[Comparison, float, float]) -> Iterator[tuple[Column, Any]]:
        pair, *corrected = tested
        yield Column("runs", "runs", kind="label"), f"{place[pair.run]} - {place[pair.baseline]}"
        yield Column("difference", "difference", digits, signed=True), single(pair.difference, pair.interval)
        kinds = ("p_bootstrap", "p boot.", pair.p_bootstrap), ("p_randomisation", "p rand.", pair.p_randomisation)
        for (key, heading, p), holm in zip(kinds, corrected, strict=True):
            yield Column(key, heading, 4), single(p)
            if several:
                yield Column(f"{key}_holm", "Holm", 4), single(holm)

    # 3. Both tables, the second with what its differences decide.
    remarks = [
        f"{name}: mean {of.value:.{digits}f}, standard deviation {of.deviation:.{digits}f} over {of.n} seeds"
        for name, of in family.variants.items()
        if of.deviation is not None
    ]
    how = f"(p < {ALPHA} by both tests{', after Holm' * several})"
    remarks += [f"{verdict} {how}" for verdict in family.verdicts if verdict]
    of_runs = grid_of("scores", title, family.scores, scores)
    return of_runs, grid_of("differences", "Differences", family.corrected, differences, notes=remarks)
