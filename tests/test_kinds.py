"""The three kinds of experiments: what each calls better or not learned."""

from rpr.kinds import TASK, TEXT, TRANSLATION


def test_better_and_not_learned():
    for kind, change, better in ((TRANSLATION, 0.5, True), (TASK, -1.0, False), (TEXT, -0.1, True)):
        assert kind.better(change) is better is not kind.better(-change)
        assert sorted([1.0, 2.0], key=kind.best_first) == ([1.0, 2.0] if kind is TEXT else [2.0, 1.0])
    for kind, score, more, learned in (
        (TRANSLATION, 1.0, {}, True), (TRANSLATION, 0.99, {}, False), (TRANSLATION, 20.0, {"cut_off": 0.49}, True),
        (TRANSLATION, 20.0, {"cut_off": 0.5}, False), (TASK, 0.1, {}, True), (TASK, 0.0, {}, False),
        (TEXT, 4.68, {"unigram": 4.69}, True), (TEXT, 4.69, {"unigram": 4.69}, False),
    ):  # fmt: skip
        assert (kind.unlearned(score, **more) == "") is learned
