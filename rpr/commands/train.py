"""rpr-cli train: one run, from the corpus to its record."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.config.train import HardwareConfig, TrainConfig, config_from_record
from rpr.environment import started_by_torchrun
from rpr.errors import ConfigError, InterruptedRun, ProcessEnded, RprError, RunError
from rpr.io.escape import escape_control_characters
from rpr.model.positions import Site
from rpr.paths import user_path
from rpr.records import provenance
from rpr.records.record import LOG_NAME, RECORD_NAME, Record, RerunOf, read_record, write_record
from rpr.records.scores import METRIC_NAMES
from rpr.runs import lifecycle
from rpr.runs.schemes import check_same_code
from rpr.signals import die_with_parent, exit_on_sigterm

if TYPE_CHECKING:  # numpy and torch: invalid settings are reported without waiting for their import
    from rpr.data.cache import PreparedData
    from rpr.training.launch import SlurmPlace

FAULT_EXIT, SIGNALLED = 2, 128  # exit codes: 2 for our own errors, above 128 for signals


@dataclass(frozen=True)
class SweepJob:
    """What a sweep assigns to a run.

    Args:
        concurrent_jobs: how many of its jobs share the run's device at a time.
        gpus: the only GPUs visible to the run.
        keep_open: file descriptors (locks) that it inherits.
    """

    concurrent_jobs: int = 1
    gpus: Sequence[str] = ()
    keep_open: Sequence[int] = ()


def run(
    config: TrainConfig,
    *,
    command: str,
    sweep_job: SweepJob | None = None,
    run_dir: Path | None = None,
    rerun_of: RerunOf | None = None,
) -> Path:
    """Train and evaluate a run unless it has already finished; returns its folder.

    An interrupted run resumes from its newest checkpoint.

    Args:
        sweep_job: run as a job of a sweep, in a process of its own, so that W&B, peak memory and random state are the
            run's own. Its output goes to its log alone, and the sweep reports its result.
        run_dir: the run's folder, if not the configured one.
        rerun_of: the record that this run repeats.

    Raises:
        BusyError: another process is working on the run.
        RprError: the input is invalid, or the run failed.
    """
    from rpr.metrics.languages import check_tokenizer
    from rpr.runs import runtime
    from rpr.training import launch

    hardware = config.hardware
    run_dir = run_dir or user_path(config.runs_dir).absolute() / config.run_dir_name
    if config.again:
        config = config.model_copy(update={"again": False})  # once: an interrupted run resumes
        if started_by_torchrun() or hardware.num_nodes > 1:
            raise ConfigError(f"again: the processes of several nodes would race; move {run_dir} away instead")
        lifecycle.set_aside(run_dir)
    if not started_by_torchrun() and (finished := _finished_record(config, run_dir)) is not None:
        _report_already_finished(config, run_dir, finished)
        return run_dir
    check_tokenizer(config)
    if started_by_torchrun():
        runtime.check_devices(hardware)
        _run_as_torchrun_rank(config, command, run_dir)
        return run_dir
    place = launch.slurm_place(hardware) if hardware.num_nodes > 1 else None
    if place is not None and place.node > 0:
        _run_as_later_node(config, run_dir, place)
        return run_dir
    runtime.check_devices(hardware)
    if place is not None:
        launch.check_hosts(place)
    if sweep_job is not None:
        _run_in_own_process(config, command, run_dir, sweep_job)
    else:
        _run_in_this_process(config, command, run_dir, rerun_of)
    return run_dir


def resume(run_dir: Path) -> Path:
    """Resume the run in this folder from its record alone; if it has finished, only print its result."""
    from rpr.runs.loading import record_of

    record = record_of(run_dir)
    return run(config_from_record(record.config), command=record.command, run_dir=run_dir.absolute())


def _run_as_torchrun_rank(config: TrainConfig, command: str, run_dir: Path) -> None:
    """One of the processes in which the user's own torchrun started this command; the first rank keeps the record."""
    from rpr.runs import locks, runtime

    runtime.check_world(config.hardware)
    first = runtime.is_first_rank()
    if (finished := _finished_record(config, run_dir)) is not None:
        if first:
            _report_already_finished(config, run_dir, finished)
        return
    created = lifecycle.create_run_dir(run_dir) if first else []
    with exit_on_sigterm(), locks.acquire(run_dir) if first else contextlib.nullcontext():
        if first:
            with lifecycle.rollback_on_error(run_dir, created):
                lifecycle.start_record(config, command, run_dir, _prepare(config))
        try:
            work(config, run_dir)
        except BaseException as error:
            _handle_rank_failure(run_dir, error)
            raise
    if first:
        _print_result(run_dir)


