"""Corpus scores of translations, each with a signature of how it was computed.

`sacrebleu` is the current standard, with its tokens for the target language (13a for most). `bleu_tok_split` follows
the paper's group (tensor2tensor's get_ende_bleu.sh): Unicode punctuation replaced, Moses tokens, compounds split at
hyphens on both sides, unsmoothed BLEU as in multi-bleu.perl; their reference file was already tokenised, so small
differences remain. `bleu_tok` is the same without the compound split; both need spaces between words. `chrf` compares
characters, `exact_match` whole sentences. Different metrics never share a column: on the same translations the first
three differ by a point and more.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import version

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from rpr.config.train import TrainConfig
from rpr.errors import DataError
from rpr.records.scores import EXACT_MATCH
from rpr.scoring.statistics import SAME, SufficientStatistics, bleu_from_sums, chrf_from_sums, share_from_sums

_COMPOUND = re.compile(r"(\S)-(\S)")
METRICS = ("sacrebleu", "bleu_tok_split", "bleu_tok", "chrf", EXACT_MATCH)
TASK_METRICS = (EXACT_MATCH, "sacrebleu")  # for generated tasks, whose symbols are not natural language
_MOSES = ("bleu_tok_split", "bleu_tok")
_WITHOUT_WORDS = ("zh", "ja-mecab", "char")  # tokenizers of languages without spaces between words
_TWO_LETTERS = {  # codes of ISO 639-2 and of FLORES for which a tokenizer has rules
    "deu": "de", "ger": "de", "eng": "en", "fra": "fr", "fre": "fr", "jpn": "ja", "kor": "ko", "zho": "zh", "chi": "zh",
    "cmn": "zh", "yue": "zh",
}  # fmt: skip
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
REFERENCES_READ = 1000  # to see whether a language has spaces


@dataclass(frozen=True)
class Metric:
    """A score between 0 and 100 (or bits per byte) with its signature and per-sentence statistics."""

    name: str
    score: float
    signature: str
    num_sentences: int
    statistics: SufficientStatistics = field(repr=False, compare=False)
    empty: int = 0  # hypotheses
    tokenised: int | None = None  # references with a separate full stop at the end, if they are so written


def all_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target_language: str,
    names: Sequence[str] | None = None,
    tokenizer: str = "auto",
) -> list[Metric]:
    """The named metrics (None: all of the language), in that order. Each text is Moses-tokenised at most once.
    `tokenizer`: of `sacrebleu`, as evaluation.bleu_tokenizer. Raises DataError if the texts are no pairs, the tokenizer
    is not installed, or the language has no words for a metric.
    """
    # 1. sacrebleu accepts all of these silently.
    if not len(hypotheses) == len(references) > 0:
        counts = f"{len(hypotheses)} hypotheses for {len(references)} references"
        raise DataError(f"BLEU: {counts}; line i of one must be the translation of line i of the other")
    if empty := [number for number, reference in enumerate(references, start=1) if not reference.strip()]:
        of_all = f"{len(empty)} of {len(references)} references are empty, the first in line {empty[0]}"
        raise DataError(f"BLEU: {of_all}; remove these lines on both sides")
    # 2. The tokenizers.
    tokenizer = bleu_tokenizer(target_language, tokenizer)
    if names is None:  # of a language without spaces between words, those that need none
        names = [name for name in METRICS if tokenizer not in _WITHOUT_WORDS or name not in _MOSES]
    language = moses_language(target_language)
    moses: tuple[list[str], list[str]] = ([], [])
    if wanted := [name for name in names if name in _MOSES]:
        if tokenizer in _WITHOUT_WORDS:
            none = f"counts words between spaces, which {target_language} does not have"
            raise DataError(f"{wanted[0]}: {none}; choose sacrebleu or chrf")
        moses = moses_tokenise(hypotheses, language), moses_tokenise(references, language)
    # 3. The scores.
    pair = hypotheses, references
    by_name: dict[str, Callable[[], Metric]] = {
        "sacrebleu": lambda: _sacrebleu(*pair, tokenizer),
        "bleu_tok_split": lambda: _bleu_of_tokens(
            "bleu_tok_split", f"{language}-compound_split", *map(split_compounds, moses)
        ),
        "bleu_tok": lambda: _bleu_of_tokens("bleu_tok", language, *moses),
        "chrf": lambda: _metric("chrf", CHRF(), *pair),  # chrF2: character 1- to 6-grams, recall counting twice
        EXACT_MATCH: lambda: _exact_match(*pair),
    }
    return [by_name[name]() for name in names]


def _sacrebleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str) -> Metric:
    """As the sacrebleu command; force only silences its warning about tokenised text, which `tokenised` replaces."""
    check_installed(tokenizer)
    metric = _metric("sacrebleu", BLEU(tokenize=tokenizer, force=True), hypotheses, references)
    full_stops = sum(reference.endswith(".") for reference in references)
    separate = sum(reference.endswith(" .") for reference in references)
    looks_so = tokenizer != "none" and 2 * separate > full_stops and 10 * separate > len(references)
    return replace(metric, tokenised=separate if looks_so else None)


def _exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    rows = [(hypothesis == reference, 1) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    statistics = SufficientStatistics(np.array(rows, np.float64), share_from_sums)
    signature = "nrefs:1|case:mixed|tok:none|unit:sentence"
    return Metric(EXACT_MATCH, statistics.score, signature, len(references), statistics, _empty(hypotheses))


def moses_language(language: str) -> str:
    """The language code of the Moses tokenizer (`de_DE` is de); en, as in Moses itself, if it has no rules."""
    from sacremoses.corpus import NonbreakingPrefixes

    code = _language_of(language)
    return code if code in NonbreakingPrefixes().available_langs.values() or code == "ko" else "en"


def moses_tokenise(sentences: Sequence[str], language: str) -> list[str]:
    """Replace Unicode punctuation by ASCII, then join the Moses tokens with spaces; nothing is escaped."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    tokenizer, normalizer = MosesTokenizer(language), MosesPunctNormalizer()
    ascii_only = map(normalizer.replace_unicode_punct, sentences)
    return [str(tokenizer.tokenize(sentence, escape=False, return_str=True)) for sentence in ascii_only]


