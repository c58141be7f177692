"""Tables and plot by source length: cells, marks and notes by hand, seeds, missing runs, what is drawn where."""

from __future__ import annotations

import csv
import io

import pytest

from rpr.report.length_plot import bleu_by_length
from rpr.report.length_render import length_csv, length_document, length_grid, length_legend
from rpr.report.tables import position_tables


def tables(records):
    [table] = position_tables(records)
    return table


def test_a_row_for_each_variant_and_a_column_for_each_bucket(make, by_length):
    table = tables(
        [make("absolute", by_length=by_length(40, 30, 10, 2)), make("relative", by_length=by_length(41, 31, 25, 20))]
    )
    bleu, chrf = table.by_length
    headings, cells, footnotes = length_grid(bleu)
    assert headings == ["position", "1–10", "11–22", "23–30*", "over 30*"]
    assert cells == [
        ["sentences", "50", "40", "7", "20"],
        ["absolute (sinusoidal)", "40.0 [39.0, 42.0]", "30.0 [29.0, 32.0]", "10.0 [9.0, 12.0]", "2.0 [1.0, 4.0]"],
        ["relative, k = 16", "41.0 [40.0, 43.0]", "31.0 [30.0, 33.0]", "25.0 [24.0, 27.0]", "20.0 [19.0, 22.0]"],
    ]
    assert footnotes == []
    assert length_grid(chrf)[1][1][:2] == ["absolute (sinusoidal)", "60.0 [59.0, 62.0]"]
    notes = length_legend(bleu)
    assert notes[0].endswith("test (test_2016_flickr), long (test_2016_flickr, joined), all together")
    assert "* longer than any source of the training data, whose longest has 22" in notes
    assert "fewer than 10 sentences, which say little: 23–30" in notes
    assert any(note.startswith("sacreBLEU: nrefs:1|") and "beam 4" in note for note in notes)
    assert any("not over trainings" in note for note in notes)


def test_seeds_have_a_mean_and_a_deviation_and_a_run_without_is_a_dash(make, by_length):
    runs = [make(seed=seed, by_length=by_length(30 + seed, intervals=False)) for seed in (1, 3)]
    table = tables([*runs, make("absolute"), make("none", status="failed")])
    _, cells, footnotes = length_grid(table.by_length[0])
    assert cells[-1] == ["relative, k = 16", "32.0 ± 1.4"]
    assert [line[1] for line in cells[1:3]] == ["– [1]", "– [2]"]
    assert footnotes == ["not scored by source length", "failed: RuntimeError: rank 1 died"]
    assert not any("over trainings" in note for note in length_legend(table.by_length[0]))


def test_records_without_lengths_have_no_such_table(make):
    table = tables([make()])
    assert table.by_length == () and bleu_by_length(table) is None
    assert length_csv([table]).count("\n") == 1


@pytest.mark.parametrize(
    "change", [{"beam_size": 1}, {"longest_training_source": 21}, {"signatures": {"sacrebleu": "x", "chrf": "y"}}]
)
def test_what_was_scored_in_other_ways_is_not_averaged_and_told(make, by_length, change):
    same = tables([make(seed=1, by_length=by_length(30)), make(seed=2, by_length=by_length(31, **change))])
    assert "scored in different ways" in same.by_length[0].cells["relative, k = 16"][0].reason
    apart = tables([make("absolute", by_length=by_length(30)), make("relative", by_length=by_length(31, **change))])
    assert any(note.startswith("NOT COMPARABLE") for note in apart.by_length[0].notes)


def test_files_hold_every_bucket(make, by_length):
    table = tables([make(by_length=by_length(41.25, 31, 25, 20))])
    lines = list(csv.DictReader(io.StringIO(length_csv([table]))))
    assert [(line["metric"], line["shortest"], line["longest"]) for line in lines][3:5] == [
        ("sacrebleu", "31", ""),
        ("chrf", "1", "10"),
    ]
    assert (lines[0]["mean"], lines[0]["low"], lines[0]["high"], lines[0]["n"]) == ("41.25", "40.25", "43.25", "1")
    assert [line["beyond_training"] for line in lines[:4]] == ["False", "False", "True", "True"]
    [bleu, _] = length_document(table)
    assert bleu["rows"][0]["buckets"][2]["num_sentences"] == 7
    assert bleu["rows"][0]["buckets"][3]["longest"] is None


def test_the_plot_has_a_line_for_each_variant_bars_and_the_shade(make, by_length):
    table = tables(
        [
            make("absolute", by_length=by_length(40, 30, 10, 2)),
            *(make("relative", 4, seed=seed, by_length=by_length(30 + seed, 20)) for seed in (1, 3)),
            make("none", status="failed"),
        ]
    )
    figure = bleu_by_length(table)
    [axes] = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert [40, 30, 10, 2] in drawn and [32, 20] in drawn
    bars = sorted(
        round(float(top - low), 3)
        for low, top in (
            (path.vertices[0][1], path.vertices[1][1])
            for bar in axes.collections
            for path in bar.get_paths()
            if len(path.vertices) == 2
        )
    )
    # Intervals 3 wide at the four points of one run; ± sqrt(2) and ± 0 over two seeds.
    assert bars == [0.0, 2.828, 3.0, 3.0, 3.0, 3.0]
    [shade] = axes.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (1.5, 3.5)
    assert [label.get_text() for label in axes.get_xticklabels()][2:] == ["23–30\n7", "over 30\n20"]
    assert axes.get_ylim()[0] == 0


def test_no_shade_where_nothing_is_longer_than_in_training(make, by_length):
    [axes] = bleu_by_length(tables([make(by_length=by_length(40, 30))])).axes
    assert list(axes.patches) == [] and list(axes.texts) != []
