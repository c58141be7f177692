"""The W&B run on disk and on a fake server against the run's own files: online, offline, resumed, and with failures."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb

from rpr.commands import train
from rpr.errors import RunError
from rpr.records.record import read_record
from rpr.tracking import naming, wandb_client, wandb_logger
from rpr.training import fit
from tests.tracking.fake_wandb import KEY
from tests.tracking.runs import messages, read_back

pytestmark = pytest.mark.usefixtures("wandb_home")

RECIPE = (  # a line of metrics.jsonl is written every 25 steps
    "optim.max_steps=25", "optim.validate_every_n_steps=25", "optim.checkpoint_every_n_steps=10", "sweep=table2",
    "evaluation.validation_sentences=4", "evaluation.beam_size=2", "position.clip_distance=3", "logger=wandb",
    "logger.tags=[tried]",
)  # fmt: skip
OFFLINE = (*RECIPE, "logger=wandb_offline")
TAGS = {"synthetic", "tiny", "relative", "synthetic data", "tried"}
FLAT = {
    "k": 3, "keys": True, "values": True, "absolute": "none", "tables": "per_head", "position_name": "relative",
    "variant": "relative, k = 3", "model_name": "tiny", "data_name": "synthetic", "seed": 1, "sweep": "table2",
}  # fmt: skip


def row(step):
    """What training, or validation if step % 100 is 99, logs at a step."""
    return {"validation/loss": step / 100} if step % 100 == 99 else {"train/loss": step / 10}


def write(run_dir, steps):
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "time": 0.5, **row(step)}) + "\n" for step in steps)


def train_through(logger, run_dir, steps, *, resumed_from=None):
    """Drops the rows after the checkpoint, then writes and logs a row per step."""
    path = run_dir / "metrics.jsonl"
    if resumed_from is not None:
        kept = [line for line in path.read_text().splitlines(True) if json.loads(line)["step"] <= resumed_from]
        path.write_text("".join(kept))
    for step in steps:
        write(run_dir, [step])
        logger.log_metrics(row(step), step=step)


def finished(logger, run_dir, steps, **settings):
    """Trains through the steps and ends the W&B run."""
    train_through(logger, run_dir, steps, **settings)
    logger.finish({}, failed=False)


def expected(steps, name="train/loss"):
    return [(step, row(step)[name]) for step in steps if name in row(step)]


def start(config, run_dir):
    run_dir.mkdir(parents=True, exist_ok=True)
    return wandb_logger.start(config, run_dir, synthetic=True)


def where_it_is(run_dir):
    return f"the run is logged offline, and `wandb sync {run_dir}/wandb/offline-run-*` uploads it"


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def test_run_without_a_key_is_logged_offline(tiny_config, small_data, capsys, monkeypatch):
    """It does not prompt for one on the terminal, of which nothing can be read here."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    config = tiny_config(*RECIPE)
    typed = list(sys.argv)
    run_dir = train.run(config, command="rpr-cli train seed=1 'logger.tags=[a, b]'")
    assert messages(capsys) == [
        "no key found (WANDB_API_KEY, or `wandb login`); the run is logged offline",
        where_it_is(run_dir),
    ]
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    assert (record.wandb.mode, record.wandb.id) == ("offline", config.run_id)
    run = found["run"]
    assert (run.run_id, run.project, run.run_group, run.display_name) == (config.run_id, "rpr", "table2", config.label)
    assert set(run.tags) == TAGS
    assert found["config"].items() >= {**FLAT, "run_id": config.run_id}.items()
    assert found["config"]["optim"]["max_steps"] == 25
    assert record.scores
    for score in record.scores:
        assert found["summary"][naming.score_name(score.split, score.metric)] == score.score
    assert found["exit"] == 0
    assert found["command"] == ["rpr-cli", "train", "seed=1", "logger.tags=[a, b]"]
    assert sys.argv == typed and found["commit"] == (record.git.commit or "")
    assert {"proc.memory.rssMB", "memory_percent"} <= found["stats"]
    assert not list(run_dir.rglob("*.patch"))
    # Every number of metrics.jsonl is logged at its step, which is also the axis of every chart.
    step = "trainer/global_step"
    assert found["axes"] == {step: "", "*": step, "validation/loss": step, "validation/bleu": step, "k": ""}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    written = {(line["step"], name, line[name]) for line in rows for name in line.keys() - {"step", "time"}}
    metrics = {name for _, name, _ in written}
    mirrored = {(line[step], name, line[name]) for line in found["history"] for name in line.keys() & metrics}
    assert mirrored == written and {"train/loss", *naming.BEST, naming.STEPS_PER_SECOND} <= metrics
    # Of the whole training, as in the record, not of the steps since the last row but one.
    assert found["summary"][naming.STEPS_PER_SECOND] == record.training.steps_per_second
    assert [line["_step"] for line in found["history"]] == [line[step] for line in found["history"]]


