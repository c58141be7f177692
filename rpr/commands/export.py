"""rpr-cli export: a trained run as a self-contained folder for translation."""

from __future__ import annotations

from pathlib import Path

from rpr.config.commands import ExportConfig, VerifyConfig
from rpr.data.windows import sample_windows
from rpr.export import writing
from rpr.export.card import ExportInputs
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.runs import loading
from rpr.signals import report_sigterm


@report_sigterm()
def run(config: ExportConfig) -> None:
    """Prints the exported folder and its verification against the run's model.

    Raises:
        ConfigError: CTranslate2 does not support the model or is not installed, or the output folder is not an export.
        RecordError, DataError: no readable run, or no sentences to verify it with.
        RunError: the run failed, or the export does not reproduce its model.
    """
    run_dir = user_path(config.run).absolute()
    out = (
        user_path(config.output_dir).absolute()
        if config.output_dir is not None
        else run_dir / "exports" / config.format
    )
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir, documents=True)
    documents = trained.data.text is not None
    writing.check(config.format, out, trained.transformer(trained.data.vocabulary_size), documents=documents)
    material = read(run_dir, config, documents=True)
    what = ("windows", "scoring") if documents else ("sentences", "translating")
    with Progress(len(material.sources), what[0], f"{what[1]} with the run's model") as bar:
        card = writing.export(config.format, out, material, bar.reach)
    print(f"{out}: {config.format}, {material.checkpoint}")
    proof = card["parity"]
    ties = f", {len(proof['near_ties'])} differ at near ties" if proof["near_ties"] else ""
    translated = f"{proof['identical']} greedy translations identical{ties}; " if proof["identical"] is not None else ""
    lengths = f" ({proof['shortest']} to {proof['longest']} tokens)" if documents else ""
    print(
        f"verified on {proof['sentences']} {what[0]} of {proof['split']}{lengths}: {translated}log p per "
        f"{'token' if documents else 'piece'} differs by at most {proof['largest_difference']:.1e}"
    )
    if card["int8_identical"] is not None:
        print(f"in int8: {card['int8_identical']:.1%} identical to float32")


def read(run_dir: Path, config: ExportConfig | VerifyConfig, *, documents: bool = False) -> ExportInputs:
    """A run's model, set up for the configured hardware, and the first sentences of a split; of documents, windows.

    Raises:
        RecordError, DataError: no readable run, or one of documents, unless `documents`; no such
            split, or an empty one.
        RunError: the run failed or was interrupted.
    """
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir, documents=documents)
    record = loading.usable_record(run_dir)
    data, model, checkpoint = loading.load(trained, run_dir, config.average_checkpoints)
    split = data.split(config.split)
    if trained.data.context_length is not None:
        references = sample_windows(split, trained.data.context_length, config.sentences)
        sources: list[list[int]] = [[] for _ in references]
    else:
        sources, references = (split.first(side, config.sentences) for side in ("source", "target"))
    return ExportInputs(
        record=record,
        config=trained,
        model=model,
        checkpoint=checkpoint,
        vocabulary=loading.vocabulary_of(run_dir, trained),
        split=config.split,
        sources=sources,
        references=references,
    )
