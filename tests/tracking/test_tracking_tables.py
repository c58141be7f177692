"""Scores, tables and charts of a finished run in W&B against its record and translations; the keys that group runs."""

import itertools
import json

import pytest

from rpr.config.train import Origin
from rpr.records.record import write_record
from rpr.records.scores import ByContext, ContextScore
from rpr.tracking import naming
from rpr.tracking.wandb_tables import tables
from tests.fake_records import fake_by_length, fake_record, fake_score
from tests.tracking.runs import SCORES, STEPS, messages, mirror, read_back, tables_of, write_finished_run

pytestmark = pytest.mark.usefixtures("wandb_home")

TABLES = {"results/scores", "results/translations", "results/bleu_by_length"}
CHARTS = ("charts/bleu_by_k", "charts/bleu_by_length")


def test_tables_and_charts_match_the_record(tiny_config, tmp_path):
    """Translations are evenly spaced lines of the files."""
    config, run_dir = tiny_config("logger=wandb_offline", "position.clip_distance=3"), tmp_path / "run"
    record = write_finished_run(config, run_dir)
    mirror(config, run_dir, summary={"steps_per_second": 4.5})
    tables, found = tables_of(run_dir), read_back(run_dir)
    scores = {f"{split}/{metric}": value for (split, metric), value in SCORES.items()} | {"k": 3}
    assert [row["_step"] for row in found["history"]] == [25, STEPS] and found["exit"] == 0
    assert found["history"][-1].items() >= scores.items()  # W&B draws a single row as a bar
    assert found["summary"].items() >= (scores | {"steps_per_second": 4.5}).items()
    # The summary of validation metrics is their best value.
    assert (found["summary"]["validation/loss"], found["summary"]["validation/bleu"]) == ({"min": 2.5}, {"max": 10.0})
    assert tables.keys() == TABLES | {f"Custom Chart Tables/{name}_table" for name in CHARTS}
    columns = ["split", "test set", "metric", "score", "low", "high", "sentences", "checkpoint", "signature"]
    ends = [(one.interval.low, one.interval.high) if one.interval else (None, None) for one in record.scores]
    assert tables["results/scores"]["columns"] == columns
    assert tables["results/scores"]["data"] == [
        [one.split, one.test_set, one.metric, one.score, *both, 1000, one.checkpoint, one.signature]
        for one, both in zip(record.scores, ends, strict=True)
    ]
    lengths = tables["results/bleu_by_length"]["data"]
    buckets = (("1–10", False, 30.0), ("11–22", False, 20.0), ("23–30", True, 10.0), ("over 30", True, 5.0))
    assert [(row[0], row[2], row[4], row[5]) for row in lengths] == [
        (label, beyond, metric, score + more)
        for label, beyond, score in buckets
        for metric, more in (("sacrebleu", 0.0), ("chrf", 20.0))
    ]
    by_k, by_length = (tables[f"Custom Chart Tables/{name}_table"] for name in CHARTS)
    assert by_k["columns"] == ["k", "sacreBLEU"] and by_k["data"] == [[3, 25.5]]
    assert by_length["data"] == [[1, 30.0], [11, 20.0], [23, 10.0], [31, 5.0]]
    for name in CHARTS:
        assert f"Custom Chart Tables/{name}_table.path" in found["summary"], "from which a workspace draws the chart"
    table = tables["results/translations"]
    assert table["columns"] == ["split", "line", "source", "reference", "hypothesis"]
    texts = [(run_dir / f"test.{kind}.txt").read_bytes().decode().split("\n") for kind in
             ("sources", "references", "hypotheses")]  # fmt: skip
    numbers = [row[1] for row in table["data"]]
    assert len(numbers) == 20 and numbers[0] == 1 and numbers[-1] == 45
    assert {after - before for before, after in itertools.pairwise(numbers)} == {2, 3}
    assert table["data"] == [["test", number, *(text[number - 1] for text in texts)] for number in numbers]


def test_scores_of_documents_count_documents_and_have_no_translations(tiny_config, tmp_path):
    config = tiny_config("logger=wandb_offline")
    record = write_finished_run(config, tmp_path, by_length=None, scores=[fake_score("test", 2.5, "bits_per_byte")])
    record.config["data"]["text"] = {"windows": "stream"}
    by_length = [("separate", 64, 2.5), ("separate", 512, 2.25), ("sliding", 512, 2.0)]
    scores = tuple(ContextScore(windows, length, bits, 1000, None) for windows, length, bits in by_length)
    by_context = ByContext("test", "test", 256, 1000, 1000, 5, 128, "last", "32", scores, ())
    write_record(tmp_path / "record.json", record.model_copy(update={"by_context": (by_context,)}))
    for path in tmp_path.glob("test.*.txt"):
        path.unlink()
    mirror(config, tmp_path)
    tables = tables_of(tmp_path)
    charts = {"bits_by_context": [[64, 2.5], [512, 2.25]], "bits_by_context_sliding": [[512, 2.0]]}
    charts = {f"Custom Chart Tables/charts/{name}_table": points for name, points in charts.items()}
    assert tables.keys() == {"results/scores", "results/bits_by_context", *charts}
    assert {name: tables[name]["data"] for name in charts} == charts
    rows = [(windows, length, length > 256, 1000, bits, None, None) for windows, length, bits in by_length]
    assert list(map(tuple, tables["results/bits_by_context"]["data"])) == rows
    assert tables["results/scores"]["columns"][3:7] == ["score", "low", "high", "documents"]


