"""From run records to groups of runs with the same training, and to their position variants: pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import to_json

from rpr import paper
from rpr.errors import RecordError
from rpr.model.positions.vectors import SHARING
from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.position import Position, positions_of
from rpr.records.record import Record, flat
from rpr.records.scores import EXACT_MATCH, HEADLINE_METRIC, METRIC_NAMES, SPLITS, ByLength, LengthScore, Score
from rpr.report.learning import Learning, RunKey, advice, mean_over_seeds, run_key
from rpr.report.protocol import Difference, differences, settings_of

# Sections whose settings determine what a figure means; runs that differ in one of them, or in the precision of their
# arithmetic, never share a group.
_DECIDING = ("model", "data", "optim", "evaluation")
# Except for these, which concern only file locations, decoding batches and the choice of scores.
_NOT_DECIDING = {
    *("data.cache_dir", "evaluation.max_tokens_per_batch", "evaluation.bootstrap_samples"),
    *("evaluation.length_buckets", "evaluation.test_splits", "evaluation.validation_sentences"),
}
NEVER_RUN = "never run"
# Percent exact match within the training lengths: with less, a task is not learned, and scores beyond say little.
TASK_LEARNED = 95.0


class TestColumn(NamedTuple):
    """One metric on one test set."""

    split: str
    test_set: str
    metric: str

    @property
    def order(self) -> tuple[int, str, int, str, str]:
        """Headline metric first, `test` before other splits."""
        metrics, splits = list(METRIC_NAMES), list(SPLITS)
        metric = metrics.index(self.metric) if self.metric in metrics else len(metrics)
        split = splits.index(self.split) if self.split in splits else len(splits)
        return (metric, self.metric, split, self.split, self.test_set)


class Speed(NamedTuple):
    """Steps/s of one run, the setting it was measured in, and, on a CPU, the cores it used (None: unknown)."""

    seed: int
    value: float
    setting: tuple[str, str | None, str | None]
    on_cpu: bool
    cores: float | None


@dataclass(frozen=True)
class Variant:
    """One position variant of a group over its seeds."""

    position: Position
    label: str
    records: tuple[Record, ...]
    learning: tuple[Learning, ...] = ()  # of finished runs with a known validation curve

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        """One run for each seed: the newest, an original before a rerun of it."""
        return tuple(one_per_seed([run for run in self.records if run.status == "finished"]))

    @cached_property
    def unfinished(self) -> tuple[str, ...]:
        """One line per seed without a result, with the reason."""
        done = {record.seed for record in self.finished}
        return tuple(f"seed {run.seed} {run.outcome}" for run in self.records if run.outcome and run.seed not in done)

    @cached_property
    def scores(self) -> dict[TestColumn, dict[int, Score]]:
        """The scores of the finished runs by column and seed."""
        found: dict[TestColumn, dict[int, Score]] = {}
        for run in self.finished:
            for score in run.scores:
                found.setdefault(TestColumn(score.split, score.test_set, score.metric), {})[run.seed] = score
        return found

    @cached_property
    def speeds(self) -> tuple[Speed, ...]:
        """The speeds of the finished runs, without those whose device other jobs shared."""
        return tuple(
            Speed(
                run.seed,
                run.training.steps_per_second,
                (run.device, run.training.precision, run.training.matmul_precision),
                run.setting("hardware.accelerator") == "cpu",
                run.training.cores_used,
            )
            for run in self.finished
            if run.training is not None and run.training.steps_per_second and (run.concurrent_jobs or 1) == 1
        )

    @property
    def task(self) -> bool:
        """Whether its corpus is a generated task, scored by exact match."""
        return any(run.task is not None for run in self.records)

    @property
    def still_learning(self) -> Learning | None:
        """How the validation loss ended, if its mean over the seeds was still falling.

        Not for tasks, whose loss near zero goes up and down by multiples: see `unlearned`.
        """
        found = mean_over_seeds(self.learning)
        return found if found is not None and found.falling and not self.task else None

    @property
    def unlearned(self) -> bool:
        """Whether it did not learn its task: too few exact matches even within the training lengths."""
        found = self.measurements.items()
        within = [one.value for (split, _, metric), one in found if (split, metric) == ("test", EXACT_MATCH)]
        return self.task and any(value is not None and value < TASK_LEARNED for value in within)

    @cached_property
    def measurements(self) -> dict[TestColumn, Measurement]:
        """The mean over seeds per column; for a single seed its score with the interval over sentences."""
        return {column: _over_seeds(column, list(by_seed.values())) for column, by_seed in self.scores.items()}

    @cached_property
    def length_scores(self) -> dict[tuple[str, int, int], list[tuple[tuple[Any, ...], LengthScore]]]:
        """The scores of the finished runs by metric and bucket, each with how it was scored."""
        found: dict[tuple[str, int, int], list[tuple[tuple[Any, ...], LengthScore]]] = {}
        for by_length in (run.by_length for run in self.finished if run.by_length is not None):
            for bucket in by_length.buckets:
                for score in bucket.scores:
                    way = (*how_scored_by_length(by_length, score.metric), bucket.num_sentences)
                    found.setdefault((score.metric, *bucket.key), []).append((way, score))
        return found

    def score(self, column: TestColumn | None, split: str = "") -> Measurement:
        """The measurement of a column, or the reason why there is none. Without a column: none for this split."""
        found = None if column is None else self.measurements.get(column)
        if found is not None:
            return found
        return missing(f"not evaluated on {column.split if column else split}" if self.finished else self.why_not())

    def why_not(self) -> str:
        """Why there is no finished run."""
        return "; ".join(self.unfinished) or NEVER_RUN


def _over_seeds(column: TestColumn, scores: Sequence[Score]) -> Measurement:
    if len({how_scored(score) for score in scores}) > 1:
        return missing(f"{column.split}: the seeds were scored in different ways, so they have no mean")
    if len(scores) == 1:
        return single(scores[0].score, scores[0].interval)
    return mean([score.score for score in scores])


@dataclass(frozen=True)
class Group:
    """All position variants of one model on one corpus, with the same training on one kind of hardware.

    `variant`: the settings that distinguish it from other groups of the same corpus, model, steps and hardware.
    """

    data: str
    model: str
    max_steps: int
    hardware: str
    variant: str
    variants: tuple[Variant, ...]

    @cached_property
    def runs(self) -> list[Record]:
        return [run for variant in self.variants for run in variant.records]

    @cached_property
    def finished(self) -> list[Record]:
        return [run for variant in self.variants for run in variant.finished]

    @cached_property
    def synthetic(self) -> bool:
        return any(run.synthetic for run in self.runs)

    @cached_property
    def task(self) -> bool:
        """Whether the corpus is a generated task, scored by exact match."""
        return self.variants[0].task

    @property
    def metric(self) -> str:
        """The metric of its findings."""
        return EXACT_MATCH if self.task else HEADLINE_METRIC

    @cached_property
    def split(self) -> str:
        """The split of its findings: `test`, or `long` for a task, as most variants learn the training lengths."""
        order = ("long", "test", "validation") if self.task else ("test", "validation")
        return next((split for split in order if self.column(split) is not None), order[-2])

    @cached_property
    def columns(self) -> tuple[TestColumn, ...]:
        """Every metric and test set that a finished run has scores for."""
        found = {column for variant in self.variants for column in variant.scores}
        return tuple(sorted(found, key=lambda column: column.order))

    @property
    def heading(self) -> str:
        """`multi30k_en_de | model tiny | 1,500 steps | cpu`, and any distinguishing settings."""
        return f"{self.corpus} | {self.setting}"

    @property
    def corpus(self) -> str:
        """The name of the corpus, marked if it is synthetic."""
        return f"{self.data} (synthetic)" if self.synthetic and "synthetic" not in self.data else self.data

    @property
    def setting(self) -> str:
        """`model tiny | 1,500 steps | cpu`, and any distinguishing settings."""
        parts = (f"model {self.model}", f"{self.max_steps:,} steps", self.hardware, self.variant)
        return " | ".join(part for part in parts if part)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """How the finished runs differ from the paper's; none for tasks, on which the paper has no figure."""
        return () if self.task else differences(self.finished, self.size, self.papers_languages)

    @cached_property
    def advice(self) -> str | None:
        """What to do about runs that were still learning; None if none was."""
        return advice([one for variant in self.variants if (one := variant.still_learning) is not None])

    @property
    def size(self) -> paper.Size:
        """The paper's model that this group's model is compared with."""
        return "big" if "big" in self.model else "base"

    @property
    def languages(self) -> str:
        """The language pair, as `en_de`."""
        sides = [self.runs[0].setting(f"data.{side}_language") for side in ("source", "target")]
        return "_".join(map(str, sides)) if all(sides) else "en_de"

    @property
    def papers_languages(self) -> paper.Pair | None:
        """The language pair if the paper has it, else None."""
        pairs: tuple[paper.Pair, ...] = ("en_de", "en_fr")
        return next((pair for pair in pairs if pair == self.languages), None)

    @cached_property
    def sharings(self) -> list[str | None]:
        """How the variants' relative tables are shared, the paper's way first; [None] without such variants."""
        found = {one.position.tables for one in self.variants if one.position.tables and one.position.kind != "other"}
        papers = paper.MODELS[self.size].tables
        return sorted(found, key=lambda name: (name != papers, str(name))) or [None]

    def column(self, split: str, metric: str | None = None) -> TestColumn | None:
        """The column of a metric (by default the one of the findings) on a split."""
        wanted = (split, metric or self.metric)
        return next((one for one in self.columns if (one.split, one.metric) == wanted), None)

    def get(self, kind: str, k: int | None = None, tables: str | None = None) -> Variant | None:
        """The first variant of a kind, with this k and table sharing if given."""
        for one in self.variants:
            position = one.position
            if position.kind == kind and k in (None, position.clip_distance) and tables in (None, position.tables):
                return one
        return None

    def score(self, variant: Variant | None, split: str, metric: str | None = None) -> Measurement:
        """A variant's score on a split, or why there is none."""
        return missing(NEVER_RUN) if variant is None else variant.score(self.column(split, metric), split)

    def change(self, variant: Variant | None, reference: Variant | None, split: str, name: str) -> Measurement:
        """A variant's score minus the reference's: per seed if both have the same seeds, else of the means.

        Args:
            name: the reference's name, used in the reason of a missing result.
        """
        mine, its, column = self.score(variant, split), self.score(reference, split), self.column(split)
        if mine.value is None:
            return mine
        if its.value is None or variant is None or reference is None or column is None:
            return missing(f"nothing to compare with: {name}: {its.reason}")
        if variant is reference:
            return Measurement(0.0, mine.n)
        ours, theirs = variant.scores[column], reference.scores[column]
        # All seeds of one side were scored in the same way, or it would have no mean.
        if len({how_scored(next(iter(one.values()))) for one in (ours, theirs)}) > 1:
            return missing(f"{split}: scored in another way than {name}")
        if ours.keys() == theirs.keys():
            return mean([score.score - theirs[seed].score for seed, score in ours.items()])
        return Measurement(mine.value - its.value, min(mine.n, its.n))


