"""Comparing trained runs on the same test sentences or documents: choosing pairs, checking comparability, tests."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import DataError, RunError, did_you_mean
from rpr.io.escape import escape_control_characters
from rpr.kinds import TASK, TEXT, kind_of_metric
from rpr.records.difference import decoding
from rpr.records.files import has_translations, read_documents, read_translations
from rpr.records.measurement import Measurement, holm, mean
from rpr.records.position import called, code_differences, name_of, names_of, position_of, positions_of
from rpr.records.record import RECORD_NAME, Record, deciding_settings, read_record, short_names, varying
from rpr.records.scores import BITS_PER_BYTE, Interval, counted
from rpr.scoring.metrics import TASK_METRICS, Metric, all_scores
from rpr.scoring.statistics import Comparison, SufficientStatistics, bits_from_sums, interval, paired_tests

ALPHA = 0.05
USUAL_METRICS = ("sacrebleu", "chrf")  # of translations


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path  # the file of its record
    record: Record
    config: TrainConfig
    name: str
    variant: str  # the same of runs that differ only in their seed, names and folders, not in the code of a scheme

    @property
    def folder(self) -> Path:
        """The run's folder, or the file of a record without one."""
        return self.path.parent if self.path.name == RECORD_NAME else self.path


@dataclass(frozen=True)
class System:
    """A run's score on one split by one metric."""

    run: str
    folder: str
    variant: str
    seed: int
    score: float
    interval: Interval
    empty: int = 0  # translations
    learned: bool = True  # by the metric of its kind, whatever the metric here


@dataclass(frozen=True)
class Family:
    """The comparisons of one table, by one metric on one split, for whose number Holm's correction corrects."""

    split: str
    test_set: str
    metric: str
    signature: str
    num_sentences: int
    scores: tuple[System, ...]
    comparisons: tuple[Comparison, ...]
    tokenised: int | None = None  # as of Metric

    @property
    def items(self) -> str:
        """What the score is over."""
        return kind_of_metric(self.metric).items

    @property
    def corrected(self) -> list[tuple[Comparison, float, float]]:
        """Each comparison with both p-values (of bootstrap and randomisation) after Holm's correction."""
        bootstrap = holm([comparison.p_bootstrap for comparison in self.comparisons])
        randomisation = holm([comparison.p_randomisation for comparison in self.comparisons])
        return list(zip(self.comparisons, bootstrap, randomisation, strict=True))

    @property
    def verdicts(self) -> list[str | None]:
        """A sentence for each comparison of models that learned, whose tests are both significant after Holm's
        correction, else None.
        """
        kind = kind_of_metric(self.metric)
        beyond = kind.shares and self.split == "long"  # where a task that was learned may have no right answer
        runs = (system for system in self.scores if system.learned)
        learned = {system.run for system in runs if beyond or not kind.unlearned(system.score)}
        return [
            f"{pair.run} is {'better' if kind.better(pair.difference) else 'worse'} than {pair.baseline} "
            f"on these {self.items}"
            if max(p_values) < ALPHA and {pair.run, pair.baseline} <= learned
            else None
            for pair, *p_values in self.corrected
        ]

    @property
    def variants(self) -> dict[str, Measurement]:
        """The mean over the seeds of each variant; a rerun with the same seed does not count twice."""
        by_variant: dict[str, dict[int, float]] = {}
        for system in self.scores:
            by_variant.setdefault(system.variant, {}).setdefault(system.seed, system.score)
        return {variant: mean([*by_seed.values()]) for variant, by_seed in by_variant.items()}


def read_run(path: Path) -> Run:
    """The run of a record's file, to be named by `with_short_names`. Raises RecordError if this version cannot read it,
    RunError if the run is not finished.
    """
    record = read_record(path)
    run = Run(path, record, config_from_record(record.config, path), record.name, "")
    if record.outcome is not None:
        raise RunError(f"{run.folder}: {record.outcome}; only finished runs can be compared: finish it or omit it")
    return run


