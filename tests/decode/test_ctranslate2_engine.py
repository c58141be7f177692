"""Decoding with CTranslate2 compared with our own engine and scores, and its errors."""

import copy
import dataclasses
import itertools
import sys

import pytest
import torch

from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.decode.ctranslate2 import CTranslate2Engine
from rpr.decode.torch_engine import TorchEngine, pad_rows
from rpr.errors import ConfigError, DataError
from rpr.export import ctranslate2_spec
from rpr.export.writing import write_files
from rpr.model.beam_search import Hypothesis, Search, penalty
from tests.small_models import LEARNED, SINUSOIDAL, SOURCES, make_model

pytest.importorskip("ctranslate2", reason="the engine needs it: pip install ctranslate2")
pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = Search(1, 0.0, 10, 100)  # several sentences in a batch, with different limits
BEAM = Search(4, 0.6, 10, 400, n_best=4)
ROUNDING = 2e-3  # float32 against float64, of a whole translation of up to 50 pieces


@pytest.fixture(scope="module")
def write_export(tmp_path_factory, export_inputs):
    def write(model, kind="ctranslate2"):
        folder = tmp_path_factory.mktemp(kind)
        write_files(kind, folder, export_inputs(model))
        return folder

    return write


@pytest.fixture(scope="module")
def engine(write_export):
    return CTranslate2Engine(write_export(make_model()), threads=1)


def log_p(index: int, hypothesis: Hypothesis) -> float:
    """The log p of a hypothesis by our model, teacher-forced and renormalised as CTranslate2's."""
    model = make_model().double()
    pieces = list(hypothesis.pieces)
    logits = model.logits(model(pad_rows([SOURCES[index]]), torch.tensor([[BOS, *pieces]])))
    logits[..., [PAD, BOS]] = -torch.inf
    targets = torch.tensor([[*pieces, EOS]])
    log_ps = logits.log_softmax(dim=-1).gather(-1, targets[..., None])[0, :, 0]
    return log_ps[: len(pieces) + hypothesis.finished].sum().item()


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_pieces_and_scores_of_hypotheses(engine, search):
    for index, hypotheses in enumerate(engine.search(SOURCES, search)[:20]):
        assert 1 <= len(hypotheses) <= search.n_best
        assert len({hypothesis.pieces for hypothesis in hypotheses}) == len(hypotheses)
        ranks = []
        for hypothesis in hypotheses:
            length = len(hypothesis.pieces) + hypothesis.finished
            assert length <= len(SOURCES[index]) + 10
            assert not {PAD, BOS, EOS} & {*hypothesis.pieces}
            expected = log_p(index, hypothesis)
            assert hypothesis.log_probability == pytest.approx(expected, abs=ROUNDING)
            paper = expected / float(penalty(length, search.length_penalty))
            assert hypothesis.score == pytest.approx(paper, abs=ROUNDING)
            ranks.append(hypothesis.log_probability / length**search.length_penalty)
        assert all(before >= after - 1e-6 for before, after in itertools.pairwise(ranks))
        # As ours: finished hypotheses, or one that is not.
        assert all(hypothesis.finished for hypothesis in hypotheses) or len(hypotheses) == 1


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_hypotheses_keep_the_length_limit_of_their_sentence(engine, search):
    """All in one batch, whose limit is that of the longest sentence."""
    for extra in range(8):
        tight = dataclasses.replace(search, max_extra_length=extra, max_tokens_per_batch=10_000)
        for source, hypotheses in zip(SOURCES, engine.search(SOURCES, tight), strict=True):
            for hypothesis in hypotheses:
                length = len(hypothesis.pieces) + hypothesis.finished
                assert length <= len(source) + extra and (hypothesis.finished or length == len(source) + extra)


def test_finished_hypothesis_comes_before_unfinished_ones(engine):
    """Also where an unfinished one, cut at the length limit, has a higher score."""
    search = dataclasses.replace(BEAM, max_extra_length=0, length_penalty=3.0)  # long ones have the higher scores
    several = engine.search(SOURCES, search)
    best = engine.search(SOURCES, dataclasses.replace(search, n_best=1))
    assert {len(one) for one in best} == {1}
    assert [one[0].pieces for one in best] == [some[0].pieces for some in several]
    assert all(one[0].finished for one, some in zip(best, several, strict=True) if some[0].finished)