def how_scored(score: Score) -> tuple[Any, ...]:
    """The settings that two scores must share to be comparable."""
    return (score.signature, score.num_sentences, score.beam_size, score.length_penalty, score.min_length)


def how_scored_by_length(one: ByLength, metric: str) -> tuple[Any, ...]:
    """The same for scores by length."""
    decoding = (one.signatures.get(metric), one.beam_size, one.length_penalty, one.min_length, one.precision)
    return (*decoding, one.splits, one.test_sets, one.longest_training_source)


def one_per_seed(records: Iterable[Record]) -> list[Record]:
    """The newest record of each seed, an original before a rerun of it, by ascending seed."""
    newest = {run.seed: run for run in sorted(records, key=lambda run: (run.rerun_of is None, run.started))}
    return [newest[seed] for seed in sorted(newest)]


def run_groups(records: Iterable[Record], learning: Mapping[RunKey, Learning] | None = None) -> tuple[Group, ...]:
    """One group for each (corpus, model, steps, hardware) and each combination of other settings that affect results.

    Args:
        learning: how each run's validation curve ended, by `run_key`, where known.

    Raises:
        RecordError: there are no records.
    """
    found: dict[tuple[str, str, int, str], dict[str, list[Record]]] = {}
    deciding: dict[bytes, str] = {}  # many of thousands of records have the same sections
    for record in sorted(records, key=lambda record: (record.name, record.seed, record.run_id, record.started)):
        key = (record.data_name, record.model_name, record.max_steps, record.hardware)
        precision = record.setting("hardware.precision")
        if (same := to_json([precision, *(record.config.get(name) for name in _DECIDING)])) not in deciding:
            settings = settings_of(record.config, _DECIDING) | {"hardware.precision": precision}
            kept = {name: value for name, value in settings.items() if name not in _NOT_DECIDING}
            deciding[same] = json.dumps(kept, sort_keys=True)
        found.setdefault(key, {}).setdefault(deciding[same], []).append(record)
    if not found:
        raise RecordError("no run record to report; run `rpr-cli sweep ...` first, or give runs_dir=...")
    groups = []
    for key, by_settings in sorted(found.items()):
        by_text = {text: json.loads(text) for text in sorted(by_settings)}
        names = sorted({name for one in by_text.values() for name in one})
        varying = [name for name in names if len({json.dumps(one.get(name)) for one in by_text.values()}) > 1]
        for text, mine in by_text.items():
            variant = ", ".join(f"{name} = {mine.get(name)}" for name in varying)
            groups.append(Group(*key, variant, _variants(_joined(by_settings[text]), learning or {})))
    return tuple(groups)


