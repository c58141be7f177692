"""A corpus that changes under a run: a finished run is not taken for one of the new corpus, an interrupted one does not
resume with other tokens, and nothing that reads the run encodes sentences with them. Each is one line and exit code 2,
and the run stays as it was. With the old corpus back everything resumes. A faulty corpus leaves no run behind.
"""

import json
import shutil
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.records.record import read_record

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
    """Splits of line files, of both corpora equally many; their tokens differ."""
    words = WORDS[which]
    Path("corpus").mkdir(exist_ok=True)
    for split, number in (("train", 300), ("validation", 10), ("test", 10)):
        for language, step in (("en", 3), ("de", 7)):
            lines = [
                " ".join(words[(i * step + i // (j + 2) + j) % len(words)] for j in range(5)) for i in range(number)
            ]
            Path(f"corpus/{split}.{language}").write_text("".join(f"{line} {i}\n" for i, line in enumerate(lines)))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the old corpus and a finished run."""
    here = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        write("old")
        assert app.main(COMMAND) == 0
    return here


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(world, tmp_path):
    """The folder of a finished run in a copy of the world."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    return next(tmp_path.glob("runs/*"))


@pytest.fixture
def interrupted(run):
    """The same run as if it had been killed after its first checkpoint."""
    edit(run, status="running", scores=[], by_length=None, training=None, finished=None)
    (run / "checkpoints" / "step00000004.ckpt").unlink()
    return run


@pytest.fixture
def refused(capfd):
    def call(*words):
        capfd.readouterr()
        assert app.main(list(words)) == 2
        out, err = capfd.readouterr()
        line = err.splitlines()[-1]
        assert out == "" and "Traceback" not in err and line.startswith("rpr-cli: ")
        return line.removeprefix("rpr-cli: ")

    return call


def edit(run, **changes):
    path = run / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def files(run):
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def record(run):
    return read_record(run / "record.json")


def test_a_finished_run(run, refused, capfd):
    before = files(run)
    write("new")
    for again in (COMMAND, ["train", f"run={run}"]):
        assert refused(*again).startswith(f"data.path: corpus has changed since {run.name} was trained on it")
    for reading in (["evaluate"], ["verify"], ["export", "format=safetensors", "output_dir=exported"]):
        answer = f"data: multi30k_en_de is not the corpus that {run.name} was trained on"
        assert refused(*reading, f"run={run}", "hardware.threads=1").startswith(answer)
    assert files(run) == before and not Path("exported").exists()
    write("old")
    assert app.main(COMMAND) == 0
    assert "already finished" in capfd.readouterr().err
    for split in ("test", "validation"):  # the scores of one split do not replace those of another
        assert app.main(["evaluate", f"run={run}", f"splits=[{split}]", "hardware.threads=1"]) == 0
    found = {path.parent.name: json.loads(path.read_text()) for path in run.glob("evaluations/*/scores.json")}
    assert {name: {score["split"] for score in found[name]["scores"]} for name in found} == {
        f"average1-beam1-alpha0.6-{split}": {split} for split in ("test", "validation")
    }


@pytest.mark.parametrize("old_record", [False, True], ids=["", "whose record does not name its corpus"])
def test_an_interrupted_run(world, interrupted, refused, old_record):
    scores, data = record(next(world.glob("runs/*"))).scores, record(interrupted).data
    if old_record:
        edit(interrupted, data=None)
    before = files(interrupted)
    write("new")
    for again in (COMMAND, ["train", f"run={interrupted}"]):
        assert "another vocabulary" in refused(*again)
    assert files(interrupted) == before
    write("old")
    vocabulary = before[Path("vocabulary.model")]
    if not old_record:
        (interrupted / "vocabulary.model").write_bytes(vocabulary[:100])  # damaged: written again
    assert app.main(COMMAND) == 0
    assert record(interrupted).scores == scores and record(interrupted).data == data
    assert files(interrupted)[Path("vocabulary.model")] == vocabulary


def test_other_sentences_with_the_same_tokens(interrupted, refused):
    test = Path("corpus/test.en")
    test.write_text(test.read_text().replace("the ", "a ", 3))
    before = files(interrupted)
    assert f"has changed since {interrupted.name} was started" in refused(*COMMAND)
    Path("corpus/test.de").write_text("too few\n")
    refused(*COMMAND)
    assert files(interrupted) == before


def test_a_running_record_names_its_corpus(monkeypatch):
    write("old")
    found = []
    monkeypatch.setattr("rpr.commands.train.work", lambda config, run_dir: found.append(record(run_dir)))
    assert app.main(COMMAND) == 0
    (running,) = found
    assert running.status == "running" and running.data is not None and running.data.train_pairs == 300


@pytest.mark.parametrize("earlier", [False, True])
def test_a_faulty_corpus_leaves_no_run_behind(refused, earlier):
    """Nor the folder of all runs, where it was created for this one."""
    write("old")
    if earlier:
        Path("runs").mkdir()
    assert "vocabulary_size" in refused(*COMMAND, "data.vocabulary_size=4000")
    answer = "evaluation.test_splits: multi30k_en_de has no long, so nothing would be scored"
    assert refused(*COMMAND, "evaluation.test_splits=[long]").startswith(answer)
    assert Path("runs").exists() == earlier and not list(Path().glob("runs/*"))
