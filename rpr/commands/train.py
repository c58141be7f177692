"""rpr-cli train: one run, from the corpus to its record."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.config.train import HardwareConfig, TrainConfig, config_from_record
from rpr.errors import InterruptedRun, ProcessEnded, RprError, RunError
from rpr.io.escape import escape_control_characters
from rpr.io.locks import exclusive
from rpr.records import provenance
from rpr.records.record import (
    LOG_NAME,
    RECORD_NAME,
    Record,
    RerunOf,
    Training,
    read_record,
    write_record,
)
from rpr.records.scores import EXACT_MATCH, HEADLINE_METRIC, METRIC_NAMES
from rpr.runs import lifecycle
from rpr.signals import die_with_parent, exit_on_sigterm

if TYPE_CHECKING:  # numpy and torch, which a command that refuses its settings does not wait for
    from rpr.data.cache import PreparedData
    from rpr.training.launch import SlurmPlace

FAULT_EXIT, SIGNALLED = 2, 128  # exit codes: our own errors; above it, signals


def run(
    config: TrainConfig,
    *,
    command: str,
    own_process: bool = False,
    quiet: bool = False,
    gpus: Sequence[str] = (),
    keep_open: Sequence[int] = (),
    run_dir: Path | None = None,
    rerun_of: RerunOf | None = None,
) -> Path:
    """Train and evaluate what the configuration says, unless that is done already; returns the run's folder.

    A run that was interrupted resumes from its newest checkpoint.

    Args:
        own_process: do the work in a fresh process, so that W&B, peak memory and random state are the run's own (jobs
            of a sweep); what it prints goes to the run's log as well.
        quiet: to the log alone, and nothing of the result: what starts the run tells of it.
        gpus: the only ones that a process of its own is to see; `keep_open`: descriptors (locks) that it inherits.
        run_dir: the run's folder, if not where its configuration says.
        rerun_of: the record that this run repeats.

    Raises:
        BusyError: another process works on the run.
        RprError: what else is wrong with the input, or went wrong.
    """
    from rpr.runs import locks, runtime
    from rpr.training import launch

    hardware = config.hardware
    runtime.check_devices(hardware)
    run_dir = run_dir or Path(config.runs_dir).absolute() / config.run_dir_name
    if runtime.is_rank():  # torchrun started this command itself
        runtime.check_world(hardware)
        _as_rank(config, command, run_dir)
        return run_dir
    if _done(run_dir, config):
        return run_dir
    if hardware.num_nodes > 1:
        place = launch.slurm_place(hardware)
        if place.node > 0:  # the first node keeps the books
            _follow(config, run_dir, place)
            return run_dir
        launch.check_hosts(place)
    if not quiet and not config.position.encoder.ordered:
        print(f"rpr-cli: {config.position.encoder.label}: this encoder cannot tell the order of words", file=sys.stderr)
    made = lifecycle.create_run_dir(run_dir)
    with locks.acquire(run_dir) as lock:
        if _done(run_dir, config):  # by the process that held it before
            return run_dir
        with exit_on_sigterm():
            with lifecycle.rollback_on_error(run_dir, made):
                job = lifecycle.start_record(config, command, run_dir, _prepare(config), rerun_of)
            try:
                if own_process:
                    output = launch.Output(run_dir / LOG_NAME, shown=not quiet)
                    _worker(job, hardware, keep_open=(lock.descriptor, *keep_open), output=output, gpus=gpus)
                elif hardware.num_ranks > 1:
                    _worker(job, hardware, keep_open=(lock.descriptor,))
                else:
                    work(config, run_dir)
            except BaseException as error:
                lifecycle.mark_stopped(run_dir, error)
                raise
    if not quiet:
        _tell(run_dir)
    return run_dir


def resume(run_dir: Path) -> Path:
    """Resume the run in this folder, from its own record alone; of a finished one only the result is printed."""
    from rpr.runs.loading import record_of

    record = record_of(run_dir)
    return run(config_from_record(record.config), command=record.command, run_dir=run_dir.absolute())


def _follow(config: TrainConfig, run_dir: Path, place: SlurmPlace) -> None:
    """The part of a node that is not the first. On a failure its process ends with an exit code, by which SLURM ends
    the job: an error that is raised would count as a result, and the first node would wait for this one.
    """
    from rpr.training import launch

    try:
        launch.check_hosts(place)
        _prepare(config)
        _worker(run_dir / lifecycle.JOB_NAME, config.hardware)
    except RprError as error:
        print(f"rpr-cli: {error}", file=sys.stderr, flush=True)
        time.sleep(launch.GRACE_SECONDS)  # the first node may have something to say too
        raise SystemExit(FAULT_EXIT) from None


def _worker(job: Path, hardware: HardwareConfig, **options: Any) -> None:
    """The work in processes of their own; `options` as run_worker takes them.

    Raises:
        RunError: they ended with an error that the record has.
        ProcessEnded: they ended otherwise; InterruptedRun: by a signal.
    """
    from rpr.training import launch

    code = launch.run_worker("rpr.commands.train", job, hardware, **options)
    if code == 0:
        return
    record = read_record(job.parent / RECORD_NAME)
    if code == FAULT_EXIT and record.error is not None:
        raise RunError(record.error)
    kind, how = ProcessEnded, f"exit code {code}"
    if code > SIGNALLED:
        kind, how = InterruptedRun, signal.Signals(code - SIGNALLED).name
        how += ", which the system sends when it is out of memory" if how == "SIGKILL" else ""
    raise kind(f"the training process was ended by {how}; the same command resumes from the last checkpoint")


def work(config: TrainConfig, run_dir: Path) -> None:
    """What each rank does: fit; then the first alone translates, scores and closes the record."""
    from rpr.commands.scoring import score_run, torch_scored
    from rpr.decode.corpus import translate_split
    from rpr.decode.torch_engine import TorchEngine, search_of
    from rpr.metrics.bleu import sacrebleu_13a
    from rpr.progress import Progress
    from rpr.runs import loading, runtime
    from rpr.runs.checkpoints import checkpoints
    from rpr.tracking import wandb_logger
    from rpr.training import fit

    runtime.set_up(config.hardware)
    data = _prepare(config)
    first = runtime.is_first_rank()
    if first:
        data.vocabulary.save(run_dir / loading.VOCABULARY_NAME)
    logger = wandb_logger.start(config, run_dir, synthetic=data.meta.synthetic) if first else None
    failed = True
    summary: dict[str, Any] = {}
    try:
        sentences = config.evaluation.validation_sentences

        def validation_bleu(model: Any) -> float:
            device = runtime.torch_device(config.hardware)
            engine = TorchEngine(model, device, matmul_precision=config.evaluation.matmul_precision)
            search = search_of(config.evaluation, greedy=True)
            split = data.split("validation")
            with Progress(min(sentences, len(split)), "sentences", "translating validation", keep=False) as bar:
                hypotheses = translate_split(
                    engine, split, data.vocabulary, search, limit=sentences, progress=bar.reach
                )
            return sacrebleu_13a(hypotheses, data.text("validation")[1][:sentences]).score

        outcome = fit.fit(config, data, run_dir, logger=logger, validation_bleu=validation_bleu if sentences else None)
        if not first:
            failed = False
            return
        for _, old in checkpoints(run_dir / "checkpoints")[: -config.optim.keep_checkpoints]:
            old.unlink(missing_ok=True)  # a kill came between the last one and this
        model, checkpoint = loading.model_of(config, run_dir, None, len(data.vocabulary))
        found = score_run(config, data, torch_scored(config, model, checkpoint), run_dir)
        summary = {f"{score.split}/{score.metric}": score.score for score in found.scores}
        summary |= {"steps_per_second": outcome.steps_per_second, "validation_loss": outcome.validation_loss}
        record = read_record(run_dir / RECORD_NAME)
        measured = asdict(outcome)
        steps, parameters = measured.pop("steps"), measured.pop("parameters")
        write_record(
            run_dir / RECORD_NAME,
            record.model_copy(
                update={
                    "status": "finished",
                    "finished": provenance.now(),
                    "device": runtime.device_name(config.hardware),
                    "steps": steps,
                    "parameters": parameters,
                    "training": Training(
                        excludes=fit.EXCLUDES,
                        matmul_precision=runtime.matmul_precision(config.hardware),
                        precision=config.hardware.precision,
                        **measured,
                    ),
                    "scores": found.scores,
                    "by_length": found.by_length,
                    "wandb": None if logger is None else wandb_logger.reference(logger),
                }
            ),
        )
        wandb_logger.log_results(logger, run_dir)
        wandb_logger.log_artifacts(logger, run_dir)
        failed = False
    finally:
        wandb_logger.finish(logger, summary, failed=failed)


def _done(run_dir: Path, config: TrainConfig) -> bool:
    """Whether this very run is finished; then it only joins the sweep that asks for it."""
    path = run_dir / RECORD_NAME
    if not path.exists():
        return False
    record = read_record(path)
    if record.status != "finished":
        return False
    lifecycle.check_same_corpus(config, run_dir, record)
    if config.sweep is not None and config.sweep not in record.sweeps:
        with exclusive(run_dir, RECORD_NAME):
            write_record(path, record.model_copy(update={"sweeps": (*record.sweeps, config.sweep)}))
    print(f"{escape_control_characters(run_dir.name)}: finished already on {record.finished}", file=sys.stderr)
    _tell(run_dir)
    return True


def _prepare(config: TrainConfig) -> PreparedData:
    from rpr.commands.prepare import told
    from rpr.data.cache import prepare

    with told(config.data.name) as tell:
        return prepare(config.data, tell)


def _as_rank(config: TrainConfig, command: str, run_dir: Path) -> None:
    from rpr.runs import locks, runtime

    path = run_dir / RECORD_NAME
    if path.exists() and read_record(path).status == "finished":
        return
    first = runtime.is_first_rank()
    if first:
        lifecycle.create_run_dir(run_dir)
    with locks.acquire(run_dir) if first else contextlib.nullcontext():
        if first:
            lifecycle.start_record(config, command, run_dir, _prepare(config))
        try:
            work(config, run_dir)
        except BaseException as error:
            _after_a_failure(run_dir, error)
            raise


def _after_a_failure(run_dir: Path, error: BaseException) -> None:
    """The first rank writes it down. The others wait to be ended by torchrun, which would else end the first before it
    has said why.
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
    metric = HEADLINE_METRIC if record.task is None else EXACT_MATCH
    scores = [f"{one.split} {one.score:.2f}" for one in record.scores if one.metric == metric]
    found = ", ".join(scores) or "not measured"
    return f"{record.name}{synthetic}: {METRIC_NAMES[metric]} {found}: {escape_control_characters(str(run_dir))}"


