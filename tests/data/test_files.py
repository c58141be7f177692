"""Which files of a folder are read, in which split: rows of files and either the splits or what refuses them."""

import bz2
import errno
import gzip
import hashlib
import json
import lzma
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from rpr.data import files
from rpr.data.corpus import corpus_files, fingerprint, load_corpus
from rpr.data.tables import describe, read_columns
from rpr.errors import DataError
from tests.data.helpers import data_config

ROWS = [(f"the dog {index}", f"der Hund {index}") for index in range(60)]
CSV = "en,de\n" + "".join(f"{source},{target}\n" for source, target in ROWS)
JSONL = "".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in ROWS)
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def readme(*data_files: tuple[str, str], more: str = "") -> str:
    files = "".join(f"  - split: {split}\n    path: {path!r}\n" for split, path in data_files)
    return f"---\nconfigs:\n- config_name: default\n{more}  data_files:\n{files}---\n"


def write(folder: Path, contents: dict[str, str | bytes]) -> None:
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        file.write_bytes(PACKERS[file.suffix](raw) if file.suffix in PACKERS and isinstance(content, str) else raw)


def lines(*stems: str) -> dict[str, str | bytes]:
    return {
        f"{stem}.{language}": "".join(f"{row[side]}\n" for row in ROWS)
        for stem in stems
        for side, language in enumerate(("en", "de"))
    }


@pytest.mark.parametrize(("contents", "splits"), [
    ({"run.csv": CSV}, {"train": ["run.csv"]}),
    ({"train.csv.gz": CSV, "dev.tsv.xz": "x", "test.ndjson": JSONL}, {
        "train": ["train.csv.gz"], "validation": ["dev.tsv.xz"], "test": ["test.ndjson"]}),
    ({"train_0.csv": CSV, "train_1.csv": CSV, "test.csv": CSV, "test_2016_a.csv": CSV}, {
        "train": ["train_0.csv", "train_1.csv"], "test": ["test.csv"], "test_2016_a": ["test_2016_a.csv"]}),
    ({f"{name}.csv": CSV for name in ("train", "dev", "validation", "eval", "test")}, {
        name: [f"{name}.csv"] for name in ("train", "dev", "validation", "eval", "test")}),
    ({"train.csv": CSV, "dev.csv": CSV, "eval.csv": CSV}, {
        "train": ["train.csv"], "validation": ["dev.csv"], "test": ["eval.csv"]}),
    ({"train.csv": CSV, "TEST.CSV": CSV, "dev.Tsv.GZ": gzip.compress(CSV.encode())}, {
        "train": ["train.csv"], "test": ["TEST.CSV"], "validation": ["dev.Tsv.GZ"]}),
    (lines("train") | {"test.EN": "a\n", "test.De.GZ": gzip.compress(b"a\n")}, {
        "train": ["train.en", "train.de"], "test": ["test.EN", "test.De.GZ"]}),
    ({"de-en.train.csv": CSV, "de-en.test.csv": CSV}, {"train": ["de-en.train.csv"], "test": ["de-en.test.csv"]}),
    ({"a/train/x.csv": CSV, "a/test/x.csv": CSV, "a/.hidden/train.csv": CSV}, {
        "train": ["a/train/x.csv"], "test": ["a/test/x.csv"]}),
    ({"data/train-00000-of-00001-ab12.csv": CSV, "data/challenge-00000-of-00001.csv": CSV}, {
        "train": ["data/train-00000-of-00001-ab12.csv"], "challenge": ["data/challenge-00000-of-00001.csv"]}),
    (lines("train", "val1", "test_2016_flickr", "mscoco", "train.bpe"), {
        split: [f"{split}.en", f"{split}.de"] for split in ("train", "mscoco", "test_2016_flickr", "val1")}),
    ({"README.md": readme(("train", "a*.csv"), ("test", "s/**")), "a[1].csv": CSV, "s/x/b.csv": CSV, "c.csv": ""}, {
        "train": ["a[1].csv"], "test": ["s/x/b.csv"]}),
    ({"README.md": readme(("train", "a.csv"), ("dev", "b.csv"), ("valid", "c.csv"), ("val", "d.csv")),
      **{f"{name}.csv": CSV for name in "abcd"}}, {
        "train": ["a.csv"], "dev": ["b.csv"], "validation": ["c.csv"], "val": ["d.csv"]}),
    ({"README.md": readme(("train", "a[1].csv")), "a[1].csv": CSV, "a1.csv": CSV}, {"train": ["a[1].csv"]}),
    ({"README.md": "---\ndataset_info:\n  splits:\n  - name: a\n    num_examples: 3\n---\n", "train.csv": CSV}, {
        "train": ["train.csv"]}),
])  # fmt: skip
def test_splits_of_a_folder(tmp_path, contents, splits):
    folder = tmp_path / "a::run[1]*?"
    write(folder, contents)
    write(tmp_path / "a::run1", {"train.csv": CSV})
    listed = corpus_files(data_config(tmp_path, path=str(folder))).splits
    found = {split: [file.relative_to(folder).as_posix() for file in files] for split, files in listed.items()}
    assert found == splits


