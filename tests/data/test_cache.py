"""The token cache: its contents and key, when it is reused or rebuilt, and what a failed build leaves."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpr.config.data import DataConfig, SyntheticConfig
from rpr.data import cache, synthetic
from rpr.data.cache import cache_key, prepare
from rpr.data.vocabulary import EOS
from rpr.errors import DataError
from tests.data.helpers import data_config, write_lines
from tests.system import bad_files

SYNTHETIC = SyntheticConfig(seed=1, num_train=400, num_validation=20, num_test=30, num_long=10)


def config(folder: Path) -> DataConfig:
    return data_config(folder, path=None, synthetic=SYNTHETIC, vocabulary_size=200)


def line_config(folder: Path, pairs: list[tuple[str, str]], **changes: Any) -> DataConfig:
    """Write the pairs as line files; returns their settings."""
    write_lines(folder / "pairs", pairs)
    return data_config(folder, **({"vocabulary_size": 60} | changes))


PAIRS = [(f"small line {index} of words", f"kleine Zeile {index} mit Worten") for index in range(100)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The cache of the generated corpus in a folder, and the progress calls of its build."""
    folder, calls = tmp_path_factory.mktemp("made"), []
    return folder, prepare(config(folder), lambda *progress: calls.append(progress)), calls


@pytest.fixture
def copy(made, tmp_path):
    """Settings and cache of a copy that may be damaged."""
    shutil.copytree(made[0] / "cache", tmp_path / "cache")
    return config(tmp_path), prepare(config(tmp_path))


def test_pieces_and_text_equal_the_corpus(made):
    folder, prepared, calls = made
    pairs = synthetic.generate(**SYNTHETIC.model_dump())
    assert prepared.splits == ("train", "validation", "test", "long") and len(prepared.vocabulary) == 200
    for name in prepared.splits:
        split = prepared.split(name)
        assert len(split) == len(pairs[name]) == prepared.meta.counts[name]
        for index, pair in enumerate(pairs[name]):
            source, target = split.row("source", index), split.row("target", index)
            assert source[-1] == target[-1] == EOS
            assert prepared.vocabulary.decode(source) == pair.source
            assert prepared.vocabulary.decode(target) == pair.target
            assert (split.source_lengths[index], split.target_lengths[index]) == (len(source), len(target))
        assert split.source_lengths.dtype == split.target_lengths.dtype == np.int32
        if name != "train":
            assert prepared.text(name) == ([pair.source for pair in pairs[name]], [pair.target for pair in pairs[name]])
    assert prepared.meta.synthetic and prepared.meta.dropped == {} and prepared.meta.notes == []
    assert (400, 400, "encoding train") in calls and all(0 <= done <= total for done, total, _ in calls)
    assert [file for file in (folder / "cache").iterdir() if file.suffix != ".lock"] == [prepared.directory]


def test_complete_cache_opens_without_reading_the_corpus(copy, monkeypatch):
    monkeypatch.setattr(cache, "load_corpus", lambda data: pytest.fail("the corpus was read again"))
    again = prepare(copy[0])
    assert (again.meta, again.directory) == (copy[1].meta, copy[1].directory)


def test_long_and_empty_pairs_are_dropped_and_counted(tmp_path):
    long = ("word " * 60, "Wort " * 60)
    pairs = [("x", ""), (f"a {long[0]}", long[1]), *PAIRS, ("", "y"), *PAIRS[:8], ("only", ""), long]
    prepared = prepare(line_config(tmp_path, pairs, max_length=50))
    # 113 pairs: test takes the last 5 (one of them empty), validation the 5 before; 8 of these are also in train.
    assert prepared.meta.counts == {"train": 92, "validation": 5, "test": 4}
    assert prepared.meta.dropped == {
        "train": {"empty": 2, "too_long": 1, "held_out": 8},
        "test": {"empty": 1, "too_long": 0},
    }
    assert prepared.split("train").source_lengths.max() <= 50 < prepared.split("test").source_lengths.max()
    assert len(prepared.text("test")[0]) == 4 and prepared.text("test")[1][-1] == "Wort " * 59 + "Wort"
    assert prepared.meta.notes[0] == "test: pairs 109 to 113 of train, held out of it"
    assert prepared.meta.notes[2] == "train: 8 pairs left out, each equal to a held-out one"
    assert prepared.meta.split_names == {"validation": "held-out-validation", "test": "held-out-test"}


