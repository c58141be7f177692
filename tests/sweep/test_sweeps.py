"""Sweep files, the state of their jobs, runs that several jobs or names share, the summary."""

import functools
from pathlib import Path

import pytest

from rpr.compose import composition
from rpr.errors import ConfigError, RecordError
from rpr.paths import sweep_files
from rpr.records.record import find_records, read_record
from rpr.runs.locks import acquire, current_holder, with_killed_runs
from rpr.sweep import spec, status
from rpr.sweep.status import Job, cost_line, new_job
from tests.data.helpers import write_lines
from tests.fake_records import make_run

NEED_A_PATH = ("shakespeare", "compare_k", "compare_schemes", "lm_converged")


@functools.cache
def configured(*words):
    return composition.compose_train(list(words))


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- files


def jobs(name):
    plan = spec.read(name)
    own = ["data.path=/a/folder"] if name in NEED_A_PATH else []
    return [job for row in plan.rows for job in composition.expand_multirun([*row, *own])]


@pytest.mark.parametrize("most, every", [(1, 6), pytest.param(99, 1, marks=pytest.mark.slow)])
def test_every_job_of_every_sweep_is_a_valid_run_of_its_own(most, every):
    """Each value of a setting is composed in one job of one sweep; of each sixth sweep at most one job, or of all."""
    words: set[str] = set()
    for number, name in enumerate(sorted(sweep_files())):
        plan, listed, configs = spec.read(name), jobs(name), []
        assert plan.name == name and plan.description and "\n" not in plan.description
        assert "sweep" not in {word.split("=")[0] for job in listed for word in job}, name
        assert len({tuple(job) for job in listed}) == len(listed) > 1, name
        for job in listed:
            new = {word for word in job if not word.startswith("seed=")} - words
            if new and len(configs) < most and number % every == 0:
                words |= new
                configs.append(configured(*job))
        assert len({config.run_id for config in configs}) == len(configs), name


def test_two_sweeps_of_one_name_are_refused(tmp_path):
    own = tmp_path / "quick.yaml"
    quick = sweep_files()["quick"]
    own.write_bytes(quick.read_bytes())
    assert spec.read(str(own)).name == "quick"
    own.write_text("jobs: [seed=1]")
    with pytest.raises(ConfigError, match=f"^{own}: {quick} is another sweep of this name, .*; rename the file"):
        spec.read(str(own))


# --- settings by the size of the data

ROWS = [
    {"up_to": 3, "settings": "optim.max_steps=10 seed=7", "takes": "a minute"},
    {"up_to": float("inf"), "settings": "optim.max_steps=20", "takes": "an hour"},
]


@pytest.mark.parametrize("pairs, steps", [(3, "10"), (4, "20")])
def test_row_is_that_of_the_number_of_training_pairs(tmp_path, pairs, steps):
    for split, count in (("train", pairs), ("validation", 1), ("test", 1)):
        write_lines(tmp_path / split, [(f"one {split} {n}", "eins") for n in range(count)])
    data = composition.compose_train(["data=custom", f"data.path={tmp_path}", f"data.cache_dir={tmp_path}/cache"]).data
    rows, setting = [spec.SizeRow(**row) for row in ROWS], f"optim.max_steps={steps}"
    settings, line = spec.settings_by_size(rows, data, [])
    assert setting in settings and line.startswith(f"{pairs} training pairs: {setting}")
    assert setting not in spec.settings_by_size(rows, data, ["optim.max_steps=99"])[0]


@pytest.mark.parametrize("rows", [[], [ROWS[0]], [ROWS[1], ROWS[0]], [{"up_to": float("inf")}], "all"])
def test_rows_out_of_order_or_without_an_end_are_refused(tmp_path, rows):
    (tmp_path / "mine.yaml").write_text(f"jobs: [seed=1]\nby_size: {rows}".replace("inf", ".inf"))
    with pytest.raises(ConfigError, match="by_size"):
        spec.read(str(tmp_path / "mine.yaml"))


# --- the state of a job


@pytest.mark.parametrize("changed, state", [
    ({"status": "finished"}, "finished"),
    ({}, "interrupted"),
    ({"status": "failed", "error": "interrupted: the reason decides nothing"}, "failed"),
])  # fmt: skip
def test_job_state(tiny_config, changed, state):
    run_dir = make_run(tiny_config(), **changed)

    def reported():
        (one,) = with_killed_runs(find_records(run_dir)).records
        return one[1].outcome

    job = Job((), tiny_config(), run_dir)
    assert job.read().state == state == (reported() or "finished").split(":")[0]
    with acquire(run_dir):
        assert changed or "still running" in str(reported())
        now, running = job.read(), ("running", current_holder(run_dir))
        assert (now.state, now.holder) == (("finished", None) if state == "finished" else running)