@pytest.mark.parametrize(("contents", "message"), [
    ({"train.csv": "en,de,score\na,b,0.9,\n"}, "line 2 of .*train.csv has 4 fields, and the header has 3"),
    ({"train.csv": CSV + "x\n"}, "line 62 of .* has 1 fields, and the header has 2"),
    ({"train.tsv": "en\tde\na\tb\nc\td\te\n"}, "line 3 of .* has 3 fields"),
    ({"train.csv": 'en,de\n"Run ! he said,Lauf\n' + CSV}, "line 2 of .*unexpected end of data"),
    ({"train.csv": CSV + '"cat" b,c\n'}, "line 62 of .*',' expected after"),
    ({"train.csv": 'en,de\n"a\nb",c\n'}, "line 2 of .*unexpected end of data.* keep each row on one line"),
    ({"train.csv": "en,de,en\n"}, "line 1 of .* names a column twice"),
    ({"train.jsonl": JSONL + "{\n"}, "line 61 of .*train.jsonl is not JSON"),
    ({"train.jsonl": "3\n"}, "line 1 of .* is not an object"),
    ({"train.json": '[{"en": "a", "de": "b"}, 3]'}, "entry 2 of .*train.json is not an object"),
    ({"train.jsonl": '{"en": "a", "de": 3}\n'}, "'de' in the columns of train in .* holds numbers, not text"),
    ({"train.en": gzip.compress(b"a\n"), "train.de": "a\n"}, "train.en: line 1 is not UTF-8 text but packed"),
    ({"train.en": "a\n", "train.de": "a\nb".encode("utf-16-le")}, "train.de: line 1 is not UTF-8 text but UTF-16"),
    ({"train.en": "a\nb\0\n", "train.de": "a\nb\n"}, "train.en: line 2 is not UTF-8 text but"),
    ({"train.csv": "a\n".encode("utf-32")}, "train.csv: line 1 is not UTF-8 text but UTF-32"),
    (lines("train") | {"train.en.gz": "a\n"}, "train.en and .*train.en.gz are the same side"),
    (lines("train") | {"test2016.de.gz": "a\n"}, r"test2016.de.gz has no counterpart .*test2016\.en"),
    (lines("train") | {"test.en.zst": b"x", "test.de.zst": b"x"}, "test.de.zst is not read, and test would be"),
    (lines("train") | {"test.parquet": b"x"}, "test.parquet is not read, and test would be held out of train"),
    (lines("train") | {"test.en.sgm": "<a>"}, "test.en.sgm is not read, and test would be held out"),
    (lines("train", "test") | {"test.EN": "a\n"}, "test.EN and .*test.en are the same side of one split"),
    (lines("train", "test/a"), "/test is not read, and test would be held out of train"),
    (lines("train", "test.parquet/a"), "test.parquet is not read, and test would be held out of train"),
    ({"train_v2/train.csv": CSV, "train_v2/test.csv": CSV}, "v2/test.csv is called test, and would be read as train"),
    ({"train/a.csv": CSV, "eval/dev-00000-of-00001.csv": CSV}, "called validation, and would be read as test"),
    (lines("train", "Test"), "Test.de is not read as test, whose files begin with test; rename it"),
    (lines("train", "test", "VALID"), "VALID.de is not read as validation, whose files begin with valid; rename it"),
    ({"train.csv": CSV, "test.ZIP": b"x"}, "test.ZIP is not read, and test would be held out"),
    ({"train.csv": CSV, "test.feather": b"x"}, "test.feather is not read, and test would be held out"),
    ({"train.csv": CSV, "train.CSV.gz": CSV}, "train.csv.* are both of split train"),
    ({"train.csv": CSV, "Test.csv": CSV, "test.csv": CSV}, "Test.csv and .*test.csv are of splits that differ in case"),
    ({"train.csv": CSV, "test.xlsx": b"x"}, "test.xlsx is not read, and test would be held out"),
    ({"README.md": readme(("train", "../a.csv")), "a.csv": CSV}, r"takes '../a.csv' from outside of its folder"),
    ({"README.md": readme(("train", "hf://x/a.csv")), "a.csv": CSV}, "takes 'hf://x/a.csv' from outside"),
    ({"README.md": readme(("train", "/a.csv")), "a.csv": CSV}, "takes '/a.csv' from outside"),
    ({"README.md": readme(("train", "b.csv")), "a.csv": CSV}, "lists 'b.csv' for train, which is no readable"),
    ({"README.md": readme(("train", "**.csv")), "a.csv": CSV}, r"lists '\*\*.csv' for train \(Invalid pattern"),
    ({"README.md": readme(("train", "a.csv"), more="  header: 3\n"), "a.csv": CSV}, "sets 'header' for default"),
    ({"README.md": "---\nconfigs: [\n---\n", "a.csv": CSV}, "the header of .*README.md cannot be read"),
    ({"README.md": readme(("train", "a.csv"), more="  sep: ';;'\n"), "a.csv": CSV}, "separator ';;' for default"),
    ({"README.md": readme(("train", "a.csv"), more="  delimiter: 5\n"), "a.csv": CSV}, "separator 5 for default"),
    ({"README.md": readme(("train", "a.csv"), more="  5: x\n  b: y\n"), "a.csv": CSV}, "sets 5 for default, which rpr"),
    ({"README.md": readme(("train", "a.csv")).replace("'a.csv'", "null"), "a.csv": CSV}, "data_files in .* is no"),
    ({"README.md": f"---\nconfigs: {'[' * 5000}\n---\n", "a.csv": CSV}, "README.md cannot be read .maximum recursion"),
    ({"train.jsonl": "[" * 100_000}, "train.jsonl cannot be read .maximum recursion"),
    ({"train.jsonl": JSONL + '{"en":' * 100_000}, "line 61 of .*train.jsonl is not JSON .maximum recursion"),
])  # fmt: skip
def test_what_cannot_be_read_so_is_refused(tmp_path, contents, message):
    write(tmp_path / "pairs", contents)
    with pytest.raises(DataError, match=message) as error:
        load_corpus(data_config(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("contents", [{"train.csv": CSV}, lines("train")])
def test_archives_are_noted_whatever_their_names(tmp_path, contents):
    write(tmp_path / "pairs", contents | dict.fromkeys(("a.zip", "b.csv.zst", "c.tar.gz", "notes.md", "words"), b"x"))
    assert [file.name for file in corpus_files(data_config(tmp_path)).left_over] == ["a.zip", "b.csv.zst", "c.tar.gz"]


@pytest.mark.parametrize(("contents", "link", "message"), [
    (lines("train"), "test.en", "test.en is a link to nothing; restore its file, or remove the link"),
    (lines("train", "test"), "newstest.de.gz", "newstest.de.gz is a link to nothing"),
    (lines("train"), "test.zip", "test.zip is not read, and test would be held out of train"),
    ({"train.csv": CSV}, "test.csv", "test.csv"),
])  # fmt: skip
def test_links_to_nothing_are_refused(tmp_path, contents, link, message):
    write(tmp_path / "pairs", contents)
    (tmp_path / "pairs" / link).symlink_to(tmp_path / "unmounted" / link)
    with pytest.raises(DataError, match=message):
        load_corpus(data_config(tmp_path))


def test_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "pairs", {f"{split}/a.csv": CSV for split in ("train", "test")})
    scan = os.scandir

    def denied(folder):
        if Path(folder).name == "test":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"test cannot be read \(Permission denied\); make it readable, or move it"):
        corpus_files(data_config(tmp_path))


