"""Checked here: the whole model, pre-norm and post-norm, against its equations written out over `reference` attention
(itself checked by loops in test_attention.py) in float64; parameter counts against formulas worked by hand; cached
decoding against full decoding; and properties: padding, shifts, permutations, causality, tied embeddings.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rpr.model import transformer
from rpr.model.attention import attend, reference
from rpr.model.dropout import Dropout
from rpr.model.incremental import small_products_exact
from rpr.model.transformer import Transformer
from tests.shapes import changed, scheme, shape

pytestmark = pytest.mark.usefixtures("one_thread")


PAD, EOS, BOS = 0, 1, 2
TINY = shape(
    vocabulary_size=23,
    num_layers=2,
    d_model=12,
    num_heads=3,
    d_ff=10,
    dropout=0.0,
    norm="post",
    norm_epsilon=1e-6,
    absolute="none",
    max_positions=6,  # fewer than the sentences here have: learned positions must go on beyond their table
    relative_keys=False,
    relative_values=False,
    clip_distance=2,
    tables="per_head",
)


def both(positions):
    return {"encoder_positions": positions, "decoder_positions": positions}


RELATIVE = {"relative_keys": True, "relative_values": True}
KINDS = {
    "none": {},
    "sinusoidal": {"absolute": "sinusoidal"},
    "learned": {"absolute": "learned"},
    "relative": RELATIVE,
    "relative_k_0": RELATIVE | {"clip_distance": 0},
    "relative_k_64": RELATIVE | {"clip_distance": 64},
    "relative_keys": {"relative_keys": True},
    "relative_values": {"relative_values": True},
    "shared_by_heads": RELATIVE | {"tables": "shared_by_heads"},
    "shared_by_heads_and_layers": RELATIVE | {"tables": "shared_by_heads_and_layers"},
    "sinusoidal_and_relative": RELATIVE | {"absolute": "sinusoidal"},
    "rope": both(scheme("rope")),
    "rope_interleaved": both(scheme("rope", layout="interleaved", rotated_share=0.5, base=50.0)),
    "rope_linear": both(scheme("rope", scaling="linear", scaling_factor=3.0)),
    "rope_ntk": both(scheme("rope", scaling="ntk", scaling_factor=3.0)),
    "t5": both(scheme("t5", buckets=8, max_distance=6)),
    "t5_by_layer": both(scheme("t5", buckets=8, max_distance=6, one_table=False, scaled_queries=False)),
    "alibi": both(scheme("alibi")),
    "alibi_asymmetric": both(scheme("alibi", encoder_form="asymmetric")),
    "alibi_and_sinusoidal": both(scheme("alibi", absolute="sinusoidal")),
    "kerple": both(scheme("kerple")),
    "kerple_power": both(scheme("kerple", form="power")),
    "clipped_scalars": both(scheme("clipped_scalars", clip_distance=2)),
    "clipped_scalars_and_keys": both(scheme("clipped_scalars", clip_distance=2, keys=True)),
    "transformer_xl": both(scheme("transformer_xl")),
    "shape": both(scheme("shape")),
    "relative_and_none": {"encoder_positions": scheme("relative"), "decoder_positions": scheme("none")},
    "alibi_and_rope": {"encoder_positions": scheme("alibi"), "decoder_positions": scheme("rope")},
}
SHIFT_INVARIANT = {name: changed(TINY, **kind).encoder_positions.shift_invariant for name, kind in KINDS.items()}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
NORMS = pytest.mark.parametrize("norm", ["post", "pre"])


def make_model(kind="none", **changes):
    """A float64 model in eval mode whose parameters, norms and biases included, are all random."""
    torch.manual_seed(0)
    model = Transformer(changed(TINY, **{**KINDS[kind], **changes})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    for name, parameter in model.named_parameters():
        if name.endswith(("tables.p", "tables.a")):  # of KERPLE, which keeps them positive
            nn.init.uniform_(parameter, 0.1, 1.0)
    return model.requires_grad_(False)


def sentences(*lengths, seed=1):
    """Random pieces (no special ones) with EOS, padded on the right: [B, S]."""
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(pieces, lengths, strict=True):
        row[: length - 1] = torch.randint(4, TINY.vocabulary_size, (length - 1,), generator=generator)
        row[length - 1] = EOS
    return pieces


def target_inputs(*lengths, seed=2):
    """BOS and then the pieces: what the decoder is fed in training."""
    pieces = sentences(*(length + 1 for length in lengths), seed=seed)[:, :-1]
    return torch.cat([torch.full((len(lengths), 1), BOS), pieces], dim=1)[:, : max(lengths)]


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def inputs_of(module, run):
    """The first argument of each call to a module while `run` runs."""
    seen = []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    run()
    hook.remove()
    return seen


# The equations of the model, written out


def norm_by_hand(x, norm, epsilon):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt() * norm.weight + norm.bias


def attention_by_hand(shape, x, y, w_q, w_k, w_v, w_o, mask, tables=None):
    """x asks, y answers; each head takes its own slice of the projections."""
    width = shape.d_model // shape.num_heads
    heads = []
    for h in range(shape.num_heads):
        rows = slice(h * width, (h + 1) * width)
        one_head = {}
        for name in ("keys", "values"):
            table = getattr(tables, name, None)
            one_head[name[:-1] + "_table"] = table[h] if table is not None and table.dim() == 3 else table
        q, k, v = ((z @ w[rows].T)[:, None] for z, w in ((x, w_q), (y, w_k), (y, w_v)))
        heads.append(reference(q, k, v, mask=mask, **one_head)[:, 0])
    return torch.cat(heads, dim=-1) @ w_o.T


def forward_by_hand(model, source, target_input, positions):
    """Hidden states of every target position: post-norm norm(x + f(x)), pre-norm x + f(norm(x)) and a last norm."""
    shape = model.config

    def residual(x, part, function):
        if shape.norm == "post":
            return norm_by_hand(x + function(x), part.norm, shape.norm_epsilon)
        return x + function(norm_by_hand(x, part.norm, shape.norm_epsilon))

    def self_attention(part, mask):
        w_q, w_k, w_v = part.qkv.weight.split(shape.d_model)
        return lambda x: attention_by_hand(shape, x, x, w_q, w_k, w_v, part.output.weight, mask, part.tables)

    def feed_forward(part):
        return lambda x: (x @ part.inner.weight.T + part.inner.bias).relu() @ part.outer.weight.T + part.outer.bias

    def embed(pieces):
        vectors = model.embedding_VM[pieces] * shape.d_model**0.5
        vectors[pieces == BOS] = 0
        return vectors + positions[: pieces.shape[1]]

    source_mask = (source != PAD)[:, None, None, :]
    x = embed(source)
    for layer in model.encoder:
        x = residual(x, layer.around_attention, self_attention(layer.self_attention, source_mask))
        x = residual(x, layer.around_feed_forward, feed_forward(layer.feed_forward))
    memory = norm_by_hand(x, model.encoder_norm, shape.norm_epsilon) if shape.norm == "pre" else x

    causal = torch.ones(target_input.shape[1], target_input.shape[1]).tril().bool()
    x = embed(target_input)
    for layer in model.decoder:
        x = residual(x, layer.around_attention, self_attention(layer.self_attention, causal))
        cross = layer.cross_attention
        w_k, w_v = cross.key_value.weight.split(shape.d_model)
        w_q, w_o = cross.query.weight, cross.output.weight
        x = residual(
            x,
            layer.around_cross_attention,
            lambda y, p=(w_q, w_k, w_v, w_o): attention_by_hand(shape, y, memory, *p, source_mask),
        )
        x = residual(x, layer.around_feed_forward, feed_forward(layer.feed_forward))
    return norm_by_hand(x, model.decoder_norm, shape.norm_epsilon) if shape.norm == "pre" else x


@pytest.mark.parametrize("norm, norm_epsilon", [("post", 1e-6), ("pre", 1e-6), ("post", 0.5)])
@pytest.mark.parametrize(
    "kind", ["none", "relative", "relative_keys", "relative_values", "shared_by_heads", "shared_by_heads_and_layers"]
)
def test_the_model_equals_its_equations_written_out(kind, norm, norm_epsilon):
    model = make_model(kind, norm=norm, norm_epsilon=norm_epsilon)
    source, target = sentences(9, 5, 7), target_inputs(6, 8, 3)
    no_positions = torch.zeros(9, TINY.d_model, dtype=torch.float64)
    assert_equal(model(source, target), forward_by_hand(model, source, target, no_positions))


@NORMS
def test_learned_positions_enter_the_equations_on_both_sides(norm):
    model = make_model("learned", norm=norm, max_positions=20)
    model.target_positions.weight_LM.copy_(model.source_positions.weight_LM)  # one table serves the check of both
    source, target = sentences(9, 5), target_inputs(6, 8)
    assert_equal(model(source, target), forward_by_hand(model, source, target, model.source_positions.weight_LM))


def test_source_and_target_learn_their_own_positions():
    model = make_model("learned")
    source, target = sentences(5), target_inputs(5)
    memory, mask = model.encode(source)
    hidden = model.decode(target, memory, mask)
    model.target_positions.weight_LM.add_(1.0)
    assert torch.equal(model.encode(source)[0], memory)
    assert (model.decode(target, memory, mask) - hidden).abs().max() > 1e-3


def test_pre_norm_and_post_norm_differ():
    source, target = sentences(6), target_inputs(5)
    post = make_model("relative", norm="post")(source, target)
    assert (make_model("relative", norm="pre")(source, target) - post).abs().max() > 1e-2


def test_fresh_norms_leave_every_vector_with_mean_0_and_variance_1():
    # Post-norm ends in its layers' norms, pre-norm in a last one of its own: with weight 1 and bias 0 both show.
    for norm in ("post", "pre"):
        model = Transformer(changed(TINY, norm=norm)).double().eval()
        memory, mask = model.encode(sentences(7))
        for vectors in (memory, model.decode(target_inputs(5), memory, mask)):
            torch.testing.assert_close(vectors.mean(dim=-1), torch.zeros_like(vectors[..., 0]), rtol=0, atol=1e-6)
            torch.testing.assert_close(
                vectors.var(dim=-1, correction=0), torch.ones_like(vectors[..., 0]), rtol=1e-3, atol=0
            )


# Padding, shifts, permutations, causality


@ALL_KINDS
@NORMS
def test_more_padding_on_the_right_changes_nothing(kind, norm):
    model = make_model(kind, norm=norm)
    source, target = sentences(6, 4), target_inputs(5, 3)
    memory, mask = model.encode(source)
    longer = torch.cat([source, torch.full((2, 5), PAD)], dim=1)
    padded_memory, padded_mask = model.encode(longer)
    assert mask.tolist() == [[[[True] * 6]], [[[True] * 4 + [False] * 2]]]
    real = source != PAD
    assert_equal(padded_memory[:, :6][real], memory[real])
    hidden = model.decode(target, memory, mask)
    assert_equal(model.decode(target, padded_memory, padded_mask), hidden)
    more_target = torch.cat([target, torch.full((2, 4), PAD)], dim=1)
    assert_equal(model.decode(more_target, memory, mask)[:, :5], hidden)


@ALL_KINDS
def test_a_sentence_does_not_see_the_others_of_its_batch(kind):
    model = make_model(kind)
    source, target = sentences(7, 4, 2), target_inputs(3, 6, 2)
    together = model(source, target)
    for row, (source_length, target_length) in enumerate([(7, 3), (4, 6), (2, 2)]):
        alone = model(source[row : row + 1, :source_length], target[row : row + 1, :target_length])
        assert_equal(together[row : row + 1, :target_length], alone)


def outputs_before_and_after_a_shift(model):
    """Encoder outputs of a sentence's real positions, and decoder outputs, with its padding right and then left."""
    source, target = sentences(6), target_inputs(5)
    padding = torch.full((1, 4), PAD)
    early = model.encode(torch.cat([source, padding], dim=1))
    late = model.encode(torch.cat([padding[:, :3], source, padding[:, 3:]], dim=1))
    return early[0][:, :6], late[0][:, 3:9], model.decode(target, *early), model.decode(target, *late)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if SHIFT_INVARIANT[kind]])
