"""Intervals and both paired tests against sacreBLEU; Wilson's interval and Holm's correction by hand."""

import random

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from rpr.records.measurement import holm
from rpr.scoring.metrics import all_scores
from rpr.scoring.statistics import interval, paired_tests

TEXT = "der die Hund Katze läuft schläft im auf dem Garten Dach Test-Satz schnell „ja“ nicht , . heute"
WORDS = TEXT.split()


def corpus(count: int, noise: float, seed: int) -> tuple[list[str], list[str]]:
    """(hypotheses, references); `noise` is the probability that a word is replaced."""
    choose = random.Random(7)
    references = [" ".join(choose.choices(WORDS, k=choose.randint(1, 14))) for _ in range(count)]
    change = random.Random(seed)
    hypotheses = [
        " ".join(change.choice(WORDS) if change.random() < noise else word for word in line.split())
        for line in references
    ]
    return hypotheses, references


@pytest.fixture(scope="module")
def two_systems():
    first, references = corpus(120, 0.30, seed=1)
    second, _ = corpus(120, 0.22, seed=3)
    return first, second, references


@pytest.mark.parametrize("name, metric, index", [("BLEU", BLEU(), 0), ("chrF2", CHRF(), 3)])
def test_equals_sacrebleu_paired_tests(two_systems, monkeypatch, name, metric, index):
    """The same draws for the same seed: equal p to within one count (sacreBLEU computes in 32 bits), and half the width
    of the interval.
    """
    first, second, references = two_systems
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    ours = [all_scores(side, references, "de")[index].statistics for side in (first, second)]
    found = paired_tests(*ours, samples=200, trials=400, seed=99)
    for kind, samples, p in (("bs", 200, found.p_bootstrap), ("ar", 400, found.p_randomisation)):
        systems = [("first", first), ("second", second)]
        _, theirs = PairedTest(systems, {name: metric}, [references], test_type=kind, n_samples=samples)()
        assert found.difference == pytest.approx(theirs[name][1].score - theirs[name][0].score, abs=1e-6)
        assert p == pytest.approx(theirs[name][1].p_value, abs=1.5 / samples), kind
        assert 0.001 < p < 0.5
    within = interval(ours[1], 200, seed=99)
    score = metric.corpus_score(second, [references], n_bootstrap=200)
    assert (within.high - within.low) / 2 == pytest.approx(score._ci, abs=1e-3)
    assert within.low < ours[1].score < within.high


def test_result_does_not_depend_on_the_block_size(two_systems, monkeypatch):
    first, second, references = two_systems
    # Neither the number of sentences nor that of a block's rows is one of whole words of random bits.
    sides = (first[:119], second[:119])
    counts = [all_scores(side, references[:119], "de", ["sacrebleu"])[0].statistics for side in sides]
    at_once = paired_tests(*counts, samples=300, trials=300)
    monkeypatch.setattr("rpr.scoring.statistics._AT_ONCE", 71 * 119)
    assert paired_tests(*counts, samples=300, trials=300) == at_once


@pytest.mark.parametrize("matches, count, low, high", [
    (81, 263, 25.53, 36.62), (15, 148, 6.24, 16.05), (0, 20, 0.0, 16.11), (1, 29, 0.61, 17.18),
])  # fmt: skip
def test_exact_match_interval_is_wilsons(matches, count, low, high):
    """Newcombe (1998), table I, method 3 (Wilson without continuity correction)."""
    references = [str(number) for number in range(count)]
    hypotheses = [line if number < matches else "?" for number, line in enumerate(references)]
    found = interval(all_scores(hypotheses, references, "output", ["exact_match"])[0].statistics, 100)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.006), pytest.approx(high, abs=0.006))
    assert (found.kind, found.level, found.samples, found.seed) == ("sentences", 0.95, None, None)


def test_system_against_itself_and_one_that_differs_in_one_sentence(two_systems):
    """sacreBLEU gives p = 1 / (n + 1) here: it counts only what is more extreme than no difference. Swapping one
    sentence keeps the size of the difference, so each trial is as extreme as the observation.
    """
    first, _, references = two_systems
    for metric in all_scores(first, references, "de", ["sacrebleu", "chrf", "exact_match"]):
        found = paired_tests(metric.statistics, metric.statistics, samples=100, trials=100)
        assert (found.difference, found.p_bootstrap, found.p_randomisation) == (0, 1, 1), metric.name
        assert (found.interval.low, found.interval.high) == (0, 0)
    pair = [all_scores(side, references, "de", ["chrf"])[0].statistics for side in (first, ["ganz anders", *first[1:]])]
    assert paired_tests(*pair, samples=100, trials=500).p_randomisation == 1


def test_holm():
    """0.01 0.02 0.03 0.04 times 4, 3, 2, 1 is 0.04 0.06 0.06 0.04; none may be below the one before."""
    assert holm([0.02, 0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.06, 0.04, 0.06])
    assert (holm([0.03]), holm([0.9, 0.6]), holm([])) == ([0.03], [1, 1], [])
