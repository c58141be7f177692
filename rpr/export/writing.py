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

from rpr.decode import exported
from rpr.decode.engine import SEARCH_SETTINGS, Engine, Progress, search_of
from rpr.decode.exported import Kind, stored_tensors
from rpr.errors import ConfigError, RunError
from rpr.export import ctranslate2, transformers
from rpr.export.ctranslate2 import CTranslate2Scorer
from rpr.export.parity import EXACT, Parity, parity
from rpr.export.transformers import TransformersScorer
from rpr.io.atomic import exclusive, replacing
from rpr.io.escape import escape_markdown, escape_tree
from rpr.kinds import kind_of_metric
from rpr.model.config import TransformerConfig
from rpr.model.positions import codes
from rpr.records.position import position_of
from rpr.runs.loading import VOCABULARY_NAME, TrainedModel
from rpr.version import __version__

README_NAME, CARD_VERSION = "README.md", 4
_TEMPLATES = Environment(
    loader=PackageLoader("rpr.export"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["digits"] = lambda metric: kind_of_metric(metric).printed_digits
_PROGRAMS: dict[str, Any] = {"ctranslate2": ctranslate2, "transformers": transformers}


def check_supported(kind: Kind, config: TransformerConfig, tokenizer: str, out: Path | None = None) -> None:
    """Before anything is computed: raises ConfigError if `out` exists and is no export, or the program cannot represent
    the model or the pieces of data.tokenizer, or is not installed.
    """
    if out is not None and out.exists() and not exported.is_export(out):
        raise ConfigError(
            f"output_dir: {out} exists and is not an export; only an earlier export is replaced: choose another folder"
        )
    if kind == "safetensors":
        return
    if (reason := _PROGRAMS[kind].unrepresentable(config, tokenizer)) is not None:
        raise ConfigError(reason)
    exported.library(kind)


def export(kind: Kind, out: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Write the folder `out` atomically, replacing an earlier export there. Raises ConfigError as `check_supported`,
    RunError if the export does not match the model, or the folder cannot be written.
    """
    check_supported(kind, trained.model.config, trained.config.data.tokenizer, out)
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
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            (temporary / exported.CARD_NAME).write_text(text, "utf-8")
        return proven
    except OSError as error:
        raise RunError(
            f"output_dir: {out} cannot be written ({error.strerror or error}); the partial export was removed: "
            "fix this, or choose another folder"
        ) from None


def write_files(kind: Kind, folder: Path, trained: TrainedModel) -> None:
    """Write all but the card and README to an empty folder, after `check_supported`; raises OSError if it cannot be."""
    model, vocabulary = trained.model, trained.vocabulary
    vocabulary.save(folder / VOCABULARY_NAME)
    if kind != "safetensors":
        names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        _PROGRAMS[kind].write_model(model, names, folder, longest(trained))
        return
    weights = {name: weight.detach().cpu().contiguous() for name, weight in stored_tensors(model).items()}
    try:
        save_file(weights, folder / exported.WEIGHTS_NAME, metadata={"format": "pt"})
    except SafetensorError as error:  # the safetensors writer wraps OSError
        raise OSError(exported.reason_of(error)) from None
    settings = exported.Settings(
        format=exported.FORMAT,
        version=exported.VERSION,
        rpr=__version__,
        schemes=codes(stack.scheme for stack in model.config.stacks()),
        shape=model.config,
        **{name: getattr(trained.config.evaluation, name) for name in SEARCH_SETTINGS},
    )
    (folder / exported.SETTINGS_NAME).write_text(settings.model_dump_json(indent=1) + "\n", "utf-8")


def prove(kind: Kind, folder: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Read the files in `folder` back and compare them with the model. A safetensors export must have bit-identical
    weights, and the same translations and log p in float64, up to rounding, on the model's device.
    """
    model, search = trained.model, search_of(trained.config.evaluation, greedy=True)
    sentences = (trained.sources, trained.references, search)
    if kind == "safetensors":
        copied = exported.load_exported_model(folder).to(model.embedding_VM.device)
        theirs = stored_tensors(copied)
        for name, weight in stored_tensors(model).items():
            if weight.dtype != theirs[name].dtype or not torch.equal(weight, theirs[name]):
                raise RunError(
                    f"export: {name} read back from safetensors differs from the model; the export was removed: report "
                    "this with the run's record"
                )
        return parity(model, Engine(copied.double()), *sentences, tolerance=EXACT, progress=progress)
    if kind == "transformers":
        return parity(model, TransformersScorer(folder), *sentences, progress=progress)
    generator, threads = model.config.architecture == "decoder_only", torch.get_num_threads()
    program = CTranslate2Scorer(folder, trained.vocabulary, threads, generator=generator)
    return parity(model, program, *sentences, progress=progress)


# The card


def longest(trained: TrainedModel) -> int:
    """Positions that an export must have: BOS, and a window or the longest sentence that proves it, translated."""
    if (window := trained.config.data.context_length) is not None:
        return 1 + window
    return 1 + max(map(len, (*trained.sources, *trained.references))) + trained.config.evaluation.max_extra_length


def card(kind: Kind, trained: TrainedModel, proven: Parity) -> dict[str, Any]:
    """The card as plain data, with the run's record; deterministic for the same run and library versions."""
    model, record = trained.model, trained.record
    lengths = [len(reference) - 1 for reference in trained.references]
    versions, rows = {"rpr": __version__, "torch": record.versions.get("torch")}, None
    if kind != "safetensors":
        versions[kind] = str(exported.library(kind).__version__)
        rows = _PROGRAMS[kind].position_rows(model.config, longest(trained))
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
        "position_rows": rows,
        "differences": _differences(kind, model.config, rows),
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


def _differences(kind: Kind, config: TransformerConfig, rows: int | None) -> list[str]:
    """Of a program from rpr; of `rows` positions, None: unlimited."""
    schemes = [stack.scheme for stack in config.stacks()]
    absolute = any(scheme.absolute != "none" for scheme in schemes)
    beyond = kind == "ctranslate2" and any(scheme.has_bias and scheme.reach is None for scheme in schemes)
    notes = {
        f"The export has {rows} positions: programs fail beyond, so bound the length yourself.": rows is not None
        and (kind == "transformers" or absolute),
        "The tokenizer pads a batch on the left, so that generation continues the end of every text; to score a "
        "batch, pad it on the right, as transformers counts its positions from the first column.": absolute
        and kind == "transformers",
        f"The export is exact for {rows} positions; beyond, all distances from {rows} on have the bias of the last "
        "one.": beyond,
    }
    of_program = ctranslate2.DIFFERENCES if kind == "ctranslate2" and config.architecture == "encoder_decoder" else ()
    return [*of_program, *(note for note, holds in notes.items() if holds)]
