"""Translate the test splits of a run's data and score them; used by train and evaluate."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rpr.config import TrainConfig
from rpr.data.cache import PreparedData
from rpr.evaluation.bleu import all_scores
from rpr.evaluation.decoding import TorchEngine, search_of
from rpr.evaluation.translate import translate_split
from rpr.model.transformer import Transformer
from rpr.results.record import Score, replace_file
from rpr.runs import runtime


def score_splits(
    config: TrainConfig, data: PreparedData, model: Transformer, checkpoint: str, run_dir: Path
) -> tuple[Score, ...]:
    """Scores of every split that the evaluation names and the data has; hypotheses are left beside the record."""
    evaluation = config.evaluation
    engine = TorchEngine(model, runtime.torch_device(config.hardware), bfloat16=config.hardware.precision == "bf16")
    scores: list[Score] = []
    for split in evaluation.test_splits:
        if split not in data.splits:
            continue
        print(f"translating {split} ({len(data.split(split))} sentences, beam {evaluation.beam_size})", file=sys.stderr)
        hypotheses = translate_split(engine, data.split(split), data.vocabulary, search_of(evaluation))
        sources, references = data.text(split)
        for kind, lines in (("sources", sources), ("references", references), ("hypotheses", hypotheses)):
            replace_file(run_dir / f"{split}.{kind}.txt", "".join(line + "\n" for line in lines))
        scores.extend(
            Score(
                split=split,
                test_set=data.meta.split_names.get(split, f"{data.meta.name} {split}"),
                metric=metric.name,
                score=metric.score,
                signature=metric.signature,
                num_sentences=metric.num_sentences,
                checkpoint=checkpoint,
                beam_size=evaluation.beam_size,
                length_penalty=evaluation.length_penalty,
                precision=config.hardware.precision,
            )
            for metric in all_scores(hypotheses, references, config.data.target_language)
        )
    return tuple(scores)


def score_lines(scores: Iterable[Score]) -> list[str]:
    """One line a score: split, metric, number, sentences, signature."""
    return [
        f"  {score.split:<11} {score.metric:<15} {score.score:6.2f}  {score.num_sentences} sentences  {score.signature}"
        for score in scores
    ]
