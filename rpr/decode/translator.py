"""Sentences to sentences with a trained run or an export of it, in three lines of Python:

from rpr import Translator
translator = Translator.from_run("runs/NAME-HASH")
translator.translate(["A dog runs ."])
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rpr.config.commands import TranslateConfig
from rpr.config.train import HardwareConfig
from rpr.data.pairs import normalise
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.corpus import as_a_line
from rpr.decode.engines import changed, opened
from rpr.decode.long_lines import parts_of
from rpr.decode.torch_engine import Engine, Progress, Search
from rpr.errors import ConfigError, DataError, RunError, did_you_mean
from rpr.model.beam_search import Hypothesis
from rpr.paths import data_dir
from rpr.runs import runtime
from rpr.validation import validate

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence: its text, which holds no line break, and what its Hypothesis says. Of a sentence
    translated in parts the numbers are sums over the parts, and it is finished if each of them is.
    """

    text: str
    score: float
    log_probability: float
    finished: bool


NOTHING = Translation("", 0.0, 0.0, True)  # the translation of nothing


class Translator:
    """Translates sentences. What they may hold: any text at all. Control characters, line breaks among them, and runs
    of white space count as one blank (as in training), what is no character (a lone surrogate) as U+FFFD; a sentence of
    which nothing is left has the empty translation. One of more than `max_source_length` pieces is translated in parts.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, search: Search, *, max_source_length: int) -> None:
        """`search` is what holds where a call says nothing else; `max_source_length` is without EOS."""
        self.engine = engine
        self.vocabulary = vocabulary
        self.search = search
        self.max_source_length = max_source_length

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        *,
        backend: str | None = None,
        compute_type: str | None = None,
        average_checkpoints: int | None = None,
        hardware: str | HardwareConfig | None = None,
        cache_dir: str | None = None,
        max_source_length: int | None = None,
    ) -> Translator:
        """Read a run's folder, or that of an export of it. None is the default of conf/translate.yaml, which says what
        the words mean; `hardware` is the name of a file of conf/hardware/, or such a configuration. Threads and
        precision of products are those of the whole process, and are set as it says.

        Raises:
            ConfigError: a value that cannot be, or two that contradict each other.
            DataError, RecordError: the folder holds no run or export, or a damaged one.
        """
        defaults = _settings("translate")
        asked = {
            "backend": backend,
            "compute_type": compute_type,
            "average_checkpoints": average_checkpoints,
            "cache_dir": cache_dir,
            "max_source_length": max_source_length,
        }
        if not isinstance(hardware, HardwareConfig):
            hardware = _hardware(hardware or _default_hardware(defaults.pop("defaults")))
        settings = {
            **_settings("shared"),
            **defaults,
            **{key: value for key, value in asked.items() if value is not None},
            "run": str(path),
            "hardware": hardware,
        }
        known = {key: value for key, value in settings.items() if key not in ("defaults", "hydra")}
        return cls.from_config(validate(TranslateConfig, known))

    @classmethod
    def from_config(cls, config: TranslateConfig) -> Translator:
        """As from_run; the configuration's own beam_size and length_penalty hold where it has them."""
        folder = Path(config.run).expanduser().absolute()
        runtime.check_devices(config.hardware)
        engine, vocabulary, search, max_source_length = opened(folder, config)
        return cls(engine, vocabulary, search, max_source_length=max_source_length)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        prefixes: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> list[str]:
        """The best translation of each sentence, in their order; the arguments are those of translate_n_best."""
        found = self.translate_n_best(
            sentences,
            n_best=1,
            beam_size=beam_size,
            length_penalty=length_penalty,
            prefixes=prefixes,
            progress=progress,
        )
        return [translations[0].text for translations in found]

    def translate_n_best(
        self,
        sentences: Sequence[str],
        *,
        n_best: int | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        prefixes: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> list[list[Translation]]:
        """The up to `n_best` best translations of each sentence, best first, in the order of the sentences.

        Warns (UserWarning) of a sentence that is translated in parts.

        Args:
            n_best: at most the beam size; None: the beam size.
            beam_size: None, here as below: as the run's configuration, or the command's, says.
            prefixes: for each sentence the text its translation begins with, "" for none. It is encoded as a text of
                its own, so it should end where a word ends: the model seldom goes on within a word. Of a sentence in
                parts it begins the first one.
            progress: called with (translated, of all) sentences after each batch; each part counts as one.

        Raises:
            ConfigError: a number that cannot be; as many prefixes as sentences are needed.
            DataError: a prefix of more than max_source_length pieces.
            RunError: the model's probabilities are no numbers.
        """
        search = changed(self.search, beam_size, length_penalty, n_best)
        if n_best is None:
            search = replace(search, n_best=search.beam_size)
        sources = self.encode(sentences)
        if prefixes is not None and len(prefixes) != len(sources):
            raise ConfigError(
                f"prefixes: {len(prefixes)} for {len(sources)} sentences; give one for each, and '' where nothing is "
                "forced"
            )
        forced = None if prefixes is None else self.encode_prefixes(prefixes)
        for index, parts in enumerate(sources):
            if len(parts) > 1:
                warnings.warn(
                    f"sentence {index} has more than max_source_length = {self.max_source_length} pieces and is "
                    f"translated in {len(parts)} parts",
                    stacklevel=2,
                )
        return self.translate_encoded(sources, search, prefixes=forced, progress=progress)

    def encode(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """The parts of each sentence, as pieces with EOS; no part where nothing is said."""
        if isinstance(sentences, str):
            raise TypeError("sentences: a sequence of strings, not one string")
        encoded = self.vocabulary.encode_batch([_text(sentence) for sentence in sentences])
        return [
            [[*part, EOS] for part in parts_of(pieces, self.max_source_length, self.vocabulary)] if pieces else []
            for pieces in encoded
        ]

    def encode_prefixes(self, prefixes: Sequence[str], first: int = 0) -> list[list[int]]:
        """The pieces of each prefix; `first` of them came before, which the message counts in.

        Raises:
            DataError: a prefix of more than max_source_length pieces.
        """
        encoded = self.vocabulary.encode_batch([_text(prefix) for prefix in prefixes])
        for index, pieces in enumerate(encoded):
            if len(pieces) > self.max_source_length:
                raise DataError(
                    f"prefixes: number {first + index + 1} has {len(pieces)} pieces, more than "
                    f"max_source_length = {self.max_source_length}; shorten it, or raise max_source_length"
                )
        return encoded

    def translate_encoded(
        self,
        sources: Sequence[Sequence[Sequence[int]]],
        search: Search,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        progress: Progress | None = None,
    ) -> list[list[Translation]]:
        """As translate_n_best, of what `encode` and `encode_prefixes` gave. All parts are searched together.

        Raises:
            RunError: the model's probabilities are no numbers.
        """
        forced = None
        if prefixes is not None:
            forced = [
                prefix if place == 0 else []
                for parts, prefix in zip(sources, prefixes, strict=True)
                for place in range(len(parts))
            ]
        together = [part for parts in sources for part in parts]
        found = iter(self.engine.search(together, search, prefixes=forced, progress=progress))
        return [_joined([self._translations(next(found)) for _ in parts], search.n_best) for parts in sources]

    def _translations(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise RunError("the model's probabilities are not finite, so there is no translation; use a sound run")
        return [
            Translation(
                as_a_line(self.vocabulary, hypothesis.pieces),
                hypothesis.score,
                hypothesis.log_probability,
                hypothesis.finished,
            )
            for hypothesis in hypotheses
        ]


def _text(sentence: str) -> str:
    return normalise(_SURROGATES.sub("\ufffd", sentence))


def _joined(parts: Sequence[Sequence[Translation]], n_best: int) -> list[Translation]:
    """The best ways to choose one translation of each part, joined by blanks: best first, by the sum of scores."""
    if not parts:
        return [NOTHING]
    if len(parts) == 1:
        return list(parts[0])
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # with which translation of each part so far
    for translations in parts:
        longer = [
            (score + translation.score, before, place)
            for score, before in best
            for place, translation in enumerate(translations)
        ]
        longer.sort(key=lambda choice: -choice[0])  # stable: of equals the one of the better beginning
        best = [(score, (*before, place)) for score, before, place in longer[:n_best]]
    joined = []
    for score, places in best:
        chosen = [translations[place] for translations, place in zip(parts, places, strict=True)]
        joined.append(
            Translation(
                " ".join(translation.text for translation in chosen if translation.text),
                score,
                sum(translation.log_probability for translation in chosen),
                all(translation.finished for translation in chosen),
            )
        )
    return joined


def _hardware(name: str) -> HardwareConfig:
    """A choice of conf/hardware/ as it stands.

    Raises:
        ConfigError: there is none of this name, or it is a variant of another one, which Hydra would have to compose.
    """
    files = {path.stem: path for path in (data_dir("conf") / "hardware").glob("*.yaml")}
    choices = {stem: yaml.safe_load(path.read_text(encoding="utf-8")) for stem, path in files.items()}
    whole = [stem for stem, settings in choices.items() if "defaults" not in settings]
    if name not in whole:
        raise ConfigError(f"hardware: no such choice {name!r}" + did_you_mean(name, whole))
    return validate(HardwareConfig, choices[name])


def _default_hardware(defaults: Sequence[Any]) -> str:
    """The choice of a `defaults` list."""
    return next(str(entry["hardware"]) for entry in defaults if isinstance(entry, dict) and "hardware" in entry)


def _settings(name: str) -> dict[str, Any]:
    """A file of conf/ as plain values."""
    settings: dict[str, Any] = yaml.safe_load((data_dir("conf") / f"{name}.yaml").read_text(encoding="utf-8"))
    return settings