@NORMS
def test_shifting_a_sentence_inside_its_padding_leaves_relative_outputs_unchanged(kind, norm):
    early, late, hidden, hidden_late = outputs_before_and_after_a_shift(make_model(kind, norm=norm))
    assert_equal(late, early)
    assert_equal(hidden_late, hidden)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not SHIFT_INVARIANT[kind]])
def test_shifting_a_sentence_inside_its_padding_changes_absolute_outputs(kind):
    early, late, hidden, hidden_late = outputs_before_and_after_a_shift(make_model(kind))
    assert (late - early).abs().max() > 1e-2
    assert (hidden_late - hidden).abs().max() > 1e-3


def encoded_permutation(model):
    """Encoder outputs of permuted sentences, and the permuted outputs of the sentences."""
    source = sentences(8, 5)
    order = torch.tensor([3, 0, 6, 7, 2, 5, 1, 4])  # padding moves too
    return model.encode(source[:, order])[0][source[:, order] != PAD], model.encode(source)[0][:, order][
        source[:, order] != PAD
    ]


@pytest.mark.parametrize("kind", ["none", "relative_k_0"])
@NORMS
def test_without_positions_and_with_k_0_the_encoder_knows_no_order(kind, norm):
    permuted, expected = encoded_permutation(make_model(kind, norm=norm))
    assert_equal(permuted, expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("none", "relative_k_0")])
