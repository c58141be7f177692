"""The names of a run's settings, metrics and scores in W&B, to which its charts, tables and reports refer."""

import hashlib
import json
from typing import Any

from rpr.config.train import TrainConfig
from rpr.model.positions.vectors import SHARING
from rpr.records.position import position_of
from rpr.records.record import Record, deciding_settings
from rpr.runs.runtime import matmul_precision

STEP = "trainer/global_step"  # the optimiser step, under Lightning's usual name
VALIDATION_LOSS = "validation/loss"
VALIDATION_BLEU = "validation/bleu"
VALIDATION_BITS = "validation/bits_per_byte"
STEPS_PER_SECOND = "steps_per_second"
CLIP_DISTANCE = "k"
CONFIGURATION = "configuration"
SEED = "seed"
# Summarised by the best value, as `validation/loss.min`; all other metrics by the last value, as a plain number.
BEST = {VALIDATION_LOSS: "min", VALIDATION_BLEU: "max"}


def score_name(split: str, metric: str) -> str:
    """`test/sacrebleu`: a final score in the summary, and in the last row of the history."""
    return f"{split}/{metric}"


def flat(config: TrainConfig) -> dict[str, Any]:
    """The settings by which runs are compared, as top-level keys: W&B groups and filters by these."""
    position = config.position
    return {
        CLIP_DISTANCE: position.k,
        **position.tracked,
        "position_name": position.name,
        "variant": variant(config),
        CONFIGURATION: configuration(config),
        "model_name": config.model.name,
        "architecture": config.model.architecture,
        "data_name": config.data.name,
        SEED: config.seed,
        "sweep": config.sweep,
        "run_id": config.run_id,
    }


def variant(config: TrainConfig) -> str:
    """One key for all seeds of a variant, as in the reports: `relative, k = 4`, `absolute (sinusoidal)`; with the table
    sharing if it is not the model's default, and the name of the position config if it adds information.
    """
    chosen = config.position
    label = f"{chosen.label}, from {config.origin.words(config.seed)}" if config.origin else chosen.label
    if chosen.sharing not in (None, config.model.relative_defaults.tables):
        label += f", {SHARING[chosen.sharing]}"
    usual = (chosen.kind, f"{chosen.encoder.name}-{chosen.decoder.name}")
    return label if chosen.name in usual else f"{chosen.name} ({label})"


def configuration(config: TrainConfig) -> str:
    """One key for all seeds of a variant trained alike: `relative, k = 4 (multi30k_en_de, tiny, 1a2b)`, with a digest
    of all other settings that decide a result, of the precision as it is on this machine, and of the settings of the
    run whose weights it started from. A mean over runs is of one of them.
    """
    deciding = deciding_settings(config.model_dump(mode="json"))
    deciding |= {"precision": config.hardware.precision, "matmul_precision": matmul_precision(config.hardware)}
    deciding |= {"origin": config.origin and config.origin.settings_id}
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:4]
    return f"{variant(config)} ({config.data.name}, {config.model.name}, {digest})"


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The configuration: `flat`, and the rest by section."""
    keys = flat(config)
    return keys | config.model_dump(mode="json", exclude=set(keys))


def define(run: Any) -> None:
    """Define the x axis of every chart, and how each metric is summarised."""
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name, best in BEST.items():
        run.define_metric(name, step_metric=STEP, step_sync=True, summary=best)
    run.define_metric(CLIP_DISTANCE, hidden=True)  # can be chosen as an axis, but gets no chart


def final_row(record: Record) -> dict[str, Any]:
    """A history row with the scores of a finished run, and its k: W&B then draws a bar chart of each, a bar a run."""
    row: dict[str, Any] = {score_name(score.split, score.metric): score.score for score in record.scores}
    k = position_of(record).clip_distance
    return row | ({} if k is None else {CLIP_DISTANCE: k})
