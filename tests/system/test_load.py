"""Large numbers: a sweep of 500 jobs, in bounded memory and time, with training replaced; composing many jobs; and
translating 100,000 lines.
"""

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rpr.compose import composition, hydra_bridge
from rpr.compose.composition import compose_train, expand_multirun
from rpr.compose.messages import format_user_error
from rpr.records.record import find_records, read_record
from tests.processes import SCRIPT

JOBS, KILLED_EVERY, FAILED_EVERY = 500, 25, 10
LINES, REPEATED = 10_000, 10

# rpr-cli with each job as a fork of made-up work, which takes milliseconds: a seed divisible by 25 is killed the first
# time, one divisible only by 10 fails the first time, the others finish. The last line on stderr is the peak memory in
# KiB.
FORKING = f"""
import os, resource, signal, sys
from rpr.cli import app
from rpr.commands import train
from rpr.errors import RunError
from rpr.records import provenance
from rpr.records.record import read_record, write_record
from rpr.runs.locks import current_holder
from tests.system.patches import forked_jobs


def work(config, run_dir, data):
    assert current_holder(run_dir) is not None, "the run is not locked"
    first = not (run_dir / "tried").exists()
    (run_dir / "tried").touch()
    with open(os.environ["STARTED"], "a") as file:
        file.write(f"{{config.seed}}\\n")
    if first and config.seed % {KILLED_EVERY} == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if first and config.seed % {FAILED_EVERY} == 0:
        print("about to fail", file=sys.stderr, flush=True)
        raise RunError(f"seed {{config.seed}} is unlucky")
    record = read_record(run_dir / "record.json")
    done = {{"status": "finished", "finished": provenance.now(), "steps": record.max_steps}}
    write_record(run_dir / "record.json", record.model_copy(update=done))


train.work = work
forked_jobs()
code = app.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def command(tmp_path, tiny, small_data):
    """Runs the sweep of 500 jobs; its stderr, its peak memory in KiB, and the CPU seconds of it and its children."""
    (tmp_path / "forking.py").write_text(FORKING)
    overrides = " ".join(word for word in tiny if not word.startswith("runs_dir="))
    jobs = [f"seed=range(1,{JOBS + 1})"]
    (tmp_path / "mine.yaml").write_text(json.dumps({"overrides": [overrides, "hardware.threads=1"], "jobs": jobs}))
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STARTED": str(tmp_path / "started"), "PYTHONPATH": path}

    def run(code, *words):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "forking.py", "sweep", "mine.yaml", f"runs_dir={tmp_path / 'runs'}", *words],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-3000:]
        *lines, kib = done.stderr.splitlines(keepends=True)
        return "".join(lines), int(kib), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def started(tmp_path):
    """The seeds that were started since the last call."""
    path = tmp_path / "started"
    seeds = [int(line) for line in path.read_text().split()] if path.exists() else []
    path.unlink(missing_ok=True)
    return seeds


def records(tmp_path):
    found = find_records(tmp_path / "runs", "mine")
    assert found.problems == []
    return {record.seed: record for _, record in found.records}


def ledger_seeds(tmp_path):
    """The seeds of the jobs in the sweep's ledger."""
    document = json.loads((tmp_path / "runs" / ".sweeps" / "mine.json").read_text())
    folders = {path.parent.name for path in (tmp_path / "runs").glob("*/record.json")}
    assert document["sweep"] == "mine" and {*document["jobs"]} == folders
    return sorted(read_record(tmp_path / "runs" / job / "record.json").seed for job in document["jobs"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ledger_of_sweep_of_500_jobs(command, tmp_path):
    seeds = list(range(1, JOBS + 1))
    killed = [seed for seed in seeds if seed % KILLED_EVERY == 0]
    failed = [seed for seed in seeds if seed % FAILED_EVERY == 0 and seed not in killed]

    _, _, planning = command(0, "--dry-run")
    assert planning < 60 and not (tmp_path / "runs").exists()  # CPU seconds; measured: 12

    err, memory, seconds = command(1)
    assert err.startswith("sweep mine: 500 jobs: 500 new\n") and seconds < 300  # measured: 60
    counts = f"{JOBS - len(killed) - len(failed)} finished, {len(failed)} failed, {len(killed)} interrupted"
    assert f"sweep mine: 500 jobs: {counts}\n" in err
    assert started(tmp_path) == seeds and ledger_seeds(tmp_path) == seeds
    assert err.count("rpr-cli: failed: ") == len(failed) and err.count("rpr-cli: interrupted: ") == len(killed)
    assert err.count("\n    about to fail\n  to retry: rpr-cli train ") == len(failed)
    by_seed = records(tmp_path)
    assert {seed for seed, record in by_seed.items() if record.status == "finished"} == {*seeds} - {*killed, *failed}
    assert all(by_seed[seed].error == f"seed {seed} is unlucky" for seed in failed)
    assert all(by_seed[seed].status == "interrupted" and "SIGKILL" in str(by_seed[seed].error) for seed in killed)
    assert all(record.sweeps == ("mine",) for record in by_seed.values())

    err, of_few, _ = command(1)  # resumes interrupted jobs, not failed ones
    assert started(tmp_path) == killed and f"{JOBS - len(failed)} finished, {len(failed)} failed\n" in err
    assert (memory - of_few) / (JOBS - len(killed)) < 400, (
        memory,
        of_few,
    )  # measured: 160, as Hydra keeps the settings of each job

    err, _, _ = command(0, "retry_failed=true")
    assert sorted(started(tmp_path)) == failed and err.endswith("sweep mine: 500 jobs: 500 finished\n")
    finished = records(tmp_path)
    assert len(finished) == JOBS and all(record.status == "finished" for record in finished.values())
    assert ledger_seeds(tmp_path) == seeds

    err, _, _ = command(0)
    assert started(tmp_path) == [] and err == 2 * "sweep mine: 500 jobs: 500 finished\n"
    assert records(tmp_path) == finished
    assert not [path for path in (tmp_path / "runs").rglob(".lock") if path.stat().st_size]


def composed(make):
    try:
        return make()
    except Exception as error:
        return type(error), format_user_error(error)


WORDS = [
    [], ["model.d_model=64", "seed=2", "model.d_model=32"], ["model=base", "position=absolute"],
    ["data=multi30k_en_de", "data.path=/data/m", "logger.tags=[a,'b c']"], ["name='${data.name}-x'"],
    ["seed=2", "++seed=3"], ["sead=3"], ["model=nope"], ["data=null"], ["seed=[1"], ["hydra.run.dir=x", "seed=2"],
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words) or "none")
def test_jobs_are_composed_independently(words):
    first = composed(lambda: compose_train(words))
    compose_train(["seed=9"])
    assert composed(lambda: compose_train(words)) == first


def test_conf_is_read_once_for_many_jobs(monkeypatch):
    read = []
    compose_with_hydra = hydra_bridge.compose

    def compose(name, choices, config_dir):
        read.append(choices)
        return compose_with_hydra(name, choices, config_dir)

    monkeypatch.setattr(hydra_bridge, "compose", compose)
    composition._of_choices.cache_clear()
    made = [compose_train(job) for job in expand_multirun(["seed=range(1,41)", "sweep=mine", "position=relative"])]
    assert len({config.run_id for config in made}) == 40
    assert [list(choices) for choices in read] == [["position=relative"]]


# --- translate


def translated(random_run, source, target):
    """Run `rpr-cli translate`; its peak memory in bytes."""
    words = [f"run={random_run}", f"input={source}", f"output={target}", "lines_per_batch=250", "beam_size=1"]
    process = subprocess.Popen(
        [SCRIPT, "translate", *words, "hardware.threads=1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    err = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, err
    return 1024 * used.ru_maxrss


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_translate_memory_does_not_grow_with_input(random_run, small_data, tmp_path):
    words = sorted({word for line in small_data.text("test")[0] for word in line.split()})
    chance = random.Random(1)
    lines = {}
    while len(lines) < LINES:
        lines[" ".join(chance.choices(words, k=chance.randint(1, 4)))] = None
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "few").write_text(text)
    (tmp_path / "many").write_text(REPEATED * text)
    few = translated(random_run, tmp_path / "few", tmp_path / "few.out")
    many = translated(random_run, tmp_path / "many", tmp_path / "many.out")
    once = (tmp_path / "few.out").read_text()
    assert once.count("\n") == LINES and len({*once.splitlines()}) > 500  # so that misplaced lines would differ
    assert (tmp_path / "many.out").read_text() == REPEATED * once
    assert many < few + 2**24, (few, many)  # less than the size of the lines
