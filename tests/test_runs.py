"""`rpr-cli runs` from argv to exit code, on made-up records."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from rpr.records.record import write_record
from tests.fake_records import fake_interval, fake_record, fake_score
from tests.runs.test_locks import holding_process

SCORES = [fake_score("long", 9.0), fake_score("test", 30.0, interval=fake_interval(28, 32))]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folders of an old finished run and a new failed one in runs/, and of one with a damaged record."""
    monkeypatch.chdir(tmp_path)
    now = datetime.now(UTC)
    old = fake_record(scores=SCORES, started=(now - timedelta(days=3)).isoformat())
    new = fake_record("none", status="failed", started=(now - timedelta(hours=2, seconds=1)).isoformat())
    paths = [tmp_path / f"runs/{run.name}-{run.run_id}" for run in (old, new)]
    for path, record in zip(paths, (old, new), strict=True):
        write_record(path / "record.json", record)
    (paths[0] / "checkpoints").mkdir()
    (paths[0] / "checkpoints/last.ckpt").write_bytes(bytes(5_000_000))
    damaged = tmp_path / "runs/damaged"
    damaged.mkdir()
    (damaged / "record.json").write_text("{")
    return [*paths, damaged]


def test_runs_are_listed_newest_first(folders, cli):
    old, new, damaged = folders
    lines = cli("runs").out.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:4]}
    assert [*rows] == [damaged.name, new.name, old.name]
    assert rows[old.name].startswith("finished test sacrebleu 30.00 (28.00 to 32.00)†")
    assert rows[old.name].endswith(" 5.0")
    assert rows[new.name].startswith("failed [2] ") and rows[damaged.name].startswith("damaged [1] ")
    assert lines[4].startswith("[1] runs/damaged/record.json: ") and lines[-1].startswith("[2] failed: ")
    printed = json.loads(cli("runs", f"runs_dir={old.parent}", "format=json").out)
    best = printed["runs"][2]
    assert (best["name"], best["status"], best["score"]) == (old.name, "finished", 30.0)


def test_runs_are_removed_by_name_and_by_hash_and_what_is_no_run_stays(folders, cli, tmp_path):
    old, new, damaged = folders
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/record.json").write_text("{")
    (old.parent / "link").symlink_to(tmp_path / "elsewhere")
    (old / "inside").symlink_to(tmp_path / "elsewhere")
    for name, problem in (("nobody", "names 0 runs"), ("../elsewhere", "names 0 runs"), ("link", "not a link")):
        err = cli("runs", "remove", old.name, name, code=2).err
        assert problem in err and err.count("\n") == 1
    assert "give nothing, to list runs" in cli("runs", "delete", code=2).err
    with holding_process(new):
        err = cli("runs", "remove", old.name, new.name, code=2).err
        assert "in use by process" in err and err.count("\n") == 1
    assert old.is_dir() and new.is_dir() and damaged.is_dir()
    cli("runs", "remove", old.name, new.name.rpartition("-")[2], damaged.name)
    assert (tmp_path / "elsewhere/record.json").is_file() and [*old.parent.iterdir()] == [old.parent / "link"]
