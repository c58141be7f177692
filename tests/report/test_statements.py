"""Statements of a report from fake records: verdicts, models that did not learn, the baseline, published figures."""

from pathlib import Path

import pytest

from rpr.errors import RecordError
from rpr.records.record import find_records
from rpr.report import published
from rpr.report.build import _finding
from rpr.report.grouping import run_groups
from rpr.report.learning import Learning, run_key
from rpr.report.lines import facts_of
from rpr.report.published import Published, Source
from rpr.report.statements import statements
from rpr.report.tables import published_figures
from tests.fake_records import fake_record
from tests.report.helpers import grids, grids_of, group_of, row, runs, summary_of, value


def sentences(records, learning=None):
    return [str(one) for group in run_groups(records, learning) for one in statements(group)]


def runs_ten_apart():
    """Two seeds of sinusoidal, learned and no positions, each 10 BLEU over the next."""
    scores = {"absolute": 30.0, "learned": 20.0, "none": 10.0}
    return [
        fake_record(kind, seed=seed, scores={"test": score + seed}) for kind, score in scores.items() for seed in (1, 2)
    ]


def test_statements_have_figures_seeds_and_verdicts():
    def change(label, bleu):
        return f"{label} {bleu} ± 0.0 ({bleu} to {bleu}; 3 seeds)"

    absolute = "absolute (sinusoidal) on test"
    better = [change(label, "+0.3") for label in ("relative, k = 2", "relative, k = 32", "keys only, k = 16")]
    worse = {"values only, k = 16": "-0.2", "absolute (learned)": "-0.7", "no positions": "-13.0"}
    worse |= {"relative, k = 0": "-13.0"}
    hold, one = (f"Corrected for 9 comparisons (Holm), {which}." for which in ("all hold", "it holds"))
    assert sentences(runs()) == [
        f"Relative, k = 16 against {change(f'{absolute}:', '+0.3')} BLEU; the paper: +0.3. {one} Agrees.",
        f"Better than {absolute}, in BLEU: {', '.join(better)}. {hold}",
        f"Worse than {absolute}, in BLEU: {', '.join(change(*pair) for pair in worse.items())}. {hold}",
        f"Not decided against {absolute}, in BLEU: {change('relative, k = 1', '0.0')}.",
    ]


def runs_of_known_t():
    """Of three seeds against the baseline: t = 0, t = 5 (p = 0.038, enough alone), t = 30 (p = 0.001, for three)."""
    return [
        fake_record(kind, seed=seed, scores={"test": 40 + t / 3**0.5 + noise * (kind != "absolute")})
        for kind, t in {"absolute": 0, "none": 0, "rope": 5, "t5": 30}.items()
        for seed, noise in enumerate((-1, 0, 1))
    ]


def test_findings_say_which_hold_for_their_number():
    records = runs_of_known_t()
    (better,) = (one for one in sentences(records) if one.startswith("Better"))
    assert better.endswith(" Corrected for 3 comparisons (Holm), of these hold: T5.") and "RoPE +2.9" in better
    (better,) = (one for one in sentences(records[:3] + records[6:9]) if one.startswith("Better"))
    assert "Corrected" not in better, "one comparison needs no correction"
    (better,) = (one for one in sentences(records[:9]) if one.startswith("Better"))
    assert better.endswith(" Corrected for 2 comparisons (Holm), it does not hold.")


def falling(run, fall):
    """How a run ended that was still learning, and had learned the order of words."""
    return Learning(fall, 2 * fall, 1800, 2.0 if run.setting("position.name") == "none" else 1.0)


def test_a_variant_without_a_result_is_named():
    failed = [fake_record("rope", seed=seed, status="failed") for seed in (1, 2)]
    assert (
        sentences([*runs_ten_apart(), *failed])[0]
        == "Without a result: RoPE (seed 1 failed: RuntimeError: rank 1 died)."
    )


def test_json_says_of_each_comparison_whether_it_holds():
    """What is undecided was not corrected."""
    found = [pair for each in statements(group_of(runs_of_known_t())) for pair in _finding(each)["comparisons"]]
    holds = {pair["variant"]: pair["holds_corrected"] for pair in found}
    assert holds == {"T5": True, "RoPE": False, "none": None}


