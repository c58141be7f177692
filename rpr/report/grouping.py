"""Runs in groups that were trained alike, and their position variants."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic_core import to_json

from rpr import paper
from rpr.errors import RecordError, did_you_mean
from rpr.migrations import with_earlier_defaults
from rpr.model.positions.vectors import SHARING
from rpr.records.difference import corpus_differences
from rpr.records.position import OTHER, Position, names_of, positions_of
from rpr.records.record import DECIDING, Record, deciding_settings, flat, varying
from rpr.report.groups import Group, Variant
from rpr.report.learning import Learning, RunKey, mean_over_seeds, run_key
from rpr.report.recipes import usual_baseline

_TRAINED_ON = ("devices", "num_nodes", "threads", "attention")  # otherwise the rounding differs


def run_groups(
    records: Iterable[Record], learning: Mapping[RunKey, Learning] | None = None, baseline: str | None = None
) -> tuple[Group, ...]:
    """One group for each (corpus, model, steps, hardware) and each combination of other settings that affect results,
    of the files of the corpus and of the precision of the arithmetic as they were, the one with most runs first.

    `learning`: how each run's validation curve ended, by `run_key`, where known; None: it does not matter. `baseline`:
    the positions that others are compared with, as in `called`; None: `usual_baseline`. Raises RecordError if there are
    no records, or none with the positions of the baseline.
    """
    by_key: dict[tuple[str, str, int, str], list[tuple[Record, str | None]]] = {}
    of_all = sorted(records, key=lambda run: (run.name, run.seed, run.run_id, run.started))
    for run, corpus in zip(of_all, corpus_differences(of_all), strict=True):
        by_key.setdefault((run.data_name, run.model_name, run.max_steps, run.hardware), []).append((run, corpus))
    if not by_key:
        raise RecordError("no run record to report; run `rpr-cli sweep ...` first, or give runs_dir=...")
    groups = []
    deciding: dict[bytes, str] = {}  # many of thousands of records have the same sections
    for key, runs in sorted(by_key.items()):
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
        for settings, some in sorted(parts, key=lambda part: -len(part[1])):
            distinct = tuple((name, settings.get(name)) for name in names)
            variants = _variants(_joined(some), learning)
            of_each = [variant.records[0] for variant in variants]
            groups.append(Group(*key, settings, distinct, variants, baseline or usual_baseline(of_each)))
    if baseline is not None:
        _check_baseline(groups, baseline)
    return tuple(groups)


def _check_baseline(groups: Iterable[Group], baseline: str) -> None:
    """Refuse a name that no run has, or several variants of a group."""
    of_each_group = [group.called(baseline) for group in groups]
    if not any(of_each_group):
        known = {name for group in groups for run in group.runs for name in names_of(run)}
        raise RecordError(f"baseline: no run has position={baseline}{did_you_mean(baseline, known)}")
    for named in of_each_group:
        ks = list(dict.fromkeys(variant.position.clip_distance for variant in named))
        if len(ks) > 1:
            one_of = ", ".join(f"{baseline}-k{k}" for k in ks if k is not None)
            raise RecordError(f"baseline: {baseline} has several clip distances; choose one of {one_of}")
        if len(named) > 1:
            labels = "; ".join(variant.label for variant in named)
            raise RecordError(
                f"baseline: several variants have position={baseline} ({labels}); give the label of one, such as "
                f"""baseline='"{named[0].label}"'"""
            )


def _joined(records: Iterable[Record]) -> list[Record]:
    """Merge runs of one seed that differ only in settings that decide no result, as the scored splits, into one."""
    finished: dict[str, Record] = {}
    others: list[Record] = []
    runs = sorted(records, key=lambda run: (run.rerun_of is None, run.started))
    for run, position in zip(runs, positions_of(runs), strict=True):
        hardware = with_earlier_defaults({"hardware": run.config["hardware"]})["hardware"]
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


def _variants(records: list[Record], learning: Mapping[RunKey, Learning] | None) -> tuple[Variant, ...]:
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
        plain = Variant(replace(position, kind=kind), position.label + sharing, tuple(runs))
        ends = [(learning or {}).get(run_key(run)) for run in plain.finished]
        known = tuple(end for end in ends if end is not None)
        variants.append(replace(plain, learning=known, watched=learning is None or len(known) == len(ends)))
    # Without positions an encoder knows no order; a decoder alone has it from its causal mask.
    orderless = [] if records[0].setting("model.architecture") == "decoder_only" else variants
    without = mean_over_seeds([end for each in orderless if each.position.kind == "none" for end in each.learning])
    variants = [replace(variant, orderless_loss=None if without is None else without.loss) for variant in variants]
    return tuple(replace(variant, label=variant.label + _own_settings(variant, variants)) for variant in variants)


def _own_settings(variant: Variant, variants: Sequence[Variant]) -> str:
    """`, max_positions = 64`: the settings that distinguish a variant from others with its label; mostly empty."""
    alike = [other for other in variants if other.label == variant.label]
    settings = [flat(other.records[0].config["position"]) for other in alike]
    own = settings[alike.index(variant)]
    return "".join(f", {key} = {own[key]}" for key in varying(settings) if key != "name" and key in own)
