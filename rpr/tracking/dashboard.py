"""A saved report in Weights & Biases that compares a project's runs with each other and with the paper.

W&B draws it from the mirrored runs, whose metric and config names are in rpr.tracking.naming. `rpr-cli report` does not
need it: its tables and plots come from the local records.
"""

import importlib
import importlib.util
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from rpr import paper
from rpr.config.train import LoggerConfig
from rpr.errors import ConfigError, did_you_mean
from rpr.records.scores import BITS_PER_BYTE, EXACT_MATCH, HEADLINE_METRIC, LOWER_IS_BETTER, METRIC_NAMES, SPLITS
from rpr.tracking import naming
from rpr.tracking.wandb_client import first_line, has_key, tear_down, without_login

TIMEOUT_SECONDS = 10  # of each request
MAX_RUNS_SEARCHED = 200  # for the names of a project's sweeps, if none of its runs is of the requested one
MAX_RUNS_READ = 20  # the newest, for what they are scored by: each may be a request
# What runs are compared by, with the curve in training. Tasks have BLEU too, documents no other.
METRICS = {
    EXACT_MATCH: naming.VALIDATION_BLEU,
    BITS_PER_BYTE: naming.VALIDATION_BITS,
    HEADLINE_METRIC: naming.VALIDATION_BLEU,
}
_SCORES = [(metric, split) for metric in METRICS for split in SPLITS]


def create(sweep: str | None, title: str | None, logger: LoggerConfig) -> str:
    """Save the report on W&B's server; returns its URL. Never prompts on a terminal. Raises ConfigError if
    wandb-workspaces is not installed; W&B is off, offline or unreachable; or the project or the sweep does not exist.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("dashboard: wandb-workspaces is not installed; pip install wandb-workspaces")
    import wandb

    try:
        _check_online(logger)
        try:
            api = wandb.Api(timeout=TIMEOUT_SECONDS)
            entity = logger.entity or api.settings["entity"] or api.default_entity  # WANDB_ENTITY applies, as for runs
            if not entity:
                raise ConfigError("logger.entity: the key's owner has no default entity; give logger.entity=...")
            scores = _scores(_newest_runs(api, entity, logger.project, sweep))
            address: str = report(entity, logger.project, sweep, title, scores).save().url
        except ConfigError:
            raise
        except Exception as error:  # no network, a rejected key, a server of another version, ...
            base_url = wandb.setup().settings.base_url
            raise ConfigError(
                f"logger: the report was not saved ({first_line(error)}); check the network, the key and the server "
                f"({without_login(base_url)}, set by WANDB_BASE_URL)"
            ) from None
        return without_login(address)
    finally:
        tear_down()


def _check_online(logger: LoggerConfig) -> None:
    """Reject settings that cannot lead to a report, before contacting the server."""
    import wandb

    if logger.mode != "online":
        raise ConfigError(
            f"logger.mode: invalid value {logger.mode}: a dashboard is saved on W&B's server: use logger=wandb, or "
            "`rpr-cli report` for the local records"
        )
    settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
    if settings.mode in ("offline", "dryrun", "disabled"):
        raise ConfigError(
            f"WANDB_MODE: {settings.mode} (or `wandb offline`); a report is saved on W&B's server: unset it, or run "
            "`wandb online`"
        )
    if not has_key(settings):
        raise ConfigError("logger: no W&B key found; set WANDB_API_KEY, or run `wandb login`")


def _newest_runs(api: Any, entity: str, project: str, sweep: str | None) -> list[Any]:
    """Rejects a project or sweep without runs: W&B would create an empty project and an empty report."""
    path = f"{entity}/{project}"
    filters = {} if sweep is None else {"group": sweep}
    runs = api.runs(path, filters=filters, order="-created_at", per_page=MAX_RUNS_READ)
    try:
        newest = list(itertools.islice(runs, MAX_RUNS_READ))
    except ValueError:
        hint = did_you_mean(project, [project.name for project in api.projects(entity)])
        raise ConfigError(f"logger.project: {entity} has no project {project!r}{hint}") from None
    if newest:
        return newest
    if sweep is None:
        raise ConfigError(f"logger.project: {path} has no runs yet; train with logger=wandb first")
    latest = itertools.islice(api.runs(path, order="-created_at", per_page=MAX_RUNS_SEARCHED), MAX_RUNS_SEARCHED)
    known = {run.group for run in latest if run.group}
    hint = did_you_mean(sweep, known) if known else "; none of its runs belongs to a sweep: leave it out for all runs"
    raise ConfigError(f"sweep: no run of {path} belongs to {sweep!r}{hint}")


def _scores(runs: Iterable[Any]) -> list[tuple[str, str]]:
    """The metric and split of each score that these runs are compared by; BLEU on test if none has one yet."""
    compared: set[tuple[str, str]] = set()
    for names in (set(run.summary.keys()) for run in runs):
        scored = [score for score in _SCORES if naming.score_name(score[1], score[0]) in names]
        compared.update(score for score in scored if score[0] == scored[0][0])
    return [score for score in _SCORES if score in compared] or [(HEADLINE_METRIC, "test")]


def report(entity: str, project: str, sweep: str | None, title: str | None, scores: Sequence[tuple[str, str]]) -> Any:
    """The report of runs with these scores, not yet saved; building it asks the server for the project's ID."""
    wr, expr = _library("reports.v2"), _library("expr")
    scope = f"sweep {sweep}" if sweep else f"project {project}"
    names = [naming.score_name(split, metric) for metric, split in scores]
    runset = wr.Runset(
        entity=entity,
        project=project,
        name=scope,
        filters="" if sweep is None else expr.And(expr.Metric("Group") == sweep),
        order=[wr.OrderBy(wr.SummaryMetric(names[0]), ascending=scores[0][0] in LOWER_IS_BETTER)],  # the best first
        pinned_columns=[
            "run:displayName",
            *(f"config:{name}.value" for name in (naming.CONFIGURATION, naming.SEED)),
            *(f"summary:{name}" for name in (*names, naming.STEPS_PER_SECOND)),
        ],
    )
    return wr.Report(
        entity=entity,
        project=project,
        title=title or f"Position representations: {scope}",
        description=f"Runs of {scope}, by clip distance k and by variant.",
        width="fluid",
        blocks=[
            wr.H2(text="The runs"),
            wr.PanelGrid(runsets=[runset], panels=_panels(scores)),
            *([wr.MarkdownBlock(text=paper_tables())] if HEADLINE_METRIC in dict(scores) else []),
        ],
    )