def with_short_names(runs: Sequence[Run]) -> list[Run]:
    """The runs with unambiguous names: their folders, where several have the same name. A variant is what decides a
    result but for the seed, as a row of a report. Raises RunError if a run is given twice.
    """
    paths = [run.path.resolve() for run in runs]
    if repeated := next((run for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1), None):
        raise RunError(f"runs: {repeated.folder} is given twice; give each run once")
    # 1. What decides a result, as a key.
    records, names = [run.record for run in runs], [run.record.name for run in runs]
    keys = [
        json.dumps([_settings_except_positions(run), position.identity, code], sort_keys=True)
        for run, position, code in zip(runs, positions_of(records), code_differences(records), strict=True)
    ]
    # 2. A label for each key, with a part of its hash where several keys would have the same.
    labels = {key: run.config.label.removesuffix(f"-s{run.config.seed}") for run, key in zip(runs, keys, strict=True)}
    several = Counter(labels.values())
    for key, label in labels.items():
        labels[key] += f"-{hashlib.sha256(key.encode()).hexdigest()[:8]}" if several[label] > 1 else ""
    shown = [run.record.name if names.count(run.record.name) == 1 else str(run.folder) for run in runs]
    return [replace(run, name=name, variant=labels[key]) for run, name, key in zip(runs, shown, keys, strict=True)]


def pairs_of_runs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """(baseline, other) pairs of the first run's variant with each other variant, matched by seed.

    A run without a baseline of its seed is paired with the first run. If all runs are of one variant, the first run is
    paired with each other seed.
    """
    first = runs[0]
    by_seed = {run.config.seed: run for run in reversed(runs) if run.variant == first.variant}
    others = [run for run in runs if run.variant != first.variant]
    return [(by_seed.get(run.config.seed, first), run) for run in others] or [(first, run) for run in runs[1:]]


