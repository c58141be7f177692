"""A cache is byte-identical for any number of processes and interruptions; what a failed build leaves for the next."""

import logging
from pathlib import Path

import numpy as np
import pytest

from rpr.config.data import DataConfig
from rpr.data import build as module
from rpr.data import corpus
from rpr.data.cache import prepare
from rpr.data.vocabulary import Vocabulary
from rpr.errors import DataError
from tests.data.helpers import data_config, files_of, kill, resume, write_lines

TEXT = "the small red house stands behind a very old tree and nobody sees it from here today"
WORDS = TEXT.split(" ")
PAIRS = [
    (" ".join(WORDS[index % 7 : index % 13 + 4]) + f" {index}", " ".join(reversed(WORDS[index % 5 : 9])) + f" {index}")
    for index in range(1000)
]
PAIRS[100:103] = [("", "leer"), ("x " * 150, "kurz"), ("  ", "\t")]
NUM_TRAIN = 900


def config(folder: Path, pairs: list[tuple[str, str]]) -> DataConfig:
    """900 train pairs, and 50 held out for each other split."""
    write_lines(folder / "pairs", pairs)
    return data_config(folder, vocabulary_size=120)


@pytest.fixture
def data(tmp_path):
    return config(tmp_path, PAIRS)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("rpr.data.pairs.PAIRS_AT_ONCE", 70)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files of an uninterrupted build by one process in one chunk."""
    files = files_of(prepare(config(tmp_path_factory.mktemp("plain"), PAIRS), processes=1))
    assert len(files) == 2 + 4 + 6 + 6
    return files


def partial(data: DataConfig) -> Path:
    (folder,) = Path(data.cache_dir).glob(".small-*.partial")
    return folder


@pytest.mark.parametrize("processes", [1, 2])
def test_files_do_not_depend_on_processes_and_chunks(data, expected, processes):
    prepared = prepare(data, processes=processes)
    assert prepared.meta.counts == {"train": NUM_TRAIN - 3, "validation": 50, "test": 50}
    assert prepared.meta.dropped == {"train": {"empty": 2, "too_long": 1}}
    assert prepared.built_by.processes == processes
    assert (prepared.built_by.peak_bytes > 0) == (processes > 1)
    assert files_of(prepared) == expected


def test_large_corpora_start_worker_processes(data, monkeypatch):
    """A small one starts none: tests/data/test_prepare_command.py."""
    monkeypatch.setattr(module, "num_workers", lambda: 2)
    monkeypatch.setattr(module, "WORKERS_FROM", NUM_TRAIN)
    assert prepare(data).built_by.processes == 2


@pytest.mark.parametrize(("what", "done", "processes"), [
    ("reading for the vocabulary", 350, 1),
    ("encoding train", 560, 2),
    ("encoding validation", 50, 1),
    ("encoding test", 0, 1),
])  # fmt: skip
def test_killed_build_resumes_after_its_last_finished_split(data, expected, what, done, processes):
    kill(data, what, done, processes)
    files, first = resume(data)
    assert files == expected and first[2] == what


def test_corpus_error_while_resuming_keeps_the_partial_build(data, expected, monkeypatch):
    """Such as a hub that cannot be reached."""
    kill(data, "encoding validation", 0)

    def unreachable(*files):
        raise DataError("data.hub: unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "line_pairs", unreachable)
        with pytest.raises(DataError, match="unreachable"):
            prepare(data)
    files, first = resume(data)
    assert files == expected and first[2] == "encoding validation"


def test_damaged_partial_build_is_discarded_with_a_warning(data, expected, caplog):
    kill(data, "encoding validation", 0)
    (partial(data) / "train.target.pieces").write_bytes(b"1234")
    (partial(data) / ".vocabulary.model.17.tmp").touch()
    with caplog.at_level(logging.WARNING):
        files, first = resume(data)
    assert files == expected and first[2] == "reading for the vocabulary"
    assert "the unfinished build in" in caplog.text


def test_build_killed_before_the_rename_is_only_renamed(data):
    first = prepare(data)
    files = files_of(first)
    first.directory.rename(first.directory.with_name(f".{first.directory.name}.partial"))
    assert files_of(prepare(data, lambda *progress: pytest.fail("built again"))) == files


def test_partial_build_of_other_settings_is_kept(data):
    kill(data, "encoding train", 420)
    folder, files = partial(data), sorted(file.name for file in partial(data).iterdir())
    prepare(data.model_copy(update={"vocabulary_size": 121}))
    assert sorted(file.name for file in folder.iterdir()) == files


def test_token_ids_of_a_large_vocabulary_are_stored_as_uint32(data, expected, monkeypatch):
    monkeypatch.setattr(Vocabulary, "piece_type", "uint32")
    prepared = prepare(data, processes=1)
    wide, narrow = files_of(prepared)["train.source.pieces"], expected["train.source.pieces"]
    assert np.array_equal(np.frombuffer(wide, np.uint32), np.frombuffer(narrow, np.uint16))
    assert prepared.split("train").row("source", 0).dtype == np.uint32
