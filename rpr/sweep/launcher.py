"""The jobs of a sweep through a launcher of Hydra's: one after another, N at a time (joblib), or SLURM (submitit)."""

from __future__ import annotations

import importlib.util
import os
import shlex
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
from rpr.compose.composition import key_of, plain
from rpr.compose.messages import one_line
from rpr.errors import BusyError, ConfigError, ProcessEnded, RunError
from rpr.signals import SIGTERM_EXIT, die_with_parent
from rpr.sweep import slurm

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import HardwareConfig

_PLUGINS = {"joblib": ("hydra_joblib_launcher", "parallel"), "submitit": ("hydra_submitit_launcher", "slurm")}

# What a launcher or sweeper may be, and what its logging may be made of: all that Hydra makes of names in a setting.
_HYDRAS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_LOGGINGS = {"class": "logging.", "()": "colorlog."}


@dataclass(frozen=True)
class Options:
    """How jobs are launched: N at a time on this machine, which GPUs they share out among themselves, and how many of
    them have one GPU together.
    """

    jobs: int | None = None
    gpus: tuple[str, ...] = ()
    jobs_per_gpu: int = 1

    def sharing(self, hardware: Sequence[HardwareConfig]) -> Options:
        """With GPUs named and no number of jobs: as many at a time as there are GPUs for.

        Raises:
            ConfigError: a job uses none, or more than are named; or none is named that jobs could share.
        """
        if not self.gpus:
            if self.jobs_per_gpu > 1:
                raise ConfigError(
                    f"jobs_per_gpu: {self.jobs_per_gpu} jobs share each GPU of gpus=...; name them: gpus=0"
                )
            return self
        without = next((one for one in hardware if one.accelerator != "gpu"), None)
        if without is not None:
            raise ConfigError(f"gpus: hardware={without.name} uses none; leave gpus out, or choose hardware=1xgpu")
        devices = max(one.devices for one in hardware)
        if devices > len(self.gpus):
            raise ConfigError(
                f"gpus: {len(self.gpus)} named, and a job takes {devices}; name more, or choose hardware=1xgpu"
            )
        return self if self.jobs is not None else replace(self, jobs=self.jobs_per_gpu * (len(self.gpus) // devices))


def is_hydras(override: str) -> bool:
    """Whether an override is about Hydra (its launcher), not about a job."""
    return key_of(override).startswith(("hydra/", "hydra."))


def launcher_words(words: Sequence[str], options: Options) -> list[str]:
    """Hydra's overrides for the launcher that is asked for.

    Raises:
        ConfigError: two launchers are asked for, or one that is not installed.
    """
    given = [word for word in words if is_hydras(word)]
    chosen = next((word.partition("=")[2] for word in given if key_of(word) == "hydra/launcher"), None)
    if options.jobs is not None:
        if chosen not in (None, "joblib"):
            raise ConfigError(
                f"jobs: hydra/launcher={chosen} decides itself how many run at a time; leave one of them out"
            )
        given = [
            *(word for word in given if key_of(word) not in ("hydra/launcher", "hydra.launcher.n_jobs")),
            "hydra/launcher=joblib",
            f"hydra.launcher.n_jobs={options.jobs}",
        ]
        chosen = "joblib"
    for name, (module, extra) in _PLUGINS.items():
        if chosen and chosen.startswith(name) and importlib.util.find_spec(f"hydra_plugins.{module}") is None:
            raise ConfigError(f"hydra/launcher: {chosen} is not installed; pip install 'rpr[{extra}]'")
    return given


def check(name: str, overrides: Sequence[str], *, multirun: bool, config_dir: Path | None = None) -> None:
    """Look at what Hydra would do with settings about Hydra itself, or choices from the user's own folder, before it
    does anything.

    Raises:
        ConfigError: a setting names code to be run; a folder does not exist; a launcher cannot work here.
    """
    if config_dir is None and not any("hydra" in word for word in overrides):
        return
    _check(hydra_bridge.session(name, overrides, multirun=multirun, config_dir=config_dir).settings, many=multirun)


def _check(settings: Any, *, many: bool) -> None:
    from omegaconf import OmegaConf

    hydra: Any = OmegaConf.to_container(settings.hydra, resolve=False)
    for key, value in _names_of_code(hydra, ()):
        raise ConfigError(
            f"hydra.{key}: {value} is refused; no setting can name code to be run but one of Hydra's launchers: "
            "hydra/launcher=joblib, submitit_local or submitit_slurm"
        )
    if hydra["mode"] is not None:
        raise ConfigError(
            f"hydra.mode: {hydra['mode']} is refused; -m says whether it is a sweep: leave hydra.mode out"
        )
    folder = Path(settings.hydra.sweep.dir)
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if many and not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise ConfigError(
            f"runs_dir: {folder} cannot be written; choose another runs_dir=..., and leave hydra.sweep.dir as it is"
        )
    if many and "SlurmLauncher" in hydra["launcher"]["_target_"]:
        if shutil.which("srun") is None:
            raise ConfigError(
                "hydra/launcher: submitit_slurm needs SLURM's commands, and there is no srun here; type it on a login "
                "node, or choose hardware= without SLURM"
            )
        slurm.follow_jobs()


def _names_of_code(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The dotted keys, with their values, by which Hydra, or logging for it, would import what is not theirs."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            plugin = key == "_target_" and path in (("launcher",), ("sweeper",)) and str(value).startswith(_HYDRAS)
            foreign = key in _LOGGINGS and not str(value).startswith(_LOGGINGS[key])
            if foreign or (key == "_target_" and not plugin):
                yield ".".join((*path, key)), value
            yield from _names_of_code(value, (*path, str(key)))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _names_of_code(value, (*path, str(number)))
    elif str(tree).startswith("ext://") and not str(tree).startswith("ext://sys."):
        yield ".".join(path), tree


class Launcher:
    """One of Hydra's launchers, chosen and checked; nothing has been started."""

    def __init__(self, jobs: Sequence[Sequence[str]], words: Sequence[str], config_dir: Path | None = None) -> None:
        """Compose what decides the launcher: `words` as `launcher_words` gives them, and what all jobs have in common
        (hardware=slurm_8xgpu brings its own).

        Raises:
            ConfigError: it cannot work here.
        """
        common = [word for word in jobs[0] if all(word in job for job in jobs)]
        self._session = hydra_bridge.session("train", [*common, *words], multirun=True, config_dir=config_dir)
        _check(self._session.settings, many=True)
        target: str = self._session.settings.hydra.launcher["_target_"]
        self._name = target.rpartition(".")[2]
        self.one_by_one = "BasicLauncher" in target
        self.here = self.one_by_one or "Joblib" in target

    def run(self, jobs: Sequence[Sequence[str]], options: Options, sweep: str) -> dict[tuple[str, ...], RunError]:
        """Run every job, in the order given, and wait for all of them; one that fails does not stop the others.

        Returns:
            the error, in one line, of each job that did not end well. How far each run is, its record says.
        """
        task = _task(
            sweep,
            len(jobs),
            options,
            sweeper=os.getpid() if self.here else None,  # SLURM's jobs are to outlive this process
        )
        try:
            returned = self._session.launch(task, jobs)
        except Exception as error:  # of the launcher: a SLURM job that was lost, say; the records say how far each came
            print(f"rpr-cli: {self._name}: {slurm.in_one_line(error)}", file=sys.stderr)
            return {}
        problems = {}
        for job, result in zip(jobs, returned, strict=True):
            try:
                problem = result.return_value
            except Exception as error:  # one that could not be composed where it ran
                problem = RunError(one_line(error) or repr(error))
            if problem is not None:
                problems[tuple(job)] = problem
        return problems


def _task(sweep: str, total: int, options: Options, *, sweeper: int | None) -> Callable[[Any], RunError | None]:
    """What a launcher runs for each job, here or in another process: what went wrong in one line, else None. `sweeper`:
    the process that it is to end with.
    """

    def task(settings: Any) -> RunError | None:
        if sweeper is None or sweeper == os.getpid():
            return one_job(settings)
        progress.leave_terminal_to_others()
        with ending_with(sweeper):
            return one_job(settings)

    def one_job(settings: Any) -> RunError | None:
        from rpr.commands import train
        from rpr.config.train import TrainConfig
        from rpr.sweep.gpus import share
        from rpr.validation import validated

        number = hydra_bridge.job_number() + 1
        overrides = [word for word in hydra_bridge.typed_overrides() if key_of(word) != "sweep"]
        try:
            typed = validated(TrainConfig, plain(settings))
            if not sys.stderr.isatty():  # there it is a bar, of rpr.sweep.progress
                print(f"sweep {sweep}: job {number} of {total}: {typed.run_dir_name}", file=sys.stderr, flush=True)
            gpus, devices = options.gpus, typed.hardware.devices
            with share(gpus, devices, jobs_per_gpu=options.jobs_per_gpu) if gpus else nullcontext() as shared:
                train.run(
                    typed,
                    command=shlex.join(["rpr-cli", "train", *overrides]),
                    in_sweep=True,
                    gpus=shared.gpus if shared else (),
                    keep_open=shared.descriptors if shared else (),
                )
        except BusyError:
            return None  # another process has it: told at the end, with its holder
        except Exception as error:
            line = one_line(error)
            if line is None:  # a fault of ours: the traceback must not be lost
                traceback.print_exc()
            kind = ProcessEnded if isinstance(error, ProcessEnded) else RunError  # not itself: not every error pickles
            return kind(line or f"{type(error).__name__}: {error}")
        return None

    return task


@contextmanager
def ending_with(sweeper: int) -> Iterator[None]:
    """In a process of joblib's: it ends, and its training with it, when the process that started it (`sweeper`) dies,
    whatever ended that. Else it would take the next job from joblib's queue, and when there is none stay for ever.

    SIGTERM comes with the death of each thread of the sweeper that is its parent for the moment, so the first may come
    while the process is still there; the last one ends what went on. joblib's processes are started by threads that
    live as long as they do.
    """
    die_with_parent()
    _end_without(sweeper)
    try:
        yield
    finally:  # SIGTERM has ended the training in order, and joblib would go on after that
        _end_without(sweeper)


def _end_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(SIGTERM_EXIT)  # an exception would be a result, to joblib
