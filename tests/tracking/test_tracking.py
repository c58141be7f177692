"""A trained run as W&B has it on disk, against its own files; calls that hang or fail; the axis after a resume."""

import json
import signal
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rpr.commands import train
from rpr.config.train import Origin
from rpr.records.record import read_record
from rpr.tracking import naming
from tests.lazy import wandb_logger
from tests.tracking.runs import messages, read_back, tables_of

pytestmark = pytest.mark.usefixtures("wandb_home")

RECIPE = (  # a line of metrics.jsonl is written every 25 steps
    "optim.max_steps=25", "optim.validate_every_n_steps=25", "optim.checkpoint_every_n_steps=10", "sweep=table2",
    "evaluation.validation_sentences=4", "evaluation.beam_size=2", "position.clip_distance=3", "logger=wandb",
    "logger.tags=[tried]",
)  # fmt: skip
FLAT = {
    "k": 3, "keys": True, "values": True, "absolute": "none", "tables": "per_head", "position_name": "relative",
    "variant": "relative, k = 3", "model_name": "tiny", "data_name": "synthetic", "seed": 1, "sweep": "table2",
}  # fmt: skip


def where_it_is(run_dir):
    return f"the run is logged offline, and `wandb sync {run_dir}/wandb/offline-run-*` uploads it"


def start(config, run_dir):
    run_dir.mkdir(parents=True, exist_ok=True)
    return wandb_logger.start(config, run_dir, synthetic=True)


def test_offline_run_has_what_the_runs_own_files_have(tiny_config, small_data, capsys, monkeypatch):
    """Without a key it does not prompt for one on the terminal, of which nothing can be read here."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    config = tiny_config(*RECIPE)
    run_dir = train.run(config, command="rpr-cli train seed=1")
    assert messages(capsys) == [
        "no key found (WANDB_API_KEY, or `wandb login`); the run is logged offline",
        where_it_is(run_dir),
    ]
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    # 1. Identity and settings.
    run = found["run"]
    assert (record.wandb.mode, record.wandb.id) == ("offline", config.run_id)
    assert (run.run_id, run.project, run.run_group, run.display_name) == (config.run_id, "rpr", "table2", config.label)
    assert set(run.tags) == {"synthetic", "tiny", "relative", "synthetic data", "tried"}
    assert found["config"].items() >= {**FLAT, "run_id": config.run_id}.items()
    assert found["config"]["optim"]["max_steps"] == 25
    assert found["commit"] == (record.git.commit or "") and found["exit"] == 0
    assert {"proc.memory.rssMB", "memory_percent"} <= found["stats"] and not list(run_dir.rglob("*.patch"))
    # 2. Every number of metrics.jsonl is logged at its step, which is also the axis of every chart.
    step = "trainer/global_step"
    assert found["axes"] == {step: "", "*": step, "validation/loss": step, "validation/bleu": step, "k": ""}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    written = {(line["step"], name, line[name]) for line in rows for name in line.keys() - {"step", "time"}}
    metrics = {name for _, name, _ in written}
    mirrored = {(line[step], name, line[name]) for line in found["history"] for name in line.keys() & metrics}
    assert mirrored == written and {"train/loss", *naming.BEST, naming.STEPS_PER_SECOND} <= metrics
    assert [line["_step"] for line in found["history"]] == [line[step] for line in found["history"]]
    # 3. Scores and tables are those of the record.
    assert found["summary"][naming.STEPS_PER_SECOND] == record.training.steps_per_second, "of the whole training"
    for score in record.scores:
        assert found["summary"][naming.score_name(score.split, score.metric)] == score.score
    tables = tables_of(run_dir)
    assert tables.keys() == {"results/scores", "results/translations"}
    shown = [[row[0], row[2], row[3]] for row in tables["results/scores"]["data"]]
    assert shown == [[score.split, score.metric, score.score] for score in record.scores]
    kinds = ("sources", "references", "hypotheses")
    texts = [(run_dir / f"test.{kind}.txt").read_text().split("\n") for kind in kinds]
    for split, line, *shown in tables["results/translations"]["data"]:
        assert (split, shown) == ("test", [text[line - 1] for text in texts])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_calls_that_fail_or_hang_do_not_block_training(how, tiny_config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wandb_logger, "GRACE_SECONDS", 0.2)
    run_dir = tmp_path / "run"
    logger = start(tiny_config(*RECIPE, "logger=wandb_offline", "logger.finish_timeout_seconds=1"), run_dir)
    process = logger._service
    process.send_signal(how)
    began = time.monotonic()
    for step in range(25, 20_000, 25):  # more than the pipe holds
        logger.log_metrics({"train/loss": 1.0}, step=step)
    assert time.monotonic() - began < 2
    logger.finish({"test/sacrebleu": 12.5}, failed=False)
    assert time.monotonic() - began < 10
    (line,) = messages(capsys)
    (part,) = run_dir.glob("wandb/offline-run-*")
    remedy = f"the run is complete in {run_dir}, and `wandb sync {part}` uploads what W&B has on disk"
    assert line.endswith(f"; mirroring stopped; {remedy}")
    process.wait(5)


def test_rows_of_a_resumed_run_keep_their_step(tmp_path, monkeypatch):
    """W&B has rows to step 75, and the run resumes from step 60: the next row takes a step of W&B's own."""
    monkeypatch.setattr(wandb_logger, "tear_down", lambda: None)
    monkeypatch.setattr(wandb_logger, "service", lambda: None)
    run = MagicMock(starting_step=76, offline=False, project="rpr", settings=SimpleNamespace(finish_timeout=5.0))
    logger = wandb_logger.WandbMirror(run, tmp_path)
    for step in (75, 100):
        logger.log_metrics({"train/loss": step}, step=step)
    logger.finish({}, failed=False)
    calls = [(call.kwargs.get("step"), call.args[0][naming.STEP]) for call in run.log.call_args_list[:-1]]
    assert calls == [(None, 75), (100, 100)]


