"""From run records to groups of runs with the same training, and to their position variants: the rows of all tables.

Beside them published figures, the paper's, of `rpr.paper`, and those of published.yaml; and how runs differ from the
paper's, whose settings are those of `model=base` (or big).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import yaml

from rpr import paper
from rpr.compose.composition import compose_train
from rpr.errors import RecordError, did_you_mean
from rpr.kinds import TASK, TEXT, TRANSLATION, Kind
from rpr.model.positions.vectors import SHARING
from rpr.paths import sweep_files
from rpr.records.files import DocumentNats
from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.position import OTHER, Position, called, corpus_differences, names_of, positions_of
from rpr.records.record import Record, deciding_settings, flat, short_names, varying
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES, PERCENTAGES, SPLITS, Interval
from rpr.report.verdicts import Changes, changes, over_seeds_and_documents

MOST_FALL, LEAST_NATS, LAST_PART = 0.01, 0.005, 0.1
LEARNING_RULE = (
    f"still learning: the validation loss fell by more than {MOST_FALL:.0%} and {LEAST_NATS} nats over the last tenth "
    "of the steps, on average over the seeds"
)
SOLVED = 95.0  # percent exact match, with which a seed solves a task
BASELINE, NOT_LEARNED = "baseline", "not learned"
RunKey = tuple[str, int, str, str]
Heading = tuple[str, str, int, str]  # corpus, model, steps, hardware
Key = tuple[Any, ...]  # what was measured: (split, metric), or by length or context as `_scores_of` has it


class SeedScore(NamedTuple):
    """One run's score. Only those that were measured in the same `way` have a mean or a difference."""

    value: float
    way: tuple[Any, ...]
    interval: Interval | None = None
    items: int = 0  # sentences or documents
    cut_off: float = 0.0  # the share of its translations that reached the length limit


def _scores_of(run: Record) -> Iterator[tuple[Key, SeedScore]]:
    """Every score of a run: on test sets; by length, (metric, shortest, longest or 0); by context, (split,
    "separate" or "sliding", its length).
    """
    for score in run.scores:
        items, cut_off = score.num_sentences, (score.unfinished_hypotheses or 0) / score.num_sentences
        yield (score.split, score.metric), SeedScore(score.score, score.way, score.interval, items, cut_off)
    if (by_length := run.by_length) is not None:
        for bucket, part in ((one, part) for one in by_length.buckets for part in one.scores):
            way = (*by_length.way(part.metric), bucket.num_sentences)
            yield (part.metric, *bucket.key), SeedScore(part.score, way, part.interval, bucket.num_sentences)
    for context in run.by_context:
        for of in context.scores:
            way = (*context.way, context.stride if of.windows == "sliding" else None)
            yield (context.split, of.windows, of.length), SeedScore(of.bits_per_byte, way, of.interval)


def heading_of(run: Record) -> Heading:
    return run.data_name, run.model_name, run.max_steps, run.hardware


def run_key(record: Record) -> RunKey:
    """A key that is unique to a run within a report."""
    return (record.run_id, record.seed, record.hardware, record.started)


class Beside(NamedTuple):
    """What a report reads beside a record: its path, its training metrics by step, the nats of documents by split."""

    path: Path = Path("record.json")
    curves: Mapping[str, Mapping[int, float]] = MappingProxyType({})
    documents: Mapping[str, Sequence[DocumentNats]] = MappingProxyType({})

    def fall(self) -> tuple[float, float] | None:
        """The fall of the validation loss over the last tenth of the steps, a share and nats a piece, where known."""
        steps, losses = zip(*sorted((self.curves.get("validation/loss") or {0: 0.0}).items()), strict=True)
        start = steps[-1] * (1 - LAST_PART)
        before, last = float(np.interp(start, steps, losses)), losses[-1]
        return ((before - last) / before, before - last) if steps[0] <= start and before > 0 else None


ByRun = Mapping[RunKey, Beside]  # where known
_NOTHING: ByRun = MappingProxyType({})


