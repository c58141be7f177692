"""Checked here: the command line from argv to exit code, in process: what it prints where, that each refusal is one
line on stderr with exit code 2 and that nothing was started; the installed script's speed and what it imports, in a
fresh process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from rpr import __version__
from rpr.cli import app
from rpr.cli.positionals import to_overrides
from rpr.commands import train
from rpr.errors import RunError

SCRIPT = Path(sys.executable).with_name("rpr-cli")


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """In an empty folder, with training replaced by a list of what was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as app sets it; undone after the test
    commands: list[str] = []
    monkeypatch.setattr(train, "run", lambda config, *, command, **options: commands.append(command))
    return commands


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refusal; exit code 2, nothing on stdout, no traceback."""
    assert app.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rpr-cli: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err and "HYDRA_FULL_ERROR" not in err
    return err.removeprefix("rpr-cli: ").rstrip("\n")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        assert app.main([flag]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("usage: rpr-cli COMMAND") and err == ""
        assert all(f"\n  {name} " in out for name in app.COMMANDS)
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rpr-cli {__version__}\n"
    assert app.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("name", sorted(app.COMMANDS))
def test_every_command_of_the_help_can_be_run(name: str) -> None:
    """The file is imported only when its command is typed, so a missing one would not be seen before."""
    module = importlib.import_module("rpr.sweep.command" if name == "sweep" else f"rpr.commands.{name}")
    assert hasattr(module, "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is told where no GPU is")
def test_gpus_that_are_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real training command, which looks for its devices before anything else
    told = refused(capsys, "train", "model=big", "hardware=8xgpu", "runs_dir=/nonexistent/runs")
    assert told.startswith("hardware=8xgpu: 8 GPUs requested, but 0 available; choose hardware=cpu")


def test_a_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    told = refused(capsys, "train", f"runs_dir={tmp_path}/file/runs")
    assert told.startswith("runs_dir: ") and told.endswith("choose another runs_dir=...")


def test_cfg_job_prints_the_composed_configuration(capsys: pytest.CaptureFixture[str], started: list[str]) -> None:
    assert app.main(["train", "--cfg", "job", "--resolve", "model=big", "hardware=8xgpu"]) == 0
    out, err = capsys.readouterr()
    shown = yaml.safe_load(out)
    assert err == "" and started == []
    assert shown["optim"]["max_steps"] == 300_000 and shown["position"]["clip_distance"] == 8
    assert "hydra" not in shown


@pytest.mark.parametrize("name", sorted(set(app.COMMANDS) - {"sweep"}))
def test_help_of_a_command_lists_groups_and_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:  # Hydra ends the process itself after its help
        app.main([name, "--help"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert "runs_dir: runs" in out and err == ""
    assert "position: absolute, absolute_and_relative, alibi" in out


def test_one_job_and_several(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["train", "seed=4", "name=a-b"]) == 0
    assert started == ["rpr-cli train seed=4 name=a-b"]
    started.clear()
    assert app.main(["train", "-m", "position.clip_distance=0,2", "seed=1,2"]) == 1  # what stands for training here
    assert started == [  # leaves no record
        f"rpr-cli train position.clip_distance={k} seed={seed}" for k, seed in ((0, 1), (0, 2), (2, 1), (2, 2))
    ]


def test_a_whole_job_in_one_word(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["train", "job=seed=4 'name=a'", "logger=none"]) == 0
    assert started == ["rpr-cli train seed=4 name=a logger=none"]
    assert 'job: "job=\'a" cannot be split into words (No closing quotation)' in refused(capsys, "train", "job='a")


def test_jobs_of_a_multirun_share_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """-m with sweep= keeps that name; else a sweep is called after its overrides, alike when they are given again."""
    sweeps: list[str | None] = []
    monkeypatch.setattr(train, "run", lambda config, **options: sweeps.append(config.sweep))
    assert app.main(["train", "seed=1"]) == 0
    for words in (["seed=1,2"], ["seed=1,2"], ["seed=1,3"], ["seed=1,2", "sweep=mine"]):
        assert app.main(["train", "-m", *words]) == 1
    assert sweeps[0] is None and str(sweeps[1]).startswith("multirun-")
    assert len({*sweeps[1:5]}) == 1 and sweeps[5] == sweeps[6] != sweeps[1]
    assert sweeps[7:] == ["mine", "mine"]


def test_a_multirun_is_a_sweep(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Settings of sweep's own go with -m too, and choices of --config-dir."""
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/narrow.yaml").write_text("defaults: [tiny, _self_]\nname: narrow\nd_model: 64\n")
    words = ["--config-dir=mine", "model=narrow", "optim=tiny", "seed=1,2", "retry_failed=true"]
    assert app.main(["train", "-m", *words]) == 1
    assert started == [f"rpr-cli train model=narrow optim=tiny seed={seed}" for seed in (1, 2)]
    assert "2 jobs: 2 new" in capsys.readouterr().err
    assert "cannot be combined with --config-name" in refused(capsys, "train", "-m", "--config-name=x", "seed=1")