def _finished_record(config: TrainConfig, run_dir: Path) -> Record | None:
    """The record of the run if it has finished; finished or not, the code of its positions must be the same."""
    path = run_dir / RECORD_NAME
    if not path.exists():
        return None
    record = read_record(path)
    check_same_code(config.position, record)
    return record if record.status == "finished" else None


def _report_already_finished(config: TrainConfig, run_dir: Path, record: Record) -> None:
    """Print the result of a finished run and add the run to the requested sweep; nothing is trained."""
    lifecycle.check_same_corpus(config, run_dir, record)
    if config.sweep is not None and config.sweep not in record.sweeps:
        lifecycle.add_to_sweep(run_dir, config.sweep)
    print(f"{escape_control_characters(run_dir.name)}: already finished on {record.finished}", file=sys.stderr)
    if differing := lifecycle.reported_otherwise(config, record):
        words = [f"{name}={json.dumps(getattr(config.evaluation, name))}".replace(" ", "") for name in differing]
        print(
            f"rpr-cli: its scores stay as recorded, with another evaluation.{' and evaluation.'.join(differing)}; to "
            f"score it again: {shlex.join(['rpr-cli', 'evaluate', str(run_dir), *words])}",
            file=sys.stderr,
        )
    _print_result(run_dir)


def _run_as_later_node(config: TrainConfig, run_dir: Path, place: SlurmPlace) -> None:
    """A SLURM node after the first, which keeps the record.

    On a failure the process exits with a non-zero code, so that SLURM ends the job: submitit would take a raised error
    for a result, and the first node would wait for this one.
    """
    from rpr.runs import runtime
    from rpr.training import launch

    try:
        runtime.check_devices(config.hardware)
        launch.check_hosts(place)
        _prepare(config)
        _run_worker(run_dir / lifecycle.JOB_NAME, config.hardware)
    except RprError as error:
        print(f"rpr-cli: {error}", file=sys.stderr, flush=True)
        time.sleep(launch.GRACE_SECONDS)  # the first node may have an error of its own to report
        raise SystemExit(FAULT_EXIT) from None


def _run_in_own_process(config: TrainConfig, command: str, run_dir: Path, sweep_job: SweepJob) -> None:
    """A run of a sweep, in a fresh process with its output in the run's log."""
    with _recorded(config, command, run_dir, concurrent_jobs=sweep_job.concurrent_jobs) as started:
        if started is not None:
            job, lock = started
            log = run_dir / LOG_NAME
            keep_open = (lock, *sweep_job.keep_open)
            _run_worker(job, config.hardware, keep_open=keep_open, log=log, gpus=sweep_job.gpus)


def _run_in_this_process(config: TrainConfig, command: str, run_dir: Path, rerun_of: RerunOf | None) -> None:
    """A run on its own, with its result on stdout; several ranks are processes that this one starts and waits for."""
    if config.model.architecture == "encoder_decoder" and not config.position.encoder.ordered:
        label = config.position.encoder.label
        print(f"rpr-cli: warning: with positions {label} the encoder ignores word order", file=sys.stderr)
    if not (run_dir / RECORD_NAME).exists() and (alike := lifecycle.trained_alike(config, run_dir)) is not None:
        folder, differing = alike
        print(
            f"rpr-cli: {folder} was trained with the same settings and differs only in {', '.join(differing)}; "
            f"to score it again instead: rpr-cli evaluate {folder}",
            file=sys.stderr,
        )
    with _recorded(config, command, run_dir, rerun_of=rerun_of) as started:
        if started is None:
            return
        job, lock = started
        if config.hardware.num_ranks > 1:
            _run_worker(job, config.hardware, keep_open=(lock,))
        else:
            work(config, run_dir)
    _print_result(run_dir)


