"""Checked here: the command from corpus to report, trained and translated in fresh processes by the installed script,
the rest in this one, with a model so small that its scores mean nothing: what is compared is one command's output with
another's (evaluate with the record, a repeat with the first run, two ranks with one).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.records.position import position_of
from rpr.records.record import Record, read_record
from rpr.runs.checkpoints import checkpoints, model_weights
from rpr.validation import validate

SCRIPT = Path(sys.executable).with_name("rpr-cli")
RECIPE = (
    "optim.max_steps=40",
    "optim.warmup_steps=20",
    "optim.checkpoint_every_n_steps=10",
    "optim.validate_every_n_steps=20",
    "evaluation.validation_sentences=4",
    "evaluation.beam_size=2",
    "hardware.threads=1",
    # Hardly trained models have near-ties, which rounding through bfloat16 settles differently from batch to batch.
    "hardware.matmul_precision=highest",
)


def rpr_cli(*arguments: str, expect: int = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, input=stdin, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == expect, f"{done.stdout}\n{done.stderr}"
    return done


Here = Callable[..., tuple[str, str]]


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Here:
    """The command in this process: what it prints on stdout and stderr."""

    def run(*arguments: str, expect: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        code = app.main(arguments)
        out, err = capfd.readouterr()
        assert code == expect, err
        return out, err

    return run


class Swept(NamedTuple):
    runs: Path
    overrides: tuple[str, ...]
    first: subprocess.CompletedProcess[str]

    def records(self) -> dict[int | None, tuple[Path, Record]]:
        """By clip distance."""
        found = {path.parent: read_record(path) for path in sorted(self.runs.glob("*/record.json"))}
        return {position_of(record).clip_distance: (run_dir, record) for run_dir, record in found.items()}


@pytest.fixture(scope="module")
def swept(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, tiny_overrides: tuple[str, ...], small_data: object
) -> Swept:
    """Two runs of a multirun, made by the command."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = (*tiny_overrides, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}")
    first = rpr_cli("train", "-m", "position.clip_distance=0,2", "sweep=mine", *overrides)
    return Swept(runs, overrides, first)


def test_a_multirun_leaves_a_finished_record_of_each_job(swept: Swept) -> None:
    records = swept.records()
    assert set(records) == {0, 2}
    for run_dir, record in records.values():
        assert (record.status, record.steps, record.sweeps) == ("finished", 40, ("mine",))
        assert record.synthetic and record.error is None and record.wandb is None
        assert record.training is not None and record.training.measured_steps == 30  # the first 10 are warm-up
        assert {score.split for score in record.scores} == {"test", "long"}
        assert all(score.checkpoint.startswith("average of 3 (steps 20 to 40)") for score in record.scores)
        assert f"\n{record.name} (synthetic data): sacreBLEU test " in "\n" + swept.first.stdout
        assert f": {run_dir} (" in swept.first.stdout
        for name in ("config.yaml", "metrics.jsonl", "test.hypotheses.txt", "long.references.txt"):
            assert (run_dir / name).stat().st_size > 0
    assert "Traceback" not in swept.first.stderr


def test_the_command_in_a_record_is_that_run_alone(swept: Swept) -> None:
    for _, record in swept.records().values():
        words = shlex.split(record.command)
        assert words[:2] == ["rpr-cli", "train"] and "-m" not in words
        again = validate(TrainConfig, app.compose("train", words[2:]))
        assert again.run_id == record.run_id


def test_the_same_command_again_trains_nothing(swept: Swept, here: Here) -> None:
    before = {path: path.read_bytes() for path in swept.runs.glob("*/record.json")}
    _, told = here("train", "-m", "position.clip_distance=0,2", "sweep=mine", *swept.overrides)
    assert told.count("2 jobs: 2 finished") == 2 and "40/40 steps" not in told
    assert {path: path.read_bytes() for path in swept.runs.glob("*/record.json")} == before


