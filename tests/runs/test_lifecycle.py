"""The status of a run in its record; the default precision of float32 matrix products, by processor."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rpr.commands import train
from rpr.compose.composition import compose_train
from rpr.data import files
from rpr.data.cache import cache_key
from rpr.errors import ConfigError, DataError, RunError, TimeLimitReached
from rpr.model.positions import codes
from rpr.records.record import RECORD_NAME, read_record, write_record
from rpr.runs import lifecycle, locks, runtime
from rpr.sweep.status import print_cautions
from rpr.training import launch
from tests.fake_records import fake_record, make_run


@pytest.mark.parametrize("before, after", [("running", "interrupted"), ("finished", "finished")])
def test_the_time_limit_is_the_reason_unless_the_run_has_finished(tmp_path, before, after):
    """Though the process recorded its signal before, and its parent reports the end after that."""
    write_record(tmp_path / RECORD_NAME, fake_record(status=before))
    limit = TimeLimitReached("the SLURM time limit was reached")
    for error in (SystemExit(143), limit, RunError("the parent's report of it")):
        lifecycle.mark_stopped(tmp_path, error)
    record = read_record(tmp_path / RECORD_NAME)
    assert record.status == after
    assert before == "finished" or record.error == str(limit)


def test_the_rank_that_fails_first_gives_the_reason(tmp_path, monkeypatch):
    """The first rank then fails of the other's end, without words of its own, or gets torchrun's SIGTERM."""
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0)
    write_record(tmp_path / RECORD_NAME, fake_record(status="running"))
    failures = [("1", MemoryError()), ("2", RuntimeError("left alone")), ("0", SystemExit(143)), ("0", RuntimeError())]
    for rank, error in failures:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(train, "is_first_rank", lambda rank=rank: rank == "0")
        with pytest.raises(BaseException) as raised, train._failure_recorded(tmp_path):
            raise error
    record = read_record(tmp_path / RECORD_NAME)
    assert record.status == "failed" and record.error.startswith("rank 1: out of memory (MemoryError); use smaller")
    assert isinstance(raised.value, RunError) and str(raised.value) == record.error


def test_run_is_added_to_a_sweep_once(tmp_path):
    write_record(tmp_path / RECORD_NAME, fake_record(sweeps=["a"]))
    for sweep in ("b", "a", "b"):
        lifecycle.add_to_sweep(tmp_path, sweep)
    assert read_record(tmp_path / RECORD_NAME).sweeps == ("a", "b")


@pytest.mark.parametrize(
    "status, again, changed, stays",
    [
        ("interrupted", True, False, True),  # as with stop_after_minutes: the same command resumes it
        ("running", True, False, True),  # killed
        ("interrupted", True, True, False),
        ("interrupted", False, False, False),
        ("failed", True, False, True),  # of a full disk, a lost GPU: as well
        ("finished", True, False, False),
    ],
)
def test_again_sets_a_run_aside_but_for_one_that_it_began_itself(
    tmp_path, tiny_config, small_data, status, again, changed, stays
):
    run_dir, positions = tmp_path / "run", tiny_config().position
    run_dir.mkdir()
    schemes = codes((positions.encoder, positions.decoder)) | ({"vectors": "0"} if changed else {})
    earlier = fake_record(status=status).model_copy(update={"again": again, "schemes": schemes})
    write_record(run_dir / RECORD_NAME, earlier)
    (run_dir / locks.LOCK_NAME).touch()
    lifecycle.start_record(tiny_config("again=true"), "", run_dir, small_data)
    record, others = read_record(run_dir / RECORD_NAME), sorted(tmp_path.glob(".run.before-*/*"))
    assert (record.status, record.again, record.sweeps) == ("running", True, earlier.sweeps)
    assert [path.name for path in others] == ([] if stays else [RECORD_NAME])
    lifecycle.start_record(tiny_config(), "", run_dir, small_data)
    assert read_record(run_dir / RECORD_NAME).again, "resumed without the word"


def test_a_move_that_was_killed_goes_on(tmp_path, tiny_config, small_data, monkeypatch):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_record(run_dir / RECORD_NAME, fake_record())
    for name in ("log.txt", "z.txt"):
        run_dir.joinpath(name).touch()
    rename, moved = Path.rename, []

    def killed(path, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(rename(path, target))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        lifecycle.start_record(tiny_config("again=true"), "", run_dir, small_data)
    assert read_record(run_dir / RECORD_NAME).status == "finished", "it moves last"
    lifecycle.start_record(tiny_config("again=true"), "", run_dir, small_data)
    names = {path.name for path in tmp_path.glob(".run.before-*/*")}
    assert names == {RECORD_NAME, "log.txt", "z.txt"} and len([*tmp_path.glob(".run.before-*")]) == 1


@pytest.mark.parametrize("module, name", [(runtime, "check_devices"), (train, "_prepare")])
def test_run_stays_in_its_place_if_again_cannot_train_it(tiny_config, tmp_path, monkeypatch, module, name):
    run_dir = make_run(tiny_config(f"runs_dir={tmp_path}"), status="finished")
    monkeypatch.setattr(module, name, MagicMock(side_effect=ConfigError("no such device, or no corpus")))
    with pytest.raises(ConfigError, match="no such device"):
        train.run(tiny_config(f"runs_dir={tmp_path}", "again=true"), command="")
    assert [*tmp_path.iterdir()] == [run_dir] and read_record(run_dir / RECORD_NAME).status == "finished"


def test_a_split_that_is_not_there_is_refused_before_the_corpus_is_prepared(tmp_path, monkeypatch):
    for name in ("train.en", "train.de", "newstest.en", "newstest.de"):
        (tmp_path / name).write_text("a\n" * 9)
    monkeypatch.setattr("rpr.data.cache.prepare", lambda data, report: pytest.fail("prepared"))
    words = ["data=custom", f"data.path={tmp_path}", "model=tiny", "optim=tiny"]
    available = r"it has \(newstest, validation\), or \[\] to score nothing"
    with pytest.raises(DataError, match=rf"test_splits: custom has no newstets; choose splits that {available}"):
        train._prepare(compose_train([*words, "evaluation.test_splits=[newstest,newstets]"]))
    with pytest.raises(pytest.fail.Exception, match="prepared"):
        train._prepare(compose_train([*words, "evaluation.test_splits=[newstest,long]"]))


def trained_on(data):
    record = fake_record()
    return record.model_copy(update={"data": record.data.model_copy(update={"key": cache_key(data)})})


def test_finished_run_refuses_what_another_generator_makes(tiny_config, tmp_path, monkeypatch):
    for config in (tiny_config(), compose_train(["data=copy"])):
        generator = type(config.data.synthetic or config.data.task)
        record = trained_on(config.data)
        lifecycle.check_same_corpus(config, tmp_path, record)
        monkeypatch.setattr(generator, "VERSION", "new")
        with pytest.raises(ConfigError, match=f"^data: {config.data.name} has changed since"):
            lifecycle.check_same_corpus(config, tmp_path, record)


def test_finished_run_refuses_another_commit_of_the_hub_without_asking_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_call", lambda *arguments, **more: pytest.fail("asked the hub"))
    config, pins = compose_train(["data=wmt14_en_de", f"data.cache_dir={tmp_path}"]), tmp_path / "hub_revisions.json"
    pins.write_text(json.dumps({config.data.hub: "old"}))
    record = trained_on(config.data)
    lifecycle.check_same_corpus(config, tmp_path, record)
    pins.unlink()
    lifecycle.check_same_corpus(config, tmp_path, record)
    pins.write_text(json.dumps({config.data.hub: "new"}))
    with pytest.raises(ConfigError, match="^data: wmt14_en_de has changed since"):
        lifecycle.check_same_corpus(config, tmp_path, record)


def test_a_sweep_says_once_what_evaluation_reads_untrained(capsys):
    words = ["data=python_library", "model.architecture=decoder_only", "data.context_length=32", "position=learned"]
    words += ["evaluation.context_lengths=[64]", "optim=lm"]
    print_cautions([compose_train([*words, f"seed={seed}"]) for seed in (1, 2)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rpr-cli: warning: the learned positions from 32 on stay as they were initialised")
    assert line.endswith(" (2 of 2 jobs)")


POSITIONS, DISTANCES = "learned positions from 32 on", "learned vectors or biases of distances from 32 on"


@pytest.mark.parametrize("words, longest, never", [
    ("position=learned position.max_positions=4096", 4096, POSITIONS),
    ("position=learned position.max_positions=4096", 32, ""),
    ("position=relative position.clip_distance=33", 4096, DISTANCES),
    ("position=relative position.clip_distance=32", 4096, ""),  # whose row all farther distances share
    ("position=t5 position.max_distance=128 position.buckets=4", 4096, ""),
    ("position=t5 position.max_distance=128 position.buckets=32", 4096, DISTANCES),
    ("position=alibi", 4096, ""),
])  # fmt: skip
def test_what_evaluation_reads_as_it_was_initialised_is_named(words, longest, never):
    documents = ["data=python_library", "model.architecture=decoder_only", "data.context_length=32", "optim=lm"]
    config = compose_train([*documents, f"evaluation.context_lengths=[{longest}]", *words.split()])
    assert [never in line for line in lifecycle.untrained(config)] == [True] * bool(never)


@pytest.mark.parametrize("choice, flags, expected", [
    ("hardware=cpu", {"avx512f", "amx_bf16", "amx_tile"}, "medium"),
    ("hardware=cpu", {"avx512f", "avx512_bf16"}, "highest"),
    ("hardware=cpu", set(), "highest"),
    ("hardware=1xgpu", {"amx_bf16"}, "high"),
])  # fmt: skip
def test_matmul_precision(monkeypatch, choice, flags, expected):
    monkeypatch.setattr(runtime, "_of_cpuinfo", {"flags": " ".join(flags)}.get)
    assert runtime.matmul_precision(compose_train([choice]).hardware) == expected
    assert runtime.matmul_precision(compose_train([choice, "hardware.matmul_precision=medium"]).hardware) == "medium"