def test_splits_of_the_hub_are_standard_ones_if_no_other_is(tmp_path, monkeypatch):
    names = ("train", "dev", "val", "test")
    splits = {name: SimpleNamespace(cache_files=[{"filename": f"{name}.arrow"}]) for name in names}
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: splits)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: SimpleNamespace(hash="0" * 40))
    listed = corpus_files(data_config(tmp_path, path=None, hub="some/corpus")).splits
    assert {split: str(file) for split, [file] in listed.items()} == {
        "train": "train.arrow", "dev": "dev.arrow", "validation": "val.arrow", "test": "test.arrow"
    }  # fmt: skip


@pytest.mark.parametrize("pin, there, message", [
    (None, "97ebad7b", "read from a folder of this name, which has no commit; give it as data.path"),
    ("a" * 40, "b" * 40, "pinned to commit a{12} in .*, but only b{12} can be read here; connect to the hub"),
    ("a" * 40, "97ebad7b", "but only 97ebad7b can be read here"),
])  # fmt: skip
def test_a_corpus_of_the_hub_is_read_at_its_pinned_commit_alone(tmp_path, monkeypatch, pin, there, message):
    """Offline the library takes the newest commit in its cache, and a folder of the dataset's name before the hub."""
    data = data_config(tmp_path, path=None, hub="some/corpus")
    if pin is not None:
        write(Path(data.cache_dir), {"hub_revisions.json": json.dumps({"some/corpus": pin})})
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: SimpleNamespace(hash=there))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("read another one"))
    with pytest.raises(DataError, match=message):
        corpus_files(data)


