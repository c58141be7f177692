"""A corpus that changes after a run was started: commands refuse it in one line with exit code 2, and leave the run
unchanged. Its test set has a name of its own, which compare and report know.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.records.record import read_record
from tests.conftest import TINY_MODEL
from tests.data.helpers import write_lines
from tests.system.bad_files import replace_vocabulary, update_record
from tests.system.conftest import FOUR_STEPS

OLD = ["the", "a", "cat", "dog", "cow", "bird", "sees", "hears", "small", "old"]
NEW = ["zig", "zag", "wug", "blick", "dax", "fep", "toma"]
COMMAND = [
    "train", "data=multi30k_en_de", "data.path=corpus", "data.vocabulary_size=60", *TINY_MODEL, *FOUR_STEPS,
    "optim.average_checkpoints=1", "evaluation.validation_sentences=0", "evaluation.max_extra_length=2",
    "evaluation.bootstrap_samples=0", "evaluation.beam_size=1", "evaluation.test_splits=[news]",
]  # fmt: skip


def write(words):
    """Line files of equal length for both corpora, with different tokens."""

    def sentence(i, step):
        return " ".join([*(words[(i * step + i // (j + 2) + j) % len(words)] for j in range(5)), str(i)])

    for split, number in (("train", 300), ("validation", 10), ("news", 10)):
        write_lines(Path("corpus", split), [(sentence(i, 3), sentence(i, 7)) for i in range(number)])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The old corpus and a finished run."""
    here = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        write(OLD)
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
    before, evaluate = files(run), ("evaluate", f"run={run}", "hardware.threads=1")
    write(NEW)
    assert refused(*COMMAND).startswith(f"data.path: corpus has changed since {run.name} was trained on it")
    assert refused(*evaluate).startswith(f"data: multi30k_en_de has another vocabulary than {run.name} was trained on")
    assert files(run) == before
    (run / "vocabulary.model").rename("vocabulary.model")
    message = refused(*evaluate)
    assert "has changed since" in message and "without its vocabulary.model nothing says" in message
    Path("vocabulary.model").rename(run / "vocabulary.model")
    shutil.rmtree("corpus")
    assert "already finished" in cli(*COMMAND).err


def test_a_vocabulary_of_another_version_of_sentencepiece_is_refused(run, refused):
    """It has the same key in the token cache, but other token ids."""
    replace_vocabulary(run)
    message = refused("evaluate", f"run={run}", "hardware.threads=1")
    assert "has another vocabulary than" in message and "by another sentencepiece" in message


def test_interrupted_run_resumes_only_with_same_corpus(original, run, refused):
    """As if killed after its first checkpoint."""
    update_record(status="running", scores=[], by_length=None, training=None, finished=None)(run)
    (run / "checkpoints" / "step00000004.ckpt").unlink()
    expected = read_record(next(original.glob("runs/*/record.json")))
    before = files(run)
    write(NEW)
    assert "another vocabulary" in refused("train", f"run={run}")
    write(OLD)
    news = Path("corpus/news.en")
    news.write_text(news.read_text().replace("the ", "a ", 3))
    assert f"has changed since {run.name} was started" in refused(*COMMAND)
    assert files(run) == before
    write(OLD)
    assert app.main(COMMAND) == 0
    record = read_record(run / "record.json")
    assert record.scores == expected.scores and record.data == expected.data


@pytest.mark.usefixtures("unrendered")
def test_a_test_set_of_ones_own_is_scored_compared_and_reported(run, cli):
    assert {score.split for score in read_record(run / "record.json").scores} == {"news"}
    other = shutil.copytree(run, run.with_name("other"))
    update_record(**{"config.seed": 2, "seed": 2, "run_id": "0badcafe"})(other)
    assert "news" in cli("compare", run, other, "samples=100", "trials=100").out
    assert "· news · " in cli("report").out
    [page] = Path("reports").rglob("index.html")
    text = page.read_text()
    assert "news, line 3" in text and "sacreBLEU by source length, news" in text and "not evaluated" not in text
