"""A tiny run from corpus to scores: its record, and the outputs of evaluate and translate, which agree with it."""

import json
import shlex

import pytest

from rpr.compose.composition import compose_train
from rpr.records.record import read_record

# A hardly trained model has near-ties, which bfloat16 products resolve differently from batch to batch.
EXACT = ("hardware.threads=1", "hardware.matmul_precision=highest")
RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=5",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2", *EXACT,
)  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(small_run):
    return small_run(*RECIPE, "evaluation.test_splits=[test,long]", "sweep=mine")


def test_record_of_a_run(run_dir):
    record = read_record(run_dir / "record.json")
    assert (record.status, record.steps, record.sweeps) == ("finished", 20, ("mine",))
    assert record.synthetic and record.error is None and record.wandb is None
    assert record.training.measured_steps == 10  # the first 10 are warm-up
    assert {score.split for score in record.scores} == {"test", "long"}
    assert all(score.checkpoint.startswith("average of 3 (steps 10 to 20)") for score in record.scores)
    for name in ("config.yaml", "metrics.jsonl", "test.hypotheses.txt", "long.references.txt"):
        assert (run_dir / name).stat().st_size > 0
    words = shlex.split(record.command)
    assert words[:2] == ["rpr-cli", "train"] and compose_train(words[2:]).run_id == record.run_id


def test_evaluate_matches_recorded_scores(run_dir, cli):
    record = read_record(run_dir / "record.json")
    document = json.loads(cli("evaluate", f"run={run_dir}", *EXACT, "format=json").out)  # nothing else on stdout
    assert {(s["split"], s["metric"]): s["score"] for s in document["scores"]} == {
        (s.split, s.metric): s.score for s in record.scores
    }
    assert read_record(run_dir / "record.json") == record


def test_translate_matches_recorded_translations(run_dir, tmp_path, cli):
    sources = (run_dir / "test.sources.txt").read_text().splitlines()[:5]
    (tmp_path / "in.txt").write_text("\n".join([*sources, "", sources[0]]) + "\n")
    lines = cli("translate", f"run={run_dir}", f"input={tmp_path / 'in.txt'}", *EXACT).out.split("\n")[:-1]
    assert len(lines) == 7 and lines[0] == lines[6]
    assert lines[:5] == (run_dir / "test.hypotheses.txt").read_text().split("\n")[:5]
