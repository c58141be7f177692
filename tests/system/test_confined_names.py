"""Checked here: a name that becomes part of a path cannot lead out of its folder, whether it is typed, stands in a
sweep's file or in a record; a sweep's file, a record and a run's folder of another person run no code, are not believed
about places, and show nothing of a file outside. Every refusal is exit code 2 and one line, and no file has changed.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr.cli import app
from rpr.cli.positionals import quote_value
from rpr.commands import train
from rpr.records.record import read_record
from tests.conftest import TINY

SHORT = (
    "optim.max_steps=4", "optim.checkpoint_every_n_steps=2", "optim.keep_checkpoints=2", "optim.average_checkpoints=2",
    "optim.validate_every_n_steps=4", "evaluation.test_splits=[test]", "evaluation.beam_size=1",
    "evaluation.bootstrap_samples=0", "hardware.threads=1",
)  # fmt: skip
ELSEWHERE = (
    "sweep", "data.name", "model.name", "position.name", "data.source_language", "data.target_language",
    "data.hub_config",
)  # fmt: skip
LEADING = ("../../x", "/x", "a/b", "..", ".", "~", "~root", "-x", "a\nb", "a\\b", "a\0b", "", 300 * "a")
Refused = Callable[..., str]


def tree(root: Path) -> dict[str, Any]:
    """Every file and link as it is; folders by their names."""
    return {
        str(path): None if path.is_dir() and not path.is_symlink() else (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in root.rglob("*")
        if path.name != "digests.json"
    }


@pytest.fixture(autouse=True)
def _deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some folders below one whose files can be watched; threads as they were before."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as app sets it; undone after the test
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """The last line of a refusal, which has left every file below tmp_path as it was."""

    def run(*words: str) -> str:
        before = tree(tmp_path)
        capfd.readouterr()
        code = app.main(list(words))
        out, err = capfd.readouterr()
        assert (code, out) == (2, ""), (code, out, err)
        *remarks, line = err.splitlines()
        assert line.startswith("rpr-cli: ") and all(remark.startswith("rpr-cli: not as rec") for remark in remarks), err
        assert tree(tmp_path) == before
        return line

    return run


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "work", None)
    monkeypatch.setattr(train, "_run_worker", None)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    "key, name", [*(("name", name) for name in LEADING), *((key, LEADING[0]) for key in ELSEWHERE)]
)
def test_a_name_that_leads_elsewhere_is_refused(key: str, name: str, refused: Refused) -> None:
    line = refused("train", f"{key}={quote_value(name)}")
    parts = (
        "is not a valid folder name",
        "cannot be part of a file name",
        "contains a NUL character",
        "the maximum is 200",
    )
    assert any(part in line for part in parts)
    if key != "sweep":  # which is the name of its file
        Path("mine.yaml").write_text(json.dumps({"jobs": ["seed=1", f'"{key}={quote_value(name)}"']}))
        line = refused("sweep", "mine.yaml")
        assert "\\" in name or any(part in line for part in parts)  # a shell's rules take it away before a quote


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("key", ["runs_dir", "data.cache_dir", "data.path", "data.hub", "logger.tags", "logger.entity"])
def test_a_nul_character_is_refused_anywhere(key: str, refused: Refused) -> None:
    """A shell cannot give one; a file can."""
    value = "[a,'b\0']" if key == "logger.tags" else "'a\0b'"
    Path("mine.yaml").write_text(json.dumps({"jobs": [f'"{key}={value}"']}))
    assert "it contains a NUL character" in refused("sweep", "mine.yaml")


def test_names_that_are_no_paths_stay_in_the_run(tiny: list[str], small_data: object, tmp_path: Path) -> None:
    """Of W&B and of test sets."""
    threads = torch.get_num_threads()
    odd = [
        "logger=wandb_offline", "logger.project=..", "logger.entity=..", "logger.tags=[../../t]",
        "logger.artifacts=results", "data.test_name=../../test", "data.validation_name=/v", "optim.name=../../o",
        "hardware.name=/h",
    ]  # fmt: skip
    words = [word for word in (*tiny, *SHORT) if word != "logger=none"]
    assert app.main(["train", *words, *odd, f"data.cache_dir={tmp_path / 'cache'}"]) == 0
    torch.set_num_threads(threads)
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "cache", "runs", "home"}
    (run_dir,) = (path for path in (tmp_path / "runs").iterdir())
    assert not list(Path.cwd().iterdir()) and not list(tmp_path.glob("a/*.*"))
    assert read_record(run_dir / "record.json").status == "finished" and list(run_dir.glob("wandb/offline-run-*"))


# --- a sweep's file of another person

CODE = [
    "+hydra.job.env_set.PYTHONPATH=evil",
    "++hydra.job.env_set.PYTHONPATH=evil",
    "+hydra.job.env_set.LD_PRELOAD=evil.so",
    "'+hydra={job:{env_set:{PYTHONPATH: evil}}}'",
    "hydra/launcher=submitit_local '+hydra.launcher.setup=[touch pwned]'",
    "hydra/launcher=joblib",
    "'hydra.searchpath=[file://evil]'",
    "hydra.run.dir=elsewhere",
]


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("words, place", [*zip(CODE, itertools.cycle(["overrides", "jobs"]), strict=False)])
def test_a_sweeps_file_says_nothing_about_hydra(words: str, place: str, refused: Refused) -> None:
    """Its launchers run commands, and a Python runs what its environment names."""
    Path("evil").mkdir()
    Path("evil/sitecustomize.py").write_text("open('pwned', 'w')")
    Path("mine.yaml").write_text(json.dumps({"overrides": [], "jobs": ["seed=1"]} | {place: [words]}))
    line = refused("sweep", "mine.yaml")
    assert "a sweep's file cannot configure Hydra itself, since that can run code; type it after the" in line


# --- a record, or a run's folder, of another person


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """A trained run."""
    here, threads = tmp_path_factory.mktemp("made"), torch.get_num_threads()
    assert app.main(["train", *TINY, *SHORT, "name=one", f"data.cache_dir={cache_dir}", f"runs_dir={here}"]) == 0
    torch.set_num_threads(threads)
    return next(here.glob("one-*"))


@pytest.fixture
def run_dir(made: Path) -> Path:
    return Path(shutil.copytree(made, "run"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that is no one else's business."""
    path = tmp_path / "victim"
    path.write_text("".join(f"precious {number}\n" for number in range(24)))
    return path


