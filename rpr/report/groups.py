"""From run records to groups of runs with the same training, and to their position variants."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_json

from rpr import paper
from rpr.errors import RecordError, did_you_mean
from rpr.kinds import TEXT, Kind, of_the_papers_corpus
from rpr.model.positions.vectors import SHARING
from rpr.records.difference import corpus_differences
from rpr.records.files import DocumentNats
from rpr.records.measurement import Measurement, mean, mean_of_shares, missing, single
from rpr.records.position import OTHER, Position, called, names_of, positions_of
from rpr.records.record import DECIDING, Record, deciding_settings, flat, short_names, varying
from rpr.records.scores import (
    METRIC_NAMES,
    PERCENTAGES,
    SHARES,
    SPLITS,
    Interval,
    how_scored,
    how_scored_by_context,
    how_scored_by_length,
)
from rpr.report.sweep_files import corpora_of, seeds_of, sweep_files_of, usual_baseline
from rpr.report.verdicts import LEAST_SEEDS, Changes, changes, over_seeds_and_documents

_TRAINED_ON = ("devices", "num_nodes", "threads", "attention")  # otherwise the rounding differs
MOST_FALL, LEAST_NATS, LAST_PART = 0.01, 0.005, 0.1
LEARNING_RULE = (
    f"still learning: the validation loss fell by more than {MOST_FALL:.0%} and {LEAST_NATS} nats over the last tenth "
    "of the steps, on average over the seeds"
)
SOLVED = 95.0  # percent exact match, with which a seed solves a task
BASELINE, BETTER, WORSE, OPEN, NOT_LEARNED = "baseline", "better", "worse", "open", "not learned"
RunKey = tuple[str, int, str, str]
# What was measured: a TestColumn, LOSS, or by length or context as `_scores_of` has it.
Key = tuple[Any, ...]
LOSS = ("validation", "", "loss")


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
    """One run's score. Only those that were measured in the same `way` have a mean or a difference."""

    value: float
    way: tuple[Any, ...]
    interval: Interval | None = None
    items: int = 0  # sentences or documents


def _scores_of(run: Record) -> Iterator[tuple[Key, SeedScore]]:
    """Every score of a run: on test sets; by length, (metric, shortest, longest or 0); by context, (split, "separate"
    or "sliding", its length), and by position in it, (split, "position", the last one of a range); the last LOSS.
    """
    for score in run.scores:
        column = TestColumn(score.split, score.test_set, score.metric)
        yield column, SeedScore(score.score, how_scored(score), score.interval, score.num_sentences)
    if run.training is not None and run.training.validation_loss is not None:
        yield LOSS, SeedScore(run.training.validation_loss, (run.data and run.data.vocabulary_size,))
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


def run_key(record: Record) -> RunKey:
    """A key that is unique to a run within a report."""
    return (record.run_id, record.seed, record.hardware, record.started)


class Learning(NamedTuple):
    """How the validation loss of one run ended."""

    fall: float  # over the last tenth of training, as a share
    nats: float  # the same fall, in nats per piece


def learning_of(losses: Mapping[int, float]) -> Learning | None:
    """How a run's validation losses, by ascending step, ended; None if no validation was before the last tenth. The
    loss is interpolated linearly between validations, so the rule works with any interval of them.
    """
    steps = sorted(losses)
    if not steps or steps[0] > (start := steps[-1] * (1 - LAST_PART)):
        return None
    before, last = float(np.interp(start, steps, [losses[step] for step in steps])), losses[steps[-1]]
    return Learning((before - last) / before, before - last) if before > 0 else None


class Beside(NamedTuple):
    """What a report reads beside a record: how the run's validation curve ended, and of each split that keeps them the
    nats of its documents.
    """

    learning: Learning | None = None
    documents: Mapping[str, Sequence[DocumentNats]] = {}


