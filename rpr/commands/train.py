"""rpr-cli train: one run, from the corpus to its record."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.commands.printing import print_result
from rpr.config.train import HardwareConfig, TrainConfig, config_from_record
from rpr.environment import is_first_rank
from rpr.errors import ConfigError, RecordError, RprError, RunError, reason_of
from rpr.io import system
from rpr.io.escape import escape_control_characters, note
from rpr.kinds import TEXT
from rpr.paths import user_path
from rpr.records.position import check_same_code
from rpr.records.record import LOG_NAME, RECORD_NAME, RerunOf, read_record, write_record
from rpr.runs import lifecycle
from rpr.signals import die_with_parent, exit_on_sigterm, stop_before
from rpr.version import utc_now

if TYPE_CHECKING:  # numpy and torch: invalid settings are reported without waiting for their import
    from rpr.data.cache import PreparedData

FAULT_EXIT = 2  # of a process that ended by one of our own errors


def run(
    config: TrainConfig,
    *,
    command: str,
    concurrent_jobs: int | None = None,
    in_launcher: bool = False,
    run_dir: Path | None = None,
    rerun_of: RerunOf | None = None,
) -> Path:
    """Train and evaluate a run unless it has already finished; an interrupted one resumes from its newest checkpoint.
    Returns its folder: `run_dir`, or the configured one. `rerun_of` is the record that this run repeats. A job of a
    sweep shares its device with `concurrent_jobs` at a time; its output goes to its log alone, and the sweep reports
    its result. `in_launcher`: this process is submitit's, and the run trains in one of its own. Raises BusyError if
    another process is working on the run, RprError if the input is invalid, or the run failed.
    """
    from rpr.runs import locks

    trial, reported = config.fast_dev_run, concurrent_jobs is not None
    with contextlib.ExitStack() as stack:
        # 1. A trial has a folder that is removed at the end.
        if trial:
            from rpr.commands import preflight

            run_dir = stack.enter_context(preflight.folder(config))
        run_dir = run_dir or user_path(config.runs_dir).absolute() / config.run_dir_name
        # 2. A run that has finished is reported; with again=true it is set aside when its new record starts.
        if config.again and config.hardware.num_nodes > 1:
            raise ConfigError(f"again: the processes of several nodes would race; move {run_dir} away instead")
        if _report_if_finished(config, run_dir):
            return run_dir
        # 3. What the run needs is there; of several SLURM nodes only the first goes on: it keeps the record.
        if not _is_first_node(config, run_dir):
            return run_dir
        # 4. A sweep says for all its jobs what evaluation would read untrained.
        for line in () if reported else lifecycle.untrained(config):
            note(f"warning: {line}")
        # 5. One process at a time works in the run's folder; the lock's previous holder may have finished the run.
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context(locks.acquire(run_dir))
        stack.enter_context(exit_on_sigterm())
        if _report_if_finished(config, run_dir):
            return run_dir
        # 6. A run whose data cannot be used leaves nothing; from its record on, every error is in it.
        with lifecycle.rollback_on_error(run_dir):
            data = _prepare(config)
            at_once = concurrent_jobs or 1
            lifecycle.start_record(config, command, run_dir, data, rerun_of=rerun_of, concurrent_jobs=at_once)
        # 7. Train in processes of their own, one for each rank, or in this one.
        log = run_dir / LOG_NAME if reported and not trial else None
        with _failure_recorded(run_dir):
            if config.hardware.num_ranks > 1 or in_launcher:
                _run_worker(run_dir, config.hardware, keep_open=[lock], log=log)
            else:
                if log is not None:
                    with log.open("ab") as file:
                        for stream in (sys.stdout, sys.stderr):
                            stream.flush()
                            os.dup2(file.fileno(), stream.fileno())
                work(config, run_dir, data)
    # 8. The result; of a sweep's job the sweep reports it.
    if not (reported or trial):
        print_result(run_dir)
    return run_dir


def resume(run_dir: Path) -> Path:
    """Resume the run in this folder from its record alone; if it has finished, only print its result."""
    from rpr.runs.loading import record_of

    record = record_of(run_dir)
    config = config_from_record(record.config, run_dir / RECORD_NAME)
    return run(config, command=record.command, run_dir=run_dir.absolute())


def _report_if_finished(config: TrainConfig, run_dir: Path) -> bool:
    """Whether the run has finished, without again=true: then print its result and add it to the requested sweep.
    Finished or not, the code of its positions must be the same.
    """
    path = run_dir / RECORD_NAME
    if config.again or not path.exists():
        return False
    record = read_record(path)
    check_same_code(config.position, record)
    if record.status != "finished":
        return False
    lifecycle.check_same_corpus(config, run_dir, record)
    if config.sweep is not None and config.sweep not in record.sweeps:
        lifecycle.add_to_sweep(run_dir, config.sweep)
    print(f"{escape_control_characters(run_dir.name)}: already finished on {record.finished}", file=sys.stderr)
    print_result(run_dir)
    return True


def _is_first_node(config: TrainConfig, run_dir: Path) -> bool:
    """Check what can be known before the corpus is prepared: the scores' tokenizer, the devices, the other nodes. A
    SLURM node after the first then trains; on a failure its process exits with a non-zero code, so that SLURM ends the
    job: submitit would take a raised error for a result, and the first node would wait for this one.
    """
    from rpr.runs import runtime
    from rpr.scoring.metrics import check_tokenizer
    from rpr.training import launch

    check_tokenizer(config)
    config.logger.check_installed()
    slurm = launch.slurm_job(config.hardware) if config.hardware.num_nodes > 1 else None
    try:
        runtime.check_devices(config.hardware)
        if slurm is not None and slurm.node > 0:
            _prepare(config)
            _run_worker(run_dir, config.hardware)
    except RprError as error:
        if slurm is None or slurm.node == 0:
            raise
        note(str(error))
        time.sleep(launch.GRACE_SECONDS)  # the first node may have an error of its own to report
        raise SystemExit(FAULT_EXIT) from None
    return slurm is None or slurm.node == 0


def _run_worker(run_dir: Path, hardware: HardwareConfig, **options: Any) -> None:
    from rpr.training import launch

    if code := launch.run_worker("rpr.commands.train", run_dir, hardware, **options):
        record = read_record(run_dir / RECORD_NAME)
        raise RunError(record.error) if code == FAULT_EXIT and record.error is not None else launch.ended(code)


def work(config: TrainConfig, run_dir: Path, data: PreparedData) -> None:
    """Train on every rank; then the first rank alone translates, scores and completes the record."""
    if config.fast_dev_run:
        from rpr.commands import preflight

        preflight.work(config, run_dir, data)
        return
    from rpr.runs import loading, runtime
    from rpr.scoring.run import evaluated_model, score_run, validation_bleu
    from rpr.tracking import loggers
    from rpr.training import fit
    from rpr.training.callbacks import remove_superseded

    # 1. The process, and what a later command needs beside the weights.
    runtime.set_up(config.hardware)
    path, failed, summary = run_dir / RECORD_NAME, True, dict[str, Any]()
    logger: loggers.TensorBoard | loggers.WandbMirror | None = None
    if is_first_rank():
        check_same_code(config.position, read_record(path))  # this process may have read newer code
        data.vocabulary.save(run_dir / loading.VOCABULARY_NAME)
        logger = loggers.start(config, run_dir, synthetic=data.meta.synthetic)
    try:
        # 2. Train.
        translates = config.data.kind is not TEXT and config.evaluation.validation_sentences
        bleu = partial(validation_bleu, config, data) if translates else None
        steps, parameters, training = fit.fit(config, data, run_dir, logger=logger, validation_bleu=bleu)
        if not is_first_rank():
            return
        # 3. Score the weights that the recipe averages.
        remove_superseded(run_dir / "checkpoints", config.optim)  # after a kill right after the last checkpoint
        model, checkpoint = loading.model_of(config, run_dir, None, len(data.vocabulary))
        scored = score_run(config, data, evaluated_model(config, model, checkpoint), run_dir)
        summary = {f"{score.split}/{score.metric}": score.score for score in scored.scores}
        summary |= {"steps_per_second": training.steps_per_second, "validation_loss": training.validation_loss}
        # 4. The record is complete.
        result = {
            "status": "finished",
            "error": None,
            "finished": utc_now(),
            "device": runtime.device_name(config.hardware),
            "steps": steps,
            "parameters": parameters,
            "training": training,
            "wandb": loggers.reference(logger),
            **vars(scored),
        }
        write_record(path, read_record(path).model_copy(update=result))
        if logger is not None:
            logger.log_results()
        failed = False
    finally:
        if logger is not None:
            logger.finish(summary, failed=failed)


def _prepare(config: TrainConfig) -> PreparedData:
    """The run's corpus, once the hooks of its positions have been tried."""
    from rpr.commands.prepare import progress_bars
    from rpr.data.cache import prepare
    from rpr.data.files import corpus_files
    from rpr.model.scheme_check import check_hooks
    from rpr.scoring.metrics import check_tokenizer
    from rpr.scoring.run import check_scorable

    for tried in config.sites:
        check_hooks(*tried)
    if not (config.data.generated or config.data.on_hub):  # whose splits are known only when they are there
        files = corpus_files(config.data)
        lifecycle.check_test_splits(config, [*files.splits, *files.missing])
    with progress_bars(config.data) as report:
        data = prepare(config.data, report)
    for remark in data.meta.notes if data.built_now else ():
        note(f"data: {data.meta.name}: {remark}")
    if config.data.kind is not TEXT:
        check_tokenizer(config, data.text("validation")[1])
    check_scorable(config, data)
    return data