def test_with_any_other_positions_the_encoder_knows_order(kind):
    permuted, expected = encoded_permutation(make_model(kind))
    assert (permuted - expected).abs().max() > 1e-3


def test_k_0_on_keys_alone_is_no_positions_at_all():
    model = make_model("relative_keys", clip_distance=0)
    plain = make_model("none")
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if ".tables." not in name})
    source, target = sentences(8, 5), target_inputs(6, 4)
    assert_equal(model(source, target), plain(source, target))


@ALL_KINDS
@NORMS
def test_later_inputs_do_not_change_earlier_outputs(kind, norm):
    model = make_model(kind, norm=norm)
    memory, mask = model.encode(sentences(6))
    target = target_inputs(9)
    hidden = model.decode(target, memory, mask)
    for position in range(1, 9):
        changed = target.clone()
        changed[0, position] = 4 + (changed[0, position] - 3) % 19  # another piece
        again = model.decode(changed, memory, mask)
        assert_equal(again[:, :position], hidden[:, :position])
        assert (again[:, position:] - hidden[:, position:]).abs().amax(dim=-1).min() > 1e-6


# Cached decoding


@ALL_KINDS
@NORMS
def test_cached_decoding_equals_full_decoding_step_by_step(kind, norm):
    model = make_model(kind, norm=norm)
    source, target = sentences(7, 4), target_inputs(9, 9)
    full = model.logits(model(source, target))
    state = model.start_decoding(source)
    for position in range(9):
        assert_equal(model.next_logits(target[:, position : position + 1], state), full[:, position])
        assert state.length == position + 1


