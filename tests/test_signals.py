"""Handling SIGTERM and SIGINT: reported in one line, deferred, ignored, and restored afterwards."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from rpr.signals import exit_on_sigterm, signals_deferred, stop_before


def test_sigterm_runs_cleanup_and_its_handler_is_restored():
    cleaned_up = []
    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        with pytest.raises(SystemExit, match="143"), exit_on_sigterm():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                cleaned_up.append(True)
        assert signal.getsignal(signal.SIGTERM) == before
    assert cleaned_up == [True, True]


def test_deferred_signal_acts_after_an_error():
    """Which may be of the signal's making, as when it went to all processes of a group. An ignored signal and SIGCHLD
    count less.
    """
    before = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: 1 / 0)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit, match="143"), exit_on_sigterm(), signals_deferred():
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
            deferred = True
            raise RuntimeError("a worker process died")
        assert deferred
        with pytest.raises(ZeroDivisionError), signals_deferred():
            os.kill(os.getpid(), signal.SIGCHLD)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signal_explains_errors_until_the_outermost_work_that_it_ended():
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


def test_other_threads_handle_no_signals():
    def work():
        with exit_on_sigterm():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == signal.getsignal(signal.SIGTERM)