def test_a_failing_job_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def run(config: object, *, command: str, in_sweep: bool, **options: object) -> None:
        assert in_sweep
        if "seed=1" in command:
            raise RunError("the loss\nexploded")
        if "seed=2" in command:
            raise ZeroDivisionError("a bug")
        done.append(command)

    monkeypatch.setattr(train, "run", run)
    assert app.main(["train", "-m", "seed=1,2,3"]) == 1
    assert done == ["rpr-cli train seed=3"]
    err = capsys.readouterr().err
    assert "Traceback" in err  # of the bug
    failed = [line.rpartition(": ")[2] for line in err.splitlines() if line.startswith("rpr-cli: failed: ")]
    assert failed == ["the loss exploded", "a bug", "never started"]


def test_a_bug_keeps_its_traceback_and_an_interrupt_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(config: object, *, command: str) -> None:
        raise error

    monkeypatch.setattr(train, "run", run)
    error: BaseException = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        app.main(["train"])
    error = KeyboardInterrupt()
    assert app.main(["train"]) == 130
    assert capsys.readouterr().err == (
        "rpr-cli: interrupted; rerun the same command to resume from the last checkpoint\n"
    )


def test_dry_run_of_the_quick_sweep(capsys: pytest.CaptureFixture[str], started: list[str]) -> None:
    assert app.main(["sweep", "quick", "--dry-run", "seed=3"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()[1::2]
    assert len(lines) == 7 and err == "" and started == []
    assert out.splitlines()[0].startswith(
        "# 1 of 7, new: 0.79 M parameters, 700 steps, at most 1.43 M tokens a side, time unk"
    )
    assert out.splitlines()[-1].startswith("# 7 jobs: 7 new; remaining: time unknown")
    assert lines[0] == (
        "rpr-cli train model=tiny data=synthetic optim.max_steps=400 optim.validate_every_n_steps=100 "
        "optim.average_checkpoints=1 position=absolute seed=3 sweep=quick"
    )
    assert all(line.endswith("seed=3 sweep=quick") for line in lines)
    # Each line is a command that may be typed as it stands.
    for line in lines:
        assert app.main(line.split()[1:]) == 0
    assert len(started) == 7


def test_the_quick_sweep_starts_what_the_dry_run_lists(capsys: pytest.CaptureFixture[str], started: list[str]) -> None:
    assert app.main(["sweep", "quick", "--dry-run"]) == 0
    listed = [line.removesuffix(" sweep=quick") for line in capsys.readouterr().out.splitlines()[1::2]]
    assert app.main(["sweep", "quick"]) == 1  # what stands for training here leaves no record
    assert started == listed
    assert capsys.readouterr().err.count(": never started\n") == 7


def test_sweep_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["quick", "--help"]):
        assert app.main(["sweep", *words]) == 0
        assert "  quick " in capsys.readouterr().out
    assert app.main(["sweep"]) == 2


def test_the_installed_script_is_quick_and_imports_nothing_heavy() -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        shown = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - started)
    assert shown.stdout.startswith("usage: rpr-cli")
    assert min(seconds) < 2  # 0.1 s where it was written; a machine under load is forgiven
    heavy = ("torch", "hydra", "omegaconf", "pydantic", "pytorch_lightning", "wandb", "numpy", "datasets")
    code = f"import sys; from rpr.cli import app; app.main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "[]"


