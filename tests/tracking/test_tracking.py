"""A trained run as W&B and TensorBoard have it on disk, against its own files; calls that hang or fail; the axis after
a resume; W&B's report, saved by a client with made-up answers.
"""

import json
import signal
import struct
import sys
import time
from types import SimpleNamespace as Fake
from unittest.mock import MagicMock

import pytest

from rpr.commands import dashboard, train
from rpr.compose.composition import compose
from rpr.config.commands import DashboardConfig
from rpr.config.train import Origin
from rpr.records.record import read_record
from rpr.runs import runtime
from rpr.tracking import mirror
from rpr.tracking.mirror import tear_down
from rpr.validation import validate
from tests.lazy import loggers

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")  # in wandb-workspaces

RECIPE = (  # a line of metrics.jsonl is written every 25 steps
    "optim.max_steps=25", "optim.validate_every_n_steps=25", "optim.checkpoint_every_n_steps=10", "sweep=table2",
    "evaluation.validation_sentences=4", "evaluation.beam_size=2", "position.clip_distance=3", "logger=wandb",
    "logger.tags=[tried]", "hardware.threads=1",
)  # fmt: skip
FLAT = {
    "k": 3, "keys": True, "values": True, "absolute": "none", "tables": "per_head", "position_name": "relative",
    "variant": "relative, k = 3", "model_name": "tiny", "data_name": "synthetic", "seed": 1, "sweep": "table2",
}  # fmt: skip


@pytest.fixture(autouse=True)
def wandb_home(monkeypatch, tmp_path):
    """A home without a key, cache or settings; a run may write only into its own folder."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(runtime, "set_up", lambda hardware: None)
    monkeypatch.chdir(tmp_path / "here")
    yield
    tear_down()
    assert not list((tmp_path / "here").iterdir())


BLOCK = 32 * 1024


def records(path):
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format in blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, begun = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        rest = BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<4xHB", data, at) if rest >= 7 else (0, 0)
        if kind == 0:  # the end of a block is empty
            at += rest
            continue
        begun += data[at + 7 : (at := at + 7 + length)]
        if at > len(data):  # still being written
            return
        if kind in (1, 4):  # whole, or the last part of it
            yield Record.FromString(begun)
            begun = b""


def values(items):
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_back(run_dir):
    """The only run below the folder: identity, configuration, history, summary, axes, exit code."""
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    found = {"config": {}, "history": [], "summary": {}, "exit": None, "axes": {}, "commit": ""}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                found["run"] = record.run
                found["config"] |= values(record.run.config.update)
            case "config":
                found["config"] |= values(record.config.update)
            case "history":
                found["history"].append(values(record.history.item))
            case "summary":
                found["summary"] |= values(record.summary.update)
            case "metric":
                found["axes"][record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "environment":
                found["commit"] += record.environment.git.commit
                assert not record.environment.git.remote_url
            case "exit":
                found["exit"] = record.exit.exit_code
    return found


def tables_of(run_dir):
    """The tables of the run's history by name."""
    (part,) = run_dir.glob("wandb/offline-run-*")
    rows = read_back(run_dir)["history"]
    paths = {name.removesuffix(".path"): path for row in rows for name, path in row.items() if name.endswith(".path")}
    return {name: json.loads((part / "files" / path).read_text()) for name, path in paths.items()}


def messages(capsys):
    """The lines about W&B that rpr printed to stderr."""
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("rpr-cli: W&B: ") for line in lines if line.startswith("rpr-cli: W&B: ")]


def start(config, run_dir):
    run_dir.mkdir(parents=True, exist_ok=True)
    return loggers.start(config, run_dir, synthetic=True)


def test_offline_run_has_what_the_runs_own_files_have(tiny_config, small_data, capsys, monkeypatch):
    """Without a key it does not prompt for one on the terminal, of which nothing can be read here."""
    monkeypatch.setattr(sys, "stdin", Fake(isatty=lambda: True))
    config = tiny_config(*RECIPE)
    run_dir = train.run(config, command="rpr-cli train seed=1")
    refused, logged = messages(capsys)
    assert refused.startswith("no key found (WANDB_API_KEY, ") and f"{run_dir}/wandb/offline-run-*` uploads" in logged
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    # 1. Identity and settings.
    run = found["run"]
    assert (record.wandb.mode, record.wandb.id) == ("offline", config.run_id)
    assert (run.run_id, run.project, run.run_group, run.display_name) == (config.run_id, "rpr", "table2", config.label)
    assert set(run.tags) == {"synthetic", "tiny", "relative", "synthetic data", "tried"}
    assert found["config"].items() >= {**FLAT, "run_id": config.run_id}.items()
    assert found["config"]["optim"]["max_steps"] == 25
    assert found["commit"] == (record.git.commit or "") and found["exit"] == 0
    assert not list(run_dir.rglob("*.patch"))
    # 2. Every number of metrics.jsonl is logged at its step, which is also the axis of every chart.
    step = "trainer/global_step"
    assert found["axes"] == {step: "", "*": step, "validation/loss": step, "validation/bleu": step, "k": ""}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    written = {(line["step"], name, line[name]) for line in rows for name in line.keys() - {"step", "time"}}
    metrics = {name for _, name, _ in written}
    mirrored = {(line[step], name, line[name]) for line in found["history"] for name in line.keys() & metrics}
    assert mirrored == written and metrics >= {"train/loss", "validation/loss", "validation/bleu", "steps_per_second"}
    assert [line["_step"] for line in found["history"]] == [line[step] for line in found["history"]]
    # 3. Scores and tables are those of the record.
    assert found["summary"][mirror.STEPS_PER_SECOND] == record.training.steps_per_second, "of the whole training"
    for score in record.scores:
        assert found["summary"][f"{score.split}/{score.metric}"] == score.score
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
    monkeypatch.setattr(loggers, "GRACE_SECONDS", 0.2)
    run_dir = tmp_path / "run"
    logger = start(tiny_config(*RECIPE, "logger=wandb_offline", "logger.finish_timeout_seconds=0.2"), run_dir)
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
    monkeypatch.setattr(loggers, "tear_down", lambda: None)
    monkeypatch.setattr(loggers, "service", lambda: None)
    run = MagicMock(starting_step=76, offline=False, project="rpr", settings=Fake(finish_timeout=5.0))
    logger = loggers.WandbMirror(run, tmp_path)
    for step in (75, 100):
        logger.log_metrics({"train/loss": step}, step=step)
    logger.finish({}, failed=False)
    calls = [(call.kwargs.get("step"), call.args[0][mirror.STEP]) for call in run.log.call_args_list[:-1]]
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


