"""Groups and variants from fake records: grouping, scores over seeds, changes, missing figures, unknown settings."""

import pytest

from rpr.records.position import position_of, positions_of
from rpr.records.record import Git, RerunOf
from rpr.report import groups
from rpr.report.findings import findings
from rpr.report.groups import run_groups, run_key
from tests.fake_records import fake_by_length, fake_record, fake_score
from tests.report.helpers import group_of

OWN_DEFAULT = ("model.relative_defaults.clip_distance", 4)  # what was used is among the settings of the positions


def test_deciding_settings_separate_groups():
    def groups(setting, value):
        return run_groups([fake_record("absolute"), fake_record("relative", settings={setting: value})])

    others = {"optim.warmup_steps": 500, "model.dropout": 0.3, "evaluation.beam_size": 1, "hardware.precision": "bf16"}
    for setting, value in others.items():
        assert f"{setting.rpartition('.')[2]} {value}" in [group.distinctly() for group in groups(setting, value)]
    folders = (("data.cache_dir", "/elsewhere"), ("data.path", "/elsewhere"))
    for setting, value in (*folders, ("evaluation.bootstrap_samples", 5), OWN_DEFAULT):
        [group] = groups(setting, value)
        assert group.heading == "multi30k_en_de | model small | 1,800 steps | cpu"


def test_other_code_of_a_scheme_is_a_variant_of_the_same_kind():
    """What a kind stands for stays: the baseline, the model without positions, the paper's comparison."""
    runs = [fake_record(kind, seed=seed) for kind in ("absolute", "none", "relative") for seed in (1, 2, 3)]
    coded = [run.model_copy(update={"schemes": {"vectors": "b" if run.seed > 1 else "a"}}) for run in runs]
    group = group_of(coded)
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
    (alone,) = run_groups([run(1)])
    assert (alone.baseline.records, alone.baseline.label) == ((), "absolute")
    (group,) = run_groups([run(1), run(1, "2b")])
    assert "no run with position=absolute has finished" in findings(group)[0]
    assert findings(group)[0].rpartition("baseline=")[2] == "absolute-from-1a."
    assert run_groups([run(1), run(1, "2b")], baseline="absolute-from-2b")[0].baseline.finished
    group = group_of([run(1), run(1, of_seed=2), run(1, "2b")])
    assert [one.label.partition("steps")[2] for one in group.variants] == [" (1a)", " (2b)", ", seed 2"]
    group = group_of([run(seed, of_seed=1) for seed in (1, 2, 3)] + [run(2)])
    found = {one.label.partition("steps")[2]: [run.seed for run in one.finished] for one in group.variants}
    assert found == {", seed 1": [1, 2, 3], "": [2]}, "of one model, and of the own one"


def test_runs_whose_matmuls_differed_are_apart_and_unfinished_ones_with_the_others():
    def run(seed, used):
        return fake_record(seed=seed, **{"training.matmul_precision": used})

    group = group_of([run(1, "medium"), run(2, "medium"), fake_record(seed=3, status="running")])
    assert (len(group.runs), group.distinctly()) == (3, "")
    found = run_groups([run(1, "highest"), run(2, "medium")])
    assert [group.distinctly() for group in found] == ["matmul_precision highest", "matmul_precision medium"]


def test_runs_on_other_files_of_a_corpus_are_apart_and_those_that_read_none_with_the_first():
    failed = fake_record(seed=3, status="failed", data=None)
    group = group_of([fake_record(), fake_record(seed=2), failed])
    assert (group.heading, len(group.runs)) == ("multi30k_en_de | model small | 1,800 steps | cpu", 3)
    other = {"settings": {"data.path": "/elsewhere"}, "data.key": "ef56" * 9}
    found = run_groups([fake_record(), fake_record(seed=2, **other), failed])
    assert [(group.distinctly(), len(group.runs)) for group in found] == [
        ("corpus ab12cd34", 2), ("corpus ef56ef56ef56", 1)
    ]  # fmt: skip
    other = {"settings": {"data.tokenizer": "word"}, "data.key": "ef56"}  # the key has the settings, too
    first = fake_record(settings={"data.tokenizer": "bpe"})
    assert {group.distinctly() for group in run_groups([first, fake_record(seed=2, **other)])} == {
        "tokenizer bpe", "tokenizer word"
    }  # fmt: skip


def test_baseline_is_the_one_given_or_absolute_or_of_the_file_or_the_papers_row(tmp_path, monkeypatch):
    kinds = [fake_record(name, sweeps=["mine"]) for name in ("absolute", "rope", "relative", "t5")]
    monkeypatch.setattr("rpr.paths.data_dir", lambda name: tmp_path)
    (tmp_path / "mine.yaml").write_text("baseline: rope")
    for records, chosen, label in (
        (kinds, "t5", "T5"), (kinds, None, "absolute (sinusoidal)"), (kinds[1:], None, "RoPE"),
        (kinds[2:], None, "relative, k = 16"), (kinds[3:], None, "absolute"),
    ):  # fmt: skip
        assert group_of(records, baseline=chosen).baseline.label == label
    assert run_groups([fake_record("absolute")])[0].baseline.finished


def test_published_figures_stand_beside_the_papers_corpus_and_the_sweeps_that_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.paths.data_dir", lambda name: tmp_path)
    (tmp_path / "theirs.yaml").write_text("paper: true\noverrides: [model=tiny data=multi30k_en_de]")
    own = {"settings": {"data.name": "custom"}, "sweeps": ["theirs"]}
    wmt = {"settings": {"data.name": "wmt14_en_de"}}
    for changes, given, shown in (
        ({}, None, False), (wmt, None, True), (wmt, False, False), ({}, True, True),
        ({"sweeps": ["theirs"]}, None, True), ({"sweeps": ["mine"]}, None, False),
        (own, None, False), (own, True, True),
    ):  # fmt: skip
        assert group_of([fake_record(**changes)], published=given).published is shown


