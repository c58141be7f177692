"""Translate the test splits of a run's data, or read its documents, and score them; used by train and evaluate."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rpr.config.train import TrainConfig
from rpr.data.batches import Windows, context_blocks, scored_split
from rpr.data.cache import PreparedData
from rpr.data.vocabulary import UNK
from rpr.decode.engine import Engine, engine_of, search_of, translate_sources
from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.kinds import TASK, TEXT
from rpr.model.transformer import Transformer
from rpr.progress import Progress, bars
from rpr.records.files import Texts, documents_file, write_split
from rpr.records.scores import (
    BITS_PER_BYTE,
    EXACT_MATCH,
    HEADLINE_METRIC,
    SOURCE_UNIT,
    ByContext,
    ByLength,
    LengthBucket,
    LengthScore,
    Score,
)
from rpr.scoring.metrics import TASK_METRICS, Metric, all_scores
from rpr.scoring.statistics import SufficientStatistics, interval
from rpr.scoring.text import by_context_length, document_statistics, token_nats

BY_LENGTH = (HEADLINE_METRIC, "chrf", EXACT_MATCH)


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its engine, and the checkpoints and arithmetic precision for the record."""

    engine: Engine
    checkpoint: str
    precision: str


def evaluated_model(config: TrainConfig, model: Transformer, checkpoint: str) -> EvaluatedModel:
    """The engine of this model, as configured; matmuls "as in training" are those of this process."""
    hardware = config.hardware
    matmuls = config.evaluation.matmul_precision or torch.get_float32_matmul_precision()
    rounded = hardware.precision == "32" and matmuls != "highest"
    precision = f"{hardware.precision}{f', {matmuls} products' * rounded}"
    return EvaluatedModel(engine_of(model, hardware, matmuls), checkpoint, precision)


@dataclass(frozen=True)
class RunScores:
    """Scores of all splits; `by_length` is None if no split was scored or no buckets are configured."""

    scores: tuple[Score, ...]
    by_length: ByLength | None
    by_context: tuple[ByContext, ...] = ()


def validation_bleu(config: TrainConfig, data: PreparedData, model: Transformer) -> float:
    """BLEU of greedy translations of the first validation sentences, during training."""
    engine = evaluated_model(config, model, "in training").engine
    sources = data.split("validation").first("source", config.evaluation.validation_sentences)
    with Progress(len(sources), "sentences", "translating validation", keep=False) as bar:
        search = search_of(config.evaluation, greedy=True)
        hypotheses, _ = translate_sources(engine, sources, data.vocabulary, search, bar.reach)
    references = data.text("validation")[1][: len(hypotheses)]
    language, tokenizer = config.data.target_language, config.evaluation.bleu_tokenizer
    return all_scores(hypotheses, references, language, [HEADLINE_METRIC], tokenizer)[0].score


def check_scorable(config: TrainConfig, data: PreparedData) -> None:
    """Raises DataError, before anything is trained, if no document of a test split has the longest of the contexts, or
    if examples of a task cannot be read or answered rightly: they would be errors, whatever was learned.
    """
    evaluation = config.evaluation
    for split in (split for split in evaluation.test_splits if split in data.splits):
        if evaluation.context_lengths:
            context_blocks(data, split, evaluation.context_lengths[-1], 1)
        if config.data.kind is not TASK:
            continue
        pairs = data.split(split)
        rows = zip(pairs.first("source"), pairs.first("target"), strict=True)
        if unknown := sum(UNK in source or UNK in target for source, target in rows):
            rule = f"{unknown} of the {len(pairs)} examples of {split} have words without a piece, so no right answer"
            raise DataError(f"data.vocabulary_size: {rule}; give every word of the task a piece")
        if (more := int((pairs.target_lengths - pairs.source_lengths).max())) > (given := evaluation.max_extra_length):
            rule = f"{given} cuts off right answers of {split}, with {more} tokens more than their input"
            raise DataError(f"evaluation.max_extra_length: {rule}; train with {more}, or score other splits")
        if (least := int(pairs.target_lengths.min()) - 1) < (given := evaluation.min_length):  # EOS is not counted
            rule = f"{given} rules out right answers of {split}, with {least} tokens"
            raise DataError(f"evaluation.min_length: {rule}; set {least} or less")


def score_run(config: TrainConfig, data: PreparedData, system: EvaluatedModel, run_dir: Path) -> RunScores:
    """Scores of every test split that the data has; the hypotheses are written next to the record."""
    evaluation = config.evaluation
    splits = [split for split in evaluation.test_splits if split in data.splits]
    if config.data.kind is TEXT:
        return _score_documents(config, data, splits, system, run_dir)
    metrics = TASK_METRICS if config.data.kind is TASK else None
    scored, scores = dict[str, list[Metric]](), list[Score]()
    for split in splits:
        rows, what = data.split(split).first("source"), f"translating {split} (beam {evaluation.beam_size})"
        with Progress(len(rows), "sentences", what, lines="last") as bar:
            best = translate_sources(system.engine, rows, data.vocabulary, search_of(evaluation), bar.reach)
        texts = Texts(*data.text(split), best.texts)
        write_split(run_dir, split, texts)
        language, tokenizer = config.data.target_language, evaluation.bleu_tokenizer
        scored[split] = all_scores(best.texts, texts.references, language, metrics, tokenizer)
        for metric in scored[split]:
            cut = {"empty_hypotheses": metric.empty, "unfinished_hypotheses": best.finished.count(False)}
            scores.append(_score(config, data, split, metric, system, **cut))
    return RunScores(tuple(scores), _by_length(config, data, scored, system))


