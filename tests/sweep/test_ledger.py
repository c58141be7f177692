"""Checked here: how far a job has come, by the record and lock of its run, in every state; runs that are the same; a
finished run found again under another name or when its corpus is read from another path, and refused when the corpus
has changed; what a sweep was when it was last started; the last lines of a log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.config.train import TrainConfig
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, RecordError
from rpr.records.record import Data, Record, read_record, write_record
from rpr.runs import lifecycle
from rpr.runs.locks import acquire
from rpr.sweep import ledger
from rpr.sweep.ledger import Job, job_status, last_lines, unique_jobs

Config = Callable[..., TrainConfig]


def record_of(config: TrainConfig, **changed: Any) -> Record:
    given: dict[str, Any] = {
        "name": config.label, "run_id": config.run_id, "status": "running", "error": None, "command": "rpr-cli train",
        "config": config.model_dump(mode="json"), "git": {"commit": None, "dirty": None}, "versions": {},
        "device": "cpu", "hardware": "cpu", "seed": config.seed, "started": "2026-01-01T00:00:00+00:00",
        "finished": None, "steps": None, "parameters": None, "data": None, "training": None, "wandb": None,
    }  # fmt: skip
    return Record.model_validate(given | changed)


def written(config: TrainConfig, **changed: Any) -> Path:
    run_dir = Path(config.runs_dir) / config.run_dir_name
    write_record(run_dir / "record.json", record_of(config, **changed))
    return run_dir


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
    rerun, another, damaged = (
        root / name for name in (f"a-{config.run_id}-rerun1", "b-00000000", f"c-{config.run_id}")
    )
    for folder in (rerun, another):
        write_record(folder / "record.json", record_of(config, status="finished"))
    damaged.mkdir()
    (damaged / "record.json").write_text("{")
    assert found() == own
    written(config, status="finished")
    assert found() == root / config.run_dir_name
    written(named, status="running")  # begun under this name
    assert found() == own


@pytest.fixture
def corpora(tmp_path: Path, tiny_config: Config) -> Callable[[str], TrainConfig]:
    """The configuration of a run that reads the corpus `tmp_path/<name>`, which lies there."""

    def make(name: str) -> TrainConfig:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for split in ("train", "validation", "test"):
            for side in ("en", "de"):
                (folder / f"{split}.{side}").write_text(f"{split} {side} one\n{split} {side} two\n", encoding="utf-8")
        base = tiny_config()
        data = base.data.model_copy(
            update={"name": "own", "synthetic": None, "path": str(folder), "cache_dir": str(tmp_path / "cache")}
        )
        return base.model_copy(update={"data": data})

    return make


def data_of(config: TrainConfig) -> Data:
    return Data(
        name="own", synthetic=False, train_pairs=2, dropped_pairs=0, vocabulary_size=30, key=cache_key(config.data)
    )


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
    job, record = Job((), config, run_dir), read_record(run_dir / "record.json")
    lifecycle.check_same_corpus(job.config, job.run_dir, record)
    (tmp_path / "here" / "train.en").write_text("other\nwords\n")
    with pytest.raises(ConfigError, match=r"data.path: .*here has changed since .* was trained on it .*move that"):
        lifecycle.check_same_corpus(job.config, job.run_dir, record)
    shutil.rmtree(tmp_path / "here")  # the corpus is gone, the run stands
    lifecycle.check_same_corpus(job.config, job.run_dir, record)


def test_a_finished_run_joins_a_sweep_once(tiny_config: Config) -> None:
    config = tiny_config()
    run_dir = written(config, status="finished", sweeps=("first",))
    job = Job((), config, run_dir)
    for _ in range(2):
        ledger.add_to_sweep(job, read_record(run_dir / "record.json"), "second")
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
