"""Reading a safetensors export: a trained model as a folder of files that translates without its run. Of any export,
card.json says what it is.
"""

import importlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model
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
    """The contents of config.json, by version `rpr`; `schemes` are the versions of the position schemes' code."""

    format: Literal["rpr-export"]
    version: int
    rpr: str
    shape: TransformerConfig
    schemes: dict[str, str]
    beam_size: PositiveInt
    length_penalty: float
    max_extra_length: NonNegativeInt
    max_tokens_per_batch: PositiveInt
    min_length: NonNegativeInt

    @property
    def search(self) -> Search:
        """The run's."""
        return Search(**{name: getattr(self, name) for name in SEARCH_SETTINGS})

    def vocabulary(self, folder: Path) -> Vocabulary:
        """Raises DataError if it is missing, damaged, or does not match the model's vocabulary size."""
        vocabulary = Vocabulary.load(path := folder / VOCABULARY_NAME, REMEDY)
        if len(vocabulary) != (expected := self.shape.vocabulary_size):
            raise DataError(f"{path}: has {len(vocabulary)} pieces but the model has {expected}; {REMEDY}")
        return vocabulary


def is_export(folder: Path) -> bool:
    """Whether the folder is a complete export of ours, of any kind and version."""
    try:
        return "kind" in json.loads((folder / CARD_NAME).read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_export(folder: Path) -> Settings:
    """The settings of a safetensors export. Raises DataError if the folder is no such export, or one that is damaged or
    of another version.
    """
    path = folder / SETTINGS_NAME
    try:
        document = json.loads(path.read_text("utf-8"))
        if (document.get("format"), document.get("version")) != (FORMAT, VERSION):
            rule = f"is no safetensors export of version {VERSION}, which alone rpr {__version__} reads"
            raise DataError(f"{folder}: {rule} (rpr {document.get('rpr')} wrote it); {REMEDY}")
        if unknown := sorted(document["schemes"].keys() - SCHEMES.keys()):
            raise DataError(f"{path}: needs the position scheme {unknown[0]}; give its folder as schemes_dir=DIR")
        return Settings.model_validate(document)
    except (OSError, ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({reason_of(error)}); {REMEDY}") from None


def load_exported_model(folder: Path) -> Transformer:
    """The model of a safetensors export, on the CPU, in evaluation mode and in the precision of the file. Raises
    DataError as `read_export`, if the code of its positions has changed, or if the weights are damaged.
    """
    settings, path = read_export(folder), folder / WEIGHTS_NAME
    if changes := changed_code([stack.scheme for stack in settings.shape.stacks()], settings.schemes):
        remedy = f"restore it as it was with rpr {settings.rpr}, or train the run again and export it"
        raise DataError(f"{folder}: {changes[0]} since the export; {remedy}")
    try:
        with safe_open(path, "pt") as file:
            model = build_model(settings.shape).to(file.get_tensor("embedding_VM").dtype)
        load_model(model, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DataError(f"{path}: does not fit {SETTINGS_NAME}, or is damaged ({reason_of(error)}); {REMEDY}") from None
    return model.eval().requires_grad_(False)


def stored_tensors(model: Transformer) -> dict[str, Tensor]:
    """The parameters, a table that layers share once, under the first one's name; then the buffers that are saved."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: saved for name, saved in model.state_dict(keep_vars=True).items() if name not in parameters}
    return {**dict(model.named_parameters()), **buffers}


def reason_of(error: Exception) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else " ".join(str(error).split())[:250]
