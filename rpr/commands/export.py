"""rpr-cli export: a trained run as a self-contained folder for translation."""

from __future__ import annotations

from pathlib import Path

from rpr.config.commands import ExportConfig, VerifyConfig
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
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir)
    writing.check(config.format, out, trained.transformer(trained.data.vocabulary_size))
    material = read(run_dir, config)
    with Progress(len(material.sources), "sentences", "translating with the run's model") as bar:
        card = writing.export(config.format, out, material, bar.reach)
    print(f"{out}: {config.format}, {material.checkpoint}")
    proof = card["parity"]
    ties = f", {len(proof['near_ties'])} differ at near ties" if proof["near_ties"] else ""
    print(
        f"verified on {proof['sentences']} sentences of {proof['split']}: {proof['identical']} greedy translations "
        f"identical{ties}; log p per piece differs by at most {proof['largest_difference']:.1e}"
    )
    if card["int8_identical"] is not None:
        print(f"in int8: {card['int8_identical']:.1%} identical to float32")


def read(run_dir: Path, config: ExportConfig | VerifyConfig) -> ExportInputs:
    """A run's model, set up for the configured hardware, and the first sentences of a split.

    Raises:
        RecordError, DataError: no readable run, or no such split, or an empty one.
        RunError: the run failed or was interrupted.
    """
    trained = loading.config_of(run_dir, config.hardware, config.cache_dir)
    record = loading.usable_record(run_dir)
    data, model, checkpoint = loading.load(trained, run_dir, config.average_checkpoints)
    split = data.split(config.split)
    return ExportInputs(
        record=record,
        config=trained,
        model=model,
        checkpoint=checkpoint,
        vocabulary=loading.vocabulary_of(run_dir, trained),
        split=config.split,
        sources=split.first("source", config.sentences),
        references=split.first("target", config.sentences),
    )
