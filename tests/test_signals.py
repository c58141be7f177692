"""Checked here: SIGTERM sent to this process while it works, reported in one line, and handled as before afterwards;
another end is left as it is; signals that are deferred until lines are whole.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from rpr.signals import Interrupts, report_sigterm


def test_sigterm_ends_in_order_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tidied = []

    @report_sigterm()
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            tidied.append(True)

    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            work()
        assert stopped.value.code == 143 and signal.getsignal(signal.SIGTERM) == before
        assert capsys.readouterr().err == "rpr-cli: interrupted\n"
    assert tidied == [True, True]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError()])
def test_other_ends_are_not_told(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), report_sigterm():
        raise error
    assert capsys.readouterr().err == ""


def test_off_the_main_thread_nothing_is_heard() -> None:
    found = []

    def work() -> None:
        with report_sigterm():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.fixture
def default_signals() -> Iterator[None]:
    """SIGINT and SIGTERM as a terminal's processes have them: one started in the background ignores the first."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_once_or_when_lines_are_whole(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop, Interrupts():
        os.kill(os.getpid(), number)
        pytest.fail("not heard")
    assert stop.value.code == 128 + number
    written = False
    with pytest.raises(SystemExit) as stop, Interrupts() as interrupts:
        with interrupts.deferred():
            os.kill(os.getpid(), number)
            written = True
        pytest.fail("not heard at the end")
    assert stop.value.code == 128 + number and written
    with pytest.raises(SystemExit), Interrupts() as interrupts, interrupts.deferred():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        pytest.fail("the second one was held back")
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
