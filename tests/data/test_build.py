"""Checked here: the files of a cache are the same bytes however many processes make them, and whether or not the build
was killed on the way; what is kept for the next build, and what is not.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpr.config.train import DataConfig
from rpr.data import build as module
from rpr.data.build import STATE_NAME
from rpr.data.cache import PreparedData, prepare
from rpr.data.encode import Encoder
from rpr.errors import DataError

TEXT = "the small red house stands behind a very old tree and nobody sees it from here today"
WORDS = TEXT.split(" ")
PAIRS = [
    (" ".join(WORDS[index % 7 : index % 13 + 4]) + f" {index}", " ".join(reversed(WORDS[index % 5 : 9])) + f" {index}")
    for index in range(1000)
]
PAIRS[100:103] = [("", "leer"), ("x " * 150, "kurz"), ("  ", "\t")]
NUM_TRAIN = 900


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """900 pairs to train on, 50 held out for either other split."""
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"pairs.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    settings: dict[str, Any] = {
        "name": "tried", "source_language": "en", "target_language": "de", "synthetic": None, "hub": None,
        "hub_config": None, "path": str(tmp_path / "pairs"), "validation_name": "v", "test_name": "t",
        "tokenizer": "bpe", "vocabulary_size": 120, "max_length": 100, "train_limit": None, "task": None,
        "cache_dir": str(tmp_path / "cache"),
    }  # fmt: skip
    return DataConfig(**settings)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS_PER_CHUNK", 70)


def content(prepared: PreparedData) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.directory.iterdir()}


def elsewhere(data: DataConfig, name: str) -> DataConfig:
    return data.model_copy(update={"cache_dir": str(Path(data.cache_dir).parent / name)})


def built_once(data: DataConfig) -> dict[str, bytes]:
    """The files, built in one go by one process in one chunk."""
    module.PAIRS_PER_CHUNK = 10_000  # put back by the fixture
    files = content(prepare(elsewhere(data, "plain"), processes=1))
    module.PAIRS_PER_CHUNK = 70
    assert len(files) == 2 + 4 + 6 + 6
    return files


def partial(data: DataConfig) -> Path:
    (folder,) = Path(data.cache_dir).glob(".tried-*.partial")
    return folder


def test_the_same_bytes_whatever_the_processes_and_blocks(data: DataConfig) -> None:
    expected = built_once(data)
    for processes in (1, 2, 3):
        prepared = prepare(elsewhere(data, f"by {processes}"), processes=processes)
        assert prepared.meta.counts == {"train": NUM_TRAIN - 3, "validation": 50, "test": 50}
        assert prepared.meta.dropped == {"train": {"empty": 2, "too_long": 1}}
        assert prepared.build_result is not None and prepared.build_result.processes == processes
        assert content(prepared) == expected


@pytest.fixture
def repeating(data: DataConfig) -> DataConfig:
    """As data, and of the pairs to train on 93 equal one of those held out: some here and there, and some in a row."""
    places = [*range(50, 400, 29), *range(500, 580)]
    pairs = {index: PAIRS[NUM_TRAIN + index % 100] for index in places}
    for side, language in enumerate(("en", "de")):
        lines = [pairs.get(index, pair)[side] for index, pair in enumerate(PAIRS)]
        Path(f"{data.path}.{language}").write_text("".join(f"{line}\n" for line in lines))
    assert len(places) == 93 and 137 in places
    return data


def without(data: DataConfig) -> DataConfig:
    """The splits that `repeating` must come to, as files of their own."""
    held, folder = set(PAIRS[NUM_TRAIN:]), Path(data.cache_dir).parent / "splits"
    folder.mkdir()
    rows = list(zip(*(Path(f"{data.path}.{side}").read_text().split("\n")[:-1] for side in ("en", "de")), strict=True))
    parts = {
        "train": [row for row in rows[:NUM_TRAIN] if row not in held],
        "validation": rows[900:950],
        "test": rows[950:],
    }
    for split, pairs in parts.items():
        for side, language in enumerate(("en", "de")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return data.model_copy(update={"path": str(folder)})


def same_but_for_its_record(files: dict[str, bytes], expected: dict[str, bytes]) -> bool:
    return files.keys() == expected.keys() and all(
        files[name] == expected[name] for name in files.keys() - {"meta.json"}
    )


def test_what_repeats_held_out_pairs_leaves_no_trace_whatever_the_processes(repeating: DataConfig) -> None:
    expected = content(prepare(elsewhere(without(repeating), "without"), processes=1))
    for processes in (1, 2, 3):
        prepared = prepare(elsewhere(repeating, f"by {processes}"), processes=processes)
        assert prepared.meta.counts == {"train": NUM_TRAIN - 3 - 93, "validation": 50, "test": 50}
        assert prepared.meta.dropped == {"train": {"empty": 2, "too_long": 1, "held_out": 93}}
        assert same_but_for_its_record(content(prepared), expected)


def test_small_corpora_start_no_processes_and_large_ones_do(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, workers in ((NUM_TRAIN + 1, 1), (NUM_TRAIN, 2)):
        monkeypatch.setattr(module, "WORKERS_FROM", number)
        monkeypatch.setattr(module, "num_cores", lambda: 2)
        built = prepare(elsewhere(data, f"from {number}")).build_result
        assert built is not None and built.processes == workers
        assert (built.peak_bytes > 0) == (workers > 1)


KILLED = """
import os, signal, sys
from rpr.config.train import DataConfig
from rpr.data import build
from rpr.data.cache import prepare
what, done, processes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
build.PAIRS_PER_CHUNK = 70
def progress(now, total, doing):
    if doing == what and now >= done:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    prepare(DataConfig.model_validate_json(sys.argv[1]), progress, processes)
