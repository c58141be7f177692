"""The model card of an export: its run, scores, differences from rpr, and parity check. card.json is machine-readable;
README.md has the same content as text.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rpr.decode.exported import Kind, library
from rpr.export import transformers_files
from rpr.export.ctranslate2_spec import DIFFERENCES, position_rows
from rpr.export.parity import Parity
from rpr.io.escape import escape_tree
from rpr.records.position import position_of
from rpr.records.scores import score_digits
from rpr.runs.loading import TrainedModel
from rpr.tables.render import escape_markdown
from rpr.version import __version__

CARD_VERSION = 2
_TEMPLATES = Environment(
    loader=PackageLoader("rpr.export"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["digits"] = score_digits


def longest(trained: TrainedModel) -> int:
    """Positions that an export must have: BOS, and a window or the longest sentence that proves it, translated."""
    if (window := trained.config.data.context_length) is not None:
        return 1 + window
    return 1 + max(map(len, (*trained.sources, *trained.references))) + trained.config.evaluation.max_extra_length


def export_rows(kind: Kind, trained: TrainedModel) -> int | None:
    """The number of positions of the exported model; None: unlimited."""
    if kind == "safetensors":
        return None
    rows = position_rows if kind == "ctranslate2" else transformers_files.position_rows
    return rows(trained.model.config, longest(trained))


def card(kind: Kind, trained: TrainedModel, proven: Parity, int8: float | None) -> dict[str, Any]:
    """The card as plain data, with the run's record; deterministic for the same run and library versions. `proven` and
    `int8`, the fraction of the translations that are the same in int8 and float32 (None: not measured), are of
    `trained.split`.
    """
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
        "int8_identical": int8,
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
    notes = [*DIFFERENCES] if kind == "ctranslate2" and pairs else []
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
