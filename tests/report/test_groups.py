"""Groups and variants from fake records: grouping, scores over seeds, changes, missing figures, unknown settings."""

import pytest

from rpr.records.position import position_of, positions_of
from rpr.report import groups
from rpr.report.groups import run_groups, run_key
from rpr.report.tables import findings
from tests.fake_records import fake_by_length, fake_record, fake_score
from tests.report.helpers import group_of

USUAL = "multi30k_en_de | model small | 1,800 steps | cpu"


@pytest.mark.parametrize("setting, value, apart", [
    ("optim.warmup_steps", 500, True), ("model.dropout", 0.3, True), ("evaluation.beam_size", 1, True),
    ("hardware.precision", "bf16", True), ("data.cache_dir", "/elsewhere", False), ("data.path", "/elsewhere", False),
    ("evaluation.bootstrap_samples", 5, False),
    ("model.relative_defaults.clip_distance", 4, False),  # what was used is among the settings of the positions
])  # fmt: skip
def test_deciding_settings_separate_groups(setting, value, apart):
    found = run_groups([fake_record("absolute"), fake_record("relative", settings={setting: value})])
    assert (len(found), found[0].common_heading) == (1 + apart, USUAL)
    assert (f"{setting.rpartition('.')[2]} {value}" in [group.distinctly() for group in found]) is apart


def test_other_code_of_a_scheme_is_a_variant_of_the_same_kind():
    """What a kind stands for stays: the baseline, the model without positions, the paper's comparison."""
    runs = [fake_record(kind, seed=seed) for kind in ("absolute", "none", "relative") for seed in (1, 2, 3)]
    group = group_of(run.model_copy(update={"schemes": {"vectors": "b" if run.seed > 1 else "a"}}) for run in runs)
    assert [(variant.position.kind, variant.label, len(variant.finished)) for variant in group.variants] == [
        (kind, f"{label}, code of vectors = {code}", number)
        for kind, label in (("absolute", "absolute (sinusoidal)"), ("none", "none"), ("relative", "relative, k = 16"))
        for code, number in (("b", 2), ("a", 1))
    ]
    assert group.baseline is group.variants[0] and group.papers_relative is group.variants[4]


def test_runs_that_started_from_another_are_rows_of_their_own():
    def run(seed, settings_id="1a", of_seed=None):
        run_id = f"{settings_id}{of_seed or seed}"
        origin = {"run": f"runs/{run_id}", "run_id": run_id, "settings_id": settings_id, "seed": of_seed or seed}
        origin |= {"positions": "RoPE", "steps": 1500, "weights": run_id * 8}
        return fake_record("absolute", seed=seed, settings={"origin": origin})

    group = group_of([run(1), run(2), fake_record("absolute"), fake_record("relative")])
    labels = ["absolute (sinusoidal)", "relative, k = 16", "absolute (sinusoidal), from RoPE after 1,500 steps"]
    assert [(one.label, len(one.finished)) for one in group.variants] == list(zip(labels, (1, 1, 2), strict=True))
    assert group.baseline is group.variants[0] and group.get("absolute") is group.variants[0]
    others = [run(1), run(1, "2b")]
    assert "no run with position=absolute has finished" in findings(group_of(others))[0]
    assert findings(group_of(others))[0].rpartition("baseline=")[2] == "absolute-from-1a."
    assert group_of(others, baseline="absolute-from-2b").baseline.finished


def test_runs_whose_matmuls_differed_are_apart_and_unfinished_ones_with_the_others():
    exact, *others = (fake_record(seed=seed, **{"training.matmul_precision": used})
                      for seed, used in enumerate(("highest", "medium", "medium"), start=1))  # fmt: skip
    group = group_of([*others, fake_record(seed=4, status="running")])
    assert (len(group.runs), group.distinctly()) == (3, "")
    found = run_groups([exact, *others])
    assert [group.distinctly() for group in found] == ["matmul_precision medium", "matmul_precision highest"]


def test_runs_on_other_files_of_a_corpus_are_apart_and_those_that_read_none_with_the_first():
    failed = fake_record(seed=3, status="failed", data=None)
    group = group_of([fake_record(), fake_record(seed=2), failed])
    assert (group.heading, len(group.runs)) == (USUAL, 3)
    other = {"settings": {"data.path": "/elsewhere"}, "data.key": "ef56" * 9}
    found = run_groups([fake_record(), fake_record(seed=2, **other), failed])
    assert [(group.distinctly(), len(group.runs)) for group in found] == [
        ("corpus ab12cd34", 2), ("corpus ef56ef56ef56", 1)
    ]  # fmt: skip


