"""Corpus scores of translations, each with the signature that says how it was reached.

`sacrebleu` is today's standard (13a tokens). `bleu_tok_split` follows the paper's group (tensor2tensor's
get_ende_bleu.sh): unicode punctuation replaced, Moses tokens, compounds split at hyphens on both sides, BLEU without
smoothing as multi-bleu.perl has it; their reference file was tokenised beforehand, so small differences remain.
`bleu_tok` is the same without the split. `chrf` compares characters, `exact_match` whole sentences. No two of them are
ever in one column: on the same translations the first three differ by a point and more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from rpr.errors import DataError
from rpr.metrics.statistics import SAME, Counts, counts_of, counts_of_matches
from rpr.records.scores import EXACT_MATCH

_COMPOUND = re.compile(r"(\S)-(\S)")
METRICS = ("sacrebleu", "bleu_tok_split", "bleu_tok", "chrf", EXACT_MATCH)
TASK_METRICS = (
    EXACT_MATCH,
    "sacrebleu",
)  # of a generated task, whose output has no characters or compounds to speak of
_NO_SPACES_BETWEEN_WORDS = ("ja", "ko")  # known to the tokenizer, without a list of abbreviations


@dataclass(frozen=True)
class Metric:
    """A score between 0 and 100 over `num_sentences` pairs, how it was computed, and what each sentence adds to it."""

    name: str
    score: float
    signature: str
    num_sentences: int
    counts: Counts = field(repr=False, compare=False)


def all_scores(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str, names: Sequence[str] = METRICS
) -> list[Metric]:
    """The metrics of these names, in the order of the names; each text is Moses-tokenised once, if at all."""
    _check(hypotheses, references)
    language = moses_language(target_language)
    moses: tuple[list[str], list[str]] = ([], [])
    if any(name.startswith("bleu_tok") for name in names):
        moses = tokenised(hypotheses, language), tokenised(references, language)
    ways: dict[str, Callable[[], Metric]] = {
        "sacrebleu": lambda: sacrebleu_13a(hypotheses, references),
        "bleu_tok_split": lambda: _split_bleu(*moses, language),
        "bleu_tok": lambda: _bleu_of_tokens("bleu_tok", *moses, language),
        "chrf": lambda: chrf(hypotheses, references),
        EXACT_MATCH: lambda: exact_match(hypotheses, references),
    }
    return [ways[name]() for name in names]


def sacrebleu_13a(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """BLEU of detokenised text as sacrebleu's command computes it by default: 13a tokens, exponential smoothing."""
    _check(hypotheses, references)
    bleu = BLEU(tokenize="13a", force=True)  # force only keeps it quiet about text that looks tokenised
    return _metric("sacrebleu", bleu, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """chrF2: F-score of character 1- to 6-grams, recall counting twice."""
    _check(hypotheses, references)
    return _metric("chrf", CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """Sentence accuracy: the share of hypotheses that equal their references, character by character, in percent."""
    _check(hypotheses, references)
    counts = counts_of_matches(hypotheses, references)
    return Metric(EXACT_MATCH, counts.score, "nrefs:1|case:mixed|tok:none|unit:sentence", len(references), counts)


def moses_language(language: str) -> str:
    """The code as the Moses tokenizer knows it (`de_DE` is de), en where it has no rules: what Moses itself does."""
    code = re.split(r"[-_]", language.strip().lower())[0]
    known = NonbreakingPrefixes().available_langs.values()
    return code if code in known or code in _NO_SPACES_BETWEEN_WORDS else "en"


def tokenised(sentences: Sequence[str], language: str) -> list[str]:
    """Unicode punctuation replaced by ASCII, then Moses tokens joined by blanks, nothing escaped."""
    tokenizer, normalizer = _moses(language)
    return [
        str(tokenizer.tokenize(normalizer.replace_unicode_punct(sentence), escape=False, return_str=True))
        for sentence in sentences
    ]


def split_compounds(sentences: Sequence[str]) -> list[str]:
    """`a-b` becomes `a ##AT##-##AT## b`, left to right, as the script's s{(\\S)-(\\S)}{...}g has it."""
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


@lru_cache(maxsize=8)
def _moses(language: str) -> tuple[MosesTokenizer, MosesPunctNormalizer]:
    return MosesTokenizer(language), MosesPunctNormalizer()


def _split_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metric:
    """The paper group's BLEU: `Test-Satz` is three tokens, `Test ##AT##-##AT## Satz`."""
    split = split_compounds(hypotheses), split_compounds(references)
    return _bleu_of_tokens("bleu_tok_split", *split, f"{language}-compound_split")


def _bleu_of_tokens(name: str, hypotheses: Sequence[str], references: Sequence[str], tokens: str) -> Metric:
    """BLEU of Moses tokens, not smoothed."""
    metric = _metric(name, BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)
    signature = metric.signature.replace("tok:none", f"tok:moses-{tokens}")
    return replace(metric, signature=f"{signature}|sacremoses:{version('sacremoses')}")


def _metric(name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    score = float(metric.corpus_score(hypotheses, [references]).score)
    counts = counts_of(metric, hypotheses, references)
    assert abs(counts.score - score) < SAME, f"{name}: sacreBLEU says {score}, its counts {counts.score}"
    return Metric(name, score, str(metric.get_signature()), len(references), counts)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """sacrebleu scores all of these without a word: a bare string 0, surplus or missing references cut off."""
    for name, side in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(side, str):
            raise DataError(
                f"BLEU: {name} are one string of {len(side)} characters; give a list with one string for each sentence"
            )
    if len(hypotheses) != len(references):
        raise DataError(
            f"BLEU: {len(hypotheses)} hypotheses for {len(references)} references; "
            f"line i of one must be the translation of line i of the other"
        )
    if not len(references):
        raise DataError("BLEU: 0 hypotheses and 0 references; give at least 1 sentence")
    empty = [number for number, reference in enumerate(references, start=1) if not reference.strip()]
    if empty:
        raise DataError(
            f"BLEU: {len(empty)} of {len(references)} references are empty, the first in line {empty[0]}; "
            f"leave out these lines on both sides"
        )
