"""Checked here: prepare, evaluate, export, report and translate, hit at a change that they make on the disk: by
SIGKILL, SIGTERM or Ctrl-C, by a disk that is full, by files that cannot grow, and by a second process that does the
same. Then nothing lies half written under its final name, one line tells what there is to tell, and the same command
again gives, byte for byte, what one left alone gives, without a file more. No file of these commands holds a time.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.system.conftest import WaitFor
from tests.system.faulted_world import KEPT, NAMES, World, assert_whole, left_over
from tests.system.faults import Fault

FAST = ("prepare files", "evaluate", "export safetensors", "export ctranslate2", "report", "translate")
AT_ONCE = ("prepare files", "translate")
KILLS = {False: 4, True: 10}  # of each command: where there is no earlier result, and where there is one
OTHERS = {False: 1, True: 2}  # of each other kind
FAULTS = 150  # at least, in the slow test
WORDS = 2000  # bytes that a command may say: they go to a file as well
CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full": 2, "small": 2}  # exit codes
ORDERLY = ("SIGTERM", "SIGINT", "full", "small")  # after which a command tells what there is to tell


def survive(world: World, name: str, again: bool, fault: Fault) -> None:
    """The fault, all that must hold afterwards, and the same command again."""
    expected, alone = world.expected(name, again)
    before = world.restore(name, again)
    ended = world.command(world.arguments[name], fault)
    where = (name, again, fault, ended.err, ended.changes[-1:])
    if fault.kind != "small":
        assert len(ended.changes) >= fault.number, where  # it came
    assert ended.code == CODES[fault.kind] and "Traceback" not in ended.err, where
    told = [line for line in ended.err.splitlines() if line.startswith("rpr-cli: ")]
    if name == "translate" and len(told) == 2:  # first where the lines are that were translated
        assert " lines were translated in " in told.pop(0), where
    assert len(told) == (fault.kind in ORDERLY), where
    if fault.kind in ("SIGTERM", "SIGINT"):
        assert told[0].startswith("rpr-cli: interrupted"), where
    found = world.now()
    assert_whole(before, found, expected)
    if fault.kind in ORDERLY:
        assert not left_over(found, KEPT), where
    done = world.command(world.arguments[name])
    assert (done.code, done.out.count("\n")) == (0, alone.out.count("\n")), (where, done.err)
    assert world.now() == expected, (where, {key for key in expected if world.now().get(key) != expected[key]})


@pytest.mark.parametrize("name, kind", [*zip(FAST, itertools.cycle(ORDERLY), strict=False)])
def test_a_kill_and_a_fault_that_is_told(name: str, kind: str, world: World) -> None:
    """In the place of an earlier result."""
    draw = random.Random(name)
    survive(world, name, True, drawn("SIGKILL", world, name, True, draw))
    survive(world, name, True, drawn(kind, world, name, True, draw))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_faults_at_many_changes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    survived = 0
    for name, again in itertools.product(NAMES, (False, True)):
        draw = random.Random(f"{name} {again}")
        _, alone = world.expected(name, again)
        every = range(1, len(alone.changes) + 1)
        faults = {Fault("SIGKILL", number) for number in draw.sample(every, min(KILLS[again], len(every)))}
        faults |= {drawn(kind, world, name, again, draw) for kind in ORDERLY for _ in range(OTHERS[again])}
        for fault in sorted(faults, key=lambda fault: (fault.kind, fault.number)):
            survive(world, name, again, fault)
        survived += len(faults)
    assert survived >= FAULTS
    with capsys.disabled():
        print(f"\n{survived} faults survived by {len(NAMES)} commands")


def drawn(kind: str, world: World, name: str, again: bool, draw: random.Random) -> Fault:
    """A fault of this kind at some change; where the disk is full, at one that needs space."""
    expected, alone = world.expected(name, again)
    if kind == "small":
        before = world.restore(name, False)
        largest = max(len(expected[path] or b"") for path in expected.keys() - before.keys())
        return Fault(kind, draw.randrange(min(WORDS, largest // 2), largest))
    changes = [number for number, change in enumerate(alone.changes, start=1) if kind != "full" or "open " in change]
    return Fault(kind, draw.choice(changes))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in AT_ONCE else pytest.mark.slow) for name in NAMES]
)
def test_two_at_once(name: str, world: World, wait_for: WaitFor) -> None:
    """Both come to the same end; one has waited, or what they wrote is the same. Of two translations into one file the
    second is refused.
    """
    expected, _ = world.expected(name, True)
    world.restore(name, True)
    first = world.starter.start(world.arguments[name], world.home, patch="slow_disk")
    assert wait_for(lambda: len(first.changes()) > 0, 20)
    second = world.starter.start(world.arguments[name], world.home, patch="slow_disk")
    for one in (first, second):
        ended = one.ended()
        told = [line for line in ended.err.splitlines() if line.startswith("rpr-cli: ")]
        if name == "translate" and one is second:
            assert ended.code == 2 and told[0].startswith("rpr-cli: output: another process is writing ")
            continue
        assert ended.code == 0 and "Traceback" not in ended.err and len(told) <= 1, ended.err
        assert all(line.endswith("; waiting for it") for line in told)
    assert world.now() == expected
