"""Corpora of documents: bytes are lossless, documents are held out by name, windows hold every token once, and batches
are the same on any number of devices.
"""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpr.config.data import DataConfig, TextConfig
from rpr.data import documents
from rpr.data.batches import TrainingBatches, TranslationDataset
from rpr.data.byte_vocabulary import FIRST, ByteVocabulary
from rpr.data.cache import PreparedData, cache_key, prepare
from rpr.data.corpus import corpus_files
from rpr.data.vocabulary import BOS, EOS, Vocabulary
from rpr.data.windows import Windows, sample_windows, scored_split, training_split
from rpr.errors import DataError
from tests.data.helpers import data_config
from tests.property.sizes import SIZES, Size

AWKWARD = "\t\ttab  two spaces\r\n\n\x00\x85\u2028\u2581 \ufeff <s></s><0x41> \U0001f40d e\u0301 \u00e9 "


def text_config(
    folder: Path, *, python_library: bool = False, windows: str = "stream", rows: str = "documents", **changes: object
) -> DataConfig:
    text = TextConfig(python_library=python_library, column="text", rows=rows, windows=windows)  # type: ignore[arg-type]
    settings = {
        "name": "text", "path": str(folder / "texts"), "text": text, "tokenizer": "bytes", "vocabulary_size": 260,
        "max_length": None, "context_length": 16,
    }  # fmt: skip
    return data_config(folder, **(settings | changes))


def write(folder: Path, texts: dict[str, bytes]) -> None:
    for name, text in texts.items():
        file = folder / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)


def contents(data: PreparedData, split: str) -> list[bytes]:
    vocabulary = data.vocabulary
    assert isinstance(vocabulary, ByteVocabulary)
    encoded = data.split(split)
    assert all(encoded.target(index)[-1] == EOS for index in range(len(encoded)))
    return [vocabulary.decode_bytes(encoded.target(index).tolist()) for index in range(len(encoded))]


@SIZES
def test_bytes_give_back_any_text_and_any_content(size: Size, tmp_path: Path) -> None:
    ByteVocabulary().save(tmp_path / "vocabulary.model")
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.model")
    assert isinstance(vocabulary, ByteVocabulary)
    assert (len(vocabulary), vocabulary.piece_type) == (260, "uint16")

    @size(100)
    @given(st.text() | st.just(AWKWARD), st.binary())
    def check(text: str, content: bytes) -> None:
        pieces = vocabulary.encode(text, eos=True)
        assert pieces == [*(FIRST + byte for byte in text.encode()), EOS]
        assert int(vocabulary.piece_bytes[pieces].sum()) == len(text.encode())
        assert vocabulary.decode([BOS, *pieces, FIRST]) == text
        assert vocabulary.decode_bytes(vocabulary.encode_text(content).tolist()) == content

    check()


@pytest.mark.parametrize("processes", [1, 2])
def test_every_document_is_in_one_split_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(documents, "BLOCK", 50)  # several blocks for a document, cut within characters
    texts = {f"part{index % 3}/{index}.txt": f"{index} {AWKWARD * (index % 7)}".encode() for index in range(60)}
    texts |= {"binary.txt": bytes(range(256)), "none.txt": b""}
    write(tmp_path, texts)
    data = prepare(text_config(tmp_path), processes=processes)
    got = {split: contents(data, split) for split in data.splits}
    assert sorted(itertools.chain(*got.values())) == sorted(text for text in texts.values() if text)
    assert sum(lost["empty"] for lost in data.meta.dropped.values()) == 1
    for split in ("validation", "test"):
        names = [json.loads(line) for line in (data.directory / f"{split}.names").read_text().splitlines()]
        assert [texts[name] for name in names] == got[split], "in the order of their names"
        assert names == sorted(names)
        assert got[split]


def test_a_document_stays_in_its_split_when_others_are_added(tmp_path: Path) -> None:
    texts = {f"{index}.txt": f"document {index}".encode() for index in range(100)}
    write(tmp_path, texts)
    before = prepare(text_config(tmp_path))
    write(tmp_path, {f"more{index}.txt": b"other" for index in range(50)})
    after = prepare(text_config(tmp_path))
    for split in before.splits:
        assert set(contents(before, split)) == set(contents(after, split)) - {b"other"}
    assert before.meta.key != after.meta.key


