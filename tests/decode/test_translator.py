"""rpr.Translator on a run with random weights (float64) against beam search of single sentences, and on exports; its
batches, defaults and precision.
"""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rpr import Translation, Translator
from rpr.cli import app
from rpr.commands import export
from rpr.config.commands import ExportConfig
from rpr.config.train import HardwareConfig
from rpr.data.pairs import normalise
from rpr.data.vocabulary import EOS
from rpr.decode import translator as module
from rpr.decode.engines import evaluated_model
from rpr.decode.torch_engine import TorchEngine, length_batches
from rpr.errors import ConfigError, DataError, RecordError, RunError
from rpr.model.beam_search import Hypothesis, Search, beam_search
from rpr.runs import runtime
from rpr.validation import validate

GARDEN = "In front of the garden the doctor laughs ."
DOUBLE = module._hardware("cpu").model_copy(update={"precision": "64", "threads": 1})
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
    assert translated == expected and len(set(translated)) == 6
    assert [translator.translate([sentence])[0] for sentence in SENTENCES] == translated
    assert translator.translate([]) == []
    greedy = translator.translate(SENTENCES, beam_size=1)
    assert greedy[0] == translator.vocabulary.decode(searched(translator, SENTENCES[0], beam_size=1)[0].pieces)
    assert greedy != translated and translator.translate(SENTENCES, length_penalty=3.0) != translated
    found = translator.translate_encoded(translator.encode(SENTENCES), translator.search)
    assert [best[0].text for best in found] == translated


def test_n_best_equals_beam_search(translator):
    found = translator.translate_n_best(SENTENCES, n_best=2)
    for sentence, translations in zip(SENTENCES, found, strict=True):
        hypotheses = searched(translator, sentence, n_best=2) if sentence.strip() else [Hypothesis((), 0.0, 0.0, True)]
        assert translations == [
            Translation(
                translator.vocabulary.decode(each.pieces),
                pytest.approx(each.score),
                pytest.approx(each.log_probability),
                each.finished,
            )
            for each in hypotheses
        ]
    assert max(map(len, found)) == 2
    assert [translations[0].text for translations in found] == translator.translate(SENTENCES)
    assert max(map(len, translator.translate_n_best(SENTENCES))) == 3  # the run's beam
    assert max(map(len, translator.translate_n_best(SENTENCES, beam_size=4))) == 4
    three = copy.copy(translator)
    three.search = dataclasses.replace(translator.search, n_best=3)
    assert max(map(len, three.translate_n_best(SENTENCES, beam_size=2))) == 2


