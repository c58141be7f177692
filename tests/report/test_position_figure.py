"""The figure of one run's positions, and its JSON document, of small random models."""

import re
import warnings
from typing import Any
from xml.etree import ElementTree

import pytest

from rpr.checks.positions import measure
from rpr.data.vocabulary import EOS
from rpr.report import plots
from rpr.report.plots import position_figure
from tests.model.test_transformer import make_model
from tests.small_models import NO_TABLES

NORMS, ABSOLUTE = "norm of each relative vector", "norm of each learned vector"


def numbers_of(**settings: Any) -> dict[str, Any]:
    """Those of a random model, measured on 100 pairs of sentences of 8 tokens."""
    relative = {"relative_keys": True, "relative_values": True, "clip_distance": 3}
    sentence = [*[5] * 7, EOS]
    model = make_model(**{"num_heads": 4, **(relative if "decoder_positions" not in settings else {}), **settings})
    return measure(model, [(sentence, sentence)] * 100, max_distance=8, max_tokens_per_batch=1000, device="cpu")


@pytest.mark.parametrize("changes, counts", [
    ({"num_heads": 2, "clip_distance": 1},
     {NORMS: 1, "encoder layer 1": 2, "decoder layer 2": 2, ABSOLUTE: 0}),
    ({"num_heads": 1, "clip_distance": 1, "tables": "shared_by_heads_and_layers"},
     {"encoder layers 1, 2, shared": 1, "encoder layer 1": 1}),
    ({**NO_TABLES, "num_heads": 2, "num_layers": 7, "absolute": "learned"},
     {NORMS: 0, "encoder layer 1": 1, "decoder layer 7": 1, ABSOLUTE: 1, "source positions": 1}),
], ids=["tables", "shared", "absolute"])  # fmt: skip
def test_panels_of_a_figure(changes, counts):
    """Of norms and attention per layer; many layers wrap, so that the width is bounded. Warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = plots.rendered(position_figure(numbers_of(**changes), "a $x$ <b> & c", "k = 3 | step 5")).decode()
    words = " ".join(ElementTree.fromstring(text).itertext())
    assert words.count("mean attention") == -(-changes.get("num_layers", 2) * 2 // 6)
    assert {part: words.count(part) for part in counts} == counts
    assert all(said in words for said in ("a $x$ <b> & c", "k = 3 | step 5", "Of 100 validation sentences"))
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', text)
    assert float(width[1]) / 72 < 16
