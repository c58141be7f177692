"""Checked here: every file of sweeps/ reads, expands, and each of its jobs composes and validates; every complaint
about a file that is no sweep; how far a job has come, by the record and lock of its run, in every state; runs that are
the same, under another name or with their corpus at another path; a corpus that has changed; how the end of a sweep
tells what has no result, and the exit code; what a sweep was when it was last started; the last lines of a log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.compose import composition
from rpr.config.train import TrainConfig
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, InterruptedRun, RecordError, RunError
from rpr.records.record import Data, Record, read_record, write_record
from rpr.runs import lifecycle
from rpr.runs.locks import acquire
from rpr.sweep import ledger, spec, status
from rpr.sweep.ledger import Job, job_status, last_lines, unique_jobs

Config = Callable[..., TrainConfig]


@cache
def configured(*words: str) -> TrainConfig:
    return composition.compose_train(list(words))


def record_of(config: TrainConfig, **changed: Any) -> Record:
    given: dict[str, Any] = {
        "name": config.label, "run_id": config.run_id, "status": "running", "error": None, "command": "rpr-cli train",
        "config": config.model_dump(mode="json"), "git": {"commit": None, "dirty": None}, "versions": {},
        "device": "cpu", "hardware": "cpu", "seed": config.seed, "started": "2026-01-01T00:00:00+00:00",
        "finished": None, "steps": None, "parameters": None, "data": None, "training": None, "wandb": None,
    }  # fmt: skip
    return Record.model_validate(given | changed)


def written(config: TrainConfig, **changed: Any) -> Path:
    """The folder of a run with such a record."""
    run_dir = Path(config.runs_dir) / config.run_dir_name
    write_record(run_dir / "record.json", record_of(config, **changed))
    return run_dir


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- files


def jobs(name: str, *overrides: str) -> list[list[str]]:
    plan = spec.read(name)
    return [job for row in plan.rows for job in composition.expand_multirun([*plan.overrides, *row, *overrides])]


@pytest.mark.parametrize("name", sorted(spec.available()))
def test_every_job_of_every_sweep_validates_and_is_another_run(name: str) -> None:
    plan = spec.read(name)
    assert plan.name == name and plan.description and "\n" not in plan.description
    listed = jobs(name)
    made = composition.compose_train_jobs(listed)
    assert "sweep" not in {word.split("=")[0] for job in listed for word in job}  # the file's name is the sweep's
    assert len({config.run_id for config in made}) == len(listed) == len(made) > 1
    assert made[-1] == composition.compose_train(listed[-1])
    if name == "quick":
        kinds = [(one.position.name, one.position.relative and one.position.clip_distance) for one in made]
        assert kinds == [("absolute", False), *[("relative", k) for k in (0, 2, 16)]]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("overrides:\njobs:\n  - position=none,absolute seed=1,2\n  - name='two words' optim.max_steps=5\n")
    plan = spec.read(str(file))
    assert (plan.name, plan.description, plan.overrides) == ("mine", "", ())
    assert plan.rows == (("position=none,absolute", "seed=1,2"), ("name=two words", "optim.max_steps=5"))
    assert len(jobs(str(file))) == 5
    assert len(jobs(str(file), "data.synthetic.seed=1,2,3")) == 15


KEYS = r"a\.yaml: a sweep has the keys description, overrides and jobs \(a list"
STRINGS = r"a\.yaml: overrides and jobs must be lists of strings, e\.g\. .*, and jobs not empty"


@pytest.mark.parametrize(
    "content, message",
    [
        *((content, KEYS) for content in ("jobs: [seed=1]\nrows: []", "- seed=1", "", "jobs: seed=1")),
        *((content, STRINGS) for content in ("jobs: []", "jobs: [{seed: 1}]", "overrides: [3]\njobs: [seed=1]")),
        ('jobs: ["name=\'x"]', r"a\.yaml: unclosed quotation mark"),
        ("jobs: [", r"a\.yaml: cannot be read as a sweep \(while parsing"),
        (None, r"a\.yaml: no such file; give the name of a sweep"),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        spec.read(str(tmp_path / "a.yaml"))
    assert "\n" not in str(refusal.value)


def test_names(tmp_path: Path) -> None:
    (tmp_path / "a b.yaml").write_text("jobs: [seed=1]")
    with pytest.raises(ConfigError, match=r"named after its file; use letters, digits, '\.', '_' and '-'"):
        spec.read(str(tmp_path / "a b.yaml"))
    with pytest.raises(ConfigError, match=r"^sweep: no such sweep 'qick'; did you mean quick\? \(available: .*quick"):
        spec.read("qick")


# --- the state of a job


@pytest.mark.parametrize(
    "changed, state",
    [
        ({"status": "finished"}, "finished"),
        ({}, "interrupted"),
        ({"status": "interrupted", "error": "the reason decides nothing"}, "interrupted"),
        ({"status": "failed", "error": "interrupted: the reason decides nothing"}, "failed"),
    ],
)
def test_how_far_a_run_has_come(tiny_config: Config, changed: dict[str, Any], state: str) -> None:
    run_dir = written(tiny_config(), **changed)
    assert job_status(run_dir).state == state
    with acquire(run_dir) as lock:
        found = job_status(run_dir)
        assert (found.state, found.holder) == (("finished", None) if state == "finished" else ("running", lock.holder))


def test_a_new_job_one_that_has_only_begun_and_a_damaged_one(tiny_config: Config, tmp_path: Path) -> None:
    assert job_status(tmp_path / "nowhere") == ("new", None, None)
    with acquire(tmp_path) as lock:
        assert job_status(tmp_path) == ("running", None, lock.holder)
    assert job_status(tmp_path).state == "new"
    run_dir = written(tiny_config())
    (run_dir / "record.json").write_text('{"schema": 1, "na')
    with pytest.raises(RecordError, match="truncated or not JSON"):
        job_status(run_dir)


def test_each_job_once(tiny_config: Config) -> None:
    made = [((f"seed={seed}",), tiny_config(f"seed={seed}")) for seed in (1, 2)]
    named = (("seed=1", "name=x"), tiny_config("seed=1", "name=x"))
    assert [job.overrides for job in unique_jobs([*made, named, made[1]])] == [("seed=1",), ("seed=2",)]
    assert [job.run_dir.name for job in unique_jobs([named])] == [f"x-{made[0][1].run_id}"]


def test_a_finished_run_of_another_name_is_the_same_job(tiny_config: Config) -> None:
    config, named = tiny_config(), tiny_config("name=foo")
    root = Path(config.runs_dir)
    own = root / f"foo-{config.run_id}"

    def found() -> Path:
        [job] = unique_jobs([((), named)])
        return job.run_dir

    assert found() == own  # nothing is there yet
    written(config, status="failed", error="step 7: the gradient is not finite")
    for name in (f"a-{config.run_id}-rerun1", "b-00000000"):  # a rerun, another run
        write_record(root / name / "record.json", record_of(config, status="finished"))
    (root / f"c-{config.run_id}").mkdir()  # a damaged one
    (root / f"c-{config.run_id}" / "record.json").write_text("{")
    assert found() == own
    written(config, status="finished")
    assert found() == root / config.run_dir_name
    written(named, status="running")  # begun under this name
    assert found() == own


@pytest.fixture
def corpora(tmp_path: Path, tiny_config: Config) -> Callable[[str], TrainConfig]:
    """The configuration of a run that reads the corpus `tmp_path/<name>`, which is made."""

    def make(name: str) -> TrainConfig:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for split in ("train", "validation", "test"):
            for side in ("en", "de"):
                (folder / f"{split}.{side}").write_text(f"{split} {side} one\n{split} {side} two\n", encoding="utf-8")
        base, own = tiny_config(), {"name": "own", "synthetic": None, "path": str(folder)}
        data = base.data.model_copy(update={**own, "cache_dir": str(tmp_path / "cache")})
        return base.model_copy(update={"data": data})

    return make


def data_of(config: TrainConfig) -> Data:
    key = cache_key(config.data)
    return Data(name="own", synthetic=False, train_pairs=2, dropped_pairs=0, vocabulary_size=30, key=key)


def test_the_same_corpus_at_another_path_is_the_same_job(corpora: Callable[[str], TrainConfig], tmp_path: Path) -> None:
    here, there = corpora("here"), corpora("there")
    run_dir = written(here, status="finished", data=data_of(here))
    assert here.run_id != there.run_id
    [job] = unique_jobs([(("data.path=there",), there)])
    assert job.run_dir == run_dir and job_status(job.run_dir).state == "finished"
    other_model = there.model_copy(update={"seed": 2})
    [job] = unique_jobs([((), other_model)])
    assert job.run_dir == Path(other_model.runs_dir) / other_model.run_dir_name
    (tmp_path / "there" / "train.de").write_text("train de eins\ntrain de zwei\n")
    [job] = unique_jobs([((), there)])
    assert job.run_dir.name == there.run_dir_name


def test_a_corpus_that_has_changed_under_a_finished_run(corpora: Callable[[str], TrainConfig], tmp_path: Path) -> None:
    config = corpora("here")
    run_dir = written(config, status="finished", data=data_of(config))
    record = read_record(run_dir / "record.json")
    lifecycle.check_same_corpus(config, run_dir, record)
    (tmp_path / "here" / "train.en").write_text("other\nwords\n")
    with pytest.raises(ConfigError, match=r"data.path: .*here has changed since .* was trained on it .*move that"):
        lifecycle.check_same_corpus(config, run_dir, record)
    shutil.rmtree(tmp_path / "here")  # the corpus is gone, the run stands
    lifecycle.check_same_corpus(config, run_dir, record)


@pytest.mark.usefixtures("here")
def test_a_finished_run_of_another_name_is_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    written(configured("seed=1", "name=bar"), status="finished")
    written(configured("seed=2"), status="running")
    Path("mine.yaml").write_text("jobs: [name=foo seed=1, name=foo2 seed=2]")
    assert app.main(["sweep", "mine.yaml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# 1 of 2, finished: ") and lines[2].startswith("# 2 of 2, new: ")


@pytest.mark.usefixtures("here")
def test_one_name_for_several_jobs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("jobs: [name=one seed=1, name=two seed=2]")
    assert app.main(["sweep", "mine.yaml", "name=foo"]) == 2
    assert capsys.readouterr().err == (
        "rpr-cli: name: foo would be shared by 2 of the 2 jobs, but run names must be unique; leave name out to "
        "name each job after its settings\n"
    )
    assert app.main(["sweep", "mine.yaml", "name=foo", "seed=1", "--dry-run"]) == 0  # two rows, and one run
    made = [((), configured(*words)) for words in (("name=foo",), ("seed=2",), ("name=foo", "seed=3"))]
    with pytest.raises(ConfigError, match="name: foo would be shared by 2 of the 3 jobs"):
        status.load_status("mine", made)
    assert os.listdir() == ["mine.yaml"]


# --- the books of a sweep


def test_a_finished_run_joins_a_sweep_once(tiny_config: Config) -> None:
    config = tiny_config()
    run_dir = written(config, status="finished", sweeps=("first",))
    for _ in range(2):
        lifecycle.add_to_sweep(run_dir, "second")
        assert read_record(run_dir / "record.json").sweeps == ("first", "second")


def test_what_a_sweep_was_when_it_was_last_started(tiny_config: Config, tmp_path: Path) -> None:
    def jobs(*overrides: str, seeds: tuple[int, ...] = (1, 2)) -> list[Job]:
        return unique_jobs([((), tiny_config(f"seed={seed}", *overrides)) for seed in seeds])

    assert ledger.diff_manifest(tmp_path, "mine", jobs()) == []
    ledger.save_manifest(tmp_path, "mine", jobs())
    assert ledger.diff_manifest(tmp_path, "mine", jobs()) == []
    assert ledger.diff_manifest(tmp_path, "mine", jobs(seeds=(2, 3, 4))) == [
        "2 of its 3 jobs are new, 1 were removed (their runs are kept)"
    ]
    assert ledger.diff_manifest(tmp_path, "mine", jobs("optim.max_steps=9", "name=x")) == [
        'settings changed for every job: name "x" (before: null); optim.max_steps 9 (before: 700)',
        "2 of its 2 jobs are new, 2 were removed (their runs are kept)",
    ]
    (tmp_path / ".sweeps" / "mine.json").write_text("{")
    assert "so changes of the sweep are unknown" in ledger.diff_manifest(tmp_path, "mine", jobs())[0]
    ledger.save_manifest(tmp_path, "mine", jobs())
    assert json.loads((tmp_path / ".sweeps" / "mine.json").read_text())["sweep"] == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="runs_dir: .*file cannot be written .*choose another runs_dir"):
        ledger.save_manifest(tmp_path / "file", "mine", jobs())


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    assert last_lines(tmp_path) == []
    text = "\n".join(f"line {number}" for number in range(9000)) + "\n\nbar 1%\rbar 2%\n  last \n"
    (tmp_path / "log.txt").write_bytes(text.encode() + b"\xff\n")
    assert last_lines(tmp_path) == ["line 8998", "line 8999", "bar 2%", "  last", "�"]


# --- the end of a sweep


def books(*seeds: int) -> status.SweepStatus:
    return status.load_status("mine", [((f"seed={seed}",), configured(f"seed={seed}")) for seed in seeds])


@pytest.mark.usefixtures("here")
def test_a_sweep_with_a_job_that_is_another_process_s_is_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    written(configured("seed=1"), status="finished")
    others = [written(configured(f"seed={seed}")) for seed in (2, 3)]
    with acquire(others[0]) as lock:
        with acquire(others[1]):
            assert status.print_summary(books(1, 2, 3), {}) == 1
            err = capsys.readouterr().err
            assert "sweep mine: 3 jobs: 1 finished, 2 running in another process\n" in err
            last = err.splitlines()[-1]
            assert last.startswith("  the sweep is incomplete: 2 of its jobs are running in another process; ")
        written(configured("seed=3"), status="finished")
        assert status.print_summary(books(1, 2, 3), {}) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"rpr-cli: {others[0].name}: in use by {lock.holder}",
            "sweep mine: 3 jobs: 2 finished, 1 running in another process",
            "  the sweep is incomplete: 1 of its jobs is running in another process; rerun the command later to check "
            "again",
        ]
    written(configured("seed=2"), status="finished")
    assert status.print_summary(books(1, 2, 3), {}) == 0
    assert capsys.readouterr().err == "sweep mine: 3 jobs: 3 finished\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "problem, told",
    [
        (None, "step 7: the gradient is not finite"),  # left as it was
        (RunError("step 9: not finite"), "step 9: not finite"),  # in the record as well, usually
        (RunError("hardware: 1xgpu needs a GPU"), "hardware: 1xgpu needs a GPU"),  # before its record was begun again
        (InterruptedRun("SIGKILL"), "step 7: the gradient is not finite"),  # by now it is the error of this try
    ],
)
def test_why_a_job_that_failed_before_has_no_result(
    capsys: pytest.CaptureFixture[str], problem: RunError | None, told: str
) -> None:
    failed = written(configured("seed=1"), status="failed", error="step 7: the gradient is not finite")
    assert status.print_summary(books(1, 2), {} if problem is None else {("seed=1",): problem}) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"rpr-cli: failed: {failed.name}: {told}"
    assert lines[2] == f"rpr-cli: failed: {configured('seed=2').run_dir_name}: never started"
    assert lines[-2:] == [
        "sweep mine: 2 jobs: 1 never started, 1 failed",
        "  retry_failed=true runs failed jobs again, from their last checkpoint",
    ]
