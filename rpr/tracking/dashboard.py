"""A saved report in Weights & Biases that compares a project's runs, with the paper's figures beside.

Everything it draws is named in rpr.tracking.naming, where the runs take their names from. It is drawn by W&B
from the mirrored runs; the tables and plots of `rpr-cli report` come from the local records, and need none of this.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

from rpr import paper
from rpr.config.train import LoggerConfig
from rpr.errors import ConfigError, did_you_mean
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES
from rpr.tracking import naming as naming
from rpr.tracking.wandb_client import first_line, has_key, tear_down, without_login

TIMEOUT_SECONDS = 10  # of each request
RUNS_LOOKED_AT = 200  # for the names of a project's sweeps, where the one that was asked for is not among its runs
SPLITS = ("test", "validation")  # the paper's Tables 2 and 3 are of its validation set
HEADLINE = METRIC_NAMES[HEADLINE_METRIC]
PANEL_WIDTH, PANEL_HEIGHT = 12, 8  # of a grid of 24 columns


def create(sweep: str | None, title: str | None, logger: LoggerConfig) -> str:
    """Save the report on W&B's server; returns its address. Never asks anything on a terminal.

    Raises:
        ConfigError: wandb-workspaces is not installed; W&B is off, offline or not to be reached; the project or the
            sweep is not there.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("dashboard: wandb-workspaces is not installed; pip install 'rpr[dashboard]'")
    import wandb

    try:
        _online(logger)
        try:
            api = wandb.Api(timeout=TIMEOUT_SECONDS)
            entity = logger.entity or api.settings["entity"] or api.default_entity  # as the runs: WANDB_ENTITY counts
            if not entity:
                raise ConfigError("logger.entity: the key's owner has no default entity; give logger.entity=...")
            _found(api, entity, logger.project, sweep)
            address: str = report(entity, logger.project, sweep, title).save().url
        except ConfigError:
            raise
        except Exception as error:  # of any kind: no network, a key that is refused, a server of another version
            base_url = wandb.setup().settings.base_url
            raise ConfigError(
                f"logger: the report is not saved ({first_line(error)}); look at the network, the key and the server "
                f"({without_login(base_url)}, set by WANDB_BASE_URL)"
            ) from None
        return without_login(address)
    finally:
        tear_down()


def _online(logger: LoggerConfig) -> None:
    """Refuse what cannot end in a report before a server is asked."""
    import wandb

    if logger.mode != "online":
        raise ConfigError(
            f"logger.mode: {logger.mode} leaves nothing in W&B to draw; a report is saved there: use logger=wandb, or "
            "`rpr-cli report` for the local records"
        )
    settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
    if settings.mode in ("offline", "dryrun", "disabled"):
        raise ConfigError(
            f"WANDB_MODE: {settings.mode} (or `wandb offline`); a report is saved on W&B's server: unset it, or run "
            "`wandb online`"
        )
    if not has_key(settings):
        raise ConfigError("logger: no key for W&B is found; set WANDB_API_KEY, or run `wandb login`")


def _found(api: Any, entity: str, project: str, sweep: str | None) -> None:
    """Refuse a project or sweep that has no runs: W&B would make an empty project, and an empty report."""
    path = f"{entity}/{project}"
    runs = api.runs(path, filters={} if sweep is None else {"group": sweep}, per_page=1)
    try:
        first = next(iter(runs), None)
    except ValueError:
        hint = did_you_mean(project, [one.name for one in api.projects(entity)])
        raise ConfigError(f"logger.project: {entity} has no project {project!r}{hint}") from None
    if first is not None:
        return
    if sweep is None:
        raise ConfigError(f"logger.project: {path} has no runs yet; train with logger=wandb first")
    newest = itertools.islice(api.runs(path, order="-created_at", per_page=RUNS_LOOKED_AT), RUNS_LOOKED_AT)
    known = {run.group for run in newest if run.group}
    hint = did_you_mean(sweep, known) if known else "; none of its runs is of a sweep: leave sweep out for all of them"
    raise ConfigError(f"sweep: no run of {path} belongs to {sweep!r}{hint}")


