"""Verdicts: against scipy's Dunnett test, simulated tables, a committed sweep's table; both sides of each condition."""

import csv
from pathlib import Path

import numpy as np
import pytest
import scipy

from rpr.records.files import DocumentNats
from rpr.records.record import find_records
from rpr.records.scores import Interval
from rpr.report.groups import Beside, run_groups, run_key
from rpr.report.verdicts import MODEL, SHARES, WELCH, changes, over_seeds_and_documents
from rpr.scoring.comparison import Family, System
from rpr.scoring.statistics import Comparison
from tests.fake_records import fake_record, fake_score
from tests.report.helpers import grids, group_of, row

RESULTS = Path(__file__).resolve().parents[2] / "sweeps" / "results"


def table(rows, seed=0, sizes=(3,), spread=0.3):
    """Scores of rows by seed around 30, all alike in truth."""
    draw = np.random.default_rng(seed)
    effects = draw.normal(0, 0.5, max(sizes))
    return {
        f"row {row}": {s: 30 + effects[s] + draw.normal(0, spread) for s in range(sizes[row % len(sizes)])}
        for row in range(rows)
    }


def test_equals_scipy_without_blocks():
    draw = np.random.default_rng(3)
    samples = [draw.normal(30 + row / 3, 0.4, size) for row, size in enumerate((5, 3, 4, 3))]
    scores = {f"row {row}": dict(enumerate(values, 100 * row)) for row, values in enumerate(samples)}
    found = changes(scores, "row 0", 0.01)
    theirs = scipy.stats.dunnett(*samples[1:], control=samples[0], rng=np.random.default_rng(1))
    ends = theirs.confidence_interval(0.95)
    for at, change in enumerate(found.of_rows.values()):
        assert change.value == pytest.approx(samples[at + 1].mean() - samples[0].mean())
        assert change.interval.low == pytest.approx(ends.low[at], abs=0.01)
        assert change.interval.high == pytest.approx(ends.high[at], abs=0.01)
    decided = {f"row {at + 1}" for at, p in enumerate(theirs.pvalue) if p < 0.05}
    assert {label for label, verdict in found.verdicts.items() if verdict != "open"} == decided
    assert found.method == MODEL


@pytest.mark.slow
def test_coverage_of_simulated_tables():
    """All intervals of a table without differences contain zero in 94 to 96% of 10,000 tables."""
    outside = 0
    for seed in range(10_000):
        found = changes(table(8, seed, (5, 3, 3)), "row 0", 1e-9)
        outside += any(not one.interval.low <= 0 <= one.interval.high for one in found.of_rows.values())
    assert 0.94 <= 1 - outside / 10_000 <= 0.96


GOLDEN = list(csv.DictReader((RESULTS.parents[1] / "tests/golden/changes.csv").open(encoding="utf-8")))


@pytest.mark.parametrize("sweep, split", sorted({(golden["sweep"], golden["split"]) for golden in GOLDEN}))
def test_changes_of_committed_sweeps_are_those_that_numpy_alone_finds(sweep, split):
    """tests/golden/changes.csv, which tests/golden/test_figures.py computes again."""
    groups = run_groups(record for _, record in find_records(RESULTS / sweep).records)
    by_runs = {" ".join(run.run_id for run in variant.finished): variant for one in groups for variant in one.variants}
    for golden in (golden for golden in GOLDEN if (golden["sweep"], golden["split"]) == (sweep, split)):
        key = split, (variant := by_runs[golden["runs"]]).group.kind.metric
        assert (variant.label, variant.verdict(key)) == (golden["row"], golden["verdict"])
        if golden["change"] and golden["verdict"] != "baseline":
            change = variant.change(key)
            figures = (change.value, change.interval.low, change.interval.high)
            assert figures == pytest.approx([float(golden[name]) for name in ("change", "low", "high")], abs=1e-6)


@pytest.mark.parametrize("absolute, relative, verdict", [
    ([30.0, 30.3, 29.8], [33.0, 33.1, 32.9], "better"), ([30.0, 30.3, 29.8], [27.0, 27.2, 26.9], "worse"),
    ([30.0, 30.3, 29.8], [30.1, 30.2, 29.9], "open"),
    ([30.0, 30.3], [33.0, 33.1, 32.9], "open (2 seeds)"), ([30.0], [33.0], "open (1 seed)"),
    ([30.0] * 3, [30.0] * 3, "open"), ([30.0] * 3, [30.05] * 3, "better"),  # a floor: 1,000 sentences, 3 seeds
    ([30.0] * 3, [30.02] * 3, "open"),
    ([0.0, 0.0], [0.0, 0.0], "not learned"), ([30.0, 30.3, 29.8], [0.9, 0.8, 0.9], "not learned"),
])  # fmt: skip
def test_verdict_of_translations(absolute, relative, verdict):
    scores = {"absolute": absolute, "relative": relative}
    group = group_of(fake_record(name, seed=seed, scores={"test": score})
                     for name, values in scores.items() for seed, score in enumerate(values))  # fmt: skip
    assert group.get("relative").verdict(group.key) == verdict


def test_models_that_learned_nothing_have_no_verdict_and_no_change():
    """A sweep of k on few pairs: BLEU 0.0 in two equal seeds was said to agree with the paper."""
    records = [fake_record("relative", k, seed=seed, scores={"test": 0.0}) for k in (0, 2, 16) for seed in (1, 2)]
    group = group_of(records, published=True)
    assert group.baseline is group.papers_relative
    assert {variant.verdict(group.key) for variant in group.variants} == {"not learned"}
    assert {variant.change(group.key).value for variant in group.variants if variant is not group.baseline} == {None}