@dataclass(frozen=True)
class Variant:
    """One position variant of a group over its seeds; without records it was never run."""

    position: Position
    label: str
    records: tuple[Record, ...] = ()
    beside: Mapping[RunKey, Beside] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        """One run for each seed: the newest, an original before a rerun of it."""
        finished = [run for run in self.records if run.status == "finished"]
        newest = {run.seed: run for run in sorted(finished, key=lambda run: (run.rerun_of is None, run.started))}
        return tuple(newest[seed] for seed in sorted(newest))

    @cached_property
    def unfinished(self) -> tuple[Record, ...]:
        """Those of seeds without a result."""
        done = {record.seed for record in self.finished}
        return tuple(run for run in self.records if run.outcome and run.seed not in done)

    @cached_property
    def caveats(self) -> dict[str, str]:
        """What a reader must know of its finished runs, by a word or two for it."""
        originals = Counter(run.seed for run in self.records if run.status == "finished" and run.rerun_of is None)
        planned = seeds_of(self.finished)
        seeds = {
            "uncommitted": [run.seed for run in self.finished if run.git.dirty],
            "trained again": [seed for seed, times in sorted(originals.items()) if times > 1],
            "more seeds": [run.seed for run in self.finished if planned and run.seed not in planned],
        }
        why = {
            "uncommitted": "trained from uncommitted changes, so no commit names the code",
            "trained again": "trained more than once, the newest run counts",
            "more seeds": f"beyond the {len(planned)} seeds that the sweep's file names: runs that were added later, "
            "perhaps after their results were seen, make a difference by chance more likely",
        }
        return {word: f"seed {', '.join(map(str, of_word))}: {why[word]}" for word, of_word in seeds.items() if of_word}

    @cached_property
    def scores(self) -> dict[Key, dict[int, SeedScore]]:
        """The scores of the finished runs by what was scored and by seed."""
        by_key: dict[Key, dict[int, SeedScore]] = {}
        for run in self.finished:
            for key, score in _scores_of(run):
                by_key.setdefault(key, {})[run.seed] = score
        return by_key

    @cached_property
    def fall(self) -> float | None:
        """The share by which the validation loss fell over the last tenth, if it was still falling by LEARNING_RULE."""
        ends = [end for run in self.finished if (end := self.beside.get(run_key(run), Beside()).learning) is not None]
        if not ends:
            return None
        fall, nats = (math.fsum(values) / len(ends) for values in zip(*ends, strict=True))
        return fall if fall > MOST_FALL and nats > LEAST_NATS else None

    @cached_property
    def measurements(self) -> dict[Key, Measurement]:
        """The mean over seeds of each score; of a single seed its score with the interval in its record."""
        return {key: _over_seeds(key, [*by_seed.values()]) for key, by_seed in self.scores.items()}

    def measured(self, key: Key | None, absent: str) -> Measurement:
        """The measurement of a key, or why there is none: no finished run, or `absent`."""
        if (measurement := self.measurements.get(key or ())) is not None:
            return measurement
        reasons = "; ".join(f"seed {run.seed} {run.outcome}" for run in self.unfinished)
        return missing(absent if self.finished else reasons or "never run")


def _over_seeds(key: Key, scores: Sequence[SeedScore]) -> Measurement:
    """The mean with an interval within the bounds of a score."""
    if len({score.way for score in scores}) > 1:
        return missing("the seeds were measured in different ways, so they have no mean")
    if len(scores) == 1:
        return single(scores[0].value, scores[0].interval)
    values = [score.value for score in scores]
    if SHARES.isdisjoint(key):
        return mean(values, 0.0, math.inf if PERCENTAGES.isdisjoint(key) else 100.0)
    return mean_of_shares(values, 100 / scores[0].items)


def never_run(kind: str, k: int | None = None) -> Variant:
    """A variant of which there is no record, for rows and baselines that were not run."""
    label = kind if k is None else f"{kind}, k = {k}"
    return Variant(Position(kind, label, k, None, ""), label)


