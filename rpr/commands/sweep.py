"""rpr-cli sweep: a sweep's file, how its jobs stand, what is said of them. The jobs themselves are runs of train."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml

from rpr.config import NAME, TrainConfig
from rpr.errors import ConfigError, ProcessEnded, RecordError, RunError, did_you_mean
from rpr.paths import data_dir
from rpr.records.record import Record
from rpr.runs import ledger
from rpr.runs.ledger import Job, Standing, State

_WHAT_NOW: Mapping[State, str] = {
    "new": "new",
    "finished": "finished",
    "interrupted": "interrupted, will resume",
    "failed": "failed before",
    "running": "being run by another process",
}
_WHAT_CAME: Mapping[State, str] = {
    **_WHAT_NOW,
    "new": "never started",
    "interrupted": "interrupted",
    "failed": "failed",
}


@dataclass(frozen=True)
class Plan:
    """A sweep: `overrides` of every job, and rows of overrides; a comma list in a row is swept over (their product)."""

    name: str
    description: str
    overrides: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def available() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_dir("sweeps").glob("*.yaml"))}


def usage() -> str:
    lines = [
        "usage: rpr-cli sweep NAME|FILE [setting=value ...] [at_once=N] [gpus=0,1] [jobs_per_gpu=N] [retry=failed]",
        "",
    ]
    lines += [f"  {name:<10} {read(name).description}" for name in available()]
    lines += [
        "",
        "Settings apply to every job and may be swept too: rpr-cli sweep quick seed=1,2,3",
        "The same command again skips what is finished and resumes what was interrupted.",
        "",
        "  at_once=N      N jobs at a time on this machine",
        "  gpus=0,1,2,3   each job has GPUs of its own among these, as many jobs at a time as there are GPUs for",
        "  jobs_per_gpu=N N jobs share each of these GPUs",
        "  retry=failed   what failed is run again, from its last checkpoint",
        "  --dry-run      the jobs as commands, how they stand, and what they would cost",
        "  --wandb-yaml   the same sweep as a file for `wandb sweep`",
    ]
    return "\n".join(lines)


def read(name: str) -> Plan:
    """A named sweep of sweeps/, or a YAML file of the user's own.

    Raises:
        ConfigError: no such sweep, or a file that does not say what a sweep says.
    """
    files = available()
    path = Path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise ConfigError(f"sweep: no such sweep {name!r}" + did_you_mean(name, files))
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a sweep ({' '.join(str(error).split())}); give a file like those of sweeps/"
        ) from None
    keys = {"description", "overrides", "jobs"}
    if not isinstance(content, dict) or set(content) - keys or not isinstance(content.get("jobs"), list):
        raise ConfigError(f"{path}: a sweep has the keys description, overrides and jobs (a list of override lines)")
    if not NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: the file's name is the sweep's; use letters, digits, '.', '_' and '-'")
    overrides, jobs = content.get("overrides") or [], content["jobs"]
    if not isinstance(overrides, list) or not jobs or not all(isinstance(line, str) for line in [*overrides, *jobs]):
        raise ConfigError(
            f"{path}: overrides and jobs are lists of text, e.g. 'position=none seed=1,2'; jobs is not empty"
        )
    try:
        return Plan(
            name=path.stem,
            description=str(content.get("description", "")),
            overrides=tuple(word for line in overrides for word in shlex.split(line)),
            rows=tuple(tuple(shlex.split(line)) for line in jobs),
        )
    except ValueError as error:
        raise ConfigError(f"{path}: a quotation mark is left open ({error})") from None


@dataclass(frozen=True)
class Books:
    """The jobs of a sweep and how each stood when it was looked at."""

    sweep: str
    jobs: tuple[Job, ...]
    standings: tuple[Standing, ...]

    def of(self, *states: State) -> list[tuple[Job, Standing]]:
        pairs = zip(self.jobs, self.standings, strict=True)
        return [(job, standing) for job, standing in pairs if standing.state in states]

    def counts(self, words: Mapping[State, str]) -> str:
        """`9 jobs: 3 finished, 6 new`."""
        found = [(len(self.of(state)), state) for state in get_args(State)]
        parts = [f"{count} {words[state]}" for count, state in found if count]
        return f"{len(self.jobs)} job{'s' if len(self.jobs) > 1 else ''}: {', '.join(parts)}"


def opened(sweep: str, made: Sequence[tuple[Sequence[str], TrainConfig]]) -> Books:
    """The books, after every job has been looked at: its corpus is there, and its record, if any, can be read.

    Raises:
        ConfigError: a record is damaged, a corpus is another one than its run had, or several jobs have one name.
        DataError: a corpus on disk cannot be read.
    """
    _refuse_one_name_for_several([config for _, config in made])
    _check_corpora([config for _, config in made])
    jobs = ledger.jobs_of(made)
    if len(jobs) < len(made):
        print(
            f"sweep {sweep}: {len(made) - len(jobs)} of its {len(made)} jobs are the same run as another",
            file=sys.stderr,
        )
    standings = []
    for job in jobs:
        try:
            standings.append(ledger.standing(job.run_dir))
        except RecordError as error:
            raise ledger.damaged(job.run_dir, error) from None
        if (record := standings[-1].record) is not None and record.status == "finished":
            ledger.refuse_another_corpus(job.config, job.run_dir, record)
    return Books(sweep, tuple(jobs), tuple(standings))


def _refuse_one_name_for_several(configs: Sequence[TrainConfig]) -> None:
    jobs = {config.run_id: config.name for config in configs}
    for name, count in Counter(name for name in jobs.values() if name is not None).items():
        if count > 1:
            raise ConfigError(
                f"name: {name} is given to {count} of the {len(jobs)} jobs; a name is one run's, by which it is told "
                "from others: leave name out, and each job is named after its choices"
            )


def _check_corpora(configs: Sequence[TrainConfig]) -> None:
    """Those on disk; one on the hub is met by the first job that needs it."""
    from rpr.data.cache import cache_key

    for data in {config.data.model_dump_json(): config.data for config in configs if config.data.path}.values():
        cache_key(data)


def check_devices(books: Books) -> None:
    """Refuse GPUs that this machine does not have.

    Raises:
        ConfigError: a job asks for more than there are.
    """
    from rpr.runs import runtime

    for hardware in {job.config.hardware for job in books.jobs}:
        runtime.check_devices(hardware)


def begun(books: Books, *, retry_failed: bool, at_once: int) -> list[Job]:
    """The jobs that are to be launched, after it is told how all of them stand, the sweep's jobs are written down, and
    finished runs have joined it.
    """
    changes = []
    for root in sorted({job.config.runs_dir for job in books.jobs}):
        here = [job for job in books.jobs if job.config.runs_dir == root]
        changes += ledger.changes(Path(root), books.sweep, here)
        ledger.write_down(Path(root), books.sweep, here)
    print(f"sweep {books.sweep}: {books.counts(_WHAT_NOW)}", file=sys.stderr)
    if at_once > 1 and any(_takes_all_cores(job.config) for job in books.jobs):
        print(
            f"  at_once={at_once}: each job takes all cores of this machine; hardware.threads=N gives it a share",
            file=sys.stderr,
        )
    for line in changes:
        print(f"  since it was last started: {line}", file=sys.stderr)
    for job, standing in books.of("finished"):
        assert standing.record is not None
        ledger.join(job, standing.record, books.sweep)
    return [job for job, _ in books.of("new", "interrupted", *(("failed",) if retry_failed else ()))]


def _takes_all_cores(config: TrainConfig) -> bool:
    hardware = config.hardware
    return hardware.accelerator == "cpu" and hardware.threads is None and "OMP_NUM_THREADS" not in os.environ


def commands(books: Books) -> list[str]:
    """The jobs as commands to be typed one by one, each under a comment: how it stands, and what it would cost."""
    from rpr.commands.costs import costs, duration
    from rpr.records.record import find_records

    records = []
    for root in sorted({job.config.runs_dir for job in books.jobs}):
        if Path(root).is_dir():
            records += [record for _, record in find_records(Path(root)).records]
    found = costs([job.config for job in books.jobs], records)
    lines = []
    for number, (job, standing, cost) in enumerate(zip(books.jobs, books.standings, found, strict=True), start=1):
        lines.append(f"# {number} of {len(books.jobs)}, {_WHAT_NOW[standing.state]}: {cost}")
        lines.append(shlex.join(["rpr-cli", "train", *job.overrides]))
    open_ones = [
        cost
        for standing, cost in zip(books.standings, found, strict=True)
        if standing.state not in ("finished", "running")
    ]
    known = [cost.seconds for cost in open_ones if cost.seconds is not None]
    total = f"about {duration(sum(known))} of training, one after another" if known else "time not known"
    if 0 < len(known) < len(open_ones):
        total += f", and {len(open_ones) - len(known)} of which the time is not known"
    return [*lines, f"# {books.counts(_WHAT_NOW)}" + (f"; to do: {total}" if open_ones else "")]


def told(before: Books, problems: Mapping[tuple[str, ...], RunError]) -> int:
    """The exit code of a sweep, 0 when every job is finished, after a line for each that is not, with the last of what
    it printed.

    Args:
        before: the books as they were opened.
        problems: what the launcher had to say of a job, by its overrides.
    """
    after = Books(before.sweep, before.jobs, tuple(ledger.standing(job.run_dir) for job in before.jobs))
    failures = 0
    for job, standing in zip(after.jobs, after.standings, strict=True):
        problem = problems.get(job.overrides)
        if standing.state == "running":
            print(f"rpr-cli: {job.run_dir.name}: {standing.holder} works on it", file=sys.stderr)
        elif standing.state != "finished" or problem is not None:
            failures += 1
            how = "interrupted" if standing.state == "interrupted" else "failed"
            print(f"rpr-cli: {how}: {job.run_dir.name}: {_why(standing.record, problem)}", file=sys.stderr)
            for line in ledger.last_lines(job.run_dir):
                print(f"    {line}", file=sys.stderr)
            print(f"  again: {shlex.join(['rpr-cli', 'train', *job.overrides])}", file=sys.stderr)
    print(f"sweep {after.sweep}: {after.counts(_WHAT_CAME)}", file=sys.stderr)
    if after.of("failed"):
        print("  retry=failed runs again what failed, from its last checkpoint", file=sys.stderr)
    elsewhere = len(after.of("running"))
    if elsewhere:
        print(
            f"  the sweep is not complete: {elsewhere} of its jobs {'is' if elsewhere == 1 else 'are'} another "
            "process's; the same command again waits for nobody, and looks anew how they stand",
            file=sys.stderr,
        )
    return 1 if failures or elsewhere else 0


def _why(record: Record | None, problem: RunError | None) -> str:
    """Why a job has no result: what the launcher reports now, before what its record may say of an earlier try. Of a
    process that ended the launcher knows only how, and its record why, if it could still write it.
    """
    reasons = [str(problem) if problem else None, record.error if record else None]
    if isinstance(problem, ProcessEnded):
        reasons.reverse()
    return next((text for text in reasons if text), "it was never started")
