"""Checked here: folders of exports, written and read back: every way of sharing tables, what stands in them, what they
replace and what they do not, that nothing is left of one that fails, and the one line for each damaged file. And that
the proof can fail: exports whose tables, norms or positions are not the model's.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.data.vocabulary import Vocabulary, count_words
from rpr.decode.exported import is_export, load_exported_model, read_export
from rpr.decode.torch_engine import Search, TorchEngine
from rpr.errors import ConfigError, DataError, RunError
from rpr.export import writing
from rpr.export.parity import Flip, Parity, identical_share, in_float64, parity
from rpr.export.writing import TorchScorer, export
from rpr.io import atomic
from rpr.model.transformer import Transformer, TransformerConfig
from rpr.validation import validate
from tests.small_models import BASIC, SINUSOIDAL, SOURCES, TARGETS, make_export_inputs, make_model, make_vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

SEARCH = Search(1, 0.0, 10, 400)
SAFETENSORS = ["README.md", "card.json", "config.json", "model.safetensors", "vocabulary.model"]
CTRANSLATE2 = sorted([*SAFETENSORS[:3], SAFETENSORS[-1], "model.bin", "rpr.json", "shared_vocabulary.json"])
BASIC_SETTINGS = TypeAdapter(TransformerConfig).dump_python(BASIC, mode="json")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def export_inputs(vocabulary, tiny_overrides):
    config = validate(TrainConfig, app.compose("train", [*tiny_overrides]))
    return lambda model, sentences=12: make_export_inputs(model, vocabulary, config, sentences)


@pytest.fixture(scope="module")
def made(export_inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "out"
    export("safetensors", folder, export_inputs(make_model()))
    return folder


@pytest.fixture
def exported(made, tmp_path):
    """A copy of it, to change."""
    return shutil.copytree(made, tmp_path / "out")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Written and read back


SHARING = {
    "per_head": {"tables": "per_head"},
    "one_for_layers": {"tables": "shared_by_heads_and_layers", "relative_keys": False},
    "sinusoidal": SINUSOIDAL,
    "both": {"absolute": "learned", "norm": "pre"},
}


@pytest.mark.parametrize("changes", SHARING.values(), ids=SHARING)
def test_safetensors_hold_the_model_bit_for_bit(changes, export_inputs, tmp_path):
    model = make_model(**changes)
    card = export("safetensors", tmp_path / "out", export_inputs(model))
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == SAFETENSORS
    copied = load_exported_model(tmp_path / "out")
    assert copied.config == model.config and not copied.training
    ours, theirs = model.state_dict(), copied.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert len({*map(id, copied.parameters())}) == len({*map(id, model.parameters())})  # shared as before
    proof = card["parity"]
    assert (proof["sentences"], proof["identical"], proof["largest_difference"], proof["tolerance"]) == (12, 12, 0, 0)


@pytest.mark.parametrize("changes", [{}, SINUSOIDAL], ids=["relative", "sinusoidal"])
def test_an_export_for_ctranslate2(changes, export_inputs, tmp_path):
    pytest.importorskip("ctranslate2")
    inputs = export_inputs(make_model(**changes))
    card = export("ctranslate2", tmp_path / "out", inputs)
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == CTRANSLATE2
    proof = card["parity"]
    assert proof["identical"] + len(proof["near_ties"]) == 12 and proof["different"] == ()
    assert 0 < proof["largest_difference"] < proof["tolerance"] < 5e-4  # another engine: not bit for bit
    assert card["int8_identical"] is None or 0 <= card["int8_identical"] <= 1
    read = read_export(tmp_path / "out")
    assert (read.kind, read.config) == ("ctranslate2", inputs.model.config)
    assert read.position_rows == (2048 if changes else None)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "CTranslate2 ranks by log p / length^alpha" in text
    assert ("The absolute positions are a table of 2048 rows." in text) == bool(changes)
    assert f"{proof['largest_difference']:.1e} (allowed: {proof['tolerance']:.0e})" in text
    with pytest.raises(DataError, match="is a CTranslate2 export; export the run with format=safetensors"):
        load_exported_model(tmp_path / "out")


def test_what_an_export_says(exported, vocabulary):
    read = read_export(exported)
    assert is_export(exported) and not is_export(exported.parent)
    assert dataclasses.asdict(read) == {
        "folder": exported,
        "kind": "safetensors",
        "config": dataclasses.asdict(BASIC),
        "search": dataclasses.asdict(Search(4, 0.6, 10, 400)),
        "run_name": "some-run",
        "run_id": "0123abcd",
        "checkpoint": "step 7",
        "source_language": "en",
        "target_language": "de",
        "position_rows": None,
        "rpr": read.rpr,
    }
    assert read.vocabulary().digest == vocabulary.digest
    card = json.loads((exported / "card.json").read_text())
    assert card["run"]["commit"] == "c0ffee" and card["scores"][0]["signature"] == "nrefs:1|case:mixed"
    text = (exported / "README.md").read_text()
    for words in (
        "# some-run",
        "Translates en to de.",
        "commit c0ffee",
        "`rpr-cli train model=tiny`",
        "(synthetic)",
        "| some test | sacrebleu | 12.35 | 3 | step 7 | 4 | 0.6 | `nrefs:1\\|case:mixed` |",
        "Of 12 sentences of validation: 12 greedy translations are those of the run's model",
    ):
        assert words in text, words
    assert "What differs" not in text


def test_a_repeat_gives_the_same_bytes_in_place_of_the_earlier_export(exported, export_inputs):
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    (exported / "left over").write_text("of an earlier version")
    export("safetensors", exported, export_inputs(make_model()))  # with the same sentences: the card says how many
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before
    assert names(exported.parent) == ["out"]


# What is not replaced, and what is left of a failure


@pytest.mark.parametrize("there", ["a file", "a folder", "a card alone"])
def test_something_else_is_not_replaced(there, export_inputs, tmp_path):
    out = tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("card.json" if "card" in there else "mine")).write_text("{}")
    before = names(tmp_path)
    with pytest.raises(ConfigError, match="exists and is not an export; only an earlier export is replaced"):
        export("safetensors", out, export_inputs(make_model()))
    assert names(tmp_path) == before and (out.is_file() or len(names(out)) == 1)


FULL = OSError(28, "No space left on device")
FAILURES = [("write_files", FULL), ("readme", FULL), ("prove", KeyboardInterrupt()), ("put_in_place", FULL)]


@pytest.mark.parametrize("step, error", FAILURES, ids=str)
def test_nothing_is_left_of_one_that_fails(step, error, exported, export_inputs, monkeypatch):
    before = {path.name: path.read_bytes() for path in exported.iterdir()}

    def fail(*arguments, **more):
        raise error

    monkeypatch.setattr(atomic if step == "put_in_place" else writing, step, fail)
    expected = RunError if isinstance(error, OSError) else KeyboardInterrupt
    told = r"^output_dir: .* cannot be written \(No space left on device\)" if error is FULL else None
    for out in (exported, exported.with_name("new")):
        with pytest.raises(expected, match=told):
            export("safetensors", out, export_inputs(make_model(), 2))
    assert names(exported.parent) == ["out"]
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


def test_what_ctranslate2_cannot_hold_is_refused_before_anything_is_written(export_inputs, tmp_path):
    pytest.importorskip("ctranslate2")
    with pytest.raises(ConfigError, match="per_head cannot be exported"):
        export("ctranslate2", tmp_path / "out", export_inputs(make_model(tables="per_head")))
    assert names(tmp_path) == []


# The proof can fail


def change_one_row(model: Transformer) -> None:
    model.decoder[0].self_attention.tables.values[2] *= -1


def flip_one_table(model: Transformer) -> None:
    keys = model.encoder[1].self_attention.tables.keys
    keys.copy_(keys.flip(0))


def lose_some_epsilon(model: Transformer) -> None:
    """So little that hardly a translation differs: log p does."""
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.9e-2
    model.config = dataclasses.replace(model.config, norm_epsilon=0.9e-2)


TAMPERED = [
    ("safetensors", change_one_row),
    ("safetensors", lose_some_epsilon),
    ("ctranslate2", flip_one_table),
    ("ctranslate2", lose_some_epsilon),
]


@pytest.mark.parametrize("kind, tamper", TAMPERED)
def test_an_export_of_something_else_is_refused(kind, tamper, export_inputs, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    write = writing.write_files

    def write_another(kind, folder, model, *rest):
        another = make_model()
        tamper(another)
        write(kind, folder, another, *rest)

    monkeypatch.setattr(writing, "write_files", write_another)
    with pytest.raises(RunError, match="was removed: please report this with the run's record"):
        export(kind, tmp_path / "out", export_inputs(make_model()))
    assert names(tmp_path) == []


def test_a_weight_that_no_sentence_reaches_is_compared_too(export_inputs, tmp_path, monkeypatch):
    """The row of a distance that is longer than every sentence."""
    write = writing.write_files

    def write_another(kind, folder, model, *rest):
        another = make_model(clip_distance=60)
        another.encoder[0].self_attention.tables.keys[0] += 1
        write(kind, folder, another, *rest)

    monkeypatch.setattr(writing, "write_files", write_another)
    with pytest.raises(RunError, match=r"encoder.0.self_attention.tables.keys read back from safetensors differs from"):
        export("safetensors", tmp_path / "out", export_inputs(make_model(clip_distance=60)))
    assert names(tmp_path) == []


def test_what_parity_counts():
    model, rows = make_model(), (SOURCES[:8], TARGETS[:8])
    same = parity(model, TorchScorer(in_float64(model), 400), *rows, SEARCH, tolerance=0.0)
    assert same == Parity(8, 8, (), (), 0.0, 0.0) and same.passed
    # float32 against float64: rounding, and at most ties.
    rounded = parity(model, TorchScorer(model, 400), *rows, SEARCH)
    assert rounded.passed
    assert rounded.tolerance == 5 * rounded.largest_difference > 1e-5  # both are our own rounding
    # A coarse precision of the hardware does not make the proof lenient, and comes back.
    torch.set_float32_matmul_precision("medium")
    assert parity(model, TorchScorer(in_float64(model), 400), *rows, SEARCH).tolerance == rounded.tolerance
    assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")
    assert rounded.identical + len(rounded.near_ties) == 8
    other = make_model()
    change_one_row(other)
    wrong = parity(model, TorchScorer(other, 400), *rows, SEARCH)
    assert not wrong.passed and wrong.largest_difference > 0.1
    assert wrong.different and wrong.identical + len(wrong.different) + len(wrong.near_ties) == 8
    assert "differing beyond rounding (sentence " in str(wrong)
    # Margins in proportion: with a tolerance above them all, each is a tie, told and no fault.
    lenient = parity(model, TorchScorer(other, 400), *rows, SEARCH, tolerance=100.0)
    assert lenient.passed and lenient.near_ties == tuple(sorted(wrong.near_ties + wrong.different, key=by_sentence))
    assert f"{len(lenient.near_ties)} differing at a tie" in str(lenient)
    shares = [
        identical_share(TorchEngine(one, "cpu"), TorchEngine(model, "cpu"), SOURCES[:8], SEARCH)
        for one in (model, other)
    ]
    assert shares[0] == 1 and shares[1] < 1


def by_sentence(flip: Flip) -> int:
    return flip.sentence


def test_nan_and_a_translation_that_only_stops_elsewhere_are_no_parity():
    class Broken(TorchScorer):
        def score(self, sources, targets):
            return [[float("nan")] * len(row) for row in super().score(sources, targets)]

    model = make_model()
    exact = in_float64(model)
    assert not parity(model, Broken(exact, 400), SOURCES[:4], TARGETS[:4], SEARCH).passed

    class Short(TorchScorer):
        def search(self, sources, search, **more):
            return super().search(sources, dataclasses.replace(search, max_extra_length=4), **more)

    short = parity(model, Short(exact, 400), SOURCES[:4], TARGETS[:4], SEARCH)
    assert not short.passed and short.different and short.largest_difference == 0


# Damaged files


def test_an_export_of_version_1_has_vectors_on_both_sides_and_no_minimum_length(exported):
    settings = json.loads((exported / "config.json").read_text())
    assert settings.pop("min_length") == 0
    shape = settings["shape"]
    flat = {name: value for name, value in shape.pop("encoder_positions").items() if name not in ("name", "scheme")}
    del shape["decoder_positions"]
    (exported / "config.json").write_text(json.dumps(settings | {"version": 1, "shape": {**shape, **flat}}))
    read = read_export(exported)
    assert read.search.min_length == 0
    assert read.config.encoder_positions == read.config.decoder_positions
    assert read.config.encoder_positions.identity() == BASIC.encoder_positions.identity()


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"version": 3, "rpr": "9.9"}, "format version 3, written by rpr 9.9; this is rpr .*: install a newer one"),
        ({"version": None}, "format version None"),
        ({"beam_size": 0}, "damaged \\(beam_size: must be greater than 0\\); export the run again"),
        ({"more": 1}, "damaged \\(more: no such field\\)"),
        ({"shape": {**BASIC_SETTINGS, "d_model": "32"}}, "damaged \\(d_model: must be a whole number"),
        ({"shape": {**BASIC_SETTINGS, "num_heads": 5}}, "damaged \\(shape: 32 is not a multiple of 5"),
        ({"shape": {**BASIC_SETTINGS, "num_layers": 0}}, "damaged \\(shape.num_layers is 0"),
        ({"shape": {**BASIC_SETTINGS, "norm": "mid"}}, "damaged \\(shape: norm 'mid'"),
        ({"shape": {}}, "damaged \\(vocabulary_size: missing"),
        ({"format": "other"}, "is not an export; give a folder that rpr-cli export wrote"),
    ],
)
def test_settings_that_cannot_be_used(changes, told, exported):
    path = exported / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(DataError, match=told) as raised:
        load_exported_model(exported)
    assert "\n" not in str(raised.value)


def test_damaged_settings_weights_and_vocabulary(exported, vocabulary, tmp_path):
    path = exported / "model.safetensors"
    whole = path.read_bytes()
    weights = {name: weight.clone() for name, weight in load_file(path).items()}  # not of the file written over below
    told = r"model.safetensors: cannot be read \(.+\); export the run again \(rpr-cli export\)"
    for content in (whole[:-100], whole[:1000], whole[:4], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=told):
            load_exported_model(exported)
    path.unlink()
    with pytest.raises(DataError, match=told):
        load_exported_model(exported)
    name = "decoder.0.self_attention.tables.keys"
    for changed, told in (
        ({**weights, name: weights[name][:-1].clone()}, rf"{name} has shape \[6, 8\], expected \[7, 8\]; export"),
        ({key: value for key, value in weights.items() if key != name}, f"{name} is missing; export"),
        ({**weights, "more": torch.zeros(1)}, "more is unexpected; export"),
    ):
        save_file(changed, path)
        with pytest.raises(DataError, match=told):
            load_exported_model(exported)
    (exported / "vocabulary.model").unlink()
    with pytest.raises(DataError, match="vocabulary.model: cannot be read"):
        read_export(exported).vocabulary()
    Vocabulary.learn(count_words(["ab abc b c"]), 8, exported / "vocabulary.model")
    with pytest.raises(DataError, match="vocabulary.model: has 8 pieces but the model has 100; export the run again"):
        read_export(exported).vocabulary()
    (exported / "config.json").write_text('{"format": "rpr-ex')
    with pytest.raises(DataError, match="is not an export"):
        read_export(exported)