class Variant:
    """One position variant of a group over its seeds; without records it was never run.

    `finished`: one run for each seed, the newest, an original before a rerun; `unfinished`: those of other seeds.
    `scores` of the finished runs, by what was scored and by seed; `measurements`: their means over seeds, of one seed
    its score with the interval in its record. `beside` the finished runs, or without any the others. `fall`: the share
    by which the validation loss fell over the last tenth, if it was still falling by LEARNING_RULE.
    """

    group: Group  # that it is a row of, which sets this

    def __init__(
        self, position: Position, label: str, records: Sequence[Record] = (), beside: ByRun = _NOTHING
    ) -> None:
        self.position, self.label, self.records = position, label, tuple(records)
        # 1. Its runs.
        finished = [run for run in records if run.status == "finished"]
        newest = {run.seed: run for run in sorted(finished, key=lambda run: (run.rerun_of is None, run.started))}
        self.finished = tuple(newest[seed] for seed in sorted(newest))
        self.unfinished = tuple(run for run in records if run.outcome and run.seed not in newest)
        # 2. Their scores.
        self.scores: dict[Key, dict[int, SeedScore]] = {}
        for run in self.finished:
            for key, score in _scores_of(run):
                self.scores.setdefault(key, {})[run.seed] = score
        self.measurements = {key: _over_seeds(key, [*by_seed.values()]) for key, by_seed in self.scores.items()}
        # 3. What stands beside them.
        self.beside = {run.seed: beside.get(run_key(run), Beside()) for run in self.finished or self.records}
        falls = [fall for of_run in self.beside.values() if self.finished and (fall := of_run.fall()) is not None]
        share, nats = (sum(values) / len(falls) for values in zip(*falls, strict=True)) if falls else (0.0, 0.0)
        self.fall = share if share > MOST_FALL and nats > LEAST_NATS else None

    def measured(self, key: Key) -> Measurement:
        """The measurement of a key, or why there is none."""
        if (measurement := self.measurements.get(key)) is not None:
            return measurement
        if self.finished:
            return missing(f"not evaluated on {key[0]}" if len(key) == 2 else "not scored at this length")
        return missing("; ".join(f"seed {run.seed} {run.outcome}" for run in self.unfinished) or "never run")

    def unlearned(self, key: Key | None = None) -> str:
        """Why it counts as not learned, else empty: text by the score of `key`, all else by its score on test."""
        group, test = self.group, ("test", self.group.kind.metric)
        if group.kind is not TEXT or key is None:
            key = test if test in group.keys else group.key
        if (score := self.measured(key).value) is None:
            return ""
        scores = self.scores[key].values()
        cut_off = sum(of_seed.cut_off for of_seed in scores) / len(scores)
        return group.kind.unlearned(score, cut_off=cut_off, unigram=group.unigram)

    def change(self, key: Key) -> Measurement:
        """The change of the score from the baseline's with the interval of `verdicts`, or why there is none."""
        baseline = self.group.baseline
        score, its = self.measured(key), baseline.measured(key)
        if score.value is None:
            return score
        if self is baseline:
            return Measurement(0.0, score.n)
        if its.value is None:
            return missing(f"nothing to compare with: {baseline.label}: {its.reason}")
        for side in (self, baseline):
            if why := side.unlearned(key):
                return missing(f"{side.label}: {why}")
        return self.group.changes(key).of_rows.get(self.label) or missing(f"{OTHERWISE} {baseline.label}")

    def verdict(self, key: Key) -> str:
        """`better`, `worse`, `open`, `open (1 seed)`, `not learned` or `baseline`; empty without a score."""
        if self.measured(key).value is None:
            return ""
        if self.unlearned(key):
            return NOT_LEARNED
        return BASELINE if self is self.group.baseline else self.group.changes(key).verdicts.get(self.label, "")

    def over_documents(self, split: str) -> Measurement:
        """The change of the bits per byte from the baseline's, with its interval over seeds and documents."""
        change = self.change((split, self.group.kind.metric))
        sides = [{seed: kept for seed, of_run in side.beside.items() if (kept := of_run.documents.get(split))}
                 for side in (self, self.group.baseline)]  # fmt: skip
        seeds = sorted(sides[0].keys() & sides[1].keys())
        scored = {tuple((text.document, text.bytes) for text in side[seed]) for side in sides for seed in seeds}
        if change.value is None or len(seeds) < 2 or len(scored) > 1:
            return missing(change.reason or "no two seeds keep the nats of the same documents beside the baseline's")
        own, its = (np.array([[text.nats for text in side[seed]] for seed in seeds]) for side in sides)
        sizes = np.array([size for _, size in scored.pop()], dtype=float)
        return over_seeds_and_documents((own - its) / math.log(2), sizes)


OTHERWISE = "scored in another way than"


