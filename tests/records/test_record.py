"""Writing, reading and finding records and metrics."""

import json

import pytest

from rpr.errors import RecordError
from rpr.records.files import commit_records, read_metrics
from rpr.records.position import position_of
from rpr.records.record import Record, find_records, read_record, record_path, write_record
from rpr.report.groups import Variant
from tests.fake_records import fake_document, fake_record, fake_score


def test_outcome_of_unfinished_records():
    record = fake_record(status="running")
    assert (record.training, record.scores, record.steps) == (None, (), None)
    assert record.outcome == "still running, or killed (started 2026-01-02T03:04:05Z)"
    assert fake_record(status="failed").outcome == "failed: RuntimeError: rank 1 died"
    assert fake_record(status="interrupted").outcome == "interrupted: SIGTERM"
    assert fake_record().outcome is None


@pytest.mark.parametrize("where", ["configuration", "corpus"])
def test_record_is_synthetic_by_configuration_or_corpus(where):
    fields = fake_document(synthetic=where == "configuration")
    fields["data"]["synthetic"] = where == "corpus"
    assert Record.model_validate(fields).synthetic


@pytest.mark.parametrize("change, message", [
    ({"schema": 4}, "schema 4 is not 3, the one this rpr reads; update rpr"),
    ({"schema": 2, "status": "done"}, "schema 2 is not 3, .*; rpr 0.1.0 reads older ones; use that, or repeat the run"),
    ({"schema": True}, "schema: must be 3"),
    ({"colour": "red"}, "colour: extra inputs"),
    ({"device": None, "seed": None}, r"device: must be a valid string \(and 1 more\); restore it or repeat"),
    ({"scores": [fake_score("test", float("nan"))]}, r"scores\.0\.score: must be a finite number"),
])  # fmt: skip
def test_invalid_field_is_named(tmp_path, change, message):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(fake_document() | change))
    with pytest.raises(RecordError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_records_are_found_in_run_folders_and_committed_ones(tmp_path):
    write_record(tmp_path / "runs" / "b" / "record.json", fake_record(k=2))
    write_record(tmp_path / "runs" / "a" / "record.json", fake_record(k=1, sweeps=("table3",)))
    committed = tmp_path / "sweeps" / "table2"
    commit_records([(tmp_path / "other" / "record.json", fake_record(k=k)) for k in (4, 8)], committed)
    (tmp_path / "runs" / "a" / "tokenizer.json").write_text('{"vocab": 1}')
    (tmp_path / "runs" / "a" / ".hydra").mkdir()
    (tmp_path / "runs" / "a" / ".hydra" / "record.json").write_text("{")
    found = find_records(tmp_path)
    names = [f"{record.name}-{record.run_id}" for record in (fake_record(k=4), fake_record(k=8))]
    paths = ["runs/a/record.json", "runs/b/record.json", *(f"sweeps/table2/records.jsonl:{name}" for name in names)]
    assert [str(path.relative_to(tmp_path)) for path, _ in found.records] == sorted(paths)
    assert found.problems == []
    for given in (f"{committed}:{names[0]}", f"{committed}/records.jsonl:{names[0]}", f"{committed}:{names[0][:-9]}"):
        assert read_record(record_path(given)) == fake_record(k=4)
    with pytest.raises(RecordError, match="0 records of this name"):
        read_record(record_path(f"{committed}:absolute-s9"))
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "record.json").write_text("")
    (committed / "records.jsonl").write_text((committed / "records.jsonl").read_text()[:-400])
    damaged = find_records(tmp_path)
    assert len(damaged.records) == 3 and len(damaged.problems) == 2
    assert [position_of(record).clip_distance for _, record in find_records(tmp_path, "table2").records] == [2, 4]


def test_records_behind_links_are_found_once(tmp_path):
    root, disk = tmp_path / "runs", tmp_path / "disk"
    write_record(root / "a" / "record.json", fake_record(k=1))
    write_record(disk / "b" / "record.json", fake_record(k=2))
    for link, target in (("b", disk / "b"), ("disk", disk), ("same", root / "a"), ("a/circle", root)):
        (root / link).symlink_to(target)
    (disk / "circle").symlink_to(disk)
    (disk / "gone").symlink_to(tmp_path / "nothing")
    assert [str(path.relative_to(root)) for path, _ in find_records(root).records] == ["a/record.json", "b/record.json"]


def test_newest_finished_original_of_a_run_counts(tmp_path):
    original = fake_record(started="2026-01-02")
    rerun = fake_record(started="2026-02-01", rerun_of={"run_id": original.run_id, "started": original.started})

    def counted(**records):
        for folder, record in records.items():
            write_record(tmp_path / folder / "record.json", record)
        return [path.parent.name for path, _ in find_records(tmp_path).records]

    older, running = fake_record(started="2026-01-01"), fake_record(status="running", started="2026-01-03")
    assert counted(older=older, original=original, running=running, rerun=rerun) == ["original"]
    failed = fake_record(status="failed", started="2026-01-02")
    assert counted(older=failed, original=failed) == ["rerun"]
    other = rerun.model_copy(update={"run_id": "another"})  # the id by a newer rule
    newer = original.model_copy(update={"run_id": "third", "started": "2026-01-15"})
    for records in ([original, other], [other, original]):
        for runs, counts in ((records, original), ([newer, *records], newer)):
            assert Variant(position_of(original), "", tuple(runs)).finished == (counts,)


def test_repeats_with_other_code_or_another_corpus_are_runs_of_their_own(tmp_path):
    inputs = [({"vectors": "1"}, "ab12"), ({"vectors": "2"}, "ab12"), ({"vectors": "2"}, "ef56"), (None, "ef56")]
    for number, (code, key) in enumerate(inputs):
        record = fake_record(schemes=code, started=f"2026-01-0{number + 1}", **{"data.key": key})
        write_record(tmp_path / str(number) / "record.json", record)
    write_record(tmp_path / "failed" / "record.json", fake_record(status="failed", data=None))
    assert [path.parent.name for path, _ in find_records(tmp_path).records] == ["0", "1", "2", "3", "failed"]


def test_invalid_line_of_metrics_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 1}\n\n{"st\n{"step": 3}\n')
    with pytest.raises(RecordError, match="metrics.jsonl:3: not a line of metrics; delete it"):
        read_metrics(path)
    path.write_text('{"step": 1}\n{"time": 2}\n{"step": 3}\n')
    with pytest.raises(RecordError, match="metrics.jsonl:2: not a line of metrics"):
        read_metrics(path)
