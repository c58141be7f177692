"""The synthetic corpus: German sentences worked by hand, and the properties it is designed for: unique sources, a
longer long split, and targets that a bag of words does not determine.
"""

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from rpr.data import synthetic
from rpr.data import synthetic_grammar as grammar
from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic import Chooser, generate, random_sentence
from rpr.data.synthetic_grammar import NOTHING, Clause, main, with_relative
from rpr.data.synthetic_lexicon import Nominal, Word

SIZES = {"num_train": 8_000, "num_validation": 300, "num_test": 300, "num_long": 200}
SMALL_SIZES = {"num_train": 200, "num_validation": 50, "num_test": 50, "num_long": 20}

NOUN = {noun.english: noun for noun in lexicon.NOUNS + lexicon.PLACES}
VERB = {" ".join(filter(None, (verb.english, verb.before, verb.after))): verb for verb in lexicon.VERBS}
ADJECTIVE = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
DETERMINER = {
    determiner.english: determiner
    for determiner in (lexicon.THE, *lexicon.SINGULAR_DETERMINERS, *lexicon.OTHER_DETERMINERS)
}
PRONOUN = {pronoun.subject: pronoun for pronoun in lexicon.PRONOUNS}
CONJUNCTION = {item.english: item for item in (lexicon.THAT, *lexicon.SUBORDINATORS, *lexicon.COORDINATORS)}
AUXILIARY = {item.english: item for item in lexicon.NONPAST_AUXILIARIES + lexicon.PAST_AUXILIARIES}
ADVERBS = (
    *lexicon.FRONT_ADVERBS, *lexicon.MIDDLE_ADVERBS, *lexicon.PAST_EDGE_ADVERBS, *lexicon.NONPAST_EDGE_ADVERBS
)  # fmt: skip
ADVERB = {adverb.english: adverb for adverb in ADVERBS}
PREPOSITION = {item.english: item for item in lexicon.PLACE_PREPOSITIONS + lexicon.NOUN_PREPOSITIONS}


@pytest.fixture(scope="module")
def corpus():
    return generate(seed=1, **SIZES)


def phrase(words: str, *, plural: bool = False) -> Nominal:
    """ "the old man"; plurals are given in the singular."""
    determiner, *adjectives, noun = words.split()
    before = [ADJECTIVE[word] for word in adjectives]
    return grammar.noun_phrase(DETERMINER[determiner], NOUN[noun], plural=plural, adjectives=before)


def place(preposition: str, words: str) -> Word:
    return grammar.prepositional(PREPOSITION[preposition], phrase(words))


def translated(*mains: Word, coordinators: tuple[str, ...] = (), mark: str = ".") -> str:
    """ "English | German"."""
    pair = grammar.sentence(mains, [CONJUNCTION[word] for word in coordinators], mark)
    return f"{pair.source} | {pair.target}"


def subordinate(conjunction: str, clause: Clause, tail: Word = NOTHING) -> Word:
    return grammar.subordinate(CONJUNCTION[conjunction], clause, tail)


