"""Progress of a sweep, read from its runs' own files: a bar on a terminal, and everywhere a line at the end of each
job, with the time left.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from rpr.commands.printing import headline
from rpr.errors import RecordError
from rpr.io.escape import escape_control_characters
from rpr.paths import shown_path
from rpr.progress import Progress, above_bars
from rpr.records.record import METRICS_NAME, RECORD_NAME, Record, read_record
from rpr.sweep.status import Job

POLL_SECONDS = 1.0
_TAIL_BYTES = 20_000


class SweepProgress:
    """Within this context, follows the jobs of a sweep on a thread of its own."""

    def __init__(self, sweep: str, jobs: Sequence[Job]) -> None:
        self._name = f"sweep {sweep}"
        self._jobs = [_JobProgress(job) for job in jobs]
        self._bar = Progress(sum(job.steps for job in self._jobs), "steps", self._name, done=self._done, lines="none")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweep progress", daemon=True)

    @property
    def _done(self) -> int:
        return sum(job.step for job in self._jobs)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()  # it only reads files and prints
        if error is None:
            self._poll()
        self._bar.close()

    def _follow(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        ended = [job for job in self._jobs if not job.ended and job.poll()]
        jobs = f"{sum(job.is_done for job in self._jobs)} of {len(self._jobs)}"
        self._bar.reach(self._done, sum(job.steps for job in self._jobs), jobs=jobs)
        left = f", {self._bar.left}" if self._bar.left else ""
        for job in ended:
            assert job.record is not None
            with above_bars(), contextlib.suppress(OSError):  # a closed pipe is reported at the end
                if job.record.status == "finished":
                    where = escape_control_characters(str(shown_path(job.run_dir)))
                    print(f"{headline(job.record)}: {where} ({jobs} jobs{left})", flush=True)
                else:
                    why = escape_control_characters(f"{job.run_dir.name}: {job.record.outcome}")
                    print(f"{self._name}: {why} ({jobs} jobs{left})", file=sys.stderr, flush=True)


class _JobProgress:
    """One job: its `step` of `steps`, and its record once it has started."""

    def __init__(self, job: Job) -> None:
        self.run_dir, self.steps, self.step, self.ended = job.run_dir, job.config.optim.max_steps, 0, False
        self.record: Record | None = None
        self._written = self._record_written()  # before this sweep started
        if not job.config.again:  # whose old file is set aside
            self._read_step()

    @property
    def is_done(self) -> bool:
        """Whether it has ended by itself; one that was interrupted is to be continued."""
        return self.ended and self.record is not None and self.record.status != "interrupted"

    def poll(self) -> bool:
        """Read its files; returns whether it has ended since the last time. A job first writes its record."""
        if (written := self._record_written()) != self._written:
            self._written = written
            with contextlib.suppress(RecordError):
                self.record = read_record(self.run_dir / RECORD_NAME)
        if self.record is None:
            return False
        self._read_step()
        self.ended = self.record.status != "running"
        if self.record.status == "finished":
            self.step = self.steps
        elif self.ended:  # nothing left to do, without the steps that it did not take
            self.steps = self.step
        return self.ended

    def _record_written(self) -> int | None:
        try:
            return (self.run_dir / RECORD_NAME).stat().st_mtime_ns
        except OSError:
            return None

    def _read_step(self) -> None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # reported when the run is read
            with (self.run_dir / METRICS_NAME).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                *lines, _ = file.read().split(b"\n")  # the last line may not be whole yet
            self.step = min(json.loads(lines[-1])["step"], self.steps)
