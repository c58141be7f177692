"""The report saved in W&B by a client with made-up answers: it names what runs have, and errors save nothing."""

import json
from types import SimpleNamespace as Fake

import pytest

from rpr.commands import dashboard as command
from rpr.compose.composition import compose
from rpr.config.commands import DashboardConfig
from rpr.errors import ConfigError
from rpr.tracking import naming
from rpr.validation import validate

pytestmark = [
    pytest.mark.usefixtures("wandb_home"),
    pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning"),  # in wandb-workspaces
]


@pytest.fixture
def saved(monkeypatch):
    """The reports that a client saves of the one run of sweep table2, or of documents in the project as a whole."""
    import wandb

    reports = []

    def runs(path, filters=None, **_):
        translations = ["test/sacrebleu", "test/chrf", "validation/sacrebleu"]
        known = {"table2": translations, None: ["test/bits_per_byte", "validation/bits_per_byte"]}
        names = known.get((filters or {}).get("group"))
        return iter([Fake(summary=dict.fromkeys(names, 1.0))] if names else [])

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


def run(*overrides: str) -> None:
    command.run(validate(DashboardConfig, compose("dashboard", overrides)))


def test_report_of_a_sweep_names_what_its_runs_have(tiny_config, saved, capfd):
    run("sweep=table2")
    address = "https://wandb.test/tester/rpr/reports/Position-representations:-sweep-table2--Vmlldzox\n"
    assert capfd.readouterr() == (address, ""), "without the login"
    run()
    grids = [next(block["metadata"] for block in report["spec"]["blocks"] if block["type"] == "panel-grid")
             for report in saved]  # fmt: skip
    panels = [panel["config"] for panel in grids[0]["panelBankSectionConfig"]["panels"]]
    compared = ["test/sacrebleu", "validation/sacrebleu"]
    metrics = [name for panel in panels for name in panel.get("metrics", ())]
    assert {*metrics} == {*compared, naming.VALIDATION_BLEU, naming.VALIDATION_LOSS, naming.STEPS_PER_SECOND}
    settings = {panel["groupBy"].removesuffix(".value") for panel in panels if panel.get("groupBy")}
    assert settings <= naming.flat(tiny_config()).keys()
    runsets = [grid["runSets"][0] for grid in grids]
    (group,) = runsets[0]["filters"]["filters"]
    assert (group["key"]["name"], group["value"]) == ("group", "table2")
    orders = [(order["key"]["name"], order["ascending"]) for runset in runsets for order in runset["sort"]["keys"]]
    assert orders == [(compared[0], False), ("test/bits_per_byte", True)], "the best first"


@pytest.mark.parametrize("words, message", [
    ("sweep=empty", r"^sweep: empty: tester/rpr has no scored runs; train with logger=wandb first"),
    ("logger=none", "^logger: a dashboard is saved on W&B's server .*; use logger=wandb online"),
])  # fmt: skip
def test_what_cannot_be_saved_is_an_error(words, message, saved):
    """A missing key: system/refused.tsv."""
    with pytest.raises(ConfigError, match=message):
        run(words)
    assert saved == []