def changed(run_dir: Path, key: str, value: Any, **top: Any) -> None:
    """The record with another setting, and other fields."""
    document = json.loads((run_dir / "record.json").read_text())
    *sections, name = key.split(".")
    place = document["config"]
    for section in sections:
        place = place[section]
    place[name] = value
    (run_dir / "record.json").write_text(json.dumps({**document, **top}))


INTERRUPTED = {"status": "interrupted", "error": "Ctrl-C"}
HOSTILE = [
    ("model._target_", "os.system", "model._target_: no such setting"),
    ("_target_", "os.system", "_target_: no such setting"),
    ("hydra", {"launcher": {"_target_": "os.system"}}, "hydra: no such setting"),
    ("name", "../../x", "name: '../../x' is not a valid folder name"),
    ("sweep", "/x", "sweep: '/x' is not a valid folder name"),
    ("data.source_language", "../../x", "cannot be part of a file name"),
    ("data.hub_config", "../../x", "cannot be part of a file name"),
    ("data.cache_dir", "a\0b", "it contains a NUL character"),
    ("logger.tags", ["a", "\0"], "it contains a NUL character"),
]


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("key, value, telling", HOSTILE, ids=[row[0] for row in HOSTILE])
def test_a_record_names_no_code_and_no_place(
    run_dir: Path, refused: Refused, key: str, value: Any, telling: str
) -> None:
    changed(run_dir, key, value, **INTERRUPTED)
    assert telling in refused("train", "run=run")
    assert telling in refused("rerun", "run", "runs_dir=runs")
    assert telling in refused("evaluate", "run=run", "hardware.threads=1")