def test_nothing_is_decided_with_a_run_whose_curve_is_unknown():
    records = runs_ten_apart()
    ended = {run_key(run): falling(run, 0.0) for run in records}
    assert sentences(records, ended)[0].startswith("Worse than absolute (sinusoidal)")
    del ended[run_key(records[0])]
    assert "10.0; 2 seeds; still learning?)" in sentences(records, ended)[0]
    assert not any(one.startswith("Worse") for one in sentences(records, ended))


def test_still_learning_variant_is_marked_and_undecided():
    records = runs()
    sixteen = [run for run in records if run.setting("position.clip_distance") == 16]
    learning = {run_key(run): falling(run, 0.02 * (run in sixteen)) for run in records}
    table = grids(records, learning)["table2"]
    assert row(table, "16")["note"].value == "still learning"
    assert "optim.max_steps=3600" in row(table, "16")["note"].remarks[0]
    assert row(table, "0")["agreement"].value == "not decided"
    assert row(table, "0")["agreement"].remarks == ("not decided: still learning",)


def test_statements_of_one_seed_and_still_learning_are_undecided():
    records = runs(seeds=(1,))
    assert sentences(records)[0].endswith("the paper: +0.3. Not decided: one seed.")
    found = sentences(records, {run_key(run): falling(run, 0.05) for run in records})
    assert found[0].endswith("Not decided: still learning.")
    assert found[1] == (
        "Still learning when training ended: every variant. The validation loss fell by 5.0% over the last tenth of "
        "the steps. No comparison with such a model is decided; train at least twice as long: optim.max_steps=3600."
    )


def ends(records, losses):
    """How each run ended, by the last validation loss of its kind of positions."""
    return {run_key(run): Learning(0.0, 0.0, 1800, losses[run.setting("position.name")]) for run in records}


def test_corpus_is_not_learned_with_a_loss_like_that_of_no_positions():
    records = runs()
    losses = dict.fromkeys(("absolute", "relative", "relative_keys", "learned"), 1.7) | {"none": 2.0}
    group = group_of(records, ends(records, losses | {"relative_values": 1.981}))
    assert [one.label for one in group.variants if one.unlearned] == ["values only, k = 16"]
    assert all(one.unlearned is None for one in group_of(records).variants), "the losses are not known"
    learned = group_of(records, ends(records, losses | {"relative_values": 1.979}))
    assert all(one.unlearned is None for one in learned.variants)
    alike = group_of(records, ends(records, dict.fromkeys([*losses, "relative_values"], 2.0)))
    without_order = {"none", "relative, k = 0"}
    assert {one.label for one in alike.variants if not one.unlearned} == without_order
    values = row(grids_of([group])["table3"], "yes", "no")
    assert (values["note"].value, values["agreement"].value) == ("not learned", "not decided")
    assert "1.981 and 2.000 nats per piece" in values["note"].remarks[0]
    _, finding, *_ = sentences(records, ends(records, losses | {"relative_values": 1.99}))
    assert finding.startswith("Values only, k = 16: not")


def test_models_that_cannot_know_order_are_not_blamed_for_it():
    tables = ("per_head", "shared_by_heads")
    records = [fake_record("none"), *(fake_record("relative", 0, settings={"position.tables": one}) for one in tables)]
    records.append(fake_record("clipped_scalars", settings={"position.clip_distance": 0}))
    group = group_of(records, {run_key(run): Learning(0.0, 0.0, 1800, 2.0) for run in records})
    assert len(group.variants) == 4 and not any(variant.unlearned for variant in group.variants)


@pytest.mark.parametrize("architecture, unlearned", [("encoder_decoder", True), ("decoder_only", False)])
def test_a_decoder_alone_learns_order_without_positions(architecture, unlearned):
    records = [fake_record(kind, settings={"model.architecture": architecture}) for kind in ("none", "relative")]
    group = group_of(records, {run_key(run): Learning(0.0, 0.0, 1800, 2.0) for run in records})
    assert [bool(variant.unlearned) for variant in group.variants] == [False, unlearned]


