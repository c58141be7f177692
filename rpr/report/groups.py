"""From run records to groups of runs with the same training, and to their position variants: pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from rpr import paper
from rpr.kinds import TASK, TEXT, TRANSLATION, Kind
from rpr.records.measurement import Measurement, mean, mean_of_shares, missing, single
from rpr.records.position import Position, called
from rpr.records.record import Record, short_names
from rpr.records.scores import (
    EXACT_MATCH,
    METRIC_NAMES,
    PERCENTAGES,
    SHARES,
    SPLITS,
    Interval,
    how_scored,
    how_scored_by_context,
    how_scored_by_length,
)
from rpr.report.learning import LEARNED_RULE, LEAST_GAIN, Learning, mean_over_seeds

# Percent exact match within the training lengths: with less, a task is not learned, and scores beyond say little.
TASK_LEARNED = 95.0
TASK_RULE = f"not learned: exact match within the training lengths is below {TASK_LEARNED:g}% on average"


class TestColumn(NamedTuple):
    """One metric on one test set."""

    split: str
    test_set: str
    metric: str

    @property
    def order(self) -> tuple[int, str, int, str, str]:
        """Headline metric first, `test` before other splits."""
        metric, split = [*METRIC_NAMES, self.metric].index(self.metric), [*SPLITS, self.split].index(self.split)
        return (metric, self.metric, split, self.split, self.test_set)


class SeedScore(NamedTuple):
    """One run's score or speed. Only those that were measured in the same `way` have a mean or a difference."""

    value: float
    way: tuple[Any, ...]
    interval: Interval | None = None
    sentences: int = 0  # of a score on a test set


# What was measured: a TestColumn, one of these two, or by length or context as `_scores_of` has it.
Key = tuple[Any, ...]
LOSS, SPEED = ("validation", "", "loss"), ("training", "", "steps_per_second")


def _scores_of(run: Record) -> Iterator[tuple[Key, SeedScore]]:
    """Every score of a run: on test sets; by length, (metric, shortest, longest or 0); by context, (split, "separate"
    or "sliding", its length), and by position in it, (split, "position", the last one of a range); the last LOSS; the
    SPEED, unless other jobs shared the device.
    """
    for score in run.scores:
        column = TestColumn(score.split, score.test_set, score.metric)
        yield column, SeedScore(score.score, how_scored(score), score.interval, score.num_sentences)
    if (training := run.training) is not None:
        if training.validation_loss is not None:
            yield LOSS, SeedScore(training.validation_loss, (run.data and run.data.vocabulary_size,))
        if training.steps_per_second and run.concurrent_jobs == 1:
            attention = str(run.setting("hardware.attention") or "auto")
            measured = (run.device, training.precision, training.matmul_precision, attention)
            yield SPEED, SeedScore(training.steps_per_second, measured)
    if (lengths := run.by_length) is not None:
        for bucket in lengths.buckets:
            for part in bucket.scores:
                way = (*how_scored_by_length(lengths, part.metric), bucket.num_sentences)
                yield (part.metric, *bucket.key), SeedScore(part.score, way, part.interval, bucket.num_sentences)
    for by_context in run.by_context:
        way = how_scored_by_context(by_context)
        for windows in by_context.scores:
            own = (*way, by_context.stride) if windows.windows == "sliding" else way
            key = (by_context.split, windows.windows, windows.length)
            yield key, SeedScore(windows.bits_per_byte, own, windows.interval)
        for place in by_context.by_position:
            yield (by_context.split, "position", place.last), SeedScore(place.bits_per_byte, way)


