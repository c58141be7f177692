"""Translating sentences with a trained run or an export of it, in three lines of Python:

from rpr import Translator
translator = Translator.from_run("runs/NAME-HASH")
translator.translate(["A dog runs ."])
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rpr.config.commands import TranslateConfig
from rpr.config.train import HardwareConfig, check_attention
from rpr.data.pairs import normalise
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.engines import check_export, ctranslate2_engine, exported_folder, override_search, torch_engine
from rpr.decode.exported import is_export, load_exported_model, read_export
from rpr.decode.split_long import split_long_source
from rpr.decode.torch_engine import Engine, search_of
from rpr.errors import ConfigError, RecordError, did_you_mean
from rpr.kinds import TEXT
from rpr.model.beam_search import Hypothesis, Search
from rpr.paths import data_dir, user_path
from rpr.runs import loading, runtime
from rpr.validation import validate

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence: its text, without line breaks, and the values of its Hypothesis. A sentence
    translated in parts has only one, whose scores are sums over the parts; it is finished if every part is.
    """

    text: str
    score: float
    log_probability: float
    finished: bool


class Translator:
    """Translates sentences of any text. As in training, control characters (including line breaks) and runs of
    whitespace become one space; lone surrogates become U+FFFD. A sentence that is then empty has an empty translation.
    A sentence of more than `max_source_length` tokens is translated in parts.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, search: Search, *, max_source_length: int) -> None:
        """`search` is the default that each call may override; `max_source_length` excludes EOS."""
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
        """Load the folder of a run or an export. None means the default in conf/translate.yaml, which documents the
        settings; `hardware` is a file name in conf/hardware/ or a configuration. It sets the number of threads and the
        matmul precision of the whole process. Raises ConfigError for an invalid value, or contradictory ones, DataError
        or RecordError if the folder is not a run or an export, or is damaged.
        """
        config = translate_config(
            path,
            hardware,
            backend=backend,
            compute_type=compute_type,
            average_checkpoints=average_checkpoints,
            cache_dir=cache_dir,
            max_source_length=max_source_length,
        )
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: TranslateConfig, *, documents: bool = False) -> Translator:
        """As from_run; beam_size and length_penalty of the configuration, if set, override the run's. All settings are
        checked before weights are read. A language model of documents is refused, unless `documents`.
        """
        folder, hardware = user_path(config.run).absolute(), config.hardware
        longest, exported = config.max_source_length, None
        runtime.check_devices(hardware)
        if is_export(folder):
            exported = read_export(folder)
        elif config.backend == "ctranslate2":
            exported = read_export(exported_folder(folder, config.run))
        if exported is None:
            trained = loading.config_of(folder, config)
            if trained.data.kind is TEXT and not documents:
                raise RecordError(
                    f"run: {folder.name} is a language model of documents, and this command needs a model of sentence "
                    "pairs; use generate, evaluate, verify, compare, report or export"
                )
            search = search_of(trained.evaluation)
        else:
            vocabulary, search = check_export(exported, config), exported.search
        names = ("beam_size", "length_penalty", "min_length", "n_best")
        search = override_search(search, **{name: getattr(config, name) for name in names})
        if exported is not None and exported.settings.kind == "ctranslate2":
            runtime.set_up(hardware)
            rows = exported.settings.position_rows
            longest = longest if rows is None else min(longest, rows - 1)
            of_export = ctranslate2_engine(exported.folder, hardware, config.compute_type)
            return cls(of_export, vocabulary, search, max_source_length=longest)
        if config.compute_type != "float32":
            raise ConfigError(
                f"compute_type: {config.compute_type} has no effect with backend=torch, which uses hardware.precision: "
                "set hardware.precision=bf16, or backend=ctranslate2"
            )
        runtime.set_up(hardware)
        if exported is None:
            vocabulary = loading.vocabulary_of(folder, trained)
            model, _ = loading.model_of(trained, folder, config.average_checkpoints, len(vocabulary))
        else:
            model = load_exported_model(exported.folder).to(runtime.torch_device(hardware))
            if hardware.precision != "64":
                model = model.float()  # of an export in 64 bits
            check_attention(hardware, model.config.stacks())
            model.use_attention(hardware.attention)
        engine = torch_engine(model, hardware, config.matmul_precision)
        return cls(engine, vocabulary, search, max_source_length=longest)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> list[str]:
        """The best translation of each sentence, in order; arguments as for translate_n_best."""
        n_best_lists = self.translate_n_best(sentences, n_best=1, beam_size=beam_size, length_penalty=length_penalty)
        return [translations[0].text for translations in n_best_lists]

    def translate_n_best(
        self,
        sentences: Sequence[str],
        *,
        n_best: int | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each sentence, best first, in the order of the sentences. Emits a UserWarning
        for each one that is translated in parts. Raises ConfigError if a value is out of range, RunError if the model's
        probabilities are not finite.

        Args:
            n_best: at most the beam size; None: the beam size.
            beam_size, length_penalty: None: as configured for the run or the command.
        """
        number = 1 if n_best is None else n_best
        search = override_search(self.search, beam_size=beam_size, length_penalty=length_penalty, n_best=number)
        if n_best is None:
            search = replace(search, n_best=search.beam_size)
        sources = self.encode(sentences)
        for index, parts in enumerate(sources):
            if len(parts) > 1:
                warnings.warn(
                    f"sentence {index} has more than max_source_length = {self.max_source_length} pieces and is "
                    f"translated in {len(parts)} parts",
                    stacklevel=2,
                )
        return self.translate_encoded(sources, search)

    def encode(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """The parts of each sentence, as token IDs with EOS; none for an empty sentence."""
        if isinstance(sentences, str):
            raise TypeError("sentences: expected a sequence of strings, not one string")
        encoded = self.vocabulary.encode_batch([normalised(sentence) for sentence in sentences])
        return [
            [[*part, EOS] for part in split_long_source(pieces, self.max_source_length, self.vocabulary)]
            if pieces
            else []
            for pieces in encoded
        ]

    def translate_encoded(self, sources: Sequence[Sequence[Sequence[int]]], search: Search) -> list[list[Translation]]:
        """As translate_n_best, for the output of `encode`, whose parts are searched together; raises RunError as it."""
        together = [part for parts in sources for part in parts]
        hypotheses = iter(self.engine.search(together, search))
        return [_join_parts([self._texts(next(hypotheses)) for _ in parts]) for parts in sources]

    def _texts(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        return [
            Translation(self.vocabulary.decode(each.pieces), each.score, each.log_probability, each.finished)
            for each in hypotheses
        ]


def translate_config(path: str | Path, hardware: str | HardwareConfig | None, **arguments: Any) -> TranslateConfig:
    """The settings of conf/translate.yaml with the arguments of `Translator.from_run` that are not None."""
    settings = yaml.safe_load((data_dir("conf") / "translate.yaml").read_text(encoding="utf-8"))
    usual = next(choice["hardware"] for choice in settings.pop("defaults") if isinstance(choice, dict))
    if not isinstance(hardware, HardwareConfig):
        hardware = _hardware(hardware or usual)
    settings |= {key: value for key, value in arguments.items() if value is not None}
    return validate(TranslateConfig, {**settings, "run": str(path), "hardware": hardware})


def normalised(sentence: str) -> str:
    """A sentence as the model reads it."""
    return normalise(_SURROGATES.sub("\ufffd", sentence))


def _join_parts(parts: Sequence[Sequence[Translation]]) -> list[Translation]:
    """The translations of a sentence; if it was not translated as one part, the best one of each, joined by spaces."""
    if len(parts) == 1:
        return list(parts[0])
    best = [translations[0] for translations in parts]
    return [
        Translation(
            " ".join(translation.text for translation in best if translation.text),
            math.fsum(translation.score for translation in best),
            math.fsum(translation.log_probability for translation in best),
            all(translation.finished for translation in best),
        )
    ]


def _hardware(name: str) -> HardwareConfig:
    """A file of conf/hardware/, without composition. Raises ConfigError if there is no such file, or it extends another
    one, which only Hydra can compose.
    """
    files = {path.stem: path for path in (data_dir("conf") / "hardware").glob("*.yaml")}
    choices = {stem: yaml.safe_load(path.read_text(encoding="utf-8")) for stem, path in files.items()}
    complete = [stem for stem, settings in choices.items() if "defaults" not in settings]
    if name not in complete:
        raise ConfigError(f"hardware: no such choice {name!r}" + did_you_mean(name, complete))
    return validate(HardwareConfig, choices[name])