def test_artifacts_are_the_results_and_the_last_checkpoint(tiny_config, run_dir):
    config = tiny_config(*OFFLINE, "logger.artifacts=checkpoint")
    logger = start(config, run_dir)
    results = {"record.json", "config.yaml", "test.hypotheses.txt"}
    (run_dir / "checkpoints").mkdir()
    for name in (*results, "job.json", "log.txt", *(f"checkpoints/step{step:08d}.ckpt" for step in (9, 10))):
        (run_dir / name).write_text("x")
    (run_dir / "link.txt").symlink_to("/etc/hostname")
    logger.log_artifacts()
    logger.finish({}, failed=False)
    expected = {f"results-{config.run_id}": results, f"model-{config.run_id}": {"step00000010.ckpt"}}
    assert read_back(run_dir)["artifacts"] == expected


def test_online_run_arrives(tiny_config, run_dir, server, capsys):
    config = tiny_config(*RECIPE)
    logger = start(config, run_dir)
    reference = wandb_logger.reference(logger)
    assert (reference.id, reference.mode) == (config.run_id, "online")
    assert reference.url.endswith(f"/rpr/runs/{config.run_id}")
    steps = [25, 50, 75, 99, 100]
    train_through(logger, run_dir, steps)
    logger.log_metrics({"validation/bleu": 20.0}, step=100)
    logger.finish({"test/sacrebleu": 31.25, "steps_per_second": None}, failed=False)
    (run,) = server.runs.values()
    named = [run.given[name] for name in ("groupName", "jobType", "displayName")]
    assert [run.name, run.project, *named] == [config.run_id, "rpr", "table2", "train", config.label]
    assert set(run.given["tags"]) == TAGS and run.config["model"]["d_model"] == 32
    assert run.series("train/loss") == expected(steps)
    assert run.series("validation/loss") == expected(steps, "validation/loss")
    assert run.series("validation/bleu") == [(100, 20.0)]
    assert [line["_step"] for line in run.history] == steps
    assert run.summary["test/sacrebleu"] == 31.25 and "steps_per_second" not in run.summary
    assert run.exit_code == 0
    assert messages(capsys) == [reference.url]


def test_resumed_run_continues_without_losing_rows(tiny_config, run_dir, server):
    config = tiny_config(*RECIPE)
    logger = start(config, run_dir)
    train_through(logger, run_dir, [25, 50, 75, 99, 100])
    logger.finish({}, failed=True)
    (run,) = server.runs.values()
    assert run.exit_code == 1
    run.forget_after(75)  # the last rows were lost when the process was killed
    logger = start(config, run_dir)
    # Resumed before the last row that arrived: 75 is trained again, 99 and 100 are new rows.
    finished(logger, run_dir, [75, 99, 100, 125], resumed_from=60)
    assert list(server.runs) == [config.run_id] and run.exit_code == 0
    assert run.series("validation/loss") == expected([99], "validation/loss")
    steps = [line["_step"] for line in run.history]
    assert steps == [25, 50, 75, 76, 99, 100, 125]  # W&B would drop a second row at step 75
    run.forget_after(99)
    # Resumed after it: the missing rows (100, 125) are taken from metrics.jsonl.
    finished(start(config, run_dir), run_dir, [150], resumed_from=130)
    assert [line["_step"] for line in run.history] == [25, 50, 75, 76, 99, 100, 125, 150]
    assert run.series("train/loss") == expected([25, 50, 75, 75, 100, 125, 150])


def test_another_training_with_the_same_settings_is_a_run_of_its_own(tiny_config, run_dir, server):
    """After again=true, in another folder, or of another person in the project."""
    config, again = tiny_config(*RECIPE), run_dir.with_name("again")
    finished(start(config, run_dir), run_dir, [25, 50])
    finished(start(config, again), again, [25])
    finished(start(config, again), again, [50, 75], resumed_from=25)
    finished(start(config, run_dir), run_dir, [75], resumed_from=50)
    steps = {name: [line["_step"] for line in run.history] for name, run in server.runs.items()}
    assert steps == {config.run_id: [25, 50, 75], f"{config.run_id}-2": [25, 50, 75]}