def _joined(records: Iterable[Record]) -> list[Record]:
    """Merge runs of one seed that differ only in settings that decide no result, as the scored splits, into one."""
    finished: dict[str, Record] = {}
    others: list[Record] = []
    for run in sorted(records, key=lambda run: (run.rerun_of is None, run.started)):
        key = json.dumps([run.config["position"], run.config["hardware"], run.seed], sort_keys=True)
        older = finished.get(key)
        if run.status != "finished":
            others.append(run)
            continue
        if older is not None and older.run_id == run.run_id:
            others.append(older)
        elif older is not None:
            have = {(score.split, score.test_set, score.metric) for score in run.scores}
            more = [one for one in older.scores if (one.split, one.test_set, one.metric) not in have]
            run = run.model_copy(update={"scores": (*run.scores, *more)})
        finished[key] = run
    return sorted((*finished.values(), *others), key=lambda run: (run.name, run.seed, run.run_id, run.started))


def _variants(records: list[Record], learning: Mapping[RunKey, Learning]) -> tuple[Variant, ...]:
    by_position: dict[Position, list[Record]] = {}
    for record, position in zip(records, positions_of(records), strict=True):
        by_position.setdefault(position, []).append(record)
    several = len({position.tables for position in by_position if position.tables}) > 1
    variants = []
    for position in sorted(by_position, key=lambda position: position.order):
        runs = by_position[position]
        sharing = f", {SHARING.get(position.tables, position.tables)}" if several and position.tables else ""
        plain = Variant(position, position.label + sharing, tuple(runs))
        known = tuple(learning[run_key(run)] for run in plain.finished if run_key(run) in learning)
        variants.append(replace(plain, learning=known))
    return tuple(replace(one, label=one.label + _own_settings(one, variants)) for one in variants)


def _own_settings(one: Variant, variants: Sequence[Variant]) -> str:
    """`, max_positions = 64`: the settings that distinguish a variant from others with its label; mostly empty."""
    alike = [other for other in variants if other.label == one.label]
    if len(alike) == 1:
        return ""
    settings = [flat(other.records[0].config["position"]) for other in alike]
    mine = settings[alike.index(one)]
    varying = [key for key in mine if key != "name" and len({str(other.get(key)) for other in settings}) > 1]
    return "".join(f", {key} = {mine[key]}" for key in varying)