def test_a_record_is_text_and_no_template(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be filled in if it were typed stands as it is."""
    monkeypatch.setenv("WANDB_API_KEY", "CanaryOfWandb")
    changed(run_dir, "logger.project", "${oc.env:WANDB_API_KEY}", **INTERRUPTED)
    threads = torch.get_num_threads()
    assert app.main(["train", "run=run"]) == 0
    torch.set_num_threads(threads)
    assert read_record(run_dir / "record.json").config["logger"]["project"] == "${oc.env:WANDB_API_KEY}"
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"CanaryOf" in path.read_bytes()]


READERS = (
    ["train", "run=run"], ["evaluate", "run=run"], ["export", "run=run"], ["verify", "run=run"],
    ["report", "run=run"], ["report", "runs_dir=."], ["rerun", "run"], ["diff", "run", "run"],
    ["compare", "run", "other"], ["translate", "run=run", "input=mine.txt"],
)  # fmt: skip


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_record_that_is_a_link_out_shows_nothing_of_what_it_leads_to(
    run_dir: Path, victim: Path, refused: Refused, words: list[str]
) -> None:
    Path("mine.txt").write_text("a\n")
    (run_dir / "record.json").unlink()
    (run_dir / "record.json").symlink_to(victim)
    assert "precious" not in refused(*words)


def test_a_checkpoint_that_is_a_link_out_is_not_followed_into_anything(
    run_dir: Path, victim: Path, refused: Refused, capfd: pytest.CaptureFixture[str]
) -> None:
    before = victim.read_text()
    for path in (run_dir / "checkpoints").glob("*.ckpt"):
        path.unlink()
        path.symlink_to(victim)
    line = refused("evaluate", "run=run", "hardware.threads=1")
    assert "cannot be read as a checkpoint (" in line and "precious" not in line
    changed(run_dir, "seed", 1, **INTERRUPTED)
    threads = torch.get_num_threads()
    assert app.main(["train", "run=run"]) == 0  # anew: those are set aside
    torch.set_num_threads(threads)
    assert victim.read_text() == before and "precious" not in capfd.readouterr().err


def test_what_is_written_anew_replaces_a_link_and_not_what_it_leads_to(run_dir: Path, victim: Path) -> None:
    before = victim.read_text()
    for name in ("config.yaml", "job.json", "vocabulary.model", "test.hypotheses.txt", "test.sources.txt"):
        (run_dir / name).unlink()
        (run_dir / name).symlink_to(victim)
    changed(run_dir, "seed", 1, **INTERRUPTED)
    threads = torch.get_num_threads()
    assert app.main(["train", "run=run"]) == 0
    torch.set_num_threads(threads)
    assert victim.read_text() == before
    assert not any(path.is_symlink() for path in run_dir.rglob("*"))


def test_a_report_opens_no_path_of_a_record(run_dir: Path, victim: Path, tmp_path: Path) -> None:
    """They are shown as they stand there."""
    place = f"{tmp_path}/victim"
    wandb = {"id": "x", "mode": "online", "url": "javascript:alert(1)"}
    changed(run_dir, "data.path", place, command=f"rpr-cli train $(cat {place})", name=place, wandb=wandb)
    changed(run_dir, "runs_dir", place)
    before = victim.stat().st_atime_ns
    assert app.main(["report", "runs_dir=.", f"output_dir={tmp_path / 'reports'}"]) == 0
    written = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"precious" in path.read_bytes()]
    page = (tmp_path / "reports" / "all" / "index.html").read_text()
    assert 'href="javascript' not in page and "$(cat " in page and victim.stat().st_atime_ns == before


def test_a_record_has_no_hold_on_the_terminal_by_a_refusal(run_dir: Path, refused: Refused) -> None:
    changed(run_dir, "seed", 1, status="failed", error="\x1b]0;mine\x07 \x9b31m")
    line = refused("compare", "run", "other")
    assert "]0;mine" in line and not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("top", [{"name": "../../x"}, {"run_id": "x/../../../y"}], ids=["name", "run_id"])
def test_a_rerun_stays_in_its_folder(run_dir: Path, refused: Refused, top: dict[str, str]) -> None:
    changed(run_dir, "seed", 1, **top)
    assert "is not a valid folder name; correct the record" in refused("rerun", "run", "runs_dir=runs")


def test_a_lock_that_is_a_link_empties_no_file(run_dir: Path, victim: Path, refused: Refused) -> None:
    changed(run_dir, "seed", 1, **INTERRUPTED)
    (run_dir / ".lock").unlink(missing_ok=True)
    (run_dir / ".lock").symlink_to(victim)
    assert ".lock" in refused("train", "run=run")
    assert "precious" in victim.read_text()


def test_linked_sentences_are_not_shown(run_dir: Path, victim: Path, tmp_path: Path) -> None:
    (run_dir / "test.hypotheses.txt").unlink()
    (run_dir / "test.hypotheses.txt").symlink_to(victim)
    assert app.main(["report", "runs_dir=.", f"output_dir={tmp_path / 'reports'}"]) == 0
    written = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"precious" in path.read_bytes()]
