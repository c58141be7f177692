"""Reading a safetensors export: a trained model as a folder of files that translates without its run. Of any export,
card.json says what it is.
"""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rpr.data.vocabulary import Vocabulary
from rpr.decode.engine import SEARCH_SETTINGS
from rpr.errors import ConfigError, DataError
from rpr.model.beam_search import Search
from rpr.model.config import TransformerConfig
from rpr.model.positions import SCHEMES, changed_code
from rpr.model.transformer import Transformer, build_model
from rpr.runs.loading import VOCABULARY_NAME
from rpr.validation import StrictModel, first_problem
from rpr.version import __version__

Kind = Literal["safetensors", "ctranslate2", "transformers"]
FORMAT, VERSION = "rpr-export", 4
CARD_NAME, SETTINGS_NAME, WEIGHTS_NAME = "card.json", "config.json", "model.safetensors"
CONFIG_ADAPTER = TypeAdapter(TransformerConfig)
REMEDY = "export the run again (rpr-cli export)"


def library(kind: Literal["ctranslate2", "transformers"]) -> Any:
    """The package that reads this kind of export; raises ConfigError if it is not installed."""
    try:
        if kind == "ctranslate2":
            return importlib.import_module("ctranslate2")
        return importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(f"{kind}: not installed, and its exports are verified with it; pip install {kind}") from None


class Settings(StrictModel):
    """The contents of config.json. `rpr` is the version that wrote it; `schemes` are the versions of the position
    schemes' code, by name.
    """

    format: Literal["rpr-export"]
    version: int
    rpr: str
    shape: dict[str, Any]
    schemes: dict[str, str]
    beam_size: PositiveInt
    length_penalty: float
    max_extra_length: NonNegativeInt
    max_tokens_per_batch: PositiveInt
    min_length: NonNegativeInt


@dataclass(frozen=True)
class Exported:
    """An export whose weights are not read yet."""

    folder: Path
    settings: Settings
    config: TransformerConfig
    search: Search

    def vocabulary(self) -> Vocabulary:
        """Raises DataError if it is missing, damaged, or does not match the model's vocabulary size."""
        path = self.folder / VOCABULARY_NAME
        vocabulary = Vocabulary.load(path, REMEDY)
        if len(vocabulary) != self.config.vocabulary_size:
            raise DataError(
                f"{path}: has {len(vocabulary)} pieces but the model has {self.config.vocabulary_size}; {REMEDY}"
            )
        return vocabulary


def is_export(folder: Path) -> bool:
    """Whether the folder is a complete export of ours, of any kind and version."""
    try:
        return "kind" in json.loads((folder / CARD_NAME).read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_export(folder: Path) -> Exported:
    """The settings of a safetensors export. Raises DataError if the folder is no such export, or one that is damaged or
    of another version.
    """
    path = folder / SETTINGS_NAME
    try:
        document = json.loads(path.read_text("utf-8"))
        if document.get("format") != FORMAT:
            raise DataError(f"{folder}: is no safetensors export, which alone rpr reads; {REMEDY}")
        if (version := document.get("version")) != VERSION:
            raise DataError(
                f"{path}: format version {version} by rpr {document.get('rpr')}; rpr {__version__} reads {VERSION}: "
                f"use that version, or {REMEDY}"
            )
        settings = Settings.model_validate(document)
        if unknown := sorted(settings.schemes.keys() - SCHEMES.keys()):
            raise DataError(f"{path}: needs the position scheme {unknown[0]}; give its folder as schemes_dir=DIR")
        config = CONFIG_ADAPTER.validate_json(json.dumps(settings.shape), strict=True)
    except (OSError, ValidationError, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({reason_of(error)}); {REMEDY}") from None
    search = Search(**{name: getattr(settings, name) for name in SEARCH_SETTINGS})
    return Exported(folder, settings, config, search)


def load_exported_model(folder: Path) -> Transformer:
    """The model of a safetensors export, on the CPU and in evaluation mode. Raises DataError as `read_export`, if the
    code of its positions has changed, or if weights are missing, damaged, or do not match the settings.
    """
    exported, path = read_export(folder), folder / WEIGHTS_NAME
    if changes := changed_code([stack.scheme for stack in exported.config.stacks()], exported.settings.schemes):
        raise DataError(
            f"{folder}: {changes[0]} since the export; restore it as it was with rpr {exported.settings.rpr}, or train "
            "the run again and export it"
        )
    model = build_model(exported.config)
    tensors = stored_tensors(model)
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); {REMEDY}") from None
    for name in sorted(tensors.keys() | weights.keys()):
        stored, ours = (list(side[name].shape) if name in side else "absent" for side in (weights, tensors))
        if stored != ours:
            raise DataError(f"{path}: does not match {SETTINGS_NAME}: {name} is {stored}, expected {ours}; {REMEDY}")
        tensors[name].data = weights[name].clone()  # keeps the precision of the file
    return model.eval().requires_grad_(False)


def stored_tensors(model: Transformer) -> dict[str, Tensor]:
    """The parameters, a table that layers share once, under the first one's name; then what positions save beside them
    (buffers).
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: saved for name, saved in model.state_dict(keep_vars=True).items() if name not in parameters}
    return {**dict(model.named_parameters()), **buffers}


def reason_of(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_problem(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:150]