def test_odd_text_is_normalised_as_in_training(translator):
    plain = [normalise(text.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")) for text in ODD]
    assert plain[:3] == ["The old dog runs .", "A cat sings", "\u200b"] and plain[3] == "\ufffd lone \ufffd"
    translated = translator.translate(ODD)
    assert translated == translator.translate(plain)
    assert translated[0] == translator.translate(["The old dog runs ."])[0] and translated[5:8] == ["", "", ""]
    assert [len(parts) for parts in translator.encode(ODD)] == [1, 1, 1, 1, 1, 0, 0, 0, 1]


class Scripted:
    """An engine with given hypotheses for each first piece of a source."""

    def __init__(self, script: dict[int, list[Hypothesis]]) -> None:
        self.script = script

    def search(self, sources: Any, search: Search, *, progress: Any = None) -> Any:
        assert all(source[-1] == EOS for source in sources)
        return [self.script[source[0]][: search.n_best] for source in sources]


def test_parts_of_a_sentence_are_joined(byte_fallback):
    script = {
        byte_fallback.encode(letter)[0]: [
            Hypothesis(tuple(byte_fallback.encode(f"{letter}{place}")), score - place, 2 * score, letter != "b")
            for place in (0, 1)
        ]
        for letter, score in (("a", -1.0), ("b", -2.0), ("c", -4.0))
    }
    translator = Translator(Scripted(script), byte_fallback, Search(3, 0.0, 5, 100), max_source_length=8)
    warning = "sentence 1 has more than max_source_length = 8 pieces and is translated in 3"
    with pytest.warns(UserWarning, match=warning):
        single, joined = translator.translate_n_best(["b", "a a a a a a a. b b b b b b b. c c c"], n_best=3)
    assert [translation.text for translation in single] == ["b0", "b1"]
    assert joined == [Translation("a0 b0 c0", -7.0, -14.0, False)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_model_without_finite_probabilities_is_an_error(translator, beam_size):
    model = copy.deepcopy(translator.engine.model).float()
    torch._foreach_mul_([weight.data for weight in model.parameters()], 1e30)  # finite, but not what comes of them
    search = dataclasses.replace(translator.search, beam_size=beam_size, n_best=1)
    with pytest.raises(RunError, match="probabilities are not finite"):
        TorchEngine(model).search([[5, EOS]], search)


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(translator, training):
    model = copy.deepcopy(translator.engine.model).train(training)
    model.encoder[0].train(not training)  # frozen parts keep their own mode

    def stop(done, total):
        raise KeyError

    with pytest.raises(KeyError):
        TorchEngine(model).search([[5, EOS]], translator.search, progress=stop)
    assert (model.training, model.encoder[0].training) == (training, not training)


def test_batches_are_complete_and_within_the_budget():
    lengths = np.random.default_rng(1).integers(1, 60, 500).tolist()
    batches = list(length_batches(lengths, 50))
    assert sorted(index for batch in batches for index in batch) == list(range(500))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 50
    longest = [lengths[batch[0]] for batch in batches]
    assert longest == sorted(longest, reverse=True)


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


def test_defaults_equal_conf(random_run):
    translator = Translator.from_run(str(random_run))
    composed = app.compose("translate", [f"run={random_run}"])
    assert module._hardware("cpu") == validate(HardwareConfig, composed["hardware"])
    assert translator.search == Search(3, 0.6, 5, translator.search.max_tokens_per_batch)
    assert translator.max_source_length == composed["max_source_length"]
    assert composed["hardware"]["matmul_precision"] == "auto"
    assert torch.get_float32_matmul_precision() in ("highest", "medium")
    assert translator.engine.model.embedding_VM.dtype == torch.float32 and not translator.engine.bfloat16
    gpu = app.compose("translate", ["run=x", "hardware=8xgpu"])["hardware"]
    assert module._hardware("8xgpu") == validate(HardwareConfig, gpu)


def test_precision_and_average(random_run, translator):
    assert translator.engine.model.embedding_VM.dtype == torch.float64
    half = module._hardware("cpu").model_copy(update={"precision": "bf16"})
    found = Translator.from_run(random_run, hardware=half)
    assert found.engine.bfloat16 and len(found.translate(["A cat"])) == 1
    one, two = (Translator.from_run(random_run, average_checkpoints=number).engine for number in (1, 2))
    assert isinstance(one, TorchEngine) and isinstance(two, TorchEngine)
    assert not torch.equal(one.model.embedding_VM, two.model.embedding_VM)


INVALID_SETTINGS = [
    ({"hardware": "cpuu"}, ConfigError, r"^hardware: no such choice 'cpuu'; did you mean cpu\? \(available: 1xgpu"),
    ({"hardware": "slurm_8xgpu"}, ConfigError, "^hardware: no such choice 'slurm_8xgpu'"),
    ({"max_source_length": 2}, ConfigError, "^max_source_length: invalid value 2"),
    ({"backend": "ctranslate2"}, DataError, r"has no exports/ctranslate2; create it with: rpr-cli export run=\S+ form"),
]


@pytest.mark.parametrize(("settings", "error", "message"), INVALID_SETTINGS)
def test_invalid_settings_are_errors(random_run, settings, error, message):
    with pytest.raises(error, match=message):
        Translator.from_run(random_run, **settings)


@pytest.mark.parametrize(("settings", "message"), [
    ({"n_best": 4}, r"^n_best: invalid value 4: must be 1 to beam_size = 3; set beam_size to 4 or more$"),
    ({"beam_size": 0}, "^beam_size: invalid value 0: must be at least 1$"),
    ({"length_penalty": -1.0}, "^length_penalty: invalid value -1.0: must be at least 0$"),
    ({"length_penalty": float("nan")}, "^length_penalty: invalid value nan:"),
])  # fmt: skip
def test_invalid_search_settings_are_errors(translator, settings, message):
    with pytest.raises(ConfigError, match=message):
        translator.translate_n_best(["A cat"], **settings)


def test_missing_run_and_single_string_are_errors(tmp_path, translator):
    with pytest.raises(RecordError, match=r"has no record\.json; give the folder of a run"):
        Translator.from_run(tmp_path)
    with pytest.raises(RecordError, match=r"has no record\.json"):
        Translator.from_run(tmp_path, backend="ctranslate2")
    with pytest.raises(TypeError, match="a sequence of strings, not one string"):
        translator.translate("A cat sings")


@pytest.fixture(scope="module")
def exported(random_run):
    """The run's export in a format, written once."""

    def make(kind):
        folder = random_run / "exports" / kind
        if not folder.exists():
            overrides = [f"run={random_run}", f"format={kind}", "sentences=4", "hardware.threads=1"]
            export.run(validate(ExportConfig, app.compose("export", overrides)))
        return folder

    return make


def test_export_translates_as_its_run(exported, translator):
    folder = exported("safetensors")
    other = Translator.from_run(folder, hardware=DOUBLE)
    assert other.translate_n_best(SENTENCES) == translator.translate_n_best(SENTENCES)
    assert other.search == translator.search
    with pytest.raises(ConfigError, match=r"^backend: ctranslate2 cannot read .*, which is a safetensors export; omit"):
        Translator.from_run(folder, backend="ctranslate2")
    with pytest.raises(ConfigError, match="^average_checkpoints: .* is an export of one model"):
        Translator.from_run(folder, average_checkpoints=2)
    with pytest.raises(ConfigError, match="^cache_dir: .* is an export, with its own vocabulary"):
        Translator.from_run(folder, cache_dir="cache")


def test_export_in_64_bits_is_used_in_the_precision_asked_for(random_run, tmp_path):
    words = [f"run={random_run}", "format=safetensors", "sentences=1", "hardware.threads=1", "hardware.precision=64"]
    overrides = [*words, f"output_dir={tmp_path / 'export'}"]
    export.run(validate(ExportConfig, app.compose("export", overrides)))
    for precision, dtype in (("32", torch.float32), ("64", torch.float64)):
        hardware = DOUBLE.model_copy(update={"precision": precision})
        loaded = Translator.from_run(tmp_path / "export", hardware=hardware).engine.model
        assert loaded.embedding_VM.dtype == dtype


def test_ctranslate2_export_translates_as_its_run(random_run, exported, translator):
    pytest.importorskip("ctranslate2")
    folder = exported("ctranslate2")
    cpu = module._hardware("cpu").model_copy(update={"threads": 1})
    greedy = translator.translate(SENTENCES, beam_size=1)
    for other in (
        Translator.from_run(folder, hardware=cpu),
        Translator.from_run(random_run, backend="ctranslate2", hardware=cpu),
    ):
        assert other.translate(SENTENCES, beam_size=1) == greedy
        assert max(map(len, other.translate_n_best(SENTENCES))) > 1
    assert len(Translator.from_run(folder, compute_type="int8", hardware=cpu).translate(SENTENCES)) == 7
    with pytest.raises(ConfigError, match=r"^hardware\.precision: CTranslate2 does not support 64"):
        Translator.from_run(folder, hardware=DOUBLE)


def test_name_that_rpr_does_not_have_is_no_import():
    with pytest.raises(ImportError, match="cannot import name 'Translater' from 'rpr'"):
        exec("from rpr import Translater", {})