def test_the_folder_of_a_part_that_began_in_the_same_second_as_another_has_the_same_id(tmp_path):
    for name, run_id in (("run-1_1-ab", "ab"), ("offline-run-1_2-ab-2", "ab-2"), ("run-1_2-ab-2-1", "ab-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"run-{run_id}.wandb").touch()
    parts = [*tmp_path.iterdir()]
    assert [wandb_logger._newest_id(some, "ab") for some in (parts, parts[:0])] == ["ab-2", "ab"]


@pytest.mark.parametrize("mirrored, repeated", [((), [100]), ((25, 50), [50, 75, 100])])
def test_later_part_of_an_offline_run_gets_the_rows_that_may_be_missing(mirrored, repeated, tiny_config, run_dir):
    """The newest, which W&B may not yet have written when the process was killed; and those after the last mirrored."""
    config = tiny_config(*OFFLINE)
    if mirrored:
        finished(start(config, run_dir), run_dir, mirrored)
        (part,) = (run_dir / "wandb").glob("offline-run-*")
        part.rename(run_dir / "first")  # so that read_back finds the later one
    (run_dir / "wandb" / "offline-run-1-x").mkdir(parents=True)
    write(run_dir, (25, 50, 75, 100))  # with logger=none
    finished(start(config, run_dir), run_dir, [125, 150], resumed_from=110)
    found = read_back(run_dir)
    assert [line["_step"] for line in found["history"]] == [*repeated, 125, 150]
    assert found["run"].run_id == config.run_id


def test_failed_run_is_closed(tiny_config, small_data, monkeypatch):
    def fails(*arguments, **settings):
        raise RunError("the loss became non-finite")

    monkeypatch.setattr(fit, "fit", fails)
    config = tiny_config("logger=wandb_offline", "optim.max_steps=25", "position=none", "seed=2")
    with pytest.raises(RunError, match="the loss became non-finite"):
        train.run(config, command="rpr-cli train seed=2")
    run_dir = Path(config.runs_dir) / config.run_dir_name
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    assert found["exit"] == 1 and found["config"]["k"] is None and found["config"]["keys"] is False
    assert (record.status, record.error) == ("failed", "the loss became non-finite")
    assert wandb.run is None


def test_key_lookup(monkeypatch, tmp_path):
    """In ~/.netrc, by the server's name, and in the environment."""

    def found(**more):
        servers = ("https://api.wandb.ai", "http://wandb.example:8080")
        return [wandb_client.has_key(wandb.Settings(base_url=server, **more)) for server in servers]

    assert found() == [False, False] and found(identity_token_file="token") == [True, True]
    for place, expected in {"api.wandb.ai": [True, False], "wandb.example:8080": [False, True]}.items():
        (tmp_path / "home" / ".netrc").write_text(f"machine {place} login user password {KEY}\n")
        assert found() == expected
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert found() == [True, True]


def test_unreachable_server_falls_back_to_offline(tiny_config, run_dir, monkeypatch, server, capsys):
    monkeypatch.setattr(wandb_logger, "INIT_TIMEOUT_SECONDS", 0.5)
    server.close()
    config = tiny_config(*RECIPE)
    began = time.monotonic()
    logger = start(config, run_dir)
    assert time.monotonic() - began < 10
    assert wandb_logger.reference(logger).mode == "offline"
    finished(logger, run_dir, [25, 50])
    line, last = messages(capsys)
    assert line.endswith("; the run is logged offline") and last == where_it_is(run_dir)
    # There is one complete part: the online one was removed.
    found = read_back(run_dir, "*run-*")
    assert found["run"].run_id == config.run_id and found["exit"] == 0
    assert [line["_step"] for line in found["history"]] == [25, 50]


def test_network_lost_during_training(tiny_config, run_dir, server, capsys):
    logger = start(tiny_config(*RECIPE, "logger.finish_timeout_seconds=0.5"), run_dir)
    train_through(logger, run_dir, [25, 50])
    server.close()
    train_through(logger, run_dir, [75, 100])
    assert messages(capsys) == [wandb_logger.reference(logger).url]
    began = time.monotonic()
    logger.finish({"test/sacrebleu": 12.5}, failed=False)
    assert time.monotonic() - began < 0.5 + 5
    (part,) = run_dir.glob("wandb/run-*")
    assert messages(capsys) == [
        f"not everything was uploaded within 0.5 s; the run is complete in {run_dir}, "
        f"and `wandb sync --include-online {part}` uploads what W&B has on disk"
    ]
    found = read_back(run_dir, "run-*")
    assert [line["_step"] for line in found["history"]] == [25, 50, 75, 100]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_run_survives_the_end_of_the_wandb_process(how, tiny_config, run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wandb_logger, "GRACE_SECONDS", 1)
    settings = (*OFFLINE, "logger.finish_timeout_seconds=1")
    logger = start(tiny_config(*settings), run_dir)
    train_through(logger, run_dir, [25, 50])
    process = logger._service
    process.send_signal(how)
    began = time.monotonic()
    train_through(logger, run_dir, list(range(75, 20_000, 25)))  # more than the pipe holds
    assert time.monotonic() - began < 2
    logger.log_artifacts()
    logger.finish({"test/sacrebleu": 12.5}, failed=False)
    assert time.monotonic() - began < 8
    (line,) = messages(capsys)
    (part,) = run_dir.glob("wandb/offline-run-*")
    remedy = f"the run is complete in {run_dir}, and `wandb sync {part}` uploads what W&B has on disk"
    assert line.endswith(f"; mirroring stopped; {remedy}")
    process.wait(5)
    # The next run in this process starts a new one. A long name makes a tag of the length that W&B allows.
    settings = (*settings, "seed=2", "logger.system_metrics=false", f"data.name={'d' * 65}", "name=short")
    finished(start(tiny_config(*settings), tmp_path / "other"), tmp_path / "other", [25])
    found = read_back(tmp_path / "other")
    assert found["exit"] == 0 and "d" * 64 in found["run"].tags
    assert found["stats"] == set()
    assert messages(capsys) == [where_it_is(tmp_path / "other")]


@pytest.mark.parametrize("name, value, rule", [
    ("WANDB_MODE", "Offlien", "must be 'online', 'offline', "), ("WANDB_SILENT", "maybe", "must be true or false"),
    ("WANDB_BASE_URL", "127.0.0.1:9", "must be a valid URL"),
])  # fmt: skip
def test_variable_with_an_invalid_value_is_named(name, value, rule, tiny_config, run_dir, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    assert wandb_logger.start(tiny_config(*OFFLINE), run_dir, synthetic=True) is None
    (line,) = messages(capsys)
    assert line.startswith(f"{name}: invalid value {value!r}: {rule}") and "the run continues without W&B" in line


@pytest.mark.parametrize("mode, configured, lines", [
    ("dryrun", "wandb", ["offline by WANDB_MODE or `wandb offline`"]),
    ("disabled", "wandb", ["disabled by WANDB_MODE"]),
    ("online", "wandb_offline", []),
])  # fmt: skip
def test_wandb_mode_is_respected(mode, configured, lines, tiny_config, run_dir, monkeypatch, server, capsys):
    monkeypatch.setenv("WANDB_MODE", mode)
    logger = wandb_logger.start(tiny_config(*RECIPE, f"logger={configured}"), run_dir, synthetic=True)
    if logger is not None:
        logger.finish({}, failed=False)
    assert (logger is not None) == run_dir.exists() == (mode != "disabled")
    assert server.requests == []
    assert os.environ["WANDB_MODE"] == mode
    last = [where_it_is(run_dir)] if logger is not None else []
    assert [line.split(";")[0] for line in messages(capsys)] == lines + last


def test_run_under_an_agent_has_its_id_and_all_settings(tiny_config, run_dir, server, monkeypatch, tmp_path):
    given = {"job": "position=absolute optim.max_steps=25"}
    (tmp_path / "given.yaml").write_text("".join(f"{name}:\n  value: {value}\n" for name, value in given.items()))
    names = {"SWEEP_ID": "s1", "RUN_ID": "given", "PROJECT": "theirs", "SWEEP_PARAM_PATH": str(tmp_path / "given.yaml")}
    for name, value in names.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    config = tiny_config("position=absolute", "optim.max_steps=25", "logger=wandb", "sweep=table2")
    logger = start(config, run_dir)
    assert wandb_logger.reference(logger).id == "given"
    finished(logger, run_dir, [25])
    (run,) = server.runs.values()
    assert (run.name, run.project, run.given["sweep"], run.given["groupName"]) == ("given", "theirs", "s1", "table2")
    assert run.series("train/loss") == expected([25]) and run.config["run_id"] == config.run_id
    assert {name: run.config[name] for name in given} == given
    assert run.config["position"]["absolute"] == "sinusoidal" and run.config["variant"] == "absolute (sinusoidal)"
    assert run.config["optim"]["max_steps"] == 25 and run.config["model"]["d_model"] == 32