@ALL_KINDS
@pytest.mark.parametrize("pieces", [(9,), (4, 5), (1, 3, 1, 4), (5, 1, 1, 2)])
def test_several_pieces_at_once_equal_full_decoding(kind, pieces):
    model = make_model(kind)
    source, target = sentences(7, 4), target_inputs(9, 9)
    full = model.logits(model(source, target))
    state = model.start_decoding(source)
    end = 0
    for count in pieces:
        end += count
        assert_equal(model.next_logits(target[:, end - count : end], state), full[:, end - 1])
        assert state.length == end


@pytest.mark.parametrize("kind", ["relative", "sinusoidal_and_relative", "learned"])
def test_hypotheses_of_several_sentences_survive_selection_and_leaving_sentences(kind):
    model = make_model(kind)
    source = sentences(7, 4, 5)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])  # two hypotheses a sentence
    prefixes = target_inputs(*[5] * 6)
    state = model.start_decoding(source)

    def check(position):
        full = model.logits(model(source[rows], prefixes[:, : position + 1]))[:, -1]
        assert_equal(model.next_logits(prefixes[:, position : position + 1], state), full)

    for position in range(3):
        check(position)
    # Both hypotheses of the second sentence go on from its second, the first two change places; then the second
    # sentence ends, and the hypotheses of the others stay.
    swap = torch.tensor([1, 0, 3, 3, 4, 5])
    state.select(swap)
    prefixes[:, :3] = prefixes[swap, :3]
    check(3)
    stay = torch.tensor([0, 1, 4, 5])
    state.select(stay, torch.tensor([0, 2]))
    prefixes, rows = prefixes[stay], rows[stay]
    check(4)


