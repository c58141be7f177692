"""`rpr-cli rerun` from argv to exit code. One test repeats a tiny run, bit for bit; the others replace training."""

import json
import re
import shlex
import shutil

import pytest

from rpr.cli import app
from rpr.commands import train
from rpr.records.files import read_metrics
from rpr.records.record import Git, RerunOf, read_record
from tests.conftest import TINY
from tests.fake_records import edited

RECIPE = (
    "optim.max_steps=6", "optim.warmup_steps=6", "optim.checkpoint_every_n_steps=3", "optim.validate_every_n_steps=3",
    "optim.average_checkpoints=2", "evaluation.beam_size=1", "evaluation.max_extra_length=2",
    "evaluation.bootstrap_samples=100", "hardware.threads=1", "hardware.matmul_precision=highest",
    "position.clip_distance=2", "sweep=mine",
)  # fmt: skip
HERE = Git(commit="0123456789abcdef", dirty=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory, cache_dir, small_data):
    """The folder of a finished run; HERE is its commit, and that of all reruns."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Git, "here", lambda: HERE)
        assert app.main(["train", *TINY, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]) == 0
        yield next(runs.glob("synthetic-tiny-relative-k2-s1-*"))


@pytest.fixture
def call_rerun(tmp_path, cli):
    """Call `rpr-cli rerun` with tmp_path/runs; its stdout and stderr."""
    return lambda source, *settings, code=0: cli("rerun", source, f"runs_dir={tmp_path / 'runs'}", *settings, code=code)


@pytest.fixture
def started(original, monkeypatch):
    """Training replaced by the original's results; what was started."""
    calls = []
    monkeypatch.setattr(train, "run", lambda config, **given: calls.append((config, given)) or original)
    return calls


@pytest.fixture
def changed(original, tmp_path):
    """Write the original's record with other values at dotted keys (... removes one)."""

    def write(edits, name="changed.json"):
        document = json.loads((original / "record.json").read_text("utf-8"))
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(json.dumps(edited(document, edits)), "utf-8")
        return tmp_path / name

    return write


def test_rerun_is_bit_identical(original, call_rerun, tmp_path, monkeypatch):
    """Interrupted after its training: the second command only scores."""

    def interrupt(*arguments):
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr("rpr.scoring.run.score_run", interrupt)
        call_rerun(original, code=130)
    folder = tmp_path / "runs" / f"{original.name}-rerun1"
    trained = {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").iterdir()}
    interrupted, first = read_record(folder / "record.json"), read_record(original / "record.json")
    assert interrupted.status == "interrupted"
    out, err = call_rerun(original)
    assert "not as recorded" not in err and list((tmp_path / "runs").iterdir()) == [folder]
    assert {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").iterdir()} == trained
    logged = [
        row for row in read_metrics(original / "metrics.jsonl") if "train/loss" in row or "validation/loss" in row
    ]
    assert f"Bit-identical: 10 scores, training and validation loss, and {len(logged)} logged losses." in out
    second = read_record(folder / "record.json")
    assert (second.sweeps, second.setting("sweep"), second.status) == ((), None, "finished")
    assert second.rerun_of == interrupted.rerun_of == RerunOf(run_id=first.run_id, started=first.started)
    assert shlex.split(second.command)[1:] == ["rerun", str(original), f"runs_dir='{tmp_path / 'runs'}'"]
    for name in ("test.hypotheses.txt", "long.hypotheses.txt"):
        assert (folder / name).read_bytes() == (original / name).read_bytes()
    assert {path: path.read_bytes() for path in before} == before


def test_different_results_are_shown_and_exit_with_1(original, call_rerun, changed, started):
    edits = {"scores.0.score": 99.0, "training.validation_loss": 1.0, "git.commit": "feed", "data.key": "feed" * 16}
    source = changed(edits, "changed/record.json")
    shutil.copy(original / "metrics.jsonl", source.with_name("metrics.jsonl"))
    out, err = call_rerun(source, code=1)
    assert err.startswith("rpr-cli: not as recorded: the corpus, key ")
    assert err.endswith(f"\nrpr-cli: {original.name}: its results differ from those of {source}\n")
    assert "Bit-identical" not in out and re.search(r"\ngit.commit +feed +0123456789abcdef\n", out)
    assert re.search(r"\ntest/sacrebleu +99\.0 .* -[\d.]+\n", out)
    # A logged loss alone.
    source = changed({}, "other/record.json")
    losses = (original / "metrics.jsonl").read_text().replace('"train/loss": ', '"train/loss": 1', 1)
    source.with_name("metrics.jsonl").write_text(losses)
    assert "its results differ from" in call_rerun(source, code=1).err


def test_recorded_configuration_is_run_in_the_given_folders(call_rerun, changed, started, tmp_path):
    here, elsewhere = tmp_path / "here", f"{tmp_path / 'elsewhere'},b"
    edits = {"synthetic": None, "path": str(tmp_path / "gone")}
    source = changed({"config.logger.mode": "online", **{f"config.data.{key}": edits[key] for key in edits}})
    assert f"data.path: {tmp_path / 'gone'} does not exist" in call_rerun(source, code=2).err and started == []
    here.mkdir()
    for language in ("en", "de"):
        (here / f"train.{language}").write_text("a\nb\n")
    printed = call_rerun(source, f"cache_dir='{elsewhere}'", f"data_path={here}")
    assert "not as recorded: the corpus, key " in printed.err
    [(config, given)] = started
    assert (config.runs_dir, config.data.cache_dir, config.sweep) == (str(tmp_path / "runs"), elsewhere, None)
    assert config.data.path == str(here) and config.logger.mode == "none"  # not to write into the original's W&B run
    command = shlex.split(given["command"])
    assert command[:3] == ["rpr-cli", "rerun", str(source)] and f"data_path='{here}'" in command
    assert app.compose("rerun", ["run=x", *command[3:]])["cache_dir"] == elsewhere
    assert given["run_dir"] == tmp_path / "runs" / f"{config.run_dir_name}-rerun1"


def test_folder_of_a_rerun(original, call_rerun, changed, started):
    """An unfinished one is resumed, but for one of another corpus path, for example."""
    unfinished = {"status": "interrupted", "error": "SIGTERM", "data": None, "training": None, "scores": []}
    for number, edits in enumerate(({}, unfinished | {"run_id": "0a0a0a0a"}, unfinished), start=1):
        changed(edits, f"runs/{original.name}-rerun{number}/record.json")
    printed = call_rerun(changed(unfinished, "runs/interrupted/record.json"))
    assert started[-1][1]["run_dir"].name == f"{original.name}-rerun3"
    assert "interrupted: SIGTERM; it has no results to compare with\n" in printed.err and printed.out == ""
