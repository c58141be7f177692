"""Frozen: every committed record reads back equal to its file, with the run id and position of the list."""

import json
from pathlib import Path
from typing import Any

import pytest

from rpr.config.train import config_from_record
from rpr.records.position import position_of
from rpr.records.record import read_record

HERE = Path(__file__).resolve().parent
SWEEPS = HERE.parents[1] / "sweeps"  # records of earlier versions are in old_records/
FROZEN: dict[str, Any] = json.loads((HERE / "records.json").read_text())


@pytest.mark.parametrize("folder", sorted({name.rpartition("/")[0] for name in FROZEN}))
def test_committed_records_read_back_equal(folder):
    for name in (name for name in FROZEN if name.rpartition("/")[0] == folder):
        path = HERE / name if name.startswith("old_records/") else SWEEPS / name
        record, frozen = read_record(path), FROZEN[name]
        assert config_from_record(record.config).run_id == frozen["today"], name
        position = position_of(record)
        assert (position.kind, position.label) == (frozen["kind"], frozen["label"]), name
        raw = json.loads(path.read_text())
        raw.pop("schema")
        assert differences(json.loads(record.model_dump_json(by_alias=True)), raw) == [], name


def differences(read: Any, raw: Any, key: str = "") -> list[str]:
    """The keys of the file that were read with other values."""
    if isinstance(raw, dict):
        return [line for name, value in raw.items() for line in differences(read[name], value, f"{key}.{name}")]
    if isinstance(raw, list):
        assert len(read) == len(raw), key
        return [line for index, value in enumerate(raw) for line in differences(read[index], value, f"{key}.{index}")]
    return [] if read == raw and type(read) is type(raw) else [key]
