"""The lifecycle of a run: its folder and record from the start, and what the record says when the run fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpr.config.train import TrainConfig
from rpr.errors import ConfigError, DataError, InterruptedRun, TimeLimitReached, reason_of
from rpr.io.atomic import exclusive, remove_leftovers, replace_file
from rpr.io.escape import note
from rpr.model.positions import changed_code, codes, of_user
from rpr.records.record import METRICS_NAME, RECORD_NAME, Data, Git, Record, RerunOf, read_record, varying, write_record
from rpr.runs.locks import LOCK_NAME
from rpr.version import utc_now, versions

if TYPE_CHECKING:  # numpy and torch, which a command with invalid settings does not wait for
    from rpr.config.train import DataConfig
    from rpr.data.cache import PreparedData

_WRITTEN = (RECORD_NAME, METRICS_NAME, "config.yaml", "*.txt", "vocabulary.model")


@contextlib.contextmanager
def rollback_on_error(run_dir: Path) -> Iterator[None]:
    """If preparing the run fails or is stopped, its new folder leaves, which holds only its lock."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if [path.name for path in run_dir.iterdir()] == [LOCK_NAME]:
                (run_dir / LOCK_NAME).unlink()
                run_dir.rmdir()
                run_dir.parent.rmdir()  # unless it has other runs
        raise


def untrained(config: TrainConfig) -> Iterator[str]:
    """What evaluation reads as it was initialised."""
    scheme, window = config.position.decoder, f"windows of {config.data.context_length} tokens (data.context_length)"
    if (never := scheme.untrained(config.longest_row, config.longest_context)) is not None:
        longer = f"training has {window}, evaluation.context_lengths has longer ones"
        yield f"{never} stay as they were initialised ({scheme.label}): {longer}"


def _set_aside(run_dir: Path, earlier: Record, config: TrainConfig) -> bool:
    """again=true: move the files of the `earlier` run of the same settings to a folder named by its start, but for one
    that again=true itself began and that has not finished: it is resumed if the code of its positions is the same.
    """
    sides = (config.position.encoder, config.position.decoder)
    if earlier.again and earlier.status != "finished" and not changed_code(sides, earlier.schemes):
        note(f"again=true: {run_dir.name} resumes, which it began at {earlier.started}")
        return False
    folder = run_dir.with_name(f".{run_dir.name}.before-{earlier.started.replace(':', '')[:17]}")
    folder.mkdir(exist_ok=True)  # of a move that was killed, which goes on: the record moves last
    for path in sorted(run_dir.iterdir(), key=lambda path: path.name == RECORD_NAME):
        if path.name != LOCK_NAME:
            path.rename(folder / path.name)
    note(f"again=true: the earlier run is kept in {folder}")
    return True


def add_to_sweep(run_dir: Path, sweep: str) -> None:
    """Add a finished run to a sweep, in its record."""
    path = run_dir / RECORD_NAME
    with exclusive(run_dir, RECORD_NAME):
        record = read_record(path)
        if sweep not in record.sweeps:
            write_record(path, record.model_copy(update={"sweeps": (*record.sweeps, sweep)}))


def check_test_splits(config: TrainConfig, splits: Sequence[str]) -> None:
    """Raises DataError if the corpus, which has these splits, lacks one that is to be scored; `long` may be absent
    beside others.
    """
    asked = set(config.evaluation.test_splits)
    if absent := asked - set(splits) - ({"long"} if asked & set(splits) else set()):
        raise DataError(
            f"evaluation.test_splits: {config.data.name} has no {' or '.join(sorted(absent))}; choose splits that it "
            f"has ({', '.join(split for split in splits if split != 'train')}), or [] to score nothing"
        )


