"""The jobs of a sweep, their status before, during and after a launch, and what is printed of it.

Nothing is stored that could become stale: the status of a job, and which runs belong to the sweep, are read each time
from the runs' own records and locks, which the runs themselves write, however they end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import shutil
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from rpr.commands.printing import headline
from rpr.config.train import TrainConfig
from rpr.data.cache import cache_key
from rpr.errors import ProcessEnded, RecordError, RunError
from rpr.io.escape import escape_control_characters, note
from rpr.paths import shown_path, user_path
from rpr.progress import Progress, above_bars
from rpr.records.position import check_same_code
from rpr.records.record import LOG_NAME, METRICS_NAME, RECORD_NAME, Record, read_record
from rpr.runs import lifecycle
from rpr.runs.locks import Holder, current_holder, current_record

State = Literal["new", "finished", "failed", "interrupted", "running"]
_POLL_SECONDS = 1.0
_TAIL_BYTES = 20_000
# Operations a second at most: of an A100, and of a CPU's core. Trainings reach some share of that.
_PEAK = {"gpu": {"bf16": 312e12, "32": 156e12, "64": 9.7e12}, "cpu": {"bf16": 100e9, "32": 100e9, "64": 50e9}}
_SHARES = (0.36, 0.09)
_PIECES = 50  # of a sentence, for attention's small part


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its overrides, the folder where it is or will be, the command that runs it alone where the
    sweep does, and its status when it was read. A new one has no `record`; `holder` is the process of a running one.
    """

    overrides: tuple[str, ...]
    config: TrainConfig
    run_dir: Path
    command: str = ""
    state: State = "new"
    record: Record | None = None
    holder: Holder | None = None

    def read(self) -> Job:
        """The job with its status now; raises RecordError if its record is damaged."""
        path = self.run_dir / RECORD_NAME
        record, holder = current_record(path) if path.exists() else (None, current_holder(self.run_dir))
        state: State = "running" if holder else record.status if record else "new"
        return replace(self, state=state, record=record, holder=holder)


def new_job(overrides: Sequence[str], config: TrainConfig, command: str) -> Job:
    """A job whose status has not been read."""
    return Job(tuple(overrides), config, user_path(config.runs_dir).absolute() / config.run_dir_name, command)


def load_status(sweep: str, listed: Sequence[Job]) -> list[Job]:
    """Read the status of every job, each once: settings that apply to all can make two of them identical. Raises
    RecordError if a record is damaged, or the code of a run's positions has changed; ConfigError if a corpus has
    changed since its run; DataError if a corpus on disk cannot be read.
    """
    key_of = functools.cache(cache_key)  # once for a corpus, which may have many files
    jobs: dict[tuple[Path, str], Job] = {}
    for job in listed:
        key = job.run_dir.parent, job.config.run_id
        if key in jobs:
            continue
        if job.config.data.path:  # one on the hub is checked by the first job that needs it
            key_of(job.config.data)
        jobs[key] = now = job.read()
        if job.config.again and now.state != "running":
            jobs[key] = job
        elif now.record is not None:
            check_same_code(job.config.position, now.record)
            if now.state == "finished":
                lifecycle.check_same_corpus(job.config, job.run_dir, now.record, key_of)
    if repeated := len(listed) - len(jobs):
        _print(f"sweep {sweep}: {repeated} of its {len(listed)} jobs are duplicates of others")
    return [*jobs.values()]


def print_cautions(unfinished: Sequence[TrainConfig]) -> None:
    """Each line once."""
    for line, number in Counter(line for config in unfinished for line in lifecycle.untrained(config)).items():
        note(f"warning: {line} ({number} of {len(unfinished)} jobs)")


def prepare_launch(sweep: str, jobs: Sequence[Job], *, retry_failed: bool) -> list[Job]:
    """Print the status of the sweep and add finished runs to it; returns the jobs to launch."""
    _print(f"sweep {sweep}: {_counts(jobs)}")
    _add_finished_runs(sweep, jobs)
    return [job for job in jobs if job.state in ("new", "interrupted") or (retry_failed and job.state == "failed")]