@contextlib.contextmanager
def _recorded(config: TrainConfig, command: str, run_dir: Path, **facts: Any) -> Iterator[tuple[Path, int] | None]:
    """Lock the run's folder, prepare its data and start its record, which gets the error that the body raises; `facts`
    as start_record takes them.

    Yields its job file and the lock's file descriptor; None if the lock's previous holder finished the run.
    """
    from rpr.runs import locks

    created = lifecycle.create_run_dir(run_dir)
    with locks.acquire(run_dir) as lock:
        finished = _finished_record(config, run_dir)
        if finished is not None:
            _report_already_finished(config, run_dir, finished)
            yield None
            return
        with exit_on_sigterm():
            with lifecycle.rollback_on_error(run_dir, created):
                job = lifecycle.start_record(config, command, run_dir, _prepare(config), **facts)
            try:
                yield job, lock.descriptor
            except BaseException as error:
                lifecycle.mark_stopped(run_dir, error)
                raise


def _run_worker(job: Path, hardware: HardwareConfig, **options: Any) -> None:
    """Run `work` in processes of its own; `options` as run_worker takes them.

    Raises:
        RunError: it failed with the error in the run's record.
        ProcessEnded: it ended with another exit code; InterruptedRun: a signal ended it.
    """
    from rpr.training import launch

    code = launch.run_worker("rpr.commands.train", job, hardware, **options)
    if code == 0:
        return
    record = read_record(job.parent / RECORD_NAME)
    if code == FAULT_EXIT and record.error is not None:
        raise RunError(record.error)
    kind, how = ProcessEnded, f"ended with exit code {code}"
    if (number := code - SIGNALLED) in signal.valid_signals():
        kind, how = InterruptedRun, f"was ended by {signal.Signals(number).name}"
        how += ", which the system sends when it is out of memory" if number == signal.SIGKILL else ""
    raise kind(f"the training process {how}; the same command resumes from the last checkpoint")


def work(config: TrainConfig, run_dir: Path) -> None:
    """Train on every rank; then the first rank alone translates, scores and completes the record."""
    from rpr.commands.scoring import score_run, torch_scored, validation_bleu
    from rpr.runs import loading, runtime
    from rpr.runs.checkpoints import checkpoints
    from rpr.tracking import wandb_logger
    from rpr.training import fit
    from rpr.training.saving import superseded

    runtime.set_up(config.hardware)
    data = _prepare(config)
    first = runtime.is_first_rank()
    if first:
        check_same_code(config.position, read_record(run_dir / RECORD_NAME))  # this process may have read newer code
        data.vocabulary.save(run_dir / loading.VOCABULARY_NAME)
    logger = wandb_logger.start(config, run_dir, synthetic=data.meta.synthetic) if first else None
    failed = True
    summary: dict[str, Any] = {}
    try:
        sentences = 0 if config.data.text else config.evaluation.validation_sentences
        steps, parameters, training = fit.fit(
            config,
            data,
            run_dir,
            logger=logger,
            validation_bleu=partial(validation_bleu, config, data) if sentences else None,
        )
        if not first:
            failed = False
            return
        for old in superseded(run_dir / "checkpoints", config.optim):
            old.unlink(missing_ok=True)  # left by a kill right after the last checkpoint
        model, checkpoint = loading.model_of(config, run_dir, None, len(data.vocabulary))
        there, wanted = len(checkpoints(run_dir / "checkpoints")), config.optim.average_checkpoints
        if there < wanted:
            print(
                f"rpr-cli: optim.average_checkpoints: {wanted} requested, but the training ended with {there}; scored: "
                f"{checkpoint}; save more often (optim.checkpoint_every_n_steps) for an average of {wanted}",
                file=sys.stderr,
                flush=True,
            )
        found = score_run(config, data, torch_scored(config, model, checkpoint), run_dir)
        summary = {f"{score.split}/{score.metric}": score.score for score in found.scores}
        summary |= {"steps_per_second": training.steps_per_second, "validation_loss": training.validation_loss}
        record = read_record(run_dir / RECORD_NAME)
        write_record(
            run_dir / RECORD_NAME,
            record.model_copy(
                update={
                    "status": "finished",
                    "error": None,
                    "finished": provenance.now(),
                    "device": runtime.device_name(config.hardware),
                    "steps": steps,
                    "parameters": parameters,
                    "training": training,
                    "scores": found.scores,
                    "by_length": found.by_length,
                    "by_context": found.by_context,
                    "wandb": None if logger is None else wandb_logger.reference(logger),
                }
            ),
        )
        if logger is not None:
            logger.log_results()
            logger.log_artifacts()
        failed = False
    finally:
        if logger is not None:
            logger.finish(summary, failed=failed)