def test_selection_before_the_first_step_keeps_the_empty_caches():
    model = make_model("relative")
    source = sentences(7, 4)
    state = model.start_decoding(source)
    state.select(torch.tensor([1]), torch.tensor([1]))
    expected = model.logits(model(source[1:], torch.tensor([[BOS]])))[:, 0]
    assert_equal(model.next_logits(torch.tensor([[BOS]]), state), expected)


@pytest.mark.parametrize("implementation", ["dense", "blockwise", "composed"])
@pytest.mark.parametrize("kind", ["none", "relative", "shared_by_heads"])
def test_the_choice_of_implementation_reaches_every_self_attention_and_changes_no_output(
    kind, implementation, monkeypatch
):
    model = make_model(kind)
    source, target = sentences(7, 4), target_inputs(5, 6)
    expected = model(source, target)
    asked = []

    def attend_and_tell(*arguments, implementation="auto", **named):
        asked.append(implementation)
        return attend(*arguments, implementation=implementation, **named)

    monkeypatch.setattr(transformer, "attend", attend_and_tell)
    model.use_attention(implementation)
    assert_equal(model(source, target), expected)
    # two layers a stack; encoder-decoder attention has no tables and no choice
    assert sorted(asked) == sorted([implementation] * 4 + ["auto"] * 2)
    state = model.start_decoding(source)
    full = model.logits(expected)
    for position in range(3):
        assert_equal(model.next_logits(target[:, position : position + 1], state), full[:, position])


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_step_of_decoding_computes_its_small_products_exactly_and_leaves_the_precision_as_it_was(precision):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", torch.bfloat16), small_products_exact(torch.zeros(1)):
            assert torch.get_float32_matmul_precision() == "highest"
            assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32
        assert torch.get_float32_matmul_precision() == precision
        with pytest.raises(KeyError), small_products_exact(torch.zeros(1)):
            raise KeyError
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_several_pieces_of_several_hypotheses_are_as_one_after_the_other():
    model = make_model("relative")
    source, target = sentences(7, 4), target_inputs(3, 3, 3, 3)
    at_once = model.next_logits(target, model.start_decoding(source))
    expected = model.logits(model(source.repeat_interleave(2, dim=0), target))[:, -1]
    assert_equal(at_once, expected)


def test_another_number_of_hypotheses_than_the_state_has_is_a_programming_error():
    model = make_model("relative")
    state = model.start_decoding(sentences(7, 4))
    model.next_logits(torch.full((4, 1), BOS), state)
    with pytest.raises(AssertionError, match="3 hypotheses per sentence fed, but the state has 2"):
        model.next_logits(torch.full((6, 1), BOS), state)


# The embedding


def first_inputs(model, source, target):
    """What the first encoder and the first decoder layer receive."""
    (x,) = inputs_of(model.encoder[0], lambda: model.encode(source))
    (y,) = inputs_of(model.decoder[0], lambda: model(source, target))
    return x, y


def test_pieces_enter_as_their_embedding_times_sqrt_d_model_and_bos_as_zero():
    model = make_model("none")
    source, target = sentences(6), target_inputs(5)
    x, y = first_inputs(model, source, target)
    assert_equal(x, model.embedding_VM[source] * math.sqrt(12))
    assert_equal(y[:, 1:], model.embedding_VM[target[:, 1:]] * math.sqrt(12))
    assert torch.equal(y[:, 0], torch.zeros(1, 12, dtype=torch.float64))


def test_bos_enters_as_its_position_alone_and_its_row_as_input_is_never_read():
    model = make_model("sinusoidal")
    source, target = sentences(6), target_inputs(5)
    _, y = first_inputs(model, source, target)
    assert y[0, 0].tolist() == [0.0] * 6 + [1.0] * 6  # sines and cosines of 0
    hidden = model(source, target)
    model.embedding_VM[BOS] += 100.0
    assert torch.equal(model(source, target), hidden)


