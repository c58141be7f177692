"""A saved report in Weights & Biases that compares a project's runs with each other.

W&B draws it from the mirrored runs, whose metric and config names are in rpr.tracking.mirror. `rpr-cli report` does not
need it: its tables and plots come from the local records.
"""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from rpr.config.train import LoggerConfig
from rpr.errors import ConfigError
from rpr.kinds import KINDS, TEXT, Kind
from rpr.records.scores import METRIC_NAMES, SPLITS
from rpr.tracking import mirror
from rpr.tracking.mirror import first_line, has_key, tear_down, without_login

TIMEOUT_SECONDS = 10  # of each request
MAX_RUNS_READ = 20  # the newest, for what they are scored by: each may be a request


def create(sweep: str | None, title: str | None, logger: LoggerConfig) -> str:
    """Save the report on W&B's server; returns its URL. Never prompts on a terminal. Raises ConfigError if W&B is off,
    offline or unreachable, wandb-workspaces is not installed, or the project or the sweep has no runs.
    """
    import wandb

    try:
        # 1. The server can be reached, and knows the user.
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        if logger.mode != "online" or settings.mode in ("offline", "dryrun", "disabled"):
            mode = f"logger.mode {logger.mode}, WANDB_MODE {settings.mode}"
            raise ConfigError(f"logger: a dashboard is saved on W&B's server ({mode}); use logger=wandb online")
        if not has_key(settings):
            raise ConfigError("logger: no W&B key found; set WANDB_API_KEY, or run `wandb login`")
        api = wandb.Api(timeout=TIMEOUT_SECONDS)
        entity = str(logger.entity or api.settings["entity"] or api.default_entity)  # WANDB_ENTITY, as for runs
        # 2. What the newest runs are scored by, if anything.
        of_sweep = {} if sweep is None else {"group": sweep}
        runs = api.runs(f"{entity}/{logger.project}", filters=of_sweep, order="-created_at")
        names = {name for run in itertools.islice(runs, MAX_RUNS_READ) for name in run.summary.keys()}  # noqa: SIM118
        for kind in KINDS[::-1]:  # tasks have BLEU too, which stands last
            if splits := [split for split in SPLITS if f"{split}/{kind.metric}" in names]:
                return without_login(report(entity, logger.project, sweep, title, kind, splits).save().url)
        # W&B would create an empty project.
        what = "logger.project" if sweep is None else f"sweep: {sweep}"
        raise ConfigError(f"{what}: {entity}/{logger.project} has no scored runs; train with logger=wandb first")
    except ConfigError:
        raise
    except Exception as error:  # no network, a rejected key, no such project, a server of another version, ...
        remedy = "check the network, the key, logger.project, WANDB_BASE_URL, and that wandb-workspaces is installed"
        raise ConfigError(f"logger: the report was not saved ({first_line(error)}); {remedy}") from None
    finally:
        tear_down()


def report(entity: str, project: str, sweep: str | None, title: str | None, kind: Kind, splits: Sequence[str]) -> Any:
    """The report of runs of a kind with scores on these splits, not yet saved."""
    wr, expr = (importlib.import_module(f"wandb_workspaces.{name}") for name in ("reports.v2", "expr"))
    scope = f"sweep {sweep}" if sweep else f"project {project}"
    # 1. The runs, the best first.
    scores = {f"{split}/{kind.metric}": split for split in splits}
    columns = [f"config:{name}.value" for name in (mirror.CONFIGURATION, mirror.SEED)]
    runset = wr.Runset(
        entity=entity,
        project=project,
        name=scope,
        filters="" if sweep is None else expr.And(expr.Metric("Group") == sweep),
        order=[wr.OrderBy(wr.SummaryMetric(next(iter(scores))), ascending=kind.lower_is_better)],
        pinned_columns=["run:displayName", *columns, *(f"summary:{name}" for name in scores)],
    )
    # 2. The charts; bars and lines of a group show the mean and standard deviation of its runs.
    seeds = {"groupby": wr.Config(mirror.CONFIGURATION), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    panels = []
    for name, split in scores.items():
        what = f"{METRIC_NAMES[kind.metric]} on {split}"
        k = wr.Config(mirror.CLIP_DISTANCE)
        panels.append(wr.ScatterPlot(title=f"{what} against k", x=k, y=wr.SummaryMetric(name)))
        panels.append(wr.BarPlot(title=f"{what} of each variant (mean over its seeds)", metrics=[name], **seeds))
    for curve in (mirror.VALIDATION_BITS if kind is TEXT else mirror.VALIDATION_BLEU, mirror.VALIDATION_LOSS):
        panels.append(wr.LinePlot(title=f"{curve} in training", x=mirror.STEP, y=[curve], **seeds))
    speed = wr.BarPlot(title="steps per second of each variant", metrics=[mirror.STEPS_PER_SECOND], **seeds)
    panels += [speed, wr.RunComparer(diff_only=True)]
    blocks = [wr.H2(text="The runs"), wr.PanelGrid(runsets=[runset], panels=panels)]
    title = title or f"Position representations: {scope}"
    return wr.Report(entity=entity, project=project, title=title, width="fluid", blocks=blocks)
