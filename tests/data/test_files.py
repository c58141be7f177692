"""Which files of a folder are read, in which split: rows of files and either the splits or what refuses them; every
format holds the same rows; held-out splits, repeats, limits; digests.
"""

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from rpr.data import files as module
from rpr.data.corpora import Corpus, load_corpus
from rpr.data.files import Table, corpus_files, fingerprint, list_files
from rpr.errors import DataError
from tests.data.helpers import data_config, write_lines

ROWS = [(f"the dog {index}", f"der Hund {index}") for index in range(60)]
CSV = "en,de\n" + "".join(f"{source},{target}\n" for source, target in ROWS)
TSV = CSV.replace(",", "\t")
JSONL = "".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in ROWS)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def write(folder: Path, contents: dict[str, str | bytes]) -> None:
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" and isinstance(content, str) else raw)


def lines(*stems: str) -> dict[str, str | bytes]:
    return {
        f"{stem}.{language}": "".join(f"{row[side]}\n" for row in ROWS)
        for stem in stems
        for side, language in enumerate(("en", "de"))
    }


@pytest.mark.parametrize(("contents", "splits"), [
    ({"train.csv.gz": CSV, "dev.tsv": TSV, "test.jsonl": JSONL}, {
        "train": ["train.csv.gz"], "validation": ["dev.tsv"], "test": ["test.jsonl"]}),
    ({"train_0.csv": CSV, "train_1.csv": CSV, "test.csv": CSV, "test_2016_a.csv": CSV}, {
        "train": ["train_0.csv", "train_1.csv"], "test": ["test.csv"], "test_2016_a": ["test_2016_a.csv"]}),
    ({f"{name}.csv": CSV for name in ("train", "dev", "validation", "eval", "test")}, {
        "train": ["train.csv"], "validation": ["validation.csv"], "test": ["test.csv"], "dev": ["dev.csv"],
        "eval": ["eval.csv"]}),
    ({"train.csv": CSV, "eval.csv": CSV}, {"train": ["train.csv"], "test": ["eval.csv"]}),
    (lines("train", "eval"), {"train": ["train.en", "train.de"], "test": ["eval.en", "eval.de"]}),
    ({"train/part-0.csv": CSV, "train/part-1.csv": "", "train/_SUCCESS": "", "test/a.csv": CSV, "a/train.csv": CSV}, {
        "train": ["train/part-0.csv", "train/part-1.csv"], "test": ["test/a.csv"]}),
    ({"data/train-00000-of-00002.csv": CSV, "data/train-00001-of-00002.csv": "en,de\n", ".hidden/train.csv": CSV}, {
        "train": ["data/train-00000-of-00002.csv", "data/train-00001-of-00002.csv"]}),
    (lines("train", "val1", "test_2016_flickr", "mscoco", "train.bpe") | {"notes.txt": "x"}, {
        split: [f"{split}.en", f"{split}.de"] for split in ("train", "mscoco", "test_2016_flickr", "val1")}),
    ({"train.en.gz": "".join(f"{row[0]}\n" for row in ROWS)} | {"train.de": lines("train")["train.de"]}, {
        "train": ["train.en.gz", "train.de"]}),
])  # fmt: skip
def test_names_say_the_splits(tmp_path, contents, splits):
    write(tmp_path / "pairs", contents)
    listing = corpus_files(data_config(tmp_path))
    names = {
        split: [str(file.relative_to(listing.root)) for file in of_split] for split, of_split in listing.splits.items()
    }
    assert names == splits and next(iter(names)) == "train"
    corpus = load_corpus(data_config(tmp_path))
    assert next(iter(corpus.splits["train"])) == ROWS[0] and set(corpus.splits) >= set(splits)


@pytest.mark.parametrize(("path", "contents"), [
    ("run.tsv", {"run.tsv": TSV, "test.tsv": TSV}),
    ("raw/europarl-v7.de-en", lines("raw/europarl-v7.de-en", "raw/test")),
])  # fmt: skip
def test_one_file_or_the_prefix_of_two_is_train(tmp_path, path, contents):
    write(tmp_path, contents)
    corpus = load_corpus(data_config(tmp_path, path=str(tmp_path / path)))
    assert len(corpus.splits["train"]) == 54 and {*corpus.held_out} == {"validation", "test"}
    assert [*corpus.splits["test"]] == ROWS[57:]


