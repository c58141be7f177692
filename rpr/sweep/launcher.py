"""Runs the jobs of a sweep with a launcher of Hydra's: one after another, N at a time (joblib), or SLURM (submitit)."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr import progress
from rpr.compose import hydra_bridge
from rpr.compose.composition import override_key, to_plain, train_command
from rpr.compose.messages import format_user_error
from rpr.errors import BusyError, ConfigError, DataError, ProcessEnded, RecordError, RunError
from rpr.io.resources import num_cores
from rpr.paths import user_path
from rpr.signals import SIGTERM_EXIT, die_with_parent
from rpr.sweep import slurm

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import HardwareConfig

_OF_JOBS = ("hydra/launcher", "hydra.launcher.n_jobs", "hydra.launcher.batch_size")  # set by jobs=
_PLUGINS = {"joblib": ("hydra_joblib_launcher", "parallel"), "submitit": ("hydra_submitit_launcher", "slurm")}

# What the launcher, the sweeper and logging may instantiate: the only settings whose values Hydra imports as code.
_ALLOWED_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_ALLOWED_LOGGING = {"class": "logging.", "()": "colorlog."}


@dataclass(frozen=True)
class Options:
    """How jobs are launched: N at a time on this machine, the GPUs that are assigned to them, and how many jobs share
    one GPU.
    """

    jobs: int | None = None
    gpus: tuple[str, ...] = ()
    jobs_per_gpu: int = 1

    def with_gpus_shared(self, hardware: Sequence[HardwareConfig]) -> Options:
        """With GPUs named and no number of jobs: as many jobs at a time as the GPUs allow.

        Raises:
            ConfigError: a job uses no GPU, or more than are named; or jobs_per_gpu without gpus.
        """
        if not self.gpus:
            if self.jobs_per_gpu > 1:
                raise ConfigError(
                    f"jobs_per_gpu: {self.jobs_per_gpu} jobs share each GPU of gpus=...; add it, e.g. gpus=0"
                )
            return self
        without = next((one for one in hardware if one.accelerator != "gpu"), None)
        if without is not None:
            raise ConfigError(f"gpus: hardware={without.name} uses none; leave gpus out, or choose hardware=1xgpu")
        devices = max(one.devices for one in hardware)
        if devices > len(self.gpus):
            raise ConfigError(
                f"gpus: {len(self.gpus)} named, but a job needs {devices}; name more, or choose hardware=1xgpu"
            )
        return self if self.jobs is not None else replace(self, jobs=self.jobs_per_gpu * (len(self.gpus) // devices))


def is_hydra_override(override: str) -> bool:
    """Whether an override configures Hydra (its launcher), not a job."""
    return override_key(override).startswith(("hydra/", "hydra."))


def launcher_overrides(words: Sequence[str], options: Options) -> list[str]:
    """Hydra's overrides for the requested launcher.

    Raises:
        ConfigError: two launchers are requested, or one that is not installed.
    """
    given = [word for word in words if is_hydra_override(word)]
    chosen = next((word.partition("=")[2] for word in given if override_key(word) == "hydra/launcher"), None)
    if options.jobs is not None:
        if chosen not in (None, "joblib"):
            raise ConfigError(
                f"jobs: hydra/launcher={chosen} sets the number of jobs at a time itself; remove one of them"
            )
        given = [
            *(word for word in given if override_key(word) not in _OF_JOBS),
            "hydra/launcher=joblib",
            f"hydra.launcher.n_jobs={options.jobs}",
            "hydra.launcher.batch_size=1",  # "auto" would queue several long jobs on one worker after a short one
        ]
        chosen = "joblib"
    for name, (module, extra) in _PLUGINS.items():
        if chosen and chosen.startswith(name) and not _is_installed(f"hydra_plugins.{module}"):
            raise ConfigError(f"hydra/launcher: {chosen} is not installed; pip install 'rpr[{extra}]'")
    return given


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package: no plugin is installed
        return False


def check(name: str, overrides: Sequence[str], config_dir: Path | None) -> None:
    """Check settings of Hydra itself, and choices from the user's own folder, before Hydra acts on a single job.

    Raises:
        ConfigError: a setting names code to run; a folder does not exist.
    """
    if config_dir is None and not any("hydra" in word for word in overrides):
        return
    _check(hydra_bridge.session(name, overrides, multirun=False, config_dir=config_dir).settings, many=False)


def _check(settings: Any, *, many: bool) -> None:
    from omegaconf import OmegaConf

    hydra: Any = OmegaConf.to_container(settings.hydra, resolve=False)
    for key, value in _names_of_code(hydra, ()):
        raise ConfigError(
            f"hydra.{key}: invalid value {value}: no setting can name code to run, except one of Hydra's launchers: "
            "hydra/launcher=joblib, submitit_local or submitit_slurm"
        )
    if hydra["job"]["chdir"]:
        raise ConfigError(
            "hydra.job.chdir: runs find their corpus and their folder from where the command was started; leave it out"
        )
    if hydra["mode"] is not None:
        raise ConfigError(f"hydra.mode: invalid value {hydra['mode']}: only -m makes a sweep; leave hydra.mode out")
    folder = Path(settings.hydra.sweep.dir)
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if many and not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise ConfigError(
            f"runs_dir: {folder} cannot be written; choose another runs_dir=..., and leave hydra.sweep.dir as it is"
        )
    if many and "SlurmLauncher" in hydra["launcher"]["_target_"]:
        if shutil.which("srun") is None:
            raise ConfigError(
                "hydra/launcher: submitit_slurm needs SLURM, but srun was not found; run the command on a login node, "
                "or choose hardware= without SLURM"
            )
        slurm.follow_jobs()


def _names_of_code(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The dotted keys, with their values, from which Hydra or its logging would import foreign code."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            plugin = (
                key == "_target_" and path in (("launcher",), ("sweeper",)) and str(value).startswith(_ALLOWED_PLUGINS)
            )
            foreign = key in _ALLOWED_LOGGING and not str(value).startswith(_ALLOWED_LOGGING[key])
            if foreign or (key == "_target_" and not plugin):
                yield ".".join((*path, key)), value
            yield from _names_of_code(value, (*path, str(key)))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _names_of_code(value, (*path, str(number)))
    elif str(tree).startswith("ext://") and not str(tree).startswith("ext://sys."):
        yield ".".join(path), tree


class Launcher:
    """One of Hydra's launchers, selected and checked; nothing has been started."""

    def __init__(self, jobs: Sequence[Sequence[str]], words: Sequence[str], config_dir: Path | None = None) -> None:
        """Compose the settings that select the launcher: `words` as `launcher_overrides` returns them, and the
        overrides that all jobs have in common (hardware=slurm_8xgpu brings its own launcher).

        Raises:
            ConfigError: it cannot work here.
        """
        shared = [word for word in jobs[0] if all(word in job for job in jobs)]
        varying = {override_key(word).partition("@")[0] for job in jobs for word in job if word not in shared}
        # The settings of a group whose choice varies fit only that choice.
        common = [word for word in shared if override_key(word).partition(".")[0] not in varying]
        self._session = hydra_bridge.session("train", [*common, *words], multirun=True, config_dir=config_dir)
        folder = str(self._session.settings.hydra.sweep.dir)
        if (expanded := str(user_path(folder))) != folder:
            words = [*words, f"hydra.sweep.dir={hydra_bridge.quote_value(expanded)}"]
            self._session = hydra_bridge.session("train", [*common, *words], multirun=True, config_dir=config_dir)
        target: str = self._session.settings.hydra.launcher["_target_"]
        apart = [key for key in ("hardware", "hardware.devices", "hardware.num_nodes") if key in varying]
        targets = {target}
        if "hardware" in apart:  # each choice may bring a launcher
            for choice in {next((word for word in job if override_key(word) == "hardware"), None) for job in jobs}:
                one = [*([choice] if choice else []), *words]
                composed = hydra_bridge.session("train", one, multirun=True, config_dir=config_dir)
                targets.add(composed.settings.hydra.launcher["_target_"])
        if apart and any("SlurmLauncher" in one for one in targets):
            raise ConfigError(
                f"{apart[0]}: all jobs of a sweep request the same SLURM nodes; give one command for each value"
            )
        _check(self._session.settings, many=True)
        self._config_dir = config_dir
        self._name = target.rpartition(".")[2]
        self.local = "BasicLauncher" in target or "Joblib" in target
        limit = 1
        if "Joblib" in target:
            n_jobs = int(self._session.settings.hydra.launcher.n_jobs)
            limit = n_jobs if n_jobs > 0 else num_cores()
        elif "LocalLauncher" in target:  # submitit's starts them all
            limit = len(jobs)
        self.at_once = min(len(jobs), limit)

    def run(self, jobs: Sequence[Sequence[str]], options: Options, sweep: str) -> dict[tuple[str, ...], RunError]:
        """Run all jobs in the given order and wait for them; a failed job does not stop the others.

        Returns:
            the one-line error of each job that did not succeed. How far a run has come is in its record.
        """
        task = _task(
            sweep,
            len(jobs),
            self.at_once,
            options,
            self._config_dir,
            sweeper=os.getpid() if self.local else None,  # SLURM jobs outlive this process
        )
        try:
            returned = self._session.launch(task, jobs)
        except Exception as error:  # of the launcher, e.g. for a lost SLURM job; the records have the jobs' status
            print(f"rpr-cli: {self._name}: {slurm.format_error(error)}", file=sys.stderr)
            return {}
        problems = {}
        for job, result in zip(jobs, returned, strict=True):
            try:
                problem = result.return_value
            except Exception as error:  # the job could not be composed where it ran
                problem = RunError(format_user_error(error) or repr(error))
            if problem is not None:
                problems[tuple(job)] = problem
        return problems


