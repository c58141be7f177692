"""rpr-cli export: a trained run as a self-contained folder for translation."""

from rpr.config.commands import ExportConfig
from rpr.config.train import config_from_record
from rpr.export import writing
from rpr.export.writing import verified
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.records.record import RECORD_NAME
from rpr.runs import loading


def run(config: ExportConfig) -> None:
    """Prints the exported folder and its verification against the run's model. Raises ConfigError if CTranslate2 does
    not support the model or is not installed, or the output folder is not an export; RecordError or DataError if there
    is no readable run, or no sentences to verify it with; RunError if the run failed, or the export does not reproduce
    its model.
    """
    run_dir = user_path(config.run).absolute()
    out = run_dir / "exports" / config.format if config.output_dir is None else user_path(config.output_dir).absolute()
    settings = config_from_record(loading.record_of(run_dir).config, run_dir / RECORD_NAME)
    model, tokenizer = settings.transformer(settings.data.vocabulary_size), settings.data.tokenizer
    writing.check_supported(config.format, model, tokenizer, out)
    _, trained = loading.load_with_examples(run_dir, config, config.split, config.sentences)
    doing = "scoring" if trained.documents else "translating"
    with Progress(len(trained.sources), trained.items, f"{doing} with the run's model") as bar:
        proven = writing.export(config.format, out, trained, bar.reach)
    print(f"{out}: {config.format}, {trained.checkpoint}")
    print(f"verified on {verified(trained, proven)}")
