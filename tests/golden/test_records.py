"""Frozen: every committed record reads back equal to its file, with its run id, or with that and the position of the
list: records of earlier versions, of which there is no report, and runs whose settings have other ids today.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from rpr.config.train import config_from_record
from rpr.records.position import position_of
from rpr.records.record import find_records

HERE = Path(__file__).resolve().parent
SWEEPS = HERE.parents[1] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))  # with every label in report.csv
FROZEN: dict[str, Any] = json.loads((HERE / "records.json").read_text())


@pytest.mark.parametrize("folder", [HERE / "old_records", *REPORTED], ids=lambda folder: folder.name)
def test_committed_records_read_back_equal(folder):
    records, problems, _ = find_records(folder)
    assert records and not problems
    for path, record in records:
        today, position = config_from_record(record.config).run_id, position_of(record)
        if path.name in FROZEN:
            assert {"today": today, "kind": position.kind, "label": position.label} == FROZEN[path.name], path
        else:
            assert folder in REPORTED and today == record.run_id, path
        raw = json.loads(path.read_text())
        raw.pop("schema")
        assert differences(json.loads(record.model_dump_json(by_alias=True)), raw) == [], path


def differences(read: Any, raw: Any, key: str = "") -> list[str]:
    """The keys of the file that were read with other values."""
    if isinstance(raw, dict):
        return [line for name, value in raw.items() for line in differences(read[name], value, f"{key}.{name}")]
    if isinstance(raw, list):
        assert len(read) == len(raw), key
        return [line for index, value in enumerate(raw) for line in differences(read[index], value, f"{key}.{index}")]
    return [] if read == raw and type(read) is type(raw) else [key]
