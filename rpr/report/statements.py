"""The findings of a group in plain sentences: what the rows of its tables do not say.

A sentence that compares variants is made from `Comparison`s alone, and prints the paired interval of each beside it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from rpr import paper
from rpr.report.agreement import VERDICTS, Agreement, Comparison, agreement, why_undecided
from rpr.report.groups import Group
from rpr.report.tables import published_figures
from rpr.tables.grid import number

MOST_LISTED = 16  # comparisons in one sentence; report.json has all


@dataclass(frozen=True)
class Statement:
    """One sentence, and its agreement with the paper if the paper has a figure.

    `learning`: it reports runs that were still learning, which qualifies all other statements. `claims` are the
    comparisons that it calls decided, `undecided` those that it lists as undecided.
    """

    text: str
    agreement: Agreement | None = None
    group: Group | None = None
    learning: bool = False
    claims: tuple[Comparison, ...] = ()
    undecided: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        assert all(not one.why_undecided for one in self.claims), "a sentence claims what its interval does not decide"

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (*self.claims, *self.undecided)

    def __str__(self) -> str:
        return f"{self.text} {_first_upper(self.agreement.sentence)}." if self.agreement else self.text


def statements(group: Group) -> list[Statement]:
    """The statements of a group, the most important first."""
    found = [*_learning(group), *_incomplete(group), *published_statements(group)]
    tests = [] if group.task else [column.split for column in group.columns if column.split != "validation"]
    said = {(one.variant.label, one.reference.label, one.split) for each in found for one in each.comparisons}
    for split in dict.fromkeys([group.split, *tests]):
        found += _against_baseline(group, split, said)
    return [replace(one, group=group) for one in found]


def published_statements(group: Group) -> list[Statement]:
    """Those beside a published figure or order."""
    return [*_papers_change(group), *_published_order(group)]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _learning(group: Group) -> Iterator[Statement]:
    by_reason: dict[str, list[str]] = {}
    for one in group.variants:
        if one.unlearned:
            by_reason.setdefault(one.unlearned, []).append(one.label)
    for reason, labels in by_reason.items():
        yield Statement(f"{_first_upper('; '.join(labels))}: {reason}. No comparison with such a model is decided.")
    falling = [one for one in group.variants if one.still_learning is not None]
    if (advice := group.advice) is None:
        return
    falls = sorted(100 * one.still_learning.fall for one in falling if one.still_learning)
    span = " to ".join(dict.fromkeys(f"{fall:.1f}%" for fall in (falls[0], falls[-1])))
    so = f"No comparison with {'it' if len(falling) == 1 else 'them'} is decided"
    if group.documents:
        so = "Comparisons are at equal tokens"
    every = len(falling) == len(group.variants) > 1
    whose = "Every variant" if every else _first_upper("; ".join(one.label for one in falling))
    yield Statement(
        f"{whose} {'was' if every or len(falling) == 1 else 'were'} still learning when training ended: the validation "
        f"loss fell by {span} over the last tenth of the steps. {so}; {advice}.",
        learning=True,
    )


def _incomplete(group: Group) -> Iterator[Statement]:
    found = Counter(run.status for run in group.runs if run.status != "finished")
    if found:
        words = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
        count, total = sum(found.values()), len(group.runs)
        has = f"run{'s' if total > 1 else ''} {'have' if count > 1 else 'has'}"
        yield Statement(f"{count} of {total} {has} no result: {words}.")


def _papers_change(group: Group) -> Iterator[Statement]:
    """The paper's own comparison: relative positions with its k against absolute ones, on the group's test split."""
    relative = group.get("relative", paper.MODELS[group.size].clip_distance)
    absolute, pair = group.get("absolute"), group.papers_languages
    if not group.translation or relative is None or absolute is None or pair is None:
        return
    found = Comparison(group, relative, absolute, group.split)
    if found.change.value is None:
        return
    papers = round(paper.TABLE1[group.size, "relative", pair] - paper.TABLE1[group.size, "absolute", pair], 1)
    verdict = agreement(found.change, papers, undecided=why_undecided(relative, absolute))
    text = f"{_first_upper(relative.label)} against {absolute.label} on {group.split}: {found.figures} BLEU"
    claims, undecided = ((), (found,)) if found.why_undecided else ((found,), ())
    yield Statement(
        f"{text}; the paper: {number(papers, 1, signed=True)}.", verdict, claims=claims, undecided=undecided
    )


def _published_order(group: Group) -> Iterator[Statement]:
    """Which pairs of schemes have the published order, where only the order can be compared."""
    for source, figures in published_figures(group).items():
        theirs = [variant for variant, _ in sorted(figures, key=lambda one: -one[1])]
        pairs = [Comparison(group, *pair, group.split) for pair in itertools.combinations(theirs, 2)]
        pairs = [one for one in pairs if one.change.value is not None]
        same, opposite, undecided = ([one for one in pairs if one.verdict == verdict] for verdict in VERDICTS)
        parts = [
            f"{words}: {_listed(some, pairs=True)}" for words, some in (("same", same), ("opposite", opposite)) if some
        ]
        parts += [f"not decided: {len(undecided)} of {len(pairs)} pairs"] if undecided else []
        if pairs:
            names = ", ".join(one.label for one in theirs)
            text = f"Published order, best first ({source.citation}): {names}. Here {'; '.join(parts)}."
            yield Statement(text, claims=(*same, *opposite), undecided=tuple(undecided))


def _against_baseline(group: Group, split: str, said: Set[tuple[str, str, str]]) -> Iterator[Statement]:
    """Every other variant against the baseline on a split, but what was said already: the better, the worse, the
    undecided ones.
    """
    baseline = group.baseline
    if baseline is None:
        return
    found = [Comparison(group, one, baseline, split) for one in group.variants if one is not baseline]
    found = [one for one in found if (one.variant.label, baseline.label, split) not in said]
    found = sorted((one for one in found if one.change.value is not None), key=lambda one: -(one.change.value or 0.0))
    found = found[::-1] if group.documents else found  # the best first
    unit = "points of exact match" if group.task else "bits per byte" if group.documents else "BLEU"
    for verdict, words in zip(VERDICTS, ("Better than", "Worse than", "Not decided against"), strict=True):
        if some := tuple(one for one in found if one.verdict == verdict):
            text = f"{words} {baseline.label} on {split}, in {unit}: {_listed(some)}."
            claims, undecided = ((), some) if verdict == "not decided" else (some, ())
            yield Statement(text, claims=claims, undecided=undecided)


def _listed(found: Sequence[Comparison], *, pairs: bool = False) -> str:
    """`RoPE +1.5 ± 0.5 (+0.3 to +2.7; 3 seeds), ...`; pairs: `RoPE against T5 ...`."""
    shown = [
        f"{one.variant.label}{f' against {one.reference.label}' if pairs else ''} {one.figures}"
        for one in found[:MOST_LISTED]
    ]
    more = [f"and {len(found) - MOST_LISTED} more, in the tables"] if len(found) > MOST_LISTED else []
    return ", ".join([*shown, *more])
