"""Exports of language models of documents, which CTranslate2 and transformers read themselves, and those refused."""

import dataclasses
import re

import pytest
import torch

from rpr.compose.composition import compose_train
from rpr.config.commands import SamplingConfig
from rpr.data.vocabulary import BOS, EOS, ByteVocabulary, TextVocabulary, count_text_words
from rpr.decode.engine import Engine
from rpr.decode.sampling import continuations
from rpr.errors import ConfigError, RunError
from rpr.export import ctranslate2, transformers
from rpr.export.ctranslate2 import CTranslate2Scorer
from rpr.export.writing import export
from tests.conftest import TINY as TINY_RUN
from tests.conftest import TINY_MODEL
from tests.model.test_transformer import TINY
from tests.shapes import changed, scheme
from tests.small_models import make_export_inputs, make_model, make_vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TEXT = "def größe(x):\n    return '<s>', x  # naïve — 𝛼\n" * 4
CONTEXT, BYTES = 40, ByteVocabulary()
SHARED = {"tables": "shared_by_heads", "clip_distance": 4}
LINEAR = {"scaling": "linear", "scaling_factor": 2}
YARN = {"scaling": "yarn", "scaling_factor": 4, "trained_length": 200, "base": 50}
# Programs that read each scheme; decoder-only models are pre-norm unless they say otherwise.
BOTH, CTRANSLATE2, TRANSFORMERS = ("ctranslate2", "transformers"), ("ctranslate2",), ("transformers",)
HOMES = {
    "none": (BOTH, scheme("none"), {}),
    "absolute": (BOTH, scheme("absolute"), {"activation": "gelu"}),
    "learned": (BOTH, scheme("learned", max_positions=128), {}),
    "rope": (BOTH, scheme("rope"), {"activation": "gelu", "num_layers": 2}),
    "rope-interleaved": (BOTH, scheme("rope", layout="interleaved", rotated_share=0.5), {}),
    "rope-linear": (BOTH, scheme("rope", **LINEAR), {}),
    "shape": (BOTH, scheme("shape"), {}),
    "rope-post_norm": (CTRANSLATE2, scheme("rope"), {"norm": "post"}),
    "relative": (CTRANSLATE2, scheme("relative", **SHARED), {"num_layers": 2}),
    "alibi": (CTRANSLATE2, scheme("alibi"), {}),
    "rope-yarn-partial": (TRANSFORMERS, scheme("rope", rotated_share=0.5, **YARN), {}),
    "rope-p-linear": (TRANSFORMERS, scheme("rope", proportion=0.75, layout="interleaved", **LINEAR), {}),
}


@pytest.fixture
def inputs():
    own = ["data=text", "data.path=.", f"data.context_length={CONTEXT}", "model.architecture=decoder_only"]

    def make(positions, vocabulary=BYTES, **changes):
        size = len(vocabulary)
        tokenizer = [] if vocabulary is BYTES else ["data.tokenizer=bpe", f"data.vocabulary_size={size}"]
        pieces = vocabulary.encode(TEXT)
        windows = [[*pieces[at : at + 1 + at * 13 % CONTEXT], EOS] for at in range(0, 48, 8)]
        windows.append([*pieces[:CONTEXT], EOS])
        shape = {"norm": "pre", "num_layers": 1, "d_model": 64, "vocabulary_size": size, **changes}
        model = make_model(decoder_positions=positions, architecture="decoder_only", **shape)
        given = make_export_inputs(model, vocabulary, compose_train([*TINY_MODEL, *own, *tokenizer]))
        return dataclasses.replace(given, sources=[[] for _ in windows], references=windows)

    return make


def exported(kind, folder, given):
    """Skips a test of an optional program that is not installed."""
    pytest.importorskip(kind)
    return export(kind, folder, given)


