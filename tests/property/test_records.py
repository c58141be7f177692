"""Checked here: any record that validates is read back equal, with what a terminal would obey made visible in all but
what the run is repeated from; a file that was cut anywhere is refused with a RecordError of one line; one with any
single byte changed is refused so too, or is a record whose properties can be read; and a file of metrics gives its
lines wherever it was cut.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpr.errors import RecordError
from rpr.io.escape import escape_tree
from rpr.records.metrics import read_metrics
from rpr.records.record import Record, read_record, write_record
from tests.property.sizes import SIZES, Size

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
REPEATED_FROM = {"command", "config"}
COUNTS = st.integers(0, 2**70)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
SETTINGS: dict[str, Any] = {
    "model": {"name": "tiny"},
    "data": {"name": "synthetic"},
    "position": {
        "name": "relative", "absolute": "none", "relative_keys": True, "relative_values": False, "clip_distance": 4,
        "tables": "per_head",
    },
    "optim": {"max_steps": 700},
    "hardware": {"name": "cpu"},
}  # fmt: skip
INTERVALS = st.fixed_dictionaries(
    {
        "low": NUMBERS, "high": NUMBERS, "level": st.floats(0, 1, exclude_min=True, exclude_max=True),
        "kind": st.just("sentences"),
        "samples": st.integers(1), "seed": st.integers(), "method": TEXT,
    }
)  # fmt: skip
SCORES = st.fixed_dictionaries(
    {
        "split": TEXT, "test_set": TEXT, "metric": TEXT, "score": NUMBERS, "signature": TEXT,
        "num_sentences": st.integers(1), "checkpoint": TEXT, "beam_size": st.integers(1), "length_penalty": NUMBERS,
        "interval": st.none() | INTERVALS, "empty_hypotheses": st.none() | COUNTS,
    }
)  # fmt: skip
SPEEDS = st.none() | st.floats(0, 1e300, exclude_min=True)
TRAINING = st.fixed_dictionaries(
    {
        "steps_per_second": SPEEDS, "source_tokens_per_second": SPEEDS, "target_tokens_per_second": SPEEDS,
        "measured_steps": COUNTS, "excludes": TEXT, "seconds": st.floats(0, 1e300),
        "peak_memory_bytes": st.none() | COUNTS,
        "peak_memory_kind": st.none() | TEXT, "train_loss": st.none() | NUMBERS, "validation_loss": st.none() | NUMBERS,
        "matmul_precision": st.none() | TEXT, "precision": st.none() | TEXT,
    }
)  # fmt: skip
RERUNS = st.fixed_dictionaries({"run_id": TEXT, "started": st.none() | TEXT})
DOCUMENTS = st.fixed_dictionaries(
    {
        "schema": st.just(2), "name": TEXT, "run_id": TEXT, "status": st.sampled_from(["running", "finished"]),
        "error": st.none() | TEXT, "rerun_of": st.none() | RERUNS, "command": TEXT,
        "sweeps": st.lists(TEXT, max_size=2).map(tuple),
        "config": st.dictionaries(TEXT, JSON, max_size=3).map(lambda more: {**more, **SETTINGS}),
        "git": st.fixed_dictionaries({"commit": st.none() | TEXT, "dirty": st.none() | st.booleans()}),
        "versions": st.dictionaries(TEXT, TEXT, max_size=2), "device": TEXT, "hardware": TEXT, "seed": st.integers(),
        "started": TEXT, "finished": st.none() | TEXT, "steps": st.none() | COUNTS, "parameters": st.none() | COUNTS,
        "data": st.none(), "training": st.none() | TRAINING, "scores": st.lists(SCORES, max_size=2).map(tuple),
        "wandb": st.none() | st.fixed_dictionaries({"id": TEXT, "mode": TEXT, "url": st.none() | TEXT}),
    }
)  # fmt: skip


@contextmanager
def a_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "record.json")


@SIZES
def test_any_record_is_read_back_equal(size: Size) -> None:
    @size(40)
    @given(DOCUMENTS)
    def property_(document: dict[str, Any]) -> None:
        record = Record.model_validate(document)
        with a_file() as path:
            write_record(path, record)
            found = read_record(path)
            assert {name: getattr(found, name) for name in REPEATED_FROM} == {
                name: getattr(record, name) for name in REPEATED_FROM
            }
            assert found.model_dump(exclude=REPEATED_FROM) == escape_tree(record.model_dump(exclude=REPEATED_FROM))
            write_record(path, found)
            assert read_record(path) == found
            assert [file.name for file in path.parent.iterdir()] == ["record.json"]
            path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 1}))
            assert read_record(path) == found

    property_()


@pytest.fixture(scope="module")
def content() -> bytes:
    """A finished run's record with every part, as it is written; figures made up."""
    interval = {
        "low": 29.5,
        "high": 31.25,
        "level": 0.95,
        "kind": "sentences",
        "samples": 1000,
        "seed": 1,
        "method": "bootstrap",
    }
    score = {
        "split": "test", "test_set": "täst", "metric": "sacrebleu", "score": 30.5, "signature": "nrefs:1",
        "num_sentences": 300, "checkpoint": "last", "beam_size": 4, "length_penalty": 0.6, "interval": interval,
    }  # fmt: skip
    record = Record.model_validate(
        {
            "schema": 2, "name": "a run", "run_id": "0a1b2c3d", "status": "interrupted", "error": "Ctrl-C",
            "sweeps": ["quick"], "command": "rpr-cli train", "config": SETTINGS,
            "git": {"commit": "abc", "dirty": False}, "versions": {"torch": "2.13.0"}, "device": "cpu",
            "hardware": "cpu", "seed": 1,
            "started": "2026-01-01T00:00:00+00:00", "finished": None, "steps": 700, "parameters": 12345,
            "data": {
                "name": "synthetic", "synthetic": True, "train_pairs": 30000, "dropped_pairs": 0,
                "vocabulary_size": 1000, "key": "f00", "notes": ["one"],
            },
            "training": {
                "steps_per_second": 7.5, "source_tokens_per_second": 1e3, "target_tokens_per_second": None,
                "measured_steps": 690, "excludes": "the first steps", "seconds": 90.0, "peak_memory_bytes": 10**9,
                "peak_memory_kind": "resident", "train_loss": 1.5, "validation_loss": None,
                "matmul_precision": "medium", "precision": "32",
            },
            "scores": [score],
            "by_length": {
                "unit": "pieces", "splits": ["test"], "test_sets": ["täst"], "longest_training_source": 22,
                "signatures": {"sacrebleu": "nrefs:1"}, "checkpoint": "last", "beam_size": 4, "length_penalty": 0.6,
                "precision": "float32",
                "buckets": [{
                    "shortest": 1, "longest": None, "beyond_training": False, "num_sentences": 300,
                    "scores": [{"metric": "sacrebleu", "score": 30.5, "interval": None}],
                }],
            },
            "wandb": {"id": "x1", "mode": "offline", "url": None},
        }
    )  # fmt: skip
    with a_file() as path:
        write_record(path, record)
        return path.read_bytes()


