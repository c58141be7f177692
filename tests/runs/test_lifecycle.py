"""The status of a run in its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpr.errors import RunError
from rpr.records.record import RECORD_NAME, read_record, write_record
from rpr.runs import lifecycle
from tests.fake_records import fake_record


@pytest.mark.parametrize("before, after", [("running", "interrupted"), ("finished", "finished")])
def test_finished_run_stays_finished_when_its_logging_is_interrupted(tmp_path: Path, before: str, after: str) -> None:
    write_record(tmp_path / RECORD_NAME, fake_record(status=before))
    lifecycle.mark_stopped(tmp_path, KeyboardInterrupt())
    lifecycle.mark_stopped(tmp_path, RunError("the parent's report of it"))
    assert read_record(tmp_path / RECORD_NAME).status == after
