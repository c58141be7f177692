"""Comparing trained runs on the same test sentences: choosing pairs, checking comparability, and testing."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import DataError, RunError, did_you_mean
from rpr.io.escape import escape_control_characters
from rpr.kinds import TASK, TEXT, kind_of_metric
from rpr.records.difference import decoding
from rpr.records.files import Texts, has_translations, read_documents, read_translations
from rpr.records.measurement import Measurement, holm, mean
from rpr.records.position import called, code_differences, name_of, names_of, position_of, positions_of
from rpr.records.record import RECORD_NAME, Record, deciding_settings, read_record, short_names, varying
from rpr.records.scores import Interval, counted
from rpr.scoring.documents import document_metrics
from rpr.scoring.metrics import TASK_METRICS, Metric, all_scores
from rpr.scoring.significance import interval, paired_tests

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
class Comparison:
    """A run compared with a baseline on the same sentences: the score of the run minus the baseline's."""

    baseline: str
    run: str
    difference: float
    interval: Interval
    p_bootstrap: float
    p_randomisation: float


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
    title: str = ""
    tokenised: int | None = None  # as of Metric

    @property
    def of_documents(self) -> bool:
        """Whether the scores are bits per byte, the lower the better."""
        return kind_of_metric(self.metric).lower_is_better

    @property
    def corrected(self) -> list[tuple[Comparison, float, float]]:
        """Each comparison with both p-values (of bootstrap and randomisation) after Holm's correction."""
        bootstrap = holm([comparison.p_bootstrap for comparison in self.comparisons])
        randomisation = holm([comparison.p_randomisation for comparison in self.comparisons])
        return list(zip(self.comparisons, bootstrap, randomisation, strict=True))

    @property
    def items(self) -> str:
        """What the score is over."""
        return "documents" if self.of_documents else "sentences"

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
    """The run of a record's file, named by `with_short_names`. Raises RecordError if there is no record, or none that
    this version can read; RunError if the run is not finished, or the file is no record's.
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
    records, names = [run.record for run in runs], [run.record.name for run in runs]
    keys = [
        json.dumps([_settings_except_positions(run), position.identity, code], sort_keys=True)
        for run, position, code in zip(runs, positions_of(records), code_differences(records), strict=True)
    ]
    labels = {key: run.config.label.removesuffix(f"-s{run.config.seed}") for run, key in zip(runs, keys, strict=True)}
    shared = {label for label, number in Counter(labels.values()).items() if number > 1}
    for key, label in labels.items():
        if label in shared:
            labels[key] = f"{label}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return [
        replace(
            run, name=run.record.name if names.count(run.record.name) == 1 else str(run.folder), variant=labels[key]
        )
        for run, key in zip(runs, keys, strict=True)
    ]


def pairs_of_runs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """(baseline, other) pairs of the first run's variant with each other variant, matched by seed.

    A run without a baseline of its seed is paired with the first run. If all runs are of one variant, the first run is
    paired with each other seed.
    """
    first = runs[0]
    by_seed = {run.config.seed: run for run in reversed(runs) if run.variant == first.variant}
    others = [run for run in runs if run.variant != first.variant]
    if not others:
        return [(first, run) for run in runs[1:]]
    return [(by_seed.get(run.config.seed, first), run) for run in others]


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
    pairs, alone = [], []
    for group in groups.values():
        # 1. The baselines, which are of one variant.
        named = {id(record) for record in called(baseline, (run.record for run in group))}
        of_baseline = [run for run in group if id(run.record) in named]
        if len({run.variant for run in of_baseline}) > 1:
            labels = sorted({position_of(run.record).label for run in of_baseline})
            one = f"one of them, as baseline='\"{labels[0]}\"', or " if len(labels) > 1 else ""
            raise RunError(
                f"baseline: {' and '.join(sorted({run.variant for run in of_baseline}))} both have "
                f"position={baseline}; name {one}the runs: rpr-cli compare BASELINE RUN ..."
            )
        # 2. The others, each with the baseline of its seed.
        baselines = {run.config.seed: run for run in reversed(of_baseline)}
        others = [run for run in group if id(run.record) not in named]
        alone += [
            f"{run.name} has no finished baseline with position={baseline}, seed={run.config.seed}, the same "
            f"corpus and otherwise the same settings; train one, choose another, as baseline={name_of(run.record)}, "
            "or name the runs: rpr-cli compare BASELINE RUN ..."
            for run in others
            if run.config.seed not in baselines
        ]
        if of_group := [(baselines[run.config.seed], run) for run in others if run.config.seed in baselines]:
            side_by_side = [run for pair in of_group for run in pair]
            pairs.append(([*{run.name: run for run in (*side_by_side, *of_baseline)}.values()], of_group))
    # 3. What cannot be compared.
    if not pairs and not called(baseline, (run.record for run in runs)):
        names = {name for run in runs for name in names_of(run.record)}
        raise RunError(
            f"baseline: no finished run of sweep {sweep} has position={baseline}{did_you_mean(baseline, names)}"
        )
    if not pairs:
        all_of_it = f"{len(runs)} finished runs, all of them baselines ({baseline} positions); name the runs instead"
        raise RunError(f"sweep {sweep}: {alone[0] if alone else all_of_it}")
    return pairs, alone


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
    of_both = []
    for each in (run, baseline):
        decoded = {f"evaluation.{name}": value for name, value in decoding(each.record).items()}
        decoded["evaluation.precision"] = decoded.get("evaluation.precision") or "32"  # None in older records
        origin = each.config.origin
        decoded["from"] = f"{origin.words(each.config.seed)} ({origin.settings_id})" if origin else "scratch"
        of_both.append(_decided_by(each) | decoded)
    own, its = of_both
    names = short_names(varying(of_both))
    return "; ".join(f"{name} {own.get(key)}, not {its.get(key)}" for key, name in names.items())


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
    if a run has no translations of a split, or the runs have different sentences or ways of scoring, or there is one
    sentence or document alone.
    """
    splits = _common(runs) if splits is None else splits
    if any(run.config.data.kind is TEXT for run in runs):
        for name, given in (("metrics", metrics), ("bleu_tokenizer", tokenizer)):
            if given is not None:
                raise DataError(f"{name}: documents are compared by bits per byte alone; leave it out")
        documents = [(run.name, run.path, run.record) for run in runs]
        return [_family(split, runs, pairs, document_metrics(documents, split), **numbers) for split in splits]
    families = []
    for split in splits:
        scored: list[list[Metric]] = []  # of each run
        for run, texts in zip(runs, _texts(runs, split), strict=True):
            language, of_run = run.config.data.target_language, run.config.evaluation.bleu_tokenizer
            names = metrics or (TASK_METRICS if run.config.data.kind is TASK else USUAL_METRICS)
            scored.append(all_scores(texts.hypotheses, texts.references, language, names, tokenizer or of_run))
        for first, *others in zip(*scored, strict=True):
            for run, other in zip(runs[1:], others, strict=True):
                if other.signature != first.signature:
                    raise DataError(
                        f"runs: {runs[0].name} and {run.name} have different {first.name}, {first.signature} and "
                        f"{other.signature}; compare runs into the same language, or choose one bleu_tokenizer=..."
                    )
            by_run = {run.name: metric for run, metric in zip(runs, (first, *others), strict=True)}
            families.append(_family(split, runs, pairs, by_run, **numbers))
    return families