@dataclass(frozen=True)
class Group:
    """All position variants of one model on one corpus, with the same training on one kind of hardware.

    `settings` are those that decide what a result means, with the precision and the documents as they were; `distinct`
    of these distinguish it from other groups of the same corpus, model, steps and hardware. `published`: whether
    figures stand beside it.
    """

    data: str
    model: str
    max_steps: int
    hardware: str
    settings: Mapping[str, Any]
    distinct: tuple[tuple[str, Any], ...]
    variants: tuple[Variant, ...]
    baseline_name: str | None = None
    published: bool = False
    _changes: dict[Key, Changes] = field(default_factory=dict, repr=False, compare=False)

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

    @cached_property
    def split(self) -> str:
        """The split of its findings; of a task `long`, as most variants learn the training lengths."""
        order = (*self.kind.splits, *self.own_splits, "validation")
        return next((split for split in order if self.column(split) is not None), order[-1])

    @cached_property
    def own_splits(self) -> tuple[str, ...]:
        """The test sets of names of the user's own, scored by the metric of the findings."""
        columns = (column for column in self.columns if column.metric == self.kind.metric)
        return tuple(column.split for column in columns if column.split not in SPLITS)

    @cached_property
    def columns(self) -> tuple[TestColumn, ...]:
        """Every metric and test set that a finished run has scores for."""
        measured = {key for variant in self.variants for key in variant.scores if isinstance(key, TestColumn)}
        return tuple(sorted(measured, key=lambda column: column.order))

    @cached_property
    def unigram(self) -> float | None:
        """The unigram entropy of its text in bits per byte, if a run has it."""
        return next((bits for run in self.runs if run.data and (bits := run.data.unigram_bits) is not None), None)

    @cached_property
    def corpus(self) -> str:
        """The name of the corpus, marked if it is synthetic."""
        return f"{self.data} (synthetic)" if self.synthetic and "synthetic" not in self.data else self.data

    @property
    def common_heading(self) -> str:
        """`multi30k_en_de | model tiny | 1,500 steps | cpu`."""
        return " | ".join((self.corpus, f"model {self.model}", f"{self.max_steps:,} steps", self.hardware))

    @property
    def heading(self) -> str:
        """The same with any distinguishing settings."""
        return " | ".join(filter(None, (self.common_heading, self.distinctly())))

    def distinctly(self, *without: str) -> str:
        """`precision 32, norm pre`: the distinguishing settings, except for those of these names."""
        names = short_names(name for name, _ in self.distinct)
        return ", ".join(f"{names[name]} {value}" for name, value in self.distinct if name not in without)

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
        wanted = (split, metric or self.kind.metric)
        return next((column for column in self.columns if (column.split, column.metric) == wanted), None)

    def get(self, kind: str, k: int | None = None) -> Variant:
        """The first variant of a kind, with this k if given."""
        of_kind = (variant for variant in self.variants if variant.position.kind == kind)
        return next((variant for variant in of_kind if k in (None, variant.position.clip_distance)), never_run(kind, k))

    @cached_property
    def papers_relative(self) -> Variant:
        """Relative positions with the paper's k."""
        return self.get("relative", paper.MODELS[self.size].clip_distance)

    @cached_property
    def baseline(self) -> Variant:
        """What the others are compared with, by the name that was given, else as `usual_baseline` has it."""
        name = self.baseline_name or usual_baseline(self.runs)
        return next(iter(self.called(name)), never_run(name))

    def called(self, name: str) -> list[Variant]:
        """The variants that a command line names, by a row's label first: several if the name does not say which."""
        named = {id(record) for record in called(name, (variant.records[0] for variant in self.variants))}
        of_label = [variant for variant in self.variants if variant.label == name]
        return of_label or [variant for variant in self.variants if id(variant.records[0]) in named]

    def score(self, variant: Variant, split: str, metric: str | None = None) -> Measurement:
        """A variant's score on a split, or why there is none."""
        return variant.measured(self.column(split, metric), f"not evaluated on {split}")

    def unlearned(self, variant: Variant, key: Key | None = None) -> str:
        """Why a variant counts as not learned; empty if it learned. Text is judged by the score of `key`, which is by
        default the column of the findings; a task by its score within the training lengths.
        """
        if self.kind is not TEXT or key is None:
            key = self.column("test") or self.column(self.split)
        mean_score = variant.measured(key, "").value
        if mean_score is None:
            return ""
        scores = [
            score
            for run in variant.finished
            for score in run.scores
            if (score.split, score.test_set, score.metric) == key
        ]
        cut_off = math.fsum((score.unfinished_hypotheses or 0) / score.num_sentences for score in scores)
        return self.kind.unlearned(mean_score, cut_off=cut_off / max(len(scores), 1), unigram=self.unigram)

    def change(self, variant: Variant, key: Key | None, absent: str = "not scored") -> Measurement:
        """The change of a variant's score from the baseline's, with the interval of the model of the table
        (rpr.report.verdicts), or why there is none.
        """
        own, its = variant.measured(key, absent), self.baseline.measured(key, absent)
        if own.value is None or key is None:
            return own
        if its.value is None:
            return missing(f"nothing to compare with: {self.baseline.label}: {its.reason}")
        if variant is self.baseline:
            return Measurement(0.0, own.n)
        for side in (variant, self.baseline):
            if why := self.unlearned(side, key):
                return missing(f"{side.label}: {why}")
        change = self.changes(key).of_rows.get(variant.label)
        return change or missing(f"scored in another way than {self.baseline.label}")

    def changes(self, key: Key) -> Changes:
        """Those of all variants with a score that learned and were scored in the way of the baseline."""
        if key not in self._changes:
            learned = [
                variant for variant in self.variants if key in variant.scores and not self.unlearned(variant, key)
            ]
            compared = in_one_way(
                {variant.label: variant.scores[key] for variant in learned}, self.baseline.scores[key]
            )
            items = next(iter(self.baseline.scores[key].values())).items
            step = 100 / items if items and self.kind is not TEXT else 10.0**-self.kind.digits
            self._changes[key] = changes(compared, self.baseline.label, step, shares=not SHARES.isdisjoint(key))
        return self._changes[key]

    def over_documents(self, variant: Variant, split: str) -> Measurement:
        """The change of a variant's bits per byte from the baseline's, with its interval over seeds and documents."""
        # 1. Of each side the nats of its documents, by seed.
        own, its = (
            {run.seed: kept for run in side.finished
             if (kept := side.beside.get(run_key(run), Beside()).documents.get(split))}
            for side in (variant, self.baseline)
        )  # fmt: skip
        seeds = sorted(own.keys() & its.keys())
        scored = {
            tuple((document.document, document.bytes) for document in side[seed])
            for side in (own, its)
            for seed in seeds
        }
        change = self.change(variant, self.column(split), f"not evaluated on {split}")
        if change.value is None or len(seeds) < 2 or len(scored) > 1:
            return missing(change.reason or "no two seeds keep the nats of the same documents beside the baseline's")
        # 2. Their differences in bits.
        nats = np.array([[[document.nats for document in side[seed]] for seed in seeds] for side in (own, its)])
        sizes = np.array([size for _, size in scored.pop()], dtype=float)
        return over_seeds_and_documents((nats[0] - nats[1]) / math.log(2), sizes)

    def verdict(self, variant: Variant, key: Key | None) -> str:
        """`better`, `worse`, `open`, `open (1 seed)`, `not learned` or `baseline`; empty without a score."""
        if key is None or variant.measured(key, "").value is None:
            return ""
        if self.unlearned(variant, key):
            return NOT_LEARNED
        if variant is self.baseline:
            return BASELINE
        change = self.change(variant, key)
        if change.value is None:
            return ""
        if variant.label in self.changes(key).decided:
            return BETTER if self.kind.better(change.value) else WORSE
        seeds = min(len(side.scores[key]) for side in (variant, self.baseline))
        return OPEN if seeds >= LEAST_SEEDS else f"{OPEN} ({seeds} seed{'s' * (seeds > 1)})"

    @property
    def methods(self) -> list[str]:
        """How the changes that were asked for were tested."""
        return [*dict.fromkeys(of_key.method for of_key in self._changes.values() if of_key.of_rows)]


