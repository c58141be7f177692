"""Corpora from every source against the pairs written there, and fingerprints. More errors:
tests/system/test_bad_input.py.
"""

import os
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rpr.data import corpus as module
from rpr.data import files
from rpr.data.corpus import Corpus, fingerprint, load_corpus
from rpr.errors import DataError
from tests.data.helpers import data_config, memory_growth, write_lines

PAIRS = [(f"a small line {index}", f"eine kleine Zeile {index}") for index in range(100)]


@pytest.fixture
def config(tmp_path):
    return lambda **changes: data_config(tmp_path, **changes)


@pytest.fixture
def folder(tmp_path):
    """The data.path of `config`."""
    (tmp_path / "pairs").mkdir()
    return tmp_path / "pairs"


def write_parquet(
    file: Path, pairs: list[tuple[str, str]], languages: tuple[str, str] = ("en", "de"), flat: bool = False
) -> None:
    rows = [dict(sorted(zip(languages, pair, strict=True))) for pair in pairs]
    table = pyarrow.Table.from_pylist(rows if flat else [{"translation": row} for row in rows])
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file)


def content(corpus: Corpus) -> dict[str, list[tuple[str, str]]]:
    return {split: list(pairs) for split, pairs in corpus.splits.items()}


def sizes(corpus: Corpus) -> list[int]:
    return [len(corpus.splits[split]) for split in ("train", "validation", "test")]


@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_folder_of_line_files(config, folder, validation):
    splits = {"train": PAIRS[:80], "validation": PAIRS[80:90], "test": PAIRS[90:], "test2016": PAIRS[:3]}
    for split, pairs in splits.items():
        write_lines(folder / (validation if split == "validation" else split), pairs)
    corpus = load_corpus(config())
    assert content(corpus) == splits
    assert corpus.split_names == {"validation": "newstest2013", "test": "newstest2014", "test2016": "test2016"}
    assert (corpus.notes, corpus.held_out) == ((), frozenset())


def test_at_most_1000_pairs_are_held_out(config, tmp_path):
    write_lines(tmp_path / "pairs", [(f"{source} {n}", target) for n in range(210) for source, target in PAIRS])
    assert sizes(load_corpus(config())) == [19_000, 1000, 1000]


def test_only_a_missing_split_is_held_out(config, folder):
    write_lines(folder / "train", PAIRS)
    write_lines(folder / "test", PAIRS[:2])
    corpus = load_corpus(config())
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[95:], "test": PAIRS[:2]}
    assert corpus.split_names == {"validation": "held-out-validation", "test": "newstest2014"}
    assert corpus.held_out == {"validation"}


def test_train_pairs_equal_to_held_out_ones_are_dropped_and_counted(config, tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.data.pairs.PAIRS_AT_ONCE", 7)
    validation, test = PAIRS[90:95], PAIRS[95:]
    half = (PAIRS[99][0], PAIRS[0][1])  # equal on one side only
    train = [
        ("  a small\tline 99\r", "eine kleine Zeile\u00a099"),  # equal after normalisation
        *PAIRS[:40], PAIRS[93], half, PAIRS[99][::-1], *PAIRS[40:80], *[PAIRS[92]] * 3, ("", ""),
    ]  # fmt: skip
    empty = [("", "")]  # a held-out empty pair does not drop those of train
    write_lines(tmp_path / "pairs", [*train, PAIRS[89], PAIRS[89], *empty, *validation[1:], *test])
    corpus = load_corpus(config())
    kept = [*PAIRS[:40], half, PAIRS[99][::-1], *PAIRS[40:80], ("", ""), PAIRS[89], PAIRS[89]]
    assert content(corpus) == {"train": kept, "validation": empty + validation[1:], "test": test}
    assert corpus.repeated == 5 and corpus.notes == (
        "test: pairs 96 to 100 of train, held out of it",
        "validation: pairs 91 to 95 of train, held out of it",
        "train: 5 pairs left out, each equal to a held-out one",
    )
    limited = load_corpus(config(train_limit=42))
    assert list(limited.splits["train"]) == PAIRS[:40] and limited.repeated == 2
    assert limited.notes[2:] == (
        "train: the first 42 of 90 pairs",
        "train: 2 pairs left out, each equal to a held-out one",
    )


def test_train_pairs_equal_to_given_splits_are_kept(config, folder, monkeypatch):
    write_lines(folder / "train", PAIRS[:80])
    write_lines(folder / "test", PAIRS[:9])
    corpus = load_corpus(config())
    assert list(corpus.splits["train"]) == PAIRS[:76] and corpus.repeated == 0 and len(corpus.notes) == 1
    write_lines(folder / "validation", PAIRS[:9])
    monkeypatch.setattr(module, "_without_repeats", None)  # train is not read for it
    corpus = load_corpus(config())
    assert list(corpus.splits["train"]) == PAIRS[:80] and (corpus.repeated, corpus.notes) == (0, ())


@pytest.mark.parametrize("flat", [False, True])
def test_folder_of_parquet(config, folder, flat):
    """In the layout of the WMT sets on the hub."""
    write_parquet(folder / "data" / "train-00000-of-00001.parquet", PAIRS, flat=flat)
    write_parquet(folder / "data" / "validation-00000-of-00001.parquet", PAIRS[:5], flat=flat)
    corpus = load_corpus(config(hub="wmt/wmt14", hub_config="de-en"))
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[:5], "test": PAIRS[95:]}
    turned = load_corpus(config(source_language="de", target_language="en"))
    assert list(turned.splits["test"]) == [pair[::-1] for pair in PAIRS[95:]]


