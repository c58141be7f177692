"""Loader workers that get a signal, and batches that cannot be sent."""

import multiprocessing.util
import os
import signal
import tempfile
import time

import pytest
from torch.utils.data import DataLoader

from rpr.data.workers import set_up_loader_worker, shorten_socket_paths
from rpr.signals import stop_before


def loader(items):
    return DataLoader(items, batch_size=None, num_workers=1, worker_init_fn=set_up_loader_worker, timeout=60)


def test_sigterm_leaves_workers_to_the_main_process():
    batches = iter(loader(list(range(50))))
    assert next(batches) == 0
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGTERM)
    time.sleep(0.1)
    assert list(batches) == list(range(1, 50))


def test_batch_that_cannot_be_sent_ends_the_wait(capfd):
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid"):
        next(iter(loader([lambda: None])))
    assert time.monotonic() - started < 30
    assert "rpr-cli: a loader worker cannot send a batch (" in capfd.readouterr().err


def test_sockets_are_in_tmp_if_tmpdir_is_too_long_for_them(monkeypatch, tmp_path):
    folder = tmp_path / (100 * "x")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delitem(multiprocessing.current_process()._config, "tempdir", raising=False)
    shorten_socket_paths()
    assert os.path.dirname(multiprocessing.util.get_temp_dir()) == "/tmp" and tempfile.gettempdir() == str(folder)


@pytest.mark.parametrize("stop", [SystemExit(143), KeyboardInterrupt()])
def test_error_of_a_stop_is_that_stop(stop):
    with pytest.raises(RuntimeError) as caught:
        try:
            raise stop
        finally:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")
    assert stop_before(caught.value) is stop
    assert stop_before(RuntimeError("alone")) is None
