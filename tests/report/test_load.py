"""A report of ten thousand runs: time, memory, and that every run is counted."""

import itertools
import json
import os
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_records import fake_by_length, fake_document, fake_interval, fake_score
from tests.processes import SCRIPT

# It takes 18 s of a CPU by itself, and 33 s beside a training on an older one; what is quadratic takes minutes.
SECONDS, BYTES = 60, 10**9
GROUPS, DISTANCES, SEEDS = 4, 31, 10
RELATIVE = ("relative", "relative_keys", "relative_values", "absolute_and_relative")


def documents() -> Iterator[dict[str, Any]]:
    draw = random.Random(1)
    tables = ("per_head", "shared_by_heads")
    variants = [(kind, k, sharing) for kind in RELATIVE for sharing in tables for k in range(DISTANCES)]
    variants += [(kind, 16, "per_head") for kind in ("absolute", "learned", "none")]
    all_steps = range(1000, 1000 * GROUPS + 1, 1000)
    for steps, (kind, k, sharing), seed in itertools.product(all_steps, variants, range(1, SEEDS + 1)):
        bleu = 20 + 2 * draw.random()
        scores = [
            fake_score(split, bleu, metric, interval=fake_interval(bleu - 1, bleu + 1))
            for metric in ("sacrebleu", "chrf", "bleu_tok", "bleu_tok_split")
            for split in ("test", "long", "validation")
        ]
        settings = {"position.tables": sharing, "optim.max_steps": steps}
        lengths = fake_by_length(40, 30, 20, 10)
        document = fake_document(kind, k, scores=scores, seed=seed, by_length=lengths, settings=settings)
        document["name"] += f"-{sharing}-{steps}"
        yield document


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_report_of_ten_thousand_runs_is_fast_and_small(tmp_path, capsys):
    count = 0
    for document in documents():
        run_dir = tmp_path / "runs" / f"{document['name']}-{document['run_id']}"
        run_dir.mkdir(parents=True)
        (run_dir / "record.json").write_text(json.dumps(document))
        rows = ({"step": at, "train/loss": 9 - at / 500, "validation/bleu": at / 50} for at in range(0, 500, 10))
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for part in ("sources", "references", "hypotheses"):
            (run_dir / f"test.{part}.txt").write_text("Ein Hund läuft mit einem Ball .\n" * 200)
        count += 1
    assert count > 10_000
    with (tmp_path / "output").open("wb") as output:
        command = [SCRIPT, "report", f"runs_dir={tmp_path}/runs", f"output_dir={tmp_path}/reports"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024  # of the CPU: other work does not count
    with capsys.disabled():
        print(f"\n{count:,} records: {seconds:.1f} s, {memory / 1e6:.0f} MB")
    text = (tmp_path / "output").read_text()
    assert os.waitstatus_to_exitcode(status) == 0 and "in the page" in text, text
    page = (tmp_path / "reports" / "all" / "index.html").read_text()
    assert f"{count:,} runs of {count // SEEDS:,} rows" in page
    assert seconds < SECONDS and memory < BYTES
