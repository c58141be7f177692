"""Checked here: the cache gives back the pairs it was made from, and is found, rebuilt, waited for or left absent
when it should be.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpr.config.train import DataConfig, SyntheticConfig
from rpr.data import build, cache, corpus, synthetic
from rpr.data.cache import cache_key, prepare
from rpr.data.vocabulary import EOS
from rpr.errors import DataError
from tests.data.helpers import data_config, write_lines

SHARED = Path(__file__).parents[3] / "shared" / "data"
SYNTHETIC = SyntheticConfig(seed=1, num_train=400, num_validation=20, num_test=30, num_long=10)


def config(folder: Path) -> DataConfig:
    return data_config(folder, path=None, synthetic=SYNTHETIC, vocabulary_size=200)


def line_config(folder: Path, pairs: list[tuple[str, str]], **changes: Any) -> DataConfig:
    """The pairs as line files in the folder, and their configuration."""
    write_lines(folder / "pairs", pairs)
    return data_config(folder, **({"vocabulary_size": 60} | changes))


PAIRS = [(f"small line {index} of words", f"kleine Zeile {index} mit Worten") for index in range(100)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the cache of the generated corpus, that cache, and what its build told of its progress."""
    folder, told = tmp_path_factory.mktemp("made"), []
    return folder, prepare(config(folder), lambda *now: told.append(now)), told


@pytest.fixture
def copy(made, tmp_path):
    """A copy of that cache to damage, and the settings that find it."""
    shutil.copytree(made[0] / "cache", tmp_path / "cache")
    return config(tmp_path), prepare(config(tmp_path))


def test_pieces_and_text_are_those_of_the_corpus(made):
    folder, prepared, told = made
    pairs = synthetic.generate(**SYNTHETIC.model_dump())
    assert prepared.splits == ("train", "validation", "test", "long") and len(prepared.vocabulary) == 200
    for name in prepared.splits:
        split = prepared.split(name)
        assert len(split) == len(pairs[name]) == prepared.meta.counts[name]
        for index, pair in enumerate(pairs[name]):
            source, target = split.source(index), split.target(index)
            assert source[-1] == target[-1] == EOS
            assert prepared.vocabulary.decode(source) == pair.source
            assert prepared.vocabulary.decode(target) == pair.target
            assert (split.source_lengths[index], split.target_lengths[index]) == (len(source), len(target))
        assert split.source_lengths.dtype == split.target_lengths.dtype == np.int32
        if name != "train":
            assert prepared.text(name) == ([pair.source for pair in pairs[name]], [pair.target for pair in pairs[name]])
    assert prepared.meta.synthetic and prepared.meta.dropped == {} and prepared.meta.notes == []
    assert (400, 400, "encoding train") in told and all(0 <= done <= total for done, total, _ in told)
    (left,) = (file.name for file in (folder / "cache").iterdir() if not file.name.endswith(".lock"))
    assert left == prepared.directory.name


def test_a_ready_cache_opens_fast_and_without_the_corpus(copy, monkeypatch):
    monkeypatch.setattr(cache, "load_corpus", lambda data: pytest.fail("the corpus was read again"))
    start = time.monotonic()
    again = prepare(copy[0])
    assert time.monotonic() - start < 1
    assert (again.meta, again.directory) == (copy[1].meta, copy[1].directory)


def test_long_and_empty_train_pairs_are_dropped_and_counted_others_never(tmp_path):
    long = ("word " * 60, "Wort " * 60)
    pairs = [("x", ""), (f"a {long[0]}", long[1]), *PAIRS, ("", "y"), *PAIRS[:8], ("only", ""), long]
    prepared = prepare(line_config(tmp_path, pairs, max_length=50))
    # 113 pairs: test takes the last 5 (one of them empty), validation the 5 before; 8 of their pairs are in train too.
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


def test_repetitions_of_held_out_pairs_are_counted_where_nothing_else_is_dropped(tmp_path):
    repeating = prepare(line_config(tmp_path, [*PAIRS, PAIRS[3]])).meta
    assert (repeating.counts["train"], repeating.dropped) == (90, {"train": {"empty": 0, "too_long": 0, "held_out": 1}})
    plain = prepare(line_config(tmp_path, [*PAIRS, ("another", "anderes")])).meta
    assert (plain.counts["train"], plain.dropped, len(plain.notes)) == (91, {}, 2)


