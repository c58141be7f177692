"""Records of schema 1 are read as schema 2; schema 2 is read back as written. tests/golden has records of schema 1."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.errors import RecordError
from rpr.migrations import EARLIER_DEFAULTS, READ_AS, Machine, machine_of, migrate_record, with_earlier_defaults
from rpr.records.record import Record, RerunOf, find_records, read_record, write_record
from tests.fake_records import edited, fake_by_length, fake_document, fake_score

INTERVAL = {"low": 29.5, "high": 31.25, "level": 0.95, "samples": 1000, "seed": 12345, "method": "percentile"}
SCHEMA_1 = fake_document(
    scores=[fake_score("test", 30.5, interval=INTERVAL), fake_score("long", 3.5)],
    settings={"data.interval": {"low": 1}},
    run_id="0a1b2c3d",
    by_length=edited(fake_by_length(30.5), {"buckets.0.scores.0.interval": INTERVAL}),
    schema=1,
)
ENDED = "the training process was ended by "
RESUMES = "; the same command goes on from the last checkpoint"
Read = Callable[..., Record]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read SCHEMA_1 with other values."""

    def read_changed(**changed: Any) -> Record:
        (tmp_path / "record.json").write_text(json.dumps(SCHEMA_1 | changed))
        return read_record(tmp_path / "record.json")

    return read_changed


def test_finished_run_with_intervals(read: Read) -> None:
    record = read()
    assert (record.schema_version, record.status, record.rerun_of) == (2, "finished", None)
    assert [score.interval and score.interval.kind for score in record.scores] == ["sentences", None]
    assert record.by_length is not None
    interval = record.by_length.buckets[0].scores[0].interval
    assert interval == record.scores[0].interval and interval is not None
    assert (interval.low, interval.high, interval.samples, interval.seed) == (29.5, 31.25, 1000, 12345)
    assert record.config == SCHEMA_1["config"]  # unchanged: rerun uses it


@pytest.mark.parametrize(
    "error, outcome",
    [
        ("interrupted", "interrupted: stopped from outside"),
        (f"interrupted{RESUMES}", "interrupted: the same command goes on from the last checkpoint"),
        (f"{ENDED}SIGKILL, out of memory{RESUMES}", f"interrupted: {ENDED}SIGKILL, out of memory{RESUMES}"),
        (f"{ENDED}exit code 1{RESUMES}", f"failed: {ENDED}exit code 1{RESUMES}"),
        ("step 7: the gradient is not finite", "failed: step 7: the gradient is not finite"),
    ],
)
def test_interrupted_run_has_not_failed(read: Read, error: str, outcome: str) -> None:
    record = read(status="failed", error=error)
    assert record.outcome == outcome and outcome.startswith(f"{record.status}: ")


def test_threads_and_processor_of_a_device() -> None:
    assert machine_of("1 thread of an abacus") == Machine("", 1, "an abacus")
    assert machine_of("2 processes, each 3 threads of 4 threads of wool") == Machine(
        "2 processes, each ", 3, "4 threads of wool"
    )
    assert machine_of("2 x H100") is None


def test_running_record_and_rerun(read: Read) -> None:
    assert read(status="running", error="interrupted").status == "running"
    assert read(command="rpr-cli rerun runs/a").rerun_of == RerunOf(run_id="0a1b2c3d", started=None)
    assert read(command="rpr-cli train name='rpr-cli rerun '").rerun_of is None


def test_migrated_record_is_written_as_schema_2_and_read_back_equal(read: Read, tmp_path: Path) -> None:
    migrated = read(status="failed", error="interrupted", command="rpr-cli rerun runs/a")
    path = tmp_path / "b" / "again.json"
    write_record(path, migrated)
    document = json.loads(path.read_text())
    assert next(iter(document.items())) == ("schema", 2)
    assert document["status"] == "interrupted" and document["rerun_of"] == {"run_id": "0a1b2c3d", "started": None}
    assert read_record(path) == migrated
    assert [found for found, _ in find_records(tmp_path / "b").records] == [path]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"schema": True}, "schema: "),
        ({"schema": 1.0}, "schema: "),
        ({"status": "done"}, "status: "),
        ({"scores": [{"interval": 7}]}, r"scores\.0\.split: "),
        ({"by_length": {"buckets": [[]]}}, r"by_length\.unit: "),
        ({"config": None, "error": [], "command": None}, "error: "),
    ],
)
def test_invalid_key_of_schema_1_is_named(read: Read, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"record.json: {message}"):
        read(**changed)


def test_interval_must_be_over_sentences(read: Read) -> None:
    score = SCHEMA_1["scores"][0]
    for wrong in ({"kind": "seeds"}, {"method": None}):
        with pytest.raises(RecordError, match=r"scores\.0\.interval: an interval in a record must be over sentences"):
            read(scores=[score | {"interval": score["interval"] | wrong}])


def test_migration_does_not_change_its_argument() -> None:
    document = copy.deepcopy(SCHEMA_1)
    migrate_record(document)
    assert document == SCHEMA_1


def test_later_settings_get_their_earlier_values() -> None:
    settings = {"optim": {"non_finite": "skip"}, "hardware": {}, "seed": 1}
    assert with_earlier_defaults(settings) == {
        "optim": {"non_finite": "skip", "ema_decay": None}, "hardware": {"attention": "auto"}, "seed": 1,
        "stop_after_minutes": None,
    }  # fmt: skip
    assert settings["hardware"] == {} and not EARLIER_DEFAULTS.keys() & READ_AS.keys()
