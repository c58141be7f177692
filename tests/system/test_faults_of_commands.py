"""prepare, evaluate, export, report and translate, hit by a signal, a full disk, a limit on file sizes or a second
process: no partial file has a final name, and a repetition gives the files of an undisturbed command. Wrong file times
stop nothing.
"""

import itertools
import os
import random

import pytest

from tests.system.faults import CODES, Fault
from tests.system.workspace import KEPT, NAMES, assert_no_partial_files, temporary_files

FAST = {  # the fault of the fast test; the slow one has all kinds for each command
    "prepare files": "full", "evaluate": "SIGKILL", "export safetensors": "small", "report": "SIGTERM",
    "translate": "SIGINT",
}  # fmt: skip
DISK_ERRORS = {"full": "No space left on device", "small": "File too large"}
KILLS = {False: 5, True: 12}  # of each command, without and with an earlier result
OTHERS = {False: 1, True: 2}  # of each other kind
OUTPUT_BYTES = 2000  # at most; the output of a command goes to a file as well
ORDERLY = ("SIGTERM", "SIGINT", "full", "small")  # a command reports these


def assert_recovers(workspace, name, overwrite, fault):
    """Run with the fault, check what it leaves, and run again; the first result."""
    expected, result = workspace.expected(name, overwrite)
    before = workspace.restore(name, overwrite)
    hit = workspace.command(workspace.arguments[name], fault)
    where = (name, overwrite, fault, hit.err, hit.changes[-1:])
    if fault.kind != "small":
        assert len(hit.changes) >= fault.number, where
    assert hit.code == CODES[fault.kind] and "Traceback" not in hit.err, where
    # Random weights translate without an end, which is a warning.
    messages = [line for line in hit.err.splitlines() if line.startswith("rpr-cli: ") and " warning: " not in line]
    if name == "translate" and len(messages) == 2:  # the first says how many lines are there
        assert " lines were translated" in messages.pop(0), where
    assert len(messages) == (fault.kind in ORDERLY), where
    if fault.kind in ("SIGTERM", "SIGINT"):
        assert messages[0].startswith("rpr-cli: interrupted"), where
    found = workspace.snapshot()
    assert_no_partial_files(before, found, expected)
    if fault.kind in ORDERLY:
        assert not temporary_files(found, KEPT), where
    done = workspace.command(workspace.arguments[name])
    assert (done.code, done.out.count("\n")) == (0, result.out.count("\n")), (where, done.err)
    workspace.assert_contains(expected, where)
    return hit


@pytest.mark.parametrize("name, kind", FAST.items())
def test_command_recovers_from_a_fault(name, kind, workspace):
    """With an earlier result, which the command replaces."""
    hit = assert_recovers(workspace, name, True, draw_fault(kind, workspace, name, True, random.Random(name)))
    assert DISK_ERRORS.get(kind, "") in hit.err


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_commands_recover_from_faults_at_many_disk_changes(workspace):
    for name, overwrite in itertools.product(NAMES, (False, True)):
        draw = random.Random(f"{name} {overwrite}")
        _, result = workspace.expected(name, overwrite)
        every = range(1, len(result.changes) + 1)
        faults = {Fault("SIGKILL", number) for number in draw.sample(every, min(KILLS[overwrite], len(every)))}
        faults |= {
            draw_fault(kind, workspace, name, overwrite, draw) for kind in ORDERLY for _ in range(OTHERS[overwrite])
        }
        for fault in sorted(faults, key=lambda fault: (fault.kind, fault.number)):
            assert_recovers(workspace, name, overwrite, fault)


def draw_fault(kind, workspace, name, overwrite, draw):
    """A fault of this kind at a random change; for a full disk, at one that needs space."""
    expected, result = workspace.expected(name, overwrite)
    if kind == "small":
        before = workspace.restore(name, False)
        largest = max(len(expected[path] or b"") for path in expected.keys() - before.keys())
        return Fault(kind, draw.randrange(min(OUTPUT_BYTES, largest // 2), largest))
    changes = [number for number, change in enumerate(result.changes, start=1) if kind != "full" or "open " in change]
    return Fault(kind, draw.choice(changes))


def test_changed_file_times_do_not_rebuild_cache(workspace):
    """New times of corpus files only make their digests be computed again."""
    name = "prepare files"
    workspace.restore(name, False)
    assert workspace.command(workspace.arguments[name]).code == 0
    before = workspace.snapshot()
    for seconds in (-1e8, 2e8):  # to the past, to the future
        for path in [*workspace.home.rglob("prepared/**/*"), *workspace.home.glob("corpus/*")]:
            os.utime(path, (path.stat().st_mtime + seconds,) * 2)
        done = workspace.command(workspace.arguments[name])
        assert done.code == 0 and "already prepared: opened in" in done.out
        assert not [change for change in done.changes if "/prepared/" in change]
        assert workspace.snapshot() == before


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "prepare files" else pytest.mark.slow) for name in NAMES]
)
def test_concurrent_commands_give_one_result(name, workspace, wait_for):
    """Both succeed; only of two translations into one file is the second refused."""
    expected, _ = workspace.expected(name, True)
    workspace.restore(name, True)
    first = workspace.server.start(workspace.arguments[name], workspace.home, patch="slow_disk")
    assert wait_for(lambda: len(first.changes()) > 0, 20)
    second = workspace.server.start(workspace.arguments[name], workspace.home, patch="slow_disk")
    for command in (first, second):
        result = command.wait()
        lines = (line for line in result.err.splitlines() if line.startswith("rpr-cli: "))
        messages = [line for line in lines if not line.startswith("rpr-cli: warning: input ")]  # of cut translations
        if name == "translate" and command is second:
            assert result.code == 2 and messages[0].startswith("rpr-cli: output: another process is writing ")
            continue
        assert result.code == 0 and "Traceback" not in result.err and len(messages) <= 1, result.err
        assert all(line.endswith("; waiting for it") for line in messages)
    workspace.assert_contains(expected, name)
