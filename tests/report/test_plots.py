"""Plots: error bars and their captions, samples of many variants, labels inside the figure."""

import re

from rpr.report import plot_style, plots, samples
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score
from tests.report.helpers import group_of


def segments(axes):
    """The ends of all error bars, rounded."""
    lines = [line for bars in axes.collections for line in bars.get_segments()]
    return sorted((round(float(line[0][1]), 3), round(float(line[1][1]), 3)) for line in lines)


def test_bleu_by_k_error_bars():
    runs = [
        fake_record("relative", 0, scores=[fake_score("test", 12.0, interval=fake_interval(11.0, 14.0))]),
        *(fake_record("relative", 2, seed=seed, scores={"test": 30.0 + 2 * seed}) for seed in (1, 2, 3)),
        fake_record("absolute", scores=[fake_score("test", 20.0, interval=fake_interval(19.5, 20.25))]),
        fake_record("none", scores=[fake_score("test", 5.0, interval=fake_interval(5.5, 6.0))]),
    ]
    for width in (plot_style.WIDE, plot_style.COLUMN):
        [axes] = plots.bleu_by_k(group_of(runs)).figure(width).axes
        # 32, 34, 36: mean 34, standard deviation 2. A skewed interval is drawn from the score.
        assert segments(axes) == [(5.0, 6.0), (11.0, 14.0), (19.5, 20.25), (32.0, 36.0)]
        assert axes.get_ylim()[1] > 36
        words = "± standard deviation over the seeds, or 95% interval over the sentences (one seed)"
        assert " ".join(axes.get_xlabel().split()) == f"clip distance k bars: {words}"


def test_missing_data_is_not_drawn():
    [axes] = plots.bleu_by_k(group_of([fake_record("relative", 2)])).figure().axes
    assert segments(axes) == [] and axes.get_xlabel() == "clip distance k"
    baselines = group_of([fake_record("absolute"), fake_record("none")])
    assert plots.bleu_by_k(baselines) is None
    assert plots.all_plots(baselines, []) == []
    plot = plots.bleu_by_k(group_of([fake_record("relative", 2, scores={"validation": 30.0})]))
    [legend] = plot.figure().legends
    assert "relative, validation" in [text.get_text() for text in legend.get_texts()]
    lengths = [fake_record("learned", settings={"position.max_positions": most}) for most in (64, 512)]
    tables = [fake_record("relative", 2, settings={"position.tables": of}) for of in ("shared_by_heads", "per_head")]
    plot = plots.bleu_by_k(group_of([*lengths, *tables, fake_record("relative_keys", 2)]))
    assert plot.remark == "Without absolute (learned), max_positions = 512; Without relative, k = 2, shared by heads"
    assert "max_positions = 512" in plot.svg.decode()


def test_plots_of_many_variants_show_and_report_a_sample():
    lengths = fake_by_length(40, 30, 20, 10)
    runs = [fake_record(kind, k, by_length=lengths) for kind, count in (("relative", 26), ("relative_keys", 4))
            for k in range(count)]  # fmt: skip
    group = group_of([*runs, fake_record("absolute", by_length=lengths)])
    curves = [(one, {"validation/bleu": {1: 2.0, 2: 3.0}}) for one in samples.lines_of(group)[0]]
    drawn = {plot.name: plot for plot in plots.all_plots(group, curves)}
    assert list(drawn) == ["bleu_by_k", "bleu_by_length", "learning_curves"]
    assert len(samples.lines_of(group)[0]) == 12 and samples.lines_of(group)[0][0].label == "absolute (sinusoidal)"
    for name in ("bleu_by_length", "learning_curves"):
        words = "12 of 31 variants have a line"
        assert words in drawn[name].description and words in drawn[name].svg.decode()
    # Of 28 values of k (0 to 25, and the paper's 64 and 256) at most 24 have a tick label, 12 in a column.
    for width, most in ((plot_style.WIDE, 24), (plot_style.COLUMN, 12)):
        assert len(plots.bleu_by_k(group).figure(width).axes[0].get_xticks()) <= most
    assert "of 31" not in drawn["bleu_by_k"].description


def test_pictures_are_short_with_text_as_it_is():
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1 / 3, 1], [0, 2 / 3, 1], marker="o")
    axes.set_xticks([1 / 3], ["0.33333"])
    svg = plot_style.rendered(figure).decode()
    assert ">0.33333<" in svg
    attributes = re.findall(r' (?:d|x|y|transform)="([^"]*)"', svg)
    assert any("." in text for text in attributes) and not re.search(r"\.\d{3}", " ".join(attributes))
    [points] = [text.split() for text in re.findall(r' d="M ([^"]*)" clip-path="[^"]*" style="[^"]*#1f77b4', svg)]
    marks = re.search(
        r'<g clip-path="[^"]*" style="fill: #1f77b4[^>]*>\n((?:<use [^>]* x="[^>]*" y="[^>]*"/>\n){3})</g>', svg
    )
    assert points == [number for place in re.findall(r' x="(.*?)" y="(.*?)"', marks[1]) for number in place]


