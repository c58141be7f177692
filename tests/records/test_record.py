"""Records: what is written is read back equal, a failed write leaves the old file, and each refusal says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rpr.errors import RecordError
from rpr.records.metrics import read_metrics
from rpr.records.position import position_of
from rpr.records.record import Record, find_records, read_record, write_record
from rpr.report.groups import one_per_seed
from tests.fake_records import fake_score


def test_a_record_is_read_back_equal(tmp_path, make, score, interval, by_length):
    scores = [score("test", 31.5, interval=interval(30, 33), empty_hypotheses=2), score("long", 20.0)]
    record = make("relative", 4, scores=scores, by_length=by_length(1, 2))
    write_record(tmp_path / "run" / "record.json", record)
    again = read_record(tmp_path / "run" / "record.json")
    assert again == record
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["record.json"]
    assert (again.score("test").interval.high, again.by_length.buckets[1].label) == (33, "11–22")
    older = make()
    assert older.score("test").interval is older.score("test").empty_hypotheses is older.by_length is None


def test_a_running_record_has_no_figures_and_says_so(make):
    record = make(status="running")
    assert (record.training, record.scores, record.steps) == (None, (), None)
    assert record.outcome == "still running, or killed (started 2026-01-02T03:04:05Z)"
    assert make(status="failed").outcome == "failed: RuntimeError: rank 1 died"
    assert make(status="interrupted").outcome == "interrupted: SIGTERM"
    assert make().outcome is None
    assert make(status="failed", error="Traceback:\n  line 3\n\nKeyError").error == "Traceback: line 3 KeyError"


def test_properties_read_the_configuration(make):
    record = make("relative_keys", 8)
    names = (record.model_name, record.data_name, position_of(record).clip_distance, record.max_steps)
    assert names == ("small", "multi30k_en_de", 8, 1800)
    # k is a setting of every run, but means nothing without a relative table.
    assert position_of(make("absolute", 8)).clip_distance is None
    assert record.score("test").score == 30.0
    assert record.score("long") is None
    assert record.setting("optim.no_such_key") is None


@pytest.mark.parametrize("where", ["configuration", "corpus"])
def test_one_mark_of_synthetic_data_is_enough(document, where):
    fields = document(synthetic=where == "configuration")
    fields["data"]["synthetic"] = where == "corpus"
    assert Record.model_validate(fields).synthetic


def test_a_failed_write_leaves_the_old_record(tmp_path, make, monkeypatch):
    path = tmp_path / "record.json"
    write_record(path, make(seed=1))
    old = path.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(OSError, match="no space left"):
                write_record(path, make(seed=2))
        assert path.read_bytes() == old
        assert os.listdir(tmp_path) == ["record.json"]
    record = make()
    record.config["optim"]["clip"] = float("inf")
    with pytest.raises(ValueError, match="Out of range float"):
        write_record(path, record)
    assert path.read_bytes() == old


def test_refusals_say_what_is_wrong_and_what_to_do(tmp_path, document):
    path = tmp_path / "record.json"
    text = json.dumps(document())
    for content, message in (
        (None, "no such record; give the folder of a run, e.g. runs/NAME-HASH"),
        (text[: len(text) // 2], r"truncated or not JSON \(line 1, column \d+: .*\); restore it or repeat"),
        ("[1]", "a run record is a JSON object, this is a list"),
        (b"\xff\xfe", "cannot be read"),
    ):
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(RecordError, match=message):
            read_record(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "schema 3 is newer than 2, the newest this rpr reads; update rpr"),
        ({"schema": 0}, "schema: must be 2"),
        ({"colour": "red"}, "colour: no such field"),
        ({"seed": "1"}, "seed: must be a whole number"),
        ({"status": "done"}, "status: must be 'running', 'finished', 'failed' or 'interrupted'"),
        ({"status": "failed", "error": None}, "error: status failed needs a reason"),
        ({"status": "interrupted", "error": ""}, "error: status interrupted needs a reason"),
        ({"config": {}}, r"config\.model\.name: missing"),
        (
            {"device": None, "seed": None},
            r"device: must be text \(and 1 more\); restore it or repeat",
        ),
        ({"scores": [fake_score("test", float("nan"))]}, r"scores\.0\.score: must be a finite number"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, document, change, message):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document() | change))
    with pytest.raises(RecordError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_records_are_found_in_run_folders_and_in_flat_folders(tmp_path, make, document):
    write_record(tmp_path / "runs" / "b" / "record.json", make(k=2))
    write_record(tmp_path / "runs" / "a" / "record.json", make(k=1, sweeps=("table3",)))
    write_record(tmp_path / "sweeps" / "table2" / "k4.json", make(k=4))
    (tmp_path / "runs" / "a" / "tokenizer.json").write_text('{"vocab": 1}')
    (tmp_path / "runs" / "a" / ".hydra").mkdir()
    (tmp_path / "runs" / "a" / ".hydra" / "record.json").write_text("{")
    found = find_records(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path, _ in found.records] == [
        "runs/a/record.json",
        "runs/b/record.json",
        "sweeps/table2/k4.json",
    ]
    assert found.problems == []
    (tmp_path / "sweeps" / "table2" / "record.json").write_text("")
    (tmp_path / "sweeps" / "half.json").write_text((tmp_path / "sweeps" / "table2" / "k4.json").read_text()[:400])
    damaged = find_records(tmp_path)
    assert len(damaged.records) == 3 and len(damaged.problems) == 2
    assert all("truncated or not JSON" in problem for problem in damaged.problems)
    assert [position_of(record).clip_distance for _, record in find_records(tmp_path, "table2").records] == [2, 4]


def test_a_run_that_was_repeated_counts_once_and_the_finished_one_counts(tmp_path, make):
    write_record(tmp_path / "1" / "record.json", make(scores={"test": 10.0}, started="2026-01-01"))
    write_record(tmp_path / "2" / "record.json", make(scores={"test": 20.0}, started="2026-01-02"))
    write_record(tmp_path / "3" / "record.json", make(status="running", started="2026-01-03"))
    [(path, record)] = find_records(tmp_path).records
    assert path.parent.name == "2"
    assert record.score("test").score == 20.0


def test_metrics_without_their_cut_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 1, "train/loss": 2.5}\n\n{"step": 2, "train/lo')
    assert read_metrics(path) == [{"step": 1, "train/loss": 2.5}]
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RecordError, match="metrics.jsonl:2: not JSON; delete this line"):
        read_metrics(path)
    path.write_text('{"step": 1}\n{"time": 2}\n')
    with pytest.raises(RecordError, match='metrics.jsonl:2: a line of metrics is an object with a whole "step"'):
        read_metrics(path)


def test_importing_the_room_is_light():
    heavy = "torch", "pytorch_lightning", "lightning", "matplotlib", "wandb", "hydra", "omegaconf"
    code = f"import sys, rpr.report.build, rpr.records.record\nprint([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_rerun_counts_only_where_its_original_has_no_result(tmp_path, make):
    original = make(started="2026-01-01")
    again = make(started="2026-02-01", rerun_of={"run_id": original.run_id, "started": original.started})
    assert original.run_id == again.run_id and again.rerun_of is not None and original.rerun_of is None
    write_record(tmp_path / "a" / "record.json", original)
    write_record(tmp_path / "b" / "record.json", again)
    assert [path.parent.name for path, _ in find_records(tmp_path).records] == ["a"]
    write_record(tmp_path / "a" / "record.json", make(status="failed", started="2026-01-01"))
    assert [path.parent.name for path, _ in find_records(tmp_path).records] == ["b"]
    other = again.model_copy(update={"run_id": "another"})  # of an old record, read by today's rule
    assert one_per_seed([original, other]) == one_per_seed([other, original]) == [original]
