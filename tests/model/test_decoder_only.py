"""The decoder-only model in float64: hidden states of padded batches, of cached steps and of empty sources against the
readable model for one row alone, for every position scheme; shifts; beam search.
"""

import copy

import pytest
import torch

from rpr.model import cache, readable
from rpr.model.attention import attention_of
from rpr.model.beam_search import Search, beam_search
from rpr.model.transformer import Transformer
from tests.model import test_transformer
from tests.model.scheme_variants import EACH_KIND, NORM, OTHERS, layers_of
from tests.model.test_beam_search import assert_equal, definition
from tests.model.test_readable import assert_same_gradients
from tests.model.test_transformer import PAD, TINY, sentences, target_inputs

SOURCES, TARGETS = (7, 1, 9), (3, 4, 1)
BFLOAT16 = ("relative", "transformer_xl", "rope", "cope", "fox", "t5", "selective_rope gate")


def make_model(kind: str, **changes: object) -> Transformer:
    return test_transformer.make_model(kind, **{"norm": NORM[kind], "architecture": "decoder_only", **changes})


def real(row: torch.Tensor) -> list[int]:
    return [piece for piece in row.tolist() if piece != PAD]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_padded_batch_cached_steps_and_text_are_the_equations_of_each_row(kind):
    """Forward, and of whole batches backward."""
    model = make_model(kind, num_layers=layers_of(kind)).requires_grad_(True)
    weights = dict(model.named_parameters(remove_duplicate=False))
    assert all("cross" not in name for name in weights)
    invariant = model.config.decoder_positions.shift_invariant
    for source, target in (
        (sentences(5, 5, seed=3), target_inputs(3, 3, seed=4)),  # nothing padded
        (torch.empty(3, 0, dtype=torch.int64), target_inputs(*TARGETS)),
        (sentences(*SOURCES), target_inputs(*TARGETS)),
    ):
        with torch.no_grad():
            state, shifted = model.start_decoding(source), model(source, target, shift=3)
            stepped = [model.next_hidden(target[:, t, None], state) for t in range(target.shape[1])]
        hidden = model(source, target)
        rows, lengths = [], [len(real(row)) for row in target]
        for one, other in zip(source, target, strict=True):
            rows.append(readable.stack(model.config, weights, "decoder", real(one) + real(other))[len(real(one)) :])

        def of_targets(hidden, lengths=lengths):
            return torch.cat([row[:length] for row, length in zip(hidden, lengths, strict=True)])

        expected = torch.cat(rows)
        for found in (hidden, torch.stack(stepped, dim=1), *([shifted] if invariant else [])):
            torch.testing.assert_close(of_targets(found), expected, rtol=1e-9, atol=1e-9)
        if invariant is False:
            moved = (of_targets(shifted) - expected).abs().split(lengths)
            assert all(difference.max() > 1e-6 for difference in moved)
    assert_same_gradients(model, of_targets(hidden), expected, torch.randn_like(expected))


@pytest.mark.parametrize("kind", ["learned", "logits_and_t5", "fox_window", "selective_rope gate"])
def test_search_of_each_prompt_is_its_definition_alone_and_in_any_batch(kind):
    model = make_model(kind, activation="gelu")
    source = sentences(*SOURCES)
    search = Search(3, 0.6, 3, 0, n_best=3)
    for row, found in zip(source, beam_search(model, source, search, eos=9), strict=True):
        alone = torch.tensor(real(row))
        assert_equal(found, definition(model, alone, beam=3, alpha=0.6, extra=3, eos=9))
        assert_equal(beam_search(model, alone[None], search, eos=9)[0], found)


@pytest.mark.parametrize("kind", ["relative_window", "fox_window", "none_window", "rope_local"])
def test_a_cache_keeps_a_window_and_is_exact_after_it_moves(kind, monkeypatch):
    """20 steps of three hypotheses that change parents, after prompts of unlike lengths, of which one leaves late."""
    monkeypatch.setattr(cache, "INITIAL_CAPACITY", 2)
    model, draw = make_model(kind), torch.Generator().manual_seed(1)
    prompts, hypotheses = [real(prompt) for prompt in sentences(*SOURCES)], 3
    state, texts = model.start_decoding(sentences(*SOURCES)), [[[] for _ in range(hypotheses)] for _ in prompts]
    windows = [layer.self_attention.window for layer in model.decoder]
    for step in range(20):
        new = torch.randint(4, 20, (len(prompts), hypotheses), generator=draw)
        for of_prompt, pieces in zip(texts, new.tolist(), strict=True):
            for text, piece in zip(of_prompt, pieces, strict=True):
                text.append(piece)
        hidden = model.next_hidden(new.view(-1, 1), state).view(len(prompts), hypotheses, -1)
        parents = torch.randint(hypotheses, (len(prompts), hypotheses), generator=draw)
        if step < 19:
            stay = torch.tensor([0, 2] if step == 18 else range(len(prompts)))
            rows = (parents + hypotheses * torch.arange(len(prompts))[:, None])[stay]
            state.select(rows.flatten(), stay if step == 18 else None)
            texts = [[[*texts[at][parent]] for parent in parents[at].tolist()] for at in stay.tolist()]
            prompts = [prompts[at] for at in stay.tolist()]
    for prompt, of_prompt, found in zip(prompts, texts, hidden, strict=True):
        whole = torch.stack([model(torch.tensor([prompt]), torch.tensor([text]))[0, -1] for text in of_prompt])
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)
    for window, kept in zip(windows, state.caches, strict=True):
        assert window is None or kept._both_2BHKD.shape[3] <= 4 * window * hypotheses


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in BFLOAT16))
    for kind in ("relative", *OTHERS) if " " not in kind or "gate" in kind
])  # fmt: skip
def test_attention_of_every_scheme_in_bfloat16_is_near_float64(kind):
    """Its output before the projection, and all gradients, whatever the form. Of positions up to 300 bfloat16 rounds
    the angle by a radian, and sums of hundreds of decays; no part may be left in a type that does not fit.
    """
    model = make_model(kind, num_layers=4).float().train().requires_grad_(True)
    exact = copy.deepcopy(model).double()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(1, 300, TINY.d_model, generator=draw)
    cotangent = torch.randn(1, TINY.num_heads, 300, TINY.d_model // TINY.num_heads, generator=draw)

    def attended(attention, x):
        """z, and the gradients of x, of the projection and of the positions' parameters."""
        x = x.clone().requires_grad_()
        z = attention_of(attention.inputs(x, None), attention.implementation)
        learned = [] if attention.tables is None else attention.tables.parameters()
        return z, *torch.autograd.grad(z, [x, attention.qkv.weight, *learned], cotangent.to(z.dtype))

    most = (0.03, 0.06, 0.06, *[0.4] * 5)  # a few parameters, each a sum over all pairs that cancels, are less exact
    for scheme in set(model.config.decoder_positions.of_layers(4)):
        at = model.config.decoder_positions.of_layers(4).index(scheme)
        expected = attended(exact.decoder[at].self_attention, x.double())
        for implementation in ("auto", "blockwise"):
            model.use_attention(implementation)
            with torch.autocast("cpu", torch.bfloat16):
                found = attended(model.decoder[at].self_attention, x)
            for place, (rounded, right) in enumerate(zip(found, expected, strict=True)):
                assert (rounded - right).norm() <= most[place] * right.norm(), (implementation, place)