def report(entity: str, project: str, sweep: str | None, title: str | None) -> Any:
    """The report, not yet saved; building it asks the server for the project's number."""
    wr, expr = _library("reports.v2"), _library("expr")
    of_what = f"sweep {sweep}" if sweep else f"project {project}"
    runset = wr.Runset(
        entity=entity,
        project=project,
        name=of_what,
        filters="" if sweep is None else expr.And(expr.Metric("Group") == sweep),
        order=[wr.OrderBy(wr.SummaryMetric(naming.score_name(SPLITS[0], HEADLINE_METRIC)))],
        pinned_columns=[
            "run:displayName",
            *(f"config:{name}.value" for name in (naming.VARIANT, naming.SEED)),
            *(f"summary:{naming.score_name(split, HEADLINE_METRIC)}" for split in SPLITS),
            f"summary:{naming.STEPS_PER_SECOND}",
        ],
    )
    return wr.Report(
        entity=entity,
        project=project,
        title=title or f"Position representations: {of_what}",
        description=f"Runs of {of_what}, by clip distance k and by variant; the paper's figures beside.",
        width="fluid",
        blocks=[
            wr.H2(text="The runs"),
            wr.PanelGrid(runsets=[runset], panels=_placed(_panels())),
            wr.MarkdownBlock(text=paper_tables()),
        ],
    )


def _panels() -> list[Any]:
    """What is compared: scores over k, variants with their seeds together, curves, speed, settings that differ."""
    wr = _library("reports.v2")
    scores = {split: naming.score_name(split, HEADLINE_METRIC) for split in SPLITS}
    # Bars and lines of a group: the mean of its runs, and their standard deviation.
    groups: dict[str, Any] = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    curves = {f"{HEADLINE} in training": naming.VALIDATION_BLEU, "loss": naming.VALIDATION_LOSS}
    groupings = {"k": naming.CLIP_DISTANCE, "variant of positions": naming.POSITION_NAME}
    return [
        *(
            wr.ScatterPlot(
                title=f"{HEADLINE} against k, {split}",
                x=wr.Config(naming.CLIP_DISTANCE),
                y=wr.SummaryMetric(score),
            )
            for split, score in scores.items()
        ),
        *(
            wr.BarPlot(
                title=f"{HEADLINE} of each variant, {split} (mean of the seeds)",
                metrics=[score],
                groupby=wr.Config(naming.VARIANT),
                **groups,
            )
            for split, score in scores.items()
        ),
        *(
            wr.LinePlot(
                title=f"validation: {what}, by {by}", x=naming.STEP, y=[metric], groupby=wr.Config(key), **groups
            )
            for what, metric in curves.items()
            for by, key in groupings.items()
        ),
        wr.BarPlot(
            title="steps per second of each variant",
            metrics=[naming.STEPS_PER_SECOND],
            groupby=wr.Config(naming.VARIANT),
            **groups,
        ),
        wr.RunComparer(diff_only=True),
    ]


def _placed(panels: list[Any]) -> list[Any]:
    """Two in a row."""
    wr = _library("reports.v2")
    for number, panel in enumerate(panels):
        row, column = divmod(number, 2)
        panel.layout = wr.Layout(x=column * PANEL_WIDTH, y=row * PANEL_HEIGHT, w=PANEL_WIDTH, h=PANEL_HEIGHT)
    return panels


def _library(name: str) -> Any:
    """A module of wandb-workspaces: an extra, and typed so that not all that is documented counts as exported."""
    return importlib.import_module(f"wandb_workspaces.{name}")


def paper_tables() -> str:
    """The paper's Tables 2 and 3 as Markdown."""
    yes_or_no = {True: "yes", False: "no"}
    table2 = [(str(clip_distance), f"{bleu:.1f}") for clip_distance, bleu in paper.TABLE2.items()]
    table3 = [(yes_or_no[keys], yes_or_no[values], f"{bleu:.1f}") for (values, keys), bleu in paper.TABLE3.items()]
    return "\n\n".join(
        [
            f"## The paper's figures\n\n{paper.SOURCE}. English to German, base model; {paper.BLEU_KIND}. They are of "
            f"other data, sizes and lengths of training than most runs here.",
            f"### Table 2: BLEU by clip distance k, {paper.TABLE2_TEST_SET}\n\n" + _markdown(("k", "BLEU"), table2),
            f"### Table 3: relative keys and values, {paper.TABLE3_TEST_SET}\n\n"
            + _markdown(("keys", "values", "BLEU"), table3),
        ]
    )


def _markdown(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---:" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
