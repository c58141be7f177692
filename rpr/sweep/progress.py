"""Progress of a sweep, read from its runs' own files: a bar on a terminal, and everywhere a line at the end of each
job, with the time left.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Sequence

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
    """Within this context, follows the jobs of a sweep on a thread of its own, which only reads files and prints."""

    def __init__(self, sweep: str, jobs: Sequence[Job]) -> None:
        self._name, self._jobs = f"sweep {sweep}", [_JobProgress(job) for job in jobs]
        self._steps, done = sum(job.steps for job in self._jobs), sum(job.step for job in self._jobs)
        self._bar = Progress(self._steps, "steps", self._name, done=done, lines="none")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweep progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            self._poll()
        self._bar.close()

    def _follow(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        ended = [job for job in self._jobs if not job.ended and job.poll()]
        done = [job for job in self._jobs if job.record is not None and job.record.status in ("finished", "failed")]
        jobs = f"{len(done)} of {len(self._jobs)}"
        self._bar.reach(sum(job.step for job in self._jobs), self._steps, jobs=jobs)
        left = f", {self._bar.left}" if self._bar.left else ""
        for job in ended:
            assert job.record is not None
            finished = job.record.status == "finished"
            line = f"{self._name}: {job.run_dir.name}: {job.record.outcome}"
            if finished:
                line = f"{headline(job.record)}: {shown_path(job.run_dir)}"
            with above_bars(), contextlib.suppress(OSError):  # a closed pipe is reported at the end
                line = f"{escape_control_characters(line)} ({jobs} jobs{left})"
                print(line, file=sys.stdout if finished else sys.stderr, flush=True)


class _JobProgress:
    """One job: its `step` of `steps`, and its record once it has started, which a job first writes."""

    def __init__(self, job: Job) -> None:
        self.run_dir, self.steps, self.ended = job.run_dir, job.config.optim.max_steps, False
        self.record: Record | None = None
        self._earlier = self._record_written()
        self.step = 0 if job.config.again else self._last_step()  # whose old file is set aside

    def poll(self) -> bool:
        """Read its files; returns whether it has ended."""
        if self._record_written() == self._earlier:
            return False
        with contextlib.suppress(RecordError):
            self.record = read_record(self.run_dir / RECORD_NAME)
        self.ended = self.record is not None and self.record.status != "running"
        self.step = self.steps if self.ended else self._last_step()  # nothing is left to do
        return self.ended

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
