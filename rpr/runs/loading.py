"""Loads a trained run: its record, configuration, vocabulary and weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rpr.config.commands import OneRunConfig, ReportConfig
from rpr.config.train import TrainConfig, config_from_record
from rpr.data.batches import sample_windows
from rpr.data.cache import PreparedData, prepare
from rpr.data.vocabulary import ByteVocabulary, Vocabulary
from rpr.errors import ConfigError, DataError, RecordError, RunError
from rpr.io.escape import note
from rpr.kinds import TEXT
from rpr.model.transformer import Transformer, build_model
from rpr.records.position import check_same_code
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.runs import runtime
from rpr.runs.checkpoints import averaged_weights, checkpoints
from rpr.runs.locks import current_record

VOCABULARY_NAME = "vocabulary.model"  # a run's own copy, so that it translates without its corpus
_REMEDY = "restore the run's own copy, or remove it to use that of the run's corpus"


def record_of(run_dir: Path, setting: str = "run") -> Record:
    """The record in a run's folder, which this setting names; raises RecordError if there is no readable one."""
    if not (run_dir / RECORD_NAME).exists():
        raise RecordError(
            f"{setting}: {run_dir} has no {RECORD_NAME}; give the folder of a run, e.g. {setting}=runs/NAME-HASH"
        )
    return read_record(run_dir / RECORD_NAME)


def config_of(run_dir: Path, command: OneRunConfig | ReportConfig) -> TrainConfig:
    """The run's own configuration, with the hardware and cache folder of a command; a note says if the run has not
    finished. Raises RecordError as `record_of`, or if this version cannot read the configuration; ConfigError if the
    hardware does not fit it.
    """
    record = record_of(run_dir)
    if record.outcome is not None:
        note(f"{run_dir.name}: {record.outcome}; used as it is in its last checkpoint")
    settings = {**record.config, "hardware": command.hardware.model_dump(mode="json")}
    if command.cache_dir is not None:
        settings["data"] = {**settings["data"], "cache_dir": command.cache_dir}
    try:
        return config_from_record(settings)
    except ConfigError:
        config_from_record(record.config, run_dir / RECORD_NAME)  # raises unless the cause is the command's hardware
        raise


def vocabulary_of(run_dir: Path, config: TrainConfig) -> Vocabulary:
    """The run's own copy; without one, that of its token cache, which is prepared if necessary. Raises DataError if the
    copy is damaged, or as `check_corpus`.
    """
    path = run_dir / VOCABULARY_NAME
    if path.exists():
        return Vocabulary.load(path, _REMEDY)
    data = prepare(config.data)
    check_corpus(run_dir, data)
    return data.vocabulary


def corpus_change(run_dir: Path, record: Record | None, data: PreparedData) -> str | None:
    """That the corpus is another one than the run's, if it is. Raises DataError if token ids mean other pieces."""
    path, name = run_dir / VOCABULARY_NAME, data.meta.name
    trained_on = record.data.key if record is not None and record.data is not None else None
    if path.exists() and Vocabulary.load(path, _REMEDY).digest != data.meta.vocabulary_digest:
        how = f"{name} is not the corpus that {run_dir.name} was trained on (it has another vocabulary)"
        if trained_on == data.meta.key:
            how = f"other versions of sentencepiece or Python built another vocabulary in {data.directory}"
        raise DataError(f"data: {how}; restore the old one, or move that run's folder away and train it again")
    if trained_on in (None, data.meta.key):
        return None
    keys = f"key {str(trained_on)[:12]}, now {data.meta.key[:12]}"
    return f"data: {name} has changed since {run_dir.name} was started ({keys})"


def check_corpus(run_dir: Path, data: PreparedData) -> None:
    """`corpus_change` as a note. Raises DataError, too, if the run has no copy of its vocabulary, but of bytes."""
    if change := corpus_change(run_dir, record_of(run_dir), data):
        if not isinstance(data.vocabulary, ByteVocabulary) and not (run_dir / VOCABULARY_NAME).exists():
            raise DataError(f"{change}; without its {VOCABULARY_NAME} nothing says what its tokens are: restore either")
        note(f"{change}; what follows is of the corpus as it is now")


def model_of(config: TrainConfig, run_dir: Path, average: int | None, vocabulary_size: int) -> tuple[Transformer, str]:
    """The run's model in evaluation mode on the hardware's device, and a description of its checkpoints, the last
    `average` of which are averaged (None: as in the run's recipe). Raises DataError if there is none, or fewer, or the
    weights do not fit the configuration and vocabulary, RecordError if the code of its positions has changed.
    """
    check_same_code(config.position, record_of(run_dir))
    there = len(checkpoints(run_dir / "checkpoints"))
    if average is not None and 0 < there < average:
        raise DataError(f"average_checkpoints: {average} requested, but {run_dir} has {there}; give at most {there}")
    weights, checkpoint = averaged_weights(run_dir, average or config.optim.average_checkpoints)
    model = build_model(config.transformer(vocabulary_size))
    if config.hardware.precision == "64":  # before the weights, which may be float64, are copied
        model.double()
    model.use_attention(config.hardware.attention)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{run_dir}: the checkpoint does not fit the run's configuration ({reason})") from None
    return model.to(runtime.torch_device(config.hardware)).eval(), checkpoint


def load(config: TrainConfig, run_dir: Path, average: int | None) -> tuple[PreparedData, Transformer, str]:
    """The run's data, and its model as from `model_of`; raises DataError, too, if the corpus has another vocabulary."""
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    data = prepare(config.data)
    check_corpus(run_dir, data)
    return data, *model_of(config, run_dir, average, len(data.vocabulary))


@dataclass(frozen=True)
class TrainedModel:
    """A trained run on a command's hardware, its `model` in evaluation mode, and examples of its `split`, pairs or
    windows: token IDs, each with EOS; the sources of windows are empty.
    """

    record: Record
    config: TrainConfig
    model: Transformer
    checkpoint: str
    vocabulary: Vocabulary
    split: str
    sources: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]

    @property
    def documents(self) -> bool:
        """Whether the model is one of documents."""
        return self.config.data.kind is TEXT

    @property
    def items(self) -> str:
        """What the examples are."""
        return "windows" if self.documents else "sentences"

    @property
    def pairs(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return list(zip(self.sources, self.references, strict=True))


def load_with_examples(
    run_dir: Path, command: OneRunConfig | ReportConfig, split: str, count: int
) -> tuple[PreparedData, TrainedModel]:
    """The data of a run that has not failed or been killed (else RunError), and its model with the first sentences of a
    split. Raises RecordError or DataError as `load`, or if there is no such split, or an empty one.
    """
    record_of(run_dir)  # raises with the setting
    record, _ = current_record(run_dir / RECORD_NAME)
    if record.status in ("failed", "interrupted"):
        raise RunError(f"run: {run_dir.name} {record.outcome}; its weights are not usable: finish the run first")
    config = config_of(run_dir, command)
    data, model, checkpoint = load(config, run_dir, command.average_checkpoints)
    tokens, window = data.split(split), config.data.context_length
    if window is not None:
        references = sample_windows(tokens, window, count)
        sources: list[list[int]] = [[] for _ in references]
    else:
        sources, references = (tokens.first(side, count) for side in ("source", "target"))
    return data, TrainedModel(record, config, model, checkpoint, data.vocabulary, split, sources, references)
