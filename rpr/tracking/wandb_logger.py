"""Weights & Biases: mirrors a run, and never blocks it, never ends it, and is never read back."""

import contextlib
import os
import queue
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from rpr.config.train import LONGEST_TAG, TrainConfig
from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.files import read_metrics
from rpr.records.provenance import git_state
from rpr.records.record import LOG_NAME, METRICS_NAME, RECORD_NAME, WandbRun, read_record
from rpr.runs.checkpoints import checkpoints
from rpr.tracking.naming import STEP, define, final_row, flat, sections
from rpr.tracking.wandb_client import GRACE_SECONDS, first_line, has_key, service, tear_down, without_login
from rpr.tracking.wandb_tables import tables

INIT_TIMEOUT_SECONDS = 30
FLUSH_SECONDS = 1.0  # the lag of W&B's file on disk; at the default of 15 a killed run left an empty file
MIRRORED_NAME = "wandb/mirrored_step"  # of the newest row that was logged: later parts may not have been mirrored
RESULTS = (RECORD_NAME, "config.yaml", METRICS_NAME)  # and the translations, *.txt


class WandbMirror(WandbLogger):
    """A W&B run as Lightning's logger. All calls to W&B are made on a separate thread, so that none can block training;
    the first error is reported in one line and ends the mirroring, not the run.

    W&B's own axis (`_step`) and `trainer/global_step` are both the optimiser step. W&B drops rows whose `_step`
    decreases, as after a resume from a checkpoint older than the last row: those rows get the next free `_step`
    instead, and the charts, drawn over `trainer/global_step`, show them in the right place.
    """

    def __init__(self, run: Any, run_dir: Path, *, artifacts: str, missing_from: int) -> None:
        super().__init__(project=run.project, save_dir=run_dir, log_model=False, experiment=run)
        self._run = run
        self.run_dir = run_dir
        self.artifacts = artifacts
        self.part = Path(run.settings.sync_dir)
        self._next_step: int = run.starting_step
        self._missing_from: int | None = missing_from
        self._broken = False
        self._service = service()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="W&B mirror", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = dict(metrics)
        self._jobs.put(lambda: self._log(row, step))

    def _log(self, row: dict[str, Any], step: int | None) -> None:
        if step is not None and self._missing_from is not None:
            self._catch_up(self._missing_from, step)
        if step is not None and step >= self._next_step:
            self._run.log({**row, STEP: step}, step=step)  # W&B sends the row when the step increases
            self._next_step = step
        else:
            self._run.log(row if step is None else {**row, STEP: step})
            self._next_step += 1
        if step is not None:
            replace_file(self.run_dir / MIRRORED_NAME, str(step))

    def _catch_up(self, missing_from: int, until: int) -> None:
        """Log rows of the run's earlier parts that W&B lacks: lost in a kill, or never mirrored."""
        self._missing_from = None
        for line in read_metrics(self.run_dir / METRICS_NAME):
            if missing_from <= line["step"] < until:
                row = {name: value for name, value in line.items() if name not in ("step", "time")}
                self._log(row, line["step"])

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._broken:
                try:
                    job()
                except Exception as error:
                    self._give_up(error)
        with contextlib.suppress(Exception):  # if finish failed: its watcher threads would die with tracebacks
            self._run._run_status_checker.stop()
        tear_down()

    def _give_up(self, error: Exception) -> None:
        if self._broken:  # already reported
            return
        self._broken = True
        if isinstance(error, TimeoutError):  # raised by finish, after everything is on disk
            reason = f"not everything was uploaded within {self._run.settings.finish_timeout:g} s"
        else:
            reason = f"{first_line(error)}; mirroring stopped"
        sync = f"wandb sync {'' if self._run.offline else '--include-online '}{shlex.quote(str(self.part))}"
        _report(f"{reason}; the run is complete in {self.run_dir}, and `{sync}` uploads what W&B has on disk")

    def log_results(self) -> None:
        """Log the scores of a finished run, with tables and charts; call it once its record has them."""
        self._jobs.put(self._log_results)

    def _log_results(self) -> None:
        """An error here does not end the mirroring: the summary is still to come."""
        try:
            record = read_record(self.run_dir / RECORD_NAME)
            step = record.steps or self._next_step
            if self._missing_from is not None:  # no training was left: the last row may be missing too
                self._catch_up(self._missing_from, step + 1)
            self._log(final_row(record), step)
            self._log(tables(record, self.run_dir), step)
        except Exception as error:
            _report(f"{first_line(error)}; W&B lacks some tables of the results; they are in {self.run_dir}")

    def log_artifacts(self) -> None:
        """Upload the artifacts that logger.artifacts selects (offline: keep them for `wandb sync`); call it after the
        results are written.
        """
        if self.artifacts != "none":
            self._jobs.put(self._log_artifacts)

    def _log_artifacts(self) -> None:
        """An error here does not end the mirroring: the summary is still to come."""
        import wandb

        try:
            results = wandb.Artifact(f"results-{self._run.id}", type="results")
            translations = {*self.run_dir.glob("*.txt")} - {self.run_dir / LOG_NAME}
            for path in sorted([*translations, *(self.run_dir / name for name in RESULTS)]):
                if path.is_file() and not path.is_symlink():  # a link could lead to anything
                    results.add_file(str(path), name=path.name)
            self._run.log_artifact(results)
            saved = checkpoints(self.run_dir / "checkpoints")
            if self.artifacts == "checkpoint" and saved:
                step, path = saved[-1]
                model = wandb.Artifact(f"model-{self._run.id}", type="model", metadata={"step": step})
                model.add_file(str(path), name=path.name, policy="immutable")  # uploaded in place, without a copy
                self._run.log_artifact(model)
        except Exception as error:
            _report(f"{first_line(error)}; no artifact was uploaded; the files are in {self.run_dir}")

    def finish(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Write the summary and close the run, so that this process can start another; returns within its
        finish_timeout and a few seconds.
        """
        known = {key: value for key, value in summary.items() if value is not None}
        self._jobs.put(lambda: self._run.log({}, commit=True))  # sent later, the last row would replace what it shares
        self._jobs.put(lambda: self._run.summary.update(known))
        self._jobs.put(lambda: self._run.finish(exit_code=1 if failed else 0))
        self._jobs.put(None)
        self._thread.join(self._run.settings.finish_timeout + GRACE_SECONDS)
        if self._thread.is_alive():
            self._give_up(RuntimeError("its service process does not respond"))
            if self._service is not None:
                self._service.kill()  # this process would wait for it at exit
            self._thread.join(GRACE_SECONDS)
        if self._run.offline and not self._broken:
            files = f"{shlex.quote(str(self.run_dir / 'wandb'))}/offline-run-*"
            _report(f"the run is logged offline, and `wandb sync {files}` uploads it")


def start(config: TrainConfig, run_dir: Path, *, synthetic: bool) -> WandbMirror | None:
    """A W&B run for this process: online if there is a key and the server answers, else offline; None if W&B is off or
    fails altogether. Anything less than requested is reported in one line.
    """
    if config.logger.mode == "none":
        return None
    try:
        import wandb

        # Includes WANDB_* and the settings files that `wandb offline` and others write. Silent: W&B would print the
        # server's URL, including any password.
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        if settings.mode == "disabled":
            _report("disabled by WANDB_MODE; only the local record is written")
            return None
        online = config.logger.mode == "online"
        if online and settings.mode in ("offline", "dryrun"):
            online = False
            _report("offline by WANDB_MODE or `wandb offline`")
        elif online and not has_key(settings):
            online = False
            _report("no key found (WANDB_API_KEY, or `wandb login`); the run is logged offline")
        if online:
            parts = _parts(run_dir)
            try:
                return _mirror(config, run_dir, synthetic, online=True)
            except Exception as error:  # no network, a wrong key, no write access, ...
                _report(f"{first_line(error)}; the run is logged offline")
            tear_down()  # its service process holds the run's ID and would reject it
            for part in _parts(run_dir) - parts:  # empty: `wandb sync` must not find it
                shutil.rmtree(part, ignore_errors=True)
        return _mirror(config, run_dir, synthetic, online=False)
    except Exception as error:
        _report(f"{first_line(error)}; the run continues without W&B, with its results in {run_dir}")
        tear_down()
        return None


def _mirror(config: TrainConfig, run_dir: Path, synthetic: bool, *, online: bool) -> WandbMirror:
    import wandb

    logged = read_metrics(run_dir / METRICS_NAME)
    earlier, commit = _parts(run_dir), git_state().commit
    names = [config.data.name, config.model.name, config.position.name, *(["synthetic data"] if synthetic else [])]
    options: dict[str, Any] = {
        "silent": True,
        "console": "off",
        "x_disable_stats": not config.logger.system_metrics,
        "save_code": False,
        "disable_code": True,  # no patch of uncommitted changes either
        # Of the checkout of this package, not of one around the current folder; no remote URL.
        **({"disable_git": True} if commit is None else {"git_commit": commit, "git_remote_url": ""}),
        "program": "rpr-cli",
        "init_timeout": INIT_TIMEOUT_SECONDS,
        "finish_timeout": config.logger.finish_timeout_seconds,
        "finish_timeout_raises": True,
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
    }
    init = partial(
        wandb.init,
        project=config.logger.project,  # under `wandb agent`, W&B uses the agent's project, entity and ID instead
        entity=config.logger.entity,
        name=config.label,
        dir=str(run_dir),
        mode="online" if online else "offline",
        group=config.sweep,
        job_type="train",
        tags=[*(name[:LONGEST_TAG] for name in names), *config.logger.tags],
        settings=wandb.Settings(**{key: options[key] for key in options if key in wandb.Settings.model_fields}),
    )
    with _argv_of_record(run_dir):
        if online and not earlier and not logged and "WANDB_RUN_ID" not in os.environ:
            run = _new_run(init, config.run_id)
        else:
            run = init(id=_newest_id(earlier, config.run_id), resume="allow")
    define(run)
    run.config.update({**flat(config), **sections(config)}, allow_val_change=True)
    if online:
        _report(without_login(run.url))
    # Online, the server knows where its history ends. Offline, at most the newest row had not yet been written.
    missing_from = run.starting_step
    if not online and earlier and logged:
        mirrored = run_dir / MIRRORED_NAME
        missing_from = int(mirrored.read_text()) if mirrored.exists() else logged[-1]["step"]
    return WandbMirror(run, run_dir, artifacts=config.logger.artifacts, missing_from=missing_from)


def _new_run(init: Callable[..., Any], run_id: str) -> Any:
    """A W&B run for a training that begins, with the ID `HASH-2` if an earlier one of the same settings has `HASH`:
    in one run the curves of both would mix, and the later summary would replace the other.
    """
    import wandb

    chosen, number = run_id, 1
    while True:
        try:
            return init(id=chosen, resume="never")
        except wandb.errors.UsageError as error:
            if "already exists" not in str(error):
                raise
        number += 1
        chosen = f"{run_id}-{number}"


def _newest_id(parts: Iterable[Path], run_id: str) -> str:
    """The ID of the newest of a run's parts, of which each has a log that is named by it. A folder is named by its time
    and the ID, and by one more number if another part began in the same second.
    """
    logs = [log for part in parts for log in part.glob(f"run-{run_id}*.wandb")]
    newest = max(logs, key=lambda log: log.parent.name.partition("run-")[2], default=None)
    return run_id if newest is None else newest.stem.removeprefix("run-")


@contextlib.contextmanager
def _argv_of_record(run_dir: Path) -> Iterator[None]:
    """Set sys.argv, which W&B shows as the run's command, to the record's command instead of a worker's."""
    before = sys.argv
    with contextlib.suppress(RecordError):
        sys.argv = shlex.split(read_record(run_dir / RECORD_NAME).command)
    try:
        yield
    finally:
        sys.argv = before


def reference(logger: WandbMirror) -> WandbRun:
    """The reference to the W&B run in the record."""
    run = logger.experiment
    return WandbRun(id=run.id, mode="offline" if run.offline else "online", url=run.url and without_login(run.url))


def _parts(run_dir: Path) -> set[Path]:
    """W&B's folders of this run, one for each start."""
    return {path for path in run_dir.glob("wandb/*run-*-*") if not path.is_symlink()}


def _report(message: str) -> None:
    print(f"rpr-cli: W&B: {message}", file=sys.stderr, flush=True)