def test_another_training_of_the_same_settings_is_a_run_of_its_own(tiny_config, tmp_path, monkeypatch):
    import wandb

    ids = []

    def init(**given):
        ids.append(given["id"])
        if len(ids) == 1:
            raise wandb.errors.UsageError("run already exists")
        return MagicMock(starting_step=0, offline=False, url="https://wandb.test/run")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    config = tiny_config(*RECIPE)
    start(config, tmp_path)._jobs.put(None)
    assert ids[0] == config.run_id and ids[1].startswith(f"{config.run_id}-"), ids


def test_wandb_mode_is_respected(tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert start(tiny_config(*RECIPE), tmp_path / "run") is None
    assert messages(capsys) == ["disabled by WANDB_MODE; only the local record is written"]


def test_unreachable_server_falls_back_to_offline(tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wandb_logger, "INIT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # which refuses
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    config, run_dir = tiny_config(*RECIPE), tmp_path / "run"
    logger = start(config, run_dir)
    assert wandb_logger.reference(logger).mode == "offline"
    logger.log_metrics({"train/loss": 1.0}, step=25)
    logger.finish({}, failed=False)
    line, last = messages(capsys)
    assert line.endswith("; the run is logged offline") and last == where_it_is(run_dir)
    found = read_back(run_dir, "*run-*")  # the online part was removed
    assert found["run"].run_id == config.run_id and [row["_step"] for row in found["history"]] == [25]


def test_a_mean_over_seeds_is_of_runs_trained_alike(tiny_config):
    """Whatever varies beside positions and seed, as in table1, fair, precision or length_generalisation."""
    first = naming.configuration(tiny_config("name=mine", "sweep=a"))
    assert first.startswith("relative, k = 16 (synthetic, tiny, ")
    assert first == naming.configuration(tiny_config("seed=2"))
    words = ["data.synthetic.num_train=9", "model.dropout=0.3", "optim.max_steps=7", "position.clip_distance=2"]
    for word in (*words, "hardware.precision=bf16", "hardware.matmul_precision=high"):
        assert naming.configuration(tiny_config(word)) != first
    origin = {"run": "r", "run_id": "a", "seed": 1, "positions": "RoPE", "steps": 9, "weights": "w"}
    started = [tiny_config().model_copy(update={"origin": Origin(**origin, settings_id=one)}) for one in ("a", "b")]
    assert len({*map(naming.configuration, started)}) == 2, "of RoPE after 9 steps in two recipes"
