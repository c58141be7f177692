"""Plots: 95% bars, which rows are drawn, what of several seeds is one figure."""

import warnings
from itertools import chain
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from rpr.checks.positions import measure
from rpr.data.vocabulary import EOS
from rpr.report import plots
from rpr.report.groups import Beside, run_key
from rpr.report.plots import recall_map
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score
from tests.report.helpers import group_of
from tests.small_models import LEARNED, make_model


def texts_of(figure):
    return {one.get_text() for one in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


def test_bars_are_95_percent_intervals_over_seeds_or_of_one_seed_over_its_test_set():
    runs = [
        fake_record("relative", 0, scores=[fake_score("test", 12.0, interval=fake_interval(11.0, 14.0))]),
        *(fake_record("relative", 2, seed=seed, scores={"test": 30.0 + 2 * seed}) for seed in (1, 2, 3)),
        fake_record("absolute", scores=[fake_score("test", 20.0, interval=fake_interval(19.5, 20.25))]),
        fake_record("none", scores=[fake_score("test", 5.0, interval=fake_interval(5.5, 6.0))]),
    ]
    # 32, 34, 36: mean 34, standard error 2 / sqrt(3), t(0.975) of 2 degrees 4.303. A skewed interval is drawn from the
    # score.
    [axes] = plots.scores_by_position(group_of(runs)).figure().axes
    bars = sorted(tuple(segment[:, 0]) for lines in axes.collections for segment in lines.get_segments())
    assert [*chain(*bars)] == pytest.approx([5.0, 6.0, 11.0, 14.0, 19.5, 20.25, 29.032, 38.968], abs=0.001)


def many():
    """A group of 31 rows with BLEU by length and on validation."""
    lengths = fake_by_length(40, 30, 20, 10)
    runs = [fake_record(kind, k, by_length=lengths, scores={"test": score + k / 100})
            for kind, count, score in (("relative", 26, 30.0), ("relative_keys", 4, 40.0))
            for k in range(count)]  # fmt: skip
    runs.append(fake_record("absolute", by_length=lengths, scores={"test": 10.0}))
    return group_of(runs, {run_key(run): Beside(curves={"validation/bleu": {1: 2.0}}) for run in runs})


def test_of_many_rows_baseline_the_papers_best_and_worst_are_drawn():
    group = many()
    shown, remark = plots.lines_of(group)
    labels = [variant.label for variant in shown]
    assert len(labels) == 12 and remark.startswith("12 of 31 rows are drawn: baseline, the paper's, the worst")
    assert {"absolute (sinusoidal)", "relative, k = 16", "relative, k = 25", "keys only, k = 3"} <= {*labels}
    drawn = {plot.name: plot for plot in plots.all_plots(group)}
    assert list(drawn) == ["scores_by_position", "bleu_by_length", "learning_curves"]
    for name in ("bleu_by_length", "learning_curves"):
        texts = texts_of(drawn[name].figure())
        assert "12 of 31" in drawn[name].caption and "relative, k = 16" in texts


def test_rows_are_ranked_and_those_far_below_are_arrows():
    scores = {"absolute": 36.0, "rope": 38.0, "t5": 37.0, "alibi": 37.5, "none": 4.0}
    group = group_of([fake_record(choice, scores={"test": score}) for choice, score in scores.items()])
    [axes] = plots.scores_by_position(group).figure().axes
    labels = ["RoPE", "ALiBi", "T5", "absolute (sinusoidal)", "none"]
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    assert 30 < axes.get_xlim()[0] < 36
    other = fake_record("kerple", scores=[fake_score("test", 40.0, beam_size=1)])
    [axes] = plots.scores_by_position(group_of([*group.runs, other])).figure().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == labels, "none scored in another way"


def test_validation_bleu_of_other_sentences_is_not_averaged():
    for counts, panels in (((200, 20), 1), ((200, 0), 2)):
        settings = ({"evaluation.validation_sentences": count} for count in counts)
        runs = [fake_record("relative", seed=seed, settings=some) for seed, some in enumerate(settings)]
        curves = Beside(curves={"validation/bleu": {1: 2.0}, "validation/loss": {1: 2.0}})
        assert plots.learning_curves(group_of(runs, {run_key(run): curves for run in runs})).panels == panels


def test_language_models_have_the_change_of_the_loss_by_step():
    losses = {"absolute": {1: 2.0, 2: 2.5}, "relative": {1: 1.5, 2: 1.5}}
    runs = [fake_record(name, settings={"data.text": {}, "model.architecture": "decoder_only"}) for name in losses]
    beside = {run_key(run): Beside(curves={"validation/loss": losses[run.setting("position.name")]}) for run in runs}
    _, axes = plots.learning_curves(group_of(runs, beside)).figure().axes
    assert {tuple(line.get_ydata()) for line in axes.lines} == {(0.0, 0.0), (-0.5, -1.0)}


def test_recall_is_drawn_by_pairs_and_distance(tmp_path):
    """Of two seeds: the answers of one are right, of the other wrong; another task has no such picture."""
    for seed, answer in (("a", "v1"), ("b", "v2")):
        (tmp_path / seed).mkdir()
        for split in ("test", "long"):
            for name, text in (("sources", "k4 v1 f2 k7 v3 ? k4"), ("references", "v1"), ("hypotheses", answer)):
                (tmp_path / seed / f"{split}.{name}.txt").write_text(f"{text}\n")
    kinds = ["recall"]
    run = SimpleNamespace(setting=lambda key: kinds[0])
    variant = SimpleNamespace(label="RoPE", beside={seed: Beside(tmp_path / seed / "record.json") for seed in "ab"})
    group = SimpleNamespace(runs=[run], variants=[variant], heading="recall")
    plot = recall_map(group)
    assert b"RoPE" in plot.svg and plot.panels == 1
    figure = plot.figure()
    assert plots.rendered(figure, "pdf").startswith(b"%PDF")
    (drawn,) = figure.axes
    assert drawn.collections[0].get_array().compressed().tolist() == [50.0]
    kinds[0] = "copy"
    assert recall_map(group) is None


@pytest.mark.slow
@pytest.mark.parametrize("changes, panels", [({}, 1), (LEARNED, 0)], ids=["relative", "learned"])
def test_figure_of_one_runs_positions_has_panels_of_what_the_model_has(changes, panels):
    """Warnings are errors, and markup stays text."""
    sentence = [*[5] * 7, EOS]
    work = {"max_distance": 8, "max_tokens_per_batch": 1000}
    numbers = measure(make_model(**changes), [(sentence, sentence)] * 100, **work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.position_figure(numbers, "a $x$ <b> & c", "k = 3 | step 5")
        words = " ".join(ElementTree.fromstring(plots.rendered(figure)).itertext() if panels else texts_of(figure))
    assert words.count("norm of each relative vector") == panels and words.count("encoder positions") == 1 - panels
    assert all(said in words for said in ("a $x$ <b> & c", "k = 3 | step 5", "Of 100 validation sentences"))