@dataclass(frozen=True)
class Variant:
    """One position variant of a group over its seeds; without records it was never run."""

    position: Position
    label: str
    records: tuple[Record, ...] = ()
    learning: tuple[Learning, ...] = ()  # of finished runs with a known validation curve
    watched: bool = True  # whether the curves of all of them are known
    orderless_loss: float | None = None  # the last validation loss of the group's model without positions

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        """One run for each seed: the newest, an original before a rerun of it."""
        finished = [run for run in self.records if run.status == "finished"]
        newest = {run.seed: run for run in sorted(finished, key=lambda run: (run.rerun_of is None, run.started))}
        return tuple(newest[seed] for seed in sorted(newest))

    @cached_property
    def unfinished(self) -> tuple[str, ...]:
        """One line per seed without a result, with the reason."""
        done = {record.seed for record in self.finished}
        return tuple(f"seed {run.seed} {run.outcome}" for run in self.records if run.outcome and run.seed not in done)

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know of its finished runs."""
        lines = []
        if seeds := [str(run.seed) for run in self.finished if run.git.dirty]:
            lines.append(f"seed {', '.join(seeds)}: trained from uncommitted changes, so no commit names the code")
        originals = Counter(run.seed for run in self.records if run.status == "finished" and run.rerun_of is None)
        if seeds := [str(seed) for seed, times in sorted(originals.items()) if times > 1]:
            lines.append(f"seed {', '.join(seeds)}: trained more than once, the newest run counts")
        if unknown := len(self.finished) - len(self.learning):
            whose = "" if unknown == len(self.finished) else f" of {unknown} of its {len(self.finished)} seeds"
            why = "no validation before the last tenth of the steps in the metrics.jsonl beside the record"
            lines.append(f"whether it was still learning is not known{whose}: {why}")
        if self.finished and self._within is None:
            lines.append("whether it learned the task is not known: exact match on test was not scored")
        return tuple(lines)

    @cached_property
    def scores(self) -> dict[Key, dict[int, SeedScore]]:
        """The scores of the finished runs by what was scored and by seed."""
        by_key: dict[Key, dict[int, SeedScore]] = {}
        for run in self.finished:
            for key, score in _scores_of(run):
                by_key.setdefault(key, {})[run.seed] = score
        return by_key

    @cached_property
    def still_learning(self) -> Learning | None:
        """How the validation loss ended, if its mean over the seeds was still falling."""
        learning = mean_over_seeds(self.learning)
        return learning if learning is not None and learning.falling else None

    @cached_property
    def unlearned(self) -> str | None:
        """Why it counts as not learned, by TASK_RULE or LEARNED_RULE; None if it learned, or if that is unknown."""
        if self.records and self.records[0].task is not None:
            return TASK_RULE if self._within is not None and self._within < TASK_LEARNED else None
        learning = mean_over_seeds(self.learning)
        # Without positions, or with one vector for all distances, it has no order to learn.
        if learning is None or self.orderless_loss is None or not self.position.ordered:
            return None
        if learning.loss < (1 - LEAST_GAIN) * self.orderless_loss:
            return None
        return f"{LEARNED_RULE}: {learning.loss:.3f} and {self.orderless_loss:.3f} nats per piece"

    @property
    def undecided(self) -> str:
        """Why no comparison with it is decided: `not learned` or `still learning`; empty if there is no such reason."""
        if self.finished and self._within is None:
            return "not known to be learned"
        # Language models are compared at equal numbers of tokens, which their table names.
        if self.unlearned or not self.records or self.records[0].kind is TEXT:
            return "not learned" if self.unlearned else ""
        return "still learning" if self.still_learning else "" if self.watched else "still learning?"

    @property
    def _within(self) -> float | None:
        """Percent exact match within a task's training lengths, the lowest of its test sets, or None; else 100."""
        if self.records and self.records[0].task is None:
            return 100.0
        scores = self.measurements.items()
        within = [score.value for (split, _, metric), score in scores if (split, metric) == ("test", EXACT_MATCH)]
        return min((value for value in within if value is not None), default=None)

    @cached_property
    def measurements(self) -> dict[Key, Measurement]:
        """The mean over seeds of each score; of a single seed its score with the interval in its record."""
        return {key: _over_seeds(key, [*by_seed.values()]) for key, by_seed in self.scores.items()}

    def measured(self, key: Key | None, absent: str) -> Measurement:
        """The measurement of a key, or why there is none: no finished run, or `absent`."""
        if (measurement := self.measurements.get(key or ())) is not None:
            return measurement
        return missing(absent if self.finished else "; ".join(self.unfinished) or "never run")

    def change(self, reference: Variant, key: Key | None, absent: str) -> Measurement:
        """The mean of its differences from the reference over the seeds of both, or why there is none; without such a
        seed the difference of the means, which has no interval. `absent` as in `measured`.
        """
        own, its = self.measured(key, absent), reference.measured(key, absent)
        if own.value is None:
            return own
        if its.value is None or key is None:
            return missing(f"nothing to compare with: {reference.label}: {its.reason}")
        if self is reference:
            return Measurement(0.0, own.n)
        both = self.scores[key], reference.scores[key]
        if len({score.way for scores in both for score in scores.values()}) > 1:
            return missing(f"scored in another way than {reference.label}")
        ours, others = ({seed: score.value for seed, score in scores.items()} for scores in both)
        seeds = sorted(ours.keys() & others.keys())
        if seeds:
            sentences = next(iter(both[0].values())).sentences
            return _mean(key, [ours[seed] - others[seed] for seed in seeds], sentences, changes=True)
        means = [math.fsum(each.values()) / len(each) for each in (ours, others)]
        return Measurement(means[0] - means[1], min(len(ours), len(others)))