def test_pairs_of_given_splits_that_are_in_train_too_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.data.token_split.HASHED_AT_ONCE", 7)
    swapped = [(PAIRS[1][0], PAIRS[2][1])]  # each side is in train
    for split, pairs in {"train": PAIRS[:80], "validation": PAIRS[80:], "test": [*PAIRS[70:90], *swapped]}.items():
        write_lines(tmp_path / "pairs" / split, pairs)
    prepared = prepare(data_config(tmp_path, vocabulary_size=60))
    assert prepared.meta.notes == ["test: 10 of 21 are in train too, token for token"]


def test_empty_side_in_a_scored_split_is_an_error_naming_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.data.pairs.PAIRS_AT_ONCE", 3)
    write_lines(tmp_path / "corpus" / "train", PAIRS)
    targets = "abcdefg\u00a0i"
    write_lines(tmp_path / "corpus" / "test", [(f"line {index}", target) for index, target in enumerate(targets)])
    with pytest.raises(DataError, match=r"the target of line 8 of .*test\.en and test\.de of test is empty; .*fix"):
        prepare(data_config(tmp_path, path=str(tmp_path / "corpus")))
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_key_depends_on_content_and_settings(tmp_path):
    data = line_config(tmp_path, PAIRS)
    keys = {cache_key(data)}
    for changes in (
        {"vocabulary_size": 61}, {"max_length": 99}, {"train_limit": 50}, {"tokenizer": "word"},
        {"source_language": "de", "target_language": "en"},
    ):  # fmt: skip
        keys.add(cache_key(data.model_copy(update=changes)))
    first = prepare(data)
    changed = line_config(tmp_path, [*PAIRS[:-1], ("one line", "changed")])
    assert len(keys | {cache_key(changed)}) == 7
    second = prepare(changed)
    assert first.directory != second.directory and second.text("test")[1][-1] == "changed"


DAMAGES = {
    "missing text": ("test.target.txt", Path.unlink),
    "missing meta": ("meta.json", Path.unlink),
    "truncated meta": ("meta.json", lambda path: path.write_bytes(path.read_bytes()[:-7])),
    "missing counts": (
        "meta.json", lambda path: path.write_bytes(path.read_bytes().replace(b'"counts"', b'"numbers"'))
    ),
    "truncated pieces": ("train.source.pieces", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "a folder for text": ("test.source.txt", lambda path: bad_files.replace_by_folder(path.name)(path.parent)),
    "zeros for the vocabulary": ("vocabulary.model", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "another vocabulary": ("vocabulary.model", lambda path: bad_files.replace_vocabulary(path.parent)),
}  # fmt: skip


@pytest.mark.parametrize("file, damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_cache_is_rebuilt_with_a_warning(copy, caplog, file, damage):
    data, first = copy
    path = first.directory / file
    whole = path.read_bytes()
    damage(path)
    with caplog.at_level(logging.WARNING):
        again = prepare(data)
    assert "is damaged" in caplog.text and "rebuilding it" in caplog.text
    assert again.meta == first.meta and path.read_bytes() == whole


def test_corpus_that_changes_while_it_is_read_leaves_no_cache(tmp_path):
    def change(done, total, what):
        if what == "encoding test":
            (tmp_path / "pairs.en").write_text("other\n" * len(PAIRS))

    with pytest.raises(DataError, match="pairs changed while it was read; run the same command again"):
        prepare(line_config(tmp_path, PAIRS), change)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