def test_one_embedding_serves_source_target_and_softmax():
    model = make_model("relative")
    source, target = sentences(6), target_inputs(5)
    piece = 3  # occurs on neither side yet
    assert piece not in source and piece not in target
    memory, mask = model.encode(source)
    hidden = model.decode(target, memory, mask)
    logits = model.logits(hidden)
    with_piece, target_with_piece = source.clone(), target.clone()
    with_piece[0, 2] = target_with_piece[0, 2] = piece
    before = model.encode(with_piece)[0], model.decode(target_with_piece, memory, mask)

    model.embedding_VM[piece] += 1.0
    assert torch.equal(model.encode(source)[0], memory)  # nothing read that row ...
    assert torch.equal(model.decode(target, memory, mask), hidden)
    assert (model.encode(with_piece)[0] - before[0]).abs().max() > 1e-3  # ... and now the source does,
    assert (model.decode(target_with_piece, memory, mask) - before[1]).abs().max() > 1e-3  # the target does,
    assert_equal(model.logits(hidden)[..., piece], logits[..., piece] + hidden.sum(dim=-1))  # and the softmax does,
    others = torch.arange(TINY.vocabulary_size) != piece
    assert_equal(model.logits(hidden)[..., others], logits[..., others])  # in that piece's score only.
    assert [name for name, x in model.named_parameters() if TINY.vocabulary_size in x.shape] == ["embedding_VM"]


def test_logits_are_products_with_every_embedding():
    model = make_model("none")
    hidden = torch.randn(2, 3, 12, dtype=torch.float64)
    logits = model.logits(hidden)
    assert logits.shape == (2, 3, 23)
    assert logits[1, 2, 7].item() == pytest.approx(
        sum(a * b for a, b in zip(hidden[1, 2], model.embedding_VM[7], strict=True))
    )


# Parameters


def count(shape):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(shape).parameters())


BASE = shape(
    vocabulary_size=32_768,
    num_layers=6,
    d_model=512,
    num_heads=8,
    d_ff=1024,
    dropout=0.1,
    norm="post",
    norm_epsilon=1e-6,
    absolute="none",
    max_positions=256,
    relative_keys=True,
    relative_values=True,
    clip_distance=16,
    tables="per_head",
)


def test_the_papers_base_model_has_the_parameters_counted_by_hand():
    embedding = 32_768 * 512  #                              16,777,216
    attention = 4 * 512 * 512  #                              1,048,576  no biases
    feed_forward = 512 * 1024 + 1024 + 1024 * 512 + 512  #    1,050,112
    norm = 2 * 512  #                                             1,024
    tables = 2 * 8 * 33 * 64  #                                  33,792  keys and values, 8 heads, 2 * 16 + 1 rows
    encoder_layer = attention + tables + feed_forward + 2 * norm
    decoder_layer = 2 * attention + tables + feed_forward + 3 * norm
    assert embedding + 6 * (encoder_layer + decoder_layer) == 48_689_152
    assert count(BASE) == 48_689_152


@pytest.mark.parametrize(
    "changes, difference",
    [
        ({"relative_keys": False, "relative_values": False}, -12 * 2 * 8 * 33 * 64),
        ({"relative_keys": False}, -12 * 8 * 33 * 64),
        ({"relative_values": False}, -12 * 8 * 33 * 64),
        ({"clip_distance": 0}, -12 * 2 * 8 * 32 * 64),
        ({"tables": "shared_by_heads"}, -12 * 2 * 7 * 33 * 64),
        ({"tables": "shared_by_heads_and_layers"}, (2 * 2 - 12 * 2 * 8) * 33 * 64),  # one pair a stack
        ({"absolute": "sinusoidal"}, 0),
        ({"absolute": "learned"}, 2 * 256 * 512),
        ({"norm": "pre"}, 2 * 2 * 512),  # one last norm a stack
        ({"d_ff": 2048}, 12 * 1024 * (2 * 512 + 1)),
    ],
    ids=str,
)
def test_each_choice_changes_the_number_of_parameters_by_its_formula(changes, difference):
    assert count(changed(BASE, **changes)) == 48_689_152 + difference


def test_tables_shared_by_layers_are_one_object_in_a_stack_and_another_in_the_other():
    def tables(kind, stack):
        return [layer.self_attention.tables for layer in getattr(make_model(kind), stack)]

    one, two = tables("shared_by_heads_and_layers", "encoder")
    assert one is two
    model = make_model("shared_by_heads_and_layers")
    assert model.encoder[0].self_attention.tables is not model.decoder[0].self_attention.tables
    for kind in ("relative", "shared_by_heads"):
        one, two = tables(kind, "encoder")
        assert one is not two


