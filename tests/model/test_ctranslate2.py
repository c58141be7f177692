"""Checked here: the model with relative positions (tables shared by heads), its encoder, its decoder under teacher
forcing and its greedy decoding with a cache, against CTranslate2: a C++ inference engine that is not ours and writes
a_ij out, pair by pair, as equations 3 and 4 do. From us it gets the weights alone, by the export below.

Skipped where ctranslate2 is not installed: it is a development dependency.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rpr.data.vocabulary import BOS, EOS, PAD, UNK
from rpr.model.beam_search import Hypothesis, beam_search
from rpr.model.positions import RelativeTables
from rpr.model.transformer import CrossAttention, FeedForward, Residual, SelfAttention, Shape, Transformer

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="the comparison with CTranslate2 needs it: pip install ctranslate2"
)
transformer_spec = ctranslate2.specs.transformer_spec


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from threads, and on a busy machine wait for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The export


def export_to_ctranslate2(model: Transformer, vocabulary_tokens: list[str], folder: Path) -> None:
    """Write the model as a folder that ctranslate2.Translator opens.

    It wants the source with EOS at its end, as our own decoding does; to EOS alone it answers with nothing. Open it
    without flash_attention, which ignores the decoder's relative tables and adds sinusoids (by CTranslate2's source).

    Args:
        vocabulary_tokens: the text of each piece, in the order of the embedding's rows.
        folder: made if absent.

    Raises:
        ValueError: where CTranslate2 cannot hold the model's positions.
    """
    assert len(vocabulary_tokens) == model.shape.vocabulary_size
    spec = transformer_spec.TransformerSpec(encoder_spec(model), decoder_spec(model))
    spec.config.decoder_start_token = vocabulary_tokens[model.shape.bos]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = False
    spec.register_source_vocabulary(vocabulary_tokens)
    spec.register_target_vocabulary(vocabulary_tokens)
    _save(spec, model, vocabulary_tokens, folder)


def export_encoder_to_ctranslate2(model: Transformer, vocabulary_tokens: list[str], folder: Path) -> None:
    """Write the encoder alone as a folder that ctranslate2.Encoder opens: no Translator shows its encoder's output."""
    spec = transformer_spec.TransformerEncoderModelSpec(encoder_spec(model), pooling_layer=False)
    spec.register_vocabulary(vocabulary_tokens)
    _save(spec, model, vocabulary_tokens, folder)


def encoder_spec(model: Transformer) -> Any:
    _refuse_what_cannot_be_held(model.shape)
    spec = transformer_spec.TransformerEncoderSpec(**_sizes(model.shape))
    spec.scale_embeddings = True  # times sqrt(d_model)
    spec.embeddings[0].weight = _input_embedding(model)
    for layer_spec, layer in zip(spec.layer, model.encoder, strict=True):
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.around_attention)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.shape.norm == "pre":
        _set_norm(spec.layer_norm, model.encoder_norm)
    return spec


def decoder_spec(model: Transformer) -> Any:
    _refuse_what_cannot_be_held(model.shape)
    spec = transformer_spec.TransformerDecoderSpec(**_sizes(model.shape))
    spec.scale_embeddings = True
    spec.embeddings.weight = _input_embedding(model)
    spec.projection.weight = _array(model.embedding_VM)
    for layer_spec, layer in zip(spec.layer, model.decoder, strict=True):
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.around_attention)
        _set_cross_attention(layer_spec.attention, layer.cross_attention, layer.around_cross_attention)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.shape.norm == "pre":
        _set_norm(spec.layer_norm, model.decoder_norm)
    return spec


def _refuse_what_cannot_be_held(shape: Shape) -> None:
    if shape.absolute != "none":
        raise ValueError(f"absolute: {shape.absolute!r} is not exported, only models without absolute positions are")
    if shape.tables == "per_head" and (shape.relative_keys or shape.relative_values):
        raise ValueError("tables: 'per_head' cannot be exported: CTranslate2 has one table for all heads of a layer")


def _sizes(shape: Shape) -> dict[str, Any]:
    return {
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "pre_norm": shape.norm == "pre",
        "activation": ctranslate2.specs.Activation.RELU,
        "relative_position": True,
    }


def _set_self_attention(spec: Any, attention: SelfAttention, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.norm)
    spec.linear[0].weight = _array(attention.qkv.weight)  # queries, keys, values: the same order as ours
    spec.linear[1].weight = _array(attention.output.weight)
    d_head = attention.output.weight.shape[0] // attention.num_heads
    spec.relative_position_keys, spec.relative_position_values = _both_tables(attention.tables, d_head)


