"""A saved report in Weights & Biases that compares a project's runs with each other.

W&B draws it from the mirrored runs, whose metric and config names are in rpr.tracking.naming. `rpr-cli report` does not
need it: its tables and plots come from the local records.
"""

import importlib
import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

from rpr.config.train import LoggerConfig
from rpr.errors import ConfigError
from rpr.records.scores import BITS_PER_BYTE, EXACT_MATCH, HEADLINE_METRIC, LOWER_IS_BETTER, METRIC_NAMES, SPLITS
from rpr.tracking import naming
from rpr.tracking.wandb_client import first_line, has_key, tear_down, without_login

TIMEOUT_SECONDS = 10  # of each request
MAX_RUNS_READ = 20  # the newest, for what they are scored by: each may be a request
# What runs are compared by, the first that a run has, with the curve in training. Tasks have BLEU too, documents not.
METRICS = {
    EXACT_MATCH: naming.VALIDATION_BLEU,
    BITS_PER_BYTE: naming.VALIDATION_BITS,
    HEADLINE_METRIC: naming.VALIDATION_BLEU,
}
Score = tuple[str, str]  # metric and split


def create(sweep: str | None, title: str | None, logger: LoggerConfig) -> str:
    """Save the report on W&B's server; returns its URL. Never prompts on a terminal. Raises ConfigError if
    wandb-workspaces is not installed; W&B is off, offline or unreachable; or the project or the sweep has no runs.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("dashboard: wandb-workspaces is not installed; pip install wandb-workspaces")
    if logger.mode != "online":
        raise ConfigError(f"logger.mode: {logger.mode}: a dashboard is saved on W&B's server; use logger=wandb")
    import wandb

    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        if settings.mode in ("offline", "dryrun", "disabled"):
            raise ConfigError(f"WANDB_MODE: {settings.mode}: a dashboard is saved on W&B's server; unset it")
        if not has_key(settings):
            raise ConfigError("logger: no W&B key found; set WANDB_API_KEY, or run `wandb login`")
        api = wandb.Api(timeout=TIMEOUT_SECONDS)
        entity = str(logger.entity or api.settings["entity"] or api.default_entity)  # WANDB_ENTITY, as for runs
        of_sweep = {} if sweep is None else {"group": sweep}
        runs = api.runs(f"{entity}/{logger.project}", filters=of_sweep, order="-created_at")
        if not (newest := [*itertools.islice(runs, MAX_RUNS_READ)]):  # W&B would create an empty project
            what = "logger.project" if sweep is None else f"sweep: {sweep}"
            raise ConfigError(f"{what}: {entity}/{logger.project} has no such runs; train with logger=wandb first")
        return without_login(report(entity, logger.project, sweep, title, _scores(newest)).save().url)
    except ConfigError:
        raise
    except Exception as error:  # no network, a rejected key, no such project, a server of another version, ...
        raise ConfigError(
            f"logger: the report was not saved ({first_line(error)}); check the network, the key, logger.project and "
            "the server (WANDB_BASE_URL)"
        ) from None
    finally:
        tear_down()


def _scores(runs: Sequence[Any]) -> list[Score]:
    """The scores that these runs are compared by; BLEU on test if none has one yet."""
    known = [(metric, split) for metric in METRICS for split in SPLITS]
    compared: set[Score] = set()
    for names in (set(run.summary.keys()) for run in runs):
        scored = [score for score in known if naming.score_name(score[1], score[0]) in names]
        compared.update(score for score in scored if score[0] == scored[0][0])
    return [score for score in known if score in compared] or [(HEADLINE_METRIC, "test")]


def report(entity: str, project: str, sweep: str | None, title: str | None, scores: Sequence[Score]) -> Any:
    """The report of runs with these scores, not yet saved."""
    wr, expr = _library("reports.v2"), _library("expr")
    scope = f"sweep {sweep}" if sweep else f"project {project}"
    titles = {naming.score_name(split, metric): f"{METRIC_NAMES[metric]} {{}}, {split}" for metric, split in scores}
    first, *_ = titles
    runset = wr.Runset(
        entity=entity,
        project=project,
        name=scope,
        filters="" if sweep is None else expr.And(expr.Metric("Group") == sweep),
        order=[wr.OrderBy(wr.SummaryMetric(first), ascending=scores[0][0] in LOWER_IS_BETTER)],
        pinned_columns=[
            "run:displayName",
            *(f"config:{name}.value" for name in (naming.CONFIGURATION, naming.SEED)),
            *(f"summary:{name}" for name in (*titles, naming.STEPS_PER_SECOND)),
        ],
    )
    k = wr.Config(naming.CLIP_DISTANCE)
    # Bars and lines of a group show the mean and standard deviation of its runs.
    seeds = {"groupby": wr.Config(naming.CONFIGURATION), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    curves = dict.fromkeys([*(METRICS[metric] for metric, _ in scores), naming.VALIDATION_LOSS])
    of_variants = "of each variant (mean over its seeds)"
    panels = [
        *(wr.ScatterPlot(title=text.format("against k"), x=k, y=wr.SummaryMetric(at)) for at, text in titles.items()),
        *(wr.BarPlot(title=text.format(of_variants), metrics=[at], **seeds) for at, text in titles.items()),
        *(wr.LinePlot(title=f"{curve} in training", x=naming.STEP, y=[curve], **seeds) for curve in curves),
        wr.BarPlot(title="steps per second of each variant", metrics=[naming.STEPS_PER_SECOND], **seeds),
        wr.RunComparer(diff_only=True),
    ]
    return wr.Report(
        entity=entity,
        project=project,
        title=title or f"Position representations: {scope}",
        description=f"Runs of {scope}, by clip distance k and by variant.",
        width="fluid",
        blocks=[wr.H2(text="The runs"), wr.PanelGrid(runsets=[runset], panels=panels)],
    )


def _library(name: str) -> Any:
    return importlib.import_module(f"wandb_workspaces.{name}")
