"""The command line from corpus to report, with a tiny model: the output of each command agrees with the others."""

import json
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from rpr.compose.composition import compose_train
from rpr.records.position import position_of
from rpr.records.record import Record, read_record
from tests.conftest import TINY
from tests.system.faults import CommandResult

# A hardly trained model has near-ties, which bfloat16 products resolve differently from batch to batch.
EXACT = ("hardware.threads=1", "hardware.matmul_precision=highest")
RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=5",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2", *EXACT,
)  # fmt: skip


class Swept(NamedTuple):
    runs: Path
    words: tuple[str, ...]
    first: CommandResult
    records: dict[int | None, tuple[Path, Record]]  # by clip distance


@pytest.fixture(scope="module")
def swept(tmp_path_factory, cache_dir, small_data, fork_server):
    """Two runs of a multirun."""
    runs = tmp_path_factory.mktemp("runs")
    again = {setting.split("=")[0] for setting in RECIPE}  # a multirun refuses a setting that is there twice
    tiny = [setting for setting in TINY if setting.split("=")[0] not in again]
    overrides = (*tiny, *RECIPE, f"data.cache_dir={cache_dir}", f"runs_dir={runs}")
    words = ("train", "-m", "position.clip_distance=0,2", "sweep=mine", *overrides)
    first = fork_server.run(words, runs, patch="forked_jobs")
    assert first.code == 0, first.err
    found = {path.parent: read_record(path) for path in sorted(runs.glob("*/record.json"))}
    return Swept(runs, words, first, {position_of(one).clip_distance: (path, one) for path, one in found.items()})


def test_multirun_records_each_job(swept):
    assert set(swept.records) == {0, 2}
    for run_dir, record in swept.records.values():
        assert (record.status, record.steps, record.sweeps) == ("finished", 20, ("mine",))
        assert record.synthetic and record.error is None and record.wandb is None
        assert record.training is not None and record.training.measured_steps == 10  # the first 10 are warm-up
        assert {score.split for score in record.scores} == {"test", "long"}
        assert all(score.checkpoint.startswith("average of 3 (steps 10 to 20)") for score in record.scores)
        assert f"\n{record.name} (synthetic data): sacreBLEU test " in "\n" + swept.first.out
        assert f": {run_dir} (" in swept.first.out
        for name in ("config.yaml", "metrics.jsonl", "test.hypotheses.txt", "long.references.txt"):
            assert (run_dir / name).stat().st_size > 0
        # The recorded command is for that run only.
        words = shlex.split(record.command)
        assert words[:2] == ["rpr-cli", "train"] and "-m" not in words
        assert compose_train(words[2:]).run_id == record.run_id
    assert "Traceback" not in swept.first.err


def test_evaluate_matches_recorded_scores(swept, cli):
    run_dir, record = swept.records[2]
    document = json.loads(
        cli("evaluate", f"run={run_dir}", *EXACT, "format=json").out
    )  # JSON and nothing else on stdout
    assert {(s["split"], s["metric"]): s["score"] for s in document["scores"]} == {
        (s.split, s.metric): s.score for s in record.scores
    }
    assert read_record(run_dir / "record.json") == record


def test_other_buckets_of_a_finished_run_are_scored_by_evaluate(swept, cli):
    run_dir, _ = swept.records[2]
    words = ["length_buckets=[20,30]", "bootstrap_samples=0"]
    reported = [f"evaluation.{word}" for word in words]
    err = cli("train", "position.clip_distance=2", *swept.words[4:], *reported).err
    assert f"rpr-cli evaluate {run_dir} bootstrap_samples=0 'length_buckets=[20,30]'" in err
    document = json.loads(cli("evaluate", f"run={run_dir}", *EXACT, "format=json", *words).out)
    assert [bucket["longest"] for bucket in document["by_length"]["buckets"]] == [20, 30, 64, None]
    assert (
        "length_buckets: [30, 20] is not ascending"
        in cli("evaluate", f"run={run_dir}", "length_buckets=[30,20]", code=2).err
    )


def test_translate_matches_recorded_translations(swept, tmp_path, cli):
    run_dir, _ = swept.records[2]
    sources = (run_dir / "test.sources.txt").read_text().splitlines()[:5]
    (tmp_path / "in.txt").write_text("\n".join([*sources, "", sources[0]]) + "\n")
    lines = cli("translate", f"run={run_dir}", f"input={tmp_path / 'in.txt'}", *EXACT).out.split("\n")[:-1]
    assert len(lines) == 7 and lines[0] == lines[6]
    assert lines[:5] == (run_dir / "test.hypotheses.txt").read_text().split("\n")[:5]
