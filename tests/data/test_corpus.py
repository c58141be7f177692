"""Checked here: each way of giving a corpus against the pairs that were written into it; every refusal by its
message; the fingerprint by what must change it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpr.config.train import DataConfig, SyntheticConfig
from rpr.data import corpus as module
from rpr.data.corpus import Corpus, fingerprint, load_corpus
from rpr.data.pairs import normalise
from rpr.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
PAIRS = [(f"a small line {index}", f"eine kleine Zeile {index}") for index in range(100)]


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def make(**changes: Any) -> DataConfig:
        settings: dict[str, Any] = {
            "name": "tried", "source_language": "en", "target_language": "de", "synthetic": None,
            "hub": None, "hub_config": None, "path": str(tmp_path / "corpus"), "validation_name": "newstest2013",
            "test_name": "newstest2014", "tokenizer": "bpe", "vocabulary_size": 100, "max_length": 100,
            "train_limit": None, "task": None, "cache_dir": str(tmp_path / "cache"),
        }  # fmt: skip
        return DataConfig(**(settings | changes))

    return make


def write_lines(folder: Path, split: str, pairs: list[tuple[str, str]], end: str = "\n") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (folder / f"{split}.{language}").write_bytes("".join(f"{sentence}{end}" for sentence in sentences).encode())


def write_parquet(
    file: Path, pairs: list[tuple[str, str]], languages: tuple[str, str] = ("en", "de"), flat: bool = False
) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [dict(sorted(zip(languages, pair, strict=True))) for pair in pairs]
    table = pyarrow.Table.from_pylist(rows if flat else [{"translation": row} for row in rows])
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file)


def content(corpus: Corpus) -> dict[str, list[tuple[str, str]]]:
    return {split: list(pairs) for split, pairs in corpus.splits.items()}


# What a sentence is


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  a \t b\r\n", "a b"),
        ("\ufeffa\u2028b\u2029c\x85d\x00e\u00a0f\x1fg", "a b c d e f g"),
        ("e\u0301", "\u00e9"),
        ("\u200d \ufb01", "\u200d \ufb01"),
        (" \n", ""),
    ],
)
def test_a_sentence_is_one_line(raw: str, clean: str) -> None:
    assert normalise(raw) == clean == normalise(clean)
    assert len(clean.splitlines()) <= 1


# Line files


@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_a_folder_of_line_files(config: Any, tmp_path: Path, validation: str) -> None:
    for split, pairs in (
        ("train", PAIRS[:80]),
        (validation, PAIRS[80:90]),
        ("test", PAIRS[90:]),
        ("test2016", PAIRS[:3]),
    ):
        write_lines(tmp_path / "corpus", split, pairs)
    corpus = load_corpus(config())
    assert content(corpus) == {
        "train": PAIRS[:80],
        "validation": PAIRS[80:90],
        "test": PAIRS[90:],
        "test2016": PAIRS[:3],
    }
    assert corpus.split_names == {"validation": "newstest2013", "test": "newstest2014", "test2016": "test2016"}
    assert (corpus.notes, corpus.synthetic, corpus.held_out) == ((), False, frozenset())
    assert corpus.splits["train"][7] == PAIRS[7] and list(corpus.splits["train"].read(75, 80)) == PAIRS[75:80]
    with pytest.raises(IndexError):
        corpus.splits["train"][80]


def test_windows_files_packed_files_and_no_last_line_end(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", PAIRS, end="\r\n")
    english, german = tmp_path / "corpus" / "train.en", tmp_path / "corpus" / "train.de"
    english.write_bytes(b"\xef\xbb\xbf" + english.read_bytes().rstrip())
    (tmp_path / "corpus" / "train.de.gz").write_bytes(gzip.compress(german.read_bytes()))
    german.unlink()
    corpus = load_corpus(config())
    assert [pair for split in ("train", "validation", "test") for pair in corpus.splits[split]] == PAIRS


def test_a_prefix_holds_validation_and_test_out_of_train_and_says_so(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path, "corpus", PAIRS)
    corpus = load_corpus(config(train_limit=40))
    assert content(corpus) == {"train": PAIRS[:40], "validation": PAIRS[90:95], "test": PAIRS[95:]}
    assert corpus.notes == (
        "test: pairs 96 to 100 of train, held out of it",
        "validation: pairs 91 to 95 of train, held out of it",
        "train: the first 40 of 90 pairs",
    )
    assert corpus.split_names == {"validation": "held-out-validation", "test": "held-out-test"}


def test_only_the_split_that_is_missing_is_held_out(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", PAIRS)
    write_lines(tmp_path / "corpus", "test", PAIRS[:2])
    corpus = load_corpus(config())
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[95:], "test": PAIRS[:2]}
    assert corpus.split_names == {"validation": "held-out-validation", "test": "newstest2014"}
    assert corpus.held_out == {"validation"}


def test_at_most_a_thousand_pairs_are_held_out(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path, "corpus", [(f"{source} {n}", target) for n in range(300) for source, target in PAIRS])
    assert {split: len(pairs) for split, pairs in load_corpus(config()).splits.items()} == {
        "train": 28000,
        "validation": 1000,
        "test": 1000,
    }


def test_pairs_of_train_that_equal_a_held_out_one_are_left_out_and_counted(config: Any, tmp_path: Path) -> None:
    validation, test = PAIRS[90:95], PAIRS[95:]
    train = [
        ("  a small\tline 99\r", "eine kleine Zeile\u00a099"),  # test's, when normalised
        *PAIRS[:40],
        PAIRS[93],
        (PAIRS[99][0], PAIRS[0][1]),  # one side alone is no repetition
        PAIRS[99][::-1],
        *PAIRS[40:80],
        *[PAIRS[92]] * 3,
        ("", ""),
    ]
    kept = [*PAIRS[:40], (PAIRS[99][0], PAIRS[0][1]), PAIRS[99][::-1], *PAIRS[40:80], ("", "")]
    empty = [("", "")]  # in a held-out split it makes no other empty pair a repetition
    write_lines(tmp_path, "corpus", [*train, PAIRS[89], PAIRS[89], *empty, *validation[1:], *test])
    corpus = load_corpus(config())
    assert len(train) == 88 and content(corpus) == {
        "train": [*kept, PAIRS[89], PAIRS[89]],
        "validation": empty + validation[1:],
        "test": test,
    }
    assert corpus.notes == (
        "test: pairs 96 to 100 of train, held out of it",
        "validation: pairs 91 to 95 of train, held out of it",
        "train: 5 pairs left out, each equal to a held-out one",
    )
    assert corpus.repeated == 5
    limited = load_corpus(config(train_limit=42))
    assert list(limited.splits["train"]) == PAIRS[:40] and limited.repeated == 2
    assert limited.notes[2:] == (
        "train: the first 42 of 90 pairs",
        "train: 2 pairs left out, each equal to a held-out one",
    )


def test_what_repeats_a_split_that_was_given_stays_in_train(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "corpus", "train", [*PAIRS[:79], PAIRS[79]])
    write_lines(tmp_path / "corpus", "test", PAIRS[:9])
    corpus = load_corpus(config())
    assert list(corpus.splits["train"]) == PAIRS[:76] and corpus.repeated == 0 and len(corpus.notes) == 1
    write_lines(tmp_path / "corpus", "validation", PAIRS[:9])
    monkeypatch.setattr(module, "_without_repeats", None)  # nor is train read for it
    corpus = load_corpus(config())
    assert list(corpus.splits["train"]) == PAIRS[:80] and (corpus.repeated, corpus.notes) == (0, ())


def test_a_train_split_that_only_repeats_what_is_held_out_is_refused(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path, "corpus", PAIRS * 30)
    with pytest.raises(
        DataError,
        match=r"^data tried: each of the 2700 train pairs equals a held-out pair, which leaves nothing "
        r"to train on; add other pairs, or files for validation and test$",
    ):
        load_corpus(config())


def test_repetitions_in_a_table_are_left_out_too(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED_AT_ONCE", 7)
    write_parquet(tmp_path / "corpus" / "train.parquet", [*PAIRS[80:], *PAIRS])
    corpus = load_corpus(config())
    assert [len(corpus.splits[split]) for split in ("train", "validation", "test")] == [96, 6, 6]
    assert list(corpus.splits["train"]) == [*PAIRS[80:88], *PAIRS[:88]] and corpus.repeated == 12


LEFT_OUT = [[0], [99], [0, 1, 2, 3, 50, 51, 97, 98, 99], list(range(10, 30)), list(range(1, 100)), [3, 9, 10, 11, 20]]


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_split_without_some_of_its_pairs(left_out: list[int], size: int) -> None:
    """From any pair to any other, in chunks of any size, and with a choice among those that are kept."""
    split = module.FilteredPairs(module.ListPairs(PAIRS), np.asarray(left_out, np.int64))
    places = [index for index in range(100) if index not in left_out]
    assert len(split) == len(places)
    assert [split.where(index) for index in range(len(split))] == [f"pair {place + 1}" for place in places]
    for start in range(0, len(places), 11):
        for stop in range(start, len(places) + 1):
            expected = [PAIRS[place] for place in places[start:stop]]
            chunks = list(split.chunks(start, stop, size))
            assert all(0 < len(chunk) <= size and len(chunk) == len(chunk.pairs()) for chunk in chunks)
            assert [pair for chunk in chunks for pair in chunk.pairs()] == expected
            third = iter([index % 3 == 0 for index in range(stop - start)])
            drawn = [chunk.pairs(np.asarray([next(third) for _ in range(len(chunk))], np.bool_)) for chunk in chunks]
            assert [pair for pairs in drawn for pair in pairs] == expected[::3]


def test_empty_sides_pass_in_train_and_are_refused_in_test(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", [("x", " "), *PAIRS])
    write_lines(tmp_path / "corpus", "test", [*PAIRS[:4], ("here", "\u00a0"), ("x", "y")])
    corpus = load_corpus(config())
    assert corpus.splits["train"][0] == ("x", "")
    corpus.check_not_empty("train", 0, "target")
    with pytest.raises(
        DataError, match=r"the target of line 5 of .*test\.en and test\.de of test is empty; .*fix or remove"
    ):
        corpus.check_not_empty("test", 4, "target")


# Refusals


def test_nothing_at_the_path(config: Any, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"^data.path: .*/corpus does not exist \(looked for a folder, or corpus.en and corpus.de in .*; check",
    ):
        load_corpus(config())
    (tmp_path / "corpus").mkdir()
    with pytest.raises(
        DataError, match=r"no usable files in .*; looked for train.en\[.gz\] and train.de\[.gz\], and for \*.parquet"
    ):
        load_corpus(config())
    with pytest.raises(DataError, match="no usable files"):
        fingerprint(config())
    (tmp_path / "corpus.en").write_text("x\n")
    with pytest.raises(DataError, match=r"corpus.en is a file; give its folder, or .* the path without .en"):
        load_corpus(config(path=str(tmp_path / "corpus.en")))


def test_no_utf8(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", [*PAIRS, ("x", "schoen")])
    file = tmp_path / "corpus" / "train.de"
    file.write_bytes(file.read_bytes().replace(b"Zeile 41", b"gr\xfcn 41"))
    with pytest.raises(DataError, match=r"line 42 of .*train.de is not UTF-8 \(byte 0xfc at 14\); convert the file"):
        list(load_corpus(config()).splits["train"])


def test_empty_and_too_small_splits(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", PAIRS[:2])
    with pytest.raises(DataError, match="2 train pairs are too few to hold out .*add pairs or files"):
        load_corpus(config())
    (tmp_path / "corpus" / "test.en").touch()
    (tmp_path / "corpus" / "test.de").touch()
    with pytest.raises(DataError, match="split test of .*corpus is empty; it needs at least one pair"):
        load_corpus(config())


# Folders in the layout of the WMT sets on the hub


@pytest.mark.parametrize("flat", [False, True])
def test_a_folder_of_parquet(config: Any, tmp_path: Path, flat: bool) -> None:
    write_parquet(tmp_path / "corpus" / "data" / "train-00000-of-00001.parquet", PAIRS, flat=flat)
    write_parquet(tmp_path / "corpus" / "data" / "validation-00000-of-00001.parquet", PAIRS[:5], flat=flat)
    corpus = load_corpus(config(hub="wmt/wmt14", hub_config="de-en"))
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[:5], "test": PAIRS[95:]}
    assert corpus.splits["train"][3] == PAIRS[3] and list(corpus.splits["train"].read(90, 95)) == PAIRS[90:95]
    turned = load_corpus(config(source_language="de", target_language="en"))
    assert turned.splits["train"][3] == PAIRS[3][::-1]


READ_ALL = """
import sys
from rpr.config.train import DataConfig
from rpr.data.corpus import load_corpus
from rpr.data.workers import peak_bytes
train = load_corpus(DataConfig.model_validate_json(sys.argv[1])).splits["train"]
before = peak_bytes()
print(sum(len(chunk) for chunk in train.chunks(0, len(train), 100)), peak_bytes() - before)
"""


def test_reading_a_large_table_takes_no_more_memory_than_its_blocks(config: Any, tmp_path: Path) -> None:
    words = os.urandom(1500).hex()
    write_parquet(
        tmp_path / "corpus" / "train.parquet", [(f"{index} {words}", f"{words} {index}") for index in range(20_000)]
    )
    for split in ("validation", "test"):  # else train would be read before the memory is first asked for
        write_parquet(tmp_path / "corpus" / f"{split}.parquet", PAIRS)
    data = config(train_limit=18_000)
    assert len(load_corpus(data).splits["train"]) == 18_000  # the library's own copy, made by another process
    command = [sys.executable, "-c", READ_ALL, data.model_dump_json()]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(there[0]) == 18_000 and int(there[1]) < 40e6, "of 108 MB"


COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"en": ["a"], "de": [3]}, r"target_language: 'de' in the columns of train in .*corpus holds int64, not text"),
    ({"en": [True], "de": ["b"]}, r"source_language: 'en' in the columns of train in .*corpus holds bool, not text"),
    ({"en": [b"a"], "de": ["b"]}, r"'en' in the columns of train in .*corpus holds binary, not text"),
    (
        {"en": [None], "de": ["b"]},
        r"'en' in the columns of train in .*corpus holds only nulls, not text; store its sent",
    ),
    ({"en": ["a"], "de": [["b"]]}, r"'de' in the columns of train in .*corpus holds list<.*string>, not text"),
    ({"translation": [{"en": "a", "de": 3}]}, r"'de' in the translation column of train in .*corpus holds int64, not"),
    (
        {"translation": [{"en": None, "de": "b"}]},
        r"'en' in the translation column of train in .* holds only nulls, not",
    ),
    ({"translation": [{"en": {"x": "a"}, "de": "b"}]}, r"'en' in the translation column .* holds struct<x: string>, n"),
    ({"translation": [[{"en": "a", "de": "b"}]]}, r"no 'en' in the translation column of train in .*; none available"),
    ({"translation": [3]}, r"no 'en' in the translation column of train in .*; none available"),
]


@pytest.mark.parametrize(("columns", "said"), COLUMNS)
def test_columns_that_hold_no_text_are_refused(
    config: Any, tmp_path: Path, columns: dict[str, list[Any]], said: str
) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "corpus").mkdir()
    table = {name: values * 40 for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "corpus" / "train.parquet")
    with pytest.raises(DataError, match=said):
        load_corpus(config())


def test_columns_of_large_strings_are_text(config: Any, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    english, german = (pyarrow.array(side, pyarrow.large_string()) for side in zip(*PAIRS, strict=True))
    (tmp_path / "corpus").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"en": english, "de": german}), tmp_path / "corpus" / "train.parquet")
    assert list(load_corpus(config()).splits["train"]) == PAIRS[:90]


WORDS_OF_PANDAS = ["NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "#N/A", "-1.#IND", "<NA>"]


def write_csv(folder: Path, **splits: str) -> None:
    folder.mkdir(exist_ok=True)
    for split, text in splits.items():
        (folder / f"{split}.csv").write_text(text)


def test_every_field_of_a_csv_is_text_as_it_stands(config: Any, tmp_path: Path) -> None:
    odd = [(word, f"{word} {index}") for index, word in enumerate(WORDS_OF_PANDAS)]
    odd += [("007", "1e5"), ("True", "2024-01-01"), ("3.50", "null")]
    rows = "".join(f"{source},{target}\n" for source, target in odd)
    write_csv(tmp_path / "corpus", train=f'en,de\n{rows}"a, ""b""",\n', dev="en,de\nNA,7\n", test=f"en,de\n{rows}")
    corpus = load_corpus(config())
    assert content(corpus) == {"train": [*odd, ('a, "b"', "")], "validation": [("NA", "7")], "test": odd}