def test_compare_says_nothing_of_models_that_learned_nothing():
    """0.09 against 0.00 BLEU was said to be worse."""

    def family(scores):
        ends = Interval(0.0, 1.0, 0.95, kind="sentences", samples=10, seed=1, method="bootstrap")
        systems = tuple(System(name, name, name, 1, score, ends) for name, score in scores.items())
        pair = Comparison("a", "b", scores["b"] - scores["a"], ends, 0.001, 0.001)
        return Family("test", "x", "sacrebleu", "s", 100, systems, (pair,))

    assert family({"a": 0.09, "b": 0.0}).verdicts == [None]
    assert family({"a": 30.0, "b": 0.5}).verdicts == [None]
    assert family({"a": 30.0, "b": 29.0}).verdicts == ["b is worse than a on these sentences"]


def test_unequal_variances_are_welchs_and_holms():
    draw = np.random.default_rng(1)
    means = {f"row {row}": (30 + 0.02 * row, 0.02 if row < 4 else 6) for row in range(8)}
    scores = {label: dict(enumerate(draw.normal(*mean, 6))) for label, mean in means.items()}
    found = changes(scores, "row 0", 0.001)
    assert found.method == WELCH
    tests = {
        label: scipy.stats.ttest_ind([*scores[label].values()], [*scores["row 0"].values()], equal_var=False)
        for label in found.of_rows
    }
    for label, change in found.of_rows.items():
        ends = tests[label].confidence_interval(0.95)
        assert (change.interval.low, change.interval.high) == pytest.approx((ends.low, ends.high))
    assert [label for label, test in tests.items() if test.pvalue < 0.05] == ["row 1", "row 2", "row 3"]
    assert [label for label, verdict in found.verdicts.items() if verdict == "better"] == ["row 2", "row 3"]


def test_shares_keep_the_interval_of_their_log_odds():
    scores = {"a": {1: 2.0, 2: 3.0, 3: 2.5}, "b": {1: 90.0, 2: 95.0, 3: 92.0}, "c": {1: 2.0, 2: 99.0, 3: 50.0}}
    found = changes(scores, "a", 0.1, shares=True)
    assert (found.method, found.verdicts) == (SHARES, {"b": "better", "c": "open"})
    assert found.of_rows["b"].interval.high < 100


def texts(bits):
    """Three seeds each of language models with about these bits per byte."""
    settings = {"data.text": {}, "model.architecture": "decoder_only"}
    return [
        fake_record(name, seed=seed, scores=[fake_score("test", each + seed / 100, "bits_per_byte")],
                    settings=settings, **{"data.unigram_bits": 4.69})
        for name, each in bits.items() for seed in (1, 2, 3)
    ]  # fmt: skip


def test_text_above_the_unigram_entropy_is_not_learned():
    group = group_of(texts({"absolute": 2.0, "relative": 1.5, "none": 5.0}))
    assert [one.verdict(group.key) for one in group.variants] == ["baseline", "not learned", "better"]


def drawn(draw, seeds, documents, of_seeds, of_documents, of_both):
    """Bits [seeds, documents] of documents of unlike sizes, in truth 0.3 a byte, and the sizes."""
    sizes = draw.lognormal(8, 0.7, documents)
    deviations = of_seeds * draw.normal(size=(seeds, 1)) + of_documents * draw.normal(size=(1, documents))
    return sizes * (0.3 + deviations + of_both * draw.normal(size=(seeds, documents))), sizes


@pytest.mark.parametrize("seeds, documents, deviations", [
    (3, 8, (0.01, 0.25, 0.01)), (3, 50, (0.05, 0.05, 0.05)), (5, 50, (0.05, 0.01, 0.01)), (5, 8, (0.05, 0.35, 0.05)),
])  # fmt: skip
def test_coverage_over_seeds_and_documents(seeds, documents, deviations):
    """About 95% of 1,000 simulated corpora: 1.4 points more or less are two standard errors."""
    draw = np.random.default_rng(1)
    found = (over_seeds_and_documents(*drawn(draw, seeds, documents, *deviations)).interval for _ in range(1000))
    assert 0.935 <= sum(one.low <= 0.3 <= one.high for one in found) / 1000 <= 0.98


def test_documents_alike_leave_the_interval_over_seeds_and_documents_kept_are_in_the_table():
    bits, sizes = drawn(np.random.default_rng(2), 4, 6, 0.1, 0.0, 0.0)
    found, of_seeds = over_seeds_and_documents(bits, sizes), scipy.stats.ttest_1samp(bits.sum(1) / sizes.sum(), 0.3)
    ends = of_seeds.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((ends.low, ends.high))
    runs = texts(nats := {"absolute": 0.7, "relative": 0.5})
    kept = {
        run_key(run): Beside(documents={"test": [
            DocumentNats(str(n), 10 * n, 10 * n * nats[run.setting("position.name")] + n * run.seed) for n in (1, 2, 3)
        ]})
        for run in runs
    }  # fmt: skip
    column = row(grids(runs, kept)["scores"], "relative, k = 16")["test_change_over_documents"].value
    assert (column.value, column.n) == (pytest.approx(-0.2 / np.log(2)), 3)
    some = {run_key(run): kept[run_key(run)] for run in runs[:4]}
    assert "test_change_over_documents" not in {one.key for one in grids(runs, some)["scores"].columns}
