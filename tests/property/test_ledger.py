"""State machine of runs that two processes and another machine start, kill, finish and retry: `job_status` matches a
simple model, and no run has two holders. The locks are real; a process is an open file description, which is what
owns a lock in the kernel, and a killed one closes it and leaves the file.
"""

import json
import os
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rpr.errors import BusyError
from rpr.records.record import Record, write_record
from rpr.runs import lifecycle, locks
from rpr.runs.locks import LOCK_NAME, RunLock, acquire, current_holder
from rpr.sweep.ledger import job_status
from tests.fake_records import fake_document
from tests.property.sizes import SIZES, Size

RUNS = st.sampled_from(["a", "b"])
PROCESSES = st.sampled_from([1, 2])
ELSEWHERE = "elsewhere"
STOPPED = st.sampled_from(["failed", "interrupted"])


def record(run: str, status: str, error: str | None, sweeps: tuple[str, ...] = ()) -> Record:
    document = fake_document("none", 0, status=status, name=run, run_id=run, error=error, sweeps=sweeps)
    return Record.model_validate(document)


@dataclass
class Expected:
    """The model's state of a run."""

    status: str | None = None  # in the record
    error: str | None = None
    holder: int | str | None = None  # a process, or ELSEWHERE
    sweeps: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if self.status == "finished":
            return "finished"
        if self.holder is not None:
            return "running"
        if self.status is None:
            return "new"
        return "failed" if self.status == "failed" else "interrupted"


class Runs(RuleBasedStateMachine):
    """Two runs, two processes, one other machine."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.expected = {run: Expected() for run in ("a", "b")}
        self.held: dict[tuple[int, str], tuple[AbstractContextManager[RunLock], RunLock]] = {}
        for run in self.expected:
            (self.root / run).mkdir()

    def teardown(self) -> None:
        for manager, _ in self.held.values():
            manager.__exit__(None, None, None)
        shutil.rmtree(self.root)

    def write(self, run: str, status: str, error: str | None = None) -> None:
        expected = self.expected[run]
        expected.status, expected.error = status, error
        write_record(self.root / run / "record.json", record(run, status, error, expected.sweeps))

    def holds(self, process: int, run: str) -> bool:
        return self.expected[run].holder == process

    @rule(process=PROCESSES, run=RUNS)
    def start(self, process: int, run: str) -> None:
        """The first start, a resumption or a retry."""
        expected = self.expected[run]
        if expected.holder == ELSEWHERE:
            return  # would wait two minutes for a heartbeat: tests/runs/test_locks.py
        manager = acquire(self.root / run)
        if expected.holder is not None:
            with pytest.raises(BusyError, match="in use by"):
                manager.__enter__()
            return
        self.held[process, run] = manager, manager.__enter__()
        expected.holder = process
        if expected.status != "finished":
            self.write(run, "running")

    @rule(process=PROCESSES, run=RUNS)
    def kill(self, process: int, run: str) -> None:
        if not self.holds(process, run):
            return
        path = self.root / run / LOCK_NAME
        left = path.read_text()
        self.held.pop((process, run))[0].__exit__(None, None, None)
        path.write_text(left)
        self.expected[run].holder = None

    @rule(process=PROCESSES, run=RUNS, status=st.just("finished") | STOPPED)
    def end(self, process: int, run: str, status: str) -> None:
        if not self.holds(process, run):
            return
        if self.expected[run].status != "finished":
            self.write(run, status, None if status == "finished" else "why")
        self.held.pop((process, run))[0].__exit__(None, None, None)
        self.expected[run].holder = None

    @rule(process=PROCESSES, run=RUNS, status=STOPPED)
    def stop_but_keep_the_lock(self, process: int, run: str, status: str) -> None:
        """The record says that the run has stopped, but the process has not exited yet."""
        if self.holds(process, run) and self.expected[run].status != "finished":
            self.write(run, status, "why")

    @rule(run=RUNS, stale=st.booleans())
    def start_elsewhere(self, run: str, stale: bool) -> None:
        """Its heartbeat is current, or stale by more than two minutes."""
        expected = self.expected[run]
        if expected.holder is not None:
            return
        path = self.root / run / LOCK_NAME
        path.write_text(json.dumps({"host": "node7", "pid": 12, "started": "2026-01-01", "token": "t"}))
        if stale:
            then = time.time() - locks.STALE_SECONDS - 5
            os.utime(path, (then, then))
        else:
            expected.holder = ELSEWHERE
        if expected.status != "finished":
            self.write(run, "running")

    @rule(run=RUNS)
    def end_elsewhere(self, run: str) -> None:
        expected = self.expected[run]
        if expected.holder == ELSEWHERE:
            if expected.status != "finished":
                self.write(run, "finished")
            (self.root / run / LOCK_NAME).write_text("")
            expected.holder = None

    @rule(run=RUNS, sweep=st.sampled_from(["first", "second"]))
    def add_to_sweep(self, run: str, sweep: str) -> None:
        expected = self.expected[run]
        if expected.status != "finished":
            return
        lifecycle.add_to_sweep(self.root / run, sweep)
        expected.sweeps += (sweep,) if sweep not in expected.sweeps else ()

    @precondition(lambda self: any(expected.holder is None for expected in self.expected.values()))
    @rule(run=RUNS, content=st.sampled_from([None, "", '{"host": "nod', "[]"]))
    def damage_unused_lock_file(self, run: str, content: str | None) -> None:
        if self.expected[run].holder is None:
            path = self.root / run / LOCK_NAME
            path.unlink(missing_ok=True) if content is None else path.write_text(content)

    @invariant()
    def job_status_matches_the_model(self) -> None:
        for run, expected in self.expected.items():
            found = job_status(self.root / run)
            assert found.state == expected.state
            assert (found.record is None) == (expected.status is None)
            if found.record is not None and (expected.status, expected.state) != ("running", "interrupted"):
                assert (found.record.status, found.record.error) == (expected.status, expected.error)
                assert found.record.sweeps == expected.sweeps
            tokens = {ELSEWHERE: "t", None: None} | {
                process: lock.holder.token for (process, name), (_, lock) in self.held.items() if name == run
            }
            holder = current_holder(self.root / run)
            assert (holder and holder.token) == tokens[expected.holder]
            assert (found.holder is not None) == (expected.state == "running")

    @invariant()
    def no_run_has_two_holders(self) -> None:
        assert all(sum(name == run for _, name in self.held) <= 1 for run in self.expected)


@SIZES
def test_job_status_matches_a_model_of_runs(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_TRY_SECONDS", 0.0)
    run_state_machine_as_test(Runs, settings=size(10, stateful_step_count=20))
