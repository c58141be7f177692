"""Findings: each statement is recomputed here from the figures that went in, and is absent when they are."""

from __future__ import annotations

from rpr.report.findings import findings
from rpr.report.tables import position_tables


def said(*records):
    [table] = position_tables(records)
    return findings(table)


def test_loss_of_order_is_only_claimed_where_it_shows(make):
    def with_zero(bleu):
        return said(make("relative", 0, scores={"test": bleu}), make("relative", 16, scores={"test": 40.0}))[0]

    assert with_zero(12.0) == (
        "k = 0: 12.0, under half of k = 16 (40.0): order is lost (paper: 12.5 against 25.8; one seed each)."
    )
    assert "75% of k = 16 (40.0): a smaller loss than the paper's" in with_zero(30.0)
    assert "100% of k = 16 (40.0): the paper's loss does not show here" in with_zero(40.0)


def test_models_that_learned_nothing_prove_nothing(make):
    [statement] = said(make("relative", 0, scores={"test": 0.1}), make("relative", 16, scores={"test": 0.9}))
    assert "too little is learned to compare" in statement


def test_spread_from_k_2_with_its_seeds(make):
    runs = [make("relative", k, seed=seed, scores={"test": bleu}) for k, seed, bleu in
            ((1, 1, 10.0), (2, 1, 30.0), (2, 2, 31.0), (64, 1, 29.5), (64, 2, 29.5))]  # fmt: skip
    # Means 30.5 and 29.5; deviations 0.707 and 0.
    expected = (
        "From k = 2 to k = 64 the spread is 1.0 BLEU over 2 values of k; largest standard deviation over seeds 0.7 "
        "(paper: 0.1 over 5; 2 seeds)."
    )
    assert said(*runs) == [expected]


def test_against_absolute_on_each_split(make):
    statements = said(
        make("absolute", scores={"test": 30.0, "long": 10.0}, steps_per_second=2.0),
        make("relative", scores={"test": 29.5, "long": 22.1}, steps_per_second=1.94),
    )
    gain = "(paper, base, EN-DE, newstest2014: 0.3 above; one seed each)"
    assert statements == [
        f"On the test split relative, k = 16 is 0.5 below absolute: 29.5 against 30.0 {gain}.",
        "On the long split relative, k = 16 is 12.1 above absolute: 22.1 against 10.0 (one seed each).",
        "relative, k = 16 runs at 0.97 of absolute's steps/s (paper: 0.93, on P100; one seed).",
    ]


def test_against_absolute_to_french(make):
    french = {"data.target_language": "fr", "data.name": "wmt14_en_fr"}
    runs = [
        make(kind, scores={"test": bleu}, settings=french) for kind, bleu in (("absolute", 38.0), ("relative", 39.0))
    ]
    assert (
        "above absolute: 39.0 against 38.0 (paper, base, EN-FR, newstest2014: 0.5 above; one seed each)."
        in said(*runs)[0]
    )


def test_a_difference_within_the_seeds_deviation_is_called_so(make):
    runs = [make("relative", seed=seed, scores={"test": bleu}) for seed, bleu in ((1, 30.0), (2, 32.0))]
    statement = said(*runs, make("absolute", scores={"test": 30.5}))[0]
    assert "0.5 above absolute: 31.0 against 30.5, no more than the standard deviation over seeds, 1.4" in statement
    assert "1 to 2 seeds" in statement


def test_ablation_and_combination(make):
    statements = said(
        make("relative", scores={"test": 30.0}),
        make("relative_keys", 4, status="running"),
        make("relative_keys", scores={"test": 29.0}),
        make("relative_values", scores={"test": 28.0}),
        make("absolute_and_relative", scores={"test": 30.0}),
    )
    assert statements[0] == "1 of 5 runs has no result: 1 running or killed."
    assert (
        "k = 16, keys only: 29.0, values only: 28.0, both: 30.0 (paper: 25.8, 25.3, 25.8; one seed each)." in statements
    )
    assert any("sinusoidal + relative, k = 16 is level with relative, k = 16 alone" in text for text in statements)


def test_like_is_set_against_like_where_tables_are_shared_in_two_ways(make):
    def runs(tables, base):
        kinds = ("relative", "relative_keys", "relative_values")
        shared = {"position.tables": tables}
        return [make(kind, scores={"test": base - less}, settings=shared) for less, kind in enumerate(kinds)]

    statements = [text for text in said(*runs("per_head", 30.0), *runs("shared_by_heads", 20.0)) if "only" in text]
    assert [text.partition(" (")[0] for text in statements] == [
        "k = 16, keys only: 29.0, values only: 28.0, both: 30.0",
        "k = 16, keys only: 19.0, values only: 18.0, both: 20.0",
    ]


def test_nothing_is_said_without_figures(make):
    assert said(make("relative", scores={})) == []
    assert said(make("relative", status="failed"), make("absolute")) == ["1 of 2 runs has no result: 1 failed."]


def test_synthetic_data_comes_first(make):
    statements = said(make("absolute", synthetic=True), make("relative", synthetic=True))
    assert statements[0].startswith("The corpus is synthetic")