@pytest.mark.parametrize("losses, fall", [
    ({900: 2.0, 1000: 1.99}, None), ({100: 9.0, 900: 2.0, 1000: 1.9}, 0.05),
    ({500: 3.0, 1000: 2.0}, 0.2 / 2.2),  # 2.2 at step 900, between the two validations
    ({950: 2.0, 1000: 1.9}, None), ({900: 2.0, 1000: 2.1}, None), ({}, None),  # by how much since 900 is not known
    ({900: 0.009, 1000: 0.0045}, None),  # a task learned exactly: less than 0.005 nats
])  # fmt: skip
def test_still_learning_is_a_fall_over_the_last_tenth_on_average(losses, fall):
    run = fake_record()
    ends = groups.learning_of(losses)
    (variant,) = group_of([run], {run_key(run): groups.Beside(ends)}).variants
    assert variant.fall == (fall and pytest.approx(fall))


def test_scores_decoded_differently_have_no_mean_and_no_change():
    other = fake_record("relative", seed=2, scores=[fake_score("test", 31.0, signature="another")])
    group = group_of([fake_record("absolute"), fake_record("relative"), other])
    relative = group.get("relative")
    assert "measured in different ways" in group.score(relative, "test").reason
    other = fake_record("relative", scores=[fake_score("test", 31.0, num_sentences=7)])
    group = group_of([fake_record("absolute"), other])
    relative, absolute = group.get("relative"), group.get("absolute")
    assert group.change(relative, group.column("test")).reason == "scored in another way than absolute (sinusoidal)"
    assert absolute is group.baseline


def test_a_seed_that_was_trained_twice_is_said():
    """On another number of threads; a rerun shows that a result is repeated, and its original counts."""
    alike = [fake_record(seed=seed) for seed in (1, 2)]
    again = fake_record(seed=1, settings={"hardware.threads": 2})
    rerun = alike[1].model_copy(update={"rerun_of": RerunOf(run_id="b", started=alike[1].started)})
    caveats = group_of([*alike, again, rerun]).variants[0].caveats
    assert caveats["trained again"] == "seed 1: trained more than once, the newest run counts"
    assert "trained again" not in group_of(alike).variants[0].caveats
    changed = group_of(run.model_copy(update={"git": Git(commit="feed", dirty=run.seed > 1)}) for run in alike)
    assert changed.variants[0].caveats["uncommitted"].startswith("seed 2: trained from uncommitted changes")


def test_runs_beyond_the_seeds_of_a_sweeps_file_are_marked(tmp_path, monkeypatch):
    """A file's seeds are the number of its runs, fixed before any of them ran."""
    monkeypatch.setattr("rpr.paths.data_dir", lambda name: tmp_path)
    (tmp_path / "mine.yaml").write_text("jobs: [seed=1, 'seed=2,3']")
    group = group_of(fake_record(seed=seed, sweeps=["mine"]) for seed in (1, 2, 3, 4, 5))
    assert group.variants[0].caveats["more seeds"].startswith("seed 4, 5: beyond the 3 seeds that the sweep's file")
    (tmp_path / "mine.yaml").write_text("jobs: [position=relative]")
    assert "more seeds" not in group_of(fake_record(seed=seed, sweeps=["mine"]) for seed in (1, 4)).variants[0].caveats


def test_missing_score_has_a_reason():
    running = fake_record("relative", seed=2, status="running")
    group = group_of([fake_record("none", status="failed"), fake_record("relative"), running])
    none, relative = group.get("none"), group.get("relative")
    assert group.score(none, "test").reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert relative.unfinished == (running,)
    assert group.score(relative, "test").value == 30.0
    assert group.score(relative, "long").reason == "not evaluated on long"


def test_unknown_schemes_and_settings_are_variants_of_their_own():
    labelled = fake_record(label="Spiral, 3 arms", **{"config.position": {"name": "s", "scheme": "s", "arms": 3}})
    assert position_of(labelled).label == "Spiral, 3 arms", "a report needs no schemes_dir"
    spiral = position_of(fake_record(**{"config.position": {"name": "spiral", "scheme": "spiral", "arms": 3}}))
    assert (spiral.kind, spiral.label) == ("other", "spiral, arms = 3, scheme = spiral")
    one, other = positions_of([fake_record("relative"), fake_record("relative", settings={"position.rotary": 500})])
    assert (one.kind, other.kind) == ("relative", "other") and "rotary = 500" in other.label
    assert position_of(fake_record("none", settings={"position.name": "mine"})).kind == "none"


@pytest.mark.parametrize("changes", [{"splits": ["test"], "test_sets": ["x"]}, {"longest_training_source": 21}, {}])
def test_scores_by_length_of_other_sentences_or_trainings_are_not_compared(changes):
    of_lengths = [fake_by_length(50.0, 40.0), fake_by_length(50.0, 40.0, **changes)]
    if not changes:
        of_lengths[1]["buckets"][0]["num_sentences"] = 49
    runs = [fake_record(kind, by_length=each) for kind, each in zip(("absolute", "relative"), of_lengths, strict=True)]
    group = group_of(runs)
    assert "another way" in str(group.change(group.get("relative"), ("sacrebleu", 1, 10)).reason)
