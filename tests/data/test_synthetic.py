"""The synthetic corpus: sentences of it whose German was checked by hand, and the properties it is designed for: unique
sources, a longer long split, and targets that a bag of words does not determine.
"""

from collections import defaultdict

import pytest

from rpr.data.generated import synthetic
from rpr.data.generated.synthetic import Sentences, generate

SIZES = {"num_train": 8_000, "num_validation": 300, "num_test": 300, "num_long": 100}


@pytest.fixture(scope="module")
def corpus():
    return generate(seed=1, **SIZES)


BY_HAND = """
the friendly doctor saw a nun | der freundliche Arzt hat eine Nonne gesehen
at night an old child called a small calf | nachts hat ein altes Kind ein kleines Kalb gerufen
the young tired lamb pushed a fox | das junge müde Lamm hat einen Fuchs gestoßen
the stupid woman found a friendly girl | die dumme Frau hat ein freundliches Mädchen gefunden
the wild duck pushed a witch although the bird slept | \
die wilde Ente hat eine Hexe gestoßen , obwohl der Vogel geschlafen hat
yesterday the dog kissed a baker although a wild cat slept | \
gestern hat der Hund einen Bäcker geküsst , obwohl eine wilde Katze geschlafen hat
a lamb heard the wolf here and a big tired goat slept in the garden | \
ein Lamm hat hier den Wolf gehört , und eine große müde Ziege hat im Garten geschlafen
"""


def test_translations(corpus):
    german_of = {pair.source: pair.target for pair in corpus["train"]}
    by_hand = [line.split(" | ") for line in BY_HAND.strip().splitlines()]
    assert [[english, german_of.get(english)] for english, _ in by_hand] == by_hand


def test_split_sizes_and_unique_sources_and_lengths(corpus):
    assert {f"num_{name}": len(pairs) for name, pairs in corpus.items()} == SIZES
    sources = [pair.source for pairs in corpus.values() for pair in pairs]
    assert len(set(sources)) == len(sources)
    for name, pairs in corpus.items():
        fewest, most = synthetic.LONG_WORDS if name == "long" else synthetic.ORDINARY_WORDS
        assert all(fewest <= len(text.split()) <= most for pair in pairs for text in pair)
    assert synthetic.ORDINARY_WORDS[1] < synthetic.LONG_WORDS[0]


def test_source_determines_the_target_but_its_bag_of_words_does_not(monkeypatch):
    for name in ("NOUNS", "TRANSITIVE", "INTRANSITIVE", "ADJECTIVES", "ADVERBS", "SUBORDINATORS", "COORDINATORS"):
        monkeypatch.setattr(synthetic, name, getattr(synthetic, name)[:2])  # so that random sentences repeat
    sentences, targets, targets_of_bag = Sentences("tiny"), defaultdict(set), defaultdict(set)
    for _ in range(10_000):
        pair = sentences.sentence(1)
        targets[pair.source].add(pair.target)
        targets_of_bag[tuple(sorted(pair.source.split()))].add(pair.target)
    assert 10_000 - len(targets) > 250, "too few sentences repeat"
    assert all(len(found) == 1 for found in targets.values())
    assert sum(len(found) > 1 for found in targets_of_bag.values()) > 0.4 * len(targets_of_bag)