@pytest.fixture
def sweep_file(tmp_path, monkeypatch):
    """Where the file of the sweep `mine` is read from."""
    monkeypatch.setattr("rpr.report.groups.sweep_files", lambda: {"mine": tmp_path / "mine.yaml"})
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize("kinds, chosen, label", [
    (("absolute", "rope", "t5"), "t5", "T5"), (("absolute", "rope", "t5"), None, "absolute (sinusoidal)"),
    (("rope", "relative"), None, "RoPE"), (("relative", "t5"), None, "relative, k = 16"), (("t5",), None, "absolute"),
])  # fmt: skip
def test_baseline_is_the_one_given_or_absolute_or_of_the_file_or_the_papers_row(sweep_file, kinds, chosen, label):
    sweep_file.write_text("baseline: rope")
    assert group_of([fake_record(name, sweeps=["mine"]) for name in kinds], baseline=chosen).baseline.label == label


@pytest.mark.parametrize("data, sweep, given, shown", [
    ("multi30k_en_de", "other", None, False), ("multi30k_en_de", "other", True, True),
    ("wmt14_en_de", "other", None, True), ("wmt14_en_de", "other", False, False),
    ("multi30k_en_de", "mine", None, True), ("custom", "mine", None, False), ("custom", "mine", True, True),
])  # fmt: skip
def test_published_figures_stand_beside_the_papers_corpus_and_the_sweeps_that_say_so(
    sweep_file, data, sweep, given, shown
):
    sweep_file.write_text("paper: true\noverrides: [model=tiny data=multi30k_en_de]")
    record = fake_record(settings={"data.name": data}, sweeps=[sweep])
    assert group_of([record], published=given).published is shown


@pytest.mark.parametrize("losses, fall", [
    ({900: 2.0, 1000: 1.99}, None), ({100: 9.0, 900: 2.0, 1000: 1.9}, 0.05),
    ({500: 3.0, 1000: 2.0}, 0.2 / 2.2),  # 2.2 at step 900, between the two validations
    ({950: 2.0, 1000: 1.9}, None), ({900: 2.0, 1000: 2.1}, None), ({}, None),  # by how much since 900 is not known
    ({900: 0.009, 1000: 0.0045}, None),  # a task learned exactly: less than 0.005 nats
])  # fmt: skip
def test_still_learning_is_a_fall_over_the_last_tenth_on_average(losses, fall):
    run = fake_record()
    (variant,) = group_of([run], {run_key(run): groups.Beside(curves={"validation/loss": losses})}).variants
    assert variant.fall == (fall and pytest.approx(fall))


def test_scores_decoded_differently_have_no_mean_and_no_change():
    absolute = fake_record("absolute")
    other = fake_record("relative", seed=2, scores=[fake_score("test", 31.0, signature="another")])
    group = group_of([absolute, fake_record("relative"), other])
    assert "measured in different ways" in group.get("relative").measured(("test", "sacrebleu")).reason
    group = group_of([absolute, fake_record("relative", scores=[fake_score("test", 31.0, num_sentences=7)])])
    assert group.get("relative").change(group.key).reason == "scored in another way than absolute (sinusoidal)"
    lengths = [fake_by_length(50.0, 40.0), fake_by_length(50.0, 40.0, longest_training_source=21)]
    runs = [fake_record(kind, by_length=each) for kind, each in zip(("absolute", "relative"), lengths, strict=True)]
    assert "another way" in str(group_of(runs).get("relative").change(("sacrebleu", 1, 10)).reason)


def test_missing_score_has_a_reason():
    running = fake_record("relative", seed=2, status="running")
    group = group_of([fake_record("none", status="failed"), fake_record("relative"), running])
    relative = group.get("relative")
    assert group.get("none").measured(("test", "sacrebleu")).reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert (relative.unfinished, relative.measured(("test", "sacrebleu")).value) == ((running,), 30.0)
    assert relative.measured(("long", "sacrebleu")).reason == "not evaluated on long"


def test_unknown_schemes_and_settings_are_variants_of_their_own():
    labelled = fake_record(label="Spiral, 3 arms", **{"config.position": {"name": "s", "scheme": "s", "arms": 3}})
    assert position_of(labelled).label == "Spiral, 3 arms", "a report needs no schemes_dir"
    spiral = position_of(fake_record(**{"config.position": {"name": "spiral", "scheme": "spiral", "arms": 3}}))
    assert (spiral.kind, spiral.label) == ("other", "spiral, arms = 3, scheme = spiral")
    one, other = positions_of([fake_record("relative"), fake_record("relative", settings={"position.rotary": 500})])
    assert (one.kind, other.kind) == ("relative", "other") and "rotary = 500" in other.label
    assert position_of(fake_record("none", settings={"position.name": "mine"})).kind == "none"


def test_published_order_is_said_beside_ours():
    def run(position, long):
        scores = [fake_score("test", 99.0, "exact_match"), fake_score("long", long, "exact_match")]
        return fake_record(position, scores=scores, settings={"data.task": {"kind": "reverse"}, "data.name": "reverse"})

    records = [run(name, long) for name, long in (("t5", 10.0), ("alibi", 50.0), ("absolute", 1.0))]
    order = "T5, ALiBi, absolute (sinusoidal)"
    here = "here ALiBi, T5, absolute (sinusoidal)"
    assert f"Best first, Kazemnejad 2023: {order}; {here}." in findings(group_of(records, published=True))
    assert not any("Kazemnejad" in text for text in findings(group_of(records)))
