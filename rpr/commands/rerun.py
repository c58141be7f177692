"""rpr-cli rerun: repeat a run from its record in a new folder, and compare the results."""

import shlex
from itertools import count
from pathlib import Path
from typing import Any

from rpr.commands import train
from rpr.commands.diff import compared, lines_of
from rpr.compose.hydra_bridge import quote_value
from rpr.config.commands import RerunConfig
from rpr.config.train import TrainConfig, config_from_record
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, DataError
from rpr.io.escape import note
from rpr.model.positions import codes
from rpr.paths import schemes_dir, user_path
from rpr.records import provenance
from rpr.records.difference import ABSENT, difference, reproduced
from rpr.records.record import RECORD_NAME, Record, RerunOf, read_record, record_path
from rpr.runs import runtime
from rpr.runs.checkpoints import checkpoints
from rpr.runs.origin import weights_of


def run(config: RerunConfig) -> None:
    """Trains and scores the recorded configuration again, then prints how the two results compare; exits with 1 if they
    are not the same to the last bit. What is not as recorded (commit, versions, machine, corpus) is said before that.
    """
    # 1. What is repeated, and whether it can be.
    path = record_path(user_path(config.run))
    record = read_record(path)
    typed = _configuration(config, path, record)
    runtime.check_devices(typed.hardware)
    # 2. What is not as recorded.
    for line in _deviations(record, typed):
        note(f"not as recorded: {line}")
    # 3. The run.
    run_dir = _folder(typed)
    if typed.origin is not None and not checkpoints(run_dir / "checkpoints"):
        weights_of(typed.origin)  # raises before the corpus is prepared
    rerun_of = RerunOf(run_id=record.run_id, started=record.started)
    run_dir = train.run(typed, command=_command(config), run_dir=run_dir, rerun_of=rerun_of)
    # 4. Its results and those of the record.
    if record.outcome is not None:
        note(f"{path}: {record.outcome}; it has no results to compare with")
        return
    rows, losses = compared(path, run_dir / RECORD_NAME)
    if not reproduced(rows, losses):
        print("\n".join(["", "Different:", *lines_of(rows, losses, ("record", "rerun"))]))
        note(f"{run_dir.name}: its results differ from those of {path}")
        raise SystemExit(1)
    scores, logged = sum(row.kind == "score" and row.same for row in rows), sum(curve.equal for curve in losses)
    print(f"\nBit-identical: {scores} scores, training and validation loss, and {logged} logged losses.")


def _configuration(config: RerunConfig, path: Path, record: Record) -> TrainConfig:
    """The record's configuration with this command's folders; without a sweep, and without W&B, where the rerun would
    write to the original's run: both have the same ID.
    """
    typed = config_from_record(record.config, path)
    if config.data_path is not None and typed.data.path is None:
        raise ConfigError("data_path: the record's corpus is not read from a path; omit data_path")
    data = {"path": config.data_path or typed.data.path, "cache_dir": config.cache_dir or typed.data.cache_dir}
    changes = {
        "data": typed.data.model_copy(update=data),
        "logger": typed.logger.model_copy(update={"mode": "none"}),
        "stop_after_minutes": None,
        "sweep": None,
        "runs_dir": config.runs_dir,
    }
    return typed.model_copy(update=changes)


def _command(config: RerunConfig) -> str:
    given = config.model_dump(include={"data_path", "cache_dir", "runs_dir"}, exclude_none=True)
    settings = [f"{key}={quote_value(text)}" for key, text in given.items()]
    if (folder := schemes_dir()) is not None:
        settings.append(f"schemes_dir={folder}")
    return shlex.join(["rpr-cli", "rerun", config.run, *settings])


def _folder(typed: TrainConfig) -> Path:
    """The first folder without a record, or with that of an unfinished rerun, which is resumed."""
    stem = user_path(typed.runs_dir).absolute() / f"{typed.run_dir_name}-rerun"
    for folder in (Path(f"{stem}{number}") for number in count(1)):
        earlier = read_record(folder / RECORD_NAME) if (folder / RECORD_NAME).exists() else None
        if earlier is None or (earlier.status != "finished" and earlier.run_id == typed.run_id):
            break
    return folder


def _deviations(record: Record, typed: TrainConfig) -> list[str]:
    """A line for each difference between the record and one made here, of the checkout, the versions, the positions'
    code, and the corpus; of a finished run also of the machine. Raises DataError if the corpus cannot be read.
    """
    git = provenance.git_state()
    here: dict[str, Any] = {"git": git, "versions": provenance.versions()}
    if record.schemes is not None:
        here["schemes"] = codes((typed.position.encoder, typed.position.decoder))
    if record.status == "finished":
        here["device"] = runtime.device_name(typed.hardware)
    if record.training is not None and record.training.matmul_precision is not None:
        used = {"matmul_precision": runtime.matmul_precision(typed.hardware)}
        here["training"] = record.training.model_copy(update=used)
    if record.data is not None:
        here["data"] = record.data.model_copy(update={"key": _key(typed)})
    rows = [row for row in difference(record, record.model_copy(update=here)) if not row.same]
    values = [[row.name, *("nothing" if of.value is ABSENT else of.value for of in (row.a, row.b))] for row in rows]
    if record.git.dirty and git.dirty:
        values.append(["git.dirty", True, True])
    return [f"{name}: {recorded} in the record, {now} here" for name, recorded, now in values]


def _key(typed: TrainConfig) -> str:
    try:
        return cache_key(typed.data)
    except DataError as error:
        moved = "" if typed.data.path is None else "; if the corpus has moved, set data_path=..."
        raise DataError(f"{error}{moved}") from None
