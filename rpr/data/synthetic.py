"""A synthetic English-German corpus in which word order matters: a seeded generator over a synchronous grammar.

The corpus is invented, not collected. It exists so that a small model on a CPU shows, in minutes, what position
representations do: one tree is written out twice, in English and in German order, so the source determines the target.

- One pool of living beings fills every role, and any adjective may stand by any noun: a bag of words does not tell
  who did what.
- Verb second in main clauses, with inversion after a fronted adverb, place or clause; verb first in questions.
- Verb last in subordinate and relative clauses; participle, infinitive and separable particle at the end ("ruft ...
  an", rejoined in "anruft").
- Agreement at a distance: English past tense hides the number that German needs, across an embedded relative clause.
- Accusative and dative objects, also as the gap of a relative clause; the recipient before what is given; pronouns and
  adverbs before both.

Rules that leave the English without a second reading: ", and" and ", but" join main clauses, never subordinate ones;
relative clauses are not nested and do not end in an adverb or a place, and neither follows an object with a relative
clause. The English past tense is always the German preterite. The sentences make no sense beyond grammar.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic_lexicon import Adverb, Auxiliary, Case, Conjunction, Frame, Preposition, Pronoun, Verb

ORDINARY_WORDS = (6, 22)  # fewest and most words of a sentence of train, validation and test, either language
LONG_WORDS = (26, 50)
MAX_FAILURES_IN_A_ROW = 5_000  # 3 trees in 4 are kept while new ones are left; so long a row means that none is
GENDERS = "mfn"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation: raw text, punctuation attached."""

    source: str
    target: str


# The tree


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjectives, noun, and at most one of: a companion ("with the dog"), a relative clause."""

    determiner: lexicon.Determiner
    noun: lexicon.Noun
    plural: bool = False
    adjectives: tuple[lexicon.Adjective, ...] = ()
    companion: PrepositionalPhrase | None = None
    relative: Clause | None = None


@dataclass(frozen=True)
class Coordination:
    """Two plain noun phrases joined by "and": plural for the verb."""

    first: NounPhrase
    second: NounPhrase


@dataclass(frozen=True)
class PrepositionalPhrase:
    preposition: Preposition
    noun_phrase: NounPhrase


Nominal = NounPhrase | Coordination | Pronoun


@dataclass(frozen=True)
class Clause:
    """A verb with what belongs to it. In a relative clause `gap` names the antecedent's role; that field is None."""

    verb: Verb
    tense: Literal["present", "past"] | Auxiliary
    subject: Nominal | None = None
    object: Nominal | None = None
    recipient: Nominal | None = None
    middle_adverb: Adverb | None = None
    place: PrepositionalPhrase | None = None
    edge_adverb: Adverb | None = None
    gap: Literal["subject", "object"] | None = None


@dataclass(frozen=True)
class Subordinate:
    """A clause under a conjunction; `tail` is a further one under it."""

    conjunction: Conjunction
    clause: Clause
    tail: Subordinate | None = None


@dataclass(frozen=True)
class Main:
    """A main clause; `front` stands before its subject in English, before its finite verb in German."""

    clause: Clause
    front: Adverb | PrepositionalPhrase | Subordinate | None = None
    tail: Subordinate | None = None
    question: bool = False


@dataclass(frozen=True)
class Sentence:
    """Main clauses; `coordinators[i]` stands between clause i and clause i + 1."""

    mains: tuple[Main, ...]
    coordinators: tuple[Conjunction, ...] = ()


# English and German, side by side


def translate(sentence: Sentence) -> Pair:
    """The sentence in both languages."""
    english, german = _english_main(sentence.mains[0]), _german_main(sentence.mains[0])
    for coordinator, main in zip(sentence.coordinators, sentence.mains[1:], strict=True):
        english += [",", coordinator.english, *_english_main(main)]
        german += [",", coordinator.german, *_german_main(main)]
    mark = "?" if sentence.mains[0].question else "."
    return Pair(_raw_text(english, mark), _raw_text(german, mark))


def _raw_text(tokens: list[str], mark: str) -> str:
    """Commas attached to the word before; two that meet are one, and one that meets the final mark is none."""
    words = [token for token in tokens if token]
    kept = [word for word, following in zip(words, [*words[1:], ","], strict=True) if (word, following) != (",", ",")]
    text = " ".join(kept).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _is_plural(nominal: Nominal) -> bool:
    return isinstance(nominal, Coordination) or nominal.plural


