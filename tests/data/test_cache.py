"""The token cache: its contents and key, byte-identical for any number of processes, when it is reused or rebuilt, and
that a failed build leaves nothing.
"""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpr.config.train import DataConfig
from rpr.data import cache
from rpr.data.cache import cache_key, prepare
from rpr.data.generated import SyntheticConfig
from rpr.data.vocabulary import EOS
from rpr.errors import DataError
from tests.data.helpers import data_config, files_of, write_lines
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
    pairs = SYNTHETIC.pairs()
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
    assert (again.meta, again.directory, again.built_now) == (copy[1].meta, copy[1].directory, False)


def test_a_cache_is_built_under_its_lock(tmp_path, monkeypatch):
    locked = []
    monkeypatch.setattr(cache, "exclusive", lambda *given, name: locked.append((*given, name)) or nullcontext())
    name = prepare(config(tmp_path)).directory.name
    assert locked == [(tmp_path / "cache", name, f".{name}.lock")]


def test_long_and_empty_pairs_are_dropped_and_counted_also_where_they_are_held_out(tmp_path):
    long = ("word " * 60, "Wort " * 60)
    pairs = [("x", ""), (f"a {long[0]}", long[1]), *PAIRS, ("", "y"), *PAIRS[:8], ("only", ""), long]
    prepared = prepare(line_config(tmp_path, pairs, max_length=50))
    # 113 pairs: test takes the last 5 (one of them empty, one long), validation the 5 before; 8 are also in train.
    assert prepared.meta.counts == {"train": 92, "validation": 5, "test": 3}
    of_train = {"empty": 2, "too_long": 1, "held_out": 8}
    assert prepared.meta.dropped == {"train": of_train, "test": {"empty": 1, "too_long": 1}}
    assert len(prepared.text("test")[0]) == 3 and prepared.text("test")[1][-1] == PAIRS[7][1]
    assert prepared.meta.notes[0] == "test: pairs 109 to 113 of train, held out of it"
    assert prepared.meta.notes[2] == "train: 8 pairs left out, each equal to a held-out one"


def test_pairs_of_given_splits_that_are_in_train_too_are_counted(tmp_path):
    swapped = [(PAIRS[1][0], PAIRS[2][1])]  # each side is in train
    for split, pairs in {"train": PAIRS[:80], "validation": PAIRS[80:], "test": [*PAIRS[70:90], *swapped]}.items():
        write_lines(tmp_path / "pairs" / split, pairs)
    prepared = prepare(data_config(tmp_path, vocabulary_size=60))
    assert prepared.meta.notes == ["test: 10 of 21 are in train too, token for token"]


def test_what_is_beside_the_files_is_noted_also_if_the_cache_is_ready(tmp_path):
    """Of two folders of the same text, which have one cache."""
    for folder in ("a", "b"):
        for split, pairs in {"train": PAIRS[:80], "validation": PAIRS[80:90], "test": PAIRS[90:]}.items():
            write_lines(tmp_path / folder / split, pairs)
    first, second = (data_config(tmp_path, path=str(tmp_path / folder), vocabulary_size=60) for folder in ("a", "b"))
    assert prepare(first).meta.notes == []
    write_lines(tmp_path / "a" / "train2", PAIRS)
    assert prepare(first).meta.notes == ["not read: train2.de, train2.en"] and prepare(second).meta.notes == []
    assert prepare(first).directory == prepare(second).directory


@pytest.mark.parametrize(("size", "noted"), [(999, False), (1000, True)])
def test_a_vocabulary_of_which_most_pieces_are_rare_is_noted(tmp_path, size, noted):
    """From 1,000 pieces on; the sample of docs/ has 7 tokens for each."""
    sample = Path(__file__).parents[2] / "docs" / "examples" / "pairs"
    notes = prepare(data_config(tmp_path, path=str(sample), vocabulary_size=size)).meta.notes
    assert any(note.startswith("vocabulary: 1,000 pieces are many for ") for note in notes) == noted