def _over_seeds(key: Key, scores: Sequence[SeedScore]) -> Measurement:
    if len({score.way for score in scores}) > 1:
        return missing("the seeds were measured in different ways, so they have no mean")
    if len(scores) == 1:
        return single(scores[0].value, scores[0].interval)
    step, highest = 100 / scores[0].items if TASK.metric in key else None, math.inf
    return mean([score.value for score in scores], 0.0, highest if PERCENTAGES.isdisjoint(key) else 100.0, step)


def never_run(group: Group, kind: str, k: int | None = None) -> Variant:
    """A variant without records, for rows and baselines that were not run."""
    label = kind if k is None else f"{kind}, k = {k}"
    variant = Variant(Position(kind, label, k, None, ""), label)
    variant.group = group
    return variant


def compared(rows: Mapping[str, Mapping[int, SeedScore]], baseline: str, kind: Kind, key: Key) -> Changes:
    """The changes from the baseline of the rows, by label, that were scored in its way; none if it has no score."""
    its = rows.get(baseline) or {}
    way = {score.way for score in its.values()}
    alike = {label: {seed: score.value for seed, score in scores.items()} for label, scores in rows.items()
             if its and {score.way for score in scores.values()} == way}  # fmt: skip
    items = next((score.items for score in its.values()), 0)
    step = 100 / items if items and kind is not TEXT else 0.001
    return changes(alike, baseline, step, lower_is_better=kind.lower_is_better, shares=TASK.metric in key)


class Group:
    """All position variants of one model on one corpus, with the same training on one kind of hardware.

    `settings` are those that decide what a result means, with the precision and the documents as they were; `distinct`
    of these distinguish it from other groups of the same corpus, model, steps and hardware. `published`: whether
    figures stand beside it. `unigram`: the entropy of its corpus, bits per byte. `keys`: every split and metric that a
    finished run has scores for; `own_splits`: those of the user's own; `split` and `key`: those of its findings.
    `size`: the paper's model that it is compared with. `papers_relative`: relative positions with the paper's k.
    `baseline`: what others are compared with, as given or as `usual_baseline` has it.
    """

    def __init__(
        self, settings: Mapping[str, Any], distinct: Sequence[str], variants: Sequence[Variant], baseline: str | None
    ) -> None:
        self.settings, self.variants, self.published = settings, tuple(variants), False
        self.distinct = {name: settings.get(name) for name in distinct}
        self._changes: dict[Key, Changes] = {}
        # 1. Its runs, and what they are of.
        self.runs = [run for variant in variants for run in variant.records]
        self.data, self.model, self.max_steps, self.hardware = heading_of(self.runs[0])
        self.finished = [run for variant in variants for run in variant.finished]
        self.kind, self.size = self.runs[0].kind, paper.size_of(self.model)
        self.synthetic = any(run.synthetic for run in self.runs)
        self.unigram = next((run.data.unigram_bits for run in self.runs if run.data and run.data.unigram_bits), None)
        sides = [self.runs[0].setting(f"data.{side}_language") for side in ("source", "target")]
        self.languages = "_".join(map(str, sides)) if all(sides) else "en_de"
        self.corpus = f"{self.data} (synthetic)" if self.synthetic and "synthetic" not in self.data else self.data
        # `multi30k_en_de | model tiny | 1,500 steps | cpu`, and the same with any distinguishing settings.
        self.common_heading = f"{self.corpus} | model {self.model} | {self.max_steps:,} steps | {self.hardware}"
        self.heading = " | ".join(filter(None, (self.common_heading, self.distinctly())))
        # 2. What was scored, the headline metric first, `test` before other splits.
        ranks = {name: rank for rank, name in enumerate([*METRIC_NAMES, *SPLITS])}
        scored = {(score.split, score.metric) for run in self.finished for score in run.scores}
        self.keys = sorted(scored, key=lambda key: (ranks.get(key[1], 99), key[1], ranks.get(key[0], 99), key[0]))
        every = [split for split, metric in self.keys if metric == self.kind.metric]
        self.own_splits = tuple(split for split in every if split not in SPLITS)
        order = (*self.kind.splits, *self.own_splits, "validation")
        self.split = next((split for split in order if split in every), order[-1])
        self.key = (self.split, self.kind.metric)
        # 3. What its variants are compared with.
        for variant in variants:
            variant.group = self
        self.papers_relative = self.get("relative", paper.MODELS[self.size].clip_distance)
        self.baseline_name, name = baseline, baseline or usual_baseline(self.runs)
        self.baseline = next(iter(self.called(name)), never_run(self, name))

    def distinctly(self, *without: str) -> str:
        """`precision 32, norm pre`: the distinguishing settings, except for those of these names."""
        names = short_names(self.distinct)
        return ", ".join(f"{names[name]} {value}" for name, value in self.distinct.items() if name not in without)

    def get(self, kind: str, k: int | None = None) -> Variant:
        """The first variant of a kind, with this k if given."""
        known = (row for row in self.variants if row.position.kind == kind and k in (None, row.position.clip_distance))
        return next(known, None) or never_run(self, kind, k)

    def called(self, name: str) -> list[Variant]:
        """The variants that a command line names, by a row's label first: several if the name does not say which."""
        named = {id(record) for record in called(name, (variant.records[0] for variant in self.variants))}
        of_label = [variant for variant in self.variants if variant.label == name]
        return of_label or [variant for variant in self.variants if id(variant.records[0]) in named]

    def changes(self, key: Key) -> Changes:
        """Those of all variants with a score that learned and were scored in the way of the baseline."""
        if key not in self._changes:
            learned = (row for row in self.variants if key in row.scores and not row.unlearned(key))
            rows = {variant.label: variant.scores[key] for variant in learned}
            self._changes[key] = compared(rows, self.baseline.label, self.kind, key)
        return self._changes[key]


