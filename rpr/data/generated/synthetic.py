"""The default corpus: a toy grammar that writes a sentence in English and in German at once, so that a small model on a
CPU shows in minutes what position representations do. It is invented, and makes no sense beyond grammar.

Word order alone says who did what: one pool of nouns fills every role, and any adjective may stand by any noun. German
has the verb last in subordinate and relative clauses, the participle last in main clauses, the auxiliary before the
subject after a fronted adverb, and marks the case of masculine nouns, which English tells by the order alone:

    today the dog that the old king saw has called a cat because the queen laughed
    heute hat der Hund , den der alte König gesehen hat , eine Katze gerufen , weil die Königin gelacht hat
"""

import random
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeVar

from pydantic import Field, PositiveInt

from rpr.validation import StrictModel

ORDINARY_WORDS = (6, 22)  # fewest and most words of a sentence of train, validation and test, either language
LONG_WORDS = (26, 50)
MAX_FAILURES_IN_A_ROW = 5_000  # half of the sentences are kept while new ones are left


def _entries(text: str) -> list[tuple[str, ...]]:
    return [tuple(entry.split("/")) for entry in text.split()]


# English, German, gender.
NOUNS = _entries("""
dog/Hund/m king/König/m wolf/Wolf/m painter/Maler/m uncle/Onkel/m doctor/Arzt/m thief/Dieb/m fox/Fuchs/m bird/Vogel/m
baker/Bäcker/m cat/Katze/f queen/Königin/f woman/Frau/f goat/Ziege/f nun/Nonne/f mouse/Maus/f aunt/Tante/f
duck/Ente/f witch/Hexe/f sister/Schwester/f child/Kind/n horse/Pferd/n girl/Mädchen/n pig/Schwein/n ghost/Gespenst/n
lamb/Lamm/n sheep/Schaf/n baby/Baby/n calf/Kalb/n chicken/Huhn/n
""")
# English past tense, German participle.
TRANSITIVE = _entries("""
saw/gesehen called/gerufen loved/geliebt found/gefunden asked/gefragt carried/getragen painted/gemalt hated/gehasst
praised/gelobt heard/gehört chased/gejagt kissed/geküsst pushed/gestoßen washed/gewaschen
""")
INTRANSITIVE = _entries("laughed/gelacht slept/geschlafen sang/gesungen danced/getanzt worked/gearbeitet cried/geweint")
ADJECTIVES = _entries("""
old/alt small/klein sad/traurig young/jung big/groß clever/klug stupid/dumm poor/arm wild/wild quiet/still tired/müd
friendly/freundlich
""")
ADVERBS = [
    ("today", "heute"), ("yesterday", "gestern"), ("often", "oft"), ("suddenly", "plötzlich"), ("here", "hier"),
    ("in the garden", "im Garten"), ("at night", "nachts"), ("behind the house", "hinter dem Haus"),
]  # fmt: skip
SUBORDINATORS = [("because", "weil"), ("while", "während"), ("although", "obwohl"), ("before", "bevor")]
COORDINATORS = [("and", "und"), ("but", "aber")]
# By gender, for subjects and for objects: only the masculine forms differ.
THE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das")}
A = {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")}
AFTER_A = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}  # endings of adjectives
SUBJECT, OBJECT = 0, 1
Item = TypeVar("Item")


class Pair(NamedTuple):
    source: str
    target: str


