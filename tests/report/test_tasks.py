"""Reports of generated tasks from fake records: exact match beyond the training lengths, never the paper's BLEU."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rpr.records.measurement import mean_of_shares
from rpr.records.record import find_records
from rpr.report import plots
from rpr.report.build import build_report
from rpr.report.grouping import run_groups
from rpr.report.groups import TASK_RULE
from rpr.report.learning import LEARNED_RULE, learning_of, run_key
from rpr.report.plot_style import PAPER, WHITE
from rpr.report.plots import scores_by_length
from rpr.report.results_page import results_markdown
from rpr.report.statements import statements
from rpr.report.tables import build_tables, task_table
from rpr.tables.grid import legend
from rpr.tables.render import latex, latex_narrow
from tests.fake_records import edited, fake_by_length, fake_interval, fake_record, fake_score, write_run
from tests.report.helpers import group_of


def run(position, long, kind="reverse", within=99.0, cut_off=26, seed=1, rotated_share=0.25):
    """With its exact match on long."""
    lengths = fake_by_length(99.0, 99.0, 60.0, 40.0, unit="symbols of the input")
    lengths["signatures"]["exact_match"] = "unit:sentence"
    for bucket in lengths["buckets"]:
        bucket["scores"].append({"metric": "exact_match", "score": 50.0, "interval": None})
    scores = [fake_score("test", 99.8), fake_score("long", 70.0)]
    wilson = fake_interval(70.0, 90.0) | {"method": "Wilson's", "samples": None, "seed": None}
    scores += [fake_score("test", within, "exact_match", interval=wilson), fake_score("long", long, "exact_match")]
    settings = {"data.name": kind, "data.task": {"kind": kind, "max_train_length": cut_off}}
    if position == "rope":
        settings["position.rotated_share"] = rotated_share
    return fake_record(position, seed=seed, scores=scores, by_length=lengths, settings=settings)


def runs(kind="reverse", within=99.0, cut_off=26, **beyond):
    """One run per kind of positions."""
    found = {"absolute": 6.7, "relative": 60.0} | beyond
    return [run(position, long, kind, within, cut_off) for position, long in found.items()]


def text(records):
    return " ".join(map(str, statements(group_of(records))))


def test_exact_match_of_a_task_comes_first_and_by_length():
    group = group_of(runs("scan", within=81.0))
    tables = build_tables([group])
    assert (group.task, group.synthetic, "paper" in tables.sections) == (True, True, False)
    [task] = tables.sections["tasks"]
    keys = [column.key for column in task.columns]
    assert keys[:6] == ["position", "n", "long", "long_change", "long_solved", "test"]
    assert "seeds (Wilson's)" in " ".join(legend([task.only(lambda column: column.key == "test")]))
    assert tables.by_length[0].title == "exact match by length, test and long together"
    notes = " ".join(note.text for grid in tables.by_length for note in grid.notes)
    assert "longer than any example of the training data, whose longest has 22 symbols of the input" in notes
    [axes] = scores_by_length(group).figure().axes
    assert axes.get_ylabel() == "exact match"
    vertical = [line for line in axes.get_lines() if list(line.get_xdata()) == [1.5, 1.5]]
    assert len(vertical) == 1  # between the buckets of training, 1 to 10 and 11 to 22, and the others


def test_the_seeds_that_solve_a_task_are_counted():
    by_seed = ((1, 43.6), (2, 95.0), (3, 96.7))
    group = group_of([run("relative", long, seed=seed) for seed, long in by_seed])
    [task] = build_tables([group]).sections["tasks"]
    [(_, solved)] = task.only(lambda column: column.key == "long_solved").cells
    assert solved.value == "2 of 3"
    assert latex(task).isascii() and latex_narrow(task).isascii()


def test_published_figures_by_length_are_grey_where_task_and_lengths_of_training_are_the_same():
    def of_one_length(run):
        lengths = zip(run.by_length.buckets, (20, 21, 25, 30), strict=True)
        buckets = tuple(replace(bucket, shortest=length, longest=length) for bucket, length in lengths)
        return run.model_copy(update={"by_length": replace(run.by_length, buckets=buckets)})

    def grey(cut_off, architecture="decoder_only", rotated_share=1.0):
        rope = run("rope", 60.0, "symbols_reverse", cut_off=cut_off, rotated_share=rotated_share)
        group = group_of(
            run.model_copy(update={"config": edited(run.config, {"model.architecture": architecture})})
            for run in map(of_one_length, [*runs("symbols_reverse", cut_off=cut_off), rope])
        )
        plot = scores_by_length(group)
        lines = [line for line in plot.figure().axes[0].get_lines() if line.get_color() == PAPER]
        return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines], plot.caption

    # Of absolute positions, at 21, 24, 25 and 27, of which 24 and 27 have no bucket; none of relative ones, nor of RoPE
    # on another share of the width.
    [(places, figures)], words = grey(20)
    assert (places, figures) == ([1, 2], [46.1, 0.0]) and "Kazemnejad" in words
    assert grey(26)[0] == grey(20, "encoder_decoder")[0] == [], "figures are of decoders alone"
    assert [curve for _, curve in grey(20, rotated_share=0.25)[0]] == [[46.1, 0.0], [78.9, 0.5]]


def test_schemes_are_plotted_best_first_beside_published_accuracies():
    group = group_of(runs("reverse", within=81.0, none=90.0))
    [axes] = plots.scores_by_position(group).figure().axes
    order = ["none", "relative, k = 16", "absolute (sinusoidal)"]
    assert [label.get_text() for label in axes.get_yticklabels()] == order
    assert [text.get_text() for text in axes.texts] == ["90.0", "60.0", "6.7"]
    marks = [(line.get_marker(), float(line.get_xdata()[0])) for line in axes.get_lines() if line.get_marker() in "oD"]
    assert sorted(marks) == [("D", 2.3), ("o", 6.7), ("o", 60.0), ("o", 90.0)]
    assert all(line.get_markerfacecolor() == WHITE for line in axes.get_lines() if line.get_marker() == "o")
    words = "Dashed: absolute (sinusoidal). Hollow: not learned. Grey diamonds: K"
    assert words in plots.scores_by_position(group).caption


def test_exact_match_of_sentences_is_folded_and_not_shown_by_length():
    configs = [(run, edited(dict(run.config), {"data.task": None})) for run in runs()]
    group = group_of(run.model_copy(update={"config": config}) for run, config in configs)
    tables = build_tables([group])
    assert (group.task, group.synthetic, "tasks" in tables.sections) == (False, False, False)
    assert {column.key: column.priority for column in tables.sections["paper"][0].columns}["exact_match_test"] == 3
    assert "lengths_exact_match" not in [grid.name for grid in tables.by_length]


def test_rows_of_other_checkpoints_say_so():
    first, second = (run.model_copy(update={"scores": run.scores[2:]}) for run in runs())
    last = tuple(replace(score, checkpoint="step 1800") for score in second.scores)
    for other, notes in ((second, 0), (second.model_copy(update={"scores": last}), 1)):
        texts = [note.text for note in task_table([group_of([first, other])]).notes]
        assert sum(text.startswith("the rows used different checkpoints: ") for text in texts) == notes


def test_findings_of_a_task_are_about_exact_match_and_name_no_figure_of_the_paper():
    found = text(runs(none=1.0, relative_keys=55.0, absolute_and_relative=58.0))
    assert "absolute (sinusoidal) on long, in points of exact match: relative, k = 16 +53.3 (one seed), " in found
    assert not any(words in found for words in ("BLEU", "the paper", " on test"))


def test_lengths_are_in_the_unit_of_the_task_and_sizes_those_of_all_rows():
    other = [run.model_copy(update={"config": edited(run.config, {"model.dropout": 0.3})}) for run in runs("scan")]
    groups = [group_of(runs("scan")), group_of(other)]
    dropout = groups[0].runs[0].setting("model.dropout")
    notes = " ".join(note.text for note in task_table(groups).notes)
    assert "test: lengths up to 26 actions of the output, as in training; long: longer ones" in notes
    assert f"dropout {dropout} or 0.3" in notes
    of_another_version = task_table([group_of(runs("a_task_of_later"))])
    assert "test: lengths up to 26, as in training" in " ".join(note.text for note in of_another_version.notes)


def test_without_longer_examples_nothing_is_said_of_them():
    records = [run.model_copy(update={"scores": run.scores[::2]}) for run in runs()]  # those of test
    group = group_of(records)
    assert (group.split, plots.scores_by_position(group).title) == ("test", "Exact match on test, best first")
    assert "beyond" not in text(records)
    assert "Kazemnejad" not in " ".join(note.text for note in task_table([group]).notes)


def test_results_page_leaves_groups_of_few_seeds_to_the_pages_of_their_sweeps(tmp_path):
    three = [run.model_copy(update={"seed": seed}) for seed in (1, 2, 3) for run in runs("scan", cut_off=26)]
    for number, record in enumerate([*runs("scan", cut_off=22), *three]):
        write_run(tmp_path / "runs" / str(number) / "record.json", record, "1 2", "2 1", "2 1")
    page = results_markdown(tmp_path / "runs")
    table, all_runs = page[page.index("## Exact match on scan") :].split("## Every sweep")
    assert table.count("| relative, k = 16 |") == 1
    assert "lengths up to 26 actions of the output, as in training" in table
    assert "max_train_length 22 |" in all_runs and "max_train_length 26 |" in all_runs
    assert "no training source has more than" not in page, "a task's lengths are not in tokens"


def test_changes_of_exact_match_are_of_shares_from_minus_100_to_100():
    runs_of = {"absolute": (50.0, 50.0), "relative": (70.0, 85.0)}
    group = group_of([run(kind, long, seed=seed) for kind, longs in runs_of.items() for seed, long in enumerate(longs)])
    change = group.change(group.get("relative"), group.baseline, "long")
    assert change == mean_of_shares([20.0, 35.0], 0.05, -100.0, 100.0)  # of 2,000 sentences
    assert [variant.undecided for variant in group_of(runs(within=95.0)).variants] == ["", ""], "95% are learned"


def test_order_of_schemes_is_compared_with_the_published_one():
    def found(*more, **long):
        every = map(str, statements(group_of([*schemes(**long), *more])))
        return [one for one in every if "Published" in one]

    def schemes(seed=1, **long):
        return [run(choice, score, seed=seed) for choice, score in long.items()]

    [one_seed] = found(absolute=1.0, t5=60.0, rope=12.0, relative=90.0)
    assert one_seed.endswith(
        "T5, RoPE, 25% of the width, absolute (sinusoidal). Here not decided: 3 of 3 pairs. Of relative, k = 16 no such"
        " figure is held."
    )
    [decided] = found(*schemes(seed=2, t5=61.0, rope=13.0, absolute=12.5), t5=60.0, rope=12.0, absolute=12.4)
    same = "Here same: T5 against RoPE, 25% of the width +48.0 ± 0.0 (+47.4 to +48.6; 2 seeds), T5 against absolute "
    undecided = "not decided: 1 of 3 pairs. Corrected for 3 comparisons (Holm), all hold."
    assert same in decided and decided.endswith(undecided)
    first, second = schemes(t5=60.0, rope=12.0, absolute=12.4), schemes(seed=2, t5=61.0, rope=13.0, absolute=12.5)
    everything = text([*first, *second])
    assert (
        "Not decided against absolute (sinusoidal) on long, in points of exact match: RoPE, 25% of the width 0.0 ±"
        in everything
    )
    [opposite] = found(*schemes(seed=2, t5=10.0, rope=61.0), t5=11.0, rope=62.0)
    assert "Here opposite: T5 against RoPE, 25% of the width -51.0 ± 0.0 (" in opposite
    assert found(t5=60.0, relative=90.0) == []


def test_published_figures_are_shown_with_their_source():
    def column(records):
        grid = task_table([group_of(records)])
        keys = [column.key for column in grid.columns]
        notes = " ".join(note.text for note in grid.notes)
        return notes, [row[keys.index("kazemnejad")].value for row in grid.cells] if "kazemnejad" in keys else []

    notes, [absolute, relative] = column(runs())
    assert (absolute.value, relative.reason) == (2.3, "no published figure of this row as a whole known to us")
    assert "Kazemnejad et al. 2023" in notes and "compare the order only" in notes
    for share, published in ((0.25, [7.7]), (1.0, [])):  # Kazemnejad's RoPE is another than on the whole width
        assert [cell.value for cell in column([run("rope", 60.0, rotated_share=share)])[1]] == published
    assert column(runs("duplicate")) == (column(runs("duplicate"))[0], [])
    for cut_off, shown in ((26, True), (22, False)):  # the figure is of the cut-off 26
        records = [run(choice, 60.0, "scan", cut_off=cut_off) for choice in ("absolute", "transformer_xl")]
        assert ("Csordás" in column(records)[0]) == shown


def test_task_that_is_not_learned_or_still_learning_says_so():
    rules = " ".join(build_tables(run_groups(runs())).rules)
    assert TASK_RULE in rules and LEARNED_RULE not in rules, "a legend of this page"
    unlearned = text(runs(within=80.0))
    assert "not learned: exact match within the training lengths is below 95%" in unlearned
    grid = task_table(run_groups(runs(within=80.0))).only(lambda column: column.key == "note")
    assert [row[-1].value for row in grid.cells] == ["not learned"] * 2
    for last, undecided in ((0.5, "still learning"), (0.998, "")):
        falling = {run_key(run): learning_of(run, {900: 1.0, 1000: last}) for run in runs()}
        assert [one.undecided for one in group_of(runs(), falling).variants] == [undecided] * 2


@pytest.mark.usefixtures("unrendered")
def test_task_that_was_not_scored_within_the_training_lengths_is_not_known_to_be_learned():
    scored = [
        run(position, long, seed=seed) for position, long in (("absolute", 9.0), ("relative", 60.0)) for seed in (1, 2)
    ]
    beyond = [each.model_copy(update={"scores": each.scores[-1:]}) for each in scored]
    for records, why in ((scored, ""), (beyond, "not known to be learned")):
        group = group_of(records)
        assert [variant.undecided for variant in group.variants] == [why, why]
        assert any("exact match on test was not scored" in line for line in group.variants[0].caveats) == bool(why)


def test_report_and_results_page_list_tasks_apart_from_translation(tmp_path):
    translation = [fake_record("absolute", scores={"test": 36.2}), fake_record("relative", scores={"test": 37.7})]
    folder = tmp_path / "runs"
    for number, record in enumerate([*runs(), *translation]):
        write_run(folder / str(number) / "record.json", record, "1 2", "2 1", "2 1")
    found = find_records(folder)
    report = build_report(found.records, folder, "x")
    [task] = [table for table in report.document["tables"] if table["name"] == "task"]
    long = {line["position"]: line["long"]["value"] for line in task["rows"]}
    assert long == {"absolute (sinusoidal)": 6.7, "relative, k = 16": 60.0}
    html = (folder / "index.html").read_text()
    assert html.index('<section id="paper">') < html.index('<section id="tasks">') < html.index('<section id="t1">')
    assert "Generated tasks" in html
    footer = html[html.index("<footer>") :]
    assert "Kazemnejad 2023" in html and "in those of other sources, which the notes of a table cite" in footer
    page = results_markdown(folder)
    parts = ("## Table 1", "## Exact match on reverse", "## What this cannot tell")
    papers, table = (page[page.index(first) : page.index(then)] for first, then in pairwise(parts))
    assert "| relative, k = 16 |" in table and "+53.3" in table
    assert "reverse" not in papers and "Comparisons with the paper: 1. By" in page and "not decided 1." in page