def test_a_few_documents_still_give_each_split_one(tmp_path: Path) -> None:
    write(tmp_path, {f"{index}.txt": f"document {index}".encode() for index in range(4)})
    data = prepare(text_config(tmp_path))
    assert {split: len(data.split(split)) for split in data.splits} == {"train": 2, "validation": 1, "test": 1}
    for file in (tmp_path / "texts").glob("[23].txt"):
        file.unlink()
    with pytest.raises(DataError, match="2 documents are too few to hold out test and validation"):
        prepare(text_config(tmp_path))


def test_the_last_tenth_of_a_single_document_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "BLOCK", 64)
    text = "".join(f"line {number}\u20ac\n" for number in range(100)).encode()
    write(tmp_path, {"one.txt": text})
    data = prepare(text_config(tmp_path, path=str(tmp_path / "texts" / "one.txt")))
    train, validation = contents(data, "train"), contents(data, "validation")
    assert b"".join(train + validation) == text
    assert validation == contents(data, "test")
    assert 0 <= len(text) // 10 + 1 - len(validation[0]) + 3 <= 6, "cut at a character"
    validation[0].decode()
    assert "the last tenth of the only document, the same for both" in data.meta.notes[0]


def test_the_standard_library_without_its_tests(tmp_path: Path) -> None:
    config = text_config(tmp_path, python_library=True, path=None)
    listing = corpus_files(config)
    names = [file.relative_to(listing.root).as_posix() for file in listing.splits["train"]]
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not any("site-packages" in name or "/test/" in f"/{name}" or "/tests/" in f"/{name}" for name in names)
    assert cache_key(config) == cache_key(config.model_copy(update={"context_length": 32}))


@SIZES
def test_windows_hold_every_token_once_and_do_not_cross_documents_in_evaluation(size: Size, tmp_path: Path) -> None:
    texts = {f"{index}.txt": bytes(range(65, 65 + index)) for index in range(1, 41)}
    write(tmp_path, texts)
    data = prepare(text_config(tmp_path))
    train = data.split("train")
    stream = train.tokens(0, int(train.target_offsets[-1]))

    @size(20)
    @given(st.integers(2, 50))
    def check(length: int) -> None:
        for windows in ("stream", "documents"):
            config = text_config(tmp_path, context_length=length, windows=windows)
            chosen = training_split(data, config)
            assert isinstance(chosen, Windows)
            tokens, lengths = chosen.rows("target", range(len(chosen)))
            assert np.array_equal(tokens, stream)
            assert lengths.max() <= length
            before = chosen.before(range(len(chosen)))
            starts = np.cumsum(lengths) - lengths
            expected = [int(stream[start - 1]) if start and stream[start - 1] != EOS else BOS for start in starts]
            assert before.tolist() == expected
        held_out = scored_split(data, text_config(tmp_path, context_length=length), "test", 1_000_000)
        tokens, lengths = held_out.rows("target", range(len(held_out)))
        whole = b"".join(contents(data, "test"))
        assert data.vocabulary.decode(tokens.tolist()).encode() == whole
        parts = np.split(tokens, np.cumsum(lengths)[:-1])
        ends = set(np.cumsum([len(text) for text in contents(data, "test")]).tolist())
        assert ends <= set(np.cumsum([len(part) for part in parts]).tolist()), "a window ends where a document does"

    check()


def test_spread_windows_are_even_and_within_the_budget(tmp_path: Path) -> None:
    write(tmp_path, {f"{index}.txt": b"x" * 1000 for index in range(60)})
    data = prepare(text_config(tmp_path))
    for budget in (1, 16, 100, 1000, 10**9):
        windows = scored_split(data, text_config(tmp_path), "validation", budget)
        assert isinstance(windows, Windows)
        whole = Windows.of_documents(data.split("validation"), 16, eos=False)
        assert len(windows) == 1 or int(windows.target_lengths.sum()) <= budget
        assert int(windows.target_lengths.sum()) > min(budget, int(whole.target_lengths.sum())) - 16 * 2
        assert set(windows.starts) <= set(whole.starts)
    rows = sample_windows(data.split("validation"), 16, 9)
    assert [row.pop() for row in rows] == [EOS] * 9
    assert [len(row) for row in rows[:5]] == [16] * 5
    assert len(rows[5]) == 1
    assert len({len(row) for row in rows}) >= 3
    beginnings = {tuple(whole.target(index)[:size]) for index in range(len(whole)) for size in range(17)}
    assert set(map(tuple, rows)) <= beginnings


