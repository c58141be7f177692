"""The findings of a group in plain sentences: what the rows of its table say together."""

from collections import Counter
from collections.abc import Iterator

from rpr.records.position import name_of
from rpr.report.groups import NOT_LEARNED, Group, Variant, compared
from rpr.report.published import published_figures
from rpr.report.verdicts import BETTER, OPEN, WORSE

LEAST_KS = 3  # of relative positions, for a finding on k


def findings(group: Group) -> list[str]:
    """The findings of a group, the most important first."""
    return [*_counts(group), *_clip_distances(group), *_published_orders(group), *_learning(group), group.kind.caution]


def _counts(group: Group) -> Iterator[str]:
    """How many rows are better, worse and open, or why none is compared."""
    key, baseline, others = group.key, group.baseline, [row for row in group.variants if row.finished]
    names = list(dict.fromkeys(map(name_of, group.finished)))
    if key not in group.keys or len(names) < 2:
        return
    if not baseline.finished:
        yield (
            f"No row is compared: no run with position={group.baseline_name or 'absolute'} has finished; choose what "
            f"the others are compared with: baseline={names[0]}."
        )
    elif why := baseline.unlearned(key):
        yield f"No row is compared: {baseline.label} has not learned ({why})."
    else:
        others.remove(baseline)
        counts = Counter(variant.verdict(key).partition(" (")[0] for variant in others)
        parts = [f"{counts[verdict]} {verdict}" for verdict in (BETTER, WORSE, OPEN, NOT_LEARNED) if counts[verdict]]
        rows = f"{len(others)} row{'s' * (len(others) > 1)}"
        yield f"Against {baseline.label} on {group.split}, of {rows}: {', '.join(parts)}."


def _clip_distances(group: Group) -> Iterator[str]:
    """Which clip distances differ from the paper's (without it, the largest), in a model of these rows alone."""
    key, by_k = group.key, dict[int, Variant]()
    for variant in group.variants:
        k = variant.position.clip_distance
        if variant.position.kind == "relative" and k is not None and key in variant.scores:
            by_k.setdefault(k, variant)
    if len(by_k) < LEAST_KS or any(variant.unlearned(key) for variant in by_k.values()):
        return
    papers = group.papers_relative.position.clip_distance
    usual = str(papers if papers in by_k else max(by_k))
    rows = {str(k): by_k[k].scores[key] for k in sorted(by_k)}
    of_ks: dict[str, list[str]] = {BETTER: [], WORSE: [], OPEN: []}
    for of_k, verdict in compared(rows, usual, group.kind, key).verdicts.items():
        of_ks[verdict.partition(" (")[0]].append(of_k)
    said = [f"k = {', '.join(ks)} {'are' if len(ks) > 1 else 'is'} {verdict}" for verdict, ks in of_ks.items() if ks]
    yield f"Against k = {usual}: {'; '.join(said)}."


def _published_orders(group: Group) -> Iterator[str]:
    """The published order of schemes of which the figures are of other models, and ours."""
    best_first = group.kind.best_first
    for source, figures in published_figures(group).items():
        if len(figures) > 1:
            theirs = [variant for variant, _ in sorted(figures, key=lambda row: best_first(row[1]))]
            ours = sorted(theirs, key=lambda variant: best_first(variant.score(group.split).value or 0.0))
            first, second = (", ".join(variant.label for variant in order) for order in (theirs, ours))
            same = "the same order here" if ours == theirs else f"here {second}"
            yield f"Best first, {source.heading}: {first}; {same}."


def _learning(group: Group) -> Iterator[str]:
    falls = [variant.fall for variant in group.variants if variant.fall is not None]
    if falls:
        yield (
            f"Still learning when training ended: {len(falls)} of {len(group.variants)} rows, whose validation loss "
            f"fell by up to {max(falls):.1%} over the last tenth; train twice as long: "
            f"optim.max_steps={2 * group.max_steps}."
        )
