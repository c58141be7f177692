"""A trained run read back: its record, configuration, vocabulary and weights."""

from __future__ import annotations

from pathlib import Path

from rpr.config.train import HardwareConfig, TrainConfig, of_a_record
from rpr.data.cache import PreparedData, prepare
from rpr.data.vocabulary import Vocabulary
from rpr.errors import DataError, RecordError
from rpr.model.transformer import Transformer
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.runs import runtime
from rpr.runs.checkpoints import averaged_weights, checkpoints
from rpr.runs.model_config import transformer_config

VOCABULARY_NAME = "vocabulary.model"  # a run's own copy, so that it translates without its corpus


def record_of(run_dir: Path) -> Record:
    """The record in a run's folder.

    Raises:
        RecordError: the folder holds no readable record.
    """
    if run_dir.name == RECORD_NAME and run_dir.is_file():
        raise RecordError(f"run: {run_dir} is the record itself; give the folder that it lies in, run={run_dir.parent}")
    if not (run_dir / RECORD_NAME).exists():
        raise RecordError(f"run: {run_dir} holds no {RECORD_NAME}; give the folder of a run, e.g. run=runs/NAME-HASH")
    return read_record(run_dir / RECORD_NAME)


def config_of(run_dir: Path, hardware: HardwareConfig, cache_dir: str | None) -> TrainConfig:
    """The run's own configuration, on this hardware and with this cache folder.

    Raises:
        RecordError: the folder holds no readable record.
    """
    settings = record_of(run_dir).config
    settings = {**settings, "hardware": hardware.model_dump(mode="json")}
    if cache_dir is not None:
        settings["data"] = {**settings["data"], "cache_dir": cache_dir}
    return of_a_record(settings)


def vocabulary_of(run_dir: Path, config: TrainConfig) -> Vocabulary:
    """The run's own copy; for a run of before there was one, that of its token cache, which is prepared if absent."""
    path = run_dir / VOCABULARY_NAME
    return Vocabulary.load(path) if path.exists() else prepare(config.data).vocabulary


def refuse_another_vocabulary(run_dir: Path, data: PreparedData) -> None:
    """The same numbers would be other pieces, and every translation wrong without a word.

    Raises:
        DataError: the run's vocabulary is not the one that its corpus gives today.
    """
    recorded = record_of(run_dir).data
    path = run_dir / VOCABULARY_NAME
    if recorded is not None and recorded.key == data.meta.key:
        return
    if path.exists() and Vocabulary.load(path).digest != data.vocabulary.digest:
        raise DataError(
            f"data: {data.meta.name} is not the corpus that {run_dir.name} was trained on (it has another vocabulary); "
            "bring the old one back, or move that run's folder away and train it anew"
        )


def model_of(config: TrainConfig, run_dir: Path, average: int | None, vocabulary_size: int) -> tuple[Transformer, str]:
    """The run's model in evaluation mode on the hardware's device, and which checkpoints it is made of.

    Args:
        average: of how many of the last checkpoints; None: as the run's recipe says.

    Raises:
        DataError: no checkpoint, fewer than `average`, or weights that do not fit the configuration and vocabulary.
    """
    there = len(checkpoints(run_dir / "checkpoints"))
    if average is not None and 0 < there < average:
        raise DataError(f"average_checkpoints: {average} requested, but {run_dir} has {there}; give {there} or fewer")
    ema_decay = config.optim.ema_decay if average is None else None
    weights, checkpoint = averaged_weights(run_dir, average or config.optim.average_checkpoints, ema_decay)
    model = Transformer(transformer_config(config, vocabulary_size))
    model.use_attention(config.hardware.attention)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{run_dir}: the checkpoint does not fit the run's configuration ({reason})") from None
    return model.to(runtime.torch_device(config.hardware)).eval(), checkpoint


def load(config: TrainConfig, run_dir: Path, average: int | None) -> tuple[PreparedData, Transformer, str]:
    """The run's data, and its model as `model_of` gives it.

    Raises:
        DataError: as `model_of`; the corpus is not the one whose pieces the model knows.
    """
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    data = prepare(config.data)
    refuse_another_vocabulary(run_dir, data)
    return data, *model_of(config, run_dir, average, len(data.vocabulary))