@contextlib.contextmanager
def _failure_recorded(run_dir: Path) -> Iterator[None]:
    """Record why the run stops: of the first rank at once, of another one if the first has no error of its own by then,
    as at the first exit torchrun ends all ranks. What that does to the first rank is raised as the error in the record.
    """
    from rpr.training import launch

    try:
        yield
    except BaseException as error:
        # 1. A signal in whose course another error was raised, as that of a killed loader process, is the cause.
        stop = error if isinstance(error, RprError) else stop_before(error) or error
        failure = isinstance(stop, Exception)
        # 2. The first rank, which may only have met the end of another.
        if is_first_rank():
            earlier = lifecycle.mark_stopped(run_dir, stop)
            if failure and reason_of(stop) is None and earlier.status == "failed":
                raise RunError(earlier.error or "") from None
        # 3. Another rank.
        elif failure:
            time.sleep(launch.GRACE_SECONDS)
            with contextlib.suppress(RecordError):  # a node without the first one's file system
                lifecycle.mark_stopped(run_dir, stop, rank=os.environ["RANK"])
        if stop is not error:
            raise stop from None
        raise


def main(run_dir: Path) -> None:
    """The worker process `python -m rpr.commands.train <run folder>`, started by rpr.training.launch."""
    die_with_parent(os.getppid())
    system.outlive_readers("stdout", "stderr")
    with exit_on_sigterm():
        config = config_from_record(read_record(run_dir / RECORD_NAME).config)
        try:
            with _failure_recorded(run_dir):
                work(config, run_dir, _prepare(config))
        except Exception as error:
            if reason_of(error) is None:
                raise
            raise SystemExit(FAULT_EXIT) from None  # the waiting process reports what is in the record


if __name__ == "__main__":
    main(Path(sys.argv[1]))