def run_groups(
    records: Iterable[Record], beside: ByRun = _NOTHING, baseline: str | None = None, *, published: bool | None = None
) -> tuple[Group, ...]:
    """One group for each (corpus, model, steps, hardware) and each combination of other settings that affect results,
    of the files of the corpus and of the precision of the arithmetic as they were, the one with most runs first.

    `beside`: what stands beside records, by `run_key`, where known. `baseline`: the positions that others are compared
    with, as in `called`. `published`: whether published figures stand beside all groups; None: beside the paper's
    corpora and those of the sweeps whose file says `paper: true`. Raises RecordError if there are no records, or none
    with the positions of the baseline.
    """
    # 1. The runs by what a heading says and by every other setting that decides a result. `auto` leaves the precision
    #    of float32 matmuls to the device; of a run that has not ended it is not known.
    by_settings: dict[tuple[Heading, str], list[Record]] = {}
    runs = sorted(records, key=lambda run: (run.name, run.seed, run.run_id, run.started))
    headings = [*map(heading_of, runs)]
    trained = [run.training and run.training.matmul_precision for run in runs]
    usual = {heading: used for heading, used in reversed([*zip(headings, trained, strict=True)]) if used}
    for heading, run, corpus in zip(headings, runs, corpus_differences(runs), strict=True):
        used = usual.get(heading) if run.training is None else run.training.matmul_precision
        decided = {"hardware.precision": run.setting("hardware.precision"), "data.corpus": corpus}
        decided |= deciding_settings(run.config) | {"matmul_precision": used or "highest"}
        by_settings.setdefault((heading, json.dumps(decided, sort_keys=True)), []).append(run)
    # 2. Of each heading the groups, of each group its variants.
    groups = []
    ordered = sorted(by_settings.items(), key=lambda part: (part[0][0], -len(part[1]), part[0][1]))
    for heading, of_heading in groupby(ordered, key=lambda part: part[0][0]):
        parts = [(json.loads(text), of_part) for (_, text), of_part in of_heading]
        names = sorted(varying([settings for settings, _ in parts]))
        for settings, of_part in parts:
            groups.append(Group(settings, names, variants_of(of_part, beside), baseline))
            files = [file for file in sweep_files_of(of_part) if file.get("paper") is True]
            papers = heading[0].startswith("wmt14") or heading[0] in named_in(files, "data", "data.name")
            groups[-1].published = papers if published is None else published
    # 3. Whether there is anything to report.
    if not groups:
        raise RecordError("no run record to report; run `rpr-cli sweep ...` first, or give runs_dir=...")
    if baseline is not None and not any(group.called(baseline) for group in groups):
        known = {name for run in runs for name in names_of(run)}
        raise RecordError(f"baseline: no run has position={baseline}{did_you_mean(baseline, known)}")
    return tuple(groups)