def test_a_csv_of_numbers_is_text(config: Any, tmp_path: Path) -> None:
    numbers = [(f"{index:03}", f"{index}.50") for index in range(40)]
    write_csv(tmp_path / "corpus", train="en,de\n" + "".join(f"{source},{target}\n" for source, target in numbers))
    corpus = load_corpus(config())
    assert content(corpus) == {"train": numbers[:36], "validation": numbers[36:38], "test": numbers[38:]}


def test_the_other_columns_of_a_csv_may_have_gaps(config: Any, tmp_path: Path) -> None:
    """The library reads 10,000 rows at a time: of a column without gaps in the first, and with one in the second, the
    parts are of different types unless they are text.
    """
    rows = [f"{index},a {index},b,{index / 4}\n" for index in range(10_050)]
    rows[10_010] = "x,a 10010,b,\n"
    write_csv(tmp_path / "corpus", train="id,en,de,score\n" + "".join(rows), dev="id,en,de,score\n1,c,d,\n")
    assert load_corpus(config()).splits["train"][9_500] == ("a 9500", "b")


def test_a_readme_may_say_how_a_csv_is_read(config: Any, tmp_path: Path) -> None:
    write_csv(tmp_path / "corpus", train="en;de\n" + "".join(f"NA {index};0{index}\n" for index in range(20)))
    split = "  data_files:\n  - split: train\n    path: train.csv\n"
    (tmp_path / "corpus" / "README.md").write_text(f"---\nconfigs:\n- config_name: all\n  sep: ';'\n{split}---\n")
    assert load_corpus(config()).splits["train"][3] == ("NA 3", "03")