def test_damaged_pins_pin_nothing_anew(tmp_path, monkeypatch):
    """A line was deleted, and the comma before it was not."""
    data = data_config(tmp_path, path=None, hub="some/corpus")
    write(Path(data.cache_dir), {"hub_revisions.json": '{"an/other": "1a",\n}'})
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: SimpleNamespace(hash="0" * 40))
    with pytest.raises(DataError, match="hub_revisions.json is no JSON object.*mend it"):
        fingerprint(data)
    assert (Path(data.cache_dir) / "hub_revisions.json").read_text() == '{"an/other": "1a",\n}'


@pytest.mark.parametrize("names, refusal", [
    (["train.csv", "train_tok.csv"], "train_tok.csv are both of split train"),
    (["train.csv", "training.csv"], "are both of split train"),
    (["train_0.csv", "train_1.csv", "train/more.csv"], ""),
    (["train.csv", "test_2017_flickr.csv"], "test_2017_flickr.csv would be reported as test_2016_flickr; rename it"),
    (["train.csv", "test_2016_flickr.csv"], ""),
    (["train.csv", "2016/test.csv"], ""),
])  # fmt: skip
def test_tables_of_other_versions_and_years_are_refused(tmp_path, names, refusal):
    header = "en,de\n"
    write(tmp_path / "corpus", dict.fromkeys(names, header + "a,b\n"))
    data = data_config(tmp_path, path=str(tmp_path / "corpus")).model_copy(update={"test_name": "test_2016_flickr"})
    if not refusal:
        assert "train" in corpus_files(data).splits
        return
    with pytest.raises(DataError, match=refusal):
        corpus_files(data)


def test_a_changed_or_moved_corpus_is_read_anew(tmp_path):
    """Of the hub's layout with a README; the base names, sizes and times of the files are the same."""
    keys = set()
    for folder, word in (("v1", "cat"), ("v2", "dog"), ("v1", "pig")):
        contents = {"README.md": readme(("train", "train-*")), "train-0.jsonl": JSONL.replace("dog", word)}
        write(tmp_path / folder / "corpus", contents)
        data = data_config(tmp_path, path=str(tmp_path / folder / "corpus"))
        assert next(iter(load_corpus(data).splits["train"])) == (f"the {word} 0", "der Hund 0")
        keys.add(fingerprint(data))
    assert len(keys) == 3 and not (tmp_path / "cache" / "arrow").exists()


def test_the_digests_of_many_files_are_written_once(tmp_path, monkeypatch):
    write(tmp_path / "pairs", {f"train/{number}.csv": CSV for number in range(20)})
    written = []
    monkeypatch.setattr(files, "SETTLED_NS", -1)
    monkeypatch.setattr(files, "replace_file", lambda path, content: written.append(len(json.loads(content))))
    fingerprint(data_config(tmp_path))
    assert written == [20]


def test_digest_of_a_file_that_was_new_when_its_reading_began_is_not_remembered(tmp_path, monkeypatch):
    """It may have changed while it was read, within the resolution of its times."""
    write(tmp_path / "pairs", {"train.csv": CSV})
    clock, digest = [time.time_ns()], hashlib.file_digest

    def slow(*arguments):
        clock[0] += 10**11
        return digest(*arguments)

    monkeypatch.setattr(files.time, "time_ns", lambda: clock[0])
    monkeypatch.setattr(files.hashlib, "file_digest", slow)
    fingerprint(data_config(tmp_path))
    assert not (tmp_path / "cache" / "digests.json").exists()


