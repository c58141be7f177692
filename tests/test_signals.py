"""Handling SIGTERM and SIGINT: reported in one line, deferred, ignored, and restored afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from rpr.signals import exit_on_signals, exit_on_sigterm, report_sigterm, signals_deferred, stop_before


def test_sigterm_is_reported_and_runs_cleanup(capsys: pytest.CaptureFixture[str]) -> None:
    cleaned_up = []

    @report_sigterm()
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned_up.append(True)

    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            work()
        assert stopped.value.code == 143 and signal.getsignal(signal.SIGTERM) == before
        assert capsys.readouterr().err == "rpr-cli: interrupted\n"
    assert cleaned_up == [True, True]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError()])
def test_other_errors_are_not_reported(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), report_sigterm():
        raise error
    assert capsys.readouterr().err == ""


def test_report_sigterm_has_no_effect_on_other_threads() -> None:
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
    """As in a terminal: a process that was started in the background ignores SIGINT."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_interrupts_at_once_or_after_deferral(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop, exit_on_signals():
        os.kill(os.getpid(), number)
        pytest.fail("not interrupted")
    assert stop.value.code == 128 + number
    written = False
    with pytest.raises(SystemExit) as stop, exit_on_signals():
        with signals_deferred():
            os.kill(os.getpid(), number)
            written = True
        pytest.fail("not interrupted after deferral")
    assert stop.value.code == 128 + number and written
    assert signal.getsignal(number) is before


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exit_on_signals():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_explains_errors_until_the_outermost_work_that_it_ended() -> None:
    """Of compiled code, which lose what they were raised from."""
    for _ in range(2):  # as of two commands in one process
        assert stop_before(RuntimeError()) is None
        with exit_on_sigterm():
            with pytest.raises(SystemExit), exit_on_sigterm():
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            stopped = stop_before(RuntimeError())
            assert isinstance(stopped, SystemExit) and stopped.code == 143
    assert stop_before(RuntimeError()) is None
