"""rpr-cli rerun: repeat a run from its record in a new folder, and compare the results."""

import os
import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from rpr.commands import train
from rpr.commands.diff import lines_of, read_run_files
from rpr.compose.hydra_bridge import quote_value
from rpr.config.commands import RerunConfig
from rpr.config.data import NAME
from rpr.config.train import HardwareConfig, TrainConfig, config_from_record
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, DataError, RecordError
from rpr.io.escape import note
from rpr.model.positions import changed_code
from rpr.paths import schemes_dir, user_path
from rpr.records import provenance
from rpr.records.difference import FIGURES, SCORES, Difference, difference
from rpr.records.record import RECORD_NAME, Git, Record, RerunOf, read_record
from rpr.runs import runtime
from rpr.runs.checkpoints import checkpoints
from rpr.runs.origin import weights_of

NAMES = ("record", "rerun")
_PLAIN = re.compile(r"[\w./+@%-]+")  # a value that needs no quotes


def run(config: RerunConfig) -> None:
    """Trains and scores the recorded configuration again, then prints how the two results compare.

    Differences from the record (commit, versions, machine, corpus) are reported on stderr before any work. With
    `strict` they are an error instead, and different results end the command with exit code 1.
    """
    path, record, metrics = read_run_files(config.run)
    typed = _configuration(config, path, record)
    runtime.check_devices(typed.hardware)
    if record.outcome is not None:
        if config.strict:
            raise RecordError(
                f"{path}: {record.outcome}; strict=true needs the record of a finished run, because machine, corpus "
                "and scores are written at its end: omit strict"
            )
        note(f"{path}: {record.outcome}; it has no results to compare with")
    deviations = list(_deviations(record, typed, provenance.git_state()))
    if config.strict and deviations:
        raise RecordError(f"{path}: strict=true, and not as recorded: {'; '.join(deviations)}")
    for line in deviations:
        note(f"not as recorded: {line}")
    run_dir = _folder(config, path, record, typed)
    if typed.origin is not None and not checkpoints(run_dir / "checkpoints"):
        weights_of(typed.origin)  # raises before the corpus is prepared
    rerun_of = RerunOf(run_id=record.run_id, started=record.started)
    run_dir = train.run(typed, command=_command(config), run_dir=run_dir, rerun_of=rerun_of)
    if record.outcome is not None:
        return
    _, again, metrics_again = read_run_files(run_dir)
    differences = difference(record, again, metrics, metrics_again)
    print("\n".join(["", *_outcome(differences)]))
    if config.strict and not differences.reproduced:
        note(f"{run_dir.name}: its results differ from those of {path}")
        raise SystemExit(1)


def _configuration(config: RerunConfig, path: Path, record: Record) -> TrainConfig:
    """The record's configuration with this command's folders; without a sweep, and without W&B, where the rerun would
    write to the original's run: both have the same ID.
    """
    typed = config_from_record(record.config, path)
    given = {"path": config.data_path, "cache_dir": config.cache_dir}
    library = typed.data.text is not None and typed.data.text.python_library
    if config.data_path is not None and (typed.data.generated or library):
        what = "Python's standard library" if library else "generated, not read"
        raise ConfigError(f"data_path: the record's corpus is {what}; omit data_path")
    changes = {
        "data": typed.data.model_copy(update={key: value for key, value in given.items() if value is not None}),
        "logger": typed.logger.model_copy(update={"mode": "none"}),
        "stop_after_minutes": None,
        "sweep": None,
        "runs_dir": config.runs_dir,
    }
    return typed.model_copy(update=changes)


def _command(config: RerunConfig) -> str:
    given = config.model_dump(include={"data_path", "cache_dir", "runs_dir"}, exclude_none=True)
    settings = [f"{key}={text if _PLAIN.fullmatch(text) else quote_value(text)}" for key, text in given.items()]
    if (folder := schemes_dir()) is not None:
        settings.append(f"schemes_dir={folder}")
    return shlex.join(["rpr-cli", "rerun", config.run, *settings, *(["strict=true"] if config.strict else [])])


