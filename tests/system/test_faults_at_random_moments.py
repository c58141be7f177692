"""Checked here: every command that takes long, as it is typed, hit at random moments between its start and its end, and
while it writes: by SIGKILL, SIGTERM, Ctrl-C. No process lives on, nothing lies half written under its final name, one
line tells of a signal that can be heard, and the same command again gives what one left alone gives. Training is in
tests/system/test_faults.py.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.system.conftest import Family, WaitFor
from tests.system.faulted_world import UNFINISHED, World, assert_whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMANDS = ("prepare", "evaluate", "export safetensors", "export ctranslate2", "report", "translate")
MOMENTS = ("SIGKILL", "SIGKILL", "SIGKILL while it writes", "SIGTERM", "SIGINT")
TRIES = 30  # for one fault: the command may end before it comes
CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


def listens(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM, and so has begun its work."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def hit(
    process: subprocess.Popen[bytes], moment: str, folder: Path, seconds: float, draw: random.Random, wait_for: WaitFor
) -> signal.Signals | None:
    """Send the signal at a moment of the `seconds` that the command takes; None where it had ended already."""
    sign, began = signal.Signals[moment.split()[0]], time.monotonic()
    if "writes" in moment:
        wait_for(lambda: process.poll() is not None or unfinished(folder), 60)
    elif sign == signal.SIGKILL:
        time.sleep(draw.uniform(0, seconds))
    else:  # before, it has nothing open, and ends as any process does
        wait_for(lambda: process.poll() is not None or listens(process.pid), 60)
        time.sleep(max(0.0, draw.uniform(0, seconds - (time.monotonic() - began))))
        if not listens(process.pid):
            return None
    if process.poll() is not None:
        return None
    process.send_signal(sign)
    return sign


def unfinished(folder: Path) -> bool:
    return any(path.name.endswith(UNFINISHED) for path in folder.rglob("*"))


def assert_told(sign: signal.Signals, process: subprocess.Popen[bytes], told: bytes) -> None:
    lines = [line for line in told.decode().splitlines() if line.startswith("rpr-cli: ")]
    assert process.returncode == CODES[sign] and b"Traceback" not in told, (sign, process.returncode, told.decode())
    assert len(lines) == (sign != signal.SIGKILL) and all("rpr-cli: interrupted" in line for line in lines), lines


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name: str, world: World, family: Family, wait_for: WaitFor) -> None:
    draw = random.Random(name)
    expected, _ = world.expected(name, True)
    world.restore(name, True)
    began = time.monotonic()
    assert family.start(*world.arguments[name]).wait(120) == 0
    seconds = time.monotonic() - began
    for moment in MOMENTS:
        for _ in range(TRIES):
            before = world.restore(name, True)
            process = family.start(*world.arguments[name])
            sign = hit(process, moment, world.home, seconds, draw, wait_for)
            _, told = process.communicate(timeout=60)
            found = world.now()
            if sign is not None and process.returncode != 0 and found != expected:
                break
        else:
            pytest.fail(f"{name} always ended before {moment}")
        assert_told(sign, process, told)
        assert wait_for(lambda: not family.living(), 20), family.living()
        assert_whole(before, found, expected)
        done = world.command(world.arguments[name])
        assert done.code == 0, done.err
        assert world.now() == expected, (moment, {key for key in expected if world.now().get(key) != expected[key]})