def start_record(
    config: TrainConfig,
    command: str,
    run_dir: Path,
    data: PreparedData,
    *,
    rerun_of: RerunOf | None = None,
    concurrent_jobs: int = 1,
) -> None:
    """Write the run's record, with status running, and its configuration; remove what a killed process left behind.
    Raises DataError if the run was started on another corpus, or if the corpus has none of the splits to score.
    """
    import yaml

    from rpr.data.batches import unigram_bits
    from rpr.runs.loading import check_same_vocabulary, checkpoints, corpus_change

    # 1. What the corpus must have, before an earlier run is set aside.
    path, folder = run_dir / RECORD_NAME, run_dir / "checkpoints"
    check_test_splits(config, data.splits)
    if config.origin is not None and (config.again or not checkpoints(folder)):
        check_same_vocabulary(config.origin, data.vocabulary)
    # 2. An earlier run of the same settings, which continues, on the same corpus, if it has a checkpoint.
    settings = config.model_dump(mode="json") | {"again": False}
    earlier = read_record(path) if path.exists() else None
    sweeps = earlier.sweeps if earlier else ()
    if config.again and earlier is not None and _set_aside(run_dir, earlier, config):
        earlier = None
    continued = earlier if checkpoints(folder) else None
    if checkpoints(folder) and (change := corpus_change(run_dir, earlier, data)):
        raise DataError(f"{change}; restore the old corpus, or move that run's folder away and train it again")
    if config.sweep is not None and config.sweep not in sweeps:
        sweeps = (*sweeps, config.sweep)
    most: int | None = concurrent_jobs  # unknown if it was for an earlier part of the run
    if continued is not None:
        most = None if continued.concurrent_jobs is None else max(concurrent_jobs, continued.concurrent_jobs)
    # 3. The files.
    sides = (config.position.encoder, config.position.decoder)
    remove_leftovers(run_dir, *_WRITTEN)
    record = Record(
        name=config.label,
        run_id=config.run_id,
        status="running",
        error=None,
        sweeps=sweeps,
        command=command,
        again=config.again or (earlier is not None and earlier.again),
        rerun_of=rerun_of or (earlier.rerun_of if earlier else None),
        dropped_parameters=earlier.dropped_parameters if earlier else (),
        new_parameters=earlier.new_parameters if earlier else (),
        config=settings,
        git=_git(run_dir, continued),
        versions=versions(),
        label=config.position.label if any(map(of_user, sides)) else None,
        schemes=codes(sides),
        device=config.hardware.name,
        hardware=config.hardware.name,
        concurrent_jobs=most,
        seed=config.seed,
        started=continued.started if continued else utc_now(),
        finished=None,
        steps=None,
        parameters=None,
        data=Data(
            name=data.meta.name,
            synthetic=data.meta.synthetic,
            train_pairs=len(data.split("train")),
            dropped_pairs=sum(sum(lost.values()) for lost in data.meta.dropped.values()),
            vocabulary_size=len(data.vocabulary),
            key=data.meta.key,
            notes=data.meta.notes,
            unigram_bits=unigram_bits(data),
        ),
        training=None,
        wandb=None,
    )
    write_record(path, record)
    replace_file(run_dir / "config.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _git(run_dir: Path, resumed: Record | None) -> Git:
    """The checkout; with uncommitted changes if any part of the run had them. A note says what has changed since."""
    git = Git.here()
    if resumed is None:
        return git
    before, now = {"commit": resumed.git.commit, **resumed.versions}, {"commit": git.commit, **versions()}
    if changed := [f"{name} {before.get(name)}, now {now.get(name)}" for name in varying([before, now])]:
        note(f"{run_dir.name}: started with {'; '.join(changed)}; its record names the latter")
    return git.model_copy(update={"dirty": resumed.git.dirty or git.dirty})


def mark_stopped(run_dir: Path, error: BaseException, *, rank: str | None = None, is_earlier: bool = False) -> Record:
    """Set the record's status to failed or interrupted, with the reason; returns it as it was. The first report stays:
    that of the training process, or of the `rank` that failed first. A time limit replaces it, and any report if it
    `is_earlier`, of an earlier attempt. A finished run stays finished, and on a full disk the record as it is.
    """
    record = read_record(run_dir / RECORD_NAME)
    first = record.status == "running" or isinstance(error, TimeLimitReached) or is_earlier
    if record.status != "finished" and first:
        status = "interrupted" if isinstance(error, (InterruptedRun, KeyboardInterrupt, SystemExit)) else "failed"
        reason = reason_of(error) or f"{type(error).__name__}: {error}"
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            signal = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else "SIGTERM"
            reason = f"{signal}; the same command resumes from the last checkpoint, if any"
        reason = f"rank {rank}: " * (rank is not None) + " ".join(reason.split())
        with contextlib.suppress(OSError):
            write_record(run_dir / RECORD_NAME, record.model_copy(update={"status": status, "error": reason}))
    return record


def check_same_corpus(
    config: TrainConfig, run_dir: Path, record: Record, key_of: Callable[[DataConfig], str] | None = None
) -> None:
    """Raises ConfigError if the corpus is no longer the one that a finished run was trained on: the files at data.path,
    what the code of a generator makes, or the commit of the hub that this cache_dir is pinned to, if it is.
    """
    from rpr.data.cache import cache_key
    from rpr.data.files import hub_pins

    data = config.data
    if record.data is None or (data.on_hub and str(data.hub) not in hub_pins(data)):
        return
    with contextlib.suppress(DataError):  # the corpus can no longer be read: the finished run remains valid
        if record.data.key != (key_of or cache_key)(data):
            raise ConfigError(
                f"data{'.path' if data.path else ''}: {data.path or data.name} has changed since {run_dir.name} was "
                "trained on it; move that run's folder away, or give the new corpus a data.name= of its own"
            )
