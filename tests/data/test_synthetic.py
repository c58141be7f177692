"""The synthetic corpus: sentences of it whose German was checked by hand, and the properties it is designed for: unique
sources, a longer long split, and targets that a bag of words does not determine.
"""

import re
from collections import defaultdict

import pytest

from rpr.data import synthetic
from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic import Chooser, generate, random_sentence

SIZES = {"num_train": 8_000, "num_validation": 300, "num_test": 300, "num_long": 200}
SMALL_SIZES = {"num_train": 200, "num_validation": 50, "num_test": 50, "num_long": 20}


@pytest.fixture(scope="module")
def corpus():
    return generate(seed=1, **SIZES)


BY_HAND = """
The verb comes second, also after a fronted adverb or place, which contracts in dem.
  Now we must help the king. | Jetzt müssen wir dem König helfen.
  In the stupid garden the men sang. | Im dummen Garten sangen die Männer.
  In front of a kitchen a painter slept. | Vor einer Küche schlief ein Maler.
It comes last in a subordinate clause, and first after a fronted one; participle and infinitive come last, and in a
subordinate clause the auxiliary after them.
  The woman can work because my baker sleeps. | Die Frau kann arbeiten, weil mein Bäcker schläft.
  Until the king laughed, she could laugh. | Bis der König lachte, konnte sie lachen.
  They called every hen up because she had carried them today. | \
Sie riefen jedes Huhn an, weil sie sie heute getragen hatte.
A separable particle goes to the end, and rejoins the verb in a subordinate clause and as a participle. The English
particle behind the object decides the German verb.
  The gardeners called the wolf that every fox calls up. | Die Gärtner riefen den Wolf, den jeder Fuchs anruft.
  The guests have called my guest up. | Die Gäste haben meinen Gast angerufen.
  She pushed these brave pigs that he trusted. | Sie stieß diese mutigen Schweine, denen er vertraute.
  A calf pushed a goat away. | Ein Kalb stieß eine Ziege weg.
Number reaches the verb across a relative clause, whose pronoun takes the case of its gap.
  My pigs that will love the queen work. | Meine Schweine, die die Königin lieben werden, arbeiten.
  The thief that my horses thank slept. | Der Dieb, dem meine Pferde danken, schlief.
The recipient precedes what is given, unless that is a pronoun; adverbs precede noun objects and follow pronouns.
  She introduced a lamb to the happy nun. | Sie stellte der fröhlichen Nonne ein Lamm vor.
  Suddenly she introduced him to the horse. | Plötzlich stellte sie ihn dem Pferd vor.
  The man had called these healthy babies up here. | Der Mann hatte hier diese gesunden Babys angerufen.
  The mouse always pushed her in front of the old school yesterday. | \
Die Maus stieß sie gestern immer vor der alten Schule.
Coordinated subjects are plural; dative plurals end in n; questions put the auxiliary first.
  The ghost and the new doctor helped a father. | Das Gespenst und der neue Arzt halfen einem Vater.
  My hens help these stupid children. | Meine Hühner helfen diesen dummen Kindern.
  Will the calves write that a lazy daughter calls the father up? | \
Werden die Kälber schreiben, dass eine faule Tochter den Vater anruft?
A trailing relative clause gets one final mark and one comma.
  They answered the sick friendly king that could hate my new bird, and a beautiful judge always danced. | \
Sie antworteten dem kranken freundlichen König, der meinen neuen Vogel hassen konnte, und ein schöner Richter tanzte \
immer.
"""


def test_translations(corpus):
    german_of = {pair.source: pair.target for pair in corpus["train"]}
    by_hand = [line.strip().split(" | ") for line in BY_HAND.splitlines() if " | " in line]
    assert len(by_hand) == 20 and [[english, german_of.get(english)] for english, _ in by_hand] == by_hand


