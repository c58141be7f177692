"""Checked here: what rpr.export.ctranslate2_spec writes, and with it the model itself: its encoder, its decoder
under teacher forcing and its greedy decoding with a cache, against CTranslate2: a C++ inference engine that is not ours
and writes a_ij out, pair by pair, as equations 3 and 4 do. From us it gets the weights alone.

Skipped where ctranslate2 is not installed: it is a development dependency.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.errors import ConfigError
from rpr.export import ctranslate2_spec
from rpr.export.ctranslate2_spec import encoder_spec, position_rows, save, write_model
from rpr.model.beam_search import Hypothesis, beam_search
from rpr.model.transformer import Transformer
from tests.shapes import changed
from tests.small_models import BASIC, LEARNED, NO_TABLES, SINUSOIDAL, SOURCES, TARGETS, make_model

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="the comparison with CTranslate2 needs it: pip install ctranslate2"
)


pytestmark = pytest.mark.usefixtures("one_thread")


def write_encoder(model: Transformer, folder: Path) -> None:
    """The encoder alone as a folder that ctranslate2.Encoder opens: no Translator shows its encoder's output."""
    spec = ctranslate2.specs.TransformerEncoderModelSpec(encoder_spec(model), pooling_layer=False)
    spec.register_vocabulary(VOCABULARY)
    save(spec, model.config, VOCABULARY, folder)


# The models and sentences compared

VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", *(f"piece{index}" for index in range(4, 100))]
GRID = {
    "keys_and_values-k_3-post_norm": {"clip_distance": 3, "norm": "post"},
    "keys-k_0-pre_norm": {"relative_values": False, "clip_distance": 0, "norm": "pre"},
    "values-k_16-pre_norm": {"relative_keys": False, "clip_distance": 16, "norm": "pre"},
    "one_table_for_all_layers": {"tables": "shared_by_heads_and_layers"},
    "no_positions": NO_TABLES,
    "sinusoidal": SINUSOIDAL,
    "learned-pre_norm-fewer_than_there_are_pieces": {**LEARNED, "norm": "pre", "max_positions": 8},
}

# The largest difference allowed between our float32 and theirs. Both round to 6e-8 of a number's size (hidden values
# reach 10, logits 13), in different orders of summation, and two layers with sharp softmaxes amplify that. Measured
# over the grid: at most 2.3e-5 between the two, and from our model in float64 3.1e-5 of ours and 3.2e-5 of theirs.
ROUNDING = 2e-4
MISTAKE = 100 * ROUNDING
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
        write_model(model, VOCABULARY, folder / "model")
        write_encoder(model, folder / "encoder")
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


def test_the_encoder_and_the_probabilities_of_given_targets_are_ctranslate2s(pair):
    assert encoder_difference(*pair) < ROUNDING
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
    if model.config == BASIC:
        assert 10 <= sum(hypothesis.finished for hypothesis in found) <= 30


# The comparison can fail


def change_tables(change: Callable[[Any], tuple[Any, Any]]) -> Callable[[Transformer], None]:
    def mutate(model: Transformer) -> None:
        for layer in (*model.encoder, *model.decoder):
            tables = layer.self_attention.tables
            tables.keys, tables.values = (None if new is None else nn.Parameter(new) for new in change(tables))

    return mutate


def lose_the_norms_epsilon(model: Transformer) -> None:
    model.config = dataclasses.replace(model.config, norm_epsilon=1e-5)


MUTATIONS = {
    "i - j for j - i": change_tables(lambda tables: (tables.keys.flip(0), tables.values.flip(0))),
    "tables exchanged": change_tables(lambda tables: (tables.values, tables.keys)),
    "clipped at 2, not 3": change_tables(lambda tables: (tables.keys[1:-1], tables.values[1:-1])),
    "no keys": change_tables(lambda tables: (None, tables.values)),
    "no values": change_tables(lambda tables: (tables.keys, None)),
    "another epsilon": lose_the_norms_epsilon,
}


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS)
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
    monkeypatch.setattr(ctranslate2_spec, "_input_embedding", lambda model: model.embedding_VM.numpy())
    model = make_model()
    engine = Engine.of(model, tmp_path)
    assert encoder_difference(model, engine) < ROUNDING
    assert score_difference(model, engine) > MISTAKE


@pytest.mark.parametrize("changes", [SINUSOIDAL, LEARNED], ids=["sinusoidal", "learned"])
def test_positions_one_place_off_differ_too(changes, tmp_path, monkeypatch):
    """CTranslate2's own sinusoids begin at 1."""
    model = make_model(**changes)
    rows = ctranslate2_spec._array(model.source_positions(1, torch.zeros(1, 2048)))

    def later(spec, positions, shape):
        spec.scale_embeddings = True
        spec.position_encodings.encodings = rows

    monkeypatch.setattr(ctranslate2_spec, "_set_positions", later)
    engine = Engine.of(model, tmp_path)
    assert encoder_difference(model, engine) > MISTAKE
    assert score_difference(model, engine) > MISTAKE


# What cannot be exported


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tables": "per_head"}, "position.tables: per_head cannot .* 3 of each layer's 4 tables would be lost"),
        *(
            ({"absolute": absolute}, f"absolute: {absolute} together with relative tables cannot be exported")
            for absolute in ("sinusoidal", "learned")
        ),
    ],
)
def test_positions_that_ctranslate2_has_not_are_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        write_model(make_model(**changes), VOCABULARY, tmp_path)
    assert not list(tmp_path.iterdir())


def test_how_many_positions_are_written():
    for changes, rows in (
        ({}, None),
        (NO_TABLES, None),
        (SINUSOIDAL, 2048),
        (LEARNED, 2048),
        ({**LEARNED, "max_positions": 3000}, 3000),
    ):
        assert position_rows(changed(BASIC, **changes)) == rows