def test_a_step_has_the_same_windows_on_any_number_of_devices(tmp_path: Path) -> None:
    write(tmp_path, {f"{index}.txt": bytes(f"document {index} " * 9, "ascii") for index in range(40)})
    data = prepare(text_config(tmp_path))
    windows = training_split(data, text_config(tmp_path))
    dataset = TranslationDataset(windows)
    for step in (0, 3, 50):  # beyond an epoch
        steps = {}
        for devices in (1, 2, 4):
            rows = []
            for rank in range(devices):
                batches = TrainingBatches(windows, 64, 2, 7, devices, rank, start_step=step)
                for spec in batches.step_specs(step):
                    batch = dataset[spec]
                    if not len(spec.indices):
                        continue
                    assert batch.source_BS.shape == (len(spec.indices), 0)
                    rows += [*zip(batch.target_input_BT.tolist(), batch.target_output_BT.tolist(), strict=True)]
            steps[devices] = sorted((tuple(a), tuple(b)) for a, b in rows)
        assert steps[1] == steps[2] == steps[4]
        for inputs, outputs in steps[1]:
            following = [BOS if token == EOS else token for token in outputs]
            assert list(inputs[1:]) == following[:-1]


def test_tables_and_packed_files_hold_documents_too(tmp_path: Path) -> None:
    rows = [{"text": f"row {index} \u00e9\n", "other": index} for index in range(30)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write(tmp_path, {"a.jsonl.gz": gzip.compress(lines)})
    data = prepare(text_config(tmp_path))
    got = list(itertools.chain(*(contents(data, split) for split in data.splits)))
    assert sorted(got) == sorted(str(row["text"]).encode() for row in rows)
    assert json.loads((data.directory / "test.names").read_text().splitlines()[0]).startswith("a.jsonl.gz:")
    table = pyarrow.table({"text": [row["text"] for row in rows], "number": range(30)})
    (tmp_path / "texts" / "a.jsonl.gz").unlink()
    pyarrow.parquet.write_table(table, tmp_path / "texts" / "a.parquet")
    again = prepare(text_config(tmp_path))
    assert sorted(itertools.chain(*(contents(again, split) for split in again.splits))) == sorted(got)
    joined = prepare(text_config(tmp_path, rows="lines"))
    text = b"".join(str(row["text"]).encode() for row in rows)
    assert len(joined.split("train")) == 1
    assert b"".join(contents(joined, "train") + contents(joined, "validation")) == text
    with pytest.raises(DataError, match=r"data.text.column: no 'txet' in the columns of .*; did you mean text\?"):
        bad = TextConfig(python_library=False, column="txet", rows="documents", windows="stream")
        prepare(text_config(tmp_path).model_copy(update={"text": bad}))
    with pytest.raises(DataError, match="'number' of .* holds int64, not text"):
        bad = bad.model_copy(update={"column": "number"})
        prepare(text_config(tmp_path).model_copy(update={"text": bad}))


def test_names_with_a_word_of_a_split_are_still_documents(tmp_path: Path) -> None:
    write(tmp_path, {f"{index}-test-notes.txt": b"x" for index in range(30)} | {"other.txt": b"y"})
    data = prepare(text_config(tmp_path))
    assert sum(len(data.split(split)) for split in data.splits) == 31
    write(tmp_path, {"train/a.txt": b"a", "test/b.txt": b"b", "validation/c.txt": b"c"})
    for file in (tmp_path / "texts").glob("*.txt"):
        file.unlink()
    data = prepare(text_config(tmp_path))
    assert [contents(data, split) for split in ("train", "validation", "test")] == [[b"a"], [b"c"], [b"b"]]