def _set_cross_attention(spec: Any, attention: CrossAttention, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.norm)
    for linear_spec, linear in zip(spec.linear, (attention.query, attention.key_value, attention.output), strict=True):
        linear_spec.weight = _array(linear.weight)


def _set_feed_forward(spec: Any, feed_forward: FeedForward, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.norm)
    for linear_spec, linear in ((spec.linear_0, feed_forward.inner), (spec.linear_1, feed_forward.outer)):
        linear_spec.weight = _array(linear.weight)
        linear_spec.bias = _array(linear.bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _both_tables(tables: RelativeTables | None, d_head: int) -> tuple[Any, Any]:
    """Key and value table, [R, D] each: zeros, of as many rows as the other has, for what the model does without.

    CTranslate2 requires both; it reads k off the key table, and adds sinusoids where there is no such table.
    """
    if tables is None:
        return _array(torch.zeros(1, d_head)), _array(torch.zeros(1, d_head))
    present = tables.values if tables.keys is None else tables.keys
    zeros = torch.zeros_like(present)
    keys, values = (zeros if table is None else table for table in (tables.keys, tables.values))
    return _array(keys), _array(values)


def _input_embedding(model: Transformer) -> Any:
    """The embedding with the zero vector for BOS, which the projection to the vocabulary must not have.

    (CTranslate2's flag start_from_zero_embedding would save this copy, but with return_alternatives it zeroes all of a
    target_prefix: seen with 4.8.5.)
    """
    embedding_VM = model.embedding_VM.detach().clone()
    embedding_VM[model.shape.bos] = 0.0
    return _array(embedding_VM)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def _save(spec: Any, model: Transformer, vocabulary_tokens: list[str], folder: Path) -> None:
    spec.config.bos_token = vocabulary_tokens[BOS]
    spec.config.eos_token = vocabulary_tokens[EOS]
    spec.config.unk_token = vocabulary_tokens[UNK]
    spec.config.layer_norm_epsilon = model.shape.norm_epsilon  # CTranslate2 takes 1e-5 where nothing is said
    spec.validate()
    spec.optimize()  # stores equal matrices once
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


# The models and sentences compared

VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", *(f"piece{index}" for index in range(4, 100))]
BASIC = Shape(
    vocabulary_size=len(VOCABULARY),
    num_layers=2,
    d_model=32,
    num_heads=4,
    d_ff=48,
    dropout=0.0,
    norm="post",
    norm_epsilon=1e-2,  # so large that CTranslate2's own 1e-5 in its place would show
    absolute="none",
    max_positions=1,
    relative_keys=True,
    relative_values=True,
    clip_distance=3,
    tables="shared_by_heads",
    bos=BOS,
    pad=PAD,
)
TABLES = {
    "keys_and_values": {},
    "keys": {"relative_values": False},
    "values": {"relative_keys": False},
}
GRID = {
    f"{tables}-k_{clip_distance}-{norm}_norm": {**changes, "clip_distance": clip_distance, "norm": norm}
    for tables, changes in TABLES.items()
    for clip_distance in (0, 1, 3, 16)
    for norm in ("post", "pre")
}
GRID["one_table_for_all_layers"] = {"tables": "shared_by_heads_and_layers"}
GRID["no_positions"] = {"relative_keys": False, "relative_values": False}

# The largest difference allowed between our float32 and theirs. Both round to 6e-8 of a number's size (hidden values
# reach 10, logits 13), in different orders of summation, and two layers with sharp softmaxes amplify that. Measured
# over the grid: at most 2.3e-5 between the two, and from our model in float64 3.1e-5 of ours and 3.2e-5 of theirs.
ROUNDING = 2e-4
MISTAKE = 100 * ROUNDING


def make_model(**changes: Any) -> Transformer:
    """A float32 model in eval mode, all parameters random, such that greedy outputs differ and some of them end.

    The attentions weigh more than the feed-forward networks, whose ReLUs point the same way for each input, and norms
    have factors of either sign, or else the piece just fed would win again.
    """
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(BASIC, **changes)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name == "embedding_VM":
            nn.init.normal_(parameter, std=2 * BASIC.d_model**-0.5)
            parameter[EOS] *= 1.5  # now and then the likeliest
        elif ".tables." in name:
            nn.init.normal_(parameter, std=0.5)
        elif parameter.dim() == 2:
            gain = 0.5 if "feed_forward" in name else 1.5
            nn.init.normal_(parameter, std=gain * parameter.shape[1] ** -0.5)
        elif "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter)
        else:
            nn.init.normal_(parameter, std=0.1)
    return model


def sentences(lengths: Sequence[int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, len(VOCABULARY), (length,), generator=generator).tolist() for length in lengths]


# 40 sentences in no order of length: sources of 2 to 41 pieces, EOS counted, targets of 1 to 40. That is shorter and
# longer than each k. (A source of EOS alone is left out: to it CTranslate2 answers with nothing, without the model.)
SOURCES = [[*pieces, EOS] for pieces in sentences([1 + index * 7 % 40 for index in range(40)], seed=1)]
TARGETS = [[*pieces, EOS] for pieces in sentences([index * 11 % 40 for index in range(40)], seed=2)]
MAX_EXTRA_LENGTH = 10


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def texts(rows: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[VOCABULARY[piece] for piece in row] for row in rows]


@dataclass(frozen=True)
class Engine:
    """A model as CTranslate2 runs it, on one thread, in float32."""

    translator: Any
    encoder: Any

    @classmethod
    def of(cls, model: Transformer, folder: Path) -> Engine:
        export_to_ctranslate2(model, VOCABULARY, folder / "model")
        export_encoder_to_ctranslate2(model, VOCABULARY, folder / "encoder")
        options = {"compute_type": "float32", "inter_threads": 1, "intra_threads": 1}
        return cls(
            ctranslate2.Translator(str(folder / "model"), flash_attention=False, **options),
            ctranslate2.Encoder(str(folder / "encoder"), flash_attention=False, **options),
        )


@pytest.fixture(scope="module", params=GRID)
def pair(request, tmp_path_factory):
    model = make_model(**GRID[request.param])
    return model, Engine.of(model, tmp_path_factory.mktemp("ctranslate2"))


def encoder_difference(model: Transformer, engine: Engine) -> float:
    """The largest of any position of any source, all sources in one padded batch."""
    memory_BSM, mask = model.encode(padded(SOURCES))
    theirs_BSM = torch.from_numpy(np.array(engine.encoder.forward_batch(SOURCES).last_hidden_state))
    assert theirs_BSM.shape == memory_BSM.shape
    return (theirs_BSM - memory_BSM)[mask[:, 0, 0]].abs().max().item()


def log_probabilities(
    model: Transformer, targets: Sequence[Sequence[int]], *, suppressed: Sequence[int] = ()
) -> Tensor:
    """Of every piece at every position of the targets, fed to the whole decoder at once: [B, T, V]."""
    inputs_BT = padded([[BOS, *target[:-1]] for target in targets])
    logits_BTV = model.logits(model(padded(SOURCES), inputs_BT))
    logits_BTV[..., list(suppressed)] = -torch.inf
    return logits_BTV.log_softmax(dim=-1)


def of_the_targets(log_p_BTV: Tensor, targets: Sequence[Sequence[int]]) -> list[Tensor]:
    return [log_p_TV[range(len(t)), t] for log_p_TV, t in zip(log_p_BTV, targets, strict=True)]


def their_log_probabilities(engine: Engine, targets: Sequence[Sequence[int]]) -> list[Tensor]:
    """The same as CTranslate2 has it: it puts BOS before and EOS behind each target itself."""
    results = engine.translator.score_batch(texts(SOURCES), texts([target[:-1] for target in targets]))
    return [torch.tensor(result.log_probs) for result in results]


def score_difference(model: Transformer, engine: Engine) -> float:
    ours = of_the_targets(log_probabilities(model, TARGETS), TARGETS)
    theirs = their_log_probabilities(engine, TARGETS)
    assert [len(row) for row in theirs] == [len(target) for target in TARGETS]
    return (torch.cat(ours) - torch.cat(theirs)).abs().max().item()


def greedy(model: Transformer) -> list[Hypothesis]:
    found = beam_search(
        model, padded(SOURCES), beam_size=1, length_penalty=0.0, max_extra_length=MAX_EXTRA_LENGTH, eos=EOS
    )
    return [hypotheses[0] for hypotheses in found]


def their_greedy(engine: Engine) -> Any:
    return engine.translator.translate_batch(
        texts(SOURCES),
        beam_size=1,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=max(map(len, SOURCES)) + MAX_EXTRA_LENGTH,
        suppress_sequences=texts([[PAD], [BOS]]),
        return_end_token=True,
        return_scores=True,
    )


# The comparison


def test_the_encoder_gives_what_ctranslate2_gives(pair):
    assert encoder_difference(*pair) < ROUNDING


def test_every_piece_of_given_targets_has_the_probability_ctranslate2_gives_it(pair):
    assert score_difference(*pair) < ROUNDING


def test_greedy_decoding_writes_what_ctranslate2_writes(pair):
    model, engine = pair
    found = greedy(model)
    outputs = [[*hypothesis.pieces, *([EOS] if hypothesis.finished else [])] for hypothesis in found]
    targets = [[*hypothesis.pieces, EOS] for hypothesis in found]
    log_p_BTV = log_probabilities(model, targets, suppressed=(PAD, BOS))
    best_BT, second_BT = log_p_BTV.topk(2, dim=-1).values.unbind(dim=-1)
    ties_BT = best_BT - second_BT < ROUNDING
    num_whole = 0
    for output, result, ties_T, log_p_T in zip(
        outputs, their_greedy(engine), ties_BT, of_the_targets(log_p_BTV, targets), strict=True
    ):
        # Where the two likeliest pieces are equal but for rounding, either may come, and then another sentence.
        ties = ties_T[: len(output)].nonzero()
        certain = int(ties[0]) if len(ties) else len(output)
        theirs = result.hypotheses[0][: len(output)]  # our limit is each source's own, theirs that of the longest
        assert theirs[:certain] == texts([output])[0][:certain]
        num_whole += certain == len(output)
        if result.hypotheses[0] == texts([output])[0]:
            # Their probabilities add up to 1 without PAD and BOS.
            expected = log_p_T[: len(output)].sum().item()
            assert result.scores[0] == pytest.approx(expected, abs=len(output) * ROUNDING)
    assert num_whole >= 35  # of 40

    for hypothesis, output, log_p_T in zip(found, outputs, their_log_probabilities(engine, targets), strict=True):
        theirs = log_p_T[: len(output)].sum().item()
        assert hypothesis.log_probability == pytest.approx(theirs, abs=len(output) * ROUNDING)

    # The cache was longer than every k, and this was not one sentence 40 times.
    assert sum(len(output) > 17 for output in outputs) >= 10
    assert len({tuple(output[:16]) for output in outputs}) >= 10


def test_greedy_outputs_compared_are_some_that_end_and_some_that_do_not():
    ended = [hypothesis.finished for hypothesis in greedy(make_model())]
    assert ended.count(True) >= 10
    assert ended.count(False) >= 10


# The comparison can fail


def all_tables(model: Transformer) -> list[RelativeTables]:
    return [layer.self_attention.tables for layer in (*model.encoder, *model.decoder)]


def flip_tables(model: Transformer) -> None:
    """i - j for j - i."""
    for tables in all_tables(model):
        tables.keys, tables.values = nn.Parameter(tables.keys.flip(0)), nn.Parameter(tables.values.flip(0))


def exchange_tables(model: Transformer) -> None:
    for tables in all_tables(model):
        tables.keys, tables.values = tables.values, tables.keys


def clip_sooner(model: Transformer) -> None:
    """At 2 instead of 3."""
    for tables in all_tables(model):
        tables.keys, tables.values = nn.Parameter(tables.keys[1:-1]), nn.Parameter(tables.values[1:-1])


def leave_out_keys(model: Transformer) -> None:
    for tables in all_tables(model):
        tables.keys = None


def leave_out_values(model: Transformer) -> None:
    for tables in all_tables(model):
        tables.values = None


def lose_the_norms_epsilon(model: Transformer) -> None:
    model.shape = dataclasses.replace(model.shape, norm_epsilon=1e-5)


MUTATIONS = [flip_tables, exchange_tables, clip_sooner, leave_out_keys, leave_out_values, lose_the_norms_epsilon]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_an_export_that_is_wrong_differs_by_far_more_than_rounding(mutate, tmp_path):
    model = make_model()
    mutant = copy.deepcopy(model)
    mutate(mutant)
    engine = Engine.of(mutant, tmp_path)
    assert encoder_difference(model, engine) > MISTAKE
    assert score_difference(model, engine) > MISTAKE
    ours = texts([hypothesis.pieces for hypothesis in greedy(model)])
    theirs = [result.hypotheses[0] for result in their_greedy(engine)]
    assert sum(b[: len(a)] != a for a, b in zip(ours, theirs, strict=True)) > 5  # of 40; where none may be


def test_a_decoder_that_starts_from_the_embedding_of_bos_differs_too(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "_input_embedding", lambda model: _array(model.embedding_VM))
    model = make_model()
    engine = Engine.of(model, tmp_path)
    assert encoder_difference(model, engine) < ROUNDING
    assert score_difference(model, engine) > MISTAKE


# What cannot be exported


def test_tables_per_head_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match="tables: 'per_head' cannot be exported: CTranslate2 has one table for all heads"
    ):
        export_to_ctranslate2(make_model(tables="per_head"), VOCABULARY, tmp_path)


@pytest.mark.parametrize("absolute", ["sinusoidal", "learned"])
def test_absolute_positions_are_refused(absolute, tmp_path):
    with pytest.raises(ValueError, match=f"absolute: '{absolute}' is not exported"):
        export_to_ctranslate2(make_model(absolute=absolute), VOCABULARY, tmp_path)
