"""Decoding engines as a command configures them, and what an export allows."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rpr.config.commands import TranslateConfig
from rpr.config.train import HardwareConfig, TrainConfig
from rpr.data.vocabulary import TextVocabulary, Vocabulary
from rpr.decode.ctranslate2 import CTranslate2Engine
from rpr.decode.exported import FORMATS, Exported, is_export, read_export
from rpr.decode.torch_engine import Engine, TorchEngine
from rpr.errors import ConfigError, DataError
from rpr.model.beam_search import Search
from rpr.model.transformer import Transformer
from rpr.runs import loading, runtime
from rpr.runs.checkpoints import checkpoints, last_step

CTRANSLATE2_FOLDER = Path("exports", "ctranslate2")  # in the run folder, where rpr-cli export writes it


def override_search(search: Search, **given: Any) -> Search:
    """`search` with the values that are not None; raises ConfigError if one is out of range."""
    search = replace(search, **{key: value for key, value in given.items() if value is not None})
    for name, least in (("beam_size", 1), ("length_penalty", 0)):
        if not getattr(search, name) >= least:  # NaN is not
            raise ConfigError(f"{name}: invalid value {getattr(search, name)}: must be at least {least}")
    if not 1 <= search.n_best <= search.beam_size:
        raise ConfigError(
            f"n_best: invalid value {search.n_best}: must be 1 to beam_size = {search.beam_size}; "
            f"set beam_size to {max(search.n_best, 1)} or more"
        )
    return search


def check_export(exported: Exported, config: TranslateConfig) -> Vocabulary:
    """The vocabulary of an export that fits the settings. Raises ConfigError if it does not translate, or a setting
    contradicts it.
    """
    kind, decoder_only = exported.settings.kind, exported.config.architecture == "decoder_only"
    if kind == "transformers" or (kind == "ctranslate2" and decoder_only):
        raise ConfigError(
            f"run: {exported.folder} is {FORMATS[kind].title} of a decoder-only model, for other programs alone (its "
            "README.md says how); give the run's folder, or export it with format=safetensors"
        )
    vocabulary = exported.vocabulary()
    if isinstance(vocabulary, TextVocabulary):
        raise ConfigError(f"run: {exported.folder} is a language model of documents, which does not translate")
    if config.backend not in (None, "torch" if kind == "safetensors" else kind):
        raise ConfigError(
            f"backend: {config.backend} cannot read {exported.folder}, which is {FORMATS[kind].title}; "
            "omit backend, or give the run's folder"
        )
    if config.average_checkpoints is not None:
        raise ConfigError(
            f"average_checkpoints: {exported.folder} is an export of one model ({exported.settings.checkpoint}); "
            "omit it, or export the run again with it"
        )
    if config.cache_dir is not None:
        raise ConfigError(f"cache_dir: {exported.folder} is an export, with its own vocabulary; leave it out")
    if kind == "ctranslate2" and config.matmul_precision != "highest":
        raise ConfigError("matmul_precision: CTranslate2 does not read it; choose compute_type, or backend=torch")
    return vocabulary


def exported_folder(run_dir: Path, typed: str) -> Path:
    """The folder of a run's CTranslate2 export; `typed` is the run as given on the command line. Raises RecordError if
    the folder is not a run, DataError if the run has no such export yet, or one that is damaged or of an earlier
    checkpoint.
    """
    loading.record_of(run_dir)
    folder = run_dir / CTRANSLATE2_FOLDER
    command = shlex.join(["rpr-cli", "export", f"run={typed}", "format=ctranslate2"])
    if not is_export(folder):
        raise DataError(f"run: {run_dir} has no {CTRANSLATE2_FOLDER}; create it with: {command}")
    exported, saved = read_export(folder).settings.checkpoint, checkpoints(run_dir / "checkpoints")
    if saved and last_step(exported) not in (None, saved[-1][0]):
        raise DataError(
            f"run: {folder} is of an earlier checkpoint than the run's last one, step {saved[-1][0]} ({exported}); "
            f"export it again with: {command}"
        )
    return folder


def torch_engine(model: Transformer, hardware: HardwareConfig, matmul_precision: str) -> TorchEngine:
    """Our own beam search with this model, in the precision of `hardware`."""
    return TorchEngine(
        model.double() if hardware.precision == "64" else model,
        bfloat16=hardware.precision == "bf16",
        matmul_precision=matmul_precision,
    )


def ctranslate2_engine(folder: Path, hardware: HardwareConfig, compute_type: str) -> CTranslate2Engine:
    """CTranslate2's search with the export in this folder; raises ConfigError if it does not support the precision."""
    if hardware.precision == "64":
        raise ConfigError("hardware.precision: CTranslate2 does not support 64; choose backend=torch")
    device = runtime.torch_device(hardware).type
    return CTranslate2Engine(folder, compute_type=compute_type, threads=hardware.threads, device=device)


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its engine, and the checkpoints and arithmetic precision for the record."""

    engine: Engine
    checkpoint: str
    precision: str


def evaluated_model(config: TrainConfig, model: Transformer, checkpoint: str) -> EvaluatedModel:
    """The torch engine with this model, as configured; matmuls "as in training" are those of this process."""
    hardware = config.hardware
    matmuls = config.evaluation.matmul_precision or torch.get_float32_matmul_precision()
    engine = torch_engine(model, hardware, matmuls)
    rounded = hardware.precision == "32" and matmuls != "highest"
    return EvaluatedModel(engine, checkpoint, f"{hardware.precision}{f', {matmuls} products' * rounded}")