def _task(
    sweep: str, total: int, at_once: int, options: Options, config_dir: Path | None, *, sweeper: int | None
) -> Callable[[Any], RunError | None]:
    """The function that a launcher runs for each job, in this or another process; it returns the one-line error, or
    None. `at_once`: how many jobs this machine runs at a time. `sweeper`: the process with which each must end.
    """

    def task(settings: Any) -> RunError | None:
        if sweeper is None or sweeper == os.getpid():
            return one_job(settings)
        progress.disable_terminal()
        multiprocessing.set_start_method(None, force=True)  # joblib's own, which no other pool of processes can use
        with exit_with_parent(sweeper):
            return one_job(settings)

    def one_job(settings: Any) -> RunError | None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from rpr.commands import train
        from rpr.config.train import TrainConfig
        from rpr.sweep.gpus import Share, share
        from rpr.validation import validate

        running = HydraConfig.get()
        number = running.job.num + 1
        words: Any = OmegaConf.to_container(running.overrides.task, resolve=False)  # as typed
        overrides = [word for word in map(str, words) if override_key(word) not in ("sweep", "again")]
        nodes = 1
        try:
            typed = validate(TrainConfig, to_plain(settings))
            nodes = typed.hardware.num_nodes
            if not sys.stderr.isatty():  # a terminal shows the bars of rpr.sweep.progress instead
                print(f"sweep {sweep}: job {number} of {total}: {typed.run_dir_name}", file=sys.stderr, flush=True)
            gpus, sharing, devices = options.gpus, options.jobs_per_gpu, typed.hardware.devices
            with share(gpus, devices, jobs_per_gpu=sharing) if gpus else nullcontext(Share((), ())) as own:
                concurrent = min(at_once, sharing) if gpus else at_once
                sweep_job = train.SweepJob(concurrent, gpus=own.gpus, keep_open=own.descriptors)
                train.run(typed, command=train_command(overrides, config_dir), sweep_job=sweep_job)
        except (BusyError, ConfigError, DataError, RecordError) as error:  # raised before any node trains
            why = format_user_error(error) or ""
            if sweeper is None and nodes > 1:  # this code ends the SLURM job, whose other nodes wait for this one
                print(f"rpr-cli: {why}", file=sys.stderr, flush=True)
                raise SystemExit(train.FAULT_EXIT) from None
            # In use by another process: reported at the end, with its holder.
            return None if isinstance(error, BusyError) else RunError(why)
        except Exception as error:
            line = format_user_error(error)
            if line is None:  # a bug: keep its traceback
                traceback.print_exc()
            kind = ProcessEnded if isinstance(error, ProcessEnded) else RunError  # a new one: not every error pickles
            return kind(line or f"{type(error).__name__}: {error}")
        return None

    return task


@contextmanager
def exit_with_parent(sweeper: int) -> Iterator[None]:
    """In a worker process of joblib's: end it, and its training, when the process that started it (`sweeper`) dies,
    however that ends. Otherwise it would take the next job from joblib's queue, or wait for one for ever.

    SIGTERM comes with the death of each thread of the sweeper that is the parent at that moment, so the first may come
    while the sweeper is still alive; the last one ends whatever is still running. joblib starts its processes from
    threads that live as long as they do.
    """
    die_with_parent()
    _exit_without(sweeper)
    try:
        yield
    finally:  # SIGTERM has ended the training in order, but joblib would take the next job
        _exit_without(sweeper)


def _exit_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(SIGTERM_EXIT)  # joblib would take an exception for a result