@pytest.mark.parametrize(("contents", "message"), [
    ({"a.csv": CSV}, "no usable files in .*; looked for train.en and train.de .or .gz., train.*jsonl"),
    ({"train.en.xz": b"x", "train.de.xz": b"x"}, "no usable files in .*; not read: train.de.xz, train.en.xz"),
    ({"test.csv": CSV}, r"has no train split \(available: test\)"),
    (lines("news.de-en"), r"has no train split .*; for one pair of files as train give data.path=.*pairs/news.de-en$"),
    ({"train-00000-of-00003.csv": CSV, "train-00001-of-00003.csv": CSV}, r"2 of the 3 files train-\*-of-00003 are in"),
    ({"train.csv": CSV, "train-00000-of-00001.csv": CSV}, "train-00000-of-00001.csv and .*train.csv are both of split"),
    ({"train.csv": CSV, "train.csv.gz": CSV}, "train.csv and .*train.csv.gz are both of split train"),
    ({"train.csv": CSV, "train.jsonl": JSONL}, "train.csv and .*train.jsonl are both of split train"),
    ({"train.csv": CSV, "test.parquet/a": b"x"}, "test.parquet is not read, and test would be held out of train"),
    (lines("train") | {"test2016.de.gz": "a\n"}, r"test2016.de.gz has no counterpart; a split needs both languages"),
    (lines("train") | {"train.en.gz": "a\n"}, "train.en and .*train.en.gz are the same side"),
    (lines("train") | {"test.en.zst": b"x", "test.de.zst": b"x"}, "test.de.zst is not read, and test would be"),
    (lines("train", "test/a"), "/test is not read, and test would be held out of train"),
    ({"train.en": "a\nb\n", "train.de": "a\n"}, "train.en has 2 lines and .*train.de has 1"),
    ({"train.en": "a\rb\r", "train.de": "a\rb\r"}, "train.en: its lines end with carriage returns alone"),
    ({"train.en": gzip.compress(b"a\n"), "train.de": "a\n"}, "train.en is not UTF-8 text but packed, or UTF-16"),
    ({"train.en": "a\n", "train.de": "a\nb".encode("utf-16-le")}, "train.de is not UTF-8 text but packed, or UTF-16"),
    ({"train.csv": ""}, "split train of .* is empty"),
    ({"train.csv": "en,de,en\n"}, "line 1 of .*train.csv cannot be read .it names a column twice"),
    ({"train.csv": "en,de\na,b,c\n"}, "line 2 of .*csv cannot be read .it has 3 fields, and the header has 2.; each"),
    ({"train.csv": 'en,de\n"a,b\n'}, "line 2 of .*train.csv cannot be read .unexpected end"),
    ({"train.csv": "en,fr\na,b\n"}, "data.target_language: no 'de' in the columns of .*csv; available: en, fr$"),
    ({"train.jsonl": JSONL + "{\n"}, "line 61 of .*train.jsonl cannot be read .*; each line has to be a row of .jsonl"),
    ({"train.jsonl": '{"en": "a", "de": null}\n'}, "'de' of .* holds NoneType, not text"),
    ({"train.parquet": b"PAR1"}, "train.parquet cannot be read .*make it readable or download it again"),
    ({"train.csv.gz": gzip.compress(CSV.encode())[:-9]}, "train.csv.gz cannot be read"),
])  # fmt: skip
def test_what_cannot_be_read_so_is_refused(tmp_path, contents, message):
    write(tmp_path / "pairs", contents)
    with pytest.raises(DataError, match=message) as error:
        load_corpus(data_config(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["test.en", "test.csv", "test.parquet", "test.jsonl.gz", "test/a.csv"])
def test_pointers_of_git_lfs_are_refused_in_every_format(tmp_path, name):
    contents = lines("train", "test") if name == "test.en" else {"train.csv": CSV}
    write(tmp_path / "pairs", contents | {name: POINTER.encode()})
    with pytest.raises(DataError, match=f"{name} is a pointer of Git LFS, not the file; run git lfs pull there"):
        fingerprint(data_config(tmp_path))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz", "jsonl.gz"])
def test_every_format_holds_the_same_rows(tmp_path, suffix):
    """Strings that look like dates and numbers stay text."""
    rows = [*ROWS, ("2001-05-04", "007"), ("NA", "null"), ("1e5", "long" * 50_000)]
    english, german = zip(*rows, strict=True)
    table = pyarrow.table({"id": range(len(rows)), "en": english, "de": pyarrow.array(german, pyarrow.large_string())})
    file = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, file, row_group_size=7)
    elif suffix == "arrow":  # as datasets keeps what is of the hub
        with pyarrow.ipc.new_stream(file, table.schema) as sink:
            sink.write_table(table, max_chunksize=11)
    elif "json" in suffix:
        write(tmp_path, {file.name: "".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in rows)})
    else:
        separator = "\t" if suffix == "tsv" else ","
        write(tmp_path, {file.name: "".join(separator.join(row) + "\n" for row in [("en", "de"), *rows])})
    read_file = Table(file, {"data.source_language": "en", "data.target_language": "de"})
    assert read_file.rows == len(rows)
    for size in (1, 10, 1000):
        read = [cells for batch in read_file.chunks(size) for cells in zip(*batch, strict=True)]
        assert [tuple(cell.decode() if isinstance(cell, bytes) else cell for cell in row) for row in read] == rows