def commands(jobs: Sequence[Job]) -> list[str]:
    """The commands of the jobs, below a comment each with its status; at the end what those not finished will cost."""
    lines = []
    for number, job in enumerate(jobs, start=1):
        lines += [f"# {number} of {len(jobs)}, {job.state}", _command(job)]
    left = [job.config for job in jobs if job.state != "finished"]
    return [*lines, f"# {_counts(jobs)}", *([f"# {cost_line(left)}"] if left else [])]


def cost_line(configs: Sequence[TrainConfig]) -> str:
    """`9 jobs, 48 M parameters: 22 to 86 GPU hours, 104 GB of checkpoints`; hours of one GPU, or of one CPU core."""
    sizes, hours, disk = list[float](), defaultdict[str, float](float), 0.0
    for config in configs:
        # 1. The parameters of the matrices; those of positions, norms and biases are few.
        model, optim, hardware = config.model, config.optim, config.hardware
        attentions, networks = (3, 2) if model.architecture == "encoder_decoder" else (1, 1)  # of a layer in each stack
        layer = 4 * attentions * model.d_model**2 + 2 * networks * model.d_model * model.d_ff
        parameters = config.data.vocabulary_size * model.d_model + model.num_layers * layer
        sizes.append(parameters / 1e6)
        # 2. The operations of training: 6 for each parameter and token, and the products of attention.
        products = 12 * model.num_layers * attentions * model.d_model * (config.data.context_length or _PIECES)
        tokens = optim.max_steps * optim.microbatches_per_step * optim.max_tokens_per_microbatch
        operations = tokens * (6.0 * parameters + products)
        hours[hardware.accelerator] += operations / _PEAK[hardware.accelerator][hardware.precision] / 3600
        disk += 12e-9 * parameters * optim.kept_checkpoints  # with Adam's two moments
    units = {"gpu": "GPU hours", "cpu": "core hours"}
    times = [f"{_words(least / share for share in _SHARES)} {units[kind]}" for kind, least in hours.items()]
    jobs = f"{_number(configs)}, {_words([min(sizes), max(sizes)])} M parameters"
    return f"{jobs}: {', '.join(times)}, {disk:,.3g} GB of checkpoints"


def _words(numbers: Iterable[float]) -> str:
    return " to ".join(dict.fromkeys(f"{float(f'{number:.2g}'):,.10g}" for number in numbers))


@contextlib.contextmanager
def followed(sweep: str, jobs: Sequence[Job]) -> Iterator[Callable[[], None]]:
    """Within this context, a thread reads how far the jobs are from their files: for a bar on a terminal, and anywhere
    for a line at the end of each job, with the time left. Yields a function that reads them at once.
    """
    ours, end = [_JobProgress(job) for job in jobs], threading.Event()
    steps, done = sum(job.steps for job in ours), sum(job.step for job in ours)
    with Progress(steps, "steps", f"sweep {sweep}", done=done, lines="none") as bar:
        poll = functools.partial(_poll, sweep, ours, bar, steps)

        def follow() -> None:
            while not end.wait(_POLL_SECONDS):
                poll()

        thread = threading.Thread(target=follow, name="sweep progress", daemon=True)
        thread.start()
        try:
            yield poll
        finally:
            end.set()
            thread.join()
        poll()


def _poll(sweep: str, jobs: Sequence[_JobProgress], bar: Progress, steps: int) -> None:
    ended = [(record, job.run_dir) for job in jobs if (record := job.poll())]
    number = sum(job.ended in ("finished", "failed") for job in jobs)
    bar.reach(sum(job.step for job in jobs), steps, jobs=f"{number} of {len(jobs)}")
    left = f", {bar.left}" if bar.left else ""
    for record, run_dir in ended:
        finished = record.status == "finished"
        line = f"sweep {sweep}: {run_dir.name}: {record.outcome}"
        if finished:
            line = f"{headline(record)}: {shown_path(run_dir)}"
        with above_bars(), contextlib.suppress(OSError):  # a closed pipe is reported at the end
            line = f"{escape_control_characters(line)} ({number} of {len(jobs)} jobs{left})"
            print(line, file=sys.stdout if finished else sys.stderr, flush=True)


