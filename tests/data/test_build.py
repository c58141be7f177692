"""Checked here: the files of a cache are the same bytes however many processes make them, and whether or not the build
was killed on the way; what is kept for the next build, and what is not.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from rpr.config.train import DataConfig
from rpr.data import build as module
from rpr.data.build import STATE_NAME
from rpr.data.cache import PreparedData, prepare
from rpr.data.encode import Encoder
from rpr.errors import DataError
from tests.data.helpers import data_config, fork, write_lines

TEXT = "the small red house stands behind a very old tree and nobody sees it from here today"
WORDS = TEXT.split(" ")
PAIRS = [
    (" ".join(WORDS[index % 7 : index % 13 + 4]) + f" {index}", " ".join(reversed(WORDS[index % 5 : 9])) + f" {index}")
    for index in range(1000)
]
PAIRS[100:103] = [("", "leer"), ("x " * 150, "kurz"), ("  ", "\t")]
NUM_TRAIN = 900
# 93 of the pairs to train on equal to one of those held out: some here and there, and some in a row.
REPEATED = {index: PAIRS[NUM_TRAIN + index % 100] for index in [*range(50, 400, 29), *range(500, 580)]}
REPEATING = [REPEATED.get(index, pair) for index, pair in enumerate(PAIRS)]


def config(folder: Path, pairs: list[tuple[str, str]]) -> DataConfig:
    """900 pairs to train on, 50 held out for either other split."""
    write_lines(folder / "pairs", pairs)
    return data_config(folder, vocabulary_size=120)


@pytest.fixture
def data(tmp_path):
    return config(tmp_path, PAIRS)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(module, "PAIRS_PER_CHUNK", 70)


def content(prepared: PreparedData) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.directory.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files, built in one go by one process in one chunk."""
    files = content(prepare(config(tmp_path_factory.mktemp("plain"), PAIRS), processes=1))
    assert len(files) == 2 + 4 + 6 + 6
    return files


def partial(data: DataConfig) -> Path:
    (folder,) = Path(data.cache_dir).glob(".tried-*.partial")
    return folder


def resumed(data: DataConfig, processes: int | None = None) -> tuple[dict[str, bytes], list[tuple[int, int, str]]]:
    """The files of a build, and every report of its progress."""
    told = []
    files = content(prepare(data, lambda *now: told.append(now), processes))
    assert list(Path(data.cache_dir).glob(".*.partial")) == []
    return files, told


@pytest.mark.parametrize("processes", [1, 2])
def test_the_same_bytes_whatever_the_processes_and_blocks(data, expected, processes):
    prepared = prepare(data, processes=processes)
    assert prepared.meta.counts == {"train": NUM_TRAIN - 3, "validation": 50, "test": 50}
    assert prepared.meta.dropped == {"train": {"empty": 2, "too_long": 1}}
    assert prepared.build_result is not None and prepared.build_result.processes == processes
    assert (prepared.build_result.peak_bytes > 0) == (processes > 1)
    assert content(prepared) == expected


def test_what_repeats_held_out_pairs_leaves_no_trace_whatever_the_processes(tmp_path):
    held = {*PAIRS[NUM_TRAIN:]}
    train = [pair for pair in REPEATING[:NUM_TRAIN] if pair not in held]
    for split, pairs in (("train", train), ("validation", PAIRS[900:950]), ("test", PAIRS[950:])):
        write_lines(tmp_path / "splits" / split, pairs)
    repeating = config(tmp_path, REPEATING)
    without = content(prepare(repeating.model_copy(update={"path": str(tmp_path / "splits")}), processes=1))
    for processes in (1, 2):
        prepared = prepare(repeating.model_copy(update={"cache_dir": str(tmp_path / f"{processes}")}), None, processes)
        assert prepared.meta.counts == {"train": NUM_TRAIN - 3 - 93, "validation": 50, "test": 50}
        assert prepared.meta.dropped == {"train": {"empty": 2, "too_long": 1, "held_out": 93}}
        assert content(prepared) | {"meta.json": without["meta.json"]} == without


def test_small_corpora_start_no_processes_and_large_ones_do(data, monkeypatch):
    started = []

    class Recorded(module.Workers):
        def __init__(self, processes):
            started.append(processes)
            super().__init__(1)

    monkeypatch.setattr(module, "Workers", Recorded)
    monkeypatch.setattr(module, "num_cores", lambda: 2)
    for number in (NUM_TRAIN + 1, NUM_TRAIN):
        monkeypatch.setattr(module, "WORKERS_FROM", number)
        prepare(data.model_copy(update={"cache_dir": f"{data.cache_dir}{number}"}))
    assert started == [1, 2]