class Sentences:
    """Random sentences, by `random()` alone: its sequence is the only one that Python promises never to change."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random  # a text is hashed by SHA-512: the same in every process

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def sentence(self, num_clauses: int) -> Pair:
        """Main clauses, each with up to two subordinate ones behind it."""
        english, german = self.main_clause()
        within = 1
        for _ in range(num_clauses - 1):
            if within < 3 and self.chance(0.6):
                conjunction, clause, within = self.pick(SUBORDINATORS), self.verb_last(*self.noun_phrases()), within + 1
            else:
                conjunction, clause, within = self.pick(COORDINATORS), self.main_clause(), 1
            english = f"{english} {conjunction[0]} {clause.source}"
            german = f"{german.removesuffix(' ,')} , {conjunction[1]} {clause.target}"
        return Pair(english, german.removesuffix(" ,"))

    def main_clause(self) -> Pair:
        """The auxiliary second, and the participle last."""
        (subject, verb, object_), adverb = self.noun_phrases(), self.pick(ADVERBS) if self.chance(0.4) else ("", "")
        rest = f"{object_.target} {verb[1]}"
        if adverb[0] and self.chance(0.5):
            german = f"{adverb[1]} hat {subject.target} {rest}"
            return _pair(f"{adverb[0]} {subject.source} {verb[0]} {object_.source}", german)
        return _pair(
            f"{subject.source} {verb[0]} {object_.source} {adverb[0]}", f"{subject.target} hat {adverb[1]} {rest}"
        )

    def verb_last(self, subject: Pair, verb: tuple[str, ...], object_: Pair) -> Pair:
        """The auxiliary last, after the participle."""
        return _pair(f"{subject.source} {verb[0]} {object_.source}", f"{subject.target} {object_.target} {verb[1]} hat")

    def noun_phrases(self) -> tuple[Pair, tuple[str, ...], Pair]:
        """Subject, verb, and an object that may be empty."""
        subject = self.noun_phrase(SUBJECT, relative=0.25)
        if self.chance(0.2):
            return subject, self.pick(INTRANSITIVE), Pair("", "")
        return subject, self.pick(TRANSITIVE), self.noun_phrase(OBJECT, relative=0.15)

    def noun_phrase(self, case: int, relative: float = 0.0) -> Pair:
        """A noun with its article, up to two adjectives, and sometimes a relative clause with a gap of either case."""
        noun, adjectives = self.pick(NOUNS), list[tuple[str, ...]]()
        gender = noun[2]
        for _ in range(self.pick((0, 0, 0, 1, 1, 2))):
            adjectives.append(self.pick([adjective for adjective in ADJECTIVES if adjective not in adjectives]))
        definite = self.chance(0.6)
        article = "the" if definite else "an" if (adjectives or [noun])[0][0][0] in "aeiou" else "a"
        ending = ("en" if (gender, case) == ("m", OBJECT) else "e") if definite else AFTER_A[gender][case]
        english = " ".join([article, *(adjective[0] for adjective in adjectives), noun[0]])
        words = [(THE if definite else A)[gender][case], *(adjective[1] + ending for adjective in adjectives), noun[1]]
        german = " ".join(words)
        if self.chance(relative):
            gap, verb = self.pick((SUBJECT, OBJECT)), self.pick(TRANSITIVE)
            phrase = self.noun_phrase(OBJECT if gap == SUBJECT else SUBJECT)
            clause = f"{verb[0]} {phrase.source}" if gap == SUBJECT else f"{phrase.source} {verb[0]}"
            english = f"{english} that {clause}"
            german = f"{german} , {THE[gender][gap]} {phrase.target} {verb[1]} hat ,"
        return Pair(english, german)


def _pair(english: str, german: str) -> Pair:
    return Pair(" ".join(english.split()), " ".join(german.split()))


class SyntheticConfig(StrictModel):
    """Sizes of the generated corpus, in sentence pairs; all sources are distinct, within and across the splits. Every
    sentence of "long" is longer, in words of either language, than all of the others.
    """

    # Part of the key of caches and records. Raise it with every change to what `pairs` returns; tests/golden/
    # generators.json then needs the new digest.
    VERSION: ClassVar[str] = "toy grammar 1"

    seed: int = Field(ge=0)
    num_train: PositiveInt
    num_validation: PositiveInt
    num_test: PositiveInt
    num_long: PositiveInt

    def pairs(self) -> dict[str, list[Pair]]:
        """By split. Each is drawn from a random sequence of its own, train last: num_train changes none of the others,
        and fewer pairs of a split are the first of more. Raises ValueError if the grammar has not so many sentences.
        """
        seen, splits = set[str](), dict[str, list[Pair]]()
        for name in ("test", "validation", "long", "train"):
            splits[name] = self._distinct(name, getattr(self, f"num_{name}"), seen)
        return {name: splits[name] for name in ("train", "validation", "test", "long")}

    def _distinct(self, name: str, number: int, seen: set[str]) -> list[Pair]:
        """`number` pairs of the split's lengths whose sources are not in `seen`, which they join."""
        sentences, pairs, failures = Sentences(f"{self.seed} {name}"), list[Pair](), 0
        fewest, most = LONG_WORDS if name == "long" else ORDINARY_WORDS
        while len(pairs) < number:
            pair = sentences.sentence(sentences.pick((4, 5) if name == "long" else (1, 2)))
            lengths = len(pair.source.split()), len(pair.target.split())
            failures += 1
            if fewest <= min(lengths) and max(lengths) <= most and pair.source not in seen:
                seen.add(pair.source)
                pairs.append(pair)
                failures = 0
            elif failures >= MAX_FAILURES_IN_A_ROW:
                raise ValueError(
                    f"num_{name}: the grammar has {len(pairs)} distinct sentences of {fewest} to {most} words"
                )
        return pairs