@pytest.mark.parametrize(("cut", "noted"), [
    (lambda text: " ".join(f"\u2581{word}" for word in text.split()), True),
    (lambda text: text.replace("e", "e@@ "), True),
    (lambda text: text + " \u2581" * text.endswith("17 mit Worten"), False),
])  # fmt: skip
def test_text_that_is_cut_into_pieces_is_noted_and_a_perfect_model_of_it_is_right(tmp_path, cut, noted):
    pairs = [(source, cut(target)) for source, target in PAIRS]
    prepared = prepare(line_config(tmp_path, pairs, vocabulary_size=70))
    notes = [note for note in prepared.meta.notes if "already cut into pieces (U+2581 or @@)" in note]
    assert [note.partition(":")[0] for note in notes] == (["train", "test", "validation"] if noted else [])
    references = prepared.text("test")[1]
    assert [prepared.vocabulary.decode(prepared.vocabulary.encode(text)) for text in references] == references


def test_empty_side_in_a_scored_split_is_an_error_naming_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.data.corpora.PAIRS_AT_ONCE", 3)
    write_lines(tmp_path / "corpus" / "train", PAIRS)
    targets = "abcdefg\u00a0i"
    write_lines(tmp_path / "corpus" / "test", [(f"line {index}", target) for index, target in enumerate(targets)])
    with pytest.raises(DataError, match=r"the target of line 8 of .*test\.en and .*test\.de of test is empty; .*fix"):
        prepare(data_config(tmp_path, path=str(tmp_path / "corpus")))
    assert not [file for file in (tmp_path / "cache").iterdir() if file.is_dir()]


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
    "truncated meta": ("meta.json", lambda path: path.write_bytes(path.read_bytes()[:-7])),
    "truncated pieces": ("train.source.pieces", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "another vocabulary": ("vocabulary.model", lambda path: bad_files.replace_vocabulary(path.parent)),
}  # fmt: skip


@pytest.mark.parametrize("file, damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_cache_is_rebuilt_with_a_warning(copy, monkeypatch, file, damage):
    data, first = copy
    path = first.directory / file
    whole = path.read_bytes()
    damage(path)
    said = []
    monkeypatch.setattr(cache.log, "warning", lambda text, *_: said.append(text))
    again = prepare(data)
    assert said == ["token cache %s is damaged (%s); rebuilding it"]
    assert again.meta == first.meta and path.read_bytes() == whole


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files of a build by one process in one chunk."""
    return files_of(prepare(line_config(tmp_path_factory.mktemp("plain"), PAIRS)))


def test_files_do_not_depend_on_chunks(tmp_path, expected, monkeypatch):
    monkeypatch.setattr("rpr.data.corpora.PAIRS_AT_ONCE", 7)
    prepared = prepare(line_config(tmp_path, PAIRS))
    assert prepared.built_now and files_of(prepared) == expected and len(expected) == 2 + 4 + 6 + 6


def test_what_a_killed_build_left_is_removed(tmp_path, expected):
    data = line_config(tmp_path, PAIRS)
    folder = prepare(data).directory
    folder.rename(folder.with_name(f".{folder.name}.1.tmp"))
    assert files_of(prepare(data)) == expected
    assert {file.suffix for file in (tmp_path / "cache").iterdir() if file.name[0] == "."} == {".lock"}


@pytest.mark.parametrize("sides", [("de",), ("en", "de")])
@pytest.mark.parametrize("what", ["reading for the vocabulary", "encoding train"])
def test_corpus_that_becomes_shorter_while_it_is_read_leaves_no_cache(tmp_path, expected, what, sides):
    data = line_config(tmp_path, PAIRS)
    whole = {side: (tmp_path / f"pairs.{side}").read_bytes() for side in sides}

    def shorten(done, total, now):
        for side in sides if now == what else ():
            (tmp_path / f"pairs.{side}").write_bytes(b"".join(whole[side].splitlines(True)[:41]))

    with pytest.raises(DataError, match="pairs changed while it was read; run the same command again"):
        prepare(data, shorten)
    assert not [file for file in (tmp_path / "cache").iterdir() if file.is_dir()]
    for side, content in whole.items():
        (tmp_path / f"pairs.{side}").write_bytes(content)
    assert files_of(prepare(data)) == expected