def split_compounds(sentences: Sequence[str]) -> list[str]:
    """`a-b` becomes three tokens, `a ##AT##-##AT## b`, left to right, as in the script's s{(\\S)-(\\S)}{...}g."""
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


def _bleu_of_tokens(name: str, tokens: str, hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    metric = _metric(name, BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)
    signature = metric.signature.replace("tok:none", f"tok:moses-{tokens}")
    return replace(metric, signature=f"{signature}|sacremoses:{version('sacremoses')}")


def _metric(name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    score = float(metric.corpus_score(hypotheses, [references]).score)
    # sacreBLEU exposes its counts only through its PairedTest, which has no interval of a difference.
    rows = np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float64)
    if isinstance(metric, CHRF):
        formula = partial(chrf_from_sums, beta=metric.beta)
    else:
        formula = partial(bleu_from_sums, exponential=metric.smooth_method == "exp")
    statistics = SufficientStatistics(rows, formula)
    assert abs(statistics.score - score) < SAME, f"{name}: {score} by sacreBLEU, {statistics.score} from its counts"
    return Metric(name, score, str(metric.get_signature()), len(references), statistics, _empty(hypotheses))


def _empty(hypotheses: Sequence[str]) -> int:
    return sum(not hypothesis.strip() for hypothesis in hypotheses)


# Languages


def _language_of(code: str) -> str:
    first = re.split(r"[-_]", code.strip().lower())[0]
    return _TWO_LETTERS.get(first, first)


def bleu_tokenizer(code: str, setting: str = "auto") -> str:
    """The name of sacreBLEU's tokenizer: the setting, or for auto its own choice for the language."""
    return BLEU._TOKENIZER_MAP.get(_language_of(code), BLEU.TOKENIZER_DEFAULT) if setting == "auto" else setting


@lru_cache(maxsize=8)
def check_installed(tokenizer: str) -> None:
    """Raises DataError if sacreBLEU cannot use this tokenizer here."""
    try:
        BLEU(tokenize=tokenizer, force=True)
    except (ImportError, RuntimeError, OSError):
        remedy = f"pip install 'sacrebleu[{tokenizer[:2]}]'" if "mecab" in tokenizer else "connect to the internet once"
        raise DataError(f"evaluation.bleu_tokenizer: {tokenizer} is not installed; {remedy}, or choose char") from None


def check_tokenizer(config: TrainConfig, references: Iterable[str] = ()) -> None:
    """Check, before anything is trained, that BLEU of this target language can be computed and means something.
    Raises DataError if its tokenizer is not installed; or if `references` have no spaces between words, but the
    tokenizer counts these: BLEU of whole sentences as words is zero.
    """
    setting, language = config.evaluation.bleu_tokenizer, config.data.target_language
    tokenizer = bleu_tokenizer(language, setting)
    check_installed(tokenizer)
    if setting != "auto" or tokenizer != "13a":
        return
    text = "".join(itertools.islice(references, REFERENCES_READ))
    if 2 * len(_UNSPACED.findall(text)) > len(text):
        raise DataError(
            f"data.target_language: sentences of {language} have no spaces between words, and sacreBLEU no tokenizer "
            "for it; give the language's code (zh, ja), or choose evaluation.bleu_tokenizer=char"
        )