def refused_or_read(path: Path) -> Record | None:
    try:
        record, message = read_record(path), None
    except RecordError as error:
        record, message = None, str(error)
    if record is None:
        assert message is not None and message.startswith(f"{path}: ") and len(message.splitlines()) == 1
        return None
    for name in ("data_name", "model_name", "max_steps", "synthetic", "outcome"):
        getattr(record, name)
    return record


@SIZES
def test_a_cut_record_is_refused(size: Size, content: bytes) -> None:
    @size(60)
    @given(st.integers(0, len(content) - 2))  # without its last line end it is still whole
    @example(0)
    @example(len(content) - 2)
    def property_(length: int) -> None:
        with a_file() as path:
            path.write_bytes(content[:length])
            assert refused_or_read(path) is None

    property_()


@SIZES
def test_a_record_with_a_byte_changed_is_refused_or_a_record(size: Size, content: bytes) -> None:
    bytes_ = st.integers(0, 255) | st.sampled_from(list(b'"\\{}[],:.eE-+0189 \n\x00'))

    @size(200)
    @given(st.integers(0, len(content) - 1), bytes_)
    def property_(at: int, byte: int) -> None:
        with a_file() as path:
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            record = refused_or_read(path)
            if record is not None:
                write_record(path, record)
                assert read_record(path) == record

    property_()


@SIZES
def test_metrics_that_were_cut_give_the_lines_that_are_whole(size: Size) -> None:
    lines = st.dictionaries(TEXT, NUMBERS | TEXT, max_size=2).flatmap(
        lambda more: st.integers(0, 10**6).map(lambda step: {**more, "step": step})
    )

    @size(40)
    @given(st.lists(lines, max_size=4), st.integers(0, 200))
    def property_(entries: list[dict[str, Any]], cut: int) -> None:
        whole = [(json.dumps(entry) + "\n").encode() for entry in entries]  # as rpr.training.callbacks does
        content = b"".join(whole)
        kept = content[: len(content) - min(cut, len(content))]
        ends = [sum(map(len, whole[: number + 1])) - 1 for number in range(len(whole))]  # without the line end
        expected = [entry for entry, end in zip(entries, ends, strict=True) if end <= len(kept)]
        with a_file() as path:
            path.write_bytes(kept)
            assert read_metrics(path) == expected

    property_()