def test_folders_behind_links_are_hashed_and_read_but_not_twice(tmp_path):
    write(tmp_path / "elsewhere", {"train.csv": CSV})
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "a").symlink_to(tmp_path / "elsewhere")
    first = fingerprint(data_config(tmp_path))
    write(tmp_path / "elsewhere", {"train.csv": CSV.replace("dog", "cat")})
    assert fingerprint(data_config(tmp_path)) != first
    assert next(iter(load_corpus(data_config(tmp_path)).splits["train"])) == ("the cat 0", "der Hund 0")
    (tmp_path / "elsewhere" / "b").symlink_to(tmp_path / "pairs")
    with pytest.raises(DataError, match="pairs are one folder, whose files would be read twice"):
        corpus_files(data_config(tmp_path))


@pytest.mark.parametrize(
    "suffix", ["csv", "tsv", "jsonl", "json", "parquet", "arrow", "feather", "csv.bz2", "jsonl.gz"]
)
def test_every_format_holds_the_same_rows(tmp_path, suffix):
    """Strings that look like dates and numbers stay text."""
    rows = [*ROWS, ("2001-05-04", "007"), ("NA", "null")]
    english, german = zip(*rows, strict=True)
    german = pyarrow.array(german, pyarrow.large_string())
    table = pyarrow.table({"id": range(len(rows)), "en": english, "de": german})
    dicts = [{"en": source, "de": target} for source, target in rows]
    separator = "\t" if suffix == "tsv" else ","
    file = tmp_path / f"x.{suffix.replace('feather', 'arrow')}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, file, row_group_size=7)
    elif suffix in ("arrow", "feather"):
        with (pyarrow.ipc.new_stream if suffix == "arrow" else pyarrow.ipc.new_file)(file, table.schema) as sink:
            sink.write_table(table, max_chunksize=11)
    elif suffix == "json":
        write(tmp_path, {file.name: json.dumps(dicts, indent=1)})
    elif "json" in suffix:
        write(tmp_path, {file.name: "".join(json.dumps(each) + "\n" for each in dicts)})
    else:
        write(tmp_path, {file.name: "".join(separator.join(row) + "\n" for row in [("en", "de"), *rows])})
    assert describe(file).rows == len(rows) and describe(file).types[("en",)] == "text"
    for size in (1, 10, 1000):
        read = [cells for batch in read_columns(file, [("en",), ("de",)], size) for cells in zip(*batch, strict=True)]
        assert [tuple(cell.decode() if isinstance(cell, bytes) else cell for cell in row) for row in read] == rows


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_two_columns_of_a_language_are_refused(tmp_path, suffix):
    file = tmp_path / "pairs" / f"train.{suffix}"
    file.parent.mkdir()
    table = pyarrow.table([["a"], ["b"], ["c"]], names=["en", "de", "en"])
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        with pyarrow.ipc.new_stream(file, table.schema) as sink:
            sink.write_table(table)
    with pytest.raises(DataError, match="data.source_language: 'en' in the columns of .* holds several columns, not"):
        load_corpus(data_config(tmp_path))


def test_objects_with_other_languages_and_saved_datasets(tmp_path):
    import datasets  # takes a second

    mixed = [{"translation": {"en": "a", "fr": "b"}}, {"translation": None}]
    mixed += [{"translation": {"en": source, "de": target}} for source, target in ROWS]
    write(tmp_path / "pairs", {"train.jsonl": "".join(json.dumps(each) + "\n" for each in mixed)})
    corpus = load_corpus(data_config(tmp_path))
    assert list(corpus.splits["train"])[:3] == [("a", ""), ("", ""), ROWS[0]]
    rows = datasets.Dataset.from_list([{"en": source, "de": target} for source, target in ROWS])
    datasets.DatasetDict(train=rows, test=rows.select(range(3, 5))).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "train" / "data-00001-of-00002.arrow").write_bytes(b"of an earlier save")
    corpus = load_corpus(data_config(tmp_path, path=str(tmp_path / "saved")))
    assert list(corpus.splits["test"]) == ROWS[3:5] and len(corpus.splits["train"]) == 57
