"""Checked here: SIGTERM sent to this process while it works, told in one line, and heard as before afterwards; another
end is left as it is.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rpr.runs.stopping import told_when_stopped


def test_sigterm_ends_in_order_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tidied = []

    @told_when_stopped()
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
    with pytest.raises(type(error)), told_when_stopped():
        raise error
    assert capsys.readouterr().err == ""


def test_off_the_main_thread_nothing_is_heard() -> None:
    found = []

    def work() -> None:
        with told_when_stopped():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
