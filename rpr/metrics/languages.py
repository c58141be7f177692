"""Which tokens BLEU counts in a language, by any of its codes: `de`, `deu_Latn`, `zh-CN`, `cmn`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from rpr.errors import DataError
from rpr.signals import SIGTERM_EXIT

if TYPE_CHECKING:
    from rpr.config.train import TrainConfig

# By the code of ISO 639-1 the others: of ISO 639-2 (both kinds), and of single languages of ISO 639-3, as in FLORES.
# Only languages for which a tokenizer has rules of its own.
_OTHER_CODES = {
    "as": "asm", "bn": "ben", "bo": "bod tib", "ca": "cat", "cs": "ces cze", "de": "deu ger", "dz": "dzo",
    "el": "ell gre", "en": "eng", "es": "spa", "et": "est ekk", "fi": "fin", "fr": "fra fre", "ga": "gle", "gu": "guj",
    "hi": "hin", "hu": "hun", "is": "isl ice", "it": "ita", "ja": "jpn", "km": "khm", "kn": "kan", "ko": "kor",
    "lo": "lao", "lt": "lit", "lv": "lav lvs", "ml": "mal", "mr": "mar", "my": "mya bur", "nl": "nld dut",
    "or": "ori ory", "pa": "pan", "pl": "pol", "pt": "por", "ro": "ron rum", "ru": "rus", "sk": "slk slo", "sl": "slv",
    "sv": "swe", "ta": "tam", "te": "tel", "th": "tha", "zh": "zho chi cmn gan hak hsn lzh nan wuu yue",
}  # fmt: skip
_BY_CODE = {other: code for code, others in _OTHER_CODES.items() for other in others.split()}
# sacreBLEU's own choices; it has none for the others without spaces between words, and scores them with 13a.
_CHARACTERS = ("bo", "dz", "km", "lo", "my", "shn", "th")
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"} | dict.fromkeys(_CHARACTERS, "char")
_WITHOUT_SPACES = _TOKENIZERS.keys() - {"ko"}
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
REFERENCES_READ = 1000  # to see whether a language has spaces
_REMEDIES = {
    "ja-mecab": "pip install 'sacrebleu[ja]'",
    "ko-mecab": "pip install 'sacrebleu[ko]'",
    "flores101": "sacreBLEU downloads it at its first use, which needs the internet once",
    "flores200": "sacreBLEU downloads it at its first use, which needs the internet once",
}


def language_of(code: str) -> str:
    """The language's two-letter code if a tokenizer has rules for it, else the code's first part."""
    first = re.split(r"[-_]", code.strip().lower())[0]
    return _BY_CODE.get(first, first)


def has_spaces(code: str) -> bool:
    """Whether the language separates its words by spaces, as far as known."""
    return _latin(code) or language_of(code) not in _WITHOUT_SPACES


def bleu_tokenizer(code: str, setting: str = "auto") -> str:
    """sacreBLEU's name of the tokenizer: the setting; or, for auto, the one that its own command chooses for the
    language, and characters where a language has no spaces and sacreBLEU no choice.
    """
    if setting != "auto":
        return setting
    return "13a" if _latin(code) else _TOKENIZERS.get(language_of(code), "13a")


def _latin(code: str) -> bool:
    """Whether the code says that the language is written in Latin letters (`zho_Latn`)."""
    return "latn" in re.split(r"[-_]", code.strip().lower())[1:]


@lru_cache(maxsize=8)
def check_installed(tokenizer: str) -> None:
    """Raises DataError, with the remedy, if sacreBLEU cannot use this tokenizer here."""
    if tokenizer not in _REMEDIES:
        return
    import logging

    from sacrebleu.metrics.bleu import BLEU

    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    try:
        BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError, AssertionError, OSError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == SIGTERM_EXIT:
            raise
        raise DataError(
            f"evaluation.bleu_tokenizer: {tokenizer} is not installed; {_REMEDIES[tokenizer]}, or choose char"
        ) from None


def check_tokenizer(config: TrainConfig, references: Iterable[str] = ()) -> None:
    """Check, before anything is trained, that BLEU of this target language can be computed and means something.
    Raises DataError if its tokenizer is not installed; or if `references` have no spaces between words, but the
    language's code does not say so, and BLEU of whole sentences as words is zero.
    """
    setting, language = config.evaluation.bleu_tokenizer, config.data.target_language
    tokenizer = bleu_tokenizer(language, setting)
    check_installed(tokenizer)
    if setting != "auto" or tokenizer != "13a":
        return
    text = "".join(itertools.islice(references, REFERENCES_READ))
    if 2 * len(_UNSPACED.findall(text)) > len(text):
        raise DataError(
            f"data.target_language: {language} has no tokenizer of its own in BLEU, but its sentences have no spaces "
            "between words; give the language's code (zh, ja, th, ...), or choose evaluation.bleu_tokenizer=char"
        )
