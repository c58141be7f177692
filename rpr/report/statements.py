"""The findings of a group in plain sentences, each with its agreement with the paper."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rpr import paper
from rpr.records.measurement import Measurement
from rpr.report import tasks
from rpr.report.agreement import Agreement, agreement, speed_agreement
from rpr.report.grid import number
from rpr.report.groups import TASK_LEARNED, Group, Variant
from rpr.report.speed import ratio_to_absolute

# Below this BLEU at the reference k a model has learned too little to interpret its failures.
LEARNED = 2.0


@dataclass(frozen=True)
class Statement:
    """One sentence, and its agreement with the paper if the paper has a figure.

    `learning`: it reports runs that were still learning, which qualifies all other statements.
    """

    text: str
    agreement: Agreement | None = None
    group: Group | None = None
    learning: bool = False

    def __str__(self) -> str:
        return f"{self.text} {_first_upper(self.agreement.sentence)}." if self.agreement else self.text


def statements(group: Group) -> list[Statement]:
    """The statements of a group, the most important first."""
    k = paper.MODELS[group.size].clip_distance
    known = [one for one in _relative(group) if one.position.clip_distance]
    best = next((one for one in known if one.position.clip_distance == k), known[-1] if known else None)
    found = [*_learning(group), *_incomplete(group), *_published_order(group)]
    if best is not None:
        found += _absolute(group, best)
    if best is not None and not group.task:
        found += [*_order(group, best), *_spread(group), *_sides(group), *_together(group), *_speed(group, best)]
    return [replace(one, group=group) for one in found]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _relative(group: Group) -> list[Variant]:
    """The scored relative variants of one curve over k: those with the first kind of table sharing."""
    scored = [
        one
        for one in group.variants
        if one.position.kind == "relative" and group.score(one, group.split).value is not None
    ]
    return [one for one in scored if one.position.tables == scored[0].position.tables]


def _compared(group: Group, one: Variant, other: Variant, split: str, text: str, papers: float | None) -> Statement:
    """The text of a comparison and, if the paper made the same one, its figure and the agreement with it."""
    if group.task or papers is None:
        return Statement(f"{text}.")
    learning = one.still_learning or other.still_learning
    change = group.change(one, other, split, other.label)
    found = agreement(change, papers, still_learning=learning is not None)
    return Statement(f"{text}; the paper: {number(papers, 1, signed=True)}.", found)


def _learning(group: Group) -> Iterator[Statement]:
    if unlearned := [one for one in group.variants if one.unlearned]:
        names = _first_upper("; ".join(one.label for one in unlearned))
        yield Statement(
            f"{names} did not learn the task: less than {TASK_LEARNED:g}% exact match within the training lengths, so "
            "their scores beyond them mean little.",
        )
    falling = [one for one in group.variants if one.still_learning is not None]
    if (advice := group.advice) is None:
        return
    falls = sorted(100 * one.still_learning.fall for one in falling if one.still_learning)
    span = " to ".join(dict.fromkeys(f"{fall:.1f}%" for fall in (falls[0], falls[-1])))
    them = "it" if len(falling) == 1 else "them"
    every = len(falling) == len(group.variants) > 1
    whose = "Every variant" if every else _first_upper("; ".join(one.label for one in falling))
    yield Statement(
        f"{whose} {'was' if every or len(falling) == 1 else 'were'} still learning when training ended: the validation "
        f"loss fell by {span} over the last tenth of the steps. No comparison with {them} is decided; {advice}.",
        learning=True,
    )


def _incomplete(group: Group) -> Iterator[Statement]:
    found = Counter(run.status for run in group.runs if run.status != "finished")
    if found:
        words = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
        count, total = sum(found.values()), len(group.runs)
        has = f"run{'s' if total > 1 else ''} {'have' if count > 1 else 'has'}"
        yield Statement(f"{count} of {total} {has} no result: {words}.")


def _published_order(group: Group) -> Iterator[Statement]:
    """Whether a task's schemes come in the published order beyond the training lengths, on average and seed by seed."""
    for published in tasks.published(group):
        order = sorted(published.figures, key=lambda kind: -published.figures[kind])
        found = [one for kind in order if (one := group.get(kind)) is not None and not one.unlearned]
        theirs = [one for one in found if group.score(one, "long").value is not None]
        column = group.column("long")
        if len(theirs) < 2 or column is None:
            continue
        by_seed = [one.scores[column] for one in theirs]
        seeds = sorted(set.intersection(*map(set, by_seed)))
        same = sum(
            all(one[seed].score > other[seed].score for one, other in itertools.pairwise(by_seed)) for seed in seeds
        )
        mine = sorted(theirs, key=lambda one: -(group.score(one, "long").value or 0.0))
        here = "the same order here" if mine == theirs else f"here {', '.join(one.label for one in mine)}"
        text = f"Published order, best first ({published.source}): {', '.join(one.label for one in theirs)}; {here}"
        runs = _seeds(*(group.score(one, "long") for one in theirs))
        runs += f", {same} of them in the published order" if len(seeds) > 1 else ""
        yield Statement(f"{text} ({runs}).")