def variants_of(records: Sequence[Record], beside: ByRun = _NOTHING) -> list[Variant]:
    """The position variants of these runs, in the order of rows."""
    # 1. The runs by their positions; published figures are of one way to share the tables of vectors.
    by_position: dict[Position, list[Record]] = {}
    for record, position in zip(records, positions_of(records), strict=True):
        by_position.setdefault(position, []).append(record)
    shared = {position.tables for position in by_position if position.tables and position.kind != OTHER}
    papers = paper.MODELS[paper.size_of(records[0].model_name)].tables
    usual = papers if papers in shared else min(shared, default=None)
    # 2. Of several versions of its code the one with most runs stands for a kind.
    rows = sorted(by_position.items(), key=lambda item: (item[0].order, -len(item[1]), item[0].code))
    sharing = {tables: f", {SHARING.get(tables, tables)}" for tables in shared if len(shared) > 1}
    labels = [position.label + sharing.get(str(position.tables), "") for position, _ in rows]
    variants = []
    for label, (position, runs) in zip(labels, rows, strict=True):
        # 3. Rows of one label are told apart by the settings in which they differ.
        alike = [flat(of[0].config["position"]) for other, (_, of) in zip(labels, rows, strict=True) if other == label]
        own = flat(runs[0].config["position"])
        settings = (f", {key} = {own[key]}" for key in varying(alike) if key != "name" and key in own)
        kind = position.kind if position.plain and position.tables in (None, usual) else OTHER
        variants.append(Variant(replace(position, kind=kind), label + "".join(settings), runs, beside))
    return variants


# What the files of sweeps say of how their runs are reported: description, baseline, best_of, paper, seeds


def sweep_files_of(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """The files, where there are any, of the sweeps of these runs. Raises RecordError if one cannot be read."""
    paths = sweep_files()  # never a path: a record could name any
    names = dict.fromkeys(name for run in runs for name in run.sweeps if name in paths)
    return [_read(paths[name], paths[name].stat().st_mtime_ns) for name in names]


@lru_cache
def _read(path: Path, _changed: int) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise RecordError(f"{path}: cannot be read as a sweep ({why}); mend it, or give it another name") from None
    return content if isinstance(content, dict) else {}


def usual_baseline(runs: Sequence[Record]) -> str:
    """What runs are compared with: sinusoids, else what the file of their sweep names, else the paper's row."""
    of_files = (str(name) for file in sweep_files_of(runs) if (name := file.get("baseline")))
    papers = f"relative-k{paper.MODELS[paper.size_of(runs[0].model_name)].clip_distance}"
    return next((name for name in ("absolute", *of_files, papers) if called(name, runs)), "absolute")


def named_in(files: Iterable[dict[str, Any]], *settings: str) -> set[str]:
    """The values of these settings that sweeps' files name."""
    parts = (part for file in files for key in ("overrides", "jobs") if isinstance(part := file.get(key), list))
    words = (word for part in parts for line in part if isinstance(line, str) for word in line.split())
    pairs = (word.partition("=") for word in words)
    return {value for name, _, values in pairs if name in settings for value in values.split(",")}


# Published figures, and how runs differ from the paper's

# Names, file locations and the amount of reporting; batches are compared by their tokens.
_NOT_COMPARED = {
    *("model.name", "optim.name", "data.source_language", "data.target_language", "data.hub", "data.hub_config"),
    *("data.validation_name", "data.test_name", "data.synthetic", "optim.keep_checkpoints"),
    *("optim.validate_every_n_steps", "optim.max_tokens_per_microbatch", "optim.microbatches_per_step"),
    *("optim.checkpoint_every_n_steps", "optim.checkpoint_every_n_minutes", "evaluation.bleu_tokenizer"),
    "evaluation.text_tokens",
}


class Source(NamedTuple):
    """Where figures come from; `key` and `heading` are those of its column."""

    key: str
    heading: str
    citation: str
    protocol: str  # how its models and scores differ from ours


class Published(NamedTuple):
    """One figure of a split and metric: it stands beside the rows whose `facts_of` include all of `match`."""

    match: Mapping[str, Any]
    key: Key
    figure: float
    source: Source


_SETS = f"Table 1 on {paper.TABLE1_TEST_SET}, Tables 2 and 3 on {paper.TABLE2_TEST_SET}; {paper.BLEU_KIND}"
PAPER = Source("paper", "paper", paper.SOURCE, _SETS)
# By (relative values, relative keys), as in the paper's Table 3.
KIND_OF_SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}
KIND_OF_SIDES |= {(False, False): "none"}