def test_quotes_are_of_csv_alone(tmp_path):
    write(
        tmp_path / "pairs",
        {"train.csv": 'en,de\n"a, ""b""",\n', "test.tsv": 'en\tde\n"Come in."\t„Herein.“\n"a" b\t"c\n', "dev.csv": CSV},
    )
    assert [*load_corpus(data_config(tmp_path)).splits["test"]] == [
        ('"Come in."', "„Herein.“"), ('"a" b', '"c'),
    ]  # fmt: skip
    [cells] = Table(tmp_path / "pairs" / "train.csv", {"a": "en", "b": "de"}).chunks(9)
    assert cells == [[b'a, "b"'], [b""]]


def test_objects_with_other_languages(tmp_path):
    mixed = [{"translation": {"en": "a", "fr": "b"}}, {"translation": None}]
    mixed += [{"translation": {"en": source, "de": target}} for source, target in ROWS]
    write(tmp_path / "pairs", {"train.jsonl": "".join(json.dumps(each) + "\n" for each in mixed)})
    assert [*load_corpus(data_config(tmp_path)).splits["train"]][:3] == [("a", ""), ("", ""), ROWS[0]]


# What is held out


PAIRS = [(f"a small line {index}", f"eine kleine Zeile {index}") for index in range(100)]


def content(corpus: Corpus) -> dict[str, list[tuple[str, str]]]:
    return {split: list(pairs) for split, pairs in corpus.splits.items()}


def test_at_most_1000_pairs_are_held_out(tmp_path):
    write_lines(tmp_path / "pairs", [(f"{source} {n}", target) for n in range(210) for source, target in PAIRS])
    splits = load_corpus(data_config(tmp_path)).splits
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 19_000, "validation": 1000, "test": 1000}


def test_train_pairs_equal_to_held_out_ones_are_dropped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.data.corpora.PAIRS_AT_ONCE", 7)
    validation, test = PAIRS[90:95], PAIRS[95:]
    half = (PAIRS[99][0], PAIRS[0][1])  # equal on one side only
    train = [
        ("  a small\tline 99\r", "eine kleine Zeile\u00a099"),  # equal after normalisation
        *PAIRS[:40], PAIRS[93], half, PAIRS[99][::-1], *PAIRS[40:80], *[PAIRS[92]] * 3, ("", ""),
    ]  # fmt: skip
    empty = [("", "")]  # a held-out empty pair does not drop those of train
    write_lines(tmp_path / "pairs", [*train, PAIRS[89], PAIRS[89], *empty, *validation[1:], *test])
    corpus = load_corpus(data_config(tmp_path))
    kept = [*PAIRS[:40], half, PAIRS[99][::-1], *PAIRS[40:80], ("", ""), PAIRS[89], PAIRS[89]]
    assert content(corpus) == {"train": kept, "validation": empty + validation[1:], "test": test}
    assert corpus.repeated == 5 and len(corpus.notes) == 3
    limited = load_corpus(data_config(tmp_path, train_limit=42))
    assert list(limited.splits["train"]) == PAIRS[:40] and limited.repeated == 2
    assert limited.notes[2] == "train: the first 42 of 90 pairs"


