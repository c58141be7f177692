"""The report saved in W&B by a client with made-up answers: its names are those of logged runs, its figures those of
rpr.paper; errors save nothing.
"""

import json
import sys
import time
from types import SimpleNamespace as Fake

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
from tests.tracking.runs import mirror, read_back, write_finished_run

pytestmark = [
    pytest.mark.usefixtures("wandb_home"),
    pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning"),  # in wandb-workspaces
]
GROUPS: dict[str, list[str | None]] = {"rpr": ["table2", "table2"], "alone": [None], "empty": []}  # of runs by project
SCORED = ("test/sacrebleu", "test/chrf", "validation/sacrebleu")


@pytest.fixture
def saved(monkeypatch):
    """The reports that a client saves whose account has the runs of GROUPS."""
    reports = []

    def runs(path, filters=None, **_):
        wanted, project = (filters or {}).get("group"), path.partition("/")[2]
        if project not in GROUPS:
            raise ValueError(path)
        scored = dict.fromkeys(SCORED, 1.0)
        yield from (Fake(group=group, summary=scored) for group in GROUPS[project] if wanted in (None, group))

    def execute_graphql(query, variables):
        if "spec" in variables:
            reports.append({**variables, "spec": json.loads(variables["spec"])})
        return {"upsertView": {"view": {"id": "Vmlldzox"}}, "project": {"internalId": "1"}}

    service = Fake(execute_graphql=execute_graphql, app_url="https://person:secret@wandb.test")
    account = {"default_entity": "tester", "settings": {"entity": None}, "_service_api": service}
    client = Fake(**account, runs=runs, projects=lambda entity: [Fake(name=name) for name in GROUPS])
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(wandb, "Api", lambda **_: client)
    return reports


