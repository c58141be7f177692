"""`rpr-cli` started with all their descendants known."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

SCRIPT = Path(sys.executable).with_name("rpr-cli")


class ProcessTree:
    """The command and all its descendants, recognised by a variable in their environment."""

    def __init__(self) -> None:
        self.mark = f"RPR_TEST_MARK={uuid4().hex}"

    def start(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
        """Start `rpr-cli`, with Ctrl-C enabled also where the tests themselves run in the background."""
        name, value = self.mark.split("=")
        return subprocess.Popen(
            [SCRIPT, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", name: value, **environment},
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def finish(self, *arguments: str) -> str:
        """Run `rpr-cli`, which must end well; its stderr."""
        process = self.start(*arguments)
        err = process.communicate(timeout=280)[1].decode()
        assert process.returncode == 0, err
        return err

    def alive(self) -> dict[int, str]:
        """The command line of each living process, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() not in (folder / "environ").read_bytes():
                    continue
                if ") Z " in (folder / "stat").read_text():  # a zombie
                    continue
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # it ended meanwhile
                continue
        return found

    def find(self, words: str) -> int:
        """The id of a process whose command line contains these words."""
        return next(pid for pid, line in self.alive().items() if words in line)

    def kill(self) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
