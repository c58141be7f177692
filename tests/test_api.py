"""rpr.load and rpr.records: on runs with random weights (float64) against the attention weights of each layer's inputs
(tests/model/test_attention.py) and decoding by steps; on fake records.
"""

import math
from pathlib import Path

import pytest
import torch

import rpr
from rpr.api import TrainedRun
from rpr.config.commands import SamplingConfig
from rpr.data.vocabulary import BOS, ByteVocabulary
from rpr.decode import translator as translating
from rpr.errors import ConfigError, RecordError
from rpr.model.transformer import Transformer
from rpr.records.record import write_record
from rpr.validation import validate
from tests.conftest import TINY, TINY_MODEL
from tests.fake_records import fake_record, fake_score
from tests.model.attention_cases import weights
from tests.small_models import write_random_run

SOURCE, TARGET = "the old dog runs", "der alte Hund"
GREEDY = {"max_new_tokens": 6, "temperature": 0, "top_k": None, "seed": 1, "num_samples": 1, "stop": None}
DOUBLE = translating.translate_config("x", "cpu").hardware.model_copy(update={"precision": "64", "threads": 1})


def random_run(folder: Path, settings: list[str], vocabulary) -> TrainedRun:
    def add_noise(model: Transformer) -> None:
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)

    write_random_run(folder, settings, vocabulary, add_noise)
    return rpr.load(folder, average_checkpoints=1, hardware=DOUBLE)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, small_data, cache_dir):
    settings = [*TINY, f"data.cache_dir={cache_dir}", "position=relative", "model.num_layers=2"]
    return random_run(tmp_path_factory.mktemp("runs") / "pairs", settings, small_data.vocabulary)


def of_documents(folder: Path, *position: str) -> TrainedRun:
    (folder / "a.txt").write_text("text")
    data = ["data=text", f"data.path={folder}", "data.context_length=4"]
    settings = [*data, *TINY_MODEL, "model.architecture=decoder_only", *position]
    return random_run(folder / "documents", settings, ByteVocabulary())


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return of_documents(tmp_path_factory.mktemp("documents"), "position=rope")


def next_logits(run, ids):
    """Those of the piece after these, of a model of documents."""
    row = torch.tensor([ids])
    with torch.no_grad():
        return run.engine.model.logits(run.engine.model(row.new_empty(1, 0), row)[0, -1])


def heads_of(x_QM):
    """[1, H, Q, D]"""
    return x_QM.unflatten(-1, (2, -1)).transpose(0, 1)[None]


def test_attention_is_that_of_the_equations(pairs):
    inputs = {"encoder": [], "decoder": [], "cross": [], "memory": []}
    model, hooks = pairs.engine.model, []

    def hook(name, module, attention):
        hooks.append(module.register_forward_hook(lambda _, given, __: inputs[name].append((attention, given[0][0]))))

    for name in ("encoder", "decoder"):
        for layer in getattr(model, name):
            hook(name, layer.self_attention, layer.self_attention)
            if name == "decoder":
                hook("cross", layer.cross_attention.query, layer.cross_attention)
                hook("memory", layer.cross_attention.key_value, layer.cross_attention)
    attention = pairs.attention(SOURCE, TARGET)
    for registered in hooks:
        registered.remove()
    for name, found in attention.items():
        assert len(found) == len(inputs[name]) == 2
        for of_layer, (module, x), (_, memory) in zip(found, inputs[name], inputs["memory"], strict=True):
            if name == "cross":
                keys = heads_of((memory @ module.key_value.weight.T).chunk(2, dim=-1)[0])
                (expected,) = weights(heads_of(x @ module.query.weight.T), keys, keys)
            else:
                q, k, _ = map(heads_of, (x @ module.qkv.weight.T).chunk(3, dim=-1))
                (expected,) = weights(q, k, k, key_table=module.tables.keys, causal=name == "decoder")
            torch.testing.assert_close(of_layer, expected, rtol=0, atol=1e-12)
    pieces = pairs.pieces(SOURCE, TARGET)
    assert attention.keys() == {"encoder", "decoder", "cross"}
    assert attention["cross"].shape[2:] == (len(pieces["decoder"]), len(pieces["encoder"]))
    assert pieces["encoder"][-1] == "</s>" and pieces["decoder"][0] == "<s>"
    assert "".join(pieces["decoder"][1:]).replace("\u2581", " ").strip() == TARGET
    assert not any(of_stack.requires_grad for of_stack in attention.values())


def test_probabilities_are_those_of_decoding_by_steps(pairs):
    vocabulary, model = pairs.translator.vocabulary, pairs.engine.model
    logits = pairs.logits(SOURCE, f" {TARGET}\n")
    with torch.no_grad():
        state = model.start_decoding(torch.tensor([vocabulary.encode(SOURCE, eos=True)]))
        pieces = [torch.tensor([[piece]]) for piece in [BOS, *vocabulary.encode(TARGET)]]
        steps = [model.logits(model.next_hidden(piece, state))[0] for piece in pieces]
    torch.testing.assert_close(logits, torch.stack(steps), rtol=0, atol=1e-10)
    log_probabilities = pairs.log_probabilities(SOURCE, TARGET)
    torch.testing.assert_close(log_probabilities, torch.stack(steps).log_softmax(-1), rtol=0, atol=1e-10)
    assert pairs.translate([SOURCE]) == pairs.translator.translate([SOURCE])
    assert (pairs.config.position.name, pairs.record.name) == ("relative", "pairs")
    assert pairs.config.hardware.precision == "32", "the configuration of the training"


