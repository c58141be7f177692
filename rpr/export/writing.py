"""Making an export: written beside its place, proven, and only then put there."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from rpr import __version__
from rpr.config.train import TrainConfig
from rpr.data.vocabulary import Vocabulary
from rpr.decode.ctranslate2 import CTranslate2Engine, library
from rpr.decode.exported import (
    CARD_NAME,
    CONFIG_ADAPTER,
    FORMAT,
    SEARCH,
    SETTINGS_NAMES,
    VERSION,
    WEIGHTS_NAMES,
    Kind,
    Settings,
    is_export,
    load_exported_model,
    reason_of,
)
from rpr.decode.torch_engine import Progress, TorchEngine, search_of
from rpr.errors import ConfigError, RunError
from rpr.export.card import card, readme
from rpr.export.ctranslate2_spec import position_rows, unrepresentable, write_model
from rpr.export.parity import Parity, Rows, identical_share, parity, piece_scores
from rpr.io.atomic import replacing
from rpr.io.locks import exclusive
from rpr.model.transformer import Transformer, TransformerConfig
from rpr.records.record import Record
from rpr.runs.loading import VOCABULARY_NAME

README_NAME = "README.md"


class TorchScorer(TorchEngine):
    """Our own engine, which also scores given translations."""

    def __init__(self, model: Transformer, max_tokens: int) -> None:
        super().__init__(model, model.embedding_VM.device)
        self.max_tokens = max_tokens

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """log p of each piece of the targets (without EOS), and of EOS behind them."""
        return [row.tolist() for row in piece_scores(self.model, sources, targets, self.max_tokens)]


@dataclass(frozen=True)
class Material:
    """What an export is made of: a run, read, and sentences of its data that prove it.

    `model` is in evaluation mode, of the words in `checkpoint`; `sources` and `references` are of `split`, each with
    its EOS.
    """

    record: Record
    config: TrainConfig
    model: Transformer
    checkpoint: str
    vocabulary: Vocabulary
    split: str
    sources: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]


def check(kind: Kind, out: Path, config: TransformerConfig | None = None) -> None:
    """What can be refused before anything is computed.

    Raises:
        ConfigError: `out` is there and no earlier export; CTranslate2 is not installed or cannot hold the model.
    """
    if out.exists() and not is_export(out):
        raise ConfigError(
            f"output_dir: {out} is there and is no export; only an earlier export is replaced: choose another folder"
        )
    if kind == "ctranslate2":
        library()
        reason = None if config is None else unrepresentable(config)
        if reason is not None:
            raise ConfigError(reason)


def export(kind: Kind, out: Path, material: Material, progress: Progress | None = None) -> dict[str, Any]:
    """Writes the folder `out` whole or not at all, and returns its card; an earlier export there is replaced.

    Raises:
        ConfigError: as `check`.
        RunError: the export does not do what the model does, or the folder cannot be written.
    """
    check(kind, out, material.model.config)
    try:
        with exclusive(out.parent, glob.escape(out.name)), replacing(out) as temporary:
            return _written(kind, temporary, material, progress)
    except OSError as error:
        raise RunError(
            f"output_dir: {out} cannot be written ({error.strerror or error}); nothing is left of it: "
            "mend that, or choose another folder"
        ) from None


def _written(kind: Kind, temporary: Path, material: Material, progress: Progress | None) -> dict[str, Any]:
    """The export, written to a new folder and proven; returns its card."""
    temporary.mkdir()
    write_files(
        kind,
        temporary,
        material.model,
        material.vocabulary,
        material.config,
        material.record,
        material.checkpoint,
    )
    proven, int8 = prove(kind, temporary, material, progress)
    if not proven.passed:
        raise RunError(
            f"export: what was written as {kind} does not do what the model does ({proven}; allowed: "
            f"{proven.tolerance:.0e}); nothing is left of it: please report this with the run's record"
        )
    document = card(
        kind,
        material.model,
        material.config,
        material.record,
        material.checkpoint,
        material.split,
        proven,
        int8,
    )
    (temporary / README_NAME).write_text(readme(document), "utf-8")
    (temporary / CARD_NAME).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return document


def prove(
    kind: Kind, folder: Path, material: Material, progress: Progress | None = None
) -> tuple[Parity, float | None]:
    """The files in `folder`, read back, against the model; and the share of greedy translations that int8 does not
    change, where CTranslate2 has int8.

    Safetensors are the same weights bit for bit, and on the model's device the same translations and log p.
    """
    search = search_of(material.config.evaluation, greedy=True)
    sentences = (material.sources, material.references, search)
    if kind == "safetensors":
        copied = load_exported_model(folder).to(material.model.embedding_VM.device)
        _check_weights(material.model, copied)
        engine = TorchScorer(copied.double(), search.max_tokens_per_batch)
        return parity(material.model, engine, *sentences, tolerance=0.0, progress=progress), None
    threads = torch.get_num_threads()
    exported = CTranslate2Engine(folder, threads=threads)
    proven = parity(material.model, exported, *sentences, progress=progress)
    if "int8" not in library().get_supported_compute_types("cpu"):
        return proven, None
    int8 = CTranslate2Engine(folder, compute_type="int8", threads=threads)
    return proven, identical_share(exported, int8, material.sources, search)


def _check_weights(model: Transformer, copied: Transformer) -> None:
    for (name, one), (_, other) in zip(model.named_parameters(), copied.named_parameters(), strict=True):
        if one.dtype != other.dtype or not torch.equal(one, other):
            raise RunError(
                f"export: {name} read back from safetensors is not what the model has; nothing is left of it: "
                "please report this with the run's record"
            )


def write_files(
    kind: Kind,
    folder: Path,
    model: Transformer,
    vocabulary: Vocabulary,
    config: TrainConfig,
    record: Record,
    checkpoint: str,
) -> None:
    """Everything but the card into an empty folder.

    Raises:
        ConfigError: CTranslate2 cannot hold the model, or is not installed.
        OSError: the folder cannot be written.
    """
    if kind == "safetensors":
        try:
            # Tables that layers share are one tensor of the file, under the first layer's name.
            weights = {name: weight.detach().cpu().contiguous() for name, weight in model.named_parameters()}
            save_file(weights, folder / WEIGHTS_NAMES[kind], metadata={"format": "pt"})
        except SafetensorError as error:  # its writer turns the system's errors into its own
            raise OSError(reason_of(error)) from None
    else:
        write_model(model, [vocabulary.piece(index) for index in range(len(vocabulary))], folder)
    vocabulary.save(folder / VOCABULARY_NAME)
    settings = Settings(
        kind=kind,
        rpr=__version__,
        run_name=record.name,
        run_id=record.run_id,
        checkpoint=checkpoint,
        source_language=config.data.source_language,
        target_language=config.data.target_language,
        shape=CONFIG_ADAPTER.dump_python(model.config, mode="json"),
        position_rows=position_rows(model.config) if kind == "ctranslate2" else None,
        **{name: getattr(config.evaluation, name) for name in SEARCH},
    )
    document = {"format": FORMAT, "version": VERSION, **settings.model_dump()}
    (folder / SETTINGS_NAMES[kind]).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
