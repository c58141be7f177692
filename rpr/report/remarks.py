"""What has to be said beside the figures: the paper's own, how ours differ from them, and how ours were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpr import paper
from rpr.records.position import SHARING, Position
from rpr.records.record import Record
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES, Score
from rpr.report.rows import Cell, Column

# How many pairs of sentences the corpora of the paper have; `paper.TRAIN_PAIRS` is how the paper words it.
_PAIRS: dict[paper.Pair, int] = {"en_de": 4_500_000, "en_fr": 36_000_000}


def nearest_pair(record: Record) -> paper.Pair:
    """Of the paper's two pairs of languages the one beside which a run stands."""
    return "en_fr" if record.setting("data.target_language") == "fr" else "en_de"


def paper_figure(position: Position, record: Record) -> tuple[Cell, str | None]:
    """The paper's BLEU on newstest2013 for this variant, and a remark where its figure is elsewhere or needs a word."""
    size: paper.Size = "big" if "big" in record.model_name else "base"
    pair = nearest_pair(record)
    kind, k = position.kind, position.clip_distance
    if kind == "absolute":
        figure = paper.TABLE1[size, "absolute", pair]
        where = f"{pair.upper().replace('_', '-')}, {size}"
        return Cell(
            None, reason=f"paper: {figure} on another test set, {paper.TABLE1_TEST_SET} ({where}, Table 1)"
        ), None
    if kind == "none":
        return Cell(paper.TABLE3[False, False], n=1), None
    if kind == "relative" and k is not None and k in paper.TABLE2:
        return Cell(paper.TABLE2[k], n=1), None
    if kind == "relative":
        return Cell(None, reason=f"the paper's Table 2 has no row for k = {k}"), None
    if kind in ("relative_keys", "relative_values"):
        if k == paper.TABLE3_CLIP_DISTANCE:
            figure = paper.TABLE3[position.relative_values, position.relative_keys]
            return Cell(
                figure, n=1
            ), "the paper's Table 3 does not print its k; 16, the base model's, is the natural reading"
        return Cell(
            None, reason="the paper's Table 3 does not print its k; 16, not this row's, is the natural reading"
        ), None
    if kind == "absolute_and_relative":
        return Cell(None, reason='the paper prints no figure for both together ("did not observe any benefit")'), None
    return Cell(None, reason="not in the paper"), None


@dataclass(frozen=True)
class Difference:
    """One way in which runs differ from the paper's: a word for a table's cell, the whole for below it.

    `smaller`: the run had less of it (data, model, steps).
    """

    word: str
    text: str
    smaller: bool = False


def protocol_differences(
    records: Sequence[Record], size: paper.Size = "base", pair: paper.Pair = "en_de"
) -> tuple[Difference, ...]:
    """How the training of runs on one corpus differs from the paper's model of this size for this pair of languages."""
    record, printed = records[0], paper.MODELS[size]
    languages, pairs = pair.upper().replace("_", "-"), paper.TRAIN_PAIRS[pair]
    synthetic = any(run.synthetic for run in records)
    data = f"data: {_corpus(records)}; the paper: WMT 2014 {languages}, {pairs} pairs"
    less = any(run.data is not None and run.data.train_pairs < 0.85 * _PAIRS[pair] for run in records)
    found = [Difference("synthetic data" if synthetic else "data", data, less)]
    shape = {name: record.setting(f"model.{name}") for name in ("num_layers", "d_model", "num_heads", "d_ff")}
    differing = {name: value for name, value in shape.items() if value != getattr(printed, name)}
    if differing:
        words = ", ".join(f"{name} {value} ({getattr(printed, name)})" for name, value in differing.items())
        smaller = any(value is not None and value < getattr(printed, name) for name, value in differing.items())
        text = f"model {record.model_name} (the paper's {size} in brackets): {words}"
        found.append(Difference("model", text, smaller))
    if record.max_steps != printed.steps:
        text = f"training: {record.max_steps:,} steps; the paper: {printed.steps:,}"
        found.append(Difference("steps", text, record.max_steps < printed.steps))
    sharing = sorted({str(run.setting("position.tables")) for run in records if run.relative} - {printed.tables})
    if sharing:
        names = " and ".join(SHARING.get(name, name) for name in sharing)
        theirs = "one per layer and head" if printed.tables == "per_head" else "one per layer, shared by its heads"
        found.append(Difference("tables", f"relative tables: {names}; the paper's {size} model: {theirs}"))
    return tuple(found)


def is_the_papers_corpus(records: Sequence[Record], pair: paper.Pair) -> bool:
    """Whether the runs were trained on all of WMT 2014 of this pair, as far as name and number of pairs tell."""
    return all(
        run.data_name == f"wmt14_{pair}"
        and not run.synthetic
        and run.setting("data.train_limit") is None
        and run.data is not None
        and 0.85 * _PAIRS[pair] <= run.data.train_pairs <= 1.15 * _PAIRS[pair]
        for run in records
    )


def recipe_difference(record: Record, size: paper.Size = "base") -> Difference | None:
    """What else of the recipe differs from what the paper prints for this size; None where nothing does."""
    unit, units = record.setting("optim.max_tokens_per_unit"), record.setting("optim.units_per_step")
    printed = [
        ("vocabulary", record.setting("data.vocabulary_size"), 32_768),
        ("padded tokens a step", unit * units if unit and units else None, 8 * 4096),
        ("warm-up steps", record.setting("optim.warmup_steps"), 4_000),
        ("checkpoints averaged", record.setting("optim.average_checkpoints"), 20 if size == "big" else 1),
    ]
    words = [f"{name} {ours:,} ({theirs:,})" for name, ours, theirs in printed if ours not in (None, theirs)]
    return Difference("recipe", f"recipe (the paper's in brackets): {', '.join(words)}") if words else None