def panels_of(report, kind):
    (grid,) = (block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    panels = grid["panelBankSectionConfig"]["panels"]
    return [panel["config"] for panel in panels if panel["viewType"] == kind]


def run(*overrides: str) -> None:
    command.run(validate(DashboardConfig, compose("dashboard", overrides)))


def test_report_uses_names_that_runs_have(tiny_config, tmp_path, saved, capfd):
    config = tiny_config("position.clip_distance=4", "sweep=table2", "logger=wandb_offline")
    write_finished_run(config, tmp_path / "run", scores=[fake_score(split, 20.0) for split in ("test", "validation")])
    mirror(config, tmp_path / "run", summary={naming.STEPS_PER_SECOND: 4.5})
    logged = read_back(tmp_path / "run")
    capfd.readouterr()
    run("sweep=table2")
    address = "https://wandb.test/tester/rpr/reports/Position-representations:-sweep-table2--Vmlldzox\n"
    assert capfd.readouterr() == (address, ""), "without the login"
    assert wandb.run is None and not wandb.setup().settings.silent
    (report,) = saved
    assert (report["entityName"], report["projectName"], report["type"]) == ("tester", "rpr", "runs")
    (grid,) = (block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    (runset,) = grid["runSets"]
    assert runset["grouping"] == []  # or a point of the scatter plot would be several runs
    assert [(one["key"], one["op"], one["value"]) for one in runset["filters"]["filters"]] == [
        ({"section": "run", "name": "group"}, "=", logged["run"].run_group)
    ]
    lines, bars, points = (panels_of(report, kind) for kind in ("Run History Line Plot", "Bar Chart", "Scatter Plot"))
    columns = [column.split(":", 1) for column in runset["runFeed"]["columnOrder"]]
    history = {name for line in lines for name in (line["xAxis"], *line["metrics"])}
    assert history == {naming.STEP, naming.VALIDATION_BLEU, naming.VALIDATION_LOSS}
    assert history <= {name for row in logged["history"] for name in row}
    summary = {name for bar in bars for name in bar["metrics"]}
    summary |= {plot["yAxis"].removeprefix("summary:") for plot in points}
    summary |= {name for kind, name in columns if kind == "summary"}
    summary |= {key["key"]["name"] for key in runset["sort"]["keys"] if key["key"]["section"] == "summary"}
    assert summary == {"test/sacrebleu", "validation/sacrebleu", naming.STEPS_PER_SECOND}
    assert all(isinstance(logged["summary"][name], int | float) for name in summary)  # {max: ...} is not drawn
    grouped = [*lines, *bars]
    settings = {panel["groupBy"] for panel in grouped} | {plot["xAxis"].removeprefix("config:") for plot in points}
    settings |= {name for kind, name in columns if kind == "config"}
    assert settings == {f"{name}.value" for name in ("k", "configuration", "seed")}
    assert {name.removesuffix(".value") for name in settings} <= logged["config"].keys()
    assert {(one["groupAgg"], one["groupArea"], one["aggregate"]) for one in grouped} == {("mean", "stddev", True)}
    assert sorted(metric for line in lines for metric in line["metrics"]) == ["validation/bleu", "validation/loss"]


@pytest.mark.parametrize("scored, compared, curve, tables", [
    (["test/bits_per_byte", "validation/bits_per_byte"], ["test/bits_per_byte", "validation/bits_per_byte"],
     "validation/bits_per_byte", 0),
    (["test/sacrebleu", "test/exact_match", "long/exact_match"], ["test/exact_match", "long/exact_match"],
     "validation/bleu", 0),
    ([], ["test/sacrebleu"], "validation/bleu", 1),  # of runs that have not ended
])  # fmt: skip
def test_runs_are_compared_by_their_own_metric(scored, compared, curve, tables, saved, monkeypatch):
    """Of documents bits per byte, of tasks exact match; the paper's tables are of BLEU."""
    monkeypatch.setattr(f"{__name__}.SCORED", scored)
    run()
    (report,) = saved
    bars = [name for bar in panels_of(report, "Bar Chart") for name in bar["metrics"]]
    points = [plot["yAxis"] for plot in panels_of(report, "Scatter Plot")]
    lines = [name for line in panels_of(report, "Run History Line Plot") for name in line["metrics"]]
    assert bars == [*compared, "steps_per_second"] and points == [f"summary:{name}" for name in compared]
    assert lines == [curve, "validation/loss"]
    (grid,) = (block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
    (order,) = grid["runSets"][0]["sort"]["keys"]
    assert order["key"]["name"] == compared[0] and order["ascending"] == compared[0].endswith("bits_per_byte")
    assert sum(block["type"] == "markdown-block" for block in report["spec"]["blocks"]) == tables


def test_figures_are_the_papers_and_title_and_entity_those_given(saved):
    run("title=A report of mine", "logger.entity=a-team")
    (report,) = saved
    assert (report["displayName"], report["entityName"]) == ("A report of mine", "a-team")
    (text,) = (block["content"] for block in report["spec"]["blocks"] if block["type"] == "markdown-block")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert {int(row[0]): float(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()} == dict(paper.TABLE2)
    by_values_and_keys = {(row[1] == "yes", row[0] == "yes"): float(row[2]) for row in rows if row[0] in ("yes", "no")}
    assert by_values_and_keys == dict(paper.TABLE3)


@pytest.mark.parametrize("words, message", [
    ("sweep=tabel2", r"^sweep: no run of tester/rpr belongs to 'tabel2'; did you mean table2\? \(available: table2\)"),
    ("sweep=a logger.project=alone", "belongs to 'a'; none of its runs belongs to a sweep: leave it out for all runs"),
    ("logger.project=rrp", r"^logger.project: tester has no project 'rrp'; did you mean rpr\? \(available: alone, "),
    ("logger.project=empty", "^logger.project: tester/empty has no runs yet; train with logger=wandb first"),
    ("logger=none", "^logger.mode: invalid value none: a dashboard is saved on W&B's server.*logger=wandb"),
    ("WANDB_MODE=offline", "^WANDB_MODE: offline .* unset it, or run `wandb online`"),
    ("WANDB_MODE=disabled", "^WANDB_MODE: disabled .* unset it, or run `wandb online`"),
])  # fmt: skip
def test_what_cannot_be_saved_is_an_error(words, message, saved, monkeypatch):
    """A missing key: system/refused.tsv."""
    if words.startswith("WANDB"):
        monkeypatch.setenv(*words.split("="))
    with pytest.raises(ConfigError, match=message):
        run(*(word for word in words.split() if not word.startswith("WANDB")))
    assert saved == []


def test_unreachable_server_is_an_error(monkeypatch):
    monkeypatch.setattr(dashboard, "TIMEOUT_SECONDS", 0.2)
    for name, value in {"API_KEY": "k" * 40, "BASE_URL": "http://127.0.0.1:9"}.items():  # which refuses
        monkeypatch.setenv(f"WANDB_{name}", value)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"logger: the report was not saved \(.*127.0.0.1.*WANDB_BASE_URL") as caught:
        run("sweep=table2")
    assert time.monotonic() - began < 20 and "\n" not in str(caught.value)


def test_missing_extra_is_an_error(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(ConfigError, match=r"wandb-workspaces is not installed; pip install wandb-workspaces"):
        run()
    assert saved == []
