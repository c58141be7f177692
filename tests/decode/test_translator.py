"""rpr.Translator on a run with random weights (float64) against beam search of single sentences, and on exports; its
batches, defaults and precision.
"""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rpr import Translator
from rpr.cli import app
from rpr.commands import export
from rpr.config.commands import ExportConfig
from rpr.config.train import HardwareConfig
from rpr.data.corpora import normalise
from rpr.data.vocabulary import EOS
from rpr.decode import translator as module
from rpr.decode.engine import Engine, length_batches
from rpr.errors import ConfigError, RecordError, RunError
from rpr.model.beam_search import Hypothesis, Search, beam_search
from rpr.runs import runtime
from rpr.scoring.run import evaluated_model
from rpr.validation import validate

GARDEN = "In front of the garden the doctor laughs ."
CPU = module.translate_config("x", "cpu").hardware
DOUBLE = CPU.model_copy(update={"precision": "64", "threads": 1})
SENTENCES = ["The old dog runs .", "A cat sings", "", GARDEN, " ", "My fox", "A cat"]
ODD = ["The\u2028old\u0085dog\x0cruns\x00.\r", "\ufeffA\tcat\nsings\r\n", "\u200b", "\ud800 lone \udfff"]
ODD += ["\U0001f600 e\u0301", "\u2581", "\x00", "\u2029", "<s> </s> <pad> |||"]


@pytest.fixture(scope="module")
def translator(random_run):
    return Translator.from_run(random_run, hardware=DOUBLE)


def searched(translator: Translator, sentence: str, **changes: Any) -> list[Hypothesis]:
    """The hypotheses of beam_search for one sentence."""
    pieces = translator.vocabulary.encode(normalise(sentence), eos=True)
    search = dataclasses.replace(translator.search, **changes)
    (found,) = beam_search(translator.engine.model, torch.tensor([pieces]), search)
    return found


def test_translate_equals_beam_search_per_sentence(translator):
    translated = translator.translate(SENTENCES)
    expected = [
        translator.vocabulary.decode(searched(translator, sentence)[0].pieces) if sentence.strip() else ""
        for sentence in SENTENCES
    ]
    assert translated == expected and len(set(translated)) > 4
    assert [translator.translate([sentence])[0] for sentence in SENTENCES] == translated
    assert translator.translate([]) == []
    greedy = translator.translate(SENTENCES, beam_size=1)
    assert greedy[0] == translator.vocabulary.decode(searched(translator, SENTENCES[0], beam_size=1)[0].pieces)
    assert greedy != translated and translator.translate(SENTENCES, length_penalty=3.0) != translated


def test_odd_text_is_normalised_as_in_training(translator):
    plain = [normalise(text.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")) for text in ODD]
    assert plain[:3] == ["The old dog runs .", "A cat sings", "\u200b"] and plain[3] == "\ufffd lone \ufffd"
    translated = translator.translate(ODD)
    assert translated == translator.translate(plain)
    assert translated[0] == translator.translate(["The old dog runs ."])[0] and translated[5:8] == ["", "", ""]
    assert [bool(pieces) for pieces in translator.encode(ODD)] == [True] * 5 + [False] * 3 + [True]


def test_model_without_finite_probabilities_is_an_error(translator):
    model = copy.deepcopy(translator.engine.model).float()
    torch._foreach_mul_([weight.data for weight in model.parameters()], 1e30)  # finite, but not what comes of them
    for beam_size in (1, 4):
        search = dataclasses.replace(translator.search, beam_size=beam_size, n_best=1)
        with pytest.raises(RunError, match="probabilities are not finite"):
            Engine(model).search([[5, EOS]], search)


def test_batches_are_complete_and_within_the_budget():
    lengths = np.random.default_rng(1).integers(1, 60, 500).tolist()
    batches = list(length_batches(lengths, 50))
    assert sorted(index for batch in batches for index in batch) == list(range(500))
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 50 for batch in batches)


@pytest.mark.parametrize(
    ("flags", "matmuls", "recorded"), [({"amx_bf16"}, "medium", "32, medium products"), (set(), "highest", "32")]
)
def test_auto_matmul_precision_is_resolved_for_scoring(translator, tiny_config, monkeypatch, flags, matmuls, recorded):
    monkeypatch.setattr(runtime, "_of_cpuinfo", {"flags": " ".join(flags)}.get)
    words = ("hardware=cpu", "hardware.matmul_precision=auto", "evaluation.matmul_precision=null")
    config = tiny_config(*words)
    runtime.set_up(config.hardware)
    scored = evaluated_model(config, translator.engine.model, "step 1")
    assert (scored.engine.matmul_precision, scored.precision) == (matmuls, recorded)


def test_precision_average_and_defaults(random_run, translator):
    composed = app.compose("translate", [f"run={random_run}"])
    usual = Translator.from_run(str(random_run))
    assert validate(HardwareConfig, composed["hardware"]) == CPU
    assert usual.search == Search(3, 0.6, 5, usual.search.max_tokens_per_batch)
    assert usual.engine.model.embedding_VM.dtype == torch.float32 and not usual.engine.bfloat16
    assert translator.engine.model.embedding_VM.dtype == torch.float64
    found = Translator.from_run(random_run, hardware=CPU.model_copy(update={"precision": "bf16"}))
    assert found.engine.bfloat16 and len(found.translate(["A cat"])) == 1
    one, two = (Translator.from_run(random_run, average_checkpoints=number).engine for number in (1, 2))
    assert isinstance(one, Engine) and isinstance(two, Engine)
    assert not torch.equal(one.model.embedding_VM, two.model.embedding_VM)


def test_what_cannot_be_translated_is_an_error(tmp_path, translator):
    with pytest.raises(ConfigError, match="^beam_size: invalid value 0: must be at least 1$"):
        translator.translate(["A cat"], beam_size=0)
    with pytest.raises(ConfigError, match="^length_penalty: invalid value nan:"):
        translator.translate(["A cat"], length_penalty=float("nan"))
    with pytest.raises(RecordError, match=r"has no record\.json; give the folder of a run"):
        Translator.from_run(tmp_path)
    with pytest.raises(TypeError, match="a sequence of strings, not one string"):
        translator.translate("A cat sings")


def test_export_translates_as_its_run(random_run, translator, tmp_path):
    folder, words = tmp_path / "export", ["format=safetensors", "sentences=4", "hardware.threads=1"]
    overrides = [f"run={random_run}", f"output_dir={folder}", *words]
    export.run(validate(ExportConfig, app.compose("export", overrides)))
    other = Translator.from_run(folder, hardware=DOUBLE)
    assert other.translate(SENTENCES) == translator.translate(SENTENCES)
    assert other.search == translator.search
    halved = DOUBLE.model_copy(update={"precision": "bf16"})
    assert Translator.from_run(folder, hardware=halved).engine.model.embedding_VM.dtype == torch.float32
    for settings in ({"average_checkpoints": 2}, {"cache_dir": "cache"}):
        with pytest.raises(ConfigError, match=f"^{next(iter(settings))}: .* is an export of one model with its vocab"):
            Translator.from_run(folder, **settings)