def test_cli_py_in_a_checkout_is_the_same_command() -> None:
    script = Path(__file__).parents[2] / "cli.py"
    told = subprocess.run([sys.executable, script, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"rpr-cli {__version__}\n"
    told = subprocess.run([sys.executable, script, "trian"], capture_output=True, text=True, env={**os.environ})
    assert told.returncode == 2 and told.stderr.startswith("rpr-cli: no such command 'trian'; did you mean train?")


def test_bench_compares_the_variants_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["model.d_model=32", "model.num_layers=1", "model.d_ff=32", "data.vocabulary_size=50"]
    work = ["sentences=4", "length=6", "rounds=2", "steps_per_round=1", "variants=[absolute,relative]"]
    layer = ["layer.lengths=[4,8]", "layer.positions=16", "layer.clip_distances=[3]", "layer.rounds=2"]
    gradients = ["gradients.length=9", "gradients.clip_distance=2"]
    lengths = ["parts=[step,length,layer,gradients]", "by_length.lengths=[4,8]", "by_length.tokens=16"]
    command = ["bench", *sizes, *work, *layer, *gradients, *lengths, "by_length.implementations=[auto,composed]"]
    assert app.main([*command, "model.relative_defaults.clip_distance=3", "format=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    baseline, relative = document["step"]
    assert (baseline["variant"], baseline["relative_speed"], baseline["relative_memory"]) == ("absolute", 1.0, 1.0)
    assert relative["variant"] == "relative" and relative["peak_megabytes"] > baseline["peak_megabytes"]
    assert relative["min"] <= relative["relative_speed"] <= relative["max"]
    assert all(0 < row["utilisation"] < 1 and row["resident_megabytes"] > 50 for row in document["step"])
    assert document["products"]["size"] == 128 and document["products"]["operations_per_second"] > 0
    rows = [(row["length"], row["sentences"], row["variant"]) for row in document["length"]]
    assert rows == [(n, 16 // n, name) for n in (4, 8) for name in ("absolute", "relative", "relative (composed)")]
    assert all(
        row["target_tokens_per_second"] == pytest.approx(16 * row["steps_per_second"]) for row in document["length"]
    )
    cases = [(row["length"], row["batch"], row["causal"], row["variant"]) for row in document["layer"]]
    names = ["absolute", "relative", "relative (per_position)"]
    assert cases == [(n, 16 // n, causal, name) for causal in (False, True) for n in (4, 8) for name in names]
    assert [row["algorithm"] for row in document["gradients"]] == ["attend", "per_position"]
    assert all(0 < row["keys"] < 1 and 0 < row["values"] < 1 for row in document["gradients"])
    assert app.main(command) == 0
    printed = capsys.readouterr().out
    assert (
        printed.index("Whole training step: ")
        < printed.index("by length")
        < printed.index("One self-attention")
        < printed.index("in bfloat16")
    )
    assert app.main([*command, "parts=[gradients]", "layer.algorithms=[attend,composed]"]) == 0
    printed = capsys.readouterr().out
    assert "composed" in printed and "One self-attention" not in printed


@pytest.mark.parametrize(
    "name",
    ["plain.txt", "two words.txt", "it's.txt", "a,b [c] {d} $e.txt", "back\\slash.txt", "end\\", "\\'", "Füße.txt"],
)
def test_words_behind_a_command_arrive_as_they_were_typed(name: str) -> None:
    """Through Hydra's grammar, where most of these characters mean something."""
    for command, words, key, expected in (
        ("translate", ["run=x", "--", name, name], "input", name),
        ("translate", ["run=x", "--", "in", name], "output", name),
        ("compare", [f"runs/{name}", "samples=200", "runs/b"], "runs", [f"runs/{name}", "runs/b"]),
    ):
        assert app.compose(command, to_overrides(command, words))[key] == expected
