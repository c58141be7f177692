"""From run records to groups of runs with the same training, and to their position variants: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from rpr import paper
from rpr.records.measurement import Measurement, mean, mean_of_shares, missing, single
from rpr.records.position import Position, names_of
from rpr.records.record import Record
from rpr.records.scores import (
    BITS_PER_BYTE,
    EXACT_MATCH,
    METRIC_NAMES,
    SHARES,
    SPLITS,
    LengthScore,
    Score,
    how_scored,
    how_scored_by_length,
)
from rpr.report.learning import LEARNED_RULE, LEAST_GAIN, Learning, advice, mean_over_seeds
from rpr.report.protocol import Difference, differences

NEVER_RUN = "never run"
# Percent exact match within the training lengths: with less, a task is not learned, and scores beyond say little.
TASK_LEARNED = 95.0
TASK_RULE = f"not learned: exact match within the training lengths is below {TASK_LEARNED:g}%"
TABULATED = ("relative", "relative_keys", "relative_values")  # of the paper's Tables 2 and 3


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
    """Steps/s of one run, and the device and precision it was measured with."""

    seed: int
    value: float
    setting: tuple[str, str | None, str | None]


@dataclass(frozen=True)
class Variant:
    """One position variant of a group over its seeds."""

    position: Position
    label: str
    records: tuple[Record, ...]
    learning: tuple[Learning, ...] = ()  # of finished runs with a known validation curve
    orderless_loss: float | None = None  # the last validation loss of the group's model without positions

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
    def uncommitted(self) -> tuple[str, ...]:
        """What a reader must know if a commit does not name the code of its runs; empty if it does, or is unknown."""
        seeds = [str(run.seed) for run in self.finished if run.git.dirty]
        what = "trained from a checkout with uncommitted changes, so no commit names the code"
        return (f"seed {', '.join(seeds)}: {what}",) if seeds else ()

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
            )
            for run in self.finished
            if run.training is not None and run.training.steps_per_second and run.concurrent_jobs == 1
        )

    @property
    def task(self) -> bool:
        """Whether its corpus is a generated task, scored by exact match."""
        return any(run.task is not None for run in self.records)

    @cached_property
    def still_learning(self) -> Learning | None:
        """How the validation loss ended, if its mean over the seeds was still falling."""
        found = mean_over_seeds(self.learning)
        return found if found is not None and found.falling else None

    @cached_property
    def unlearned(self) -> str | None:
        """Why it counts as not learned: on a task, too few exact matches even within the training lengths; on a corpus,
        a validation loss like that of a model without positions. None if it learned, or if that is unknown.
        """
        if self.task:
            found = self.measurements.items()
            within = [one.value for (split, _, metric), one in found if (split, metric) == ("test", EXACT_MATCH)]
            return TASK_RULE if any(value is not None and value < TASK_LEARNED for value in within) else None
        mine, position = mean_over_seeds(self.learning), self.position
        # Without positions, or with one vector for all distances, it has no order to learn.
        orderless = position.kind == "none" or (position.kind in TABULATED and position.clip_distance == 0)
        if mine is None or mine.loss is None or self.orderless_loss is None or orderless:
            return None
        if mine.loss < (1 - LEAST_GAIN) * self.orderless_loss:
            return None
        return f"{LEARNED_RULE}: {mine.loss:.3f} and {self.orderless_loss:.3f} nats per piece"

    @property
    def short_label(self) -> str:
        """The label, with `absolute` for sinusoids, as the paper says."""
        return "absolute" if self.position.kind == "absolute" else self.label

    @property
    def undecided(self) -> str:
        """Why no comparison with it is decided: `not learned` or `still learning`; empty if there is no such reason."""
        # Language models are compared at equal numbers of tokens, which their table names.
        learning = self.still_learning and self.records[0].headline_metric != BITS_PER_BYTE
        return "not learned" if self.unlearned else "still learning" if learning else ""

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
    return mean_score(scores)


def mean_score(scores: Sequence[Score | LengthScore]) -> Measurement:
    """One run's score with its interval, or the mean over seeds."""
    if len(scores) == 1:
        return single(scores[0].score, scores[0].interval)
    values = [score.score for score in scores]
    return mean_of_shares(values) if scores[0].metric in SHARES else mean(values)