def in_one_way(
    rows: Mapping[str, Mapping[int, SeedScore]], baseline: Mapping[int, SeedScore]
) -> dict[str, dict[int, float]]:
    """The scores, by label and seed, of the rows that were scored in the way of the baseline."""
    way = {score.way for score in baseline.values()}
    return {
        label: {seed: score.value for seed, score in scores.items()}
        for label, scores in rows.items()
        if scores and {score.way for score in scores.values()} == way
    }


def run_groups(
    records: Iterable[Record],
    beside: Mapping[RunKey, Beside] | None = None,
    baseline: str | None = None,
    *,
    published: bool | None = None,
) -> tuple[Group, ...]:
    """One group for each (corpus, model, steps, hardware) and each combination of other settings that affect results,
    of the files of the corpus and of the precision of the arithmetic as they were, the one with most runs first.

    `beside`: what stands beside records, by `run_key`, where known. `baseline`: the positions that others are compared
    with, as in `called`. `published`: whether published figures stand beside all groups; None: beside the paper's
    corpora and those of the sweeps whose file says `paper: true`. Raises RecordError if there are no records, or none
    with the positions of the baseline.
    """
    # 1. The runs by what a heading says.
    by_key: dict[tuple[str, str, int, str], list[tuple[Record, str | None]]] = {}
    of_all = sorted(records, key=lambda run: (run.name, run.seed, run.run_id, run.started))
    for run, corpus in zip(of_all, corpus_differences(of_all), strict=True):
        by_key.setdefault((run.data_name, run.model_name, run.max_steps, run.hardware), []).append((run, corpus))
    if not by_key:
        raise RecordError("no run record to report; run `rpr-cli sweep ...` first, or give runs_dir=...")
    groups = []
    deciding: dict[bytes, str] = {}  # many of thousands of records have the same sections
    for key, runs in sorted(by_key.items()):
        # 2. Of these by every other setting that decides a result.
        trained = [run.training.matmul_precision for run, _ in runs if run.training is not None]
        usual = next(filter(None, trained), "highest")
        alike: dict[str, list[Record]] = {}
        for run, corpus in runs:
            # `auto` leaves the precision of float32 matmuls to the device; of a run that has not ended it is not known.
            used = (run.training.matmul_precision or "highest") if run.training is not None else usual
            same = to_json([used, corpus, run.config.get("hardware"), *map(run.config.get, DECIDING)])
            if same not in deciding:
                settings = {"hardware.precision": run.setting("hardware.precision"), "matmul_precision": used}
                settings["data.corpus"] = corpus
                deciding[same] = json.dumps(deciding_settings(run.config) | settings, sort_keys=True)
            alike.setdefault(deciding[same], []).append(run)
        parts = [(json.loads(text), some) for text, some in sorted(alike.items())]
        names = sorted(varying([settings for settings, _ in parts]))
        # 3. Of each part its variants.
        for settings, some in sorted(parts, key=lambda part: -len(part[1])):
            distinct = tuple((name, settings.get(name)) for name in names)
            said = any(file.get("paper") is True and key[0] in corpora_of(file) for file in sweep_files_of(some))
            shown = published if published is not None else said or of_the_papers_corpus(key[0])
            groups.append(Group(*key, settings, distinct, _variants(_joined(some), beside or {}), baseline, shown))
    if baseline is not None:
        _check_baseline(groups, baseline)
    return tuple(groups)


