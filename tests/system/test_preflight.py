"""fast_dev_run=true: what it prints; that nothing of it stays, however it ends."""

import signal
from types import SimpleNamespace

import pytest
import torch

from tests.lazy import preflight

ROWS = ["peak memory", "speed", "whole training", "disk", "resumed", "evaluation"]


def test_prints_its_table_and_leaves_nothing(tiny, small_data, tmp_path, cli):
    """A line for each row below the head, and an empty place where the runs would be."""
    printed = cli("train", *tiny, "fast_dev_run=true", "hardware.threads=1").out
    lines = printed.splitlines()
    first = next(at for at, line in enumerate(lines) if ": 20 steps of " in line)
    assert [line[2:16].rstrip() for line in lines[first + 1 : first + 7]] == ROWS
    assert "3,200 steps in " in printed and "5 checkpoints of " in printed and "10 sentences of test" in printed
    assert "  resumed         the weights of a training never stopped\n" in printed
    assert not (tmp_path / "runs").exists()


def test_documents_are_read_instead(tiny, tmp_path, cli):
    (tmp_path / "text.txt").write_text("as read, so scored\n" * 200)
    text = [word for word in tiny if not word.startswith(("data.synthetic", "data.vocab"))]
    text += ["data=text", f"data.path={tmp_path / 'text.txt'}", "model.architecture=decoder_only", "fast_dev_run=true"]
    assert "1,024 tokens of test read" in cli("train", *text, "data.context_length=32", "hardware.threads=1").out


def test_a_wrong_resume_is_an_error(tiny, small_data, tmp_path, cli, monkeypatch):
    def fit(config, data, run_dir):
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        for step in (10, 20):
            weights = {"model.weight": torch.full((2,), 0.5 * run_dir.name.startswith("resumed"))}
            torch.save({"state_dict": weights}, run_dir / "checkpoints" / f"step{step:08d}.ckpt")
        return 20, 2, None

    monkeypatch.setattr(preflight, "fit", SimpleNamespace(fit=fit))
    err = cli("train", *tiny, "fast_dev_run=true", code=2).err
    assert "a resumed training has other weights, by up to 0.5" in err and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tiny, small_data, tmp_path, processes, wait_for):
    process = processes.start("train", *tiny, "fast_dev_run=true", "hardware=2xcpu", "optim.microbatches_per_step=2")
    assert wait_for(lambda: bool(list(tmp_path.glob("runs/.preflight-*/checkpoints/*.ckpt"))), 200), process.poll()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not (tmp_path / "runs").exists()