@pytest.mark.parametrize("min_length", [1, 6])
def test_min_length_equals_ours(write_export, min_length):
    """With a model that prefers to end at once."""
    model = make_model()
    with torch.no_grad():
        model.embedding_VM[EOS] *= 2
    theirs, our = CTranslate2Engine(write_export(model), threads=1), TorchEngine(copy.deepcopy(model).double())
    if min_length == 1:
        assert sum(not hypotheses[0].pieces for hypotheses in our.search(SOURCES, GREEDY)) >= 3
    search = dataclasses.replace(GREEDY, min_length=min_length)
    found, expected = (engine.search(SOURCES, search) for engine in (theirs, our))
    same = [one[0].pieces == other[0].pieces for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= 38  # ties may differ
    assert min(len(one[0].pieces) for one in (*found, *expected)) == min_length
    for one, other, alike in zip(found, expected, same, strict=True):
        if alike:
            assert one[0].finished == other[0].finished
            assert one[0].log_probability == pytest.approx(other[0].log_probability, abs=2 * ROUNDING)
    beams = theirs.search(SOURCES, dataclasses.replace(BEAM, min_length=min_length))
    assert min(len(one.pieces) for hypotheses in beams for one in hypotheses) == min_length


def test_empty_sources(engine):
    found = engine.search([[EOS], SOURCES[0]], GREEDY)
    assert found[0] == [Hypothesis((), 0.0, 0.0, True)]
    assert found[1][0].pieces == engine.search(SOURCES[:1], GREEDY)[0][0].pieces
    assert engine.search([], GREEDY) == []


@pytest.mark.parametrize("changes", [SINUSOIDAL, LEARNED], ids=["sinusoidal", "learned"])
def test_position_table_limits_the_lengths(changes, write_export, monkeypatch):
    monkeypatch.setattr(ctranslate2_spec, "POSITION_ROWS", 12)
    model = make_model(**{**changes, "max_positions": 5})
    engine = CTranslate2Engine(write_export(model), threads=1)
    short = [source for source in SOURCES if len(source) <= 12]
    assert max(map(len, short)) == 12
    found = engine.search(short, GREEDY)
    expected = TorchEngine(model.double()).search(short, GREEDY)
    for theirs, our in zip(found, expected, strict=True):
        assert len(theirs[0].pieces) + theirs[0].finished <= 11
        assert theirs[0].pieces == our[0].pieces[:11]
    assert any(len(hypotheses[0].pieces) == 11 for hypotheses in found)
    thirteen = next(source for source in SOURCES if len(source) == 13)
    too_long = "a sentence of 13 pieces is longer than the export's 12 positions; split it, or export"
    with pytest.raises(DataError, match=too_long):
        engine.search([thirteen], GREEDY)
    with pytest.raises(DataError, match="a sentence of 13 pieces"):
        engine.score(short[:1], [[7] * 12], 1024)


def test_unusable_exports_are_errors(write_export, tmp_path, monkeypatch):
    folder = write_export(make_model())
    with pytest.raises(ConfigError, match="compute_type: CTranslate2 does not support int3 on this cpu; choose"):
        CTranslate2Engine(folder, compute_type="int3")
    with pytest.raises(DataError, match="is not an export; give a folder that rpr-cli export wrote"):
        CTranslate2Engine(tmp_path)
    with pytest.raises(DataError, match="is a safetensors export; export the run with format=ctranslate2"):
        CTranslate2Engine(write_export(make_model(), "safetensors"))
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:1000])
    with pytest.raises(DataError, match=r"model.bin: CTranslate2 cannot load it \(.*\); export the run again"):
        CTranslate2Engine(folder)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"^ctranslate2: not installed, .*; pip install ctranslate2"):
        CTranslate2Engine(folder)
