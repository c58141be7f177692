"""Corpora of documents: pieces are lossless, documents are held out by name, windows hold every token once."""

import gzip
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example
from hypothesis import strategies as st

from rpr.compose.composition import compose_train
from rpr.config.train import DataConfig, TextConfig
from rpr.data import corpora
from rpr.data.batches import BatchDataset, Windows, sample_windows, scored_split, training_split
from rpr.data.cache import PreparedData, cache_key, prepare
from rpr.data.corpora import Documents, load_documents
from rpr.data.files import SPLIT_NAMES, corpus_files
from rpr.data.vocabulary import (
    BOS,
    EOS,
    FIRST,
    PAD,
    UNK,
    ByteVocabulary,
    TextVocabulary,
    Vocabulary,
    count_text_words,
)
from rpr.errors import DataError
from tests.data.helpers import data_config
from tests.property.sizes import UNICODE, sized

BPE = {"tokenizer": "bpe", "vocabulary_size": 400}
TYPED = [*"\u2581\u2585\u2047\n\t \r\x00\u4e2d", "<s>", "</s>", "<pad>", "<unk>", "<0x41>", "spaces", " two"]
AWKWARD = "\t\ttab  two spaces\r\n\n\x00\x85\u2028\u2581 \ufeff <s></s><0x41> \U0001f40d e\u0301 \u00e9 "


