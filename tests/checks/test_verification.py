"""Each check of rpr-cli verify passes on correct models and fails on a wrong cache, mask, position, batch or score."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rpr.checks import verification
from rpr.checks.verification import (
    EXACT,
    Check,
    batch_independence,
    beyond,
    cached_decoding,
    check_model,
    exact_matches,
    export_check,
    padding_invariance,
    scores_of_hypotheses,
    shift_invariance,
)
from rpr.data.vocabulary import EOS
from rpr.decode.engine import Engine
from rpr.errors import DataError
from rpr.export import writing
from rpr.export.writing import in_float64
from rpr.model.beam_search import Search
from rpr.model.positions.rope import Rope
from rpr.model.stack import Encoded
from rpr.model.transformer import Transformer
from tests.model.scheme_variants import KINDS, NORM, TODAY, VECTORS, layers_of
from tests.shapes import scheme
from tests.small_models import LEARNED, NO_TABLES, SINUSOIDAL, SOURCES, TARGETS, make_model

PAIRS = list(zip(SOURCES, TARGETS, strict=True))[:8]
SHORT = [pair for pair in zip(SOURCES, TARGETS, strict=True) if 6 < max(map(len, pair)) < 17][:3]  # more than each k
MIXED = [*SHORT, PAIRS[2]]  # the last translation does not end
LONG = 25  # more pieces
SEARCH = Search(4, 0.6, 3, 200)


def exact(**changes: Any) -> Transformer:
    return in_float64(make_model(**changes))


def assert_outcome(check: Check, outcome: str) -> None:
    assert check.outcome == outcome, check
    if outcome == "failed":
        assert check.reason is not None or (check.difference is not None and check.difference > 1e-3)


SHAPES = [
    pytest.param({"tables": "shared_by_heads_and_layers", "norm": "pre"}, id="shared_by_layers-pre_norm"),
    pytest.param({**LEARNED, "max_positions": 8}, id="learned-fewer_than_pieces", marks=pytest.mark.slow),
    pytest.param({"architecture": "decoder_only", **NO_TABLES, **KINDS["rope"], **TODAY}, id="decoder_only-today"),
]


@pytest.mark.parametrize("changes", SHAPES)
def test_correct_models_pass_all_checks(changes):
    found = {check.name: check for check in check_model(exact(**changes), MIXED, SEARCH, LONG)}
    names = ["padding", "shift", "batches", "n best", "exact matches"]
    assert [*found] == ["cached decoding", f"cached decoding beyond {LONG} pieces", *names]
    absolute = changes.get("absolute", "none")
    for name, check in found.items():
        if name == "shift" and absolute != "none":
            assert_outcome(check, "not applicable")
            assert check.difference is not None and check.difference > 0.01
            assert check.reason == f"{exact(**changes).config.decoder_positions.label}: a shift is meant to change it"
            continue
        assert_outcome(check, "passed")
        assert check.difference <= EXACT == check.tolerance
    assert found["cached decoding"].difference != 0  # another order of summation
    assert {check.sentences for name, check in found.items() if "beyond" not in name} == {len(MIXED)}
    assert found[f"cached decoding beyond {LONG} pieces"].sentences == len(beyond(MIXED, LONG))


def test_text_without_sources_passes_all_checks():
    texts = [([], target[:-1]) for _, target in SHORT]
    model = exact(architecture="decoder_only", **LEARNED)
    found = {check.name: check for check in check_model(model, texts, SEARCH, LONG)}
    assert [*found] == ["cached decoding", f"cached decoding beyond {LONG} pieces", "padding", "shift", "exact matches"]
    assert_outcome(found.pop("shift"), "not applicable")
    assert {check.outcome for check in found.values()} == {"passed"}, found
    joined = beyond(texts, LONG)
    assert all(not source and len(target) > LONG for source, target in joined)
    tokens = [[token for _, target in pairs for token in target[:-1]] for pairs in (joined, texts)]
    assert tokens[0][: len(tokens[1])] == tokens[1]


# Of a decoder alone all kinds are in tests/model/test_decoder_only.py.
QUICK = (
    "sinusoidal", "relative", "rope partial", "t5", "fox", "transformer_xl", "cope", "selective_rope gate",
    "relative_and_rope", "rope_window",
)  # fmt: skip


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in KINDS])
def test_every_position_scheme_is_decoded_with_caches_padded_and_shifted(kind):
    model = exact(norm=NORM[kind], num_layers=layers_of(kind), **(NO_TABLES if kind in VECTORS else {}) | KINDS[kind])
    assert_outcome(cached_decoding(model, SHORT, 200, "cached decoding"), "passed")
    assert_outcome(padding_invariance(model, SHORT, 200), "passed")
    invariant = model.config.encoder_positions.shift_invariant
    assert_outcome(shift_invariance(model, SHORT), "passed" if invariant else "not applicable")


def test_beyond_joins_pairs_to_exceed_the_training_length():
    joined = beyond(PAIRS, LONG)
    assert len(joined) > 2
    for source, target in joined:
        assert min(len(source), len(target)) > LONG and source[-1] == target[-1] == EOS
        assert EOS not in source[:-1] and EOS not in target[:-1]
    pieces = [piece for source, _ in joined for piece in source[:-1]]
    expected = [piece for source, target in PAIRS if len(target) > 1 for piece in source[:-1]]
    assert pieces[: len(expected)] == expected  # all, in order
    assert len(beyond(PAIRS[1:2], 500)) == 1
    with pytest.raises(DataError, match="^split: none of its first examples has two tokens"):
        beyond([([], [EOS])], LONG)


def wrong(method: str, replacement: Callable[..., Any], **changes: Any) -> Transformer:
    """A float64 model with one method replaced by a function that gets the right one first."""
    model = exact(**changes)
    right = getattr(model, method)
    setattr(model, method, lambda *arguments, **named: replacement(right, *arguments, **named))
    return model


def forget_a_piece(next_hidden: Any, pieces: Tensor, state: Any) -> Tensor:
    """Feeds another piece at every sixth step of cached decoding."""
    return next_hidden(torch.full_like(pieces, 7) if state.length % 6 == 5 else pieces, state)


def see_padding(encode: Any, source_BS: Tensor) -> Encoded:
    memory_BSM, mask = encode(source_BS)
    return Encoded(memory_BSM, torch.ones_like(mask))


def add_positions(encode: Any, source_BS: Tensor) -> Encoded:
    """Depends on absolute positions, which its configuration has not."""
    memory_BSM, mask = encode(source_BS)
    return Encoded(memory_BSM + torch.arange(memory_BSM.shape[1])[:, None] / 50, mask)


def drop_positions(embed: Any, pieces_BT: Tensor, positions: Any, *state: Any, **given: Any) -> Tensor:
    """Ignores the absolute positions of its configuration."""
    return embed(pieces_BT, None, *state, **given)


def mix_sentences(encode: Any, source_BS: Tensor) -> Encoded:
    memory_BSM, mask = encode(source_BS)
    return Encoded(memory_BSM + 0.3 * memory_BSM.mean(dim=(0, 1)), mask)


def test_wrong_cache_mask_positions_and_batches_fail():
    assert_outcome(cached_decoding(wrong("next_hidden", forget_a_piece), SHORT, 200, "cached decoding"), "failed")
    assert_outcome(padding_invariance(wrong("encode", see_padding), SHORT, 200), "failed")
    assert_outcome(shift_invariance(wrong("encode", see_padding), SHORT), "failed")
    assert_outcome(shift_invariance(wrong("encode", add_positions), SHORT), "failed")
    assert_outcome(shift_invariance(wrong("_embed", drop_positions, **SINUSOIDAL), SHORT), "failed")
    check = batch_independence(wrong("encode", mix_sentences), SOURCES[2:6], SEARCH)
    assert_outcome(check, "failed")
    assert "sentences have different translations in different batches" in check.reason


def test_wrong_generation_or_teacher_forcing_fails():
    assert_outcome(exact_matches(wrong("next_hidden", forget_a_piece), PAIRS[3:6], SEARCH), "failed")
    model = exact()
    found = Engine(model).search(SOURCES[:20], dataclasses.replace(SEARCH, beam_size=1))
    best = [(source, hypotheses[0]) for source, hypotheses in zip(SOURCES[:20], found, strict=True)]
    pairs = [(source, [*one.pieces, EOS]) for source, one in best if one.finished]
    assert len(pairs) > 3
    assert_outcome(exact_matches(model, pairs, SEARCH), "passed")  # all are exact
    pairs[1] = (pairs[1][0], [*pairs[1][1][:-1], 7, EOS])
    assert_outcome(exact_matches(model, pairs, SEARCH), "passed")
    model.start_decoding = lambda source_BS, right=model.start_decoding: right(source_BS.flip(0) % 90 + 4)
    check = exact_matches(model, pairs, SEARCH)
    assert_outcome(check, "failed")
    assert "targets are exact in one of the two only" in check.reason


def test_wrong_hypotheses_fail(monkeypatch):
    model, search = exact(), Engine.search
    assert_outcome(scores_of_hypotheses(model, SOURCES[:3], SEARCH), "passed")
    right = search(Engine(model), SOURCES[:3], dataclasses.replace(SEARCH, n_best=4))
    at = next(index for index, hypotheses in enumerate(right) if len(hypotheses) > 1)
    first, second, *others = right[at]
    last = right[at][-1]
    for wrong in (
        [dataclasses.replace(first, score=first.score + 0.01), second, *others],
        [second, first, *others],
        [*right[at], last],
        [*right[at][:-1], dataclasses.replace(last, score=float("nan"))],
    ):
        found = [*right[:at], wrong, *right[at + 1 :]]
        monkeypatch.setattr(Engine, "search", lambda *arguments, found=found, **more: found)
        assert_outcome(scores_of_hypotheses(model, SOURCES[:3], SEARCH), "failed")


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_correct_export_passes_and_wrong_one_fails(kind, export_inputs, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    for name in ("correct", "wrong"):
        (tmp_path / name).mkdir()
    check = export_check(kind, export_inputs(make_model()), tmp_path / "correct")
    assert_outcome(check, "passed")
    assert (check.difference == 0) == (kind == "safetensors") and "translations are identical" in str(check.reason)

    def write_another(kind, folder, inputs):
        other = make_model()
        other.encoder[0].self_attention.tables.keys[0] *= -1
        writing.write_files(kind, folder, dataclasses.replace(inputs, model=other))

    monkeypatch.setattr(verification, "write_files", write_another)
    assert_outcome(export_check(kind, export_inputs(make_model()), tmp_path / "wrong"), "failed")


def test_a_scheme_that_computes_in_float32_passes_within_its_rounding_and_says_so(monkeypatch):
    """As most public code does; a scheme of rpr, in float64, must pass exactly."""
    rope, exact_prepare = scheme("rope"), Rope.prepare
    prepare = lambda *given: tuple(x.float() for x in exact_prepare(*given))  # noqa: E731
    monkeypatch.setattr(Rope, "prepare", prepare)
    model = exact(encoder_positions=rope, decoder_positions=rope)
    shift = next(check for check in check_model(model, PAIRS[:2], SEARCH, LONG) if check.name == "shift")
    assert (shift.outcome, shift.tolerance) == ("failed", EXACT)
    monkeypatch.setattr(verification, "of_user", lambda part: True)
    shift = next(check for check in check_model(model, PAIRS[:2], SEARCH, LONG) if check.name == "shift")
    assert (shift.outcome, shift.tolerance) == ("passed", 1e-4) and "position=rope computes in float32" in shift.reason
