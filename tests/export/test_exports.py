"""Exports read back and compared with their model, correct and wrong ones; what is replaced; damaged files.

The engine of CTranslate2 exports is an independent one, in C++, which computes equations 3 and 4 pair by pair.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rpr.data.vocabulary import EOS, Vocabulary, count_words
from rpr.decode.engine import Engine
from rpr.decode.exported import VERSION, is_export, load_exported_model, read_export
from rpr.errors import ConfigError, DataError, RunError
from rpr.export import writing
from rpr.export.ctranslate2 import CTranslate2Scorer
from rpr.export.writing import Parity, export, in_float64, parity
from rpr.model.beam_search import Search
from rpr.model.transformer import Transformer
from tests.small_models import BASIC, LEARNED, NO_TABLES, SINUSOIDAL, SOURCES, TARGETS, make_model

SEARCH = Search(1, 0.0, 10, 400)
SAFETENSORS = ["README.md", "card.json", "config.json", "model.safetensors", "vocabulary.model"]
CTRANSLATE2 = sorted([*SAFETENSORS[:3], SAFETENSORS[-1], "model.bin", "shared_vocabulary.json"])


@pytest.fixture(scope="module")
def made(export_inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "out"
    export("safetensors", folder, export_inputs(make_model()))
    return folder


@pytest.fixture
def exported(made, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(made, tmp_path / "out")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


SHARING = {
    "one_for_layers": {"tables": "shared_by_heads_and_layers", "relative_keys": False},
    "both": {"absolute": "learned", "norm": "pre"},
}


@pytest.mark.parametrize("changes", SHARING.values(), ids=SHARING)
def test_safetensors_round_trip_is_exact(changes, export_inputs, tmp_path):
    model = make_model(**changes)
    proven = export("safetensors", tmp_path / "out", export_inputs(model))
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == SAFETENSORS
    assert (proven.sentences, proven.identical, proven.largest_difference, proven.tolerance) == (6, 6, 0, 1e-8)
    copied = load_exported_model(tmp_path / "out")
    assert copied.config == model.config and not copied.training
    ours, theirs = model.state_dict(), copied.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert len({*map(id, copied.parameters())}) == len({*map(id, model.parameters())})  # shared as before


VALUES_ALONE = {"relative_keys": False, "clip_distance": 16, "norm": "pre"}
GRID = [
    pytest.param({}, id="keys_and_values-k_3-post_norm"),
    pytest.param({"relative_values": False, "clip_distance": 0, "norm": "pre"}, id="keys-k_0-pre_norm"),
    pytest.param({**LEARNED, "norm": "pre", "max_positions": 8}, id="learned-pre_norm-fewer_than_pieces"),
    *(pytest.param(changes, marks=pytest.mark.slow) for changes in (VALUES_ALONE, NO_TABLES, SINUSOIDAL)),
]


@pytest.mark.parametrize("changes", GRID)
def test_ctranslate2_export_decodes_as_the_model(changes, export_inputs, tmp_path):
    pytest.importorskip("ctranslate2")
    proven = export("ctranslate2", tmp_path / "out", export_inputs(make_model(**changes), 8))
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == CTRANSLATE2
    assert proven.identical + len(proven.margins) == 8 and proven.identical >= 7 and not proven.different
    assert 0 < proven.largest_difference < proven.tolerance < 5e-4  # another engine: not exact
    rows = max(2048, changes.get("max_positions", 0)) if "absolute" in changes else None
    assert json.loads((tmp_path / "out" / "card.json").read_text())["position_rows"] == rows
    text = (tmp_path / "out" / "README.md").read_text()
    assert (f"The export has {rows} positions:" in text) == (rows is not None)
    with pytest.raises(DataError, match="is no safetensors export of version"):
        load_exported_model(tmp_path / "out")


@pytest.mark.parametrize(("extra", "min_length"), [(0, 0), (7, 0), (10, 6)])
def test_ctranslate2_searches_within_the_models_limits(extra, min_length, export_inputs, tmp_path):
    """Several sentences of other limits in a batch; with a minimum, of a model that prefers to end at once."""
    pytest.importorskip("ctranslate2")
    model = make_model()
    if min_length:
        model.embedding_VM[EOS] *= 2
    inputs = export_inputs(model)
    writing.write_files("ctranslate2", tmp_path, inputs)
    search = dataclasses.replace(SEARCH, max_extra_length=extra, min_length=min_length)
    found = CTranslate2Scorer(tmp_path, inputs.vocabulary, 1, generator=False).greedy(SOURCES[:8], search)
    best = [hypotheses[0] for hypotheses in Engine(in_float64(model)).search(SOURCES[:8], search)]
    same = [row == [*one.pieces, *([EOS] * one.finished)] for row, one in zip(found, best, strict=True)]
    assert sum(same) >= 7  # ties may differ
    assert min(len(row) for row in found) > min_length


def test_contents_of_an_export(exported, export_inputs):
    read = read_export(exported)
    assert is_export(exported) and not is_export(exported.parent)
    assert (read.shape, read.search) == (BASIC, Search(4, 0.6, 10, 400))
    assert read.vocabulary(exported).digest == export_inputs(make_model()).vocabulary.digest
    card = json.loads((exported / "card.json").read_text())
    assert (card["record"]["run_id"], card["checkpoint"]) == ("0123abcd", "step 7")
    score = "| some test | sacrebleu | 12.35 | 3 | step 7 | 4 | 0.6 | nrefs:1\\|case:mixed |"
    assert score in (exported / "README.md").read_text()


def test_repeated_export_is_identical_and_replaces_the_earlier_one(exported, export_inputs):
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    (exported / "left over").write_text("of an earlier version")
    export("safetensors", exported, export_inputs(make_model()))
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before
    assert names(exported.parent) == ["out"]


@pytest.mark.parametrize("file", ["out", "out/mine", "out/card.json"])
def test_other_files_and_folders_are_not_replaced(file, export_inputs, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="exists and is not an export; only an earlier export is replaced"):
        export("safetensors", tmp_path / "out", export_inputs(make_model()))
    assert sorted(tmp_path.rglob("*")) == before


def change_one_row(model: Transformer) -> None:
    model.decoder[0].self_attention.tables.values[2] *= -1


def change_epsilon_slightly(model: Transformer) -> None:
    """Changes log p but hardly any translation."""
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.9e-2
    model.config = dataclasses.replace(model.config, norm_epsilon=0.9e-2)


def change_row_of_distance_60(model: Transformer) -> None:
    """No sentence is that long."""
    model.encoder[0].self_attention.tables.keys[0] += 1


REMOVED = "was removed: report this with the run's record"
TAMPERED = [
    ("safetensors", change_epsilon_slightly, REMOVED),
    ("safetensors", change_row_of_distance_60, r"0.self_attention.tables.keys read back from safetensors differs from"),
    ("ctranslate2", change_epsilon_slightly, REMOVED),
]


@pytest.mark.parametrize("kind, tamper, message", TAMPERED)
def test_export_that_differs_from_the_model_is_an_error(kind, tamper, message, export_inputs, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    write, clip_distance = writing.write_files, 60 if tamper is change_row_of_distance_60 else 3

    def write_another(kind, folder, inputs):
        another = make_model(clip_distance=clip_distance)
        tamper(another)
        write(kind, folder, dataclasses.replace(inputs, model=another))

    monkeypatch.setattr(writing, "write_files", write_another)
    with pytest.raises(RunError, match=message):
        export(kind, tmp_path / "out", export_inputs(make_model(clip_distance=clip_distance)))
    assert names(tmp_path) == []


def test_parity_with_rounding_and_with_another_model():
    """A low matmul precision does not change the tolerance. Above all margins, a tolerance makes each flip a tie."""
    model, other, rows = make_model(), make_model(), (SOURCES[2:6], TARGETS[2:6])
    torch.set_float32_matmul_precision("medium")
    rounded = parity(model, Engine(in_float64(model)), *rows, SEARCH)
    assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")
    assert parity(model, Engine(model), *rows, SEARCH).largest_difference * 5 == rounded.tolerance > 1e-5
    change_one_row(other)
    wrong = parity(model, Engine(other), *rows, SEARCH)
    assert not wrong.passed and wrong.different and wrong.largest_difference > 0.1
    assert wrong.identical + len(wrong.margins) == 4
    lenient = parity(model, Engine(other), *rows, SEARCH, tolerance=100.0)
    assert lenient.passed and lenient.margins == wrong.margins


def test_nan_and_shorter_translations_fail_parity():
    class Broken(Engine):
        def score(self, *given):
            return [row * float("nan") for row in super().score(*given)]

    model = make_model()
    exact = in_float64(model)
    assert not parity(model, Broken(exact), SOURCES[:4], TARGETS[:4], SEARCH).passed
    assert not Parity(10, 10, (), float("inf"), float("inf")).passed, "nothing is within what is not finite"

    class Short(Engine):
        def search(self, sources, search, **more):
            return super().search(sources, dataclasses.replace(search, max_extra_length=4), **more)

    short = parity(model, Short(exact), SOURCES[:4], TARGETS[:4], SEARCH)
    assert not short.passed and short.different and short.largest_difference == 0


@pytest.mark.parametrize("changes, message", [
    ({"version": VERSION + 1, "rpr": "9.9"}, rf"export of version {VERSION}, .* \(rpr 9.9 wrote it\)"),
    ({"schemes": {"vectors": "0"}}, "the code of vectors has changed \\(version 0, now 1\\) since the export; restore"),
])  # fmt: skip
def test_invalid_settings_are_errors(changes, message, exported):
    path = exported / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(DataError, match=message):
        load_exported_model(exported)


def test_damaged_files_are_errors(exported):
    Vocabulary.learn(count_words(["ab abc b c"]), 8).save(exported / "vocabulary.model")
    with pytest.raises(DataError, match="vocabulary.model: has 8 pieces but the model has 100; export the run again"):
        read_export(exported).vocabulary(exported)
    path, table = exported / "model.safetensors", "decoder.0.self_attention.tables.keys"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}  # the file is replaced
    save_file(weights | {table: torch.zeros(6, 8)}, path)
    with pytest.raises(DataError, match=f"size mismatch for {table}"):
        load_exported_model(exported)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"does not fit config.json, or is damaged \(.+\); export the run again \(rpr-"):
        load_exported_model(exported)
