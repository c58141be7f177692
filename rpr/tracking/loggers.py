"""A run in Weights & Biases, which never blocks it, never ends it, and is never read back; or in TensorBoard."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import TensorBoardLogger, WandbLogger

from rpr.config.train import LONGEST_TAG, TrainConfig
from rpr.io.escape import note
from rpr.kinds import TEXT
from rpr.records.files import read_translations
from rpr.records.record import RECORD_NAME, Git, Record, WandbRun, read_record
from rpr.records.scores import SPLITS
from rpr.tracking import mirror
from rpr.tracking.mirror import GRACE_SECONDS, STEP, final_row, first_line, has_key, service, tear_down, without_login

INIT_TIMEOUT_SECONDS = 30
FLUSH_SECONDS = 1.0  # the lag of W&B's file on disk; at the default of 15 a killed run left an empty file
MAX_TRANSLATIONS = 20


class WandbMirror(WandbLogger):
    """A W&B run as Lightning's logger. All calls to W&B are made on a separate thread, so that none can block training;
    the first error is reported in one line and ends the mirroring, not the run.

    W&B's own axis (`_step`) and `trainer/global_step` are both the optimiser step. W&B drops rows whose `_step`
    decreases, as after a resume from a checkpoint older than the last row: those rows get the next free `_step`
    instead, and the charts, drawn over `trainer/global_step`, show them in the right place.
    """

    def __init__(self, run: Any, run_dir: Path) -> None:
        super().__init__(project=run.project, save_dir=run_dir, log_model=False, experiment=run)
        self._run, self.run_dir, self._next_step = run, run_dir, int(run.starting_step)
        self._broken, self._service = False, service()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="W&B mirror", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        self._jobs.put(partial(self._log, dict(metrics), step))

    def _log(self, row: dict[str, Any], step: int) -> None:
        in_order = step >= self._next_step  # W&B sends a row when the step increases
        self._run.log({**row, STEP: step}, **({"step": step} if in_order else {}))
        self._next_step = step if in_order else self._next_step + 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not self._broken:
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
        reason = f"{first_line(error)}; mirroring stopped"
        if isinstance(error, TimeoutError):  # raised by finish, after everything is on disk
            reason = f"not everything was uploaded within {self._run.settings.finish_timeout:g} s"
        sync = f"wandb sync {'' if self._run.offline else '--include-online '}{self._run.settings.sync_dir}"
        _report(f"{reason}; the run is complete in {self.run_dir}, and `{sync}` uploads what W&B has on disk")

    def log_results(self) -> None:
        """Log the scores of a finished run, with tables; call it once its record has them."""
        self._jobs.put(self._log_record)

    def _log_record(self) -> None:
        record = read_record(self.run_dir / RECORD_NAME)
        for row in (final_row(record), _tables(record, self.run_dir)):
            self._log(row, record.steps or self._next_step)

    def finish(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Write the summary and close the run, so that this process can start another; returns within its
        finish_timeout and a few seconds.
        """
        known = {key: value for key, value in summary.items() if value is not None}
        self._jobs.put(lambda: self._run.log({}, commit=True))  # sent later, the last row would replace what it shares
        self._jobs.put(lambda: self._run.summary.update(known))
        self._jobs.put(lambda: self._run.finish(exit_code=int(failed)))
        self._jobs.put(None)
        self._thread.join(self._run.settings.finish_timeout + GRACE_SECONDS)
        if self._thread.is_alive():
            self._give_up(RuntimeError("its service process does not respond"))
            if self._service is not None:
                self._service.kill()  # this process would wait for it at exit
            self._thread.join(GRACE_SECONDS)
        if self._run.offline and not self._broken:
            _report(f"the run is logged offline, and `wandb sync {self.run_dir}/wandb/offline-run-*` uploads it")


