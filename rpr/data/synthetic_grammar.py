"""The grammar of the synthetic corpus (rpr/data/synthetic.py): each phrase is written in English and in German at once,
a clause in the orders that either language has for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rpr.data import synthetic_lexicon as lexicon
from rpr.data.synthetic_lexicon import CASES, Auxiliary, Determiner, Nominal, Noun, Preposition, Verb, Word

GENDERS = "mfn"
ABSENT = Nominal("", "", dict.fromkeys(CASES, ""))
NOTHING = Word("", "")


class Pair(NamedTuple):
    """A sentence and its translation: raw text, punctuation attached."""

    source: str
    target: str


def _join(*texts: str) -> str:
    return " ".join(filter(None, texts))


# Noun phrases


def noun_phrase(
    determiner: Determiner, noun: Noun, *, plural: bool = False, adjectives: Sequence[Word] = ()
) -> Nominal:
    english = [*(adjective.english for adjective in adjectives), noun.english_plural if plural else noun.english]
    article = determiner.english_plural if plural else determiner.english
    assert article, f"{determiner.english}: has no plural"
    article = "an" if article == "a" and english[0][0] in "aeiou" else article
    endings, of_adjectives = lexicon.ENDINGS[determiner.kind], lexicon.ADJECTIVE_ENDINGS[determiner.kind]
    column = 3 if plural else GENDERS.index(noun.gender)
    german = {}
    for case in CASES:
        words = [determiner.german + endings[case][column]]
        words += [adjective.german + of_adjectives[case][column] for adjective in adjectives]
        words.append(noun.german_plural if plural else noun.german)
        german[case] = " ".join(words) + "n" * (plural and case == "dative" and words[-1][-1] not in "ns")
    text = " ".join([article, *english])
    return Nominal(text, text, german, plural, column)


def with_companion(phrase: Nominal, companion: Word) -> Nominal:
    """ "The man with the dog"."""
    text = f"{phrase.object} {companion.english}"
    german = {case: f"{text} {companion.german}" for case, text in phrase.german.items()}
    return phrase._replace(subject=text, object=text, german=german)


def with_relative(phrase: Nominal, clause: Clause) -> Nominal:
    """ "The man that saw the dog": a clause without a subject or an object, which the phrase stands for."""
    case = clause.verb.object_case
    if clause.subject is ABSENT:
        case, clause = "nominative", clause._replace(subject=ABSENT._replace(plural=phrase.plural))
    pronoun = lexicon.RELATIVE_PRONOUNS[case][phrase.column]
    relative = Word(f"that {clause.english()}", f", {pronoun} {clause.german_last()} ,")
    return with_companion(phrase, relative)._replace(has_clause=True)


def coordination(first: Nominal, second: Nominal) -> Nominal:
    """Two noun phrases joined by "and": plural for the verb."""
    text = f"{first.object} and {second.object}"
    german = {case: f"{first.german[case]} und {second.german[case]}" for case in CASES}
    return Nominal(text, text, german, plural=True)


def prepositional(preposition: Preposition, phrase: Nominal) -> Word:
    german = f"{preposition.german} {phrase.german[preposition.case]}"
    german = f"im {german.removeprefix('in dem ')}" if german.startswith("in dem ") else german
    return Word(f"{preposition.english} {phrase.object}", german)


# Clauses


class Clause(NamedTuple):
    """A verb with what belongs to it. In a relative clause its subject or its object is absent; an absent subject has
    the number of the antecedent.
    """

    verb: Verb
    tense: Literal["present", "past"] | Auxiliary
    subject: Nominal = ABSENT
    object: Nominal = ABSENT
    recipient: Nominal = ABSENT
    middle_adverb: Word = NOTHING
    place: Word = NOTHING
    edge_adverb: Word = NOTHING

    def english(self, *, question: bool = False) -> str:
        """Subject, verb, objects, place, time; in a question the auxiliary comes first."""
        verb, tense, plural, auxiliary = self.verb, self.tense, self.subject.plural, ""
        if isinstance(tense, Auxiliary):
            auxiliary = tense.english_plural if plural else tense.english
            lexical = verb.english_participle if tense.takes == "participle" else verb.english
        elif tense == "past":
            lexical = verb.english_past
        else:
            lexical = verb.english if plural else verb.english_present
        subject, recipient = self.subject.subject, self.recipient.object
        return _join(
            *((auxiliary, subject) if question else (subject, auxiliary)),
            self.middle_adverb.english,
            lexical,
            recipient if verb.frame == "double" else "",
            verb.before,
            self.object.object,
            verb.after,
            f"to {recipient}" if verb.frame == "to" else "",
            self.place.english,
            self.edge_adverb.english,
        )

    def german_verb(self) -> tuple[str, str, str]:
        """Finite verb in second place, what it leaves at the end, and both together as a verb-last clause has them."""
        verb, tense, plural = self.verb, self.tense, self.subject.plural
        if isinstance(tense, Auxiliary):
            finite = tense.german_plural if plural else tense.german
            last = verb.particle + (verb.participle if tense.takes == "participle" else verb.infinitive)
            return finite, last, f"{last} {finite}"
        finite = verb.german_finite(tense, plural)
        return finite, verb.particle, verb.particle + finite

    def german_middle(self) -> str:
        """Between the verbs: pronouns, adverbs, recipient, object, place."""
        recipient, direct = self.recipient.german["dative"], self.object.german[self.verb.object_case]
        return _join(
            direct if self.object.pronoun else "",
            recipient if self.recipient.pronoun else "",
            self.edge_adverb.german,
            self.middle_adverb.german,
            "" if self.recipient.pronoun else recipient,
            "" if self.object.pronoun else direct,
            self.place.german,
        )

    def german_last(self) -> str:
        """With the verb at the end."""
        return _join(self.subject.german["nominative"], self.german_middle(), self.german_verb()[2])


def subordinate(conjunction: Word, clause: Clause, tail: Word = NOTHING) -> Word:
    """A clause under a conjunction, which German separates from the one before it; `tail` is a further one under it."""
    german = f", {conjunction.german} {clause.german_last()}"
    return Word(_join(conjunction.english, clause.english(), tail.english), _join(german, tail.german))


def fronted(clause: Word) -> Word:
    """A subordinate clause before the main one."""
    return Word(f"{clause.english} ,", f"{clause.german.removeprefix(', ')} ,")


def main(clause: Clause, front: Word = NOTHING, tail: Word = NOTHING, *, question: bool = False) -> Word:
    """`front`, an adverb, a place or a clause, stands before the English subject and before the German finite verb,
    which comes second, in a question first; `tail` is a subordinate clause.
    """
    finite, last, _ = clause.german_verb()
    subject = clause.subject.german["nominative"]
    first = (front.german, finite, subject) if front is not NOTHING or question else (subject, finite)
    german = _join(*first, clause.german_middle(), last, tail.german)
    return Word(_join(front.english, clause.english(question=question), tail.english), german)


def sentence(mains: Sequence[Word], coordinators: Sequence[Word] = (), mark: str = ".") -> Pair:
    """Main clauses; `coordinators[i]` stands between clause i and clause i + 1."""
    english, german = mains[0].english, mains[0].german
    for coordinator, further in zip(coordinators, mains[1:], strict=True):
        english += f" , {coordinator.english} {further.english}"
        german += f" , {coordinator.german} {further.german}"
    return Pair(_raw_text(english, mark), _raw_text(german, mark))


def _raw_text(text: str, mark: str) -> str:
    """Commas attached to the word before; two that meet are one, and one that meets the final mark is none."""
    text = re.sub("( ,)+", ",", text).removesuffix(",")
    return text[0].upper() + text[1:] + mark
