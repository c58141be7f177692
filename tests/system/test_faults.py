"""Checked here: a run that is killed by SIGKILL again and again, at random steps and while a checkpoint is being
written, against the same run left alone, bit for bit: weights, moments of Adam, metrics and scores; with one and two
ranks, with and without loader workers, with gradients accumulated. Then the disk that is full.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.config import TrainConfig
from rpr.results.record import Record, read_record
from rpr.runs.checkpoints import checkpoints, load_checkpoint

SCRIPT = Path(sys.executable).with_name("rpr-cli")
STEPS = 240
RECIPE = (
    f"optim.max_steps={STEPS}",
    "optim.warmup_steps=100",
    "optim.units_per_step=4",
    "optim.checkpoint_every_n_steps=3",
    "optim.keep_checkpoints=4",
    "optim.validate_every_n_steps=60",
    "hardware.threads=1",
    "evaluation.beam_size=2",
)
HARDWARE = [("cpu", 0), ("cpu", 2), ("2xcpu", 0), ("2xcpu", 2)]
KILLS = 5  # of each hardware: 20 in all


def finished(arguments: list[str], family: Any) -> None:
    process = family.train(*arguments)
    _, told = process.communicate(timeout=280)
    assert process.returncode == 0, told.decode()


def result(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Record]:
    """The last checkpoint, the metrics without what a clock decides, and the record."""
    step, path = checkpoints(run_dir / "checkpoints")[-1]
    assert step == STEPS
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in row.items() if k != "time" and "_per_second" not in k} for row in rows]
    return load_checkpoint(path), plain, read_record(run_dir / "record.json")


@pytest.fixture
def begun(
    tiny: list[str],
    tiny_config: Callable[..., TrainConfig],
    small_data: object,
    family: Any,
    wait_for: Callable[[Callable[[], bool], float], bool],
) -> Callable[[int], tuple[subprocess.Popen[bytes], Path]]:
    """Starts a run of so many steps, and waits for its first checkpoint: the process and the run's folder."""

    def begin(steps: int) -> tuple[subprocess.Popen[bytes], Path]:
        recipe = [
            f"optim.max_steps={steps}", "optim.checkpoint_every_n_steps=5", f"optim.validate_every_n_steps={steps}"
        ]  # fmt: skip
        config = tiny_config(*recipe)
        run_dir = Path(config.runs_dir) / config.run_dir_name
        process = family.train(*tiny, *recipe)
        assert wait_for(lambda: newest(run_dir) > 0, 60), process.communicate()
        return process, run_dir

    return begin


def newest(run_dir: Path) -> int:
    found = checkpoints(run_dir / "checkpoints")
    return found[-1][0] if found else 0


def killed_after(
    step: int,
    process: subprocess.Popen[bytes],
    run_dir: Path,
    family: Any,
    wait_for: Callable[[Callable[[], bool], float], bool],
    draw: random.Random,
    number: int,
) -> None:
    """Kill the command or one of its ranks, in turn, after a checkpoint of this step; every second time while the next
    one is written: its file has still another name.
    """
    assert wait_for(lambda: newest(run_dir) >= step or process.poll() is not None, 120)
    if number % 2:
        folder = run_dir / "checkpoints"
        wait_for(lambda: any(folder.glob(".step*.tmp")) or process.poll() is not None, 10)
    else:
        time.sleep(draw.uniform(0, 0.3))
    assert process.poll() is None, process.communicate()[1].decode()
    ranks = [pid for pid, line in family.living().items() if "-u -m rpr.commands.train" in line]
    os.kill(ranks[0] if ranks and number % 3 == 0 else process.pid, signal.SIGKILL)
    process.communicate()
    assert wait_for(lambda: not family.living(), 20), family.living()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("hardware, workers", HARDWARE)