def test_a_second_source_of_published_figures_is_data_alone(monkeypatch):
    other = Source("doe", "Doe 2020", "Doe 2020 (a report)", "another corpus: compare the order only")
    figures = [
        Published({"data": "multi30k_en_de", "kind": kind}, "sacrebleu", "test", figure, other)
        for kind, figure in (("none", 11.0), ("learned", 12.5))
    ]
    every = (*published.published(), *figures)
    monkeypatch.setattr(published, "published", lambda: every)
    records = runs_ten_apart()
    tables = grids(records)
    learned = row(tables["table1"], "small, 1,800 steps", "EN-DE", "absolute (learned)")
    assert (value(learned["doe"]), learned["paper"].value.reason) == (12.5, "not in the paper")
    assert value(row(tables["table3"], "no", "no")["doe"]) == 11.0
    notes = [note.text for note in tables["table1"].notes]
    assert "Doe 2020: Doe 2020 (a report); another corpus: compare the order only" in notes
    order = "Published order, best first (Doe 2020 (a report)): absolute (learned), no positions. Here same: "
    order += "absolute (learned)"
    assert any(one.startswith(f"{order} against no positions +10.0 ± 0.0 (") for one in sentences(records))
    third = Published({"data": "multi30k_en_de", "kind": "absolute"}, "sacrebleu", "test", 13.0, other)
    monkeypatch.setattr(published, "published", lambda: (*every, third))
    (said,) = (one for one in sentences(records) if one.startswith("Published order"))
    assert said.endswith("; 2 seeds). Corrected for 3 comparisons (Holm), all hold.")
    alike = tuple(one._replace(figure=11.0) if one.source == other else one for one in every)
    monkeypatch.setattr(published, "published", lambda: alike)
    assert not any("Published order" in one for one in sentences(records)), "one figure is no order"


def test_published_scores_with_a_standard_error_are_beside_ours(monkeypatch):
    other = Source("doe", "Doe 2020", "Doe 2020", "the same model and data", standard_error=0.5)
    figures = [
        Published({"data": "multi30k_en_de", "kind": kind}, "sacrebleu", "test", figure, other)
        for kind, figure in (("none", 11.0), ("learned", 30.0))
    ]
    monkeypatch.setattr(published, "published", lambda: figures)
    said = [one for one in sentences(runs_ten_apart()) if "published:" in one]
    assert said == [
        "Absolute (learned) on test: 21.5 ± 0.7 (15.1 to 27.9; 2 seeds); published: 30.0 (29.0 to 31.0; Doe 2020). "
        "The intervals do not overlap.",
        "No positions on test: 11.5 ± 0.7 (5.1 to 17.9; 2 seeds); published: 11.0 (10.0 to 12.0; Doe 2020). "
        "The intervals overlap.",
    ]
    one_seed = [run for run in runs_ten_apart() if run.seed == 1]
    assert not any("published:" in one for one in sentences(one_seed))


@pytest.mark.parametrize("section, other", [("optim", {"max_steps": 4000}), ("model", {"d_model": 256}), ("data", {})])
def test_nanogpts_figure_is_of_its_model_and_steps_alone(section, other):
    records = [record for _, record in find_records(Path(__file__).parents[2] / "sweeps/results/shakespeare").records]
    assert len(records) == 3
    configs = [{**record.config, section: {**record.config[section], **other}} for record in records]
    changed = [run.model_copy(update={"config": config}) for run, config in zip(records, configs, strict=True)]
    assert bool(published_figures(group_of(changed))) is not bool(other)


@pytest.mark.parametrize(
    "kind, setting, value, known",
    [
        ("t5", "max_distance", 64, False),
        ("rope", "base", 500000.0, False),
        ("rope", "rotated_share", 0.25, True),
        ("t5", "buckets", 32, True),
    ],
)
def test_published_figures_are_of_schemes_with_their_published_settings(kind, setting, value, known):
    record = fake_record(kind, settings={f"position.{setting}": value})
    group = group_of([record])
    assert (facts_of(group.variants[0], group)["kind"] == kind) is known