def test_train_pairs_equal_to_given_splits_are_kept(tmp_path):
    write_lines(tmp_path / "pairs" / "train", PAIRS[:80])
    write_lines(tmp_path / "pairs" / "test", PAIRS[:9])
    corpus = load_corpus(data_config(tmp_path))
    assert list(corpus.splits["train"]) == PAIRS[:76] and corpus.repeated == 0 and len(corpus.notes) == 1
    write_lines(tmp_path / "pairs" / "validation", PAIRS[:9])
    corpus = load_corpus(data_config(tmp_path))
    assert list(corpus.splits["train"]) == PAIRS[:80] and (corpus.repeated, corpus.notes) == (0, [])


def test_parquet_in_the_layout_of_the_hub(tmp_path):
    for split, pairs in {"train": PAIRS, "validation": PAIRS[:5]}.items():
        rows = [{"translation": {"de": target, "en": source}} for source, target in pairs]
        file = tmp_path / "pairs" / "data" / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    corpus = load_corpus(data_config(tmp_path, hub="wmt/wmt14", hub_config="de-en"))
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[:5], "test": PAIRS[95:]}
    assert corpus.split_names == {"validation": "newstest2013", "test": "held-out-test"}
    turned = load_corpus(data_config(tmp_path, source_language="de", target_language="en"))
    assert list(turned.splits["test"]) == [pair[::-1] for pair in PAIRS[95:]]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    def of(commit, splits=()):
        found = {name: SimpleNamespace(cache_files=[{"filename": f"{name}.arrow"}]) for name in splits}
        monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: found)
        monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: SimpleNamespace(hash=commit))
        return data_config(tmp_path, path=None, hub="some/corpus")

    return of


def test_splits_of_the_hub_are_standard_ones_if_no_other_is(hub):
    listed = corpus_files(hub("0" * 40, ("train", "dev", "val", "test"))).splits
    expected = {"train": "train.arrow", "validation": "val.arrow", "test": "test.arrow", "dev": "dev.arrow"}
    assert {split: str(file) for split, [file] in listed.items()} == expected


@pytest.mark.parametrize("pin, there, message", [
    (None, "97ebad7b", "read from a folder of this name, which has no commit; give it as data.path"),
    ("a" * 40, "b" * 40, "pinned to commit a{12} in .*, but only b{12} can be read here; connect to the hub"),
    ("{", "0" * 40, "hub_revisions.json is no JSON object.*mend or delete it"),
])  # fmt: skip
def test_a_corpus_of_the_hub_is_read_at_its_pinned_commit_alone(hub, pin, there, message):
    """Offline the library takes the newest commit in its cache, and a folder of the dataset's name before the hub."""
    data = hub(there)
    if pin is not None:
        write(Path(data.cache_dir), {"hub_revisions.json": pin if pin == "{" else json.dumps({"some/corpus": pin})})
    with pytest.raises(DataError, match=message):
        corpus_files(data)


def test_fingerprint_depends_on_content_not_on_times(tmp_path, monkeypatch):
    write(tmp_path / "pairs", lines("train"))
    config = data_config(tmp_path)
    first = fingerprint(config)
    monkeypatch.setattr(module.hashlib, "file_digest", None)  # those of the first time are kept
    assert fingerprint(config) == first
    monkeypatch.undo()
    file = tmp_path / "pairs" / "train.de"
    times, keys = file.stat(), {first}
    for replace in (False, True):  # the same path, size and time of modification with other content
        other = file.with_name("other") if replace else file
        other.write_text(file.read_text().replace(f" {40 + replace}\n", f" {50 + replace}\n"))
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        if replace:
            other.rename(file)
        keys.add(fingerprint(config))
    write(tmp_path / "pairs", lines("dev"))
    assert len({*keys, fingerprint(config)}) == 4


def test_folders_behind_links_are_hashed_and_read_but_not_twice(tmp_path):
    write(tmp_path / "elsewhere", {"a.csv": CSV})
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "train").symlink_to(tmp_path / "elsewhere")
    first = fingerprint(data_config(tmp_path))
    write(tmp_path / "elsewhere", {"a.csv": CSV.replace("dog", "cat")})
    assert fingerprint(data_config(tmp_path)) != first
    assert next(iter(load_corpus(data_config(tmp_path)).splits["train"])) == ("the cat 0", "der Hund 0")
    (tmp_path / "elsewhere" / "b").symlink_to(tmp_path / "pairs")
    with pytest.raises(DataError, match="pairs are one folder, read twice; remove the link"):
        list_files(tmp_path / "pairs", ())
