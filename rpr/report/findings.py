"""The findings of a group in plain sentences: what the rows of its table say together."""

from collections import Counter
from collections.abc import Iterator

from rpr.records.position import name_of
from rpr.report.groups import BETTER, NOT_LEARNED, OPEN, WORSE, Group, Variant
from rpr.report.published import published_figures
from rpr.report.verdicts import changes

LEAST_KS = 3  # of relative positions, for a finding on k
MOST_IN_ORDER = 6  # schemes


def findings(group: Group) -> list[str]:
    """The findings of a group, the most important first."""
    return [*_counts(group), *_clip_distances(group), *_published_orders(group), *_learning(group), group.kind.caution]


def _counts(group: Group) -> Iterator[str]:
    """How many rows are better, worse and open, or why none is compared."""
    key, baseline = group.column(group.split), group.baseline
    names = list(dict.fromkeys(map(name_of, group.finished)))
    if key is None or len(names) < 2:
        return
    if not baseline.finished:
        yield (
            f"No row is compared: no run with position={group.baseline_name or 'absolute'} has finished; choose what "
            f"the others are compared with: baseline={names[0]}."
        )
    elif why := group.unlearned(baseline, key):
        yield f"No row is compared: {baseline.label} has not learned ({why})."
    else:
        others = [variant for variant in group.variants if variant.finished and variant is not baseline]
        counts = Counter(group.verdict(variant, key).partition(" (")[0] for variant in others)
        parts = [f"{counts[verdict]} {verdict}" for verdict in (BETTER, WORSE, OPEN, NOT_LEARNED) if counts[verdict]]
        rows = f"{len(others)} row{'s' * (len(others) > 1)}"
        yield f"Against {baseline.label} on {group.split}, of {rows}: {', '.join(parts)}."


def _clip_distances(group: Group) -> Iterator[str]:
    """Which clip distances differ from the paper's (without it, the largest), in a model of these rows alone."""
    key = group.column(group.split) or ()
    by_k: dict[int, Variant] = {}
    for variant in group.variants:
        k = variant.position.clip_distance
        if variant.position.kind == "relative" and k is not None and key in variant.scores:
            by_k.setdefault(k, variant)
    if len(by_k) < LEAST_KS or any(group.unlearned(variant, key) for variant in by_k.values()):
        return
    papers = group.papers_relative.position.clip_distance
    usual = papers if papers in by_k else max(by_k)
    scores = {str(k): {seed: score.value for seed, score in variant.scores[key].items()} for k, variant in by_k.items()}
    of_k = changes(scores, str(usual), 100 / next(iter(by_k[usual].scores[key].values())).items, shares=group.task)
    parts: dict[str, list[int]] = {BETTER: [], WORSE: [], OPEN: []}
    for k in (k for k in sorted(by_k) if k != usual):
        better = group.kind.better(of_k.of_rows[str(k)].value or 0.0)
        parts[OPEN if str(k) not in of_k.decided else BETTER if better else WORSE].append(k)
    said = []
    for verdict, ks in parts.items():
        if ks:
            said.append(f"k = {', '.join(map(str, ks))} {'are' if len(ks) > 1 else 'is'} {verdict}")
    yield f"Against k = {usual}: {'; '.join(said)}."


def _published_orders(group: Group) -> Iterator[str]:
    """The published order of schemes of which the figures are of other models, and ours."""
    for source, figures in published_figures(group).items():
        if len(figures) > 1:
            published = [variant for variant, _ in sorted(figures, key=lambda row: group.kind.best_first(row[1]))]
            ours = sorted(
                published, key=lambda variant: group.kind.best_first(group.score(variant, group.split).value or 0.0)
            )
            same = "the same order here" if ours == published else f"here {_in_order(ours)}"
            yield f"Best first, {source.heading}: {_in_order(published)}; {same}."


def _in_order(variants: list[Variant]) -> str:
    return ", ".join(variant.label for variant in variants[:MOST_IN_ORDER])


def _learning(group: Group) -> Iterator[str]:
    falls = [variant.fall for variant in group.variants if variant.fall is not None]
    if falls:
        yield (
            f"Still learning when training ended: {len(falls)} of {len(group.variants)} rows, whose validation loss "
            f"fell by up to {max(falls):.1%} over the last tenth; train twice as long: "
            f"optim.max_steps={2 * group.max_steps}."
        )