def test_folder_of_data_files_with_other_files_of_ours_in_it_is_refused(config, folder):
    write_parquet(folder / "train.parquet", PAIRS)
    with pytest.raises(DataError, match=r"pairs/cache is not of the corpus, .* keep data.cache_dir and runs_dir out"):
        load_corpus(config(cache_dir=str(folder / "cache")))
    (folder / "runs" / "a").mkdir(parents=True)
    (folder / "runs" / "a" / "record.json").write_text("{}")
    with pytest.raises(DataError, match=r"pairs/runs/a/record\.json is not of the corpus"):
        load_corpus(config())


def test_a_table_that_pyarrow_does_not_read_is_one_line(config, folder, monkeypatch):
    def refuse(*arguments, **settings):
        raise pyarrow.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    write_parquet(folder / "train.parquet", PAIRS)
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", refuse)
    with pytest.raises(DataError, match=r"train\.parquet cannot be read \(Nested data conversions not implemented"):
        list(load_corpus(config()).splits["train"].chunks())


def test_reading_a_large_table_keeps_memory_bounded(config, folder, monkeypatch):
    monkeypatch.setattr("rpr.data.pairs.PAIRS_AT_ONCE", 100)
    words = os.urandom(1500).hex()
    pairs = [(f"{index} {words}", f"{words} {index}") for index in range(14_000)]
    write_parquet(folder / "train.parquet", pairs)
    for split in ("validation", "test"):  # else load_corpus would read train
        write_parquet(folder / f"{split}.parquet", PAIRS)
    train = load_corpus(config(train_limit=12_600)).splits["train"]

    next(train.chunks())  # imports are not part of it

    def read():
        assert sum(len(chunk) for chunk in train.chunks()) == 12_600

    assert memory_growth(read) < 50e6, "of 76 MB"


def test_csv_fields_are_plain_text(config, folder):
    nulls_of_pandas = ["NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "#N/A", "-1.#IND", "<NA>"]
    odd = [(word, f"{word} {index}") for index, word in enumerate(nulls_of_pandas)]
    odd += [("007", "1e5"), ("True", "2024-01-01"), ("3.50", "null"), ("long" * 50_000, "lang")]
    rows = "".join(f"{source},{target}\n" for source, target in odd)
    (folder / "train.csv").write_text(f'en,de\n{rows}"a, ""b""",\n')
    for split in ("dev", "test"):
        (folder / f"{split}.csv").write_text("id,en,de,score\n1,c,d,\n2,,d,0.5\n")
    corpus = content(load_corpus(config()))
    assert corpus["train"] == [*odd, ('a, "b"', "")] and corpus["test"] == [("c", "d"), ("", "d")]


def test_readme_sets_csv_options(config, folder):
    (folder / "train.csv").write_text("en;de\n" + "".join(f"NA {index};0{index}\n" for index in range(20)))
    split = "  data_files:\n  - split: train\n    path: train.csv\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: all\n  sep: ';'\n{split}---\n")
    assert list(load_corpus(config()).splits["train"])[3] == ("NA 3", "03")


def test_folder_with_several_configs(config, folder):
    for name, languages in (("de-en", ("en", "de")), ("fr-en", ("en", "fr"))):
        write_parquet(folder / name / "train-0.parquet", PAIRS, languages=languages)
        with (folder / "README.md").open("a") as readme:
            readme.write("" if readme.tell() else "---\nconfigs:\n")
            readme.write(f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*\n")
    (folder / "README.md").write_text((folder / "README.md").read_text() + "---\n")
    assert len(load_corpus(config(hub_config="de-en")).splits["train"]) == 90
    for name, message in (
        ("de-eng", r"data.hub_config: no 'de-eng' in .*did you mean de-en\? \(available: de-en, fr-en\)"),
        ("fr-en", "data.target_language: no 'de' in the translation column of train in .*; available: en, fr$"),
    ):
        with pytest.raises(DataError, match=message):
            load_corpus(config(hub_config=name))


def test_a_configuration_that_the_files_do_not_have_is_refused(config, folder):
    """Otherwise all of them would be read, as one corpus; a corpus of the hub has one in conf/, for its own files."""
    write_lines(folder / "train", PAIRS)
    with pytest.raises(DataError, match=r"^data.hub_config: .* has no folder de-en and no README with such a config"):
        load_corpus(config(hub_config="de-en"))
    assert len(load_corpus(config(hub="wmt/wmt14", hub_config="de-en")).splits["train"]) == 90
    write_parquet(folder / "de-en" / "train-0.parquet", PAIRS[:30])
    (folder / "train.en").unlink(), (folder / "train.de").unlink()
    assert len(load_corpus(config(hub_config="de-en")).splits["train"]) == 28
    with pytest.raises(DataError, match=r"^data.hub_config: "):
        load_corpus(config(hub_config="de-EN"))


def test_fingerprint_depends_on_content_not_on_times(config, folder, tmp_path, monkeypatch):
    write_lines(folder / "train", PAIRS)
    first = fingerprint(config())
    digests = tmp_path / "cache" / "digests.json"
    assert not digests.exists(), "a file this new may change within the clock's resolution"
    later = time.time_ns() + 10**11
    monkeypatch.setattr(files.time, "time_ns", lambda: later)
    assert fingerprint(config()) == first
    assert digests.is_file(), "digests of older files are cached"
    monkeypatch.setattr(files.hashlib, "file_digest", None)
    assert fingerprint(config()) == first
    monkeypatch.undo()
    file = folder / "train.de"
    times, keys = file.stat(), {first}
    for replace in (False, True):  # the same path, size and time of modification with other content
        other = file.with_name("other") if replace else file
        other.write_text(file.read_text().replace(f" {40 + replace}\n", f" {60 + replace}\n"))
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        if replace:
            other.rename(file)
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
        keys.add(fingerprint(config()))
    write_lines(folder / "dev", PAIRS[:3])
    assert len({*keys, fingerprint(config())}) == 4