def _absolute(group: Group, best: Variant) -> Iterator[Statement]:
    absolute = group.get("absolute")
    if absolute is None:
        return
    pair, papers = group.papers_languages, None
    if pair is not None and best.position.clip_distance == paper.MODELS[group.size].clip_distance:
        papers = round(paper.TABLE1[group.size, "relative", pair] - paper.TABLE1[group.size, "absolute", pair], 1)
    tests = [column.split for column in group.columns if column.split != "validation"]
    for split in [group.split] if group.task or not tests else dict.fromkeys(tests):
        figures = _figures(group, best, absolute, absolute.label, split)
        if figures is None:
            continue
        text = f"{_first_upper(best.label)} on {split}: {figures}"
        if split != group.split:
            yield Statement(f"{text}.")
        else:
            yield _compared(group, best, absolute, split, text, papers)


def _figures(group: Group, one: Variant | None, other: Variant, name: str, split: str) -> str | None:
    """By how much the scores of two variants differ; None without both."""
    mine, its = (group.score(variant, split) for variant in (one, other))
    change = group.change(one, other, split, name).value
    if mine.value is None or its.value is None or change is None:
        return None
    more = "more" if change > 0 else "less"
    unit = "points of exact match" if group.task else "BLEU"
    words = f"{abs(change):.1f} {unit} {more} than" if round(change, 1) else "the same as"
    return f"{words} {name}: {mine.value:.1f} and {its.value:.1f} ({_seeds(mine, its)})"


def _of_tables_2_and_3(group: Group, figure: float | None) -> float | None:
    """A figure of these tables, which are of EN-DE."""
    return figure if group.papers_languages == "en_de" else None


def _order(group: Group, best: Variant) -> Iterator[Statement]:
    split = group.development
    zero = next((one for one in _relative(group) if one.position.clip_distance == 0), None)
    none = group.get("none")
    for one, printed in ((zero, paper.TABLE2[0]), (none, paper.TABLE3[False, False])):
        figures = _figures(group, one, best, best.label, split)
        if one is None or figures is None:
            continue
        what = "no positions at all" if one is none else one.label
        text = f"{_first_upper(what)} on {split}: {figures}"
        if (group.score(best, split).value or 0.0) < LEARNED:
            yield Statement(f"{text}: the model has learned too little for this comparison.")
        else:
            beside = _of_tables_2_and_3(group, paper.TABLE2.get(best.position.clip_distance or 0))
            yield _compared(group, one, best, split, text, None if beside is None else round(printed - beside, 1))


def _spread(group: Group) -> Iterator[Statement]:
    some = [one for one in _relative(group) if (one.position.clip_distance or 0) >= 2]
    if len(some) < 2:
        return
    scores = [group.score(one, group.development) for one in some]
    values = [one.value for one in scores if one.value is not None]
    printed = [value for k, value in paper.TABLE2.items() if k >= 2]
    first, last = some[0].position.clip_distance, some[-1].position.clip_distance
    deviation = max((one.deviation for one in scores if one.deviation is not None), default=None)
    noise = f", and the largest standard deviation over seeds is {deviation:.1f}" if deviation is not None else ""
    yield Statement(
        f"From k = {first} to k = {last} the scores on {group.development} lie within "
        f"{max(values) - min(values):.1f} BLEU{noise} ({_seeds(*scores)}); "
        f"the paper: {max(printed) - min(printed):.1f}.",
    )


def _sides(group: Group) -> Iterator[Statement]:
    split = group.development
    for kind, words in (("relative_keys", "keys alone"), ("relative_values", "values alone")):
        for one in group.variants:
            both = group.get("relative", one.position.clip_distance, one.position.tables)
            if one.position.kind != kind or both is None:
                continue
            if (figures := _figures(group, one, both, "keys and values", split)) is None:
                continue
            which = kind == "relative_values", kind == "relative_keys"
            papers = _of_tables_2_and_3(group, round(paper.TABLE3[which] - paper.TABLE3[True, True], 1))
            text = f"Relative {words}, k = {one.position.clip_distance}, on {split}: {figures}"
            yield _compared(group, one, both, split, text, papers)


def _together(group: Group) -> Iterator[Statement]:
    together = group.get("absolute_and_relative")
    if together is None:
        return
    alone = group.get("relative", together.position.clip_distance, together.position.tables)
    if alone is None or (figures := _figures(group, together, alone, f"{alone.label} alone", group.split)) is None:
        return
    yield Statement(
        f"Absolute and relative positions together on {group.split}: {figures}; the paper observed no benefit and "
        "prints no figure.",
    )


def _speed(group: Group, best: Variant) -> Iterator[Statement]:
    ratio = ratio_to_absolute(group, best)
    if ratio.value is None:
        return
    text = f"{_first_upper(best.label)} trains at {ratio.value:.2f} of absolute's steps/s ({_seeds(ratio)})"
    found = speed_agreement(ratio, paper.RELATIVE_SPEED)
    yield Statement(f"{text}; the paper: {paper.RELATIVE_SPEED}.", found)


def _seeds(*figures: Measurement) -> str:
    counts = sorted({one.n for one in figures})
    if counts == [1]:
        return "one seed"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