def test_a_mean_over_seeds_is_of_runs_trained_alike(tiny_config):
    """Whatever varies beside positions and seed, as in table1, fair, precision or length_generalisation."""
    first = mirror.configuration(tiny_config("name=mine", "sweep=a"))
    assert first.startswith("relative, k = 16 (synthetic, tiny, ")
    assert first == mirror.configuration(tiny_config("seed=2"))
    words = ["data.synthetic.num_train=9", "model.dropout=0.3", "optim.max_steps=7", "position.clip_distance=2"]
    for word in (*words, "hardware.precision=bf16", "hardware.matmul_precision=high"):
        assert mirror.configuration(tiny_config(word)) != first
    origin = {"run": "r", "run_id": "a", "seed": 1, "positions": "RoPE", "steps": 9, "weights": "w"}
    started = [tiny_config().model_copy(update={"origin": Origin(**origin, settings_id=one)}) for one in ("a", "b")]
    assert len({*map(mirror.configuration, started)}) == 2, "of RoPE after 9 steps in two recipes"


def test_a_run_whose_server_does_not_answer_is_logged_offline(tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loggers, "INIT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    logger = start(tiny_config(*RECIPE), tmp_path / "run")
    assert logger.experiment.offline
    logger.finish({}, failed=False)
    refused, logged = messages(capsys)
    assert refused.endswith("; the run is logged offline") and "uploads it" in logged


TENSORBOARD = [*RECIPE, "logger=tensorboard"]


def test_events_of_tensorboard_have_every_number_of_the_runs_own_files(tiny_config, small_data):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = train.run(tiny_config(*TENSORBOARD), command="rpr-cli train")
    record = read_record(run_dir / "record.json")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    expected = {(name, row["step"]): row[name] for row in rows for name in row.keys() - {"step", "time"}}
    expected |= {(f"{score.split}/{score.metric}", record.steps): score.score for score in record.scores}
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    found = {(name, event.step): event.value for name in events.Tags()["scalars"] for event in events.Scalars(name)}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-6) and record.wandb is None


@pytest.fixture
def saved(monkeypatch):
    """The reports that a client saves of the one run of sweep table2, or of documents in the project as a whole."""
    import wandb

    reports = []

    def runs(path, filters=None, **_):
        metrics = ("sacrebleu", "chrf") if filters == {"group": "table2"} else ("bits_per_byte",)
        return iter(
            [Fake(summary=dict.fromkeys([*(f"test/{one}" for one in metrics), f"validation/{metrics[0]}"], 1.0))]
        )

    def execute_graphql(query, variables):
        if "spec" in variables:
            reports.append({**variables, "spec": json.loads(variables["spec"])})
        return {"upsertView": {"view": {"id": "Vmlldzox"}}, "project": {"internalId": "1"}}

    service = Fake(execute_graphql=execute_graphql, app_url="https://person:secret@wandb.test")
    client = Fake(default_entity="tester", settings={"entity": None}, _service_api=service, runs=runs)
    client.projects = lambda entity: [Fake(name="rpr")]
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(wandb, "Api", lambda **_: client)
    return reports


def test_report_of_a_sweep_names_what_its_runs_have(tiny_config, saved, capfd):
    for words in (["sweep=table2"], []):
        dashboard.run(validate(DashboardConfig, compose("dashboard", words)))
    address = "https://wandb.test/tester/rpr/reports/Position-representations:-sweep-table2--Vmlldzox\n"
    assert capfd.readouterr().out.startswith(address), "without the login"
    grids = [next(block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
             for report in saved]  # fmt: skip
    panels = [panel["config"] for panel in grids[0]["panelBankSectionConfig"]["panels"]]
    compared = ["test/sacrebleu", "validation/sacrebleu"]
    metrics = [name for panel in panels for name in panel.get("metrics", ())]
    assert {*metrics} == {*compared, mirror.VALIDATION_BLEU, mirror.VALIDATION_LOSS, mirror.STEPS_PER_SECOND}
    settings = {panel["groupBy"].removesuffix(".value") for panel in panels if panel.get("groupBy")}
    assert settings <= mirror.flat(tiny_config()).keys()
    (group,) = grids[0]["runSets"][0]["filters"]["filters"]
    assert (group["key"]["name"], group["value"]) == ("group", "table2")
    sorts = [order for grid in grids for order in grid["runSets"][0]["sort"]["keys"]]
    orders = [(order["key"]["name"], order["ascending"]) for order in sorts]
    assert orders == [(compared[0], False), ("test/bits_per_byte", True)], "the best first"