def assert_card_continues_as_the_model(folder, given, capsys):
    """The card's own lines, which need nothing of rpr, continue a text."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    capsys.readouterr()
    exec(code.replace("FOLDER", str(folder)), {})
    prompt = [BOS, *given.vocabulary.encode("A text")]
    greedy = SamplingConfig(max_new_tokens=100, temperature=0, top_k=None, seed=1, num_samples=1, stop=None)
    [[ours]] = continuations(Engine(given.model.double()), given.vocabulary, [prompt], greedy, 4096)
    text = f"A text{ours.text}"
    assert capsys.readouterr().out.removesuffix("\n")[:50] == text[:50] != "A text"


@pytest.mark.parametrize("name", ["none", "absolute", "learned", "rope"])
def test_transformers_continues_texts_of_a_batch_as_each_alone(name, inputs, tmp_path):
    exported("transformers", tmp_path / "out", inputs(HOMES[name][1]))
    import transformers as program

    model = program.AutoModelForCausalLM.from_pretrained(tmp_path / "out").double()
    tokenizer = program.AutoTokenizer.from_pretrained(tmp_path / "out")

    def continued(texts):
        rows = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), max_new_tokens=20)
        return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

    def log_p_of_x(texts, side):
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
        return model(**batch).logits[-1][batch["attention_mask"][-1].bool()].log_softmax(dim=-1)

    texts = ["A text", "def f(x):\n    return", "x"]
    assert continued(texts) == [text for alone in texts for text in continued([alone])]
    alone, right, left = log_p_of_x(["x"], "left"), log_p_of_x(texts, "right"), log_p_of_x(texts, "left")
    torch.testing.assert_close(right, alone)
    by_column = name in ("absolute", "learned")
    assert torch.allclose(left, alone) != by_column
    assert ("pad it on the right" in (tmp_path / "out" / "README.md").read_text()) == by_column


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", HOMES)
def test_other_programs_give_the_models_log_probabilities_and_text(name, kind, inputs, tmp_path, capsys):
    homes, positions, changes = HOMES[name]
    given = inputs(positions, **changes)
    if kind not in homes:
        with pytest.raises(ConfigError, match="; use format="):
            export(kind, tmp_path / "out", given)
        return
    proven = exported(kind, tmp_path / "out", given)
    assert (proven.sentences, proven.identical) == (7, None)
    assert 0 < proven.largest_difference <= proven.tolerance < 1e-3
    if name in ("none", "rope", "relative"):
        assert_card_continues_as_the_model(tmp_path / "out", given, capsys)


@pytest.mark.parametrize("kind", ["safetensors", *BOTH])
def test_byte_pair_pieces_are_read_as_such_or_refused(kind, inputs, tmp_path, capsys):
    given = inputs(scheme("rope"), TextVocabulary.learn_text(count_text_words(TEXT), 300))
    if kind == "transformers":
        with pytest.raises(ConfigError, match="data.tokenizer: bpe has no exact form in transformers"):
            export(kind, tmp_path / "out", given)
        return
    exported(kind, tmp_path / "out", given)
    if kind == "ctranslate2":
        assert_card_continues_as_the_model(tmp_path / "out", given, capsys)


def test_pairs_are_scored_by_ctranslate2_and_refused_for_transformers(tmp_path):
    model = make_model(decoder_positions=scheme("relative", **SHARED), architecture="decoder_only")
    given = make_export_inputs(model, make_vocabulary(), compose_train(TINY_RUN))
    proven = exported("ctranslate2", tmp_path / "out", given)
    assert proven.identical is None and 0 < proven.largest_difference <= proven.tolerance < 1e-3
    with pytest.raises(ConfigError, match="model.architecture: encoder_dec"):
        export("transformers", tmp_path / "other", dataclasses.replace(given, model=make_model()))


def test_generated_tokens_are_compared_too(inputs, tmp_path, monkeypatch):
    """CTranslate2 scores targets with the right bias, and reads prompts with another."""
    monkeypatch.setattr(ctranslate2, "unrepresentable", lambda config, tokenizer="": None)
    with pytest.raises(RunError, match="the ctranslate2 export does not match the model"):
        exported("ctranslate2", tmp_path / "out", inputs(scheme("t5"), num_layers=2))


def test_alibi_reads_prompts_up_to_the_positions_that_its_card_says(inputs, tmp_path):
    given = inputs(scheme("alibi"))
    exported("ctranslate2", tmp_path / "out", given)
    prompt = [BOS, *given.vocabulary.encode(TEXT * 30)][:2047]
    [(piece, log_p)] = CTranslate2Scorer(tmp_path / "out", given.vocabulary, 1, generator=True).continued([prompt])
    [scores] = Engine(given.model.double()).score([[]], [[*prompt[1:], piece]], 4096)
    assert log_p == pytest.approx(float(scores[len(prompt) - 1]), abs=1e-4)


@pytest.mark.parametrize("broken, message", [
    ("input_embedding", "the transformers export does not match the model"),
    ("_tokenizer", "the exported tokenizer does not reproduce the pieces of the data"),
])  # fmt: skip
def test_a_wrong_export_is_removed(broken, message, inputs, tmp_path, monkeypatch):
    right = getattr(transformers, broken)
    wrong = {
        "input_embedding": lambda model: model.embedding_VM,  # BOS is not zero
        "_tokenizer": lambda: {**right(), "post_processor": None},  # no BOS
    }
    monkeypatch.setattr(transformers, broken, wrong[broken])
    with pytest.raises(RunError, match=message):
        exported("transformers", tmp_path / "out", inputs(scheme("rope")))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("choice, changes", [
    *((choice, {}) for choice in ("fox", "fire", "cope", "xpos", "relative_logits", "rope_none")),
    *((choice, {}) for choice in ("t5", "kerple", "clipped_scalars")),
    *((choice, {"query_log_scale": 0.1}) for choice in ("rope", "none")),
    *(("rope", change) for change in ({"window": 4}, {"sink": True})),
    ("rope", {"proportion": 0.5, "rotated_share": 0.5}), ("relative", {"tables": "per_head"}),
])  # fmt: skip
def test_positions_without_a_home_are_refused(choice, changes):
    shape = changed(TINY, architecture="decoder_only", norm="pre", decoder_positions=scheme(choice, **changes))
    assert "use format=safetensors" in ctranslate2.unrepresentable(shape)
    of_transformers = transformers.unrepresentable(shape, "bytes")
    assert "has no exact form in transformers" in of_transformers
    for name, value in {"norm_type": "rmsnorm", "activation": "swiglu", "qk_norm": True}.items():
        other = changed(TINY, **{"architecture": "decoder_only", "norm": "pre", name: value})
        for refused in (ctranslate2.unrepresentable(other), transformers.unrepresentable(other, "bytes")):
            assert refused.startswith(f"model.{name}: {value} has no exact form in ")
