"""Corpora of files against the pairs written there: held-out splits, repeats, limits. Files: test_files.py."""

import pyarrow
import pyarrow.parquet
import pytest

from rpr.data import pairs as module
from rpr.data.pairs import Corpus, load_corpus
from tests.data.helpers import data_config, write_lines

PAIRS = [(f"a small line {index}", f"eine kleine Zeile {index}") for index in range(100)]


@pytest.fixture
def config(tmp_path):
    return lambda **changes: data_config(tmp_path, **changes)


@pytest.fixture
def folder(tmp_path):
    """The data.path of `config`."""
    (tmp_path / "pairs").mkdir()
    return tmp_path / "pairs"


def content(corpus: Corpus) -> dict[str, list[tuple[str, str]]]:
    return {split: list(pairs) for split, pairs in corpus.splits.items()}


def test_at_most_1000_pairs_are_held_out(config, tmp_path):
    write_lines(tmp_path / "pairs", [(f"{source} {n}", target) for n in range(210) for source, target in PAIRS])
    splits = load_corpus(config()).splits
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 19_000, "validation": 1000, "test": 1000}


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


def test_parquet_in_the_layout_of_the_hub(config, folder):
    for split, pairs in {"train": PAIRS, "validation": PAIRS[:5]}.items():
        rows = [{"translation": {"de": target, "en": source}} for source, target in pairs]
        (folder / "data").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), folder / "data" / f"{split}-00000-of-00001.parquet"
        )
    corpus = load_corpus(config(hub="wmt/wmt14", hub_config="de-en"))
    assert content(corpus) == {"train": PAIRS[:95], "validation": PAIRS[:5], "test": PAIRS[95:]}
    assert corpus.split_names == {"validation": "newstest2013", "test": "held-out-test"}
    turned = load_corpus(config(source_language="de", target_language="en"))
    assert list(turned.splits["test"]) == [pair[::-1] for pair in PAIRS[95:]]
