"""Checked here: the report that is saved in W&B, as a small server got it: every metric, setting and filter that it
names is one that a mirrored run really has there; the paper's figures against rpr.paper; and each reason for
which no report can be saved, told in one line, without a question and without anything saved.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from typing import Any

import pytest
import wandb

from rpr import paper
from rpr.commands import dashboard as command
from rpr.compose.composition import compose
from rpr.config.commands import DashboardConfig
from rpr.errors import ConfigError
from rpr.tracking import dashboard, naming, wandb_client
from rpr.validation import validate
from tests.tracking.fake_wandb import ENTITY, FakeWandb, Run
from tests.tracking.finished_runs import finished, mirrored, score

pytestmark = [
    pytest.mark.usefixtures("wandb_home"),
    pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning"),  # in wandb-workspaces
]


def configured(*overrides: str) -> DashboardConfig:
    return validate(DashboardConfig, compose("dashboard", overrides))


def create(*overrides: str) -> str:
    config = configured(*overrides)
    return dashboard.create(config.sweep, config.title, config.logger)


@pytest.fixture
def runs(server: FakeWandb) -> None:
    """The server has runs of the sweep table2 in the project rpr."""
    for name in ("a", "b"):
        server.runs[name] = Run(name, "rpr", [{"groupName": "table2", "displayName": name}])


def panels_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    (grid,) = (block for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    panels: list[dict[str, Any]] = grid["metadata"]["panelBankSectionConfig"]["panels"]
    return panels


def runset_of(report: dict[str, Any]) -> dict[str, Any]:
    (grid,) = (block for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    (runset,) = grid["metadata"]["runSets"]
    return dict(runset)


def test_what_the_report_names_is_what_runs_have(tiny_config, tmp_path, server):
    config, run_dir = tiny_config("position.clip_distance=4", "sweep=table2", "logger=wandb"), tmp_path / "run"
    finished(config, run_dir, scores=tuple(score(split, "sacrebleu", 20.0) for split in ("test", "validation")))
    mirrored(config, run_dir, summary={naming.STEPS_PER_SECOND: 4.5})
    address = create("sweep=table2")
    (report,) = server.reports
    assert address.startswith(f"{server.url}/{ENTITY}/rpr/reports/") and address.endswith("--Vmlldzox")
    assert (report["entityName"], report["projectName"], report["type"]) == (ENTITY, "rpr", "runs")
    assert report["displayName"] == "Position representations: sweep table2"
    runset = runset_of(report)
    assert (runset["project"]["entityName"], runset["project"]["name"]) == (ENTITY, "rpr")
    groups = {run.last("groupName") for run in server.runs.values()}
    assert [(one["key"], one["op"], one["value"]) for one in runset["filters"]["filters"]] == [
        ({"section": "run", "name": "group"}, "=", group) for group in groups
    ]
    run = next(iter(server.runs.values()))
    logged = {name for row in run.history for name in row}
    shown = [(panel["viewType"], panel["config"]) for panel in panels_of(report)]
    columns = [column.split(":", 1) for column in runset["runFeed"]["columnOrder"]]
    history = {
        name for kind, one in shown if kind == "Run History Line Plot" for name in (one["xAxis"], *one["metrics"])
    }
    summary = {name for kind, one in shown if kind == "Bar Chart" for name in one["metrics"]}  # of the summary's values
    summary |= {one["yAxis"].removeprefix("summary:") for kind, one in shown if kind == "Scatter Plot"}
    summary |= {name for kind, name in columns if kind == "summary"}
    summary |= {key["key"]["name"] for key in runset["sort"]["keys"] if key["key"]["section"] == "summary"}
    settings = {one["groupBy"] for _, one in shown if "groupBy" in one}
    settings |= {one["xAxis"].removeprefix("config:") for kind, one in shown if kind == "Scatter Plot"}
    settings |= {name for kind, name in columns if kind == "config"}
    assert history == {naming.STEP, naming.VALIDATION_BLEU, naming.VALIDATION_LOSS}
    assert history <= logged
    scores = {naming.score_name(split, "sacrebleu") for split in ("test", "validation")}
    assert summary == {*scores, naming.STEPS_PER_SECOND}
    assert all(isinstance(run.summary[name], int | float) for name in summary)  # {"max": ...} would not be drawn
    names = {name.removesuffix(".value") for name in settings}
    assert names == {"k", "position_name", "variant", "seed"} and names <= run.config.keys()
    assert all(name.endswith(".value") for name in settings)


@pytest.mark.usefixtures("runs")
def test_the_command_saves_what_is_compared_next_to_the_papers_and_prints_the_address_alone(server, capfd):
    command.run(configured("sweep=table2", "title=A report of mine"))
    out, err = capfd.readouterr()
    assert out.strip().endswith("--Vmlldzox") and len(out.splitlines()) == 1 and err == ""
    assert [name for name, _ in server.requests if name not in ("Viewer", "ViewerInfo")] == [
        "GetDefaultEntity", "Runs", "ProjectInternalId", "GetProjects", "upsertView",
    ]  # fmt: skip
    assert wandb.run is None and not wandb.setup().settings.silent, "the process is left as it was"
    (report,) = server.reports
    assert json.dumps(report["spec"], allow_nan=False)
    assert report["displayName"] == "A report of mine"
    panels = panels_of(report)
    kinds = [panel["viewType"] for panel in panels]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "Scatter Plot": 2, "Bar Chart": 3, "Run History Line Plot": 4, "Run Comparer": 1,
    }  # fmt: skip
    grouped = [panel["config"] for panel in panels if "groupBy" in panel["config"]]
    assert len(grouped) == 7
    assert {(shown["groupAgg"], shown["groupArea"], shown["aggregate"]) for shown in grouped} == {
        ("mean", "stddev", True)
    }
    lines = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {(*shown["metrics"], shown["groupBy"]) for shown in lines} == {
        (metric, key) for metric in ("validation/bleu", "validation/loss") for key in ("k.value", "position_name.value")
    }
    assert runset_of(report)["grouping"] == []  # or a point of the scatter plot would be several runs
    places = [tuple(panel["layout"][side] for side in "xywh") for panel in panels]
    squares = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(squares) == len(set(squares)) and max(x for x, _ in squares) < 24
    (text,) = (block["content"] for block in report["spec"]["blocks"] if block["type"] == "markdown-block")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    table2 = {int(row[0]): float(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}
    assert table2 == dict(paper.TABLE2)
    table3 = {(row[1] == "yes", row[0] == "yes"): float(row[2]) for row in rows if row[0] in ("yes", "no")}
    assert table3 == dict(paper.TABLE3)  # by (values, keys)
    assert rows[-6][:2] == ["keys", "values"] and rows[-2] == ["no", "yes", "25.3"]
    assert paper.SOURCE in text and paper.BLEU_KIND in text and text.count("newstest2013") == 2


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("overrides, message", [
    (["sweep=tabel2"], r"sweep: no run of tester/rpr belongs to 'tabel2'; did you mean table2\? \(available: table2\)"),
    (["logger.project=rrp"], r"logger.project: tester has no project 'rrp'; did you mean rpr\? \(available: rpr\)"),
    (["logger=none"], "logger.mode: invalid value none: a dashboard is saved on W&B's server.*logger=wandb"),
    (["logger=wandb_offline"], "logger.mode: invalid value offline: a dashboard"),
])  # fmt: skip
def test_what_is_not_there_is_refused(overrides, message, server):
    with pytest.raises(ConfigError, match=message):
        create(*overrides)
    assert server.reports == []
    assert not [name for name, _ in server.requests if name.startswith("Create")]  # W&B would make the project


@pytest.mark.usefixtures("runs")
def test_a_project_without_sweeps(server):
    for run in server.runs.values():
        run.upserts = [{"displayName": run.name}]
    with pytest.raises(ConfigError, match="belongs to 'table2'; none of its runs belongs to a sweep: leave it out"):
        create("sweep=table2")


@pytest.mark.usefixtures("runs")
def test_the_entity_is_the_one_that_runs_go_to(server, monkeypatch):
    create("logger.entity=a-team")
    monkeypatch.setenv("WANDB_ENTITY", "b-team")
    create()
    assert [report["entityName"] for report in server.reports] == ["a-team", "b-team"]
    assert [runset_of(report)["filters"]["filters"] for report in server.reports] == [[], []], "of no sweep"
    assert [runset_of(report)["project"]["entityName"] for report in server.reports] == ["a-team", "b-team"]


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_mode_holds(mode, server, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.raises(ConfigError, match=f"WANDB_MODE: {mode} .* unset it, or run `wandb online`"):
        create()
    assert server.requests == []


@pytest.mark.parametrize("how", ["refused", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_server_that_does_not_answer(how, server, monkeypatch):
    monkeypatch.setattr(dashboard, "TIMEOUT_SECONDS", 1)
    {"refused": server.close, "silent": server.hang}[how]()
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"logger: the report was not saved \(.*127.0.0.1.*WANDB_BASE_URL") as caught:
        create("sweep=table2")
    assert time.monotonic() - began < 20 and "\n" not in str(caught.value)


def test_a_process_of_wandb_that_does_not_end_is_ended(server, monkeypatch):
    """It has been seen to hold on to a request for ever, and wandb.teardown waits for it."""
    monkeypatch.setattr(wandb_client, "GRACE_SECONDS", 1)
    wandb.Api(timeout=1)
    process = wandb_client.service()
    assert process is not None and process.poll() is None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    began = time.monotonic()
    wandb_client.tear_down()
    assert process.poll() == -signal.SIGKILL and time.monotonic() - began < 5
    with pytest.raises(ConfigError, match="no project"):  # and the next start is like the first
        create()


def test_the_network_may_go_in_the_middle(runs, server, monkeypatch):
    found = dashboard._check_has_runs

    def then_lost(*arguments: Any) -> None:
        found(*arguments)
        server.reject()

    monkeypatch.setattr(dashboard, "_check_has_runs", then_lost)
    with pytest.raises(ConfigError, match="logger: the report was not saved"):
        create("sweep=table2")
    assert server.reports == []


@pytest.mark.usefixtures("terminal")
def test_without_a_key_no_question_is_asked(server, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(ConfigError, match="logger: no W&B key found; set WANDB_API_KEY, or run `wandb login`"):
        create()
    assert server.requests == []


def test_without_the_extra(monkeypatch, server):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb_workspaces" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r"wandb-workspaces is not installed; pip install 'rpr\[dashboard\]'"):
        create()
    assert server.requests == []