def test_matrices_start_glorot_uniform_each_projection_as_if_alone_and_the_embedding_normal():
    torch.manual_seed(0)
    model = Transformer(changed(TINY, d_model=64, num_heads=4, d_ff=128, vocabulary_size=500))
    layer = model.decoder[1]
    square, rectangle = math.sqrt(6 / 128), math.sqrt(6 / 192)
    parts = [
        *layer.self_attention.qkv.weight.chunk(3),
        layer.self_attention.output.weight,
        layer.cross_attention.query.weight,
        *layer.cross_attention.key_value.weight.chunk(2),
        layer.cross_attention.output.weight,
    ]
    for weight, bound in [(part, square) for part in parts] + [
        (layer.feed_forward.inner.weight, rectangle),
        (layer.feed_forward.outer.weight, rectangle),
    ]:
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.05
    assert not layer.feed_forward.inner.bias.any()
    assert not layer.feed_forward.outer.bias.any()
    # 32,000 draws of N(0, 64^-0.5): the sample deviation has a standard error of 0.125 / sqrt(2 * 32,000).
    assert abs(model.embedding_VM.std() - 0.125) < 4 * 0.125 / math.sqrt(64_000)


# Dropout


def test_dropout_acts_on_the_embeddings_and_on_each_sublayers_output_only(monkeypatch):
    model = make_model("relative", dropout=0.5).train()
    source, target = sentences(6), target_inputs(5)
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    assert {dropout.p for dropout in dropouts} == {0.5}
    calls, forward, add = [], Dropout.forward, Dropout.add
    with monkeypatch.context() as patch:
        patch.setattr(Dropout, "forward", lambda self, x: calls.append(x) or forward(self, x))
        patch.setattr(Dropout, "add", lambda self, residual, x: calls.append(x) or add(self, residual, x))
        model.dropout.forward = lambda x: calls.append(x) or F.dropout(x, 0.5)  # whose own form would be seen twice
        model(source, target)
        del model.dropout.forward
    # Two embeddings, two sublayers in each of 2 encoder layers, three in each of 2 decoder layers.
    assert sorted(tuple(x.shape) for x in calls) == [(1, 5, 12)] * (1 + 6) + [(1, 6, 12)] * (1 + 4)
    evaluated = model.eval()(source, target)
    assert (model.train()(source, target) - evaluated).abs().max() > 1e-2
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x)  # without these calls nothing random is left
    monkeypatch.setattr(Dropout, "add", lambda self, residual, x: residual + x)
    assert_equal(model.train()(source, target), evaluated)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_are_dropped_with_the_embeddings_they_are_added_to(kind, monkeypatch):
    model = make_model(kind)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: torch.zeros_like(x))
    for positions in (model.source_positions, model.target_positions):
        assert not model._embed(sentences(6), positions, first=0).any()


@NORMS
def test_a_sublayers_output_is_dropped_before_it_is_added(norm, monkeypatch):
    # With every sublayer's output dropped, post-norm leaves the norms alone, pre-norm the embeddings and the last norm.
    model = make_model("relative", norm=norm)
    monkeypatch.setattr(Dropout, "add", lambda self, residual, x: residual)
    source = sentences(6)
    expected = model.embedding_VM[source] * math.sqrt(12)
    norms = [r.norm for layer in model.encoder for r in (layer.around_attention, layer.around_feed_forward)]
    for layer_norm in norms if norm == "post" else [model.encoder_norm]:
        expected = norm_by_hand(expected, layer_norm, 1e-6)
    assert_equal(model.encode(source)[0], expected)


@ALL_KINDS
def test_every_parameter_gets_a_gradient(kind):
    model = make_model(kind).requires_grad_(True)
    model.logits(model(sentences(9, 6), target_inputs(9, 4))).square().sum().backward()
    silent = {name for name, parameter in model.named_parameters() if parameter.grad.abs().max() < 1e-8}
    # With k = 0 the softmax cancels the keys' one vector.
    key_tables = {f"{stack}.{i}.self_attention.tables.keys" for stack in ("encoder", "decoder") for i in range(2)}
    assert silent == (key_tables if kind == "relative_k_0" else set())
