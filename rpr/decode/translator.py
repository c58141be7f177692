"""Translating sentences with a trained run or an export of it, in three lines of Python:

from rpr import Translator
translator = Translator.from_run("runs/NAME-HASH")
translator.translate(["A dog runs ."])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rpr.config.commands import TranslateConfig
from rpr.config.train import HardwareConfig, check_attention
from rpr.data.corpora import normalise
from rpr.data.vocabulary import EOS, TextVocabulary, Vocabulary
from rpr.decode.engine import Engine, engine_of, search_of, translate_sources
from rpr.decode.exported import is_export, load_exported_model, read_export
from rpr.errors import ConfigError, Problem, RecordError
from rpr.model.beam_search import Search
from rpr.paths import data_dir, user_path
from rpr.runs import loading, runtime
from rpr.validation import validate

_SURROGATES = re.compile("[\ud800-\udfff]")


class Translator:
    """Translates sentences of any text. As in training, control characters (including line breaks) and runs of
    whitespace become one space; lone surrogates become U+FFFD. A sentence that is then empty has an empty translation.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, search: Search) -> None:
        """`search` is the default that each call may override."""
        self.engine = engine
        self.vocabulary = vocabulary
        self.search = search

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        *,
        average_checkpoints: int | None = None,
        hardware: str | HardwareConfig | None = None,
        cache_dir: str | None = None,
    ) -> Translator:
        """Load the folder of a run or of a safetensors export. None means the default in conf/translate.yaml, which
        documents the settings; `hardware` is a file name in conf/hardware/ or a configuration. It sets the number of
        threads and the matmul precision of the whole process. Raises ConfigError for an invalid value,
        FileNotFoundError for unknown hardware, DataError or RecordError if the folder is no run or export, or damaged.
        """
        given = {"average_checkpoints": average_checkpoints, "cache_dir": cache_dir}
        return cls.from_config(translate_config(path, hardware, **given))

    @classmethod
    def from_config(cls, config: TranslateConfig, *, documents: bool = False) -> Translator:
        """As from_run; beam_size, length_penalty and min_length of the configuration, if set, override the run's.
        Raises RecordError for a language model of documents, unless `documents`.
        """
        folder, hardware = user_path(config.run).absolute(), config.hardware
        runtime.check_devices(hardware)
        given = {name: getattr(config, name) for name in ("beam_size", "length_penalty", "min_length")}
        # 1. An export is one model with its own vocabulary.
        if is_export(folder):
            for name in ("average_checkpoints", "cache_dir"):
                if getattr(config, name) is not None:
                    raise ConfigError(f"{name}: {folder} is an export of one model with its vocabulary; leave it out")
            exported = read_export(folder)
            vocabulary, search = exported.vocabulary(folder), exported.search
            runtime.set_up(hardware)
            model = load_exported_model(folder).to(runtime.torch_device(hardware))
            model = model if hardware.precision == "64" else model.float()  # of an export in 64 bits
            check_attention(hardware, model.config.stacks())
            model.use_attention(hardware.attention)
        # 2. A run has its checkpoints, and the settings of its search.
        else:
            trained = loading.config_of(folder, config)
            search = search_of(trained.evaluation)
            runtime.set_up(hardware)
            vocabulary = loading.vocabulary_of(folder, trained)
            model, _ = loading.model_of(trained, folder, config.average_checkpoints, len(vocabulary))
        if isinstance(vocabulary, TextVocabulary) and not documents:
            rule = f"{folder.name} is a language model of documents, which does not translate"
            raise RecordError(f"run: {rule}; use generate, evaluate, verify, compare, report or export")
        return cls(engine_of(model, hardware, config.matmul_precision), vocabulary, _changed(search, **given))

    def translate(
        self, sentences: Sequence[str], *, beam_size: int | None = None, length_penalty: float | None = None
    ) -> list[str]:
        """The best translation of each sentence, in order. Raises ConfigError if a value is out of range, RunError if
        the model's probabilities are not finite.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences: expected a sequence of strings, not one string")
        search = _changed(self.search, beam_size=beam_size, length_penalty=length_penalty)
        return translate_sources(self.engine, self.encode(sentences), self.vocabulary, search).texts

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token IDs with EOS; none of an empty sentence."""
        encoded = self.vocabulary.encode_batch([normalised(sentence) for sentence in sentences])
        return [[*pieces, EOS] if pieces else [] for pieces in encoded]


def translate_config(path: str | Path, hardware: str | HardwareConfig | None, **arguments: Any) -> TranslateConfig:
    """The settings of conf/translate.yaml with the arguments of `Translator.from_run` that are not None."""
    settings = _conf("translate.yaml")
    usual = next(choice["hardware"] for choice in settings.pop("defaults") if isinstance(choice, dict))
    if not isinstance(hardware, HardwareConfig):
        hardware = validate(HardwareConfig, _conf(f"hardware/{hardware or usual}.yaml"))
    settings |= {key: value for key, value in arguments.items() if value is not None}
    return validate(TranslateConfig, {**settings, "run": str(path), "hardware": hardware})


def normalised(sentence: str) -> str:
    """A sentence as the model reads it."""
    return normalise(_SURROGATES.sub("\ufffd", sentence))


def _changed(search: Search, **given: Any) -> Search:
    search = replace(search, **{key: value for key, value in given.items() if value is not None})
    for name, least in (("beam_size", 1), ("length_penalty", 0)):
        if not getattr(search, name) >= least:  # NaN is not
            raise ConfigError(Problem(name, getattr(search, name), f"must be at least {least}"))
    return search


def _conf(name: str) -> Any:
    return yaml.safe_load((data_dir("conf") / name).read_text(encoding="utf-8"))
