"""A synthetic English-German corpus in which word order matters: a seeded generator over a synchronous grammar.

The corpus is invented, not collected. It exists so that a small model on a CPU shows, in minutes, what position
representations do: one sentence is written in English and in German order, so the source determines the target.

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

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from rpr.data import synthetic_grammar as grammar
from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic_grammar import ABSENT, NOTHING, Clause, Pair
from rpr.data.synthetic_lexicon import Auxiliary, Frame, Nominal, Verb, Word

# Part of the key of caches and records. Raise it ("2", "3", ...) with every change to what `generate` returns;
# tests/golden/generators.json then needs the new digest. The first version is named by the sha256 of its three files.
VERSION = (
    "4a02e28c2ffd6e25246755234bc9ce4f9583f921ed5a26b6a6d04632c5600fae\n"
    "613b04047b303155c9451d91695cc2fe3e2fd49188311113566b886078ecf196\n"
    "9f1db92a858a6d8caccfc97f4d39a6dcadce52f6ee1c2ce273c3f4e1c68839f1"
)
ORDINARY_WORDS = (6, 22)  # fewest and most words of a sentence of train, validation and test, either language
LONG_WORDS = (26, 50)
MAX_FAILURES_IN_A_ROW = 5_000  # 3 sentences in 4 are kept while new ones are left; so long a row means that none is

Item = TypeVar("Item")


# Random sentences


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


def random_sentence(choose: Chooser, num_clauses: int) -> Pair:
    """A sentence of `num_clauses` clauses, all in one time, past or not; relative clauses are not counted."""
    past = choose.chance(0.6)
    if num_clauses <= 2 and choose.chance(0.06):
        return grammar.sentence([_random_main(choose, past, num_clauses - 1, question=True)], mark="?")
    sizes: list[int] = []
    while sum(sizes) < num_clauses:
        sizes.append(min(choose.pick((1, 2, 2, 3)), num_clauses - sum(sizes)))
    mains = [_random_main(choose, past, size - 1) for size in sizes]
    return grammar.sentence(mains, [choose.pick(lexicon.COORDINATORS) for _ in mains[1:]])


def _random_main(choose: Chooser, past: bool, num_subordinates: int, question: bool = False) -> Word:
    front = NOTHING
    if not question and num_subordinates and choose.chance(0.35):
        front = grammar.fronted(grammar.subordinate(choose.pick(lexicon.SUBORDINATORS), _random_clause(choose, past)))
        num_subordinates -= 1
    elif not question and choose.chance(0.45):
        adverbs = lexicon.FRONT_ADVERBS + (lexicon.PAST_EDGE_ADVERBS if past else lexicon.NONPAST_EDGE_ADVERBS)
        front = _random_place(choose) if choose.chance(0.25) else choose.pick(adverbs)
    complement = num_subordinates > 0 and choose.chance(0.5)
    clause = _random_clause(choose, past, complement=complement, edges=front is NOTHING, question=question)
    tail = _random_tail(choose, past, num_subordinates, complement)
    return grammar.main(clause, front, tail, question=question)


def _random_tail(choose: Chooser, past: bool, num_subordinates: int, complement: bool) -> Word:
    if not num_subordinates:
        return NOTHING
    conjunction = lexicon.THAT if complement else choose.pick(lexicon.SUBORDINATORS)
    next_complement = num_subordinates > 1 and choose.chance(0.5)
    clause = _random_clause(choose, past, complement=next_complement)
    return grammar.subordinate(conjunction, clause, _random_tail(choose, past, num_subordinates - 1, next_complement))


def _random_clause(
    choose: Chooser, past: bool, *, complement: bool = False, edges: bool = True, question: bool = False
) -> Clause:
    """Not a relative clause; `complement`: its verb takes "that ..."; `edges`: it may end in a place or adverb."""
    verb = _random_verb(choose, "clause" if complement else choose.pick(FRAMES))
    direct = recipient = ABSENT
    if verb.frame in ("double", "to"):
        recipient, direct = _random_nominal(choose), _random_nominal(choose)
        if verb.frame == "double" and direct.pronoun:
            direct = _random_noun_phrase(choose)  # "gave the man him" is not English
    elif verb.frame in ("accusative", "dative"):
        direct = _random_nominal(choose, relative=0 if verb.after else 0.18)
    time_adverbs = lexicon.PAST_EDGE_ADVERBS if past else lexicon.NONPAST_EDGE_ADVERBS
    edges = edges and not complement and not direct.has_clause
    return Clause(
        verb,
        _random_tense(choose, past, auxiliary=1.0 if question else 0.35),
        _random_nominal(choose, relative=0.2),
        direct,
        recipient,
        middle_adverb=choose.pick(lexicon.MIDDLE_ADVERBS) if choose.chance(0.1) else NOTHING,
        place=_random_place(choose) if edges and choose.chance(0.12) else NOTHING,
        edge_adverb=choose.pick(time_adverbs) if edges and choose.chance(0.2) else NOTHING,
    )


def _random_relative(choose: Chooser) -> Clause:
    """A clause with one gap, in a time of its own: "that saw the dog" or "that the dog saw"."""
    verb = _random_verb(choose, choose.pick(RELATIVE_FRAMES))
    tense = _random_tense(choose, past=choose.chance(0.6), auxiliary=0.25)
    other = choose.pick(lexicon.PRONOUNS) if choose.chance(0.1) else _random_noun_phrase(choose)
    adverb = choose.pick(lexicon.MIDDLE_ADVERBS) if choose.chance(0.08) else NOTHING
    if choose.chance(0.5):
        return Clause(verb, tense, object=other, middle_adverb=adverb)
    return Clause(verb, tense, subject=other, middle_adverb=adverb)


def _random_verb(choose: Chooser, frame: Frame) -> Verb:
    return choose.pick([verb for verb in lexicon.VERBS if verb.frame == frame])


def _random_tense(choose: Chooser, past: bool, auxiliary: float) -> Literal["present", "past"] | Auxiliary:
    if choose.chance(auxiliary):
        return choose.pick(lexicon.PAST_AUXILIARIES if past else lexicon.NONPAST_AUXILIARIES)
    return "past" if past else "present"


def _random_nominal(choose: Chooser, *, relative: float | None = None) -> Nominal:
    """`relative` is the probability of a relative clause; None allows pronouns and bare noun phrases only."""
    if choose.chance(0.1):
        return choose.pick(lexicon.PRONOUNS)
    phrase = _random_noun_phrase(choose)
    if relative is None:
        return phrase
    if choose.chance(relative):
        return grammar.with_relative(phrase, _random_relative(choose))
    if choose.chance(0.08):
        preposition = choose.pick(lexicon.NOUN_PREPOSITIONS)
        return grammar.with_companion(phrase, grammar.prepositional(preposition, _random_noun_phrase(choose)))
    return grammar.coordination(phrase, _random_noun_phrase(choose)) if choose.chance(0.06) else phrase


def _random_noun_phrase(choose: Chooser) -> Nominal:
    return _dress(choose, choose.pick(lexicon.NOUNS), plural=choose.chance(0.35), adjectives=(0, 0, 0, 1, 1, 2))


def _random_place(choose: Chooser) -> Word:
    place = _dress(choose, choose.pick(lexicon.PLACES), plural=choose.chance(0.15), adjectives=(0, 0, 0, 1))
    return grammar.prepositional(choose.pick(lexicon.PLACE_PREPOSITIONS), place)


def _dress(choose: Chooser, noun: lexicon.Noun, *, plural: bool, adjectives: tuple[int, ...]) -> Nominal:
    others = lexicon.OTHER_DETERMINERS if plural else lexicon.OTHER_DETERMINERS + lexicon.SINGULAR_DETERMINERS
    determiner = lexicon.THE if choose.chance(0.55) else choose.pick(others)
    words: list[Word] = []
    for _ in range(choose.pick(adjectives)):
        words.append(choose.pick([adjective for adjective in lexicon.ADJECTIVES if adjective not in words]))
    return grammar.noun_phrase(determiner, noun, plural=plural, adjectives=words)


# The corpus


def generate(*, seed: int, num_train: int, num_validation: int, num_test: int, num_long: int) -> dict[str, list[Pair]]:
    """Pairs for "train", "validation", "test" and "long", no source sentence twice.

    Every sentence of "long" is longer, in words of either language, than all of the others. The splits are drawn one
    after the other from random sequences of their own, train last: num_train changes none of the other three, and fewer
    pairs of a split are the first of more. Raises ValueError if the grammar has not as many distinct sentences as
    asked for.
    """
    wanted = {"test": num_test, "validation": num_validation, "long": num_long, "train": num_train}
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
        pair = random_sentence(choose, choose.pick(nums_clauses))
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
                f" words; choose num_{name} = {len(pairs)} or fewer, or add words to rpr/data/synthetic_lexicon.tsv"
            )
    return pairs
