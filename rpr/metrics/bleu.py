"""Corpus scores of translations, each with a signature of how it was computed.

`sacrebleu` is the current standard (13a tokens). `bleu_tok_split` follows the paper's group (tensor2tensor's
get_ende_bleu.sh): Unicode punctuation replaced, Moses tokens, compounds split at hyphens on both sides, unsmoothed BLEU
as in multi-bleu.perl; their reference file was already tokenised, so small differences remain. `bleu_tok` is the same
without the compound split. `chrf` compares characters, `exact_match` whole sentences. Different metrics never share a
column: on the same translations the first three differ by a point and more.
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
from rpr.metrics.statistics import SAME, SufficientStatistics, match_statistics, sufficient_statistics
from rpr.records.scores import EXACT_MATCH

_COMPOUND = re.compile(r"(\S)-(\S)")
METRICS = ("sacrebleu", "bleu_tok_split", "bleu_tok", "chrf", EXACT_MATCH)
TASK_METRICS = (EXACT_MATCH, "sacrebleu")  # for generated tasks, whose symbols are not natural language
_NO_SPACES_BETWEEN_WORDS = ("ja", "ko")  # supported by the tokenizer, without an abbreviation list


@dataclass(frozen=True)
class Metric:
    """A score between 0 and 100 over `num_sentences` pairs, with its signature and per-sentence statistics."""

    name: str
    score: float
    signature: str
    num_sentences: int
    statistics: SufficientStatistics = field(repr=False, compare=False)


def all_scores(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str, names: Sequence[str] = METRICS
) -> list[Metric]:
    """The named metrics, in that order. Each text is Moses-tokenised at most once."""
    _check(hypotheses, references)
    language = moses_language(target_language)
    moses: tuple[list[str], list[str]] = ([], [])
    if any(name.startswith("bleu_tok") for name in names):
        moses = moses_tokenise(hypotheses, language), moses_tokenise(references, language)
    pair = hypotheses, references
    by_name: dict[str, Callable[[], Metric]] = {
        # The defaults of the sacrebleu command; force only silences the warning about text that looks tokenised.
        "sacrebleu": lambda: _metric("sacrebleu", BLEU(tokenize="13a", force=True), *pair),
        "bleu_tok_split": lambda: _split_bleu(*moses, language),
        "bleu_tok": lambda: _bleu_of_tokens("bleu_tok", *moses, language),
        "chrf": lambda: _metric("chrf", CHRF(), *pair),  # chrF2: character 1- to 6-grams, recall counting twice
        EXACT_MATCH: lambda: _exact_match(*pair),
    }
    return [by_name[name]() for name in names]


def _exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """Sentence accuracy: the percentage of hypotheses that equal their reference exactly."""
    statistics = match_statistics(hypotheses, references)
    signature = "nrefs:1|case:mixed|tok:none|unit:sentence"
    return Metric(EXACT_MATCH, statistics.score, signature, len(references), statistics)


def moses_language(language: str) -> str:
    """The language code of the Moses tokenizer (`de_DE` is de); en, as in Moses itself, if it has no rules."""
    code = re.split(r"[-_]", language.strip().lower())[0]
    known = NonbreakingPrefixes().available_langs.values()
    return code if code in known or code in _NO_SPACES_BETWEEN_WORDS else "en"


def moses_tokenise(sentences: Sequence[str], language: str) -> list[str]:
    """Replace Unicode punctuation by ASCII, then join the Moses tokens with spaces; nothing is escaped."""
    tokenizer, normalizer = _moses(language)
    return [
        str(tokenizer.tokenize(normalizer.replace_unicode_punct(sentence), escape=False, return_str=True))
        for sentence in sentences
    ]


def split_compounds(sentences: Sequence[str]) -> list[str]:
    """`a-b` becomes `a ##AT##-##AT## b`, left to right, as in the script's s{(\\S)-(\\S)}{...}g."""
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


@lru_cache(maxsize=8)
def _moses(language: str) -> tuple[MosesTokenizer, MosesPunctNormalizer]:
    return MosesTokenizer(language), MosesPunctNormalizer()


def _split_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metric:
    """The paper group's BLEU: `Test-Satz` is three tokens, `Test ##AT##-##AT## Satz`."""
    split = split_compounds(hypotheses), split_compounds(references)
    return _bleu_of_tokens("bleu_tok_split", *split, f"{language}-compound_split")


def _bleu_of_tokens(name: str, hypotheses: Sequence[str], references: Sequence[str], tokens: str) -> Metric:
    """Unsmoothed BLEU of Moses tokens."""
    metric = _metric(name, BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)
    signature = metric.signature.replace("tok:none", f"tok:moses-{tokens}")
    return replace(metric, signature=f"{signature}|sacremoses:{version('sacremoses')}")


def _metric(name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    score = float(metric.corpus_score(hypotheses, [references]).score)
    statistics = sufficient_statistics(metric, hypotheses, references)
    assert abs(statistics.score - score) < SAME, f"{name}: {score} by sacreBLEU, {statistics.score} from its counts"
    return Metric(name, score, str(metric.get_signature()), len(references), statistics)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """sacrebleu accepts all of these silently: it scores a bare string 0 and truncates unequal lists."""
    for name, side in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(side, str):
            raise DataError(
                f"BLEU: {name} is one string of {len(side)} characters; give a list with one string per sentence"
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
            f"remove these lines on both sides"
        )