def test_split_sizes_and_unique_sources(corpus):
    assert {f"num_{name}": len(pairs) for name, pairs in corpus.items()} == SIZES
    sources = [pair.source for pairs in corpus.values() for pair in pairs]
    assert len(set(sources)) == len(sources)


def test_long_sentences_are_longer_than_all_others(corpus):
    def lengths(names):
        return [len(text.split()) for name in names for pair in corpus[name] for text in (pair.source, pair.target)]

    ordinary, long = lengths(("train", "validation", "test")), lengths(("long",))
    assert (min(ordinary), max(ordinary)) == synthetic.ORDINARY_WORDS
    assert max(ordinary) < min(long) and max(long) <= 2.5 * max(ordinary)
    assert 12 < sum(ordinary) / len(ordinary) < 14


def test_train_contains_every_word(corpus):
    def words(pairs, language):
        return {word for pair in pairs for word in re.findall(r"\w+", getattr(pair, language).lower())}

    for language in ("source", "target"):
        train = words(corpus["train"], language)
        for name in ("validation", "test", "long"):
            assert words(corpus[name], language) <= train


def test_num_train_extends_train_and_keeps_other_splits():
    few, many = generate(seed=3, **SMALL_SIZES), generate(seed=3, **{**SMALL_SIZES, "num_train": 600})
    assert few["train"] == many["train"][:200] and len(many["train"]) == 600
    assert all(few[name] == many[name] for name in ("validation", "test", "long"))


@pytest.fixture
def tiny_lexicon(monkeypatch):
    """Two nouns and one word of most other kinds, so that random sentences repeat."""
    kept = {"sleep", "see", "call", "help", "listen", "show", "introduce", "say"}
    monkeypatch.setattr(lexicon, "NOUNS", tuple(noun for noun in lexicon.NOUNS if noun.english in ("dog", "cat")))
    monkeypatch.setattr(lexicon, "VERBS", tuple(verb for verb in lexicon.VERBS if verb.english in kept))
    monkeypatch.setattr(lexicon, "ADJECTIVES", lexicon.ADJECTIVES[:2])
    for name in (
        "PLACES", "OTHER_DETERMINERS", "SINGULAR_DETERMINERS", "PRONOUNS", "MIDDLE_ADVERBS", "EDGE_ADVERBS",
        "PAST_EDGE_ADVERBS", "NONPAST_EDGE_ADVERBS", "FRONT_ADVERBS", "PLACE_PREPOSITIONS", "NOUN_PREPOSITIONS",
        "SUBORDINATORS", "COORDINATORS",
    ):  # fmt: skip
        monkeypatch.setattr(lexicon, name, getattr(lexicon, name)[:1])


@pytest.mark.usefixtures("tiny_lexicon")
def test_source_determines_the_target_but_its_bag_of_words_does_not():
    choose = Chooser("tiny")
    targets = defaultdict(set)
    targets_of_bag = defaultdict(set)
    num_sentences = 10_000
    for _ in range(num_sentences):
        pair = random_sentence(choose, 1)
        targets[pair.source].add(pair.target)
        targets_of_bag[tuple(sorted(pair.source.lower().split()))].add(pair.target)
    assert num_sentences - len(targets) > 250, "too few sentences repeat"
    assert all(len(found) == 1 for found in targets.values())
    assert sum(len(found) > 1 for found in targets_of_bag.values()) > 20


@pytest.mark.usefixtures("tiny_lexicon")
def test_impossible_sizes_are_errors(monkeypatch):
    monkeypatch.setattr(synthetic, "ORDINARY_WORDS", (2, 3))  # soon exhausted
    monkeypatch.setattr(synthetic, "MAX_FAILURES_IN_A_ROW", 300)
    message = r"^num_test: 1000000 is more than .* \d+ distinct sentences of 2 to 3 words; choose num_test = \d+ or f"
    with pytest.raises(ValueError, match=message):
        generate(seed=1, num_train=0, num_validation=0, num_test=1_000_000, num_long=0)