def _family(
    split: str, runs: Sequence[Run], pairs: Sequence[tuple[Run, Run]], by_run: dict[str, Metric], **numbers: int
) -> Family:
    systems = []
    for run in runs:
        metric = by_run[run.name]
        if metric.num_sentences == 1:
            raise DataError(
                f"splits: {split} of {run.record.data_name} has {counted(1, metric.name)}, which says nothing about "
                "others; choose other splits=[...], or train several seeds and compare them with rpr-cli report"
            )
        _check_scored(run, split, metric)
        ends = interval(metric.statistics, numbers["samples"], numbers["seed"])
        assert ends is not None, "samples of several sentences"
        folder = escape_control_characters(str(run.folder))
        seed, learned = run.config.seed, _learned(run.record, split)
        systems.append(System(run.name, folder, run.variant, seed, metric.score, ends, metric.empty, learned))
    comparisons = []
    for base, other in pairs:
        tests = paired_tests(by_run[base.name].statistics, by_run[other.name].statistics, **numbers)
        comparisons.append(Comparison(base.name, other.name, *tests))
    metric = by_run[runs[0].name]
    test_sets = (score.test_set for score in runs[0].record.scores if score.split == split)
    return Family(
        split=split,
        test_set=next(test_sets, split),
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


def _check_scored(run: Run, split: str, metric: Metric) -> None:
    """Raises DataError if the files beside a record are not those it was scored on."""
    recorded = run.record.score(split, metric.name)
    if recorded is None or recorded.signature != metric.signature:
        return
    if not math.isclose(recorded.score, metric.score, rel_tol=1e-6, abs_tol=1e-9):
        raise DataError(
            f"{run.path}: {metric.name} of {split} is {recorded.score:.9g}, but {metric.score:.9g} by the files beside "
            "it; restore those that were scored, or omit the run"
        )


def can_be_compared(path: Path, split: str) -> bool:
    """Whether the run of a record file has translations of a split, or of its documents the nats."""
    return has_translations(path, split) or bool(read_documents(path, split))


def _common(runs: Sequence[Run]) -> list[str]:
    splits = dict.fromkeys(score.split for score in runs[0].record.scores)
    common = [split for split in splits if all(can_be_compared(run.path, split) for run in runs)]
    if not common:
        without = next((run for run in runs if not any(can_be_compared(run.path, split) for split in splits)), runs[0])
        what = "translations" if without.config.data.kind is not TEXT else "documents with their nats"
        raise DataError(
            f"{without.folder}: has no {what} of a split that every run has ({', '.join(splits) or 'none'}); "
            "they are written when a run is scored: omit it, or move its folder away and train it again"
        )
    return common


def _texts(runs: Sequence[Run], split: str) -> list[Texts]:
    """The texts of each run, sources and references the same for all."""
    texts = [read_translations(run.path, split) for run in runs]
    for run, of_run in zip(runs, texts, strict=True):
        for kind, lines, others in zip(Texts._fields[:2], texts[0], of_run, strict=False):
            if lines != others:
                pairs = enumerate(zip_longest(lines, others), start=1)
                different = next(number for number, (line, other) in pairs if line != other)
                raise DataError(
                    f"runs: {runs[0].name} and {run.name} have different {kind} of {split}, first in line {different} "
                    f"({len(lines)} and {len(others)} lines); compare runs that were scored on the same sentences"
                )
    return texts