def test_an_empty_side_of_a_pair_that_is_scored_is_refused_by_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "PAIRS_PER_CHUNK", 3)
    write_lines(tmp_path / "corpus" / "train", PAIRS)
    write_lines(
        tmp_path / "corpus" / "test", [(f"line {index}", target) for index, target in enumerate("abcdefg\u00a0i")]
    )
    with pytest.raises(DataError, match=r"the target of line 8 of .*test\.en and test\.de of test is empty; .*fix"):
        prepare(data_config(tmp_path, path=str(tmp_path / "corpus")))
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"max_length": 3},
            r"no usable pair in train \(0 with an empty side, 90 above data.max_length = 3 pieces\); .* or raise",
        ),
        ({"vocabulary_size": 1000}, "data.vocabulary_size: 1000 is more than this corpus supports"),
    ],
)
def test_a_failed_build_leaves_nothing(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        prepare(line_config(tmp_path, PAIRS, **changes))
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_the_key_follows_content_and_settings(tmp_path):
    data = line_config(tmp_path, PAIRS)
    keys = {cache_key(data)}
    for changes in (
        {"vocabulary_size": 61}, {"max_length": 99}, {"train_limit": 50},
        {"source_language": "de", "target_language": "en"},
    ):  # fmt: skip
        keys.add(cache_key(data.model_copy(update=changes)))
    first = prepare(data)
    changed = line_config(tmp_path, [*PAIRS[:-1], ("one line", "changed")])
    assert len(keys | {cache_key(changed)}) == 6
    second = prepare(changed)
    assert first.directory != second.directory and second.text("test")[1][-1] == "changed"


@pytest.mark.parametrize(
    "file, damage",
    [
        ("train.source.pieces", "truncate"),
        ("test.target.txt", "remove"),
        ("meta.json", "truncate"),
        ("meta.json", "remove"),
        ("vocabulary.model", "overwrite"),
    ],
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(copy, caplog, file, damage):
    data, first = copy
    path = first.directory / file
    whole = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(whole[:-7] if damage == "truncate" else b"\0" * len(whole))
    with caplog.at_level(logging.WARNING):
        again = prepare(data)
    assert "is damaged" in caplog.text and "rebuilding it" in caplog.text
    assert again.meta == first.meta and path.stat().st_size == len(whole)
    assert again.split("train").source(3).tolist() == first.split("train").source(3).tolist()


def built_something(data: DataConfig) -> bool:
    built = []
    prepare(data, lambda done, total, what: built.append(what))
    return bool(built)


def test_of_two_processes_one_builds_and_one_waits(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert sorted(pool.map(built_something, [config(tmp_path)] * 2, chunksize=1)) == [False, True]


def test_a_cache_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"^data.cache_dir: .*/file/cache cannot be used \(Not a directory\); .*choose another folder"
    ):
        prepare(config(tmp_path / "file"))


def test_splits_and_text_that_are_not_there(made):
    with pytest.raises(DataError, match=r"no split 'dev' \(available: train, validation, test, long\)"):
        made[1].split("dev")
    with pytest.raises(
        DataError, match="the text of train is not kept in the token cache; choose one of validation, test, long"
    ):
        made[1].text("train")


def test_prepared_data_and_its_splits_are_small_to_send(made):
    split = made[1].split("train")
    assert split.source_lengths.sum() > 1000
    packed = pickle.dumps(split)
    assert len(packed) < 500 and pickle.loads(packed).source(5).tolist() == split.source(5).tolist()
    assert pickle.loads(pickle.dumps(made[1])).text("test") == made[1].text("test")


@pytest.mark.slow
def test_multi30k(tmp_path):
    if not (SHARED / "multi30k_en_de").is_dir():
        pytest.skip(f"no {SHARED / 'multi30k_en_de'} here")
    data = data_config(tmp_path, path=str(SHARED / "multi30k_en_de"), vocabulary_size=8000, max_length=256)
    prepared = prepare(data)
    assert prepared.meta.counts == {"train": 29000, "validation": 1014, "test": 1000}
    sources, references = prepared.text("test")
    test = prepared.split("test")
    loaded = corpus.load_corpus(data)
    assert list(zip(sources, references, strict=True)) == list(loaded.splits["test"])
    assert [prepared.vocabulary.decode(test.target(index)) for index in range(1000)] == references
    pieces = (prepared.directory / "train.source.pieces").stat().st_size // 2
    assert pieces == prepared.split("train").source_lengths.sum()
