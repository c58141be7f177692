"""The books of a run: its folder and record from the moment it begins, and what they say when it fails."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpr.config.train import TrainConfig
from rpr.errors import ConfigError, DataError, InterruptedRun, RprError, RunError
from rpr.io.atomic import remove_leftovers, replace_file
from rpr.records import provenance
from rpr.records.record import (
    METRICS_NAME,
    RECORD_NAME,
    Data,
    Record,
    RerunOf,
    read_record,
    write_record,
)
from rpr.runs.locks import LOCK_NAME

if TYPE_CHECKING:  # numpy and torch, which a command that refuses its settings does not wait for
    from rpr.data.cache import PreparedData

JOB_NAME = "job.json"
_WRITTEN = (RECORD_NAME, JOB_NAME, "config.yaml", METRICS_NAME, "not_finite_*", "*.txt", "vocabulary.model")


def make(run_dir: Path) -> list[Path]:
    """The run's folder with its lock's file; which folders were not there before, the innermost first."""
    made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / LOCK_NAME).open("ab"):
            pass
    except OSError as error:
        raise _unwritable(run_dir, error) from None
    return made


@contextlib.contextmanager
def as_it_was(run_dir: Path, made: Sequence[Path]) -> Iterator[None]:
    """A corpus at fault, or a stop while it is prepared, leaves no run behind, and an earlier record as it was."""
    try:
        yield
    except BaseException:
        if not (run_dir / RECORD_NAME).exists():
            with contextlib.suppress(OSError):  # something else lies there
                (run_dir / LOCK_NAME).unlink()
                for path in dict.fromkeys((run_dir, *made)):
                    path.rmdir()
        raise


def _unwritable(run_dir: Path, error: OSError) -> ConfigError:
    return ConfigError(f"runs_dir: {run_dir} cannot be written ({error.strerror}); choose another runs_dir=...")


def begin(
    config: TrainConfig, command: str, run_dir: Path, data: PreparedData, rerun_of: RerunOf | None = None
) -> Path:
    """The run's folder with its record, status running, and its configuration; what a kill left half written goes.
    A rerun that is resumed stays a rerun.

    Raises:
        DataError: it was begun on another corpus, or the corpus has none of the splits that are to be scored.
        ConfigError: the folder cannot be written.
    """
    path = run_dir / RECORD_NAME
    earlier = read_record(path) if path.exists() else None
    _refuse_to_go_on_with_another_corpus(run_dir, earlier, data)
    asked = config.evaluation.test_splits
    if asked and not set(asked) & set(data.splits):
        raise DataError(
            f"evaluation.test_splits: {data.meta.name} has no {' or '.join(asked)}, and nothing would be scored; "
            "choose of what it has, or [] to score nothing"
        )
    try:
        remove_leftovers(run_dir, *_WRITTEN)
        sweeps = earlier.sweeps if earlier else ()
        if config.sweep is not None and config.sweep not in sweeps:
            sweeps = (*sweeps, config.sweep)
        record = Record(
            name=config.label,
            run_id=config.run_id,
            status="running",
            error=None,
            sweeps=sweeps,
            command=command,
            rerun_of=rerun_of or (earlier.rerun_of if earlier else None),
            config=config.model_dump(mode="json"),
            git=provenance.git_state(),
            versions=provenance.versions(),
            device=config.hardware.name,
            hardware=config.hardware.name,
            seed=config.seed,
            started=earlier.started if earlier else provenance.now(),
            finished=None,
            steps=None,
            parameters=None,
            data=_data_record(data),
            training=None,
            wandb=None,
        )
        write_record(path, record)
        job = run_dir / JOB_NAME
        replace_file(job, json.dumps(config.model_dump(mode="json"), indent=2))
        replace_file(run_dir / "config.yaml", _as_yaml(config))
    except OSError as error:
        raise _unwritable(run_dir, error) from None
    return job


def _as_yaml(config: TrainConfig) -> str:
    import yaml

    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def _refuse_to_go_on_with_another_corpus(run_dir: Path, earlier: Record | None, data: PreparedData) -> None:
    from rpr.runs import loading
    from rpr.runs.checkpoints import checkpoints

    if not checkpoints(run_dir / "checkpoints"):
        return
    loading.refuse_another_vocabulary(run_dir, data)
    if earlier is not None and earlier.data is not None and earlier.data.key != data.meta.key:
        raise DataError(
            f"data: {data.meta.name} is not what it was when {run_dir.name} was begun (key {earlier.data.key[:12]}, "
            f"now {data.meta.key[:12]}); bring the old corpus back, or move that run's folder away and train it anew"
        )


def _data_record(data: PreparedData) -> Data:
    return Data(
        name=data.meta.name,
        synthetic=data.meta.synthetic,
        train_pairs=len(data.split("train")),
        dropped_pairs=sum(sum(lost.values()) for lost in data.meta.dropped.values()),
        vocabulary_size=len(data.vocabulary),
        key=data.meta.key,
        notes=data.meta.notes,
    )


def mark_unfinished(run_dir: Path, error: BaseException) -> None:
    """Failed or interrupted, and why, in the record; what the process itself wrote is not replaced by its parent's
    echo. On a disk that is full the record stays as it is, of a run that was killed, and only the error is reported.
    """
    path = run_dir / RECORD_NAME
    record = read_record(path)
    if record.status in ("failed", "interrupted") and isinstance(error, RunError):
        return
    interrupted = isinstance(error, (InterruptedRun, KeyboardInterrupt, SystemExit))
    if isinstance(error, RprError):
        reason = str(error)
    elif interrupted:
        how = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else "SIGTERM"
        reason = f"{how}; the same command resumes from the last checkpoint"
    else:
        reason = f"{type(error).__name__}: {error}"
    update = {"status": "interrupted" if interrupted else "failed", "error": " ".join(reason.split())}
    with contextlib.suppress(OSError):
        write_record(path, record.model_copy(update=update))


def refuse_another_corpus(config: TrainConfig, run_dir: Path, record: Record) -> None:
    """A finished run stands for what is asked only while the files at data.path are those that it was trained on.

    Raises:
        ConfigError: they have changed.
    """
    from rpr.data.cache import cache_key

    data = config.data
    if data.path is None or record.data is None or not Path(data.path).exists():
        return
    try:
        same = record.data.key == cache_key(data)
    except DataError:  # no corpus any more, as far as can be read: the finished run stands
        return
    if not same:
        raise ConfigError(
            f"data.path: {data.path} is not what it was when {run_dir.name} was trained on it (key "
            f"{record.data.key[:12]}); move that run's folder away, or give the new corpus a data.name= of its own"
        )