def pairs_of_sweep(
    runs: Sequence[Run], sweep: str, baseline: str
) -> tuple[list[tuple[list[Run], list[tuple[Run, Run]]]], list[str]]:
    """Groups of runs that differ only in positions, seed and what decides no result, each with its (baseline, other)
    pairs: every run is paired with the one with the baseline's positions and the same seed. And a line for each run
    without such a baseline. `baseline`: its positions, as in `called`. Raises RunError if no run has such a baseline,
    or all runs are baselines.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_settings_except_positions(run), []).append(run)
    side_by_side, alone, remedy = [], [], "name the runs: rpr-cli compare BASELINE RUN ..."
    for group in groups.values():
        # 1. The baselines, which are of one variant.
        named = {id(record) for record in called(baseline, (run.record for run in group))}
        of_baseline = [run for run in group if id(run.record) in named]
        if len(variants := {run.variant: position_of(run.record).label for run in of_baseline}) > 1:
            label = f"baseline='\"{min(variants.values())}\"'"
            raise RunError(f"baseline: {baseline} is {' and '.join(sorted(variants))}; give {label}, or {remedy}")
        # 2. The others, each with the baseline of its seed.
        baselines = {run.config.seed: run for run in reversed(of_baseline)}
        others = [run for run in group if id(run.record) not in named]
        alone += [
            f"{run.name} has no finished baseline with position={baseline}, seed={run.config.seed}, the same corpus "
            f"and otherwise the same settings; train one, choose another (baseline={name_of(run.record)}), or {remedy}"
            for run in others
            if run.config.seed not in baselines
        ]
        if pairs := [(baselines[run.config.seed], run) for run in others if run.config.seed in baselines]:
            of_group = {run.name: run for run in (*(run for pair in pairs for run in pair), *of_baseline)}
            side_by_side.append(([*of_group.values()], pairs))
    # 3. What cannot be compared.
    if not side_by_side:
        names = {name for run in runs for name in names_of(run.record)}
        unknown = "" if called(baseline, (run.record for run in runs)) else did_you_mean(baseline, names)
        why = alone[0] if alone else f"{len(runs)} finished runs, all of them baselines ({baseline}); {remedy}"
        raise RunError(f"sweep {sweep}: {why}{unknown}")
    return side_by_side, alone


def _settings_except_positions(run: Run) -> str:
    return json.dumps([_decided_by(run), run.record.data and run.record.data.key], sort_keys=True)


def _decided_by(run: Run) -> dict[str, Any]:
    training = run.record.training
    used = (training.matmul_precision if training else None) or "highest"  # `auto` leaves it to the device
    arithmetic = {"hardware.precision": run.config.hardware.precision, "hardware.matmul_precision": used}
    return deciding_settings(run.config.model_dump(mode="json")) | arithmetic


def settings_differences(run: Run, baseline: Run) -> str:
    """How the run was trained and decoded otherwise than the baseline, besides positions and seed: `beam_size 4, not
    1; checkpoint step 9, not step 8`; empty if both were alike.
    """
    settings = []
    for side in (run, baseline):
        decoded = {f"evaluation.{name}": value for name, value in decoding(side.record).items()}
        decoded["evaluation.precision"] = decoded.get("evaluation.precision") or "32"  # None in older records
        origin = side.config.origin
        decoded["from"] = f"{origin.words(side.config.seed)} ({origin.settings_id})" if origin else "scratch"
        settings.append(_decided_by(side) | decoded)
    own, other = settings
    names = short_names(varying(settings))
    return "; ".join(f"{name} {own.get(key)}, not {other.get(key)}" for key, name in names.items())


def compare_runs(
    runs: Sequence[Run],
    pairs: Sequence[tuple[Run, Run]],
    splits: Sequence[str] | None,
    metrics: Sequence[str] | None,
    tokenizer: str | None,
    **numbers: int,
) -> list[Family]:
    """Score all runs, and test every pair of them, for every metric and split (None: all splits that every run has).

    `metrics`: None: sacreBLEU and chrF, of tasks exact match and sacreBLEU. Documents have bits per byte alone.
    `tokenizer`: of BLEU; None: as each run has it. `numbers`: samples, trials and seed of the tests. Raises DataError
    if a run has no translations of a split, the runs were scored otherwise, or on one sentence or document alone.
    """
    families = []
    for split in _common(runs) if splits is None else splits:
        # 1. All runs were scored on the same, in the same way; documents by models of one corpus.
        (texts, of_first), *others = scored = [_scored(run, split, metrics, tokenizer) for run in runs]
        for run, (of_run, own) in zip(runs[1:], others, strict=True):
            both = f"runs: {runs[0].name} and {run.name}"
            if of_run != texts:
                sizes = f"of {split} ({len(texts)} and {len(of_run)} lines)"
                raise DataError(f"{both} were scored on other texts {sizes}; compare runs of the same texts")
            for metric, first in zip(own, of_first, strict=True):
                if metric.signature != first.signature:
                    remedy = "compare runs into one language, of one context length, or choose one bleu_tokenizer=..."
                    different = f"different {first.name}, {first.signature} and {metric.signature}"
                    raise DataError(f"{both} have {different}; {remedy}")
            if run.record.corpus != runs[0].record.corpus:
                raise DataError(f"{both} were trained on another corpus; compare language models of the same")
        # 2. A family for each metric.
        for measured in zip(*(of_run for _, of_run in scored), strict=True):
            by_run = {run.name: metric for run, metric in zip(runs, measured, strict=True)}
            families.append(_family(split, runs, pairs, by_run, **numbers))
    return families


def _scored(
    run: Run, split: str, metrics: Sequence[str] | None, tokenizer: str | None
) -> tuple[list[tuple[Any, ...]], list[Metric]]:
    """What a run was scored on, line by line, and its metrics."""
    config = run.config
    if config.data.kind is TEXT:
        score, documents = run.record.score(split, BITS_PER_BYTE), read_documents(run.path, split)
        if score is None or not documents:
            raise DataError(f"runs: {run.name} has no documents of {split} with their nats; choose other splits=[...]")
        statistics = SufficientStatistics(np.asarray([(of.nats, of.bytes) for of in documents]), bits_from_sums)
        metric = Metric(BITS_PER_BYTE, statistics.score, score.signature, len(documents), statistics)
        return [(of.document, of.bytes) for of in documents], [metric]
    texts = read_translations(run.path, split)
    names = metrics or (TASK_METRICS if config.data.kind is TASK else USUAL_METRICS)
    tokenizer = tokenizer or config.evaluation.bleu_tokenizer
    scores = all_scores(texts.hypotheses, texts.references, config.data.target_language, names, tokenizer)
    return [*zip_longest(texts.sources, texts.references)], scores


def _family(
    split: str, runs: Sequence[Run], pairs: Sequence[tuple[Run, Run]], by_run: dict[str, Metric], **numbers: int
) -> Family:
    # 1. The scores, which are those of the records if these were scored in the same way.
    systems = []
    for run in runs:
        metric, recorded = by_run[run.name], run.record.score(split, by_run[run.name].name)
        ends = interval(metric.statistics, numbers["samples"], numbers["seed"])
        if ends is None or metric.num_sentences == 1:
            raise DataError(
                f"splits: {split} of {run.record.data_name} has {counted(1, metric.name)}, which says nothing about "
                "others; choose other splits=[...], or train several seeds and compare them with rpr-cli report"
            )
        same = recorded is None or math.isclose(recorded.score, metric.score, rel_tol=1e-6, abs_tol=1e-9)
        if recorded is not None and recorded.signature == metric.signature and not same:
            raise DataError(
                f"{run.path}: {metric.name} of {split} is {recorded.score:.9g}, but {metric.score:.9g} by the files "
                "beside it; restore those that were scored, or omit the run"
            )
        folder, learned = escape_control_characters(str(run.folder)), _learned(run.record, split)
        system = System(run.name, folder, run.variant, run.config.seed, metric.score, ends, metric.empty, learned)
        systems.append(system)
    # 2. The tests.
    comparisons = []
    for base, other in pairs:
        tested = paired_tests(by_run[base.name].statistics, by_run[other.name].statistics, **numbers)
        comparisons.append(replace(tested, baseline=base.name, run=other.name))
    metric = by_run[runs[0].name]
    return Family(
        split=split,
        test_set=next((score.test_set for score in runs[0].record.scores if score.split == split), split),
        metric=metric.name,
        signature=metric.signature,
        num_sentences=metric.num_sentences,
        scores=tuple(systems),
        comparisons=tuple(comparisons),
        tokenised=metric.tokenised,
    )


def _learned(record: Record, split: str) -> bool:
    """By the recorded score of its kind; a task may have no right answer beyond its training lengths."""
    score = record.score("test" if record.kind is TASK else split, record.kind.metric)
    if score is None:
        return True
    unigram = None if record.data is None else record.data.unigram_bits
    cut_off = (score.unfinished_hypotheses or 0) / score.num_sentences
    return not record.kind.unlearned(score.score, cut_off=cut_off, unigram=unigram)


def can_be_compared(path: Path, split: str) -> bool:
    """Whether the run of a record file has translations of a split, or of its documents the nats."""
    return has_translations(path, split) or bool(read_documents(path, split))


def _common(runs: Sequence[Run]) -> list[str]:
    """The splits that every run can be compared on."""
    splits = dict.fromkeys(score.split for score in runs[0].record.scores)
    common = [split for split in splits if all(can_be_compared(run.path, split) for run in runs)]
    if not common:
        rule = f"or documents with their nats, of a split that every run has ({', '.join(splits) or 'none'})"
        raise DataError(f"runs: there are no translations, {rule}; omit runs, or train them again in other folders")
    return common