class _JobProgress:
    """One job: its `step` of `steps`, and how it has `ended`."""

    def __init__(self, job: Job) -> None:
        self.run_dir, self.steps, self.ended = job.run_dir, job.config.optim.max_steps, ""
        self._earlier = self._record_written()
        self.step = 0 if job.config.again else self._last_step()  # whose old file is set aside

    def poll(self) -> Record | None:
        """Read its files; returns its record if it has ended since the last call."""
        if self.ended or self._record_written() == self._earlier:
            return None
        with contextlib.suppress(RecordError):
            record = read_record(self.run_dir / RECORD_NAME)
            if record.status != "running":
                self.ended, self.step = record.status, self.steps  # nothing is left to do
                return record
        self.step = self._last_step()
        return None

    def _record_written(self) -> int | None:
        with contextlib.suppress(OSError):
            return (self.run_dir / RECORD_NAME).stat().st_mtime_ns
        return None

    def _last_step(self) -> int:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # reported when the run is read
            with (self.run_dir / METRICS_NAME).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                *lines, _ = file.read().split(b"\n")  # the last line may not be whole yet
            return min(int(json.loads(lines[-1])["step"]), self.steps)
        return 0


def print_summary(sweep: str, before: Sequence[Job], problems: Mapping[tuple[str, ...], RunError]) -> int:
    """Print why each job has no result and where its output is, then the counts and the ranked tables. Returns the exit
    code of the sweep: 0 when every job is finished. `problems` are the errors of the jobs' processes, by overrides.
    """
    from rpr.report.groups import run_groups
    from rpr.report.page import ranked_groups

    # 1. Each job without a result.
    jobs = [job.read() for job in before]
    _add_finished_runs(sweep, jobs)  # those that another process has finished in the meantime
    code = 0
    for job in jobs:
        problem = problems.get(job.overrides)
        if job.state == "finished" and problem is None:
            continue
        code = 1
        if job.state == "running":
            note(f"{job.run_dir.name}: in use by {job.holder}; rerun the command later")
            continue
        how = "interrupted" if job.state == "interrupted" else "failed"
        note(f"{how}: {job.run_dir.name}: {_reason(job.record, problem)}")
        if (log := job.run_dir / LOG_NAME).exists():
            _print(f"  its output: {shown_path(log)}")
        _print(f"  to retry: {_command(job)}")
    # 2. All of them.
    _print(f"sweep {sweep}: {_counts(jobs)}")
    if any(job.state == "failed" for job in jobs):
        _print("  retry_failed=true runs failed jobs again, from their last checkpoint")
    if finished := [job.record.shown() for job in jobs if job.record is not None and job.state == "finished"]:
        width, height = shutil.get_terminal_size((100, 50))
        print("\n".join(["", *ranked_groups(run_groups(finished), width, height - 4)]))
        runs_dir = jobs[0].config.runs_dir
        where = "" if runs_dir == "runs" else f" runs_dir={shlex.quote(runs_dir)}"
        print(f"\nrpr-cli report sweep={sweep}{where}")
    return code


def _command(job: Job) -> str:
    return f"{job.command} retry_failed=true" if job.state == "failed" and " -m " in job.command else job.command


def _reason(record: Record | None, problem: RunError | None) -> str:
    recorded = record.error if record else None
    if problem is not None and not (recorded and isinstance(problem, ProcessEnded)):
        return str(problem)
    return recorded or "never started"


def _counts(jobs: Sequence[Job]) -> str:
    by_state = Counter(job.state for job in jobs)
    return f"{_number(jobs)}: {', '.join(f'{by_state[one]} {one}' for one in get_args(State) if by_state[one])}"


def _number(jobs: Sequence[object]) -> str:
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}"


def _add_finished_runs(sweep: str, jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.state == "finished" and job.record is not None and sweep not in job.record.sweeps:
            lifecycle.add_to_sweep(job.run_dir, sweep)


def _print(line: str) -> None:
    print(line, file=sys.stderr)