def _panels(scores: Sequence[tuple[str, str]]) -> list[Any]:
    """Panels: scores over k, means over the seeds trained alike, curves, speed, and differing settings."""
    wr = _library("reports.v2")
    titles = {naming.score_name(split, metric): f"{METRIC_NAMES[metric]} {{}}, {split}" for metric, split in scores}
    # Bars and lines of a group show the mean and standard deviation of its runs.
    groups: dict[str, Any] = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    curves = dict.fromkeys([*(METRICS[metric] for metric, _ in scores), naming.VALIDATION_LOSS])
    k, of_seeds = wr.Config(naming.CLIP_DISTANCE), {"groupby": wr.Config(naming.CONFIGURATION), **groups}
    return [
        *(
            wr.ScatterPlot(title=title.format("against k"), x=k, y=wr.SummaryMetric(score))
            for score, title in titles.items()
        ),
        *(
            wr.BarPlot(title=title.format("of each variant (mean over its seeds)"), metrics=[score], **of_seeds)
            for score, title in titles.items()
        ),
        *(wr.LinePlot(title=f"{curve} in training", x=naming.STEP, y=[curve], **of_seeds) for curve in curves),
        wr.BarPlot(title="steps per second of each variant", metrics=[naming.STEPS_PER_SECOND], **of_seeds),
        wr.RunComparer(diff_only=True),
    ]


def _library(name: str) -> Any:
    """A module of wandb-workspaces, an optional extra whose type hints do not export all documented names."""
    return importlib.import_module(f"wandb_workspaces.{name}")


def paper_tables() -> str:
    """The paper's Tables 2 and 3 as Markdown."""
    yes_or_no = {True: "yes", False: "no"}
    table2 = [f"| {clip_distance} | {bleu:.1f} |" for clip_distance, bleu in paper.TABLE2.items()]
    table3 = [
        f"| {yes_or_no[keys]} | {yes_or_no[values]} | {bleu:.1f} |" for (values, keys), bleu in paper.TABLE3.items()
    ]
    about = "Data, model size and training length differ from most runs here."
    return "\n\n".join(
        [
            f"## The paper's results\n\n{paper.SOURCE}. English to German, base model; {paper.BLEU_KIND}. {about}",
            f"### Table 2: BLEU by clip distance k, {paper.TABLE2_TEST_SET}",
            "\n".join(["| k | BLEU |", "| ---: | ---: |", *table2]),
            f"### Table 3: relative keys and values, {paper.TABLE3_TEST_SET}",
            "\n".join(["| keys | values | BLEU |", "| ---: | ---: | ---: |", *table3]),
        ]
    )