def differences(records: Sequence[Record]) -> tuple[str, ...]:
    """How the runs of one table differ from the paper's Tables 2 and 3 (WMT14 EN-DE, newstest2013), one line each."""
    found = [difference.text for difference in protocol_differences(records)]
    sets = sorted({score.test_set for run in records for score in run.scores if score.split == "test"})
    if sets and sets != [paper.TABLE2_TEST_SET]:
        found.append(f"test set: {', '.join(sets)}; the paper's Tables 2 and 3: {paper.TABLE2_TEST_SET}")
    found += [
        f"{run.name}: {run.training.skipped_steps} steps changed nothing, as their gradient was not finite"
        for run in records
        if run.training is not None and run.training.skipped_steps
    ]
    found.append(f"BLEU: ours is sacreBLEU with its signature; the paper's: {paper.BLEU_KIND}")
    return tuple(found)


def _corpus(records: Sequence[Record]) -> str:
    record = records[0]
    words = record.data_name
    if any(run.synthetic for run in records):
        words += ", SYNTHETIC sentences, no natural language"
    pairs = sorted({run.data.train_pairs for run in records if run.data is not None})
    return words + (f", {' or '.join(f'{count:,}' for count in pairs)} pairs" if pairs else "")


def score_notes(columns: Sequence[Column], records: Sequence[Record], *, empty_by_run: bool = True) -> tuple[str, ...]:
    """How each metric was computed, once for all test sets alike; rows scored in different ways are called so.

    `empty_by_run`: whether empty translations are told run by run, or in one line for each test set.
    """
    sets_by_way: dict[tuple[str, str], list[str]] = {}
    by_column: dict[tuple[str, str, str], list[Score]] = {}
    for run in records:
        for score in run.scores:
            by_column.setdefault((score.split, score.test_set, score.metric), []).append(score)
    notes = []
    for column in columns:
        scores = by_column.get((column.split, column.test_set, column.metric), [])
        ways = sorted({_way(score) for score in scores})
        if len(ways) > 1:
            name = f"{METRIC_NAMES.get(column.metric, column.metric)} on {column.split}"
            notes.append(f"NOT COMPARABLE: the rows of {name} were scored in {len(ways)} different ways, see below")
        for way in ways:
            counts = sorted({score.num_sentences for score in scores if _way(score) == way})
            sentences = " or ".join(f"{count:,}" for count in counts)
            where = f"{column.split} ({column.test_set}, {sentences} sentences)"
            sets_by_way.setdefault((column.metric, way), []).append(where)
            if len(counts) > 1:
                notes.append(f"NOT COMPARABLE: the rows of {column.split} were scored on {sentences} sentences")
        if column.metric == HEADLINE_METRIC:
            notes += _empty_notes(column, records) if empty_by_run else _empty_together(column, records)
    for (metric, way), sets in sets_by_way.items():
        notes.append(f"{METRIC_NAMES.get(metric, metric)} on {', '.join(sets)}: {way}")
    checkpoints = sorted(
        {score.checkpoint for run in records for score in run.scores if score.metric == HEADLINE_METRIC}
    )
    if checkpoints:
        differ = "the rows used different checkpoints: " if len(checkpoints) > 1 else "checkpoint: "
        notes.append(differ + "; ".join(checkpoints))
    return tuple(notes)


def _empty_notes(column: Column, records: Sequence[Record]) -> list[str]:
    return [
        f"{run.name}: {score.empty_hypotheses} of {score.num_sentences:,} translations of {column.split} are empty"
        for run in records
        for score in run.scores
        if is_in(column, score) and score.empty_hypotheses
    ]


def _empty_together(column: Column, records: Sequence[Record]) -> list[str]:
    scores = [score for run in records for score in run.scores if is_in(column, score) and score.empty_hypotheses]
    if not scores:
        return []
    counts = [score.empty_hypotheses for score in scores if score.empty_hypotheses]
    span = " to ".join(f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))
    of = f"of {len(scores)} {'run' if len(scores) == 1 else 'runs'}"
    return [f"empty translations of {column.split}, scored as they are: {span} of {scores[0].num_sentences:,} {of}"]


def is_in(column: Column, score: Score) -> bool:
    """Whether a score belongs into a column."""
    # Called for every score and column of a report: no object is made for it.
    return (column.split, column.test_set, column.metric) == (score.split, score.test_set, score.metric)


def _way(score: Score) -> str:
    precision = f", {score.precision}" if score.precision else ""
    decoding = f"beam {score.beam_size}, length penalty {score.length_penalty:g}{precision}"
    return f"{score.signature}, {decoding}"


def speed_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """How steps/s were measured, and on what."""
    measured = [
        (run, run.training) for run in records if run.training is not None and run.training.steps_per_second is not None
    ]
    if not measured:
        return ()
    excludes = "; ".join(sorted({training.excludes for _, training in measured}))
    steps = sorted({training.measured_steps for _, training in measured})
    span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    baseline = "relative to absolute (sinusoidal) with the same corpus, model, device and precision"
    notes = [
        f"speed: steps/s over {span} steps, leaving out {excludes}; {baseline}; the paper: {paper.RELATIVE_SPEED}",
        f"device: {'; '.join(sorted({run.device for run, _ in measured}))}",
    ]
    torch = sorted({run.versions["torch"] for run, _ in measured if "torch" in run.versions})
    if len(torch) > 1:
        notes.append(f"the runs used different versions of torch: {', '.join(torch)}")
    return tuple(notes)