def kill(data: DataConfig, what: str, done: int, processes: int = 1) -> None:
    """A build, killed at this moment."""

    def progress(now: int, total: int, doing: str) -> None:
        if doing == what and now >= done:
            os.kill(os.getpid(), signal.SIGKILL)

    assert fork(lambda: prepare(data, progress, processes)) == signal.SIGKILL
    assert list(Path(data.cache_dir).glob("tried-*")) == []


@pytest.mark.parametrize(
    ("what", "done", "processes"),
    [
        ("reading for the vocabulary", 350, 1),
        ("encoding train", 560, 2),
        ("encoding validation", 50, 1),
        ("encoding test", 0, 1),
    ],
)
def test_a_build_killed_at_any_moment_resumes_after_its_last_split(data, expected, what, done, processes):
    kill(data, what, done, processes)
    files, told = resumed(data)
    assert files == expected and told[0][2] == what


@pytest.mark.parametrize("fault", ["no json", "another vocabulary", "a file cut short", "a file gone"])
def test_a_state_that_cannot_be_used_is_started_over(data, expected, fault, caplog):
    kill(data, "encoding validation", 0)
    folder = partial(data)
    if fault == "no json":
        (folder / STATE_NAME).write_text("{")
    elif fault == "another vocabulary":
        state = json.loads((folder / STATE_NAME).read_text())
        (folder / STATE_NAME).write_text(json.dumps(state | {"vocabulary_digest": "0"}))
    elif fault == "a file cut short":
        (folder / "train.target.pieces").write_bytes(b"1234")
    else:
        (folder / "train.target.pieces").unlink()
    (folder / ".vocabulary.model.17.tmp").touch()
    with caplog.at_level(logging.WARNING):
        files, told = resumed(data)
    assert files == expected and told[0][2] == "reading for the vocabulary"
    assert "the unfinished build in" in caplog.text or fault == "a file gone"


def test_a_build_killed_before_its_last_step_is_only_moved(data):
    first = prepare(data)
    files = content(first)
    folder = first.directory.rename(first.directory.with_name(f".{first.directory.name}.partial"))
    (folder / STATE_NAME).write_text("{}")
    again = prepare(data, lambda *told: pytest.fail("built again"))
    assert content(again) == files and again.build_result is None


def test_what_other_settings_left_unfinished_stays(data):
    kill(data, "encoding train", 420)
    folder, files = partial(data), sorted(file.name for file in partial(data).iterdir())
    prepare(data.model_copy(update={"vocabulary_size": 121}))
    assert sorted(file.name for file in folder.iterdir()) == files


def test_a_full_disk_is_told_in_one_line_and_what_was_built_stays(data, expected):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(expected["train.source.pieces"]) * 2 // 3, limits[1]))
    try:
        with pytest.raises(
            DataError,
            match=r"^data.cache_dir: .*/cache cannot be used \(File too large\); free some space or choose another "
            r"folder; the partial build is kept: rerun the same command to resume it$",
        ):
            prepare(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files, told = resumed(data)
    assert files == expected and told[0] == (0, NUM_TRAIN, "encoding train")


def test_before_any_state_nothing_is_kept(data, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Vocabulary, "learn", full)
    with pytest.raises(DataError, match=r"\(No space left on device\); free some space or choose another folder$"):
        prepare(data)
    assert list(Path(data.cache_dir).glob(".*.partial")) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_fault_of_the_corpus_leaves_nothing(data, processes):
    text = Path(f"{data.path}.de").read_bytes()
    Path(f"{data.path}.de").write_bytes(text.replace(b" 800\n", b" \xfc800\n"))
    with pytest.raises(DataError, match=r"line 801 of .*pairs.de is not UTF-8 \(byte 0xfc at \d+\); convert"):
        prepare(data, processes=processes)
    assert [file.suffix for file in Path(data.cache_dir).iterdir() if file.name != "digests.json"] == [".lock"]


def test_more_than_65536_pieces_are_kept_whole(tmp_path):
    side = Encoder(tmp_path, "uint32", None, False, 1)._side([[1, 70_000], [2]], ["a", "b"])
    assert np.frombuffer(side.pieces, np.uint32).tolist() == [1, 70_000, 2] and side.lengths.tolist() == [2, 1]