def test_loss_of_a_document_is_that_of_single_tokens(documents):
    text = "caf\u00e9\n\tau lait"
    tokens = [BOS, *(4 + byte for byte in text.encode())]
    logits = [next_logits(documents, tokens[at // 4 * 4 : at + 1]) for at in range(len(tokens) - 1)]
    nats = [-float(row.log_softmax(0)[piece]) for row, piece in zip(logits, tokens[1:], strict=True)]
    assert documents.loss(text) == pytest.approx(sum(nats) / len(nats), abs=1e-12)
    first = documents.log_probabilities("", text[:3])
    assert [-float(first[at, tokens[at + 1]]) for at in range(3)] == pytest.approx(nats[:3], abs=1e-12)
    attention = documents.attention("", text)
    assert attention.keys() == {"decoder"} and attention["decoder"].shape == (1, 2, len(tokens), len(tokens))
    assert documents.pieces("", "a\n") == {"decoder": ["<s>", "a", "<0x0A>"]}


def test_losses_and_continuations_are_those_of_the_probabilities(pairs, documents):
    ids = [*pairs.translator.vocabulary.encode(TARGET), 3]
    expected = [-float(row[piece]) for row, piece in zip(pairs.log_probabilities(SOURCE, TARGET), ids, strict=True)]
    assert pairs.losses(SOURCE, TARGET).tolist() == expected
    text = "caf\u00e9"
    [[greedy]] = documents.continuations([text], validate(SamplingConfig, GREEDY))
    ids = [4 + byte for byte in text.encode()]
    for piece in greedy.pieces:
        logits = next_logits(documents, [BOS, *ids])
        logits[[0, BOS]] = -math.inf
        assert piece == int(logits.argmax())
        ids.append(piece)
    assert len(greedy.pieces) == 6 and documents.generate([text], max_new_tokens=6) == [[greedy.text]]


def test_what_a_run_cannot_do_is_refused(pairs, documents, tmp_path):
    learned = of_documents(tmp_path, "position=learned", "position.max_positions=8")
    assert learned.losses("", "1234567").shape == (8,)
    for call, message in (
        (lambda: documents.logits("a", "b"), r"^source: documents is a language model of .* without sources; give ''$"),
        (lambda: learned.losses("", "12345678"), "^target: its 9 tokens with BOS are more than the model's 8 learned"),
        (lambda: documents.loss(""), "^text: is empty"),
        (lambda: pairs.loss("a"), "^loss: pairs is a model of sentence pairs; use log_probabilities"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(RecordError, match="has no record.json; give the folder of a run"):
        rpr.load(tmp_path)
    assert {"Translator", "load", "records"} <= {*dir(rpr)}


def test_records_are_rows(tmp_path):
    interval = {"low": 36.0, "high": 38.0, "level": 0.95, "kind": "sentences", "method": "percentile bootstrap"}
    scores = [fake_score("test", 37.0, interval=interval | {"samples": 10, "seed": 1}), fake_score("long", 20.5)]
    repeated = {"run_id": "0badcafe", "started": "2026-01-01T00:00:00+00:00"}
    second = {"seed": 2, "run_id": "b" * 8, "training": None, "rerun_of": repeated}
    for name, changes in (("a", {"scores": scores}), ("b", second)):
        write_record(tmp_path / name / "record.json", fake_record(name=name, **changes))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text("{")
    with pytest.warns(UserWarning, match="invalid JSON"):
        frame = rpr.records(tmp_path, all=True)
    assert frame[["name", "seed", "status", "folder"]].to_numpy().tolist() == [
        ["a", 1, "finished", str(tmp_path / "a")], ["b", 2, "finished", str(tmp_path / "b")]
    ]  # fmt: skip
    assert frame["concurrent_jobs"].tolist() == [1, 1], "without which a speed could be of a shared device"
    first = frame.iloc[0]
    assert first[["test/sacrebleu", "test/sacrebleu/low", "test/sacrebleu/high"]].tolist() == [37.0, 36.0, 38.0]
    assert first["long/sacrebleu"] == 20.5 and "long/sacrebleu/low" not in frame
    assert first["steps_per_second"] > 0 and frame["steps_per_second"].isna().tolist() == [False, True]
    assert frame["position.clip_distance"].tolist() == [16, 16] and frame["optim.max_steps"].tolist() == [1800] * 2
    assert frame["rerun_of"].dropna().to_dict() == {1: "0badcafe"}
    with pytest.warns(UserWarning, match="invalid JSON"):
        few = rpr.records(tmp_path)
    assert few["position"].tolist() == ["relative, k = 16"] * 2 and "test/sacrebleu/low" in few and len([*few]) <= 15
