"""rpr-cli export: a trained run as a self-contained folder for translation."""

from __future__ import annotations

from rpr.config.commands import ExportConfig
from rpr.export import writing
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
    out = run_dir / "exports" / config.format if config.output_dir is None else user_path(config.output_dir).absolute()
    settings = loading.config_of(run_dir, config)
    documents = settings.data.text is not None
    writing.check(config.format, out, settings.transformer(settings.data.vocabulary_size), documents=documents)
    _, trained = loading.load_with_examples(run_dir, config, config.split, config.sentences)
    doing = "scoring" if documents else "translating"
    with Progress(len(trained.sources), trained.items, f"{doing} with the run's model") as bar:
        card = writing.export(config.format, out, trained, bar.reach)
    print(f"{out}: {config.format}, {trained.checkpoint}")
    proof = card["parity"]
    ties = f", {len(proof['near_ties'])} differ at near ties" if proof["near_ties"] else ""
    translated = f"{proof['identical']} greedy translations identical{ties}; " if proof["identical"] is not None else ""
    lengths = f" ({proof['shortest']} to {proof['longest']} tokens)" if documents else ""
    print(
        f"verified on {proof['sentences']} {trained.items} of {proof['split']}{lengths}: {translated}log p per "
        f"{'token' if documents else 'piece'} differs by at most {proof['largest_difference']:.1e}"
    )
    if card["int8_identical"] is not None:
        print(f"in int8: {card['int8_identical']:.1%} identical to float32")
