"""Large numbers: translating 100,000 lines."""

import os
import random
import subprocess

import pytest

from tests.processes import SCRIPT

LINES, REPEATED = 10_000, 10


def translated(random_run, source, target):
    """Run `rpr-cli translate`; its peak memory in bytes."""
    words = [f"run={random_run}", f"input={source}", f"output={target}", "lines_per_batch=250", "beam_size=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([SCRIPT, "translate", *words, "hardware.threads=1"], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return 1024 * used.ru_maxrss


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_translate_memory_does_not_grow_with_input(random_run, small_data, tmp_path):
    words = sorted({word for line in small_data.text("test")[0] for word in line.split()})
    chance = random.Random(1)
    lines = {}
    while len(lines) < LINES:
        lines[" ".join(chance.choices(words, k=chance.randint(1, 4)))] = None
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "few").write_text(text)
    (tmp_path / "many").write_text(REPEATED * text)
    few, many = (translated(random_run, tmp_path / name, tmp_path / f"{name}.out") for name in ("few", "many"))
    once = (tmp_path / "few.out").read_text()
    assert once.count("\n") == LINES and len({*once.splitlines()}) > 500  # so that misplaced lines would differ
    assert (tmp_path / "many.out").read_text() == REPEATED * once
    assert many < few + 2**24, (few, many)  # less than the size of the lines