def _english_nominal(nominal: Nominal | None, *, subject: bool = False) -> list[str]:
    if nominal is None:
        return []
    if isinstance(nominal, Pronoun):
        return [nominal.english if subject else nominal.english_object]
    if isinstance(nominal, Coordination):
        return [*_english_nominal(nominal.first), "and", *_english_nominal(nominal.second)]
    words = [adjective.english for adjective in nominal.adjectives]
    words.append(nominal.noun.english_plural if nominal.plural else nominal.noun.english)
    determiner = nominal.determiner.english_plural if nominal.plural else nominal.determiner.english
    assert determiner is not None, f"{nominal.determiner.english}: has no plural"
    words.insert(0, "an" if determiner == "a" and words[0][0] in "aeiou" else determiner)
    if nominal.relative is not None:
        words += ["that", *_english_clause(nominal.relative, antecedent_plural=nominal.plural)]
    return words + _english_prepositional(nominal.companion)


def _german_nominal(nominal: Nominal | None, case: Case) -> list[str]:
    if nominal is None:
        return []
    if isinstance(nominal, Pronoun):
        return [nominal.german[case]]
    if isinstance(nominal, Coordination):
        return [*_german_nominal(nominal.first, case), "und", *_german_nominal(nominal.second, case)]
    column = 3 if nominal.plural else GENDERS.index(nominal.noun.gender)
    kind, stem = nominal.determiner.kind, nominal.determiner.german
    endings = {"the": lexicon.THE_FORMS, "this": lexicon.THIS_ENDINGS, "a": lexicon.A_ENDINGS}[kind]
    adjective_endings = lexicon.ADJECTIVE_ENDINGS_AFTER_A if kind == "a" else lexicon.ADJECTIVE_ENDINGS
    words = [stem + endings[case][column]]
    words += [adjective.german + adjective_endings[case][column] for adjective in nominal.adjectives]
    noun = nominal.noun.german_plural if nominal.plural else nominal.noun.german
    words.append(noun + "n" if nominal.plural and case == "dative" and noun[-1] not in "ns" else noun)
    if nominal.relative is not None:
        clause = nominal.relative
        gap_case: Case = "nominative" if clause.gap == "subject" else _object_case(clause.verb)
        pronoun = lexicon.RELATIVE_PRONOUNS[gap_case][column]
        words += [",", pronoun, *_german_verb_last(clause, antecedent_plural=nominal.plural), ","]
    return words + _german_prepositional(nominal.companion)


def _english_prepositional(phrase: PrepositionalPhrase | None) -> list[str]:
    return [] if phrase is None else [phrase.preposition.english, *_english_nominal(phrase.noun_phrase)]


def _german_prepositional(phrase: PrepositionalPhrase | None) -> list[str]:
    if phrase is None:
        return []
    words = [phrase.preposition.german, *_german_nominal(phrase.noun_phrase, phrase.preposition.case)]
    return ["im", *words[2:]] if words[:2] == ["in", "dem"] else words


def _english_verb(clause: Clause, antecedent_plural: bool) -> tuple[list[str], str]:
    """Auxiliary (none or one word) and lexical verb."""
    plural = antecedent_plural if clause.subject is None else _is_plural(clause.subject)
    verb, tense = clause.verb, clause.tense
    if isinstance(tense, Auxiliary):
        lexical = verb.english_participle if tense.takes == "participle" else verb.english
        return [tense.english_plural if plural else tense.english], lexical
    if tense == "past":
        return [], verb.english_past
    return [], verb.english if plural else verb.english_present


def _english_clause(clause: Clause, *, antecedent_plural: bool = False, question: bool = False) -> list[str]:
    """Subject, verb, objects, place, time; in a question the auxiliary comes first."""
    verb = clause.verb
    auxiliary, lexical = _english_verb(clause, antecedent_plural)
    subject = _english_nominal(clause.subject, subject=True)
    words = [*auxiliary, *subject] if question else [*subject, *auxiliary]
    words += [*_adverb(clause.middle_adverb, "english"), lexical]
    if verb.frame == "double":
        words += _english_nominal(clause.recipient)
    words += [verb.before, *_english_nominal(clause.object), verb.after]
    if verb.frame == "to":
        words += ["to", *_english_nominal(clause.recipient)]
    return words + _english_prepositional(clause.place) + _adverb(clause.edge_adverb, "english")