def test_the_columns_of_a_csv_that_lacks_a_language_are_told(config: Any, tmp_path: Path) -> None:
    write_csv(tmp_path / "corpus", train="en,DE\na,b\n")
    with pytest.raises(
        DataError, match=r"no 'de' in the columns of train in .*; did you mean DE\? \(available: DE, en\)"
    ):
        load_corpus(config())


README = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*\n" for name in ("de-en", "fr-en")
)


def test_a_clone_with_several_configs(config: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path / "corpus" / "de-en" / "train-0.parquet", PAIRS)
    write_parquet(tmp_path / "corpus" / "fr-en" / "train-0.parquet", PAIRS, languages=("en", "fr"))
    (tmp_path / "corpus" / "README.md").write_text(README + "---\n")
    assert len(load_corpus(config(hub_config="de-en")).splits["train"]) == 90
    with pytest.raises(
        DataError, match=r"data.hub_config: no 'de-eng' in .*did you mean de-en\? \(available: de-en, fr-en\)"
    ):
        load_corpus(config(hub_config="de-eng"))
    with pytest.raises(
        DataError, match=r"data.target_language: no 'de' in the translation column of train in .*; available: en, fr$"
    ):
        load_corpus(config(hub_config="fr-en"))


# The hub and the generated corpus

