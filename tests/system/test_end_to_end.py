"""Checked here: the command from corpus to report, trained and translated in fresh processes by the installed script,
the rest in this one, with a model so small that its scores mean nothing: what is compared is one command's output with
another's (evaluate with the record, a repeat with the first run, two ranks with one).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
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
from tests.conftest import TINY
from tests.system.conftest import SCRIPT, Config

# Hardly trained models have near-ties, which rounding through bfloat16 settles differently from batch to batch.
EXACT = ("hardware.threads=1", "hardware.matmul_precision=highest")
RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=5",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2", *EXACT,
)  # fmt: skip


def rpr_cli(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, input=stdin, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


class Swept(NamedTuple):
    runs: Path
    words: tuple[str, ...]
    first: subprocess.CompletedProcess[str]
    records: dict[int | None, tuple[Path, Record]]  # by clip distance


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, small_data: object) -> Swept:
    """Two runs of a multirun, made by the command."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = (*TINY, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}")
    words = ("train", "-m", "position.clip_distance=0,2", "sweep=mine", *overrides)
    first = rpr_cli(*words)
    found = {path.parent: read_record(path) for path in sorted(runs.glob("*/record.json"))}
    return Swept(runs, words, first, {position_of(one).clip_distance: (path, one) for path, one in found.items()})


def test_a_multirun_leaves_a_finished_record_of_each_job(swept: Swept) -> None:
    assert set(swept.records) == {0, 2}
    for run_dir, record in swept.records.values():
        assert (record.status, record.steps, record.sweeps) == ("finished", 20, ("mine",))
        assert record.synthetic and record.error is None and record.wandb is None
        assert record.training is not None and record.training.measured_steps == 10  # the first 10 are warm-up
        assert {score.split for score in record.scores} == {"test", "long"}
        assert all(score.checkpoint.startswith("average of 3 (steps 10 to 20)") for score in record.scores)
        assert f"\n{record.name} (synthetic data): sacreBLEU test " in "\n" + swept.first.stdout
        assert f": {run_dir} (" in swept.first.stdout
        for name in ("config.yaml", "metrics.jsonl", "test.hypotheses.txt", "long.references.txt"):
            assert (run_dir / name).stat().st_size > 0
        # The command in the record is that run alone.
        words = shlex.split(record.command)
        assert words[:2] == ["rpr-cli", "train"] and "-m" not in words
        assert validate(TrainConfig, app.compose("train", words[2:])).run_id == record.run_id
    assert "Traceback" not in swept.first.stderr


def test_the_same_command_again_trains_nothing(swept: Swept, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in swept.runs.glob("*/record.json")}
    assert app.main(swept.words) == 0
    told = capfd.readouterr().err
    assert told.count("2 jobs: 2 finished") == 2 and "20/20 steps" not in told
    assert {path: path.read_bytes() for path in swept.runs.glob("*/record.json")} == before


def test_evaluate_gives_the_score_of_the_record(swept: Swept, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir, record = swept.records[2]
    assert app.main(["evaluate", f"run={run_dir}", *EXACT, "format=json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)  # JSON and nothing else on stdout
    assert {(s["split"], s["metric"]): s["score"] for s in document["scores"]} == {
        (s.split, s.metric): s.score for s in record.scores
    }
    assert read_record(run_dir / "record.json") == record


def test_translate_answers_each_line_with_a_line(swept: Swept) -> None:
    run_dir, _ = swept.records[2]
    sources = (run_dir / "test.sources.txt").read_text().splitlines()[:5]
    told = rpr_cli("translate", f"run={run_dir}", *EXACT, stdin="\n".join([*sources, "", sources[0]]) + "\n")
    lines = told.stdout.split("\n")[:-1]
    assert len(lines) == 7 and lines[0] == lines[6]
    assert lines[:5] == (run_dir / "test.hypotheses.txt").read_text().split("\n")[:5]


def test_report_shows_both_runs(swept: Swept, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["report", f"runs_dir={swept.runs}", "sweep=mine", f"output_dir={tmp_path}"]
    assert app.main(words) == 0 and "synthetic" in capfd.readouterr().out.lower()
    folder = tmp_path / "mine"
    assert (folder / "index.html").stat().st_size > 1000 and list(folder.glob("*.md")) and list(folder.glob("*.csv"))
    assert app.main([*words, "format=json"]) == 0
    text = json.dumps(json.loads(capfd.readouterr().out))
    for _, record in swept.records.values():
        assert record.run_id in text or record.name in text


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tiny: list[str], tiny_config: Config) -> None:
    """Through torchrun and gloo; without dropout, whose draws are each rank's own."""
    recipe = [*RECIPE, "optim.microbatches_per_step=2", "model.dropout=0", "optim.max_steps=12"]
    recipe += ["position.clip_distance=2"]
    weights = []
    for hardware in ("cpu", "2xcpu"):
        words = [f"hardware={hardware}", *recipe]
        rpr_cli("train", *tiny, *words)
        config = tiny_config(*words)
        run_dir = Path(config.runs_dir) / config.run_dir_name
        record = read_record(run_dir / "record.json")
        assert (record.status, record.steps) == ("finished", 12)
        step, path = checkpoints(run_dir / "checkpoints")[-1]
        assert step == 12
        weights.append(model_weights(path))
    assert weights[0].keys() == weights[1].keys()
    for name, one in weights[0].items():
        torch.testing.assert_close(weights[1][name], one, rtol=0, atol=1e-5)
