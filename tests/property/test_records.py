"""Properties of records: any valid record is read back equal, with control characters escaped except in the command and
configuration; a truncated file raises a one-line RecordError; one with a changed byte raises it too or is readable; a
truncated metrics file gives its whole lines.
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
from tests.fake_records import CONFIG, fake_by_length, fake_document, fake_interval, fake_score
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
        "config": st.dictionaries(TEXT, JSON, max_size=3).map(lambda more: {**more, **CONFIG}),
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
    @size(20)
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
    """The file of a finished run's record with every part."""
    scores = [fake_score("tëst", 30.5, interval=fake_interval(29.5, 31.25))]
    wandb = {"id": "x1", "mode": "offline", "url": None}
    document = fake_document(scores=scores, wandb=wandb, by_length=fake_by_length(30.5, 29.25), error="Ctrl-C")
    with a_file() as path:
        write_record(path, Record.model_validate(document))
        return path.read_bytes()


def read_or_refused(path: Path) -> Record | None:
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
def test_truncated_or_changed_record_is_refused_or_readable(size: Size, content: bytes) -> None:
    bytes_ = st.integers(0, 255) | st.sampled_from(list(b'"\\{}[],:.eE-+0189 \n\x00'))
    length = len(content) - 1  # without the last line end it is complete

    @size(50)
    @given(st.integers(0, length - 1), bytes_)
    @example(0, 0)
    @example(length - 1, 0)
    def property_(at: int, byte: int) -> None:
        with a_file() as path:
            path.write_bytes(content[:at])
            assert read_or_refused(path) is None
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            record = read_or_refused(path)
            if record is not None:
                write_record(path, record)
                assert read_record(path) == record

    property_()


@SIZES
def test_truncated_metrics_give_the_whole_lines(size: Size) -> None:
    lines = st.dictionaries(TEXT, NUMBERS | TEXT, max_size=2).flatmap(
        lambda more: st.integers(0, 10**6).map(lambda step: {**more, "step": step})
    )

    @size(20)
    @given(st.lists(lines, max_size=4), st.integers(0, 200))
    def property_(entries: list[dict[str, Any]], cut: int) -> None:
        whole = [(json.dumps(entry) + "\n").encode() for entry in entries]  # as rpr.training.callbacks writes them
        content = b"".join(whole)
        kept = content[: len(content) - min(cut, len(content))]
        ends = [sum(map(len, whole[: number + 1])) - 1 for number in range(len(whole))]  # without the line end
        expected = [entry for entry, end in zip(entries, ends, strict=True) if end <= len(kept)]
        with a_file() as path:
            path.write_bytes(kept)
            assert read_metrics(path) == expected

    property_()