OFFLINE = """
import sys, time
import huggingface_hub.constants as constants
from rpr.config.train import DataConfig
from rpr.data.corpus import load_corpus
from rpr.errors import DataError
start = time.monotonic()
try:
    load_corpus(DataConfig.model_validate_json(sys.argv[1]))
except DataError as error:
    print(error, constants.HF_HUB_OFFLINE, time.monotonic() - start < 20)
"""


def test_a_hub_out_of_reach_is_told_without_retries(config: Any, tmp_path: Path) -> None:
    data = config(path=None, hub="wmt/wmt14", hub_config="de-en")
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
    environment = {
        key: value for key, value in environment.items() if not key.lower().endswith("_proxy") or key == "NO_PROXY"
    }
    command = [sys.executable, "-c", OFFLINE, data.model_dump_json()]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    expected = "data.hub: wmt/wmt14 is not in the local cache and the hub is unreachable; give a local copy"
    assert out.startswith(expected) and "data.path=..." in out and out.endswith("False True")


SYNTHETIC = SyntheticConfig(seed=1, num_train=50, num_validation=5, num_test=6, num_long=7)


def test_the_generated_corpus(config: Any) -> None:
    corpus = load_corpus(config(path=None, synthetic=SYNTHETIC, train_limit=20))
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {
        "train": 20,
        "validation": 5,
        "test": 6,
        "long": 7,
    }
    assert corpus.synthetic and corpus.split_names["long"] == "long"
    assert all(source and target for pairs in corpus.splits.values() for source, target in pairs)