def test_any_variant_is_the_baseline_of_a_report():
    records = runs_ten_apart()
    group = group_of(records, baseline="learned")
    assert [str(one) for one in statements(group)] == [
        "Better than absolute (learned) on test, in BLEU: absolute (sinusoidal) +10.0 ± 0.0 (+10.0 to +10.0; 2 seeds). "
        "Corrected for 2 comparisons (Holm), it holds.",
        "Worse than absolute (learned) on test, in BLEU: no positions -10.0 ± 0.0 (-10.0 to -10.0; 2 seeds). "
        "Corrected for 2 comparisons (Holm), it holds.",
    ]
    table = grids_of([group])["table1"]
    assert value(row(table, "small, 1,800 steps", "EN-DE", "absolute (sinusoidal)")["test_change"]) == 10.0
    assert summary_of(group).setting == "Δ: change from absolute (learned)"
    with pytest.raises(RecordError, match="baseline: no run has position=nope"):
        run_groups(records, baseline="nope")
    several = [fake_record("relative", k) for k in (0, 16)]
    with pytest.raises(RecordError, match="^baseline: relative has .*; choose one of relative-k0, relative-k16$"):
        run_groups(several, baseline="relative")
    rope = [fake_record("rope", settings={"position.base": base}) for base in (10_000.0, 500_000.0)]
    assert [group_of(rope, baseline=name).baseline.label for name in ("rope", "RoPE, base 500000")] == [
        "RoPE",
        "RoPE, base 500000",
    ]
    rope[0] = fake_record("rope", settings={"position.base": 100.0})
    message = r"^baseline: several .* position=rope \(RoPE.*; RoPE.*\); give .*, such as baseline='\"RoPE, base 100\"'$"
    with pytest.raises(RecordError, match=message):
        run_groups(rope, baseline="rope")
    assert group_of(several, baseline="relative-k16").baseline.label == "relative, k = 16"


def test_table_of_several_groups_names_the_baselines_of_all():
    def runs_of(model, **scores):
        names = {"absolute": None, "relative_8": 8, "relative_16": 16}
        settings = {"model.name": model, "optim.max_steps": 5000}
        return [
            fake_record(name.split("_")[0], names[name], scores={"test": score}, settings=settings)
            for name, score in scores.items()
        ]

    def about(*records):
        table = grids_of(run_groups(records, baseline="relative"))["table1"]
        return [note.text.partition(", the mean")[0] for note in table.notes if note.text.startswith("Δ")]

    one, other = runs_of("small", absolute=30.0, relative_16=31.0), runs_of("tiny", absolute=20.0, relative_8=21.0)
    own = ", whichever is the baseline of the row's own runs"
    [both] = about(*one, *other)
    assert both.endswith(own) and {*both.removesuffix(own).removeprefix("Δ: change from ").split(" or ")} == {
        "relative, k = 8", "relative, k = 16"
    }  # fmt: skip
    without = runs_of("small", absolute=30.0)
    assert about(*without, *other) == about(*other) == ["Δ: change from relative, k = 8"]


def test_of_several_ways_to_share_tables_the_papers_is_compared_with_the_paper():
    runs = [
        fake_record(kind, 8, settings={"model.name": "big", "position.tables": tables})
        for kind, tables in (("relative", "per_head"), ("relative", "shared_by_heads"), ("absolute", "shared_by_heads"))
    ]
    group = group_of(runs)
    first = str(next(iter(statements(group))))
    assert first.startswith("Relative, k = 8, shared by heads against absolute (sinusoidal) on test:")
    assert summary_of(group).setting == "Δ: change from relative, k = 8, shared by heads"
    assert group_of(runs[:1]).papers_relative.records, "another way if the paper's was not run"
    group = group_of(fake_record(kind, settings={"data.text": {}}) for kind in ("absolute", "relative"))
    assert summary_of(group).rows[0].reference is group.baseline