def test_every_text_is_inside_its_figure():
    shared = {"position.tables": "shared_by_heads_and_layers"}
    runs = [fake_record(kind, k, settings=settings) for kind, k in (("absolute_and_relative", 16), ("relative", 4))
            for settings in (shared, {})]  # fmt: skip
    group = group_of([*runs, fake_record("absolute")])
    many = [fake_record(choice) for choice in ("rope", "t5", "none")]
    many += [fake_record("absolute_and_relative", k) for k in range(30)]
    assert plots.scores_by_position(group_of(many)).remark.startswith("24 of 33 schemes have a row: of each kind")
    for width in (plot_style.WIDE, plot_style.COLUMN):
        for plot in (plots.bleu_by_k(group), plots.scores_by_position(group_of(many))):
            figure = plot.figure(width)
            [axes] = figure.axes
            texts = [*axes.get_yticklabels(), *axes.texts, axes.xaxis.label, axes.yaxis.label, *figure.texts]
            texts += [text for legend in figure.legends for text in legend.get_texts()]
            shown = [text for text in texts if text.get_text()]
            with plot_style.styled():
                figure.draw_without_rendering()
                boxes = [text.get_window_extent() for text in shown]
            for text, box in zip(shown, boxes, strict=True):
                assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, text.get_text()


def test_schemes_beyond_the_paper_are_ranked():
    def ranked(runs):
        return [(variant.label, score.value, score.n) for variant, score in plots.ranked(group_of(runs))[0]]

    scores = [("rope", 1, 21.0), ("rope", 2, 23.0), ("t5", 1, 30.0), ("none", 1, 4.0)]
    schemes = [fake_record(choice, seed=seed, scores={"test": score}) for choice, seed, score in scores]
    assert ranked(schemes) == [("T5", 30.0, 1), ("RoPE", 22.0, 2), ("none", 4.0, 1)]
    assert ranked(schemes[2:]) == [], "one scheme that the paper does not have"
    papers = [fake_record("relative", k, scores={"test": 25.0}) for k in (2, 4)]
    papers += [fake_record("relative", 16, scores={}), fake_record("relative_keys", 16)]
    assert [name for name, *_ in ranked([*schemes, *papers])] == ["T5", "relative, k = 4", "RoPE", "none"]
    papers[2] = fake_record("relative", 16, scores={"test": 24.0})
    assert [name for name, *_ in ranked([*schemes, *papers])] == ["T5", "relative, k = 16", "RoPE", "none"]
    drawn = {plot.name: plot for plot in plots.all_plots(group_of([*schemes, *papers]), [])}
    assert drawn["scores_by_position"].caption == ""
    other = fake_record("alibi", scores=[fake_score("test", 40.0, beam_size=1)])
    rows, remark = plots.ranked(group_of([*schemes, other]))
    assert len(rows) == 3 and remark == "Without ALiBi, scored in another way"
    [axes] = plots.scores_by_position(group_of(schemes)).figure().axes
    assert [text.get_text() for text in axes.texts] == ["30.0", "22.0 ± 1.4", "4.0"]


def test_validation_bleu_of_other_sentences_is_not_averaged():
    for counts, remark in (((200, 20), "no validation BLEU: it is of other sentences in some runs"), ((200, 0), "")):
        runs = [
            fake_record("relative", seed=seed, settings={"evaluation.validation_sentences": count})
            for seed, count in enumerate(counts)
        ]
        group = group_of(runs)
        curves = [(group.variants[0], {"validation/bleu": {1: 2.0}, "validation/loss": {1: 2.0}}) for _ in runs]
        plot = plots.learning_curves(group, curves)
        assert (plot.remark, len(plot.figure().axes)) == (remark, 1 if remark else 2)


def test_lines_differ_in_marker_and_dashes_too():
    lengths = fake_by_length(40, 30, 20, 10)
    runs = [fake_record(kind, by_length=lengths) for kind in ("absolute", "learned", "none", "relative")]
    group = group_of([*runs, fake_record("relative", 2, by_length=lengths)])
    curves = [(one, {"validation/loss": {1: 2.0, 2: 1.0}}) for one in group.variants]
    for plot in (plots.scores_by_length(group), plots.learning_curves(group, curves)):
        drawn = [line for line in plot.figure().axes[0].get_lines() if line.get_marker() in plot_style.MARKERS]
        assert len(drawn) == 5 == len({line.get_marker() for line in drawn})
        assert sum(line.get_linestyle() == "-" for line in drawn) == 2, "the fifth is solid again, with its own marker"
