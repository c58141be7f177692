"""The synthetic corpus, checked against German sentences worked by hand, against an independent reading of its own
sentences (commas and a list of finite verbs: where does the verb stand?), and against the properties it is made for:
the same text in any process; no source twice; long beyond all else; a bag of words does not fix the target."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import pytest

from rpr.data import synthetic
from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic import Chooser, generate, random_sentence
from rpr.data.synthetic_grammar import (
    Clause,
    Coordination,
    Main,
    NounPhrase,
    Pair,
    PrepositionalPhrase,
    Sentence,
    Subordinate,
    translate,
)

DEFAULT_SIZES = {"num_train": 30_000, "num_validation": 1_000, "num_test": 1_000, "num_long": 500}
SMALL_SIZES = {"num_train": 200, "num_validation": 50, "num_test": 50, "num_long": 20}

NOUN = {noun.english: noun for noun in lexicon.NOUNS + lexicon.PLACES}
VERB = {" ".join(filter(None, (verb.english, verb.before, verb.after))): verb for verb in lexicon.VERBS}
ADJECTIVE = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
DETERMINER = {
    determiner.english: determiner
    for determiner in (lexicon.THE, *lexicon.SINGULAR_DETERMINERS, *lexicon.OTHER_DETERMINERS)
}
PRONOUN = {pronoun.english: pronoun for pronoun in lexicon.PRONOUNS}
CONJUNCTION = {item.english: item for item in (lexicon.THAT, *lexicon.SUBORDINATORS, *lexicon.COORDINATORS)}
AUXILIARY = {item.english: item for item in lexicon.NONPAST_AUXILIARIES + lexicon.PAST_AUXILIARIES}
ADVERBS = (
    *lexicon.FRONT_ADVERBS, *lexicon.MIDDLE_ADVERBS, *lexicon.PAST_EDGE_ADVERBS, *lexicon.NONPAST_EDGE_ADVERBS
)  # fmt: skip
ADVERB = {adverb.english: adverb for adverb in ADVERBS}
PREPOSITION = {item.english: item for item in lexicon.PLACE_PREPOSITIONS + lexicon.NOUN_PREPOSITIONS}


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return generate(seed=1, **DEFAULT_SIZES)


def phrase(words: str, *, plural: bool = False) -> NounPhrase:
    """ "the old man" as a tree; a plural is named by its singular noun and determiner."""
    determiner, *adjectives, noun = words.split()
    return NounPhrase(DETERMINER[determiner], NOUN[noun], plural, tuple(ADJECTIVE[word] for word in adjectives))


def place(preposition: str, words: str) -> PrepositionalPhrase:
    return PrepositionalPhrase(PREPOSITION[preposition], phrase(words))


def told(*mains: Main, coordinators: tuple[str, ...] = ()) -> tuple[str, str]:
    pair = translate(Sentence(mains, tuple(CONJUNCTION[word] for word in coordinators)))
    return pair.source, pair.target


MAN_SAW_DOG = Clause(VERB["see"], "past", phrase("the old man"), phrase("the dog"))
CAT_SLEPT = Clause(VERB["sleep"], "past", phrase("the cat"))


# Worked by hand


def test_verb_second_after_the_subject_and_after_a_fronted_adverb() -> None:
    assert told(Main(MAN_SAW_DOG)) == ("The old man saw the dog.", "Der alte Mann sah den Hund.")
    assert told(Main(MAN_SAW_DOG, front=ADVERB["yesterday"])) == (
        "Yesterday the old man saw the dog.",
        "Gestern sah der alte Mann den Hund.",
    )


def test_verb_second_after_a_fronted_place_which_contracts_in_dem() -> None:
    assert told(Main(MAN_SAW_DOG, front=place("in", "the garden"))) == (
        "In the garden the old man saw the dog.",
        "Im Garten sah der alte Mann den Hund.",
    )
    assert told(Main(replace(CAT_SLEPT, place=place("in front of", "a small church")))) == (
        "The cat slept in front of a small church.",
        "Die Katze schlief vor einer kleinen Kirche.",
    )


def test_verb_last_in_a_subordinate_clause_and_inversion_after_a_fronted_one() -> None:
    because = CONJUNCTION["because"]
    assert told(Main(CAT_SLEPT, tail=Subordinate(because, MAN_SAW_DOG))) == (
        "The cat slept because the old man saw the dog.",
        "Die Katze schlief, weil der alte Mann den Hund sah.",
    )
    assert told(Main(CAT_SLEPT, front=Subordinate(because, MAN_SAW_DOG))) == (
        "Because the old man saw the dog, the cat slept.",
        "Weil der alte Mann den Hund sah, schlief die Katze.",
    )


def test_that_clauses_may_be_chained() -> None:
    inner = Subordinate(CONJUNCTION["that"], Clause(VERB["sleep"], AUXILIARY["must"], phrase("my cat", plural=True)))
    middle = Subordinate(CONJUNCTION["that"], Clause(VERB["believe"], "present", phrase("every king")), inner)
    assert told(Main(Clause(VERB["say"], AUXILIARY["has"], PRONOUN["she"]), tail=middle)) == (
        "She has said that every king believes that my cats must sleep.",
        "Sie hat gesagt, dass jeder König glaubt, dass meine Katzen schlafen müssen.",
    )


def test_participle_and_infinitive_stand_last_and_the_auxiliary_after_them_in_a_subordinate_clause() -> None:
    perfect = replace(MAN_SAW_DOG, tense=AUXILIARY["has"], edge_adverb=ADVERB["today"])
    modal = replace(MAN_SAW_DOG, tense=AUXILIARY["will"], subject=phrase("the old man", plural=True))
    assert told(Main(perfect, tail=Subordinate(CONJUNCTION["until"], modal))) == (
        "The old man has seen the dog today until the old men will see the dog.",
        "Der alte Mann hat heute den Hund gesehen, bis die alten Männer den Hund sehen werden.",
    )


def test_separable_particle_goes_to_the_end_and_rejoins_in_a_subordinate_clause() -> None:
    calls = Clause(VERB["call up"], "present", phrase("the woman"), phrase("the child"))
    assert told(Main(calls, tail=Subordinate(CONJUNCTION["if"], calls))) == (
        "The woman calls the child up if the woman calls the child up.",
        "Die Frau ruft das Kind an, wenn die Frau das Kind anruft.",
    )
    assert told(Main(replace(calls, tense=AUXILIARY["had"]), tail=Subordinate(CONJUNCTION["if"], calls))) == (
        "The woman had called the child up if the woman calls the child up.",
        "Die Frau hatte das Kind angerufen, wenn die Frau das Kind anruft.",
    )


def test_the_particle_behind_the_object_decides_the_german_verb() -> None:
    push = Clause(VERB["push"], "past", phrase("the woman"), phrase("the horse"))
    assert told(Main(push)) == ("The woman pushed the horse.", "Die Frau stieß das Pferd.")
    assert told(Main(replace(push, verb=VERB["push away"]))) == (
        "The woman pushed the horse away.",
        "Die Frau stieß das Pferd weg.",
    )


def test_number_reaches_the_verb_across_a_relative_clause() -> None:
    """English "called" is the same for one man and for many; German is not."""
    relative = Clause(VERB["see"], "past", object=phrase("the dog"), gap="subject")
    call = Clause(VERB["call"], "past", replace(phrase("the man"), relative=relative), phrase("the cat"))
    assert told(Main(call)) == (
        "The man that saw the dog called the cat.",
        "Der Mann, der den Hund sah, rief die Katze.",
    )
    many = replace(call, subject=replace(phrase("the man", plural=True), relative=relative))
    assert told(Main(many)) == (
        "The men that saw the dog called the cat.",
        "Die Männer, die den Hund sahen, riefen die Katze.",
    )


def test_relative_pronoun_takes_the_case_of_its_gap() -> None:
    gap = Clause(VERB["see"], "past", subject=phrase("the man"), gap="object")
    sleep = Clause(VERB["sleep"], "past", replace(phrase("the dog"), relative=gap))
    assert told(Main(sleep)) == ("The dog that the man saw slept.", "Der Hund, den der Mann sah, schlief.")
    help_gap = replace(gap, verb=VERB["listen to"])
    dative = replace(sleep, subject=replace(phrase("the dog", plural=True), relative=help_gap))
    assert told(Main(dative)) == (
        "The dogs that the man listened to slept.",
        "Die Hunde, denen der Mann zuhörte, schliefen.",
    )


def test_a_relative_clause_at_the_end_keeps_one_final_mark_and_one_comma() -> None:
    relative = Clause(VERB["see"], "past", object=phrase("the dog"), gap="subject")
    call = Clause(VERB["call"], "past", phrase("the cat"), replace(phrase("the man"), relative=relative))
    assert told(Main(call), Main(CAT_SLEPT), Main(MAN_SAW_DOG), coordinators=("and", "but")) == (
        "The cat called the man that saw the dog, and the cat slept, but the old man saw the dog.",
        "Die Katze rief den Mann, der den Hund sah, und die Katze schlief, aber der alte Mann sah den Hund.",
    )
    assert told(Main(call)) == (
        "The cat called the man that saw the dog.",
        "Die Katze rief den Mann, der den Hund sah.",
    )


def test_recipient_precedes_what_is_given() -> None:
    give = Clause(VERB["show"], "past", phrase("the king"), phrase("the young cow"), phrase("the wolf", plural=True))
    assert told(Main(give)) == (
        "The king showed the wolves the young cow.",
        "Der König zeigte den Wölfen die junge Kuh.",
    )
    assert told(Main(replace(give, verb=VERB["introduce"]))) == (
        "The king introduced the young cow to the wolves.",
        "Der König stellte den Wölfen die junge Kuh vor.",
    )


def test_adverbs_precede_noun_objects_and_follow_pronoun_objects() -> None:
    saw = replace(MAN_SAW_DOG, edge_adverb=ADVERB["yesterday"], middle_adverb=ADVERB["often"])
    assert told(Main(saw)) == ("The old man often saw the dog yesterday.", "Der alte Mann sah gestern oft den Hund.")
    assert told(Main(replace(saw, object=PRONOUN["he"]))) == (
        "The old man often saw him yesterday.",
        "Der alte Mann sah ihn gestern oft.",
    )
    introduce = Clause(VERB["introduce"], "present", PRONOUN["we"], PRONOUN["they"], PRONOUN["she"])
    assert told(Main(introduce)) == ("We introduce them to her.", "Wir stellen sie ihr vor.")


def test_coordinated_subjects_are_plural_and_dative_plurals_end_in_n() -> None:
    both = Coordination(phrase("the cat"), phrase("a man"))
    assert told(Main(Clause(VERB["help"], "present", both, phrase("this child", plural=True)))) == (
        "The cat and a man help these children.",
        "Die Katze und ein Mann helfen diesen Kindern.",
    )


def test_questions_put_the_auxiliary_first() -> None:
    assert told(Main(replace(MAN_SAW_DOG, tense=AUXILIARY["has"]), question=True)) == (
        "Has the old man seen the dog?",
        "Hat der alte Mann den Hund gesehen?",
    )


@pytest.mark.parametrize(
    ("words", "nominative", "accusative", "dative"),
    [
        ("the old man", "Der alte Mann", "den alten Mann", "dem alten Mann"),
        ("an old man", "Ein alter Mann", "einen alten Mann", "einem alten Mann"),
        ("this old woman", "Diese alte Frau", "diese alte Frau", "dieser alten Frau"),
        ("my old woman", "Meine alte Frau", "meine alte Frau", "meiner alten Frau"),
        ("every small child", "Jedes kleine Kind", "jedes kleine Kind", "jedem kleinen Kind"),
        ("my small evil child", "Mein kleines böses Kind", "mein kleines böses Kind", "meinem kleinen bösen Kind"),
    ],
)
def test_determiners_and_adjectives_agree(words: str, nominative: str, accusative: str, dative: str) -> None:
    someone = phrase(words.replace("an ", "a ", 1) if words.startswith("an ") else words)
    see = Clause(VERB["see"], "present", someone, someone)
    english = words[0].upper() + words[1:]
    assert told(Main(see)) == (f"{english} sees {words}.", f"{nominative} sieht {accusative}.")
    assert told(Main(replace(see, verb=VERB["help"])))[1] == f"{nominative} hilft {dative}."


# The same sentences read independently of the tree: German commas and a list of finite verbs


def finite_forms() -> set[str]:
    forms = {form for auxiliary in AUXILIARY.values() for form in (auxiliary.german, auxiliary.german_plural)}
    for verb in lexicon.VERBS:
        forms |= {verb.present, verb.past, verb.past_plural, verb.infinitive}
    return forms


def test_verbs_stand_where_german_wants_them_in_the_generated_corpus(corpus: dict[str, list[Pair]]) -> None:
    """A subordinate or relative clause ends in a finite verb (with its particle); the main clause goes on with one
    after a fronted adverb, a fronted clause, or a relative clause of its subject.

    An article after a comma opens a relative clause, except right after one: there the outer clause goes on. A
    subordinate clause broken by a relative clause is not read.
    """
    finite = finite_forms()
    last = {verb.particle + form for verb in lexicon.VERBS for form in finite}
    subordinators = {"dass"} | {item.german for item in lexicon.SUBORDINATORS}
    articles = {form for forms in lexicon.RELATIVE_PRONOUNS.values() for form in forms}
    fronted = {adverb.german for adverb in (*lexicon.FRONT_ADVERBS, *lexicon.PAST_EDGE_ADVERBS, ADVERB["now"])}
    counts: dict[str, int] = defaultdict(int)
    for pair in corpus["train"] + corpus["long"]:
        parts = [part.split() for part in re.split(r", |[.?]$", pair.target) if part]
        parts[0][0] = parts[0][0][0].lower() + parts[0][0][1:]
        relative = [False] * (len(parts) + 1)
        for number, part in enumerate(parts[1:], start=1):
            relative[number] = part[0] in articles and not relative[number - 1]
        for number, part in enumerate(parts):
            if relative[number]:
                assert part[-1] in last, pair
                counts["relative"] += 1
            if part[0] in subordinators and not relative[number + 1]:
                assert part[-1] in last, pair
                counts["subordinate"] += 1
        if parts[0][0] in fronted:
            assert parts[0][1] in finite, pair
            counts["fronted adverb"] += 1
        elif parts[0][0] in subordinators and not relative[1]:
            assert parts[1][0] in finite, pair
            counts["fronted clause"] += 1
        elif relative[1] and parts[0][0] not in subordinators and not finite & set(parts[0]):
            assert parts[2][0] in finite, pair
            counts["relative clause of the subject"] += 1
    assert len(counts) == 5 and min(counts.values()) > 1000, dict(counts)


# The corpus as a whole


def test_counts_and_keys(corpus: dict[str, list[Pair]]) -> None:
    sizes = {name: len(pairs) for name, pairs in corpus.items()}
    assert sizes == {"train": 30_000, "validation": 1_000, "test": 1_000, "long": 500}


def test_no_source_occurs_twice_within_or_across_splits(corpus: dict[str, list[Pair]]) -> None:
    sources = [pair.source for pairs in corpus.values() for pair in pairs]
    assert len(set(sources)) == len(sources)


def test_every_long_sentence_is_longer_than_all_others_in_both_languages(corpus: dict[str, list[Pair]]) -> None:
    def lengths(names: tuple[str, ...]) -> list[int]:
        return [len(text.split()) for name in names for pair in corpus[name] for text in (pair.source, pair.target)]

    ordinary, long = lengths(("train", "validation", "test")), lengths(("long",))
    assert (min(ordinary), max(ordinary)) == synthetic.ORDINARY_WORDS
    assert max(ordinary) < min(long) and max(long) <= 2.5 * max(ordinary)
    assert 12 < sum(ordinary) / len(ordinary) < 14


def test_every_word_outside_train_occurs_in_train(corpus: dict[str, list[Pair]]) -> None:
    def words(pairs: list[Pair], language: str) -> set[str]:
        return {word for pair in pairs for word in re.findall(r"\w+", getattr(pair, language).lower())}

    for language in ("source", "target"):
        train = words(corpus["train"], language)
        for name in ("validation", "test", "long"):
            assert words(corpus[name], language) <= train


def test_sentences_are_raw_text(corpus: dict[str, list[Pair]]) -> None:
    shape = re.compile(r"[A-ZÄÖÜ]\w*(,? \w+)*[.?]")
    for pairs in corpus.values():
        for pair in pairs:
            assert shape.fullmatch(pair.source) and shape.fullmatch(pair.target), pair
            assert pair.source[-1] == pair.target[-1]


# Determinism


def digest(seed: int) -> str:
    return hashlib.sha256(repr(generate(seed=seed, **SMALL_SIZES)).encode()).hexdigest()


def test_same_arguments_give_the_same_corpus_in_another_process_with_another_hash_seed() -> None:
    program = (
        "import hashlib; from rpr.data.synthetic import generate;"
        f"print(hashlib.sha256(repr(generate(seed=7, **{SMALL_SIZES})).encode()).hexdigest())"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == digest(7)
    assert digest(7) != digest(8)


def test_more_training_pairs_change_no_other_split_and_keep_the_first_ones() -> None:
    few, many = generate(seed=3, **SMALL_SIZES), generate(seed=3, **{**SMALL_SIZES, "num_train": 600})
    assert few["train"] == many["train"][:200] and len(many["train"]) == 600
    assert all(few[name] == many[name] for name in ("validation", "test", "long"))


def test_first_sentences_have_not_changed() -> None:
    """An alarm only: a frozen output. If it changes, so has every corpus, and earlier results no longer compare."""
    corpus = generate(seed=1, num_train=1, num_validation=0, num_test=0, num_long=0)
    assert corpus["train"] == [
        Pair(
            "My thief and a young uncle will thank every servant.",
            "Mein Dieb und ein junger Onkel werden jedem Diener danken.",
        )
    ]


# What a bag of words cannot know


@pytest.fixture
def tiny_lexicon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nouns and one word of every other kind, so that random trees meet again and again."""
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
def test_the_source_determines_the_target_but_its_bag_of_words_does_not() -> None:
    choose = Chooser("tiny")
    targets: dict[str, set[str]] = defaultdict(set)
    targets_of_bag: dict[tuple[str, ...], set[str]] = defaultdict(set)
    num_trees = 20_000
    for _ in range(num_trees):
        pair = translate(random_sentence(choose, 1))
        targets[pair.source].add(pair.target)
        targets_of_bag[tuple(sorted(pair.source.lower().split()))].add(pair.target)
    assert num_trees - len(targets) > 1_000, "the trees hardly repeat: the test shows nothing"
    assert all(len(found) == 1 for found in targets.values())
    assert sum(len(found) > 1 for found in targets_of_bag.values()) > 100


