"""Corpus scores of translations, each with the signature that says how it was reached.

`sacrebleu` is today's standard (13a tokens). `bleu_tok_split` follows the paper's group (tensor2tensor's
get_ende_bleu.sh): unicode punctuation replaced, Moses tokens, compounds split at hyphens on both sides, BLEU without
smoothing as multi-bleu.perl has it; their reference file was tokenised beforehand, so small differences remain.
`bleu_tok` is the same without the split. `chrf` compares characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from rpr.errors import DataError

_COMPOUND = re.compile(r"(\S)-(\S)")
_NO_SPACES_BETWEEN_WORDS = ("ja", "ko")  # known to the tokenizer, without a list of abbreviations


@dataclass(frozen=True)
class Metric:
    """A score between 0 and 100 over `num_sentences` pairs, and how it was computed."""

    name: str
    score: float
    signature: str
    num_sentences: int


def all_scores(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> list[Metric]:
    """sacrebleu, bleu_tok_split, bleu_tok and chrf, in this order; each text is Moses-tokenised once."""
    _check(hypotheses, references)
    language = moses_language(target_language)
    ours, theirs = tokenised(hypotheses, language), tokenised(references, language)
    return [
        sacrebleu_13a(hypotheses, references),
        _split_bleu(ours, theirs, language),
        _bleu_of_tokens("bleu_tok", ours, theirs, language),
        chrf(hypotheses, references),
    ]


def sacrebleu_13a(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """BLEU of detokenised text as sacrebleu's command computes it by default: 13a tokens, exponential smoothing."""
    _check(hypotheses, references)
    bleu = BLEU(tokenize="13a", force=True)  # force only keeps it quiet about text that looks tokenised
    score = bleu.corpus_score(hypotheses, [references]).score
    return Metric("sacrebleu", float(score), str(bleu.get_signature()), len(references))


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """chrF2: F-score of character 1- to 6-grams, recall counting twice."""
    _check(hypotheses, references)
    metric = CHRF()
    score = metric.corpus_score(hypotheses, [references]).score
    return Metric("chrf", float(score), str(metric.get_signature()), len(references))


def bleu_tok(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metric:
    """BLEU of Moses tokens, not smoothed. `language` is that of the target."""
    _check(hypotheses, references)
    language = moses_language(language)
    return _bleu_of_tokens("bleu_tok", tokenised(hypotheses, language), tokenised(references, language), language)


def bleu_tok_split(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metric:
    """The paper group's BLEU: as bleu_tok, with `Test-Satz` counted as three tokens `Test ##AT##-##AT## Satz`."""
    _check(hypotheses, references)
    language = moses_language(language)
    return _split_bleu(tokenised(hypotheses, language), tokenised(references, language), language)


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
    split = split_compounds(hypotheses), split_compounds(references)
    return _bleu_of_tokens("bleu_tok_split", *split, f"{language}-compound_split")


def _bleu_of_tokens(name: str, hypotheses: Sequence[str], references: Sequence[str], tokens: str) -> Metric:
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    score = bleu.corpus_score(hypotheses, [references]).score
    signature = str(bleu.get_signature()).replace("tok:none", f"tok:moses-{tokens}")
    return Metric(name, float(score), f"{signature}|sacremoses:{version('sacremoses')}", len(references))


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