SAW = Clause(VERB["see"], "past", phrase("the old man"), phrase("the dog"))
SLEPT = Clause(VERB["sleep"], "past", phrase("the cat"))
CALLS = Clause(VERB["call up"], "present", phrase("the woman"), phrase("the child"))
PUSH = Clause(VERB["push"], "past", phrase("the woman"), phrase("the horse"))
GIVE = Clause(VERB["show"], "past", phrase("the king"), phrase("the young cow"), phrase("the wolf", plural=True))
INTRODUCE = Clause(VERB["introduce"], "present", PRONOUN["we"], PRONOUN["they"], PRONOUN["she"])
SAYS = Clause(VERB["say"], AUXILIARY["has"], PRONOUN["she"])
CATS = subordinate("that", Clause(VERB["sleep"], AUXILIARY["must"], phrase("my cat", plural=True)))
KING = subordinate("that", Clause(VERB["believe"], "present", phrase("every king")), CATS)
SEEN = replace(SAW, tense=AUXILIARY["has"])
WILL = replace(SAW, tense=AUXILIARY["will"], subject=phrase("the old man", plural=True))
OFTEN = replace(SAW, edge_adverb=ADVERB["yesterday"], middle_adverb=ADVERB["often"])
WHO_SAW = Clause(VERB["see"], "past", object=phrase("the dog"))
MAN, MEN = (with_relative(phrase("the man", plural=many), WHO_SAW) for many in (False, True))
SEEN_BY = Clause(VERB["see"], "past", subject=phrase("the man"))
HEARD_BY = replace(SEEN_BY, verb=VERB["listen to"])
DOG = with_relative(phrase("the dog"), SEEN_BY)
DOGS = with_relative(phrase("the dog", plural=True), HEARD_BY)
BOTH = grammar.coordination(phrase("the cat"), phrase("a man"))
BY_HAND = [
    # The verb comes second, also after a fronted adverb or place, which contracts in dem.
    (main(SAW), "The old man saw the dog. | Der alte Mann sah den Hund."),
    (main(SAW, front=ADVERB["yesterday"]), "Yesterday the old man saw the dog. | Gestern sah der alte Mann den Hund."),
    (main(SAW, front=place("in", "the garden")),
     "In the garden the old man saw the dog. | Im Garten sah der alte Mann den Hund."),
    (main(replace(SLEPT, place=place("in front of", "a small church"))),
     "The cat slept in front of a small church. | Die Katze schlief vor einer kleinen Kirche."),
    # It comes last in a subordinate clause, and first after a fronted one; that clauses may be chained.
    (main(SLEPT, tail=subordinate("because", SAW)),
     "The cat slept because the old man saw the dog. | Die Katze schlief, weil der alte Mann den Hund sah."),
    (main(SLEPT, front=grammar.fronted(subordinate("because", SAW))),
     "Because the old man saw the dog, the cat slept. | Weil der alte Mann den Hund sah, schlief die Katze."),
    (main(SAYS, tail=KING),
     "She has said that every king believes that my cats must sleep. | "
     "Sie hat gesagt, dass jeder König glaubt, dass meine Katzen schlafen müssen."),
    # Participle and infinitive come last, in a subordinate clause the auxiliary after them.
    (main(replace(SEEN, edge_adverb=ADVERB["today"]), tail=subordinate("until", WILL)),
     "The old man has seen the dog today until the old men will see the dog. | "
     "Der alte Mann hat heute den Hund gesehen, bis die alten Männer den Hund sehen werden."),
    # A separable particle goes to the end, and rejoins the verb in a subordinate clause.
    (main(CALLS, tail=subordinate("if", CALLS)),
     "The woman calls the child up if the woman calls the child up. | "
     "Die Frau ruft das Kind an, wenn die Frau das Kind anruft."),
    (main(replace(CALLS, tense=AUXILIARY["had"]), tail=subordinate("if", CALLS)),
     "The woman had called the child up if the woman calls the child up. | "
     "Die Frau hatte das Kind angerufen, wenn die Frau das Kind anruft."),
    # The English particle behind the object decides the German verb.
    (main(PUSH), "The woman pushed the horse. | Die Frau stieß das Pferd."),
    (main(replace(PUSH, verb=VERB["push away"])), "The woman pushed the horse away. | Die Frau stieß das Pferd weg."),
    # Number reaches the verb across a relative clause: English "called" is the same for one man and for many.
    (main(Clause(VERB["call"], "past", MAN, phrase("the cat"))),
     "The man that saw the dog called the cat. | Der Mann, der den Hund sah, rief die Katze."),
    (main(Clause(VERB["call"], "past", MEN, phrase("the cat"))),
     "The men that saw the dog called the cat. | Die Männer, die den Hund sahen, riefen die Katze."),
    (main(Clause(VERB["call"], "past", phrase("the cat"), MAN)),
     "The cat called the man that saw the dog. | Die Katze rief den Mann, der den Hund sah."),
    # A relative pronoun takes the case of its gap.
    (main(replace(SLEPT, subject=DOG)), "The dog that the man saw slept. | Der Hund, den der Mann sah, schlief."),
    (main(replace(SLEPT, subject=DOGS)),
     "The dogs that the man listened to slept. | Die Hunde, denen der Mann zuhörte, schliefen."),
    # The recipient precedes what is given; adverbs precede noun objects and follow pronoun objects.
    (main(GIVE), "The king showed the wolves the young cow. | Der König zeigte den Wölfen die junge Kuh."),
    (main(replace(GIVE, verb=VERB["introduce"])),
     "The king introduced the young cow to the wolves. | Der König stellte den Wölfen die junge Kuh vor."),
    (main(OFTEN), "The old man often saw the dog yesterday. | Der alte Mann sah gestern oft den Hund."),
    (main(replace(OFTEN, object=PRONOUN["he"])),
     "The old man often saw him yesterday. | Der alte Mann sah ihn gestern oft."),
    (main(INTRODUCE), "We introduce them to her. | Wir stellen sie ihr vor."),
    # Coordinated subjects are plural; dative plurals end in n; questions put the auxiliary first.
    (main(Clause(VERB["help"], "present", BOTH, phrase("this child", plural=True))),
     "The cat and a man help these children. | Die Katze und ein Mann helfen diesen Kindern."),
    (main(SEEN, question=True), "Has the old man seen the dog? | Hat der alte Mann den Hund gesehen?"),
]  # fmt: skip


@pytest.mark.parametrize("written, expected", BY_HAND, ids=[text for _, text in BY_HAND])
def test_translation(written, expected):
    assert translated(written, mark=expected[-1]) == expected


def test_trailing_relative_clause_gets_one_final_mark_and_one_comma():
    call = main(Clause(VERB["call"], "past", phrase("the cat"), MAN))
    assert translated(call, main(SLEPT), main(SAW), coordinators=("and", "but")) == (
        "The cat called the man that saw the dog, and the cat slept, but the old man saw the dog. | "
        "Die Katze rief den Mann, der den Hund sah, und die Katze schlief, aber der alte Mann sah den Hund."
    )


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
    monkeypatch.setattr(lexicon, "NOUNS", (NOUN["dog"], NOUN["cat"]))
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
    message = (
        r"^num_test: 1000000 is more than the grammar's \d+ distinct sentences of 2 to 3 words;"
        r" choose num_test = \d+ or fewer, or add words to rpr/data/synthetic_lexicon\.tsv$"
    )
    with pytest.raises(ValueError, match=message):
        generate(seed=1, num_train=0, num_validation=0, num_test=1_000_000, num_long=0)
