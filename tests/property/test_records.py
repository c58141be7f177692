"""Properties of records: a valid one is read back equal, with control characters escaped but in command and config;
truncated metrics give their whole lines. Damaged records: tests/system/test_bad_input.py.
"""

import json

from hypothesis import strategies as st

from rpr.io.escape import escape_tree
from rpr.records.files import read_metrics
from rpr.records.record import Record, read_record, write_record
from tests.fake_records import CONFIG, fake_by_length, fake_document, fake_interval, fake_score
from tests.property.sizes import UNICODE, sized

TEXT = st.text(UNICODE, max_size=10)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
REPEATED_FROM = {"command", "config"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
FULL = fake_document(
    scores=[fake_score("tëst", 30.5, interval=fake_interval(29.5, 31.25), empty_hypotheses=1)],
    by_length=fake_by_length(30.5, 29.25),
    wandb={"id": "x1", "mode": "offline", "url": None},
    error="Ctrl-C",
    rerun_of={"run_id": "0a", "started": "2026"},
)
DOCUMENTS = st.builds(
    lambda text, number, more: (
        FULL
        | {"name": text, "error": text, "device": text, "versions": {text: text}, "parameters": number}
        | {"scores": [fake_score(text, float(number))], "config": {**more, **CONFIG}}
    ),
    TEXT,
    st.integers(1, 2**53),
    st.dictionaries(TEXT, JSON, max_size=3),
)


@sized(20, DOCUMENTS)
def test_any_record_is_read_back_equal(tmp_path, document):
    record, path = Record.model_validate(document), tmp_path / "record.json"
    write_record(path, record)
    found = read_record(path)
    assert all(getattr(found, name) == getattr(record, name) for name in REPEATED_FROM)
    assert found.model_dump(exclude=REPEATED_FROM) == escape_tree(record.model_dump(exclude=REPEATED_FROM))
    write_record(path, found)
    assert read_record(path) == found
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


LINES = st.fixed_dictionaries({"step": st.integers(0, 10**6), "loss": NUMBERS, "text": TEXT})


@sized(20, st.lists(LINES, max_size=4), st.integers(0, 200))
def test_truncated_metrics_give_the_whole_lines(tmp_path, entries, cut):
    whole = [(json.dumps(entry) + "\n").encode() for entry in entries]  # as rpr.training.callbacks writes them
    content = b"".join(whole)
    kept = content[: len(content) - min(cut, len(content))]
    ends = [sum(map(len, whole[: number + 1])) - 1 for number in range(len(whole))]  # without the line end
    expected = [entry for entry, end in zip(entries, ends, strict=True) if end <= len(kept)]
    tmp_path.joinpath("record.json").write_bytes(kept)
    assert read_metrics(tmp_path / "record.json") == expected