def _prepare(config: TrainConfig) -> PreparedData:
    """The run's corpus, once the hooks of its positions have been tried."""
    from rpr.commands.prepare import progress_bars
    from rpr.data.cache import prepare
    from rpr.metrics.languages import check_tokenizer
    from rpr.model.positions.check import check_hooks

    for causal, scheme in ((False, config.position.encoder), (True, config.position.decoder)):
        check_hooks(scheme, Site(config.model.num_layers, config.model.num_heads, config.model.d_model, causal))
    with progress_bars(config.data.name) as report:
        data = prepare(config.data, report)
    if config.data.text is None:
        check_tokenizer(config, data.text("validation")[1])
    return data


def _handle_rank_failure(run_dir: Path, error: BaseException) -> None:
    """Record the error on the first rank. The other ranks wait for torchrun to end them: at the first exit it ends all
    ranks, and the first must record its error before that.
    """
    from rpr.runs import runtime
    from rpr.training import launch

    if runtime.is_first_rank():
        lifecycle.mark_stopped(run_dir, error)
    elif isinstance(error, Exception):
        time.sleep(launch.GRACE_SECONDS)


def headline(record: Record, run_dir: Path) -> str:
    """The result of a run in one line."""
    synthetic = " (synthetic data)" if record.synthetic else ""
    metric = record.headline_metric
    scores = [f"{one.split} {one.score:.2f}" for one in record.scores if one.metric == metric]
    found = ", ".join(scores) or "not measured"
    return f"{record.name}{synthetic}: {METRIC_NAMES[metric]} {found}: {escape_control_characters(str(run_dir))}"


def _print_result(run_dir: Path) -> None:
    """The result of a run, in a few lines on stdout."""
    from rpr.commands.printing import titled
    from rpr.commands.scoring import score_grid
    from rpr.commands.text_scoring import context_grids
    from rpr.tables.render import terminal

    record = read_record(run_dir / RECORD_NAME)
    print(f"{record.name}{' (synthetic data)' if record.synthetic else ''}: {escape_control_characters(str(run_dir))}")
    print(terminal(score_grid(record.scores)) if record.scores else "")
    for grid in (grid for found in record.by_context for grid in context_grids(found)):
        print(titled(grid))
    if record.training is not None and record.training.steps_per_second is not None:
        training = record.training
        print(
            f"  {training.steps_per_second:.3f} steps/s, {training.target_tokens_per_second:,.0f} target tokens/s "
            f"over {training.measured_steps} steps (excluding {training.excludes}) on {record.device}"
        )
    if record.training is not None and record.training.padding_waste is not None:
        skipped = record.training.skipped_steps
        spikes = record.training.loss_spikes
        print(
            f"  padding: {record.training.padding_waste:.1%} of the tokens"
            + (f", {skipped} steps skipped" if skipped else "")
            + (f", {spikes} loss spikes" if spikes else "")
        )


def main(job: Path) -> None:
    """The worker process `python -m rpr.commands.train <run folder>/job.json`, started by rpr.training.launch."""
    from rpr.runs import runtime

    die_with_parent()
    with exit_on_sigterm():
        config = config_from_record(json.loads(job.read_text(encoding="utf-8")))
        try:
            work(config, job.parent)
        except BaseException as error:
            _handle_rank_failure(job.parent, error)
            if isinstance(error, RprError):
                if not runtime.is_first_rank():  # and still here, so that the error may be this rank's alone
                    print(f"rpr-cli: {error}", file=sys.stderr, flush=True)
                raise SystemExit(FAULT_EXIT) from None  # the waiting process reports the first rank's
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