def _folder(config: RerunConfig, path: Path, record: Record, typed: TrainConfig) -> Path:
    """The folder of an unfinished rerun of the same record, to resume it; else the first without a record."""
    stem = f"{record.name}-{record.run_id}-rerun"
    if not NAME.fullmatch(stem):
        raise RecordError(
            f"{path}: its name and run_id make {stem!r}, which is not a valid folder name; correct the record"
        )
    for number in count(1):
        folder = user_path(config.runs_dir).absolute() / f"{stem}{number}"
        if not (folder / RECORD_NAME).exists():
            break
        earlier = read_record(folder / RECORD_NAME)
        itself = path.resolve() == (folder / RECORD_NAME).resolve()
        unlike = config.strict and (earlier.git, earlier.versions) != (provenance.git_state(), provenance.versions())
        if earlier.status != "finished" and earlier.run_id == typed.run_id and not itself and not unlike:
            note(f"{folder.name}: resuming an unfinished rerun of this record")
            break
    return folder


def _deviations(record: Record, typed: TrainConfig, git: Git) -> Iterator[str]:
    """A line for each difference from the record: of the checkout, the versions, the machine (of a finished run) and
    the corpus. Raises DataError if that cannot be read.
    """
    if record.git.dirty:
        yield "commit: the recorded checkout had uncommitted changes"
    if git.dirty:
        yield "commit: this checkout has uncommitted changes"
    changes = changed_code((typed.position.encoder, typed.position.decoder), record.schemes)
    yield from (f"position: {change}" for change in changes)
    recorded, here = ({"commit": (of.commit or "no checkout")[:12]} for of in (record.git, git))
    recorded |= record.versions
    here |= provenance.versions()
    if record.status == "finished":
        recorded["device"], here["device"] = record.device, _device(typed.hardware)
        used = "float32 matmuls"  # which hardware.matmul_precision=auto leaves to the device
        if record.training is not None and record.training.matmul_precision is not None:
            recorded[used], here[used] = record.training.matmul_precision, runtime.matmul_precision(typed.hardware)
    try:
        key = cache_key(typed.data)
    except DataError as error:
        if typed.data.path is None:
            raise
        raise DataError(f"{error}; if the corpus has moved, set data_path=...") from None
    if record.data is not None:
        recorded["data"], here["data"] = (f"key {of[:12]}" for of in (record.data.key, key))
    for name in dict.fromkeys([*recorded, *here]):
        if recorded.get(name) != here.get(name):
            yield f"{name}: {recorded.get(name, 'nothing')} in the record, {here.get(name, 'nothing')} here"


def _device(hardware: HardwareConfig) -> str:
    """The device that the rerun will record; several processes have one thread each by default."""
    if hardware.num_ranks > 1 and hardware.threads is None:
        hardware = hardware.model_copy(update={"threads": int(os.environ.get("OMP_NUM_THREADS", "1"))})
    return runtime.device_name(hardware)


def _outcome(differences: Difference) -> list[str]:
    """One line on whether the results are the same, and the differences."""
    if not differences.reproduced:
        return ["Different:", *lines_of(differences, NAMES)]
    logged = sum(curve.equal for curve in differences.curves)
    also = f", and {logged} logged losses" if logged else ""
    figures, scores = differences.of(FIGURES), sum(pair.same for pair in differences.of(SCORES))
    speeds = [pair for pair in figures if pair.name == "steps_per_second" and pair.difference is not None]
    return [
        f"Bit-identical: {scores} score{'s' * (scores != 1)}, training and validation loss{also}.",
        *(f"steps/s: {pair.a.value:.3f} and {pair.b.value:.3f} ({pair.difference:+.3f})" for pair in speeds),
    ]
