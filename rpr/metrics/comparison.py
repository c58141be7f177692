"""Comparing trained runs on the same test sentences: choosing pairs, checking comparability, and testing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import DataError, RunError
from rpr.metrics.bleu import Metric, all_scores
from rpr.metrics.significance import PairedTests, holm, interval, paired_tests
from rpr.records.measurement import Measurement, mean
from rpr.records.record import RECORD_NAME, Record, deciding_settings, read_record
from rpr.records.scores import Interval

ALPHA = 0.05
_KINDS = ("sources", "references", "hypotheses")


@dataclass(frozen=True)
class Run:
    """A finished run. Runs that differ only in their seed, names and folders have the same `variant`."""

    folder: Path
    record: Record
    config: TrainConfig
    name: str
    variant: str


@dataclass(frozen=True)
class System:
    """A run's score on one split by one metric."""

    run: Run
    score: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """`other` compared with `baseline`; Holm's correction covers all comparisons of the same metric and split."""

    baseline: Run
    other: Run
    tests: PairedTests
    holm_bootstrap: float
    holm_randomisation: float

    @property
    def verdict(self) -> str | None:
        """One sentence if both tests are significant after Holm's correction, else None."""
        if max(self.holm_bootstrap, self.holm_randomisation) >= ALPHA:
            return None
        word = "better" if self.tests.difference > 0 else "worse"
        return f"{self.other.name} is {word} than {self.baseline.name} on these sentences"


@dataclass(frozen=True)
class Family:
    """All comparisons for one metric on one split."""

    split: str
    test_set: str
    metric: str
    signature: str
    num_sentences: int
    systems: tuple[System, ...]
    variants: dict[str, Measurement]  # the mean over the seeds of each
    comparisons: tuple[Comparison, ...]


def read_run(folder: Path) -> Run:
    """Raises RecordError if the folder has no readable record; RunError if the run is not finished or no folder."""
    if folder.is_file():
        raise RunError(f"{folder}: is a file; give the folder of a run, whose translations compare needs")
    return as_run(folder, read_record(folder / RECORD_NAME))


def as_run(folder: Path, record: Record) -> Run:
    if record.outcome is not None:
        raise RunError(f"{folder}: {record.outcome}; only finished runs can be compared: finish it or omit it")
    config = config_from_record(record.config)
    name = config.label.removesuffix(f"-s{config.seed}")
    return Run(folder, record, config, record.name, f"{name}-{_id(config)}")


def _id(config: TrainConfig) -> str:
    return config.model_copy(update={"seed": 0}).run_id


def with_short_names(runs: Sequence[Run]) -> list[Run]:
    """The runs with the shortest unambiguous run and variant names."""
    names = _unique([[run.record.name, run.folder.name, str(run.folder)] for run in runs])
    variants: dict[str, str] = {}
    for run in runs:
        variants.setdefault(_id(run.config), run.variant)  # the name of the first of them
    short = {key: variant.removesuffix(f"-{key}") for key, variant in variants.items()}
    clear = {key: name if list(short.values()).count(name) == 1 else variants[key] for key, name in short.items()}
    return [replace(run, name=name, variant=clear[_id(run.config)]) for run, name in zip(runs, names, strict=True)]


def _unique(choices: Sequence[Sequence[str]]) -> list[str]:
    for names in zip(*choices, strict=True):
        if len(set(names)) == len(names):
            return list(names)
    repeated = next(names[-1] for names in choices if [other[-1] for other in choices].count(names[-1]) > 1)
    raise RunError(f"runs: {repeated} is given twice; give each run once")


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


