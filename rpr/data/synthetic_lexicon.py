"""The words of the synthetic corpus (rpr/data/synthetic.py), which are read from synthetic_lexicon.tsv, and the regular
rules that complete their forms.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

Case = Literal["nominative", "accusative", "dative"]
CASES: tuple[Case, ...] = ("nominative", "accusative", "dative")
Frame = Literal["none", "accusative", "dative", "double", "to", "clause"]


class Word(NamedTuple):
    """An adverb, a conjunction or an adjective. The German of an adjective is its stem: an ending is always added, for
    adjectives stand before nouns only.
    """

    english: str
    german: str


class Noun(NamedTuple):
    """A noun with both plurals; gender is m, f or n."""

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str


class Determiner(NamedTuple):
    """`german` is the stem; `kind` chooses the endings: the (der), this (dies-), or a (ein, mein)."""

    english: str
    english_plural: str  # "": singular only
    german: str
    kind: Literal["the", "this", "a"]


class Nominal(NamedTuple):
    """A pronoun (a third person, or "we", whose verb forms are those of the third person plural) or a noun phrase, of
    whose German forms `column` chooses the endings.
    """

    subject: str
    object: str
    german: dict[Case, str]
    plural: bool = False
    column: int = 0
    pronoun: bool = False
    has_clause: bool = False


class Preposition(NamedTuple):
    english: str
    german: str
    case: Case


class Auxiliary(NamedTuple):
    """A finite verb that sends the lexical verb, as participle or infinitive, to the end of the German clause."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    takes: Literal["participle", "infinitive"]


class Verb(NamedTuple):
    """German forms are without the separable particle. `before` and `after` are English words round the object."""

    frame: Frame
    english: str
    english_past: str
    english_participle: str
    before: str
    after: str
    present: str
    past: str
    participle: str
    infinitive: str
    particle: str

    @property
    def english_present(self) -> str:
        """Third person singular."""
        if self.english.endswith(("s", "sh", "ch", "x", "z", "o")):
            return self.english + "es"
        if self.english.endswith("y") and self.english[-2] not in "aeiou":
            return self.english[:-1] + "ies"
        return self.english + "s"

    @property
    def object_case(self) -> Case:
        return "dative" if self.frame == "dative" else "accusative"

    def german_finite(self, tense: str, plural: bool) -> str:
        """Third person; the present plural is the infinitive."""
        if tense == "present":
            return self.infinitive if plural else self.present
        return self.past + ("n" if self.past.endswith("e") else "en") * plural


_T = TypeVar("_T")
_TABLE = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
_ROWS = [line.split("\t") for line in _TABLE.splitlines() if line and not line.startswith("#")]


def _all(of: Callable[..., _T], kind: str) -> tuple[_T, ...]:
    return tuple(of(*("" if cell == "-" else cell for cell in cells)) for row_kind, *cells in _ROWS if row_kind == kind)


def _pronoun(subject: str, direct: str, number: str, *german: str) -> Nominal:
    return Nominal(subject, direct, dict(zip(CASES, german, strict=True)), number == "plural", pronoun=True)


def _forms(kind: str) -> dict[str, list[str]]:
    """By case: masculine, feminine, neuter, plural."""
    return {case: forms for case, *forms in _all(lambda *cells: cells, kind)}


NOUNS, PLACES = _all(Noun, "noun"), _all(Noun, "place")
VERBS = _all(Verb, "verb")
ADJECTIVES = _all(Word, "adjective")
[THE] = _all(Determiner, "the")
SINGULAR_DETERMINERS = _all(Determiner, "singular determiner")
OTHER_DETERMINERS = _all(Determiner, "other determiner")
PRONOUNS = _all(_pronoun, "pronoun")
MIDDLE_ADVERBS, FRONT_ADVERBS = _all(Word, "middle adverb"), _all(Word, "front adverb")
EDGE_ADVERBS = _all(Word, "edge adverb")
PAST_EDGE_ADVERBS = EDGE_ADVERBS + _all(Word, "past edge adverb")
NONPAST_EDGE_ADVERBS = EDGE_ADVERBS + _all(Word, "nonpast edge adverb")
PLACE_PREPOSITIONS = _all(Preposition, "place preposition")
NOUN_PREPOSITIONS = _all(Preposition, "noun preposition")
[THAT] = _all(Word, "that")
SUBORDINATORS, COORDINATORS = _all(Word, "subordinator"), _all(Word, "coordinator")
NONPAST_AUXILIARIES, PAST_AUXILIARIES = _all(Auxiliary, "nonpast auxiliary"), _all(Auxiliary, "past auxiliary")
RELATIVE_PRONOUNS = _forms("relative pronoun")
# By the kind of the determiner: its own, and those of the adjectives after it.
ENDINGS = {"the": _forms("forms of the"), "this": _forms("endings of this"), "a": _forms("endings of a")}
ADJECTIVE_ENDINGS = dict.fromkeys(("the", "this"), _forms("endings of adjectives"))
ADJECTIVE_ENDINGS["a"] = _forms("endings of adjectives after a")
