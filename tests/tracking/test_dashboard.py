"""The report saved in W&B: its names are those of logged runs, its figures those of rpr.paper; errors save nothing."""

import importlib.util
import time
from typing import Any

import pytest
import wandb

from rpr import paper
from rpr.commands import dashboard as command
from rpr.compose.composition import compose
from rpr.config.commands import DashboardConfig
from rpr.errors import ConfigError
from rpr.tracking import dashboard, naming
from rpr.validation import validate
from tests.fake_records import fake_score
from tests.tracking.fake_wandb import ENTITY, FakeWandb, Run
from tests.tracking.finished_runs import mirror, write_finished_run

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
    """Two runs of the sweep table2 in the project rpr."""
    for name in ("a", "b"):
        server.runs[name] = Run(name, "rpr", [{"groupName": "table2", "displayName": name}])


def panels_and_runset(report: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    (grid,) = (block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    (runset,) = grid["runSets"]
    return grid["panelBankSectionConfig"]["panels"], runset


def test_report_uses_names_that_runs_have(tiny_config, tmp_path, server):
    config, run_dir = tiny_config("position.clip_distance=4", "sweep=table2", "logger=wandb"), tmp_path / "run"
    write_finished_run(config, run_dir, scores=[fake_score(split, 20.0) for split in ("test", "validation")])
    mirror(config, run_dir, summary={naming.STEPS_PER_SECOND: 4.5})
    address = create("sweep=table2")
    (report,) = server.reports
    assert address.startswith(f"{server.url}/{ENTITY}/rpr/reports/") and address.endswith("--Vmlldzox")
    assert (report["entityName"], report["projectName"], report["type"]) == (ENTITY, "rpr", "runs")
    assert report["displayName"] == "Position representations: sweep table2"
    panels, runset = panels_and_runset(report)
    assert (runset["project"]["entityName"], runset["project"]["name"]) == (ENTITY, "rpr")
    groups = {run.last("groupName") for run in server.runs.values()}
    assert [(one["key"], one["op"], one["value"]) for one in runset["filters"]["filters"]] == [
        ({"section": "run", "name": "group"}, "=", group) for group in groups
    ]
    run = next(iter(server.runs.values()))
    logged = {name for row in run.history for name in row}
    shown = [(panel["viewType"], panel["config"]) for panel in panels]
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
def test_command_saves_the_report_and_prints_its_address(server, capfd):
    command.run(configured("sweep=table2", "title=A report of mine", "logger.entity=a-team"))
    out, err = capfd.readouterr()
    assert out.strip().endswith("--Vmlldzox") and len(out.splitlines()) == 1 and err == ""
    assert wandb.run is None and not wandb.setup().settings.silent
    (report,) = server.reports
    assert (report["displayName"], report["entityName"]) == ("A report of mine", "a-team")
    panels, runset = panels_and_runset(report)
    assert runset["project"]["entityName"] == "a-team"
    grouped = [panel["config"] for panel in panels if "groupBy" in panel["config"]]
    assert len(grouped) == 7
    assert {(one["groupAgg"], one["groupArea"], one["aggregate"]) for one in grouped} == {("mean", "stddev", True)}
    lines = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {(*shown["metrics"], shown["groupBy"]) for shown in lines} == {
        (metric, key) for metric in ("validation/bleu", "validation/loss") for key in ("k.value", "position_name.value")
    }
    assert runset["grouping"] == []  # or a point of the scatter plot would be several runs
    places = [tuple(panel["layout"][side] for side in "xy") for panel in panels]
    assert len(places) == len(set(places)) and {x for x, _ in places} == {0, 8, 16}
    (text,) = (block["content"] for block in report["spec"]["blocks"] if block["type"] == "markdown-block")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    table2 = {int(row[0]): float(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}
    assert table2 == dict(paper.TABLE2)
    table3 = {(row[1] == "yes", row[0] == "yes"): float(row[2]) for row in rows if row[0] in ("yes", "no")}
    assert table3 == dict(paper.TABLE3)  # by (values, keys)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("overrides, message", [
    (["sweep=tabel2"], r"sweep: no run of tester/rpr belongs to 'tabel2'; did you mean table2\? \(available: table2\)"),
    (["logger.project=rrp"], r"logger.project: tester has no project 'rrp'; did you mean rpr\? \(available: rpr\)"),
    (["logger=none"], "logger.mode: invalid value none: a dashboard is saved on W&B's server.*logger=wandb"),
])  # fmt: skip
def test_unknown_sweep_project_or_mode_is_an_error(overrides, message, server):
    with pytest.raises(ConfigError, match=message):
        create(*overrides)
    assert server.reports == []
    assert not [name for name, _ in server.requests if name.startswith("Create")]  # W&B would make the project
    for run in server.runs.values():
        run.upserts = [{"displayName": run.name}]
    if overrides == ["sweep=tabel2"]:
        with pytest.raises(ConfigError, match="belongs to 'tabel2'; none of its runs belongs to a sweep: leave it out"):
            create(*overrides)


def test_wandb_mode_is_an_error_without_a_request(server, monkeypatch):
    """So is a missing key: system/refused.tsv."""
    for mode in ("offline", "disabled"):
        monkeypatch.setenv("WANDB_MODE", mode)
        with pytest.raises(ConfigError, match=f"WANDB_MODE: {mode} .* unset it, or run `wandb online`"):
            create()
    assert server.requests == []


def test_unreachable_server_is_an_error(server, monkeypatch):
    monkeypatch.setattr(dashboard, "TIMEOUT_SECONDS", 0.2)
    server.close()
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"logger: the report was not saved \(.*127.0.0.1.*WANDB_BASE_URL") as caught:
        create("sweep=table2")
    assert time.monotonic() - began < 20 and "\n" not in str(caught.value)


def test_missing_extra_is_an_error(monkeypatch, server):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb_workspaces" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r"wandb-workspaces is not installed; pip install 'rpr\[dashboard\]'"):
        create()
    assert server.requests == []
