"""Under which names a run's choices, metrics and scores stand in W&B: what its charts, tables and reports refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rpr.config.train import TrainConfig
from rpr.model.positions.vectors import SHARING
from rpr.records.position import position_of
from rpr.records.record import Record

STEP = "trainer/global_step"  # the optimiser step under the name that Lightning's users know
VALIDATION_LOSS = "validation/loss"
VALIDATION_BLEU = "validation/bleu"
STEPS_PER_SECOND = "steps_per_second"
CLIP_DISTANCE = "k"
POSITION_NAME = "position_name"
VARIANT = "variant"
SEED = "seed"
# Best over the run, in the summary as `validation/loss.min`; of everything else the last value, as a plain number.
BEST = {VALIDATION_LOSS: "min", VALIDATION_BLEU: "max"}


def score_name(split: str, metric: str) -> str:
    """`test/sacrebleu`: a final score in the summary, and in the last row of the history."""
    return f"{split}/{metric}"


def flat(config: TrainConfig) -> dict[str, Any]:
    """The choices that runs are compared by, as top-level keys (W&B groups and filters by these)."""
    position = config.position
    return {
        CLIP_DISTANCE: position.k,
        **position.tracked,
        POSITION_NAME: position.name,
        VARIANT: variant(config),
        "model_name": config.model.name,
        "data_name": config.data.name,
        SEED: config.seed,
        "sweep": config.sweep,
        "run_id": config.run_id,
    }


def variant(config: TrainConfig) -> str:
    """What the seeds of one variant share, as one key: `relative, k = 4`, `absolute (sinusoidal)`, in the words of the
    reports; the sharing of the tables where it is not the model's own, and the choice's name where it says more.
    """
    chosen = config.position
    words = chosen.label
    if chosen.sharing not in (None, config.model.relative_defaults.tables):
        words += f", {SHARING[chosen.sharing]}"
    usual = (chosen.kind, f"{chosen.encoder.name}-{chosen.decoder.name}")
    return words if chosen.name in usual else f"{chosen.name} ({words})"


def sections(config: TrainConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration, section by section, beside `flat`.

    `given` is what the run has already. W&B keeps what `wandb agent` gave it: where that is a choice by the name of a
    section (`position: absolute`), the section's settings stand under dotted keys instead, as W&B shows them anyway.
    """
    whole = config.model_dump(mode="json", exclude=set(flat(config)))
    for name, value in list(whole.items()):
        if isinstance(value, dict) and name in given and not isinstance(given[name], Mapping):
            del whole[name]
            whole |= {f"{name}.{key}": setting for key, setting in value.items()}
    return whole


def define(run: Any) -> None:
    """The axis of every chart, and which value of a metric is its summary."""
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name, best in BEST.items():
        run.define_metric(name, step_metric=STEP, step_sync=True, summary=best)
    run.define_metric(CLIP_DISTANCE, hidden=True)  # an axis to choose, no chart of its own


def final_row(record: Record) -> dict[str, Any]:
    """The scores of a finished run, and its k where it has one: a row of the history, so that W&B draws them without
    being asked, a bar for each run.
    """
    row: dict[str, Any] = {score_name(score.split, score.metric): score.score for score in record.scores}
    clip_distance = position_of(record).clip_distance
    return row if clip_distance is None else {**row, CLIP_DISTANCE: clip_distance}