@dataclass(frozen=True)
class Group:
    """All position variants of one model on one corpus, with the same training on one kind of hardware.

    `distinct`: the settings that distinguish it from other groups of the same corpus, model, steps and hardware.
    """

    data: str
    model: str
    max_steps: int
    hardware: str
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
    def task(self) -> bool:
        """Whether the corpus is a generated task, scored by exact match."""
        return self.variants[0].task

    @property
    def documents(self) -> bool:
        """Whether these are language models of documents, scored in bits per byte."""
        return self.metric == BITS_PER_BYTE

    @property
    def translation(self) -> bool:
        """Whether the paper has figures of its kind."""
        return not (self.task or self.documents)

    @property
    def metric(self) -> str:
        """The metric of its findings."""
        return self.runs[0].headline_metric

    @property
    def digits(self) -> int:
        """The decimals of its scores."""
        return 3 if self.documents else 1

    @cached_property
    def split(self) -> str:
        """The split of its findings: `test`, or `long` for a task, as most variants learn the training lengths; without
        these a test set of the user's own.
        """
        first = ("long", "test") if self.task else ("test",)
        order = (*first, *self.own_splits, "validation")
        return next((split for split in order if self.column(split) is not None), first[-1])

    @cached_property
    def own_splits(self) -> tuple[str, ...]:
        """The test sets of names of the user's own, scored by the metric of the findings."""
        return tuple(one.split for one in self.columns if one.metric == self.metric and one.split not in SPLITS)

    @property
    def development(self) -> str:
        """The split to compare with the paper's Tables 2 and 3, on newstest2013: validation, if it was scored."""
        return self.split if self.task or self.column("validation") is None else "validation"

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
        return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in self.distinct if name not in without)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """How the finished runs differ from the paper's; none for tasks and language models, which it does not have."""
        return differences(self.finished, self.size, self.papers_languages) if self.translation else ()

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

    @property
    def baseline(self) -> Variant | None:
        """The variant that the others are compared with, by its name or kind; None without it."""
        return next((one for one in self.variants if self.baseline_name in names_of(one.records[0])), None)

    def score(self, variant: Variant | None, split: str, metric: str | None = None) -> Measurement:
        """A variant's score on a split, or why there is none."""
        return missing(NEVER_RUN) if variant is None else variant.score(self.column(split, metric), split)

    def change(self, variant: Variant | None, reference: Variant | None, split: str, name: str) -> Measurement:
        """A variant's score minus the reference's, by `paired_change`.

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
        values = ({seed: score.score for seed, score in each.items()} for each in (ours, theirs))
        return paired_change(*values, shares=column.metric in SHARES)


def paired_change(ours: Mapping[int, float], theirs: Mapping[int, float], *, shares: bool = False) -> Measurement:
    """The mean of the differences over the seeds of both, or, with fewer than two such seeds, the difference of the
    means, without an interval. `shares`: of percentages.
    """
    both = ours.keys() & theirs.keys()
    if len(both) > 1 or ours.keys() == theirs.keys():
        changes = [ours[seed] - theirs[seed] for seed in sorted(both)]
        return mean_of_shares(changes, -100.0, 100.0) if shares else mean(changes)
    means = [math.fsum(each.values()) / len(each) for each in (ours, theirs)]
    return Measurement(means[0] - means[1], min(len(ours), len(theirs)))


def one_per_seed(records: Iterable[Record]) -> list[Record]:
    """The newest record of each seed, an original before a rerun of it, by ascending seed."""
    newest = {run.seed: run for run in sorted(records, key=lambda run: (run.rerun_of is None, run.started))}
    return [newest[seed] for seed in sorted(newest)]
