"""A corpus that changes after a run was started: commands refuse it in one line with exit code 2, and leave the run
unchanged. And a corpus with a test set of a name of its own.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.records.record import read_record
from tests.data.helpers import write_lines
from tests.system.bad_files import replace_vocabulary, update_record

WORDS = {
    "old": ("the", "a", "cat", "dog", "cow", "bird", "sees", "hears", "small", "old"),
    "new": ("zig", "zag", "wug", "blick", "dax", "fep", "toma"),
}
COMMAND = [
    "train", "data=multi30k_en_de", "data.path=corpus", "data.vocabulary_size=60", "logger=none", "model.num_layers=1",
    "model.d_model=16", "model.num_heads=2", "model.d_ff=16", "hardware.threads=1", "optim.max_steps=4",
    "optim.warmup_steps=2", "optim.validate_every_n_steps=4", "optim.checkpoint_every_n_steps=2",
    "optim.max_tokens_per_microbatch=256", "optim.average_checkpoints=1", "evaluation.validation_sentences=0",
    "evaluation.max_extra_length=2", "evaluation.bootstrap_samples=0", "evaluation.beam_size=1",
]  # fmt: skip


def write(which):
    """Line files of equal length for both corpora, with different tokens."""
    words = WORDS[which]

    def sentence(i, step):
        return " ".join([*(words[(i * step + i // (j + 2) + j) % len(words)] for j in range(5)), str(i)])

    for split, number in (("train", 300), ("validation", 10), ("test", 10)):
        write_lines(Path("corpus", split), [(sentence(i, 3), sentence(i, 7)) for i in range(number)])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The old corpus and a finished run."""
    here = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        write("old")
        assert app.main(COMMAND) == 0
    return here


@pytest.fixture
def run(original, tmp_path, monkeypatch):
    """The finished run, in a copy of the original folder."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return next(tmp_path.glob("runs/*"))


@pytest.fixture
def refused(refused):
    return partial(refused, remarks_start="", nothing_written=False)


def files(run):
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_finished_run_refuses_changed_corpus(run, refused, cli):
    before = files(run)
    write("new")
    assert refused(*COMMAND).startswith(f"data.path: corpus has changed since {run.name} was trained on it")
    message = refused("evaluate", f"run={run}", "hardware.threads=1")
    assert message.startswith(f"data: multi30k_en_de has another vocabulary than {run.name} was trained on")
    assert files(run) == before
    shutil.rmtree("corpus")
    assert "already finished" in cli(*COMMAND).err


def test_without_its_vocabulary_or_with_another_one_a_run_is_refused(run, refused):
    """That of another version of sentencepiece has the same key in the token cache, but other token ids."""
    replace_vocabulary(run)
    message = refused("evaluate", f"run={run}", "hardware.threads=1")
    assert "has another vocabulary than" in message and "by another sentencepiece" in message
    (run / "vocabulary.model").unlink()
    write("new")
    message = refused("evaluate", f"run={run}", "hardware.threads=1")
    assert "has changed since" in message and "without its vocabulary.model nothing says" in message


def test_interrupted_run_resumes_only_with_same_corpus(original, run, refused):
    """As if killed after its first checkpoint."""
    update_record(status="running", scores=[], by_length=None, training=None, finished=None)(run)
    (run / "checkpoints" / "step00000004.ckpt").unlink()
    expected = read_record(next(original.glob("runs/*/record.json")))
    before = files(run)
    write("new")
    assert "another vocabulary" in refused("train", f"run={run}")
    write("old")
    test = Path("corpus/test.en")
    test.write_text(test.read_text().replace("the ", "a ", 3))
    assert f"has changed since {run.name} was started" in refused(*COMMAND)
    assert files(run) == before
    write("old")
    assert app.main(COMMAND) == 0
    record = read_record(run / "record.json")
    assert record.scores == expected.scores and record.data == expected.data


def test_a_test_set_of_ones_own_is_scored_compared_and_reported(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("old")
    for language in ("en", "de"):
        Path(f"corpus/test.{language}").rename(f"corpus/news.{language}")
    for position in ("absolute", "relative"):
        cli(*COMMAND, "evaluation.test_splits=[news]", f"position={position}")
    runs = sorted(map(str, Path("runs").glob("*/")))
    records = [read_record(Path(run, "record.json")) for run in runs]
    assert [{score.split for score in record.scores} for record in records] == [{"news"}] * 2
    assert "news" in cli("compare", *runs, "samples=100", "trials=100").out
    printed = cli("report").out
    assert "· news · change from absolute" in printed, printed
    [page] = Path("reports").rglob("index.html")
    text = page.read_text()
    assert "news, line 3" in text and "sacreBLEU by source length, news" in text and "not evaluated" not in text
