"""A decoder-only run of a task in every command: training stopped and resumed, verified, scored, compared, exported,
translated with and reported.
"""

import json
import sys
from pathlib import Path

from rpr.records.record import read_record
from tests.conftest import TINY_MODEL
from tests.system.trainings import last_weights

TASK = (
    *TINY_MODEL[:1], *TINY_MODEL[2:], "model.architecture=decoder_only", "model.activation=gelu",
    "data=copy", "data.task.max_train_length=3", "data.task.max_long_length=5",
    "data.task.num_train=400", "evaluation.bootstrap_samples=0", "data.task.num_validation=20",
    "data.task.num_test=20", "data.task.num_long=20",
    "position=relative", "optim.max_steps=12", "optim.warmup_steps=5", "optim.schedule=cosine",
    "optim.learning_rate_scale=null", "optim.learning_rate=0.01", "optim.weight_decay=0.1",
    "optim.checkpoint_every_n_steps=4", "optim.validate_every_n_steps=12", "optim.average_checkpoints=1",
    "hardware.threads=1",
)  # fmt: skip


def test_every_command_works_on_a_decoder_only_run(tmp_path, monkeypatch, cli, assert_same, unrendered):
    monkeypatch.chdir(tmp_path)

    def command(*words, code=0):
        return "".join(cli(*words, code=code))

    command("train", *TASK, "runs_dir=whole")
    command("train", *TASK, "runs_dir=cut", "stop_after_minutes=1e-9", code=2)
    command("train", *TASK, "runs_dir=cut")
    whole, cut = (next(Path(root).glob("*/record.json")).parent for root in ("whole", "cut"))
    record = read_record(whole / "record.json")
    assert whole.name == cut.name == f"copy-tiny-decoder-only-relative-k16-s1-{record.run_id}"
    assert record.scores and record.scores == read_record(cut / "record.json").scores
    assert_same(last_weights(cut), last_weights(whole))

    run, out = f"run={whole}", ("hardware.threads=1",)
    checks = json.loads(command("verify", run, "sentences=2", "format=json", *out))["checks"]
    outcomes = {check["name"]: check["outcome"] for check in checks}
    assert {outcomes.pop(f"export, {kind}") for kind in ("ctranslate2", "transformers")} == {"not applicable"}
    assert {*outcomes.values()} == {"passed"}
    assert "exact_match" in command("evaluate", run, *out)
    refused = command("export", run, "format=ctranslate2", *out, code=2)
    assert "has a table for each head, CTranslate2 one for a layer" in refused
    assert "identical" in command("export", run, "format=safetensors", "sentences=4", *out)
    Path("in.txt").write_text("1 2\n3\n")
    exported = whole / "exports" / "safetensors"
    written = [command("translate", f"run={folder}", "input=in.txt", *out) for folder in (whole, exported)]
    assert written[0] == written[1]
    greedy = command("translate", run, "input=in.txt", "beam_size=1", *out).split("rpr-cli: warning")[0]
    with Path("in.txt").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert command("generate", run, *out) == greedy
    lines = command("generate", run, "prompt=1 2", "temperature=1", "num_samples=3", "format=json", *out).splitlines()
    samples = [(sample["prompt"], sample["sample"]) for sample in map(json.loads, lines)]
    assert samples == [("1 2", number) for number in range(3)]
    assert "positions.svg" in command("report", run, *out)
    assert "exact match" in command("compare", str(whole), str(cut), "metrics=[exact_match]", "samples=100")


def test_examples_without_a_right_answer_are_refused(tmp_path, monkeypatch, cli):
    """Exact match by length would be 0 from some length on, whatever was learned."""
    monkeypatch.chdir(tmp_path)
    for task, settings, refusal in (
        ("duplicate", "evaluation.max_extra_length=4", "evaluation.max_extra_length: 4 cuts off right answers of long"),
        ("duplicate", "evaluation.min_length=9", "evaluation.min_length: 9 rules out right answers of test, with"),
        ("symbols_copy", "data.task.symbols=300 data.task.min_length=1", "data.vocabulary_size: "),
    ):
        words = [word.replace("data=copy", f"data={task}") for word in TASK]
        assert cli("train", *words, *settings.split(), code=2).err.splitlines()[-1].startswith(f"rpr-cli: {refusal}")
    assert not Path("runs").exists()
