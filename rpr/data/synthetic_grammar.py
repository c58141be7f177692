"""The grammar of the synthetic corpus (rpr/data/synthetic.py): trees of sentences, and how one tree is written out
twice, in English and in German order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic_lexicon import Auxiliary, Case, Preposition, Pronoun, Verb, Word

Language = Literal["english", "german"]
GENDERS = "mfn"


class Pair(NamedTuple):
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
    adjectives: tuple[Word, ...] = ()
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
    middle_adverb: Word | None = None
    place: PrepositionalPhrase | None = None
    edge_adverb: Word | None = None
    gap: Literal["subject", "object"] | None = None


@dataclass(frozen=True)
class Subordinate:
    """A clause under a conjunction; `tail` is a further one under it."""

    conjunction: Word
    clause: Clause
    tail: Subordinate | None = None


@dataclass(frozen=True)
class Main:
    """A main clause; `front` stands before its subject in English, before its finite verb in German."""

    clause: Clause
    front: Word | PrepositionalPhrase | Subordinate | None = None
    tail: Subordinate | None = None
    question: bool = False


@dataclass(frozen=True)
class Sentence:
    """Main clauses; `coordinators[i]` stands between clause i and clause i + 1."""

    mains: tuple[Main, ...]
    coordinators: tuple[Word, ...] = ()


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
    assert determiner, f"{nominal.determiner.english}: has no plural"
    words.insert(0, "an" if determiner == "a" and words[0][0] in "aeiou" else determiner)
    if nominal.relative is not None:
        words += ["that", *_english_clause(nominal.relative, antecedent_plural=nominal.plural)]
    return words + _prepositional(nominal.companion, "english")


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
    return words + _prepositional(nominal.companion, "german")


def _prepositional(phrase: PrepositionalPhrase | None, language: Language) -> list[str]:
    if phrase is None:
        return []
    if language == "english":
        return [phrase.preposition.english, *_english_nominal(phrase.noun_phrase)]
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
    return words + _prepositional(clause.place, "english") + _adverb(clause.edge_adverb, "english")


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
    return pronouns + adverbs + recipient + direct + _prepositional(clause.place, "german")


def _german_verb_last(clause: Clause, *, antecedent_plural: bool = False) -> list[str]:
    _, _, together = _german_verb(clause, antecedent_plural)
    return [*_german_nominal(clause.subject, "nominative"), *_german_middle(clause), together]


def _adverb(adverb: Word | None, language: Language) -> list[str]:
    return [] if adverb is None else [getattr(adverb, language)]


def _english_main(main: Main) -> list[str]:
    front = _front(main.front, "english")
    clause = _english_clause(main.clause, question=main.question)
    return front + clause + _subordinate(main.tail, "english")


def _german_main(main: Main) -> list[str]:
    """Verb second: after the front if there is one, else after the subject; first in a question."""
    finite, last, _ = _german_verb(main.clause, antecedent_plural=False)
    subject = _german_nominal(main.clause.subject, "nominative")
    front = _front(main.front, "german")
    first = [*front, finite, *subject] if front or main.question else [*subject, finite]
    return [*first, *_german_middle(main.clause), last, *_subordinate(main.tail, "german")]


def _front(front: Word | PrepositionalPhrase | Subordinate | None, language: Language) -> list[str]:
    if isinstance(front, Subordinate):
        return [*_subordinate(front, language, comma=False), ","]
    return _prepositional(front, language) if isinstance(front, PrepositionalPhrase) else _adverb(front, language)


def _subordinate(subordinate: Subordinate | None, language: Language, *, comma: bool = True) -> list[str]:
    """`comma`: whether it follows another clause, from which German separates it."""
    if subordinate is None:
        return []
    if language == "english":
        words = [subordinate.conjunction.english, *_english_clause(subordinate.clause)]
    else:
        words = [","] * comma + [subordinate.conjunction.german, *_german_verb_last(subordinate.clause)]
    return words + _subordinate(subordinate.tail, language)