def _score(
    config: TrainConfig, data: PreparedData, split: str, metric: Metric, system: EvaluatedModel, **more: Any
) -> Score:
    return Score(
        split=split,
        test_set=data.set_name(split),
        metric=metric.name,
        score=metric.score,
        signature=metric.signature,
        num_sentences=metric.num_sentences,
        interval=interval(metric.statistics, config.evaluation.bootstrap_samples),
        tokenised_references=metric.tokenised,
        **more,
        **_decoding(config, system),
    )


def _decoding(config: TrainConfig, system: EvaluatedModel) -> dict[str, Any]:
    search = {"beam_size": 1, "length_penalty": 0.0}
    if config.data.kind is not TEXT:
        search = config.evaluation.model_dump(include={"beam_size", "length_penalty", "min_length"})
    return {**search, "checkpoint": system.checkpoint, "precision": system.precision}


def _by_length(
    config: TrainConfig, data: PreparedData, scored: dict[str, list[Metric]], system: EvaluatedModel
) -> ByLength | None:
    evaluation, task = config.evaluation, config.data.task
    if not scored or not evaluation.length_buckets:
        return None
    unit, longest = SOURCE_UNIT, int(data.split("train").source_lengths.max())
    counted: list[NDArray[np.integer]] = [data.split(split).source_lengths for split in scored]
    if task is not None:
        unit, longest = task.UNIT, task.max_train_length
        examples = [zip(*data.text(split), strict=True) for split in scored]
        counted = [np.array([task.length(*pair) for pair in of_split], np.int64) for of_split in examples]
    metrics = list(scored.values())
    return ByLength(
        unit=unit,
        splits=tuple(scored),
        test_sets=tuple(data.set_name(split) for split in scored),
        longest_training_source=longest,
        signatures={metric.name: metric.signature for metric in metrics[0] if metric.name in BY_LENGTH},
        buckets=by_length(counted, metrics, evaluation.length_buckets, longest, evaluation.bootstrap_samples),
        **_decoding(config, system),
    )


def by_length(
    lengths: Sequence[NDArray[np.integer]],
    scored: Sequence[Sequence[Metric]],
    edges: Iterable[int],
    longest_training_source: int,
    samples: int,
) -> tuple[LengthBucket, ...]:
    """The scores of each non-empty bucket, up to and including each edge and beyond the last one, of all splits: a
    bucket of one is often too small. The longest training length is an edge, too: no bucket mixes seen and unseen ones.
    `lengths` of each example and `scored` are by split; without bootstrap `samples` there are no intervals.
    """
    all_lengths = np.concatenate(lengths)
    of_metrics = (same for same in zip(*scored, strict=True) if same[0].name in BY_LENGTH)
    pooled = dict[str, SufficientStatistics]()
    for same in of_metrics:
        rows = np.concatenate([metric.statistics.rows for metric in same])
        pooled[same[0].name] = SufficientStatistics(rows, same[0].statistics.formula)
    buckets = []
    ends = sorted({*edges, longest_training_source})
    for before, longest in zip([0, *ends], [*ends, None], strict=True):
        mask = (all_lengths > before) & (all_lengths <= (longest or all_lengths.max()))
        if mask.any():
            parts = {name: statistics.select(mask) for name, statistics in pooled.items()}
            scores = tuple(LengthScore(name, part.score, interval(part, samples)) for name, part in parts.items())
            beyond = before >= longest_training_source
            buckets.append(LengthBucket(before + 1, longest, beyond, int(mask.sum()), scores))
    return tuple(buckets)


def _score_documents(
    config: TrainConfig, data: PreparedData, splits: Sequence[str], system: EvaluatedModel, run_dir: Path
) -> RunScores:
    """Bits per byte, also by the length of the context. The nats of each document are written next to the record."""
    evaluation, length = config.evaluation, config.data.context_length
    assert length is not None
    scores, contexts = list[Score](), list[ByContext]()
    for split in splits:
        # 1. The nats of each document.
        windows = scored_split(data, config.data, split, evaluation.text_tokens)
        assert isinstance(windows, Windows)
        with Progress(len(windows), "windows", f"scoring {split}", lines="last") as bar:
            nats = token_nats(system.engine, windows, evaluation.max_tokens_per_batch, bar.reach)
        statistics, documents = document_statistics(windows, nats, data.vocabulary)
        names = (data.directory / f"{split}.names").read_text("utf-8").splitlines()
        rows = zip((names[document] for document in documents), statistics.rows.tolist(), strict=True)
        lines = [f"{int(size)}\t{total!r}\t{name}\n" for name, (total, size) in rows]
        replace_file(run_dir / documents_file(split), "".join(lines))
        # 2. The score of all.
        tokens, size = int(windows.target_lengths.sum()), int(statistics.rows[:, 1].sum())
        signature = f"tok:{config.data.tokenizer}|context:{length}|windows:separate|tokens:{tokens}|bytes:{size}"
        metric = Metric(BITS_PER_BYTE, statistics.score, signature, len(statistics), statistics)
        scores.append(_score(config, data, split, metric, system))
        # 3. By the length of the context.
        if not evaluation.context_lengths:
            continue
        blocks = context_blocks(data, split, evaluation.context_lengths[-1], evaluation.text_tokens)
        with bars("windows", split, keep=False) as progress:
            of_lengths, positions = by_context_length(system.engine, blocks, data.vocabulary, evaluation, progress)
        scored = ByContext(
            split=split,
            test_set=data.set_name(split),
            training_length=length,
            num_bytes=of_lengths[0].num_bytes,
            num_tokens=int(blocks.target_lengths.sum()),
            num_documents=len(set(blocks.document_of().tolist())),
            stride=evaluation.stride,
            checkpoint=system.checkpoint,
            precision=system.precision,
            scores=tuple(of_lengths),
            by_position=tuple(positions),
        )
        contexts.append(scored)
    return RunScores(tuple(scores), None, tuple(contexts))
