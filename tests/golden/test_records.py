"""Every committed record is read as it stands, and this version can train its configuration."""

import json
from pathlib import Path

import pytest

from rpr.config.train import config_from_record
from rpr.records.record import find_records, record_name

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"


@pytest.mark.parametrize("file", sorted(SWEEPS.rglob("records.jsonl")), ids=lambda file: file.parent.name)
def test_committed_records_are_read_as_they_stand(file):
    records, problems = find_records(file.parent)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    raw = {f"{line['name']}-{line['run_id']}": line for line in lines}
    assert not problems and len(records) == len(lines) == len(raw)
    for path, record in records:
        assert record.status == "finished" and config_from_record(record.config).seed == record.seed
        own = raw[record_name(path)]
        assert (record.run_id, record.config, record.versions) == (own["run_id"], own["config"], own["versions"])
        assert [score.score for score in record.scores] == [score["score"] for score in own["scores"]]