def test_killed_at_random_moments(
    hardware: str,
    workers: int,
    tiny: list[str],
    tiny_config: Callable[..., TrainConfig],
    small_data: object,
    family: Any,
    wait_for: Callable[[Callable[[], bool], float], bool],
    assert_same: Callable[[Any, Any], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = [*tiny, *RECIPE, f"hardware={hardware}", f"hardware.num_workers={workers}"]
    config = tiny_config(*settings[len(tiny) :])
    runs = {name: Path(config.runs_dir).with_name(name) for name in ("whole", "killed")}
    finished([*settings, f"runs_dir={runs['whole']}"], family)
    command = [*settings, f"runs_dir={runs['killed']}"]
    run_dir = runs["killed"] / config.run_dir_name
    draw = random.Random(f"{hardware} {workers}")
    unfinished_writes = 0
    for number, target in enumerate(sorted(draw.sample(range(1, STEPS - 10), KILLS))):
        killed_after(target, family.train(*command), run_dir, family, wait_for, draw, number)
        unfinished_writes += any((run_dir / "checkpoints").glob(".step*.tmp"))
    finished(command, family)
    (one, rows, record), (other, other_rows, other_record) = (result(runs[n] / config.run_dir_name) for n in runs)
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert_same(one[part], other[part])
    assert rows == other_rows
    assert record.scores == other_record.scores
    with capsys.disabled():
        print(f"\n{hardware}, {workers} workers: {KILLS} kills survived, {unfinished_writes} of them within a write")
    before = (run_dir / "record.json").read_bytes()
    finished([f"run={run_dir}"], family)
    assert (run_dir / "record.json").read_bytes() == before


def test_the_same_run_by_its_folder(
    begun: Callable[[int], tuple[subprocess.Popen[bytes], Path]],
    family: Any,
    wait_for: Callable[[Callable[[], bool], float], bool],
) -> None:
    """`rpr-cli train run=...` goes on from the record alone, and a finished run is only told of."""
    process, run_dir = begun(400)
    process.kill()
    process.communicate()
    assert read_record(run_dir / "record.json").status == "running" and newest(run_dir) < 400
    assert wait_for(lambda: not family.living(), 10)
    moved = run_dir.with_name("moved")
    run_dir.rename(moved)
    finished([f"run={moved}"], family)
    assert read_record(moved / "record.json").status == "finished" and newest(moved) == 400
    assert not run_dir.exists()
    told = subprocess.run([SCRIPT, "train", f"run={moved}"], capture_output=True, text=True)
    assert told.returncode == 0 and "finished already on " in told.stderr
    for wrong, message in (
        (
            [f"run={moved}", "seed=2"],
            "run: seed=2 cannot be set for a run that goes on as it was begun; give run=... al",
        ),
        ([f"run={moved}-x"], "holds no record.json; give the folder of a run"),
    ):
        told = subprocess.run([SCRIPT, "train", *wrong], capture_output=True, text=True)
        assert told.returncode == 2 and message in told.stderr and told.stderr.count("\n") == 1


@pytest.mark.parametrize("how, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_stop(
    how: signal.Signals, code: int, begun: Callable[[int], tuple[subprocess.Popen[bytes], Path]]
) -> None:
    process, run_dir = begun(100_000)
    process.send_signal(how)
    _, told = process.communicate(timeout=30)
    assert process.returncode == code and b"Traceback" not in told, told.decode()
    assert told.decode().splitlines()[-1] == (
        "rpr-cli: interrupted; the same command again goes on from the last checkpoint"
    )
    record = read_record(run_dir / "record.json")
    assert (record.status, record.error) == (
        "failed",
        "interrupted; the same command goes on from the last checkpoint",
    )


def test_a_disk_that_is_full(
    tiny: list[str],
    tiny_config: Callable[..., TrainConfig],
    small_data: object,
    family: Any,
    assert_same: Callable[[Any, Any], None],
) -> None:
    """A limit on the size of files stands for it: the third checkpoint and those after it do not fit."""
    recipe = ["optim.max_steps=30", "optim.checkpoint_every_n_steps=5", "evaluation.test_splits=[]"]
    config = tiny_config(*recipe)
    run_dir = Path(config.runs_dir) / config.run_dir_name
    finished([*tiny, *recipe], family)
    found = checkpoints(run_dir / "checkpoints")
    expected = load_checkpoint(found[-1][1])
    for step, path in found:
        if step > 20:
            path.unlink()
    record = run_dir / "record.json"
    record.write_text(record.read_text().replace('"status": "finished"', '"status": "running"'))
    size = found[0][1].stat().st_size
    told = subprocess.run(
        [SCRIPT, "train", *tiny, *recipe],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)),
    )
    assert told.returncode == 2
    assert told.stderr.splitlines()[-1] == (
        f"rpr-cli: {run_dir}/checkpoints/step00000025.ckpt: this checkpoint cannot be written (File too large); the "
        "earlier ones are whole: mend that, and the same command goes on from the last of them"
    )
    left = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert left == [f"step{step:08d}.ckpt" for step in (10, 15, 20)] or left[-1] == "step00000020.ckpt"
    assert "Traceback" not in told.stderr and read_record(record).status == "failed"
    finished([*tiny, *recipe], family)
    assert_same(expected["state_dict"], load_checkpoint(checkpoints(run_dir / "checkpoints")[-1][1])["state_dict"])
