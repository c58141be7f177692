"""Committed records are read as they stand."""

import json
from pathlib import Path

import pytest

from rpr.config.train import config_from_record
from rpr.records.record import find_records, record_name

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"


@pytest.mark.parametrize("file", sorted(SWEEPS.rglob("records.jsonl")), ids=lambda file: file.parent.name)
def test_committed_records_are_read_as_they_stand(file):
    """And this version can train their configurations."""
    raw = {line["run_id"]: line for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    records, problems = find_records(file.parent)
    names = {f"{line['name']}-{run_id}" for run_id, line in raw.items()}
    assert not problems and {record_name(path) for path, _ in records} == names
    for _, record in records:
        assert record.status == "finished" and config_from_record(record.config).seed == record.seed
        own = raw[record.run_id]
        assert (record.config, record.versions) == (own["config"], own["versions"])
        assert [score.score for score in record.scores] == [score["score"] for score in own["scores"]]