def _over_seeds(key: Key, scores: Sequence[SeedScore]) -> Measurement:
    if len({score.way for score in scores}) > 1:
        return missing("the seeds were measured in different ways, so they have no mean")
    if len(scores) == 1:
        return single(scores[0].value, scores[0].interval)
    return _mean(key, [score.value for score in scores], scores[0].sentences)


def _mean(key: Key, values: Sequence[float], sentences: int, *, changes: bool = False) -> Measurement:
    """The mean of scores or of their changes, with an interval within their bounds. No score is below 0."""
    highest = math.inf if PERCENTAGES.isdisjoint(key) else 100.0
    lowest = -highest if changes else 0.0
    if SHARES.isdisjoint(key):
        return mean(values, lowest, highest)
    return mean_of_shares(values, 100 / sentences, lowest, highest)


def never_run(kind: str, k: int | None = None) -> Variant:
    """A variant of which there is no record, for rows and references that were not run."""
    label = kind if k is None else f"{kind}, k = {k}"
    return Variant(Position(kind, label, k, None, ""), label)


@dataclass(frozen=True)
class Group:
    """All position variants of one model on one corpus, with the same training on one kind of hardware.

    `settings` are those that decide what a result means, with the precision and the documents as they were; `distinct`
    of these distinguish it from other groups of the same corpus, model, steps and hardware.
    """

    data: str
    model: str
    max_steps: int
    hardware: str
    settings: Mapping[str, Any]
    distinct: tuple[tuple[str, Any], ...]
    variants: tuple[Variant, ...]
    baseline_name: str = "absolute"

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
    def kind(self) -> Kind:
        return self.runs[0].kind

    @property
    def task(self) -> bool:
        """Whether the corpus is a generated task, scored by exact match."""
        return self.kind is TASK

    @property
    def documents(self) -> bool:
        """Whether these are language models of documents, scored in bits per byte."""
        return self.kind is TEXT

    @property
    def translation(self) -> bool:
        """Whether the paper has figures of its kind."""
        return self.kind is TRANSLATION

    @cached_property
    def metric(self) -> str:
        """The metric of its findings."""
        return self.kind.metric

    @property
    def digits(self) -> int:
        """The decimals of its scores."""
        return self.kind.digits

    @cached_property
    def split(self) -> str:
        """The split of its findings; of a task `long`, as most variants learn the training lengths."""
        first = self.kind.splits
        order = (*first, *self.own_splits, "validation")
        return next((split for split in order if self.column(split) is not None), first[-1])

    @cached_property
    def own_splits(self) -> tuple[str, ...]:
        """The test sets of names of the user's own, scored by the metric of the findings."""
        columns = (column for column in self.columns if column.metric == self.metric)
        return tuple(column.split for column in columns if column.split not in SPLITS)

    @property
    def development(self) -> str:
        """Of translations the split to compare with the paper's Tables 2 and 3, on newstest2013: validation, unless
        fewer variants were scored on it than on the split of the findings.
        """

        def scored(split: str) -> int:
            return sum(self.score(variant, split).value is not None for variant in self.variants)

        return max("validation", self.split, key=scored) if self.translation else self.split

    @cached_property
    def columns(self) -> tuple[TestColumn, ...]:
        """Every metric and test set that a finished run has scores for."""
        measured = {key for variant in self.variants for key in variant.scores if isinstance(key, TestColumn)}
        return tuple(sorted(measured, key=lambda column: column.order))

    @property
    def heading(self) -> str:
        """`multi30k_en_de | model tiny | 1,500 steps | cpu`, and any distinguishing settings."""
        return f"{self.corpus} | {self.setting}"

    @property
    def corpus(self) -> str:
        """The name of the corpus, marked if it is synthetic."""
        return f"{self.data} (synthetic)" if self.synthetic and "synthetic" not in self.data else self.data

    @property
    def common_heading(self) -> str:
        """The heading without the distinguishing settings."""
        return replace(self, distinct=()).heading

    @property
    def setting(self) -> str:
        """`model tiny | 1,500 steps | cpu`, and any distinguishing settings."""
        parts = (f"model {self.model}", f"{self.max_steps:,} steps", self.hardware, self.distinctly())
        return " | ".join(part for part in parts if part)

    def distinctly(self, *without: str) -> str:
        """`precision 32, norm pre`: the distinguishing settings, except for those of these names."""
        names = short_names(name for name, _ in self.distinct)
        return ", ".join(f"{names[name]} {value}" for name, value in self.distinct if name not in without)

    @property
    def advice(self) -> str:
        """What to do about runs that were still learning."""
        falling = (end.steps for variant in self.variants if (end := variant.still_learning))
        steps = max(falling, default=self.max_steps)
        return f"train at least twice as long: optim.max_steps={2 * steps}"

    @property
    def size(self) -> paper.Size:
        """The paper's model that this group's model is compared with."""
        return paper.size_of(self.model)

    @property
    def languages(self) -> str:
        """The language pair, as `en_de`."""
        sides = [self.runs[0].setting(f"data.{side}_language") for side in ("source", "target")]
        return "_".join(map(str, sides)) if all(sides) else "en_de"

    def column(self, split: str, metric: str | None = None) -> TestColumn | None:
        """The column of a metric (by default the one of the findings) on a split."""
        wanted = (split, metric or self.metric)
        return next((column for column in self.columns if (column.split, column.metric) == wanted), None)

    def get(self, kind: str, k: int | None = None) -> Variant:
        """The first variant of a kind, with this k if given."""
        of_kind = (variant for variant in self.variants if variant.position.kind == kind)
        return next((one for one in of_kind if k in (None, one.position.clip_distance)), never_run(kind, k))

    @cached_property
    def papers_relative(self) -> Variant:
        """Relative positions with the paper's k."""
        return self.get("relative", paper.MODELS[self.size].clip_distance)

    @cached_property
    def baseline(self) -> Variant:
        """The variant that the others are compared with, by its label, name or kind."""
        return next(iter(self.called(self.baseline_name)), never_run(self.baseline_name))

    def called(self, name: str) -> list[Variant]:
        """The variants that a command line names, by a row's label first: several if the name does not say which."""
        named = {id(record) for record in called(name, (variant.records[0] for variant in self.variants))}
        of_label = [variant for variant in self.variants if variant.label == name]
        return of_label or [variant for variant in self.variants if id(variant.records[0]) in named]

    def score(self, variant: Variant, split: str, metric: str | None = None) -> Measurement:
        """A variant's score on a split, or why there is none."""
        return variant.measured(self.column(split, metric), f"not evaluated on {split}")

    def change(self, variant: Variant, reference: Variant, split: str) -> Measurement:
        """A variant's score on a split minus that of the reference."""
        return variant.change(reference, self.column(split), f"not evaluated on {split}")