def _german_verb(clause: Clause, antecedent_plural: bool) -> tuple[str, str, str]:
    """Finite verb in second place, what it leaves at the end, and both together as a verb-last clause has them."""
    plural = antecedent_plural if clause.subject is None else _is_plural(clause.subject)
    verb, tense = clause.verb, clause.tense
    if isinstance(tense, Auxiliary):
        finite = tense.german_plural if plural else tense.german
        last = verb.particle + (verb.participle if tense.takes == "participle" else verb.infinitive)
        return finite, last, f"{last} {finite}"
    finite = verb.german_finite(tense, plural)
    return finite, verb.particle, verb.particle + finite


def _object_case(verb: Verb) -> Case:
    return "dative" if verb.frame == "dative" else "accusative"


def _german_middle(clause: Clause) -> list[str]:
    """Between the verbs: pronouns, adverbs, recipient, object, place."""
    recipient = _german_nominal(clause.recipient, "dative")
    direct = _german_nominal(clause.object, _object_case(clause.verb))
    pronouns: list[str] = []
    if isinstance(clause.object, Pronoun):
        pronouns, direct = direct, []
    if isinstance(clause.recipient, Pronoun):
        pronouns, recipient = pronouns + recipient, []
    adverbs = _adverb(clause.edge_adverb, "german") + _adverb(clause.middle_adverb, "german")
    return pronouns + adverbs + recipient + direct + _german_prepositional(clause.place)


def _german_verb_last(clause: Clause, *, antecedent_plural: bool = False) -> list[str]:
    _, _, together = _german_verb(clause, antecedent_plural)
    return [*_german_nominal(clause.subject, "nominative"), *_german_middle(clause), together]


def _adverb(adverb: Adverb | None, language: Literal["english", "german"]) -> list[str]:
    return [] if adverb is None else [getattr(adverb, language)]


def _english_main(main: Main) -> list[str]:
    front = _front(main.front, "english")
    return front + _english_clause(main.clause, question=main.question) + _english_subordinate(main.tail)


def _german_main(main: Main) -> list[str]:
    """Verb second: after the front if there is one, else after the subject; first in a question."""
    finite, last, _ = _german_verb(main.clause, antecedent_plural=False)
    subject = _german_nominal(main.clause.subject, "nominative")
    front = _front(main.front, "german")
    first = [*front, finite, *subject] if front or main.question else [*subject, finite]
    tail = [",", *_german_subordinate(main.tail)] if main.tail else []
    return [*first, *_german_middle(main.clause), last, *tail]


def _front(
    front: Adverb | PrepositionalPhrase | Subordinate | None, language: Literal["english", "german"]
) -> list[str]:
    if isinstance(front, Subordinate):
        words = _english_subordinate(front) if language == "english" else _german_subordinate(front)
        return [*words, ","]
    if isinstance(front, PrepositionalPhrase):
        return _english_prepositional(front) if language == "english" else _german_prepositional(front)
    return _adverb(front, language)


def _english_subordinate(subordinate: Subordinate | None) -> list[str]:
    if subordinate is None:
        return []
    return [
        subordinate.conjunction.english,
        *_english_clause(subordinate.clause),
        *_english_subordinate(subordinate.tail),
    ]


def _german_subordinate(subordinate: Subordinate) -> list[str]:
    tail = [",", *_german_subordinate(subordinate.tail)] if subordinate.tail else []
    return [subordinate.conjunction.german, *_german_verb_last(subordinate.clause), *tail]


# Random trees