@cache
def published() -> tuple[Published, ...]:
    """Every figure of every source, the paper's first."""
    test, validation, k = ("test", HEADLINE_METRIC), ("validation", HEADLINE_METRIC), paper.TABLE3_CLIP_DISTANCE
    rows = []
    for (size, kind, pair), figure in paper.TABLE1.items():
        of_k = {"k": paper.MODELS[size].clip_distance} if kind == "relative" else {}
        rows.append(Published({"size": size, "kind": kind, "languages": pair, **of_k}, test, figure, PAPER))
    matches = [({"kind": "relative", "k": of_k}, figure) for of_k, figure in paper.TABLE2.items()]
    matches += [({"kind": KIND_OF_SIDES[sides], **({"k": k} if any(sides) else {})}, figure)
                for sides, figure in paper.TABLE3.items()]  # fmt: skip
    rows += [Published({**match, "languages": "en_de"}, validation, figure, PAPER) for match, figure in matches]
    document = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    for name, about in document.items():
        source = Source(name, about["heading"], about["citation"], about["protocol"])
        for facts in about["figures"]:
            [(by, figures)] = [fact for fact in facts.items() if isinstance(fact[1], dict)]
            match = {**about.get("facts", {}), **facts}
            rows += [Published({**match, by: value}, (about["split"], about["metric"]), float(figure), source)
                     for value, figure in figures.items()]  # fmt: skip
    return tuple(rows)


def all_sources() -> list[Source]:
    """The paper first, then those of published.yaml."""
    return [*dict.fromkeys(row.source for row in published())]


def find(variant: Variant, source: Source, split: str | None = None) -> Published | None:
    """The source's figure for a row, on a split if given; None without one."""
    facts = facts_of(variant).items()
    rows = (row for row in published() if row.source == source and split in (None, row.key[0]))
    return next((row for row in rows if row.match.items() <= facts), None)


def facts_of(variant: Variant) -> dict[str, Any]:
    """What published figures of a variant's runs are matched with; `rotated_share`: of RoPE."""
    group, run, position = variant.group, variant.group.runs[0], variant.position
    settings = ("data.context_length", "model.num_layers", "model.d_model", "data.task.max_train_length")
    return {name.rpartition(".")[2]: run.setting(name) for name in settings} | {
        "kind": position.kind if position.as_published else OTHER,
        "k": position.clip_distance,
        "rotated_share": next((run.setting("position.rotated_share") for run in variant.records), None),
        "data": group.data,
        "model": group.model,
        "size": group.size,
        "architecture": run.setting("model.architecture") or "encoder_decoder",
        "task": run.setting("data.task.kind"),
        "languages": group.languages if group.kind is TRANSLATION else None,
        "max_steps": group.max_steps,
    }


def published_figures(group: Group) -> dict[Source, list[tuple[Variant, float]]]:
    """The figures on the group's split of all sources but the paper, by variant; none if the group shows none."""
    figures: dict[Source, list[tuple[Variant, float]]] = {}
    scored = [variant for variant in group.variants if variant.measured(group.key).value is not None]
    for source in all_sources()[1:] if group.published else ():
        known = [(variant, row.figure) for variant in scored if (row := find(variant, source, group.split))]
        figures |= {source: known} if known else {}
    return figures


def tokens_per_step(config: dict[str, Any]) -> int:
    """The padded tokens of a step; of documents whole windows."""
    optim, window = config["optim"], config["data"].get("context_length") or 1
    tokens = optim.get("max_tokens_per_microbatch") or 0
    return max(1, tokens // window) * window * (optim.get("microbatches_per_step") or 1)


@cache
def papers_settings(size: paper.Size, languages: str) -> dict[str, Any]:
    """The paper's settings by dotted key; of German, if the paper does not have these languages."""
    languages = languages if languages in paper.TRAIN_PAIRS else "en_de"
    dropout = ["model.dropout=0.1"] * ((size, languages) == ("big", "en_fr"))
    config = compose_train([f"model={size}", f"data=wmt14_{languages}", *dropout])
    return _settings(config.model_dump(mode="json")) | {"train pairs": paper.TRAIN_PAIRS[languages]}


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    compared = {key: value for key, value in deciding_settings(config).items() if key not in _NOT_COMPARED}
    return compared | {"tokens per step": tokens_per_step(config), "precision": config["hardware"].get("precision")}


def differences(runs: Iterable[Record], size: paper.Size, languages: str) -> list[str]:
    """How training and decoding of these runs differ from the paper's: `steps 5,000 (100,000)`, the paper's last."""
    papers, texts = papers_settings(size, languages), dict[str, None]()
    for run in runs:
        pairs = {"train pairs": run.data.train_pairs} if run.data else {}
        for key, value in (_settings(run.config) | pairs).items():
            own, its = (f"{one:,}" if type(one) is int else str(one or "none") for one in (value, papers.get(key)))
            if own != its:
                texts[f"{key.rpartition('.')[2]} {own} ({its})"] = None
    return [*texts]
