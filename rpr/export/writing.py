"""Writing an export: to a temporary folder, checked against the model, and only then renamed."""

import glob
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from rpr.decode.engine import SEARCH_SETTINGS, Engine, Progress, search_of
from rpr.decode.exported import (
    CARD_NAME,
    CONFIG_ADAPTER,
    FORMAT,
    SETTINGS_NAME,
    VERSION,
    WEIGHTS_NAME,
    Kind,
    Settings,
    is_export,
    library,
    load_exported_model,
    reason_of,
    stored_tensors,
)
from rpr.errors import ConfigError, RunError
from rpr.export import transformers_files
from rpr.export.card import card, longest, readme
from rpr.export.ctranslate2_spec import unrepresentable, write_model
from rpr.export.parity import EXACT, Parity, identical_share, parity
from rpr.export.scorers import GeneratorScorer, TransformersScorer, TranslatorScorer
from rpr.io.atomic import replacing
from rpr.io.locks import exclusive
from rpr.model.config import TransformerConfig
from rpr.model.positions import codes
from rpr.model.transformer import Transformer
from rpr.runs.loading import VOCABULARY_NAME, TrainedModel
from rpr.version import __version__

README_NAME = "README.md"
# The comparison; and the fraction of greedy translations that int8 does not change, if CTranslate2's Translator reads
# the export and supports int8 here.
Proof = tuple[Parity, float | None]


def check(kind: Kind, out: Path, config: TransformerConfig, tokenizer: str) -> None:
    """Before anything is computed: raises ConfigError if `out` exists and is not an export, or as `check_supported`."""
    if out.exists() and not is_export(out):
        raise ConfigError(
            f"output_dir: {out} exists and is not an export; only an earlier export is replaced: choose another folder"
        )
    check_supported(kind, config, tokenizer)


def check_supported(kind: Kind, config: TransformerConfig, tokenizer: str) -> None:
    """Raises ConfigError if the other program cannot represent the model or the pieces of data.tokenizer, or is not
    installed.
    """
    if kind == "safetensors":
        return
    of_transformers = kind == "transformers"
    reason = transformers_files.unrepresentable(config, tokenizer) if of_transformers else unrepresentable(config)
    if reason is not None:
        raise ConfigError(reason)
    library(kind)


def export(kind: Kind, out: Path, trained: TrainedModel, progress: Progress | None = None) -> Proof:
    """Write the folder `out` atomically, replacing an earlier export there. Raises ConfigError as `check`, RunError if
    the export does not match the model, or the folder cannot be written.
    """
    check(kind, out, trained.model.config, trained.config.data.tokenizer)
    try:
        with exclusive(out.parent, glob.escape(out.name)), replacing(out) as temporary:
            temporary.mkdir()
            write_files(kind, temporary, trained)
            proven, int8 = prove(kind, temporary, trained, progress)
            if not proven.passed:
                raise RunError(
                    f"export: the {kind} export does not match the model ({proven}); it was removed: report this with "
                    "the run's record, or mend your scheme, whose hooks may read its settings and parameters alone"
                )
            document = card(kind, trained, proven, int8)
            (temporary / README_NAME).write_text(readme(document, trained, proven), "utf-8")
            (temporary / CARD_NAME).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return proven, int8
    except OSError as error:
        raise RunError(
            f"output_dir: {out} cannot be written ({error.strerror or error}); the partial export was removed: "
            "fix this, or choose another folder"
        ) from None


def prove(kind: Kind, folder: Path, trained: TrainedModel, progress: Progress | None = None) -> Proof:
    """Read the files in `folder` back and compare them with the model.

    A safetensors export must have bit-identical weights, and the same translations and log p in float64, up to
    rounding, on the model's device.
    """
    search = search_of(trained.config.evaluation, greedy=True)
    sentences = (trained.sources, trained.references, search)
    if kind == "safetensors":
        copied = load_exported_model(folder).to(trained.model.embedding_VM.device)
        _check_weights(trained.model, copied)
        return parity(trained.model, Engine(copied.double()), *sentences, tolerance=EXACT, progress=progress), None
    threads = torch.get_num_threads()
    if trained.model.config.architecture == "decoder_only":
        others = kind == "transformers"
        scorer = TransformersScorer(folder) if others else GeneratorScorer(folder, trained.vocabulary, threads)
        return parity(trained.model, scorer, *sentences, progress=progress), None
    exported = TranslatorScorer(folder, trained.vocabulary, threads)
    proven = parity(trained.model, exported, *sentences, progress=progress)
    if "int8" not in library("ctranslate2").get_supported_compute_types("cpu"):
        return proven, None
    int8 = TranslatorScorer(folder, trained.vocabulary, threads, "int8")
    return proven, identical_share(exported, int8, trained.sources, search)


def _check_weights(model: Transformer, copied: Transformer) -> None:
    for (name, weight), other in zip(stored_tensors(model).items(), stored_tensors(copied).values(), strict=True):
        if weight.dtype != other.dtype or not torch.equal(weight, other):
            raise RunError(
                f"export: {name} read back from safetensors differs from the model; the export was removed: report "
                "this with the run's record"
            )


def write_files(kind: Kind, folder: Path, trained: TrainedModel) -> None:
    """Write everything except the card and README to an empty folder; raises OSError if it cannot be written.
    `check_supported` must have passed.
    """
    model, vocabulary, config = trained.model, trained.vocabulary, trained.config
    if kind == "safetensors":
        try:
            weights = {name: weight.detach().cpu().contiguous() for name, weight in stored_tensors(model).items()}
            save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
        except SafetensorError as error:  # the safetensors writer wraps OSError
            raise OSError(reason_of(error)) from None
    elif kind == "transformers":
        transformers_files.write_model(model, folder, longest(trained))
    else:
        write_model(model, [vocabulary.piece(index) for index in range(len(vocabulary))], folder, longest(trained))
    vocabulary.save(folder / VOCABULARY_NAME)
    if kind != "safetensors":
        return
    settings = Settings(
        format=FORMAT,
        version=VERSION,
        rpr=__version__,
        schemes=codes(stack.scheme for stack in model.config.stacks()),
        shape=CONFIG_ADAPTER.dump_python(model.config, mode="json"),
        **{name: getattr(config.evaluation, name) for name in SEARCH_SETTINGS},
    )
    (folder / SETTINGS_NAME).write_text(json.dumps(settings.model_dump(), indent=1) + "\n", "utf-8")