def _tell(run_dir: Path) -> None:
    """The result of a run, in a few lines on stdout."""
    from rpr.commands.scoring import score_lines

    record = read_record(run_dir / RECORD_NAME)
    print(f"{record.name}{' (synthetic data)' if record.synthetic else ''}: {escape_control_characters(str(run_dir))}")
    print("\n".join(score_lines(record.scores)))
    if record.training is not None and record.training.steps_per_second is not None:
        training = record.training
        print(
            f"  {training.steps_per_second:.3f} steps/s, {training.target_tokens_per_second:,.0f} target tokens/s "
            f"over {training.measured_steps} steps (without {training.excludes}) on {record.device}"
        )
    if record.training is not None and record.training.padding_waste is not None:
        skipped = record.training.skipped_steps
        spikes = record.training.loss_spikes
        print(
            f"  padding {record.training.padding_waste:.1%} of the tokens"
            + (f", {skipped} steps skipped" if skipped else "")
            + (f", {spikes} jumps of the loss" if spikes else "")
        )


def main(job: Path) -> None:
    """A worker: `python -m rpr.commands.train <run folder>/job.json`, started by rpr.training.launch."""
    die_with_parent()
    with exit_on_sigterm():
        config = config_from_record(json.loads(job.read_text(encoding="utf-8")))
        try:
            work(config, job.parent)
        except BaseException as error:
            _after_a_failure(job.parent, error)
            if isinstance(error, RprError):
                raise SystemExit(FAULT_EXIT) from None  # told by the process that waits for this one
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
