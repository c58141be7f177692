"""A trained run read back: its configuration, data and weights; used by evaluate and translate."""

from __future__ import annotations

from pathlib import Path

from rpr.config import HardwareConfig, TrainConfig, of_a_record
from rpr.data.cache import PreparedData, prepare
from rpr.errors import DataError, RecordError
from rpr.model.transformer import Transformer
from rpr.results.record import RECORD_NAME, Record, read_record
from rpr.training import fit, runtime
from rpr.training.module import shape_of


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


def record_of(run_dir: Path) -> Record:
    """The record in a run's folder.

    Raises:
        RecordError: the folder holds no readable record.
    """
    if not (run_dir / RECORD_NAME).exists():
        raise RecordError(f"run: {run_dir} holds no {RECORD_NAME}; give the folder of a run, e.g. run=runs/NAME-HASH")
    return read_record(run_dir / RECORD_NAME)


def load(config: TrainConfig, run_dir: Path, average: int | None) -> tuple[PreparedData, Transformer, str]:
    """The run's data, its model in evaluation mode on the hardware's device, and which checkpoints it is made of.

    Raises:
        DataError: no checkpoint, or weights that do not fit the configuration and vocabulary.
    """
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    data = prepare(config.data)
    ema_decay = config.optim.ema_decay if average is None else None
    weights, checkpoint = fit.averaged_weights(run_dir, average or config.optim.average_checkpoints, ema_decay)
    model = Transformer(shape_of(config, len(data.vocabulary)))
    model.use_attention(config.hardware.attention)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{run_dir}: the checkpoint does not fit the run's configuration ({reason})") from None
    return data, model.to(runtime.torch_device(config.hardware)).eval(), checkpoint