def test_evaluate_gives_the_score_of_the_record(swept: Swept, here: Here) -> None:
    run_dir, record = swept.records()[2]
    told, _ = here(
        "evaluate",
        f"run={run_dir}",
        "hardware.threads=1",
        "hardware.matmul_precision=highest",
        "format=json",
    )
    document: dict[str, Any] = json.loads(told)  # JSON and nothing else on stdout
    assert {(s["split"], s["metric"]): s["score"] for s in document["scores"]} == {
        (s.split, s.metric): s.score for s in record.scores
    }
    assert read_record(run_dir / "record.json") == record


def test_translate_answers_each_line_with_a_line(swept: Swept) -> None:
    run_dir, _ = swept.records()[2]
    sources = (run_dir / "test.sources.txt").read_text().splitlines()[:5]
    told = rpr_cli(
        "translate",
        f"run={run_dir}",
        "hardware.threads=1",
        "hardware.matmul_precision=highest",
        stdin="\n".join([*sources, "", sources[0]]) + "\n",
    )
    lines = told.stdout.split("\n")[:-1]
    assert len(lines) == 7 and lines[0] == lines[6]
    assert lines[:5] == (run_dir / "test.hypotheses.txt").read_text().split("\n")[:5]


def test_report_shows_both_runs(swept: Swept, here: Here, tmp_path: Path) -> None:
    told, _ = here("report", f"runs_dir={swept.runs}", "sweep=mine", f"output_dir={tmp_path}")
    assert "synthetic" in told.lower()
    folder = tmp_path / "mine"
    assert (folder / "index.html").stat().st_size > 1000 and list(folder.glob("*.md")) and list(folder.glob("*.csv"))
    told, _ = here("report", f"runs_dir={swept.runs}", "sweep=mine", f"output_dir={tmp_path}", "format=json")
    text = json.dumps(json.loads(told))
    for _, record in swept.records().values():
        assert record.run_id in text or record.name in text


def test_a_job_that_fails_stops_no_other(swept: Swept, here: Here) -> None:
    """Its settings are legal; its weights overflow. The parent says so, the record keeps the reason, exit code 1."""
    rate = "optim.learning_rate_scale"
    _, told = here("train", "-m", f"{rate}=1e38,1.0", "position.clip_distance=1", *swept.overrides, expect=1)
    records = [read_record(path) for path in swept.runs.glob("*/record.json")]
    (failed,) = [record for record in records if record.status == "failed"]
    assert failed.config["optim"]["learning_rate_scale"] == 1e38
    assert failed.error is not None and failed.error.startswith("step 2: the loss or its gradient is not finite (loss ")
    (other,) = [record for record in records if position_of(record).clip_distance == 1 and record.status == "finished"]
    assert other.steps == 40
    assert f"\n  to retry: rpr-cli train {rate}=1e+38 " in told and "Traceback" not in told
    assert f"rpr-cli: failed: {failed.name}-{failed.run_id}: step 2: the loss" in told


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tiny: list[str], tiny_config: Callable[..., TrainConfig]) -> None:
    """Through torchrun and gloo; without dropout, whose draws are each rank's own."""
    recipe = [
        *RECIPE,
        "optim.microbatches_per_step=2",
        "model.dropout=0",
        "optim.max_steps=12",
        "position.clip_distance=2",
    ]
    recipe.remove("hardware.threads=1")
    weights = []
    for hardware in ("cpu", "2xcpu"):
        rpr_cli("train", f"hardware={hardware}", "hardware.threads=1", *tiny, *recipe)
        config = tiny_config(f"hardware={hardware}", "hardware.threads=1", *recipe)
        run_dir = Path(config.runs_dir) / config.run_dir_name
        record = read_record(run_dir / "record.json")
        assert (record.status, record.steps) == ("finished", 12)
        step, path = checkpoints(run_dir / "checkpoints")[-1]
        assert step == 12
        weights.append(model_weights(path))
    assert weights[0].keys() == weights[1].keys()
    for name, one in weights[0].items():
        torch.testing.assert_close(weights[1][name], one, rtol=0, atol=1e-5)
