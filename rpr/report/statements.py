"""The findings of a group in plain sentences: what the rows of its tables do not say.

A sentence that compares variants is made from `Comparison`s alone, and prints the paired interval of each beside it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rpr.records.measurement import holm, p_value
from rpr.records.position import name_of
from rpr.report.agreement import INCLUDES_ZERO, VERDICTS, Agreement, Comparison
from rpr.report.groups import Group, Variant
from rpr.report.lines import Line
from rpr.report.tables import published_figures
from rpr.tables.grid import figure_text, number

MOST_LISTED = 16  # comparisons in one sentence; report.json has all


@dataclass(frozen=True)
class Statement:
    """One sentence, the comparisons that it is made of, and its agreement with the paper if the paper has a figure.
    With `items` it is a list: `start`, the items, and what follows them.
    """

    start: str
    agreement: Agreement | None = None
    group: Group | None = None
    comparisons: tuple[Comparison, ...] = ()
    holding: tuple[Comparison, ...] | None = None  # when corrected; None: nothing to correct
    items: tuple[str, ...] = ()
    end: str = ""

    @property
    def text(self) -> str:
        return f"{self.start}{', '.join(self.items)}.{self.end}" if self.items else self.start

    def __str__(self) -> str:
        return f"{self.text} {_first_upper(self.agreement.sentence)}." if self.agreement else self.text


def statements(group: Group) -> list[Statement]:
    """The statements of a group, the most important first."""
    listed = [*_without_baseline(group), *_papers_change(group), *_without_result(group), *_learning(group)]
    listed += [*_published_order(group), *_published_scores(group)]
    tests = [] if group.task else [column.split for column in group.columns if column.split != "validation"]
    said = [pair for each in listed if each.agreement for pair in each.comparisons]
    for split in dict.fromkeys([group.split, *tests]):
        listed += _against_baseline(group, split, said)
    return [replace(statement, group=group) for statement in listed]


def published_statements(group: Group) -> list[Statement]:
    """Those beside a published figure or order."""
    return [*_papers_change(group), *_published_order(group), *_published_scores(group)]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _without_baseline(group: Group) -> Iterator[Statement]:
    names = dict.fromkeys(map(name_of, group.finished))
    if not group.baseline.finished and len(names) > 1:
        yield Statement(
            f"No variant is compared: no run with position={group.baseline_name} has finished. Choose what the others "
            f"are compared with: rpr-cli report ... baseline={' or '.join(names)}."
        )


def _without_result(group: Group) -> Iterator[Statement]:
    lacking = [variant for variant in group.variants if variant.unfinished and not variant.finished]
    if lacking:
        why = "; ".join(f"{_said(variant)} ({variant.unfinished[0]})" for variant in lacking)
        yield Statement(f"Without a result: {why}.")


def _learning(group: Group) -> Iterator[Statement]:
    for reason in dict.fromkeys(variant.unlearned for variant in group.variants if variant.unlearned):
        labels = "; ".join(_said(variant) for variant in group.variants if variant.unlearned == reason)
        yield Statement(f"{_first_upper(labels)}: {reason}. No comparison with such a model is decided.")
    falling = [(variant, end) for variant in group.variants if (end := variant.still_learning) is not None]
    if falling:
        falls = sorted(100 * end.fall for _, end in falling)
        span = " to ".join(dict.fromkeys(f"{fall:.1f}%" for fall in (falls[0], falls[-1])))
        every = len(falling) == len(group.variants) > 1
        whose = "every variant" if every else "; ".join(_said(variant) for variant, _ in falling)
        so = "Comparisons are at equal tokens" if group.documents else "No comparison with such a model is decided"
        so += " of this training alone" if group.documents and any(run.continued for run in group.runs) else ""
        yield Statement(
            f"Still learning when training ended: {whose}. The validation loss fell by {span} over the last tenth of "
            f"the steps. {so}; {group.advice}."
        )


def _papers_change(group: Group) -> Iterator[Statement]:
    """The paper's own comparison: relative positions with its k against absolute ones, on the group's test split."""
    relative, absolute = group.papers_relative, group.get("absolute")
    line = Line((), group, relative, absolute, (group.split,))
    comparison = Comparison(group, relative, absolute, group.split)
    papers = line.papers_change.value
    if comparison.change.value is not None and papers is not None:
        text = f"{_first_upper(relative.label)} against {absolute.label} on {group.split}: {comparison.figures} BLEU"
        text += f"; the paper: {number(papers, 1, signed=True)}."
        every = _of_baseline(group, group.split) if group.baseline is absolute else [comparison]
        decided = [comparison] if comparison.verdict != "not decided" else []
        holding, corrected = _corrected(decided, every)
        yield Statement(text + corrected, line.agreement, comparisons=(comparison,), holding=holding)


def _published_order(group: Group) -> Iterator[Statement]:
    """Which pairs of schemes have the published order, where only the order can be compared."""
    for source, figures in published_figures(group).items():
        in_order = sorted(figures, key=lambda row: row[1], reverse=not group.documents)
        pairs = [
            Comparison(group, better, worse, group.split)
            for (better, figure), (worse, other) in itertools.combinations(in_order, 2)
            if figure != other  # as two variants of one scheme have
        ]
        pairs = [pair for pair in pairs if pair.change.value is not None]
        same, opposite, undecided = ([pair for pair in pairs if pair.verdict == verdict] for verdict in VERDICTS)
        parts = [
            f"{how}: {', '.join(_listed(of_verdict, pairs=True))}"
            for how, of_verdict in (("same", same), ("opposite", opposite))
            if of_verdict
        ]
        parts += [f"not decided: {len(undecided)} of {len(pairs)} pairs"] if undecided else []
        if pairs:
            shown = [_said(variant) for variant, _ in in_order]
            without = [said for said in map(_said, group.variants) if said not in shown]
            text = f"Published order, best first ({source.citation}): {', '.join(shown)}. Here {'; '.join(parts)}."
            holding, corrected = _corrected([*same, *opposite], pairs, of_pairs=True)
            text += corrected + (f" Of {'; '.join(without)} no such figure is held." if without else "")
            yield Statement(text, comparisons=tuple(pairs), holding=holding)


def _published_scores(group: Group) -> Iterator[Statement]:
    """Scores beside published ones of the same model and data."""
    for source, figures in published_figures(group).items():
        for variant, figure in figures if source.standard_error else ():
            ours, reach = group.score(variant, group.split), 1.96 * (source.standard_error or 0)
            if ours.interval is None or ours.interval.kind != "seeds":
                continue
            value, interval = figure_text(ours, group.digits)
            what = f"{_first_upper(_said(variant))} on {group.split}: {value} ({interval.strip('()')}; {ours.n} seeds)"
            known, low, high = (number(end, group.digits) for end in (figure, figure - reach, figure + reach))
            overlap = ours.interval.low <= figure + reach and figure - reach <= ours.interval.high
            how = "overlap" if overlap else "do not overlap"
            yield Statement(f"{what}; published: {known} ({low} to {high}; {source.citation}). The intervals {how}.")


def _against_baseline(group: Group, split: str, said: Sequence[Comparison]) -> Iterator[Statement]:
    """The variants that are better, worse or undecided against the baseline on a split, but what was said already."""
    every = _of_baseline(group, split)
    comparisons = [pair for pair in every if pair.change.value is not None and pair not in said]
    comparisons.sort(key=lambda pair: pair.change.value or 0.0, reverse=not group.documents)  # the best first
    unit = "points of exact match" if group.task else "bits per byte" if group.documents else "BLEU"
    for verdict, heading in zip(VERDICTS, ("Better than", "Worse than", "Not decided against"), strict=True):
        if of_verdict := tuple(pair for pair in comparisons if pair.verdict == verdict):
            start, items = f"{heading} {_said(group.baseline)} on {split}, in {unit}: ", _listed(of_verdict)
            holding, end = _corrected([] if verdict == "not decided" else of_verdict, every)
            yield Statement(start, comparisons=of_verdict, holding=holding, items=items, end=end)


def _of_baseline(group: Group, split: str) -> list[Comparison]:
    """Every variant against the baseline: a family of tests, which are corrected for their number."""
    others = (variant for variant in group.variants if variant is not group.baseline)
    return [Comparison(group, variant, group.baseline, split) for variant in others]


def _corrected(
    decided: Sequence[Comparison], every: Sequence[Comparison], *, of_pairs: bool = False
) -> tuple[tuple[Comparison, ...] | None, str]:
    """Which of them hold when corrected for all that intervals could decide, and a sentence; none for one of one."""
    tested = [pair for pair in every if pair.why_undecided in ("", INCLUDES_ZERO)]
    if len(tested) < 2 or not decided:
        return None, ""
    corrected = holm([p_value(pair.change) for pair in tested])
    holds = {(pair.variant.label, pair.reference.label): p < 0.05 for pair, p in zip(tested, corrected, strict=True)}
    holding = tuple(pair for pair in decided if holds[pair.variant.label, pair.reference.label])
    which = f"of these hold: {'; '.join(_name(pair, of_pairs) for pair in holding)}" if holding else "none holds"
    if len(decided) == 1:
        which = "it holds" if holding else "it does not hold"
    elif len(holding) == len(decided):
        which = "all hold"
    return holding, f" Corrected for {len(tested)} comparisons (Holm), {which}."


def _listed(comparisons: Sequence[Comparison], *, pairs: bool = False) -> tuple[str, ...]:
    """`RoPE +1.5 ± 0.5 (+0.3 to +2.7; 3 seeds)`, ...; pairs: `RoPE against T5 ...`."""
    shown = [f"{_name(pair, pairs)} {pair.figures}" for pair in comparisons[:MOST_LISTED]]
    more = [f"and {len(comparisons) - MOST_LISTED} more, in the tables"] if len(comparisons) > MOST_LISTED else []
    return (*shown, *more)


def _name(pair: Comparison, of_pairs: bool) -> str:
    return f"{_said(pair.variant)} against {_said(pair.reference)}" if of_pairs else _said(pair.variant)


def _said(variant: Variant) -> str:
    """Its label as in a sentence, where `none` could be read as "no variant"."""
    return "no positions" if variant.label == "none" else variant.label