def test_job_state_without_a_record_or_with_a_damaged_one(tiny_config, tmp_path):
    job = Job((), tiny_config(), tmp_path)
    assert (job.read().state, job.read().record) == ("new", None)
    with acquire(tmp_path):
        assert (job.read().state, job.read().holder) == ("running", current_holder(tmp_path))
    (tmp_path / "record.json").write_text('{"schema": 1, "na')
    with pytest.raises(RecordError, match="schema 1 is not 3"):
        job.read()


@pytest.mark.usefixtures("in_tmp_path")
def test_duplicate_jobs_are_removed():
    words = [("seed=1",), ("seed=2",), ("seed=1", "name=x"), ("seed=2",)]
    made = [new_job(job, configured(*job), "") for job in words]
    assert [job.overrides for job in status.load_status("mine", made)] == words[:2]


@pytest.mark.usefixtures("in_tmp_path")
def test_dry_run_lists_jobs_with_their_status_and_what_the_others_cost(cli):
    make_run(configured("seed=1", "name=bar"), status="finished")
    make_run(configured("seed=2"), status="interrupted", error="why")
    Path("mine.yaml").write_text("jobs: [name=bar seed=1, seed=2, seed=3 position=none]")
    _, err = cli("sweep", "--dry-run", "mine.yaml", "evaluation.length_penalty=0", "evaluation.beam_size=1")
    assert "rpr-cli: without effect on these runs: evaluation.length_penalty\n" in err
    *commented, total, cost = cli("sweep", "--dry-run", "mine.yaml").out.splitlines()
    assert commented[::2] == ["# 1 of 3, finished", "# 2 of 3, interrupted", "# 3 of 3, new"]
    assert commented[5] == "rpr-cli train seed=3 position=none sweep=mine"
    assert total == "# 3 jobs: 1 new, 1 finished, 1 interrupted"
    assert cost.startswith("# 2 jobs, 0.73 M parameters: ") and cost.endswith(" GB of checkpoints")
    in_slurm = ("hardware=slurm_8xgpu", "hydra.launcher.partition=gpu", "--dry-run")
    assert "\nrpr-cli train -m hydra.launcher.partition=gpu seed=" in cli("sweep", "mine.yaml", *in_slurm).out


def test_cost_is_a_range_by_arithmetic():
    """6 x 48.2 M parameters x 3.28 G tokens, and 2% for attention, at 9 to 36% of 312 TFLOP/s; 20 checkpoints."""
    config = configured("model=base", "hardware=1xgpu")
    assert cost_line([config] * 9) == "9 jobs, 48 M parameters: 22 to 86 GPU hours, 104 GB of checkpoints"


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(("given", "seeds_and_steps"), [
    ("seed=2", ["2 5"]),  # the row that has it, with its own steps
    ("seed=1,2", ["1 3", "2 5"]),  # each value from the row that has it, with its own steps
    ("seed=7", ["7 3", "7 5"]),  # no row has it: set in all
    ("seed=2 model=tiny", ["2 5"]),  # rows without the setting stay
    ("seed=2 optim.max_steps=5,9", ["2 5", "2 9"]),  # what no row has, in the rows that have the rest
])  # fmt: skip
def test_settings_select_the_rows_that_have_them(given, seeds_and_steps, cli):
    rows = "  - seed=1 optim.max_steps=3\n  - seed=2 optim.max_steps=5\n"
    Path("mine.yaml").write_text(f"overrides: [model=tiny optim.warmup_steps=1]\njobs:\n{rows}")
    lines = cli("sweep", "mine.yaml", *given.split(), "--dry-run").out.splitlines()
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    assert sorted(f"{one['seed']} {one['optim.max_steps']}" for one in found if "seed" in one) == seeds_and_steps
    refused = cli("sweep", "mine.yaml", "seed=1", "optim.max_steps=5", "--dry-run", code=2).err
    assert refused.startswith("rpr-cli: seed=1 and optim.max_steps=5: no row of the sweep has them together; ")


def sweep_jobs(*seeds):
    words = [(f"seed={seed}",) for seed in seeds]
    return status.load_status("mine", [new_job(one, configured(*one), f"rpr-cli train -m {one[0]}") for one in words])


@pytest.mark.usefixtures("in_tmp_path")
def test_sweep_is_incomplete_while_another_process_runs_a_job(capsys):
    make_run(configured("seed=1"), status="finished")
    other = make_run(configured("seed=2"))
    with acquire(other):
        assert status.print_summary("mine", sweep_jobs(1, 2), {}) == 1
        used, counts = capsys.readouterr().err.splitlines()
        assert used.startswith(f"rpr-cli: {other.name}: in use by {current_holder(other)}")
        assert counts == "sweep mine: 2 jobs: 1 finished, 1 running"
    make_run(configured("seed=2"), status="finished")
    assert status.print_summary("mine", sweep_jobs(1, 2), {}) == 0
    assert capsys.readouterr().err == "sweep mine: 2 jobs: 2 finished\n"
    assert all("mine" in read_record(path).sweeps for path in Path("runs").glob("*/record.json"))
