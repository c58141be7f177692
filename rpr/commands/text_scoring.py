"""Score the held-out documents of a run's data; used by train and evaluate."""

from collections.abc import Callable
from pathlib import Path

from rpr.analysis.text_scoring import by_context_length, document_statistics, token_nats
from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData
from rpr.data.windows import Windows, context_blocks, scored_split
from rpr.decode.engines import EvaluatedModel
from rpr.decode.torch_engine import TorchEngine
from rpr.io.atomic import replace_file
from rpr.metrics.documents import documents_file
from rpr.metrics.significance import interval
from rpr.progress import Progress, bars
from rpr.records.measurement import Measurement, missing, single
from rpr.records.scores import BITS_PER_BYTE, ByContext, PositionScore, Score
from rpr.tables.grid import Column, Grid


def score_documents(
    config: TrainConfig, data: PreparedData, system: EvaluatedModel, run_dir: Path
) -> tuple[tuple[Score, ...], tuple[ByContext, ...]]:
    """Bits per byte of every test split that the data has, and by the length of the context if configured. The nats of
    each document are written next to the record, for `rpr-cli compare`.
    """
    evaluation, engine = config.evaluation, system.engine
    assert isinstance(engine, TorchEngine)
    scores: list[Score] = []
    contexts: list[ByContext] = []
    for split in (split for split in evaluation.test_splits if split in data.splits):
        windows = scored_split(data, config.data, split, evaluation.text_tokens)
        assert isinstance(windows, Windows)
        with Progress(len(windows), "windows", f"scoring {split}", lines="last") as bar:
            nats = token_nats(engine, windows, evaluation.max_tokens_per_batch, bar.reach)
        statistics, documents = document_statistics(windows, nats, data.vocabulary)
        names = (data.directory / f"{split}.names").read_text("utf-8").splitlines()
        rows = zip((names[document] for document in documents), statistics.rows.tolist(), strict=True)
        lines = [f"{int(size)}\t{total!r}\t{name}\n" for name, (total, size) in rows]
        replace_file(run_dir / documents_file(split), "".join(lines))
        tokens, size = int(windows.target_lengths.sum()), int(statistics.rows[:, 1].sum())
        scores.append(
            Score(
                split=split,
                test_set=data.set_name(split),
                metric=BITS_PER_BYTE,
                score=statistics.score,
                signature=f"tok:{config.data.tokenizer}|context:{config.data.context_length}|windows:separate|"
                f"tokens:{tokens}|bytes:{size}",
                num_sentences=len(statistics),
                checkpoint=system.checkpoint,
                beam_size=1,
                length_penalty=0.0,
                precision=system.precision,
                interval=interval(statistics, evaluation.bootstrap_samples),
            )
        )
        if evaluation.context_lengths:
            contexts.append(_by_context(config, data, split, system, engine))
    return tuple(scores), tuple(contexts)


def _by_context(
    config: TrainConfig, data: PreparedData, split: str, system: EvaluatedModel, engine: TorchEngine
) -> ByContext:
    evaluation = config.evaluation
    blocks = context_blocks(data, split, evaluation.context_lengths[-1], evaluation.text_tokens)
    with bars("windows", split, keep=False) as progress:
        scores, positions = by_context_length(engine, blocks, data.vocabulary, evaluation, progress)
    assert config.data.context_length is not None
    return ByContext(
        split=split,
        test_set=data.set_name(split),
        training_length=config.data.context_length,
        num_bytes=scores[0].num_bytes,
        num_tokens=int(blocks.target_lengths.sum()),
        num_documents=len(set(blocks.document_of().tolist())),
        stride=evaluation.stride,
        checkpoint=system.checkpoint,
        precision=system.precision,
        scores=tuple(scores),
        by_position=tuple(positions),
    )


def context_grids(scored: ByContext) -> list[Grid]:
    """A row for each length, then one for each range of positions."""
    by_length: dict[tuple[str, int], Measurement] = {}
    by_length |= {(row.windows, row.length): single(row.bits_per_byte, row.interval) for row in scored.scores}

    def read(windows: str) -> Callable[[int], Measurement]:
        return lambda length: by_length.get((windows, length), missing("shorter than the stride"))

    columns = [Column("length", "context", lambda length: f"{length:,}", label=True)]
    columns.append(Column("separate", "separate windows", read("separate"), digits=3))
    if scored.stride is not None:
        columns.append(Column("sliding", f"sliding by {scored.stride}", read("sliding"), digits=3))
    size = f"{scored.num_bytes:,} bytes ({scored.num_tokens:,} tokens) of {scored.num_documents} documents"
    what = f"{scored.split}, bits per byte of the same {size}"
    lengths = sorted({row.length for row in scored.scores})
    title = f"By length of the context ({what}; trained at {scored.training_length:,}):"

    def position(row: PositionScore) -> str:
        return f"{row.first:,}" if row.first == row.last else f"{row.first:,}–{row.last:,}"

    places = (
        Column("position", "position", position, label=True),
        Column("bits_per_byte", "bits per byte", lambda row: single(row.bits_per_byte), digits=3),
    )
    return [
        Grid("by_context", title, tuple(columns), tuple(lengths)),
        Grid("by_position", f"By position in separate windows of {lengths[-1]:,}:", places, scored.by_position),
    ]