class Chooser:
    """Random choices, by `random()` alone: its sequence is the only one that Python promises never to change."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random.random() * len(items))]


# How often each frame is drawn: more often where there are more noun phrases to confuse.
FRAMES: tuple[Frame, ...] = (*("accusative",) * 9, *("dative",) * 3, *("double",) * 3, *("to",) * 1, *("none",) * 3)
RELATIVE_FRAMES: tuple[Frame, ...] = (*("accusative",) * 4, *("dative",) * 2)


def random_sentence(choose: Chooser, num_clauses: int) -> Sentence:
    """A tree with `num_clauses` clauses, all in one time, past or not; relative clauses are not counted."""
    past = choose.chance(0.6)
    if num_clauses <= 2 and choose.chance(0.06):
        return Sentence((_random_main(choose, past, num_clauses - 1, question=True),))
    sizes: list[int] = []
    while sum(sizes) < num_clauses:
        sizes.append(min(choose.pick((1, 2, 2, 3)), num_clauses - sum(sizes)))
    mains = tuple(_random_main(choose, past, size - 1) for size in sizes)
    return Sentence(mains, tuple(choose.pick(lexicon.COORDINATORS) for _ in mains[1:]))


def _random_main(choose: Chooser, past: bool, num_subordinates: int, question: bool = False) -> Main:
    front: Adverb | PrepositionalPhrase | Subordinate | None = None
    if not question and num_subordinates and choose.chance(0.35):
        front = Subordinate(choose.pick(lexicon.SUBORDINATORS), _random_clause(choose, past))
        num_subordinates -= 1
    elif not question and choose.chance(0.45):
        adverbs = lexicon.FRONT_ADVERBS + (lexicon.PAST_EDGE_ADVERBS if past else lexicon.NONPAST_EDGE_ADVERBS)
        front = _random_place(choose) if choose.chance(0.25) else choose.pick(adverbs)
    complement = num_subordinates > 0 and choose.chance(0.5)
    clause = _random_clause(choose, past, complement=complement, edges=front is None, question=question)
    return Main(clause, front, _random_tail(choose, past, num_subordinates, complement), question)


def _random_tail(choose: Chooser, past: bool, num_subordinates: int, complement: bool) -> Subordinate | None:
    if not num_subordinates:
        return None
    conjunction = lexicon.THAT if complement else choose.pick(lexicon.SUBORDINATORS)
    next_complement = num_subordinates > 1 and choose.chance(0.5)
    clause = _random_clause(choose, past, complement=next_complement)
    return Subordinate(conjunction, clause, _random_tail(choose, past, num_subordinates - 1, next_complement))


def _random_clause(
    choose: Chooser, past: bool, *, complement: bool = False, edges: bool = True, question: bool = False
) -> Clause:
    """Not a relative clause; `complement`: its verb takes "that ..."; `edges`: it may end in a place or adverb."""
    verb = _random_verb(choose, "clause" if complement else choose.pick(FRAMES))
    direct = recipient = None
    if verb.frame in ("double", "to"):
        recipient = _random_nominal(choose, relative=0, plain=True)
        direct = _random_nominal(choose, relative=0, plain=True)
        if verb.frame == "double" and isinstance(direct, Pronoun):
            direct = _random_noun_phrase(choose)  # "gave the man him" is not English
    elif verb.frame in ("accusative", "dative"):
        direct = _random_nominal(choose, relative=0 if verb.after else 0.18)
    time_adverbs = lexicon.PAST_EDGE_ADVERBS if past else lexicon.NONPAST_EDGE_ADVERBS
    edges = edges and not complement and not (isinstance(direct, NounPhrase) and direct.relative)
    return Clause(
        verb,
        _random_tense(choose, past, auxiliary=1.0 if question else 0.35),
        _random_nominal(choose, relative=0.2),
        direct,
        recipient,
        middle_adverb=choose.pick(lexicon.MIDDLE_ADVERBS) if choose.chance(0.1) else None,
        place=_random_place(choose) if edges and choose.chance(0.12) else None,
        edge_adverb=choose.pick(time_adverbs) if edges and choose.chance(0.2) else None,
    )


def _random_relative(choose: Chooser) -> Clause:
    """A clause with one gap, in a time of its own: "that saw the dog" or "that the dog saw"."""
    verb = _random_verb(choose, choose.pick(RELATIVE_FRAMES))
    tense = _random_tense(choose, past=choose.chance(0.6), auxiliary=0.25)
    other = choose.pick(lexicon.PRONOUNS) if choose.chance(0.1) else _random_noun_phrase(choose)
    adverb = choose.pick(lexicon.MIDDLE_ADVERBS) if choose.chance(0.08) else None
    if choose.chance(0.5):
        return Clause(verb, tense, object=other, middle_adverb=adverb, gap="subject")
    return Clause(verb, tense, subject=other, middle_adverb=adverb, gap="object")


def _random_verb(choose: Chooser, frame: Frame) -> Verb:
    return choose.pick([verb for verb in lexicon.VERBS if verb.frame == frame])


def _random_tense(choose: Chooser, past: bool, auxiliary: float) -> Literal["present", "past"] | Auxiliary:
    if choose.chance(auxiliary):
        return choose.pick(lexicon.PAST_AUXILIARIES if past else lexicon.NONPAST_AUXILIARIES)
    return "past" if past else "present"


def _random_nominal(choose: Chooser, *, relative: float, plain: bool = False) -> Nominal:
    """`relative` is the probability of a relative clause; `plain` allows pronouns and bare noun phrases only."""
    if choose.chance(0.1):
        return choose.pick(lexicon.PRONOUNS)
    noun_phrase = _random_noun_phrase(choose)
    if plain:
        return noun_phrase
    if choose.chance(relative):
        return replace(noun_phrase, relative=_random_relative(choose))
    if choose.chance(0.08):
        companion = PrepositionalPhrase(choose.pick(lexicon.NOUN_PREPOSITIONS), _random_noun_phrase(choose))
        return replace(noun_phrase, companion=companion)
    return Coordination(noun_phrase, _random_noun_phrase(choose)) if choose.chance(0.06) else noun_phrase


def _random_noun_phrase(choose: Chooser) -> NounPhrase:
    return _dress(choose, choose.pick(lexicon.NOUNS), plural=choose.chance(0.35), adjectives=(0, 0, 0, 1, 1, 2))


def _random_place(choose: Chooser) -> PrepositionalPhrase:
    place = _dress(choose, choose.pick(lexicon.PLACES), plural=choose.chance(0.15), adjectives=(0, 0, 0, 1))
    return PrepositionalPhrase(choose.pick(lexicon.PLACE_PREPOSITIONS), place)


def _dress(choose: Chooser, noun: lexicon.Noun, *, plural: bool, adjectives: tuple[int, ...]) -> NounPhrase:
    others = lexicon.OTHER_DETERMINERS if plural else lexicon.OTHER_DETERMINERS + lexicon.SINGULAR_DETERMINERS
    determiner = lexicon.THE if choose.chance(0.55) else choose.pick(others)
    words: list[lexicon.Adjective] = []
    for _ in range(choose.pick(adjectives)):
        words.append(choose.pick([adjective for adjective in lexicon.ADJECTIVES if adjective not in words]))
    return NounPhrase(determiner, noun, plural, tuple(words))


# The corpus


def generate(*, seed: int, num_train: int, num_validation: int, num_test: int, num_long: int) -> dict[str, list[Pair]]:
    """Pairs for "train", "validation", "test" and "long", no source sentence twice.

    Every sentence of "long" is longer, in words of either language, than all of the others. The splits are drawn one
    after the other from random sequences of their own, train last: num_train changes none of the other three, and
    fewer pairs of a split are the first of more.

    Raises:
        ValueError: if a number is negative, or the grammar has not as many distinct sentences as asked for.
    """
    wanted = {"test": num_test, "validation": num_validation, "long": num_long, "train": num_train}
    for name, number in wanted.items():
        if number < 0:
            raise ValueError(f"num_{name}: {number} is negative; choose 0 or more")
    seen: set[str] = set()
    splits = {name: _distinct_pairs(seed, name, number, seen) for name, number in wanted.items()}
    return {name: splits[name] for name in ("train", "validation", "test", "long")}


def _distinct_pairs(seed: int, name: str, number: int, seen: set[str]) -> list[Pair]:
    """`number` pairs of the split's lengths whose sources are not in `seen`, which they join."""
    choose = Chooser(f"{seed} {name}")  # a text is hashed by SHA-512: the same in every process
    fewest, most = LONG_WORDS if name == "long" else ORDINARY_WORDS
    nums_clauses = (4, 5) if name == "long" else (1, 2)
    pairs: list[Pair] = []
    failures = 0
    while len(pairs) < number:
        pair = translate(random_sentence(choose, choose.pick(nums_clauses)))
        lengths = len(pair.source.split()), len(pair.target.split())
        if fewest <= min(lengths) and max(lengths) <= most and pair.source not in seen:
            seen.add(pair.source)
            pairs.append(pair)
            failures = 0
            continue
        failures += 1
        if failures >= MAX_FAILURES_IN_A_ROW:
            raise ValueError(
                f"num_{name}: {number} is more than the grammar's {len(pairs)} distinct sentences of {fewest} to {most}"
                f" words; choose num_{name} = {len(pairs)} or fewer, or add words to rpr/data/synthetic_lexicon.py"
            )
    return pairs