def test_lengths_of_a_task_are_not_called_those_of_sources(tmp_path):
    lengths = fake_by_length(30.0, unit="symbols of the answer")
    named = tables(fake_record(scores=[], by_length=lengths), tmp_path)
    assert named["results/bleu_by_length"].columns[0] == "length"


def test_missing_results_are_left_out(tiny_config, tmp_path):
    """Without relative tables there is no k; without scored splits, nothing to show. Rows that were not yet logged, as
    of a run killed after training, are sent at the end.
    """
    config = tiny_config("logger=wandb_offline", "position=absolute")
    write_finished_run(config, tmp_path / "absolute", by_length=None)
    mirror(config, tmp_path / "absolute")
    assert tables_of(tmp_path / "absolute").keys() == {"results/scores", "results/translations"}
    assert "k" not in read_back(tmp_path / "absolute")["summary"]
    write_finished_run(config, tmp_path / "unscored", by_length=None, scores=[])
    mirror(config, tmp_path / "unscored", rows=False)
    assert tables_of(tmp_path / "unscored") == {}
    rows = [(row["_step"], row["validation/loss"]) for row in read_back(tmp_path / "unscored")["history"]]
    assert rows == [(25, 2.5), (50, 5.0)]


def test_table_error_keeps_the_summary(tiny_config, tmp_path, capsys):
    config, run_dir = tiny_config("logger=wandb_offline"), tmp_path / "run"
    write_finished_run(config, run_dir)
    (run_dir / "test.hypotheses.txt").write_text("one line\n")
    mirror(config, run_dir, summary={"test/sacrebleu": 25.5})
    line, uploads = messages(capsys)
    assert line.endswith(f"; W&B lacks some tables of the results; they are in {run_dir}")
    assert "`wandb sync " in uploads
    found = read_back(run_dir)
    assert found["summary"]["test/sacrebleu"] == 25.5 and found["exit"] == 0
    assert found["history"][-1]["long/chrf"] == 40.0


@pytest.mark.parametrize("overrides, variant", [
    (["position=relative_keys", "position.clip_distance=0"], "keys only, k = 0"),
    (["position.tables=shared_by_heads"], "relative, k = 16, shared by heads"),
    (["position.absolute=learned", "position.name=mine"], "mine (learned + relative, k = 16)"),
])  # fmt: skip
def test_variant_names(overrides, variant, tiny_config):
    assert naming.variant(tiny_config(*overrides)) == variant


def test_a_mean_over_seeds_is_of_runs_trained_alike(tiny_config):
    """Whatever varies beside positions and seed, as in table1, fair, precision or length_generalisation."""
    first = naming.configuration(tiny_config("name=mine", "sweep=a"))
    assert first.startswith("relative, k = 16 (synthetic, tiny, ")
    assert first == naming.configuration(tiny_config("seed=2"))
    words = ["data.synthetic.num_train=9", "model.dropout=0.3", "optim.max_steps=7", "position.clip_distance=2"]
    for word in (*words, "hardware.precision=bf16", "hardware.matmul_precision=high"):
        assert naming.configuration(tiny_config(word)) != first
    origin = {"run": "r", "run_id": "a", "seed": 1, "positions": "RoPE", "steps": 9, "weights": "w"}
    started = [tiny_config().model_copy(update={"origin": Origin(**origin, settings_id=one)}) for one in ("a", "b")]
    assert len({*map(naming.configuration, started)}) == 2, "of RoPE after 9 steps in two recipes"


def test_flat_keys_do_not_hide_sections(tiny_config):
    config = tiny_config()
    flat, sections = naming.flat(config), naming.sections(config)
    other = naming.flat(tiny_config("seed=2"))
    assert {name for name in flat if flat[name] != other[name]} == {"seed", "run_id"}
    absolute = naming.flat(tiny_config("position=absolute"))
    assert absolute["k"] is None and absolute["tables"] is None
    assert not flat.keys() & sections.keys()
    whole = json.loads(config.model_dump_json())
    assert {**sections, "seed": flat["seed"], "sweep": flat["sweep"]} == whole