def test_swapping_subject_and_object_keeps_the_english_bag_and_changes_the_german_words() -> None:
    man, dog = phrase("the old man"), phrase("the strong dog")
    one = told(Main(Clause(VERB["see"], "past", man, dog)))
    other = told(Main(Clause(VERB["see"], "past", dog, man)))
    assert sorted(one[0].lower().strip(".").split()) == sorted(other[0].lower().strip(".").split())
    assert one[1] == "Der alte Mann sah den starken Hund."
    assert other[1] == "Der starke Hund sah den alten Mann."


# Messages


@pytest.mark.usefixtures("tiny_lexicon")
def test_an_exhausted_grammar_says_what_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "ORDINARY_WORDS", (2, 3))  # few enough to be exhausted at once
    message = (
        r"^num_test: 1000000 is more than the grammar's \d+ distinct sentences of 2 to 3 words;"
        r" choose num_test = \d+ or fewer, or add words to rpr/data/synthetic_lexicon\.py$"
    )
    with pytest.raises(ValueError, match=message):
        generate(seed=1, num_train=0, num_validation=0, num_test=1_000_000, num_long=0)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_long: -1 is negative; choose 0 or more$"):
        generate(seed=1, num_train=0, num_validation=0, num_test=0, num_long=-1)


# The tables


def test_no_english_word_has_two_translations_in_one_table() -> None:
    for table in (lexicon.NOUNS + lexicon.PLACES, lexicon.ADJECTIVES, tuple(dict.fromkeys(ADVERBS))):
        assert len({entry.english for entry in table}) == len(table)
    assert len(VERB) == len(lexicon.VERBS)
    assert all(noun.english != noun.english_plural and noun.gender in "mfn" for noun in NOUN.values())
    assert {verb.frame for verb in lexicon.VERBS} == {"none", "accusative", "dative", "double", "to", "clause"}
