"""Writing an export: to a temporary folder, checked against the model, and only then renamed."""

import glob
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
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
from rpr.export import ctranslate2, transformers
from rpr.export.ctranslate2 import GeneratorScorer, TranslatorScorer
from rpr.export.parity import EXACT, Parity, parity
from rpr.export.transformers import TransformersScorer
from rpr.io.atomic import replacing
from rpr.io.escape import escape_markdown, escape_tree
from rpr.io.locks import exclusive
from rpr.model.config import TransformerConfig
from rpr.model.positions import codes
from rpr.model.transformer import Transformer
from rpr.records.position import position_of
from rpr.records.scores import score_digits
from rpr.runs.loading import VOCABULARY_NAME, TrainedModel
from rpr.version import __version__

README_NAME = "README.md"
CARD_VERSION = 3
_TEMPLATES = Environment(
    loader=PackageLoader("rpr.export"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["digits"] = score_digits
_PROGRAMS: dict[str, Any] = {"ctranslate2": ctranslate2, "transformers": transformers}


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
    if (reason := _PROGRAMS[kind].unrepresentable(config, tokenizer)) is not None:
        raise ConfigError(reason)
    library(kind)


def export(kind: Kind, out: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Write the folder `out` atomically, replacing an earlier export there. Raises ConfigError as `check`, RunError if
    the export does not match the model, or the folder cannot be written.
    """
    check(kind, out, trained.model.config, trained.config.data.tokenizer)
    try:
        with exclusive(out.parent, glob.escape(out.name)), replacing(out) as temporary:
            temporary.mkdir()
            write_files(kind, temporary, trained)
            proven = prove(kind, temporary, trained, progress)
            if not proven.passed:
                raise RunError(
                    f"export: the {kind} export does not match the model ({proven}); it was removed: report this with "
                    "the run's record, or mend your scheme, whose hooks may read its settings and parameters alone"
                )
            document = card(kind, trained, proven)
            (temporary / README_NAME).write_text(readme(document, trained, proven), "utf-8")
            (temporary / CARD_NAME).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return proven
    except OSError as error:
        raise RunError(
            f"output_dir: {out} cannot be written ({error.strerror or error}); the partial export was removed: "
            "fix this, or choose another folder"
        ) from None


def prove(kind: Kind, folder: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Read the files in `folder` back and compare them with the model.

    A safetensors export must have bit-identical weights, and the same translations and log p in float64, up to
    rounding, on the model's device.
    """
    search = search_of(trained.config.evaluation, greedy=True)
    sentences = (trained.sources, trained.references, search)
    if kind == "safetensors":
        copied = load_exported_model(folder).to(trained.model.embedding_VM.device)
        _check_weights(trained.model, copied)
        return parity(trained.model, Engine(copied.double()), *sentences, tolerance=EXACT, progress=progress)
    threads = torch.get_num_threads()
    if trained.model.config.architecture == "decoder_only":
        others = kind == "transformers"
        scorer = TransformersScorer(folder) if others else GeneratorScorer(folder, trained.vocabulary, threads)
        return parity(trained.model, scorer, *sentences, progress=progress)
    exported = TranslatorScorer(folder, trained.vocabulary, threads)
    return parity(trained.model, exported, *sentences, progress=progress)


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
    else:
        names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        _PROGRAMS[kind].write_model(model, names, folder, longest(trained))
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


# The card


def longest(trained: TrainedModel) -> int:
    """Positions that an export must have: BOS, and a window or the longest sentence that proves it, translated."""
    if (window := trained.config.data.context_length) is not None:
        return 1 + window
    return 1 + max(map(len, (*trained.sources, *trained.references))) + trained.config.evaluation.max_extra_length


def export_rows(kind: Kind, trained: TrainedModel) -> int | None:
    """The number of positions of the exported model; None: unlimited."""
    return None if kind == "safetensors" else _PROGRAMS[kind].position_rows(trained.model.config, longest(trained))


def card(kind: Kind, trained: TrainedModel, proven: Parity) -> dict[str, Any]:
    """The card as plain data, with the run's record; deterministic for the same run and library versions."""
    model, record = trained.model, trained.record
    lengths = [len(reference) - 1 for reference in trained.references]
    versions = {"rpr": __version__, "torch": record.versions.get("torch")}
    if kind != "safetensors":
        versions[kind] = str(library(kind).__version__)
    return {
        "version": CARD_VERSION,
        "kind": kind,
        "checkpoint": trained.checkpoint,
        "outcome": record.outcome or "finished",
        "record": record.model_dump(mode="json", by_alias=True),
        "synthetic": record.synthetic,
        "documents": trained.documents,
        "architecture": model.config.architecture,
        "positions": position_of(record).label,
        "zero_bos": model.config.zero_bos,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "position_rows": export_rows(kind, trained),
        "differences": _differences(kind, trained),
        "parity": {"split": trained.split, "shortest": min(lengths), "longest": max(lengths), **asdict(proven)},
        "versions": versions,
    }


def readme(card: Mapping[str, Any], trained: TrainedModel, proven: Parity) -> str:
    """The card as Markdown, by templates/README.md.j2; no text of a record may be in code, where escapes are shown."""
    words = {"tokenizer": trained.config.data.tokenizer, "verified": verified(trained, proven)}
    return _TEMPLATES.get_template("README.md.j2").render(escape_tree({**card, **words}, escape_markdown))


def verified(trained: TrainedModel, proven: Parity) -> str:
    """What an export was compared on, and how it differs from the model."""
    lengths = [len(reference) - 1 for reference in trained.references]
    of_windows = f" ({min(lengths)} to {max(lengths)} tokens)" if trained.documents else ""
    return f"{proven.sentences} {trained.items} of {trained.split}{of_windows}: {proven}"


def _differences(kind: Kind, trained: TrainedModel) -> list[str]:
    config, rows = trained.model.config, export_rows(kind, trained)
    pairs = config.architecture == "encoder_decoder"
    schemes = [stack.scheme for stack in config.stacks()]
    notes = [*ctranslate2.DIFFERENCES] if kind == "ctranslate2" and pairs else []
    if rows is not None and (kind == "transformers" or any(scheme.absolute != "none" for scheme in schemes)):
        notes.append(f"The export has {rows} positions: programs fail beyond, so bound the length yourself.")
    rotations = [stack.scheme.rotation(stack.site) for stack in config.stacks()]
    if kind == "transformers" and any(rotation and rotation.proportion != 1 for rotation in rotations):
        notes.append("transformers below 5.5 cannot read p-RoPE.")
    if kind == "transformers" and any(scheme.absolute != "none" for scheme in schemes):
        notes.append(
            "The tokenizer pads a batch on the left, so that generation continues the end of every text; to score a "
            "batch, pad it on the right, as transformers counts its positions from the first column."
        )
    if kind == "ctranslate2" and any(scheme.has_bias for scheme in schemes):
        if any(scheme.has_bias and scheme.reach is None for scheme in schemes):
            notes.append(
                f"The export is exact for {rows} positions; beyond, all distances from {rows} on have the bias of the "
                "last one."
            )
        notes.append("CTranslate2 below 4.8.5 may read one layer's bias in all layers.")
    return notes
