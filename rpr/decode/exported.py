"""A trained model as a folder of plain files that translates without its run.

safetensors     model.safetensors, config.json, vocabulary.model, card.json, README.md
ctranslate2     CTranslate2's model.bin, config.json and shared_vocabulary.json; rpr.json (what config.json is
                above), vocabulary.model, card.json, README.md
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import PositiveInt, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from rpr import __version__
from rpr.data.vocabulary import Vocabulary
from rpr.decode.torch_engine import Search
from rpr.errors import DataError
from rpr.migrations import export_shape_2
from rpr.model.transformer import Transformer, TransformerConfig
from rpr.runs.loading import VOCABULARY_NAME
from rpr.validation import Section

Kind = Literal["safetensors", "ctranslate2"]
FORMAT, VERSION = "rpr-export", 2
CARD_NAME = "card.json"
SETTINGS_NAMES: dict[Kind, str] = {"safetensors": "config.json", "ctranslate2": "rpr.json"}
WEIGHTS_NAMES: dict[Kind, str] = {"safetensors": "model.safetensors", "ctranslate2": "model.bin"}
SEARCH = (
    "beam_size",
    "length_penalty",
    "max_extra_length",
    "max_tokens_per_batch",
    "min_length",
)  # of the run's evaluation
CONFIG_ADAPTER = TypeAdapter(TransformerConfig)
REMEDY = "export the run again (rpr-cli export)"


class Settings(Section):
    """What config.json, or rpr.json, holds beside the format and its version."""

    kind: Kind
    rpr: str
    run_name: str
    run_id: str
    checkpoint: str
    source_language: str
    target_language: str
    shape: dict[str, Any]
    beam_size: PositiveInt
    length_penalty: float
    max_extra_length: int
    max_tokens_per_batch: PositiveInt
    min_length: int
    position_rows: PositiveInt | None


@dataclass(frozen=True)
class Exported:
    """An export as its settings describe it; nothing of its weights is read yet.

    `checkpoint` is the words that say which of the run it is made of; `position_rows` how many positions it has, None:
    any number; `rpr` the version that wrote it.
    """

    folder: Path
    kind: Kind
    config: TransformerConfig
    search: Search
    run_name: str
    run_id: str
    checkpoint: str
    source_language: str
    target_language: str
    position_rows: int | None
    rpr: str

    @property
    def vocabulary_path(self) -> Path:
        return self.folder / VOCABULARY_NAME

    def vocabulary(self) -> Vocabulary:
        """Raises DataError when it is absent, damaged, or of another size than the model."""
        vocabulary = Vocabulary.load(self.vocabulary_path)
        if len(vocabulary) != self.config.vocabulary_size:
            raise DataError(
                f"{self.vocabulary_path}: has {len(vocabulary)} pieces, the model beside it "
                f"{self.config.vocabulary_size}; {REMEDY}"
            )
        return vocabulary


def is_export(folder: Path) -> bool:
    """Whether the folder is a whole export of ours, of whatever version."""
    return (folder / CARD_NAME).is_file() and any(_says_so(folder / name) for name in SETTINGS_NAMES.values())


def read_export(folder: Path) -> Exported:
    """The settings of an export.

    Raises:
        DataError: the folder holds none, or one that is damaged or newer than this rpr.
    """
    path = next((folder / name for name in SETTINGS_NAMES.values() if _says_so(folder / name)), None)
    if path is None:
        raise DataError(f"{folder}: holds no export; give a folder that rpr-cli export wrote")
    document = json.loads(path.read_text("utf-8"))
    version = document.pop("version", None)
    if type(version) is not int or version > VERSION:
        raise DataError(
            f"{path}: version {version} of the format, written by rpr {document.get('rpr')}; this is rpr "
            f"{__version__}, which reads up to version {VERSION}: install a newer one"
        )
    del document["format"]
    document.setdefault("min_length", 0)  # what version 1 did
    try:
        settings = Settings.model_validate(document)
        found = settings.shape if version > 1 else export_shape_2(settings.shape)
        config = CONFIG_ADAPTER.validate_json(json.dumps(found), strict=True)
        _check_sizes(config)
    except (ValidationError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({reason_of(error)}); {REMEDY}") from None
    search = Search(**{name: getattr(settings, name) for name in SEARCH})
    same = settings.model_dump(exclude={"shape", *SEARCH})
    return Exported(folder=folder, config=config, search=search, **same)


def load_exported_model(folder: Path) -> Transformer:
    """The model of a safetensors export, on the CPU and in evaluation mode.

    Raises:
        DataError: as `read_export`; or weights that are absent, damaged, or do not fit the settings beside them.
    """
    exported = read_export(folder)
    path = folder / WEIGHTS_NAMES["safetensors"]
    if exported.kind != "safetensors":
        raise DataError(f"{folder}: holds a model for CTranslate2; export the run with format=safetensors")
    model = Transformer(exported.config)
    parameters = dict(model.named_parameters())
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            names = set(file.keys())
            if names != parameters.keys():
                name = min(names ^ parameters.keys())
                which = "is missing" if name in parameters else "does not belong to it"
                raise DataError(f"{path}: does not fit {SETTINGS_NAMES['safetensors']}, {name} {which}; {REMEDY}")
            for name, parameter in parameters.items():
                weight = file.get_tensor(name)
                if weight.shape != parameter.shape:
                    raise DataError(
                        f"{path}: does not fit {SETTINGS_NAMES['safetensors']}, {name} is {list(weight.shape)} and "
                        f"should be {list(parameter.shape)}; {REMEDY}"
                    )
                parameter.data = weight.clone()  # as it is in the file, of whatever precision
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); {REMEDY}") from None
    return model.eval().requires_grad_(False)


def _says_so(path: Path) -> bool:
    """Whether a file is settings of ours; CTranslate2 has a config.json too."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _check_sizes(config: TransformerConfig) -> None:
    """Reject sizes from which no model can be built. Raises ValueError; `shape` in its text is the key of the file."""
    for name in ("vocabulary_size", "num_layers", "d_model", "num_heads", "d_ff"):
        if getattr(config, name) < 1:
            raise ValueError(f"shape.{name} is {getattr(config, name)}")
    if config.d_model % config.num_heads:
        raise ValueError(f"shape: {config.d_model} is no multiple of {config.num_heads}")
    if config.norm not in ("pre", "post"):
        raise ValueError(f"shape: norm {config.norm!r}")
    for causal, scheme in ((False, config.encoder_positions), (True, config.decoder_positions)):
        if problem := scheme.problem(config.site(causal=causal)):
            raise ValueError(f"shape: {problem}")


def reason_of(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:150]