def text_config(
    folder: Path, *, python_library: bool = False, windows: str = "stream", rows: str = "documents", **changes: object
) -> DataConfig:
    text = TextConfig(python_library=python_library, column="text", rows=rows, windows=windows)
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
    encoded = data.split(split)
    assert all(encoded.row("target", index)[-1] == EOS for index in range(len(encoded)))
    return [vocabulary.decode_bytes(encoded.row("target", index).tolist()) for index in range(len(encoded))]


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def saved(request, tmp_path_factory):
    """A vocabulary of either kind, as it is opened again."""
    learned = TextVocabulary.learn_text(count_text_words(AWKWARD * 5), 300)
    vocabulary = ByteVocabulary() if request.param == "bytes" else learned
    vocabulary.save(path := tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    again = Vocabulary.load(path)
    assert (type(again), again.digest, len(again)) == (type(vocabulary), vocabulary.digest, len(vocabulary))
    assert again.piece_type == "uint16"
    return again


@sized(30, st.lists(st.sampled_from([*TYPED, AWKWARD]) | st.text(UNICODE)).map("".join), st.binary())
@example("x" * 25_000, b"\xff")
def test_pieces_give_back_any_text_and_bytes_any_content(saved, text, content):
    pieces = saved.encode(text, eos=True)
    assert pieces[-1] == EOS and not {PAD, UNK, BOS, EOS} & {*pieces[:-1]}
    assert int(saved.piece_bytes[pieces].sum()) == len(text.encode())
    assert saved.decode([BOS, *pieces, FIRST]) == text
    if isinstance(saved, ByteVocabulary):
        assert pieces == [*(FIRST + byte for byte in text.encode()), EOS]
        assert saved.decode_bytes(saved.encode_texts([content])[0].tolist()) == content


@pytest.mark.parametrize("changes", [{}, BPE])
def test_every_document_is_in_one_split_as_it_is(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(corpora, "BLOCK", 50)  # several blocks for a document, cut within characters
    texts = {f"part{index % 3}/{index}.txt": f"{index} {AWKWARD * (index % 7)}".encode() for index in range(60)}
    texts |= {"binary.txt": bytes(range(128 if changes else 256)), "none.txt": b""}
    write(tmp_path, texts)
    data = prepare(text_config(tmp_path, **changes))
    got = {split: contents(data, split) for split in data.splits}
    assert sorted(itertools.chain(*got.values())) == sorted(text for text in texts.values() if text)
    assert sum(lost["empty"] for lost in data.meta.dropped.values()) == 1
    for split in ("validation", "test"):
        names = [json.loads(line) for line in (data.directory / f"{split}.names").read_text().splitlines()]
        assert [texts[name] for name in names] == got[split], "in the order of their names"
        assert names == sorted(names) and got[split]


def test_a_document_stays_in_its_split_when_others_are_added(tmp_path):
    write(tmp_path, {f"{index}.txt": f"document {index}".encode() for index in range(100)})
    before = prepare(text_config(tmp_path))
    write(tmp_path, {f"more{index}.txt": b"other" for index in range(50)})
    after = prepare(text_config(tmp_path))
    for split in before.splits:
        assert set(contents(before, split)) == set(contents(after, split)) - {b"other"}
    repeated = {split: contents(after, split).count(b"other") for split in ("validation", "test")}
    kept = {split: f"{len(after.split(split))} are in train too, token for token" for split in repeated}
    notes = [f"{split}: {number} of {kept[split]}" for split, number in repeated.items()]
    assert (before.meta.notes, after.meta.notes) == (before.meta.notes[:1], [*before.meta.notes, *notes])
    assert before.meta.key != after.meta.key == cache_key(text_config(tmp_path, context_length=32))


def test_a_few_documents_still_give_each_split_one(tmp_path):
    write(tmp_path, {f"{index}.txt": f"document {index}".encode() for index in range(4)})
    data = prepare(text_config(tmp_path))
    assert {split: len(data.split(split)) for split in data.splits} == {"train": 2, "validation": 1, "test": 1}
    for file in (tmp_path / "texts").glob("[23].txt"):
        file.unlink()
    with pytest.raises(DataError, match="2 documents are too few to hold out test and validation"):
        prepare(text_config(tmp_path))


def test_the_last_tenth_of_a_single_document_is_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "BLOCK", 64)
    text = "".join(f"line {number}\u20ac\n" for number in range(100)).encode()
    write(tmp_path, {"one.txt": text})
    data = prepare(text_config(tmp_path, path=str(tmp_path / "texts" / "one.txt")))
    train, validation = contents(data, "train"), contents(data, "validation")
    assert b"".join(train + validation) == text
    assert validation == contents(data, "test")
    assert 0 <= len(text) // 10 + 1 - len(validation[0]) + 3 <= 6, "cut at a character"
    validation[0].decode()
    assert "the last tenth of the only document, the same for both" in data.meta.notes[0]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A prepared corpus of documents of 1 to 40 letters, and its folder."""
    folder = tmp_path_factory.mktemp("letters")
    write(folder, {f"{index}.txt": bytes(range(65, 65 + index)) for index in range(1, 41)})
    return folder, prepare(text_config(folder))


@sized(20, st.integers(2, 50))
def test_windows_hold_every_token_once_and_do_not_cross_documents_in_evaluation(letters, length):
    folder, data = letters
    stream = data.split("train").pieces("target")
    for windows in ("stream", "stream_masked", "documents"):
        chosen = training_split(data, text_config(folder, context_length=length, windows=windows))
        assert isinstance(chosen, Windows)
        tokens, lengths = chosen.rows("target", range(len(chosen)))
        assert np.array_equal(tokens, stream) and lengths.max() <= length
        before = chosen.before(range(len(chosen)))
        starts = np.cumsum(lengths) - lengths
        expected = [int(stream[start - 1]) if start and stream[start - 1] != EOS else BOS for start in starts]
        assert before.tolist() == expected
        batch = BatchDataset(chosen)[range(len(chosen))]
        inputs, outputs = batch.target_input_BT, batch.target_output_BT
        follows_end = outputs[:, :-1] == EOS  # the separator belongs to the document before it
        assert (inputs != EOS).all() and (inputs[:, 1:] == BOS).equal(follows_end & (outputs[:, 1:] != PAD))
    held_out = scored_split(data, text_config(folder, context_length=length), "test", 1_000_000)
    tokens, lengths = held_out.rows("target", range(len(held_out)))
    whole = b"".join(contents(data, "test"))
    assert data.vocabulary.decode(tokens.tolist()).encode() == whole
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    ends = set(np.cumsum([len(text) for text in contents(data, "test")]).tolist())
    assert ends <= set(np.cumsum([len(part) for part in parts]).tolist()), "a window ends where a document does"


def test_spread_windows_are_even_and_within_the_budget(tmp_path):
    write(tmp_path, {f"{index}.txt": b"x" * 1000 for index in range(60)})
    data = prepare(text_config(tmp_path))
    for budget in (1, 16, 100, 1000, 10**9):
        windows = scored_split(data, text_config(tmp_path), "validation", budget)
        whole = Windows.of_documents(data.split("validation"), 16, eos=False)
        assert len(windows) == 1 or int(windows.target_lengths.sum()) <= budget
        assert int(windows.target_lengths.sum()) > min(budget, int(whole.target_lengths.sum())) - 16 * 2
        assert set(windows.starts) <= set(whole.starts)
    rows = sample_windows(data.split("validation"), 16, 9)
    assert [row.pop() for row in rows] == [EOS] * 9
    assert [len(row) for row in rows[:6]] == [*[16] * 5, 1] and len({len(row) for row in rows}) >= 3
    beginnings = {tuple(whole.row("target", index)[:size]) for index in range(len(whole)) for size in range(17)}
    assert set(map(tuple, rows)) <= beginnings


@pytest.mark.parametrize("empty", [0, 3])
def test_spread_windows_are_not_all_at_the_beginnings_of_documents(empty):
    offsets = np.arange(513) * 1024
    begins, ends = offsets[:-1], offsets[1:]
    if empty:  # documents too short for a window
        begins, ends = np.r_[begins, [512 * 1024] * empty], np.r_[ends, [512 * 1024] * empty]
    windows = Windows(SimpleNamespace(offsets=lambda side: offsets), begins, ends, 512).spread(262_144)
    assert len(windows) == 512 and int(windows.target_lengths.sum()) == 262_144
    assert (windows.starts % 1024).tolist() == [0, 512] * 256
    assert windows.document_of().tolist() == [*range(512)]


def test_tables_and_packed_files_hold_documents_too(tmp_path):
    texts = [f"row {index} \u00e9\n" for index in range(30)]
    lines = "".join(json.dumps({"text": text, "other": 1}) + "\n" for text in texts).encode()
    write(tmp_path, {"a.jsonl.gz": gzip.compress(lines)})
    data = prepare(text_config(tmp_path))
    got = list(itertools.chain(*(contents(data, split) for split in data.splits)))
    assert sorted(got) == sorted(text.encode() for text in texts)
    assert json.loads((data.directory / "test.names").read_text().splitlines()[0]).startswith("a.jsonl.gz:")
    # The rows of tables as lines of one document.
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]  # of one split, as on the hub
    for file, cells in zip(files, ([*texts, "the last row"], []), strict=True):
        pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array(cells, pyarrow.string())}), file)
    blocks = Documents({"train": files}, text_config(tmp_path, rows="lines").text).blocks()
    assert b"".join(block.text for block in blocks) == "".join([*texts, "the last row\n"]).encode()
    with pytest.raises(DataError, match=r"data.text.column: no 'txet' in the columns of .*; did you mean text\?"):
        bad = TextConfig(python_library=False, column="txet", rows="documents", windows="stream")
        prepare(text_config(tmp_path).model_copy(update={"text": bad}))


def test_byte_pair_pieces_need_utf8(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "BLOCK", 8)
    write(tmp_path, {f"{index}.txt": b"a text\n" * 9 for index in range(40)})
    good = text_config(tmp_path, **BPE | {"vocabulary_size": 268})
    name = next(block.name for block in load_documents(good).blocks() if block.splits == ("test",))  # read last
    for content, message in (
        (b"first\nsecond \xe2\x82\xac\nthird \xff\n", rf"{name} is not UTF-8 \(byte 0xff after '.*third '\)"),
        ("a text".encode("utf-16-le"), f"{name} is not UTF-8 text but packed, or UTF-16"),
    ):
        write(tmp_path, {name: content})
        with pytest.raises(DataError, match=message):
            prepare(good)
        assert content in itertools.chain(*(contents(prepare(text_config(tmp_path)), split) for split in SPLIT_NAMES))
    write(tmp_path, {name: b"ends in NUL\0"})  # which is UTF-8
    assert b"ends in NUL\0" in contents(prepare(good), "test")


@pytest.mark.parametrize(("choice", "documents"), [("wikitext103", [1, 1, 1]), ("fineweb_edu", [55, 4, 1])])
def test_corpora_of_the_hub_are_documents_however_the_library_stores_them(tmp_path, monkeypatch, choice, documents):
    words = [f"data={choice}", f"data.cache_dir={tmp_path / 'cache'}", "model.architecture=decoder_only"]
    config = compose_train(words).data
    splits = ("train",) if choice == "fineweb_edu" else ("train", "test", "validation")
    texts = {split: [f" = {split} {row} = \n" for row in range(60)] for split in splits}
    found = {split: [] for split in splits}
    for split, shard in itertools.product(splits, range(3)):
        rows = slice(shard * 20, (shard + 1) * 20)
        table = pyarrow.table({"text": texts[split][rows], "id": range(60)[rows]})
        found[split].append({"filename": str(tmp_path / f"{split}-{shard}.arrow")})
        with pyarrow.ipc.new_stream(found[split][-1]["filename"], table.schema) as stream:
            stream.write_table(table)
    of_hub = {split: SimpleNamespace(cache_files=files) for split, files in found.items()}
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **_: of_hub)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: SimpleNamespace(hash="0" * 40))
    data = prepare(config)
    assert [len(data.split(split)) for split in ("train", "validation", "test")] == documents
    got = b"".join(itertools.chain(*(contents(data, split) for split in data.splits))).decode()
    assert sorted(got.splitlines()) == sorted("".join(itertools.chain(*texts.values())).splitlines())
    if choice == "fineweb_edu":
        names = (data.directory / "validation.names").read_text().splitlines()
        assert names == [f'"train:{row}"' for row in (2, 22, 43, 53)], "rows are counted over the files"


def test_a_limit_is_of_training_documents_alone(tmp_path):
    """Their vocabulary is that of the first ones without the others, of which validation and test are held out too."""
    write(tmp_path, {f"{number:02}.txt": b"alpha beta gamma " * 9 + b"%d" % number for number in range(60)})
    size = BPE | {"vocabulary_size": 286}
    whole, limited = (prepare(text_config(tmp_path, **size, train_limit=of)) for of in (None, 9))
    assert limited.meta.counts == whole.meta.counts | {"train": 9}
    assert contents(limited, "train") == contents(whole, "train")[:9]
    assert limited.meta.notes[1] == "train: the first documents, at most 9; test and validation from all"
    splits = {f"{split}/{at}.txt": text for split in SPLIT_NAMES for at, text in enumerate(contents(limited, split))}
    write(tmp_path / "first", splits)
    first = prepare(text_config(tmp_path / "first", **size))
    assert first.vocabulary.digest == limited.vocabulary.digest != whole.vocabulary.digest


def test_an_empty_file_does_not_change_which_text_the_vocabulary_is_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "BLOCK", 100)
    monkeypatch.setattr(corpora, "LEARNED_FROM", 1500)
    texts = {f"train/{number}.txt": b"word%d and more\n" % number * 10 for number in range(20)}
    write(tmp_path, texts | {f"{split}/a.txt": b"a" for split in ("validation", "test")})
    config = text_config(tmp_path, tokenizer="bpe", vocabulary_size=290)
    before = prepare(config)
    write(tmp_path, {f"train/{number}.txt": b"" for number in ("", 5.5)})
    after = prepare(config)
    assert before.meta.key != after.meta.key and before.vocabulary.digest == after.vocabulary.digest


@pytest.mark.parametrize(("names", "splits"), [
    (["train.txt", "valid.txt.gz", "test.txt", "README.txt"], {"train": 1, "validation": 1, "test": 1}),
    (["train/a.jsonl", "train/b/c.jsonl", "dev/a.jsonl", "test.jsonl"], {"train": 2, "validation": 1, "test": 1}),
    (["unit-test.txt", "contest.txt", "corpus.txt", "a/B.TXT"], {"train": 4}),
])  # fmt: skip
def test_names_say_the_splits(tmp_path, names, splits):
    write(tmp_path, {name: gzip.compress(b"a") if name.endswith(".gz") else b'{"text": "a"}' for name in names})
    listing = corpus_files(text_config(tmp_path))
    assert {split: len(files) for split, files in listing.splits.items()} == splits
    assert [file.name for file in listing.left_over] == [name for name in names if "README" in name]


@pytest.mark.parametrize(("contents", "refusal"), [
    (dict.fromkeys(("corpus.txt", "test.txt"), b"a"), r"test.txt looks like a split, and would be trained on"),
    (dict.fromkeys(("train/a.txt", "test_a/a.txt"), b"a"), "a.txt is not read, and test would be held out of train"),
    ({"a.txt": b"version https://git-lfs.github.com/spec/v1"}, "a.txt is a pointer of Git LFS, not the file"),
])  # fmt: skip
def test_what_cannot_be_read_so_is_refused(tmp_path, contents, refusal):
    write(tmp_path, contents)
    with pytest.raises(DataError, match=refusal):
        prepare(text_config(tmp_path))
    with pytest.raises(DataError, match="data.path: data.cache_dir is in .*, of which all is read; keep it outside"):
        prepare(text_config(tmp_path, path=str(tmp_path)))
