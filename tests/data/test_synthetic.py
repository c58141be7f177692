"""The properties that the synthetic corpus is designed for: unique sources, a longer long split, and targets that a bag
of words does not determine. Its sentences are frozen by tests/golden/generators.json.
"""

from collections import defaultdict

import pytest

from rpr.data.generated import synthetic
from rpr.data.generated.synthetic import Sentences, generate

SIZES = {"num_train": 8_000, "num_validation": 300, "num_test": 300, "num_long": 100}


@pytest.fixture(scope="module")
def corpus():
    return generate(seed=1, **SIZES)


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