def _check_baseline(groups: Iterable[Group], baseline: str) -> None:
    """Refuse a name that no run has, or several variants of a group."""
    of_each_group = [group.called(baseline) for group in groups]
    if not any(of_each_group):
        known = {name for group in groups for run in group.runs for name in names_of(run)}
        raise RecordError(f"baseline: no run has position={baseline}{did_you_mean(baseline, known)}")
    for named in (named for named in of_each_group if len(named) > 1):
        labels = "; ".join(variant.label for variant in named)
        named_so = f"""baseline='"{named[0].label}"'"""
        raise RecordError(
            f"baseline: several rows have position={baseline} ({labels}); give the label of one: {named_so}"
        )


def _joined(records: Iterable[Record]) -> list[Record]:
    """Merge runs of one seed that differ only in settings that decide no result, as the scored splits, into one."""
    finished: dict[str, Record] = {}
    others: list[Record] = []
    runs = sorted(records, key=lambda run: (run.rerun_of is None, run.started))
    for run, position in zip(runs, positions_of(runs), strict=True):
        hardware = run.config["hardware"]
        key = json.dumps((position.identity, run.setting("origin.weights"), *map(hardware.get, _TRAINED_ON), run.seed))
        older = finished.get(key)
        if run.status != "finished":
            others.append(run)
            continue
        if older is not None:
            have = {(score.split, score.test_set, score.metric) for score in run.scores}
            more = [score for score in older.scores if (score.split, score.test_set, score.metric) not in have]
            splits = {by_context.split for by_context in run.by_context}
            contexts = [by_context for by_context in older.by_context if by_context.split not in splits]
            update = {"scores": (*run.scores, *more), "by_context": (*run.by_context, *contexts)}
            run = run.model_copy(update=update | {"by_length": run.by_length or older.by_length})
        finished[key] = run
    return sorted((*finished.values(), *others), key=lambda run: (run.name, run.seed, run.run_id, run.started))


def _variants(records: list[Record], beside: Mapping[RunKey, Beside]) -> tuple[Variant, ...]:
    by_position: dict[Position, list[Record]] = {}
    for record, position in zip(records, positions_of(records), strict=True):
        by_position.setdefault(position, []).append(record)
    shared = {position.tables for position in by_position if position.tables and position.kind != OTHER}
    papers = paper.MODELS[paper.size_of(records[0].model_name)].tables
    usual = papers if papers in shared else min(shared, default=None)
    variants = []
    # Of several versions of its code the one with most runs stands for a kind.
    for position, runs in sorted(by_position.items(), key=lambda item: (item[0].order, -len(item[1]), item[0].code)):
        sharing = f", {SHARING.get(position.tables, position.tables)}" if len(shared) > 1 and position.tables else ""
        # The paper's tables are of one way to share the tables of vectors, and published figures of schemes as they are
        # alone; what is otherwise is a scheme like all others.
        kind = position.kind if position.plain and position.tables in (None, usual) else OTHER
        variants.append(Variant(replace(position, kind=kind), position.label + sharing, tuple(runs), beside))
    return tuple(replace(variant, label=variant.label + _own_settings(variant, variants)) for variant in variants)


def _own_settings(variant: Variant, variants: Sequence[Variant]) -> str:
    alike = [other for other in variants if other.label == variant.label]
    settings = [flat(other.records[0].config["position"]) for other in alike]
    own = settings[alike.index(variant)]
    return "".join(f", {key} = {own[key]}" for key in varying(settings) if key != "name" and key in own)