def test_the_fingerprint_of_the_generated_corpus_is_its_parameters(config: Any) -> None:
    first = fingerprint(config(path=None, synthetic=SYNTHETIC))
    assert first == fingerprint(config(path=None, synthetic=SYNTHETIC, vocabulary_size=50))
    assert first != fingerprint(config(path=None, synthetic=SYNTHETIC.model_copy(update={"num_long": 8})))


@pytest.mark.parametrize("file", ["synthetic.py", "synthetic_grammar.py", "synthetic_lexicon.py"])
def test_the_fingerprint_of_the_generated_corpus_follows_the_generator(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    data, folder = config(path=None, synthetic=SYNTHETIC), Path(module.__file__).parent
    first = fingerprint(data)
    for source in folder.glob("*.py"):
        shutil.copy(source, tmp_path)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "corpus.py"))
    assert fingerprint(data) == first
    with (tmp_path / file).open("a") as handle:
        handle.write("# changed\n")
    assert fingerprint(data) != first


def test_the_fingerprint_follows_the_content_not_the_time(config: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus", "train", PAIRS)
    first = fingerprint(config())
    assert not (tmp_path / "cache" / "digests.json").exists(), "so young a file may change within the clock's grain"
    file = tmp_path / "corpus" / "train.de"
    old = time.time() - 100
    os.utime(file, (old, old))
    assert fingerprint(config()) == first
    assert (tmp_path / "cache" / "digests.json").is_file(), "the digest of a file that has rested is remembered"
    assert fingerprint(config()) == first
    file.write_text(file.read_text().replace("Zeile 41", "Reihe 41"))
    second = fingerprint(config())
    assert second != first
    write_lines(tmp_path / "corpus", "dev", PAIRS[:3])
    assert fingerprint(config()) not in (first, second)


@pytest.mark.parametrize(("name", "more"), [("train.csv", ["CSV as text"]), ("train.jsonl", [])])
def test_the_fingerprint_says_how_csv_is_read(config: Any, tmp_path: Path, name: str, more: list[str]) -> None:
    """So that no cache is taken whose CSV was read in another way; of other files it is what it was."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / name).write_text("en,de\n")
    parts = [f"{name} {hashlib.sha256(b'en,de' + bytes([10])).hexdigest()}", "None", *more]
    assert fingerprint(config()) == hashlib.sha256("\n".join(parts).encode()).hexdigest()


def test_the_fingerprint_of_a_folder_of_parquet(config: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path / "corpus" / "train.parquet", PAIRS)
    first = fingerprint(config())
    write_parquet(tmp_path / "corpus" / "train.parquet", [*PAIRS[:-1], ("other", "anders")])
    assert fingerprint(config()) != first


@pytest.mark.parametrize(
    ("name", "target", "sizes"),
    [("multi30k_en_de", "de", (29000, 1014, 1000)), ("wmt_mini_en_fr", "fr", (155820, 3000, 3003))],
)
def test_real_sets(config: Any, name: str, target: str, sizes: tuple[int, int, int]) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"no {SHARED / name} here")
    corpus = load_corpus(config(path=str(SHARED / name), target_language=target))
    assert tuple(len(corpus.splits[split]) for split in ("train", "validation", "test")) == sizes
    for source, reference in corpus.splits["test"]:
        assert source and reference
    if name.startswith("multi30k"):
        assert corpus.splits["train"][6] == (
            "A man is smiling at a stuffed lion",
            "Ein Mann lächelt einen ausgestopften Löwen an.",
        )