def _tables(record: Record, run_dir: Path) -> dict[str, Any]:
    """The scores, and evenly spaced translations, the same ones in every run on the same corpus."""
    from wandb import Table

    if not record.scores:
        return {}
    items = record.kind.items
    names: list[str | int] = ["split", "test set", "metric", "score", "low", "high", items, "checkpoint"]
    rows = []
    for of in record.scores:
        ends = (of.interval.low, of.interval.high) if of.interval else (None, None)
        rows.append([of.split, of.test_set, of.metric, of.score, *ends, of.num_sentences, of.checkpoint, of.signature])
    tables = {"results/scores": Table(columns=[*names, "signature"], data=rows)}
    if record.kind is not TEXT:
        split = next((name for name in SPLITS if record.score(name)), record.scores[0].split)
        sentences = [*enumerate(zip(*read_translations(run_dir / RECORD_NAME, split), strict=True), start=1)]
        every = max(1, -(-len(sentences) // MAX_TRANSLATIONS))
        shown = [[split, line, *texts] for line, texts in sentences[::every]]
        names = ["split", "line", "source", "reference", "hypothesis"]
        tables["results/translations"] = Table(columns=names, data=shown)
    return tables


class TensorBoard(TensorBoardLogger):
    """A run's events, under their names in W&B; a resumed run adds a file, and TensorBoard draws both parts as one."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        super().__init__(run_dir, name="tensorboard", version="", default_hp_metric=False)
        self._run_dir = run_dir
        self.log_hyperparams(mirror.settings_of(config))

    def log_results(self) -> None:
        """The scores of a finished run."""
        record = read_record(self._run_dir / RECORD_NAME)
        self.log_metrics(final_row(record), record.steps)

    def finish(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Write what is left. `summary` is W&B's."""
        self.finalize("failed" if failed else "success")


def start(config: TrainConfig, run_dir: Path, *, synthetic: bool) -> WandbMirror | TensorBoard | None:
    """The run's logger, on its first rank: W&B online if a key is found and the server answers, else offline; None if
    W&B is off or fails altogether. Anything less than requested is reported in one line.
    """
    if config.logger.mode == "tensorboard":
        return TensorBoard(config, run_dir)
    if config.logger.mode == "none":
        return None
    try:
        import wandb

        # 1. What WANDB_* and the settings files say. Silent: W&B would print the server's URL, with any password.
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        if settings.mode == "disabled":
            _report("disabled by WANDB_MODE; only the local record is written")
            return None
        # 2. Online, if that is asked for and nothing speaks against it; else on disk.
        if config.logger.mode == "online":
            reason = "" if has_key(settings) else "no key found (WANDB_API_KEY, or `wandb login`)"
            if settings.mode in ("offline", "dryrun"):
                reason = "offline by WANDB_MODE or `wandb offline`"
            try:
                if not reason:
                    return _mirror(config, run_dir, synthetic, online=True)
            except Exception as error:  # no network, a wrong key, no write access, ...
                reason = first_line(error)
                tear_down()  # its service process holds the run's ID and would reject it
            _report(f"{reason}; the run is logged offline")
        return _mirror(config, run_dir, synthetic, online=False)
    except Exception as error:
        _report(f"{first_line(error)}; the run continues without W&B, with its results in {run_dir}")
        tear_down()
        return None


def _mirror(config: TrainConfig, run_dir: Path, synthetic: bool, *, online: bool) -> WandbMirror:
    import wandb

    # 1. No code or patch of it is sent; the commit is that of this package's checkout, not of one around the folder.
    commit = Git.here().commit
    settings = wandb.Settings(
        silent=True,
        console="off",
        x_disable_stats=not config.logger.system_metrics,
        save_code=False,
        disable_code=True,
        **({"disable_git": True} if commit is None else {"git_commit": commit, "git_remote_url": ""}),
        program="rpr-cli",
        init_timeout=INIT_TIMEOUT_SECONDS,
        finish_timeout=config.logger.finish_timeout_seconds,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=FLUSH_SECONDS,
    )
    names = [config.data.name, config.model.name, config.position.name, *(["synthetic data"] if synthetic else [])]
    tags = [*(name[:LONGEST_TAG] for name in names), *config.logger.tags]
    given: dict[str, Any] = {"project": config.logger.project, "entity": config.logger.entity, "name": config.label}
    given |= {"dir": str(run_dir), "mode": "online" if online else "offline", "group": config.sweep, "tags": tags}
    init = partial(wandb.init, **given, job_type="train", settings=settings)
    # 2. Of an earlier start each part has a log that is named by the run's ID, in a folder named by time.
    logs = [*run_dir.glob(f"wandb/*run-*-*/run-{config.run_id}*.wandb")]
    newest = max(logs, key=lambda log: log.parent.name.partition("run-")[2], default=Path(f"run-{config.run_id}"))
    try:
        run: Any = init(id=newest.stem.removeprefix("run-"), resume="allow" if logs or not online else "never")
    except wandb.errors.UsageError:  # it exists, of another training of these settings: their curves would mix
        run = init(id=f"{config.run_id}-{int(time.time())}", resume="never")
    # 3. The x axis of every chart, how each metric is summarised, and the settings.
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name, best in {mirror.VALIDATION_LOSS: "min", mirror.VALIDATION_BLEU: "max"}.items():
        run.define_metric(name, step_metric=STEP, step_sync=True, summary=best)
    run.define_metric(mirror.CLIP_DISTANCE, hidden=True)  # can be chosen as an axis, but gets no chart
    run.config.update(mirror.settings_of(config), allow_val_change=True)
    if online:
        _report(without_login(run.url))
    return WandbMirror(run, run_dir)


def reference(logger: WandbMirror | TensorBoard | None) -> WandbRun | None:
    """The reference to the W&B run in the record."""
    if not isinstance(logger, WandbMirror):
        return None
    run = logger.experiment
    return WandbRun(id=run.id, mode="offline" if run.offline else "online", url=run.url and without_login(run.url))


def _report(message: str) -> None:
    note(f"W&B: {message}")