def pairs_of_sweep(runs: Sequence[Run], sweep: str) -> list[tuple[list[Run], list[tuple[Run, Run]]]]:
    """Groups of runs that differ only in positions, seed and what decides no result, each with its (baseline, other)
    pairs: every run is paired with the one with absolute (sinusoidal) positions and the same seed.

    Raises:
        RunError: a run has no such baseline, or all runs are baselines.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_settings_except_positions(run), []).append(run)
    pairs = []
    for group in groups.values():
        baselines = {run.config.seed: run for run in group if _is_baseline(run)}
        others = [run for run in group if not _is_baseline(run)]
        for run in others:
            if run.config.seed not in baselines:
                raise RunError(
                    f"sweep {sweep}: {run.name} has no finished baseline with position=absolute, "
                    f"seed={run.config.seed} and otherwise the same settings; train one, or name the runs: "
                    "rpr-cli compare BASELINE RUN ..."
                )
        if others:
            found = [(baselines[run.config.seed], run) for run in others]
            named = {run.name: run for run in [*(run for pair in found for run in pair), *group]}  # pairs side by side
            pairs.append(([*named.values()], found))
    if not pairs:
        raise RunError(
            f"sweep {sweep}: {len(runs)} finished runs, all of them baselines (absolute positions); "
            "name the runs: rpr-cli compare RUN RUN ..."
        )
    return pairs


def _is_baseline(run: Run) -> bool:
    return run.config.position.kind == "absolute"


def _settings_except_positions(run: Run) -> str:
    deciding = deciding_settings(run.config.model_dump(mode="json"))
    training = run.record.training
    used = (training.matmul_precision if training else None) or "highest"  # `auto` leaves it to the device
    return json.dumps([deciding, run.config.hardware.precision, used], sort_keys=True)


def compare_runs(
    runs: Sequence[Run],
    pairs: Sequence[tuple[Run, Run]],
    splits: Sequence[str] | None,
    metrics: Sequence[str],
    *,
    samples: int,
    trials: int,
    seed: int,
) -> list[Family]:
    """Score all runs, and test every pair of them, for every metric and split (None: all splits that every run has).

    Raises:
        DataError: a run has no translations of a split, or the runs were scored on different sentences.
    """
    families = []
    for split in _common(runs) if splits is None else splits:
        texts = _texts(runs, split)
        scored = {
            run.name: all_scores(texts[run.name][2], texts[run.name][1], run.config.data.target_language, metrics)
            for run in runs
        }
        for index in range(len(metrics)):
            by_run = {name: of_run[index] for name, of_run in scored.items()}
            families.append(_family(split, runs, pairs, by_run, samples, trials, seed))
    return families


def _family(
    split: str,
    runs: Sequence[Run],
    pairs: Sequence[tuple[Run, Run]],
    by_run: dict[str, Metric],
    samples: int,
    trials: int,
    seed: int,
) -> Family:
    metric = by_run[runs[0].name]
    tests = [
        paired_tests(
            by_run[base.name].statistics, by_run[other.name].statistics, samples=samples, trials=trials, seed=seed
        )
        for base, other in pairs
    ]
    corrected = zip(
        pairs,
        tests,
        holm([one.p_bootstrap for one in tests]),
        holm([one.p_randomisation for one in tests]),
        strict=True,
    )
    scores: dict[str, dict[int, float]] = {}  # a rerun with the same seed does not count twice
    for run in runs:
        scores.setdefault(run.variant, {}).setdefault(run.config.seed, by_run[run.name].score)
    recorded = runs[0].record.score(split)
    return Family(
        split=split,
        test_set=recorded.test_set if recorded else split,
        metric=metric.name,
        signature=metric.signature,
        num_sentences=metric.num_sentences,
        systems=tuple(
            System(run, by_run[run.name].score, interval(by_run[run.name].statistics, samples, seed)) for run in runs
        ),
        variants={variant: mean([*by_seed.values()]) for variant, by_seed in scores.items()},
        comparisons=tuple(Comparison(base, other, test, p, q) for (base, other), test, p, q in corrected),
    )


def _common(runs: Sequence[Run]) -> list[str]:
    splits = dict.fromkeys(score.split for score in runs[0].record.scores)
    common = [split for split in splits if all(_files(run, split) is not None for run in runs)]
    if not common:
        without = next((run for run in runs if not any(_files(run, split) for split in splits)), runs[0])
        raise DataError(
            f"{without.folder}: has no translations of a split that every run has ({', '.join(splits) or 'none'}); "
            "they are written when a run is scored: omit it, or move its folder away and train it again"
        )
    return common


def _files(run: Run, split: str) -> list[Path] | None:
    files = [run.folder / f"{split}.{kind}.txt" for kind in _KINDS]
    return files if all(file.is_file() for file in files) else None


def _texts(runs: Iterable[Run], split: str) -> dict[str, tuple[list[str], list[str], list[str]]]:
    """(sources, references, hypotheses) of each run, the first two the same for all."""
    texts: dict[str, tuple[list[str], list[str], list[str]]] = {}
    first: Run | None = None
    for run in runs:
        files = _files(run, split)
        if files is None:
            raise DataError(
                f"{run.folder}: has no {split}.hypotheses.txt with its sources and references; they are written when a "
                "run is scored: omit it, choose other splits=[...], or move its folder away and train it again"
            )
        # Split only at newlines: splitlines() also splits at unusual separators that occur in real sentences.
        sources, references, hypotheses = (_text(file).removesuffix("\n").split("\n") for file in files)
        if len(hypotheses) != len(references):
            raise DataError(
                f"{run.folder}: {len(hypotheses)} hypotheses for {len(references)} references of {split}; "
                "the files were changed: omit it, or move its folder away and train it again"
            )
        first = first or run
        texts[run.name] = (sources, references, hypotheses)
        for side, kind in enumerate(_KINDS[:2]):
            _check_same_texts(split, kind, first, texts[first.name][side], run, texts[run.name][side])
    return texts


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); score the run again, or omit it") from None


def _check_same_texts(split: str, kind: str, first: Run, ours: Sequence[str], run: Run, theirs: Sequence[str]) -> None:
    if ours == theirs:
        return
    common = min(len(ours), len(theirs))
    line = next((number for number in range(common) if ours[number] != theirs[number]), common) + 1
    raise DataError(
        f"runs: {first.name} and {run.name} have different {kind} of {split}, first in line {line} "
        f"({len(ours)} and {len(theirs)} lines); compare runs that were scored on the same sentences"
    )
