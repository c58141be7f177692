"""Runs that start from the weights of a finished one with other positions: what they take and their records say, that
they resume exactly, and which are refused.
"""

import shutil
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.records.record import read_record
from rpr.runs.loading import checkpoints
from tests.conftest import TINY
from tests.fake_records import fake_score
from tests.system.bad_files import update_record
from tests.system.conftest import FOUR_STEPS
from tests.system.trainings import last_weights

LAST = "optim.average_checkpoints=1"
STILL = (
    "optim.max_steps=1", "optim.checkpoint_every_n_steps=1", "optim.validate_every_n_steps=1",
    "optim.learning_rate_scale=1e-30",  # no weight moves
)  # fmt: skip


@pytest.fixture(scope="module")
def rope(small_run):
    return small_run("position=rope", LAST)


@pytest.fixture
def continued(tmp_path, cache_dir, capfd):
    """Trains a run; its folder and stderr."""

    def run(*overrides):
        folders = (f"data.cache_dir={cache_dir}", f"runs_dir={tmp_path / 'continued'}")
        before = {*tmp_path.glob("continued/*/record.json")}
        capfd.readouterr()
        assert app.main(["train", *TINY, *FOUR_STEPS, LAST, *folders, *overrides]) == 0
        (path,) = {*tmp_path.glob("continued/*/record.json")} - before
        return path.parent, capfd.readouterr().err

    return run


def record(run_dir):
    return read_record(run_dir / "record.json")


def validation_loss(run_dir):
    return record(run_dir).training.validation_loss


YARN = ("position=rope", "position.scaling=yarn", "position.scaling_factor=4", "position.trained_length=8")


@pytest.mark.parametrize("position, said", [
    (("position=rope",), "from RUN (RoPE); dropped: none; new: none\n"),  # goes on where the run ended
    ((*YARN, "position.base=500"), "dropped: none; new: none; position.base = 500.0, not 10000.0 as there"),
], ids=["rope", "yarn"])  # fmt: skip
def test_positions_without_parameters_take_all(position, said, rope, continued, assert_same):
    run_dir, err = continued(f"from={rope}", *position, *STILL)
    assert_same(last_weights(run_dir), last_weights(rope))
    assert (validation_loss(run_dir) == validation_loss(rope)) == (position == ("position=rope",))
    assert said.replace("RUN", str(rope)) in err
    origin = record(run_dir).config["origin"]
    assert (origin["run"], origin["run_id"], len(origin["weights"])) == (str(rope), record(rope).run_id, 64)
    assert "-from-" in run_dir.name


def test_other_parameters_are_dropped_and_new_by_name_and_shared_tables_are_taken_by_each_layer(small_run, continued):
    layers = ("model.num_layers=2", LAST)
    shared = small_run("position=relative_keys", *layers, "position.tables=shared_by_heads_and_layers")
    relative, _ = continued(
        f"from={shared}", *layers, "position=relative_keys", "position.tables=shared_by_heads", *STILL
    )
    assert (record(relative).dropped_parameters, record(relative).new_parameters) == ((), ())
    its = last_weights(relative)
    tables = [weight for name, weight in its.items() if "decoder." in name and "tables" in name]
    assert len(tables) == 2 and tables[0].equal(tables[1])
    run_dir, err = continued(f"from={relative}", "position=t5", *layers, *STILL)
    fresh, _ = continued("position=t5", *layers, *STILL)
    inherited, untrained = record(run_dir), last_weights(fresh)
    stacks = ("encoder", "decoder")
    assert {*inherited.dropped_parameters} == {
        f"{stack}.{layer}.self_attention.tables.keys" for stack in stacks for layer in (0, 1)
    }
    assert {*inherited.new_parameters} == {f"{stack}.0.self_attention.tables.buckets" for stack in stacks}
    for name, weight in last_weights(run_dir).items():
        assert weight.equal((untrained if "tables" in name else its)[name]), name
    assert "dropped: encoder.*.self_attention.tables.keys, decoder.*.self_attention.tables.keys; new: " in err


def test_resumed_run_equals_one_never_stopped_without_the_first_which_a_rerun_needs(
    small_run, continued, tmp_path, assert_same, cli
):
    parent = Path(shutil.copytree(small_run("position=learned", LAST), tmp_path / "parent"))
    run_dir, _ = continued(f"from={parent}", "position=none", "seed=2")
    assert record(run_dir).dropped_parameters
    again = ["rerun", str(run_dir), f"runs_dir={tmp_path / 'again'}"]
    assert "Bit-identical" in cli(*again).out
    stopped = Path(shutil.copytree(run_dir, tmp_path / "stopped"))
    checkpoints(stopped / "checkpoints")[-1][1].unlink()
    update_record(status="interrupted", error="SIGTERM")(stopped)
    checkpoints(parent / "checkpoints")[-1][1].unlink()
    assert app.main(["train", f"run={stopped}"]) == 0
    assert_same(last_weights(stopped), last_weights(run_dir))
    whole, resumed = record(run_dir), record(stopped)
    assert (resumed.run_id, validation_loss(stopped)) == (whole.run_id, validation_loss(run_dir))
    assert resumed.dropped_parameters == whole.dropped_parameters
    assert "from: " in cli(*again, code=2).err.splitlines()[-1]


def test_refused(rope, refused, tmp_path, cache_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refusal(*words, **options):
        folders = (f"data.cache_dir={cache_dir}", f"runs_dir={tmp_path / 'none'}")
        return refused("train", *TINY, *FOUR_STEPS, "position=none", *folders, *words, **options)

    def edited(name, **changes):
        folder = shutil.copytree(rope, tmp_path / name)
        update_record(**changes)(folder)
        return f"from={folder}"

    scores = [fake_score("test", 1.0, checkpoint="average of 2 (steps 2 to 4)")]
    assert refusal(f"from={tmp_path}").startswith(f"from: {tmp_path} has no record.json")
    assert "still running, or killed" in refusal(edited("running", status="running", finished=None))
    assert "the code of rope has changed" in refusal(edited("other_code", schemes={"rope": "0"}))
    other_weights = refusal(edited("scored", scores=scores))
    assert "was scored with average of 2 (steps 2 to 4), but has step 4 now; " in other_weights
    sizes = refusal(f"from={rope}", "model.d_ff=32", "model.activation=gelu")
    assert sizes.endswith("give this one its settings, too: model.d_ff=64 model.activation=relu")
    warned = {"remarks_start": "rpr-cli: warning: with positions none", "nothing_written": False}
    vocabulary = refusal(f"from={rope}", "data.vocabulary_size=290", **warned)
    assert vocabulary.startswith(f"from: {rope} has another vocabulary")
    assert not [*(tmp_path / "none").glob("*")]
