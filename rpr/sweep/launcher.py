"""How the jobs of a sweep run: on this machine, or with a launcher of Hydra's, as SLURM's (submitit)."""

import json
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rpr.compose import hydra_bridge
from rpr.compose.composition import is_hydra_override, override_key, recorded_command
from rpr.compose.messages import format_user_error
from rpr.config.train import HardwareConfig
from rpr.errors import BusyError, ConfigError, RunError
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.sweep import pool, slurm
from rpr.sweep.gpus import ALONE, Options
from rpr.sweep.status import Job

_HARDWARE = ("hardware", "hardware.devices", "hardware.num_nodes")  # what may decide the launcher and its request
_REQUESTED = ("partition", "account", "qos", "nodes", "gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min")


def _of_machine(job: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in job if override_key(word) in (*_HARDWARE, "runs_dir", "hydra.searchpath"))


class Launcher:
    """How the jobs of a sweep run, selected and checked; nothing has been started. `request`: what each job asks SLURM
    for, in words, or "". `words`: what a command of one job needs to run where the sweep's jobs do.
    """

    def __init__(
        self,
        jobs: Sequence[Sequence[str]],
        overrides: Sequence[str],
        options: Options = ALONE,
        config_dir: Path | None = None,
    ) -> None:
        """Compose the settings that select the launcher: those for Hydra itself, and each choice of hardware
        (hardware=slurm_8xgpu brings its own launcher). Raises ConfigError if they or these options are invalid.
        """
        # 1. The settings of Hydra, as typed and as the hardware of each job has them.
        typed = [word for word in overrides if is_hydra_override(word)]
        compose = partial(hydra_bridge.compose, "train", config_dir=config_dir, with_hydra=True)
        first, *others = dict.fromkeys(map(_of_machine, jobs))
        settings = compose([*first, *typed])
        sweep_dir = str(user_path(str(settings.hydra.sweep.dir)))
        own = [*typed, f"hydra.sweep.dir={hydra_bridge.quote_value(sweep_dir)}"]
        targets = [str(of.hydra.launcher["_target_"]) for of in (settings, *(compose([*one, *own]) for one in others))]
        # 2. One launcher for all jobs.
        chosen = [{override_key(word): word for word in job} for job in jobs]
        varying = [key for key in _HARDWARE if len({words.get(key) for words in chosen}) > 1]
        if varying and any(target.endswith("SlurmLauncher") for target in targets):
            raise ConfigError(
                f"{varying[0]}: all jobs of a sweep request the same SLURM nodes; give one command for each value"
            )
        # Of all jobs, so that each has as many threads when few are left to do.
        at_once = None if options.jobs is None else min(options.jobs, len(jobs))
        self._overrides, self._config_dir, self._options = [*first, *own], config_dir, options._replace(jobs=at_once)
        self._name, self._sweep_dir = targets[0].rpartition(".")[2], Path(sweep_dir)
        self._local = self._name == "BasicLauncher"
        # 3. What the other place has no use for.
        for word in typed if self._local else ():
            if override_key(word) != "hydra/launcher":
                raise ConfigError(f"{override_key(word)}: has no effect on this machine; it goes with hydra/launcher=")
        if not self._local and self._options.jobs is not None:
            key = "gpus" if self._options.gpus else "jobs"
            raise ConfigError(f"{key}: {self._name} sets what runs at a time itself; leave out {key} or the launcher")
        asked = settings.hydra.launcher if self._name == "SlurmLauncher" else {}
        self.request = ", ".join(f"{name}={asked[name]}" for name in _REQUESTED if asked.get(name) is not None)
        self.words = () if self._local else ("-m", *typed)
        self.logs = "" if self._local else f"{self._sweep_dir}/.submitit/*/*_log.out"

    def check_machine(self, hardware: Iterable[HardwareConfig]) -> None:
        """Raises ConfigError if the launcher cannot work on this machine, or a job in it cannot."""
        if self._name == "SlurmLauncher" and shutil.which("srun") is None:
            raise ConfigError(
                "hydra/launcher: submitit_slurm needs SLURM, but srun was not found; run the command on a login "
                "node, or choose hardware= without SLURM"
            )
        if self._local:
            from rpr.runs import runtime

            for machine in hardware:
                runtime.check_devices(machine)

    def run(self, jobs: Sequence[Job], sweep: str) -> dict[tuple[str, ...], RunError]:
        """Run all jobs in the given order and wait for them; a failed job does not stop the others. Returns the
        one-line error of each job that did not succeed. How far a run has come is in its record.
        """
        commands = [recorded_command(job.overrides, self._config_dir) for job in jobs]
        if self._local:
            return pool.run(jobs, commands, self._options, sweep)
        if of_slurm := self._name == "SlurmLauncher":
            slurm.follow_jobs()
        at_once = 1 if of_slurm else len(jobs)  # others are not known to have a limit
        task = _task(sweep, [job.config.model_dump(mode="json") for job in jobs], commands, at_once)
        try:
            of_machine = [_of_machine(job.overrides) for job in jobs]
            returned = hydra_bridge.launch("train", self._overrides, self._config_dir, task, of_machine)
        except Exception as error:  # of the launcher, e.g. for a lost SLURM job; the records have the jobs' status
            note(f"{self._name}: {slurm.format_error(error)}")
            return {}
        problems = {job.overrides: _problem(result) for job, result in zip(jobs, returned, strict=True)}
        return {overrides: problem for overrides, problem in problems.items() if problem is not None}


def _problem(result: Any) -> RunError | None:
    try:
        problem: RunError | None = result.return_value
    except Exception as error:  # of the launcher where the job ran
        return RunError(format_user_error(error) or repr(error))
    return problem


def _task(
    sweep: str, configs: Sequence[dict[str, Any]], commands: Sequence[str], at_once: int
) -> Callable[[Any], RunError | None]:
    """The function that a launcher runs for each job, in another process; it returns the one-line error, or None.
    `configs` and `commands` are of each job: what Hydra composes there only names the machine, which runs `at_once`.
    """
    total = len(configs)
    packed = zlib.compress(json.dumps([configs, commands]).encode())  # each job's pickle has those of all

    def task(settings: Any) -> RunError | None:
        from hydra.core.hydra_config import HydraConfig

        from rpr.commands import train
        from rpr.config.train import config_from_record

        number = HydraConfig.get().job.num
        config, command = (of_jobs[number] for of_jobs in json.loads(zlib.decompress(packed)))
        nodes = config["hardware"]["num_nodes"]
        try:
            run = config_from_record(config)
            job = f"job {number + 1} of {total}"
            print(f"sweep {sweep}: {job}: {run.run_dir_name}", file=sys.stderr, flush=True)
            train.run(run, command=command, sweep_job=train.SweepJob(at_once, in_launcher=True))
        except Exception as error:
            problem = pool.as_problem(error)
            if nodes > 1:
                note(str(problem))
                raise SystemExit(train.FAULT_EXIT) from None  # ends the SLURM job, whose other nodes wait for this one
            # In use by another process: reported at the end, with its holder.
            return None if isinstance(error, BusyError) else problem
        return None

    return task
