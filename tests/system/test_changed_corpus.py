"""Checked here, in process: a corpus that changes under a run. A finished run is not taken for one of the new corpus,
a cut one does not go on with other pieces, and what reads a run back does not encode sentences with them; each is one
line, exit code 2, and the run stays as it was. With the old corpus back everything goes on. A corpus at fault leaves no
run behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.records.record import Record, read_record

WORDS = {
    "old": ("the", "a", "cat", "dog", "cow", "bird", "sees", "hears", "small", "old"),
    "new": ("zig", "zag", "wug", "blick", "dax", "fep", "toma"),
}
RECIPE = (
    "logger=none", "model.num_layers=1", "model.d_model=32", "model.num_heads=2", "model.d_ff=64", "hardware.threads=1",
    "optim.max_steps=8", "optim.warmup_steps=2", "optim.validate_every_n_steps=4", "optim.checkpoint_every_n_steps=4",
    "optim.max_tokens_per_microbatch=256", "optim.average_checkpoints=1", "evaluation.validation_sentences=0",
    "evaluation.max_extra_length=2", "data.vocabulary_size=60",
)  # fmt: skip


def write(folder: Path, which: str) -> None:
    """Splits of line files; the pieces differ, and of both corpora there are as many."""
    folder.mkdir(exist_ok=True)
    words = WORDS[which]
    for split, number in (("train", 300), ("validation", 10), ("test", 10)):
        for language, step in (("en", 3), ("de", 7)):
            lines = [
                " ".join(words[(i * step + i // (j + 2) + j) % len(words)] for j in range(5)) for i in range(number)
            ]
            (folder / f"{split}.{language}").write_text("".join(f"{line} {i}\n" for i, line in enumerate(lines)))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus", "old")
    return ["train", *RECIPE, "data=multi30k_en_de", "data.path=corpus"]


@pytest.fixture
def trained(command: list[str], tmp_path: Path) -> Path:
    """The folder of a finished run."""
    assert app.main(command) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    return run_dir


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        capfd.readouterr()
        assert app.main(list(words)) == 2
        out, err = capfd.readouterr()
        line = err.splitlines()[-1]
        assert out == "" and "Traceback" not in err and line.startswith("rpr-cli: ")
        return line.removeprefix("rpr-cli: ")

    return run


def files(run_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def cut(run_dir: Path) -> None:
    """As if it had been killed after its first checkpoint."""
    path = run_dir / "record.json"
    document = json.loads(path.read_text())
    document |= {"status": "running", "scores": [], "by_length": None, "training": None, "finished": None}
    path.write_text(json.dumps(document))
    (run_dir / "checkpoints" / "step00000008.ckpt").unlink()


def record(run_dir: Path) -> Record:
    return read_record(run_dir / "record.json")


def test_a_finished_run(
    command: list[str], trained: Path, refused: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = files(trained)
    write(Path("corpus"), "new")
    for again in (command, ["train", f"run={trained}"]):
        assert refused(*again).startswith(f"data.path: corpus has changed since {trained.name} was trained on it")
    for reading in (["evaluate"], ["verify"], ["export", "format=safetensors", "output_dir=exported"]):
        telling = f"data: multi30k_en_de is not the corpus that {trained.name} was trained on"
        assert refused(*reading, f"run={trained}").startswith(telling)
    assert files(trained) == before and not Path("exported").exists()
    write(Path("corpus"), "old")
    assert app.main(command) == 0
    assert "already finished" in capfd.readouterr().err
    assert app.main(["evaluate", f"run={trained}"]) == 0


def test_a_cut_run(command: list[str], trained: Path, refused: Callable[..., str]) -> None:
    scores, key = record(trained).scores, record(trained).data
    cut(trained)
    before = files(trained)
    write(Path("corpus"), "new")
    for again in (command, ["train", f"run={trained}"]):
        assert "another vocabulary" in refused(*again)
    assert files(trained) == before
    write(Path("corpus"), "old")
    assert app.main(command) == 0
    assert record(trained).scores == scores and record(trained).data == key


def test_a_cut_run_whose_other_sentences_have_the_same_pieces(
    command: list[str], trained: Path, refused: Callable[..., str]
) -> None:
    cut(trained)
    test = Path("corpus/test.en")
    test.write_text(test.read_text().replace("the ", "a ", 3))
    before = files(trained)
    assert f"has changed since {trained.name} was started" in refused(*command)
    assert files(trained) == before


def test_a_cut_run_of_before_its_record_named_the_corpus(
    command: list[str], trained: Path, refused: Callable[..., str]
) -> None:
    cut(trained)
    path = trained / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": None}))
    write(Path("corpus"), "new")
    assert "another vocabulary" in refused(*command)
    write(Path("corpus"), "old")
    assert app.main(command) == 0 and record(trained).data is not None


def test_a_damaged_vocabulary_of_a_run_is_written_anew(command: list[str], trained: Path) -> None:
    before = files(trained)["vocabulary.model"]
    cut(trained)
    (trained / "vocabulary.model").write_bytes(before[:100])
    assert app.main(command) == 0 and files(trained)["vocabulary.model"] == before


def test_a_running_record_names_its_corpus(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr("rpr.commands.train.work", lambda config, run_dir: found.append(record(run_dir)))
    assert app.main(command) == 0
    (running,) = found
    assert running.status == "running" and running.data is not None and running.data.train_pairs == 300


def test_splits_that_the_corpus_has_not(command: list[str], refused: Callable[..., str]) -> None:
    telling = "evaluation.test_splits: multi30k_en_de has no long, so nothing would be scored"
    assert refused(*command, "evaluation.test_splits=[long]").startswith(telling) and not Path("runs").exists()


def test_the_scores_of_other_splits_stay(trained: Path) -> None:
    for split in ("test", "validation"):
        assert app.main(["evaluate", f"run={trained}", f"splits=[{split}]"]) == 0
    found = {path.parent.name: json.loads(path.read_text()) for path in trained.glob("evaluations/*/scores.json")}
    assert {name: {score["split"] for score in found[name]["scores"]} for name in found} == {
        f"average1-beam4-alpha0.6-{split}": {split} for split in ("test", "validation")
    }


@pytest.mark.parametrize("earlier", [False, True])
def test_a_corpus_at_fault_leaves_no_run_behind(command: list[str], refused: Callable[..., str], earlier: bool) -> None:
    """Nor the folder of all runs, where it was made for this one."""
    if earlier:
        Path("runs").mkdir()
    assert "vocabulary_size" in refused(*command, "data.vocabulary_size=4000")
    assert not Path("runs").exists() or (earlier and not any(Path("runs").iterdir()))


def test_a_fault_leaves_the_record_of_a_cut_run_as_it_was(
    command: list[str], trained: Path, refused: Callable[..., str]
) -> None:
    cut(trained)
    before = files(trained)
    Path("corpus/test.de").write_text("too few\n")
    refused(*command)
    assert files(trained) == before