"""


def kill(data: DataConfig, what: str, done: int, processes: int = 1) -> None:
    arguments = [data.model_dump_json(), what, str(done), str(processes)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL and "Traceback" not in killed.stderr
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
def test_a_build_killed_at_any_moment_resumes_after_its_last_split(
    data: DataConfig, what: str, done: int, processes: int
) -> None:
    kill(data, what, done, processes)
    parts: list[str] = []
    prepared = prepare(data, lambda done, total, part: parts.append(part))
    assert content(prepared) == built_once(data)
    assert list(Path(data.cache_dir).glob(".*.partial")) == []
    assert parts[0] == what


@pytest.mark.parametrize("fault", ["no json", "another vocabulary", "a file cut short", "a file gone"])
def test_a_state_that_cannot_be_used_is_started_over(
    data: DataConfig, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
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
    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        prepared = prepare(data, lambda done, total, what: told.append(what))
    assert content(prepared) == built_once(data)
    assert told[0] == "reading for the vocabulary"
    assert "the unfinished build in" in caplog.text or fault == "a file gone"


def test_a_build_killed_before_its_last_step_is_only_moved(data: DataConfig) -> None:
    first = prepare(data)
    expected = content(first)
    folder = first.directory.rename(first.directory.with_name(f".{first.directory.name}.partial"))
    (folder / STATE_NAME).write_text("{}")
    again = prepare(data, lambda *told: pytest.fail("built again"))
    assert content(again) == expected and again.build_result is None


def test_what_other_settings_left_unfinished_stays(data: DataConfig) -> None:
    kill(data, "encoding train", 420)
    folder, files = partial(data), sorted(file.name for file in partial(data).iterdir())
    prepare(data.model_copy(update={"vocabulary_size": 121}))
    assert sorted(file.name for file in folder.iterdir()) == files


def test_a_full_disk_is_told_in_one_line_and_what_was_built_stays(data: DataConfig) -> None:
    expected = built_once(data)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(expected["train.source.pieces"]) * 2 // 3, hard))
    try:
        with pytest.raises(
            DataError,
            match=r"^data.cache_dir: .*/cache cannot be used \(File too large\); free some space or choose another "
            r"folder; the partial build is kept: rerun the same command to resume it$",
        ):
            prepare(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told: list[tuple[int, int, str]] = []
    assert content(prepare(data, lambda *now: told.append(now))) == expected
    assert told[0] == (0, NUM_TRAIN, "encoding train")


def test_before_any_state_nothing_is_kept(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Vocabulary, "learn", full)
    with pytest.raises(DataError, match=r"\(No space left on device\); free some space or choose another folder$"):
        prepare(data)
    assert list(Path(data.cache_dir).glob(".*.partial")) == []


def test_a_fault_of_the_corpus_leaves_nothing(data: DataConfig) -> None:
    text = Path(f"{data.path}.de").read_bytes()
    Path(f"{data.path}.de").write_bytes(text.replace(b" 800\n", b" \xfc800\n"))
    for processes in (1, 2):
        with pytest.raises(DataError, match=r"line 801 of .*pairs.de is not UTF-8 \(byte 0xfc at \d+\); convert"):
            prepare(data, processes=processes)
        assert [file.suffix for file in Path(data.cache_dir).iterdir() if file.name != "digests.json"] == [".lock"]


def test_more_than_65536_pieces_are_kept_whole(tmp_path: Path) -> None:
    side = Encoder(tmp_path, "uint32", None, False, 1)._side([[1, 70_000], [2]], ["a", "b"])
    assert np.frombuffer(side.pieces, np.uint32).tolist() == [1, 70_000, 2] and side.lengths.tolist() == [2, 1]
