"""The figure of one run's positions, and its JSON document, of small random models."""

import re
import warnings
from typing import Any
from xml.etree import ElementTree

import pytest

from rpr.checks.positions import DEFINITIONS, measure
from rpr.data.vocabulary import EOS
from rpr.report import plots
from rpr.report.position_figure import label, position_figure
from tests.model.scheme_variants import KINDS
from tests.model.test_transformer import make_model
from tests.small_models import NO_TABLES

SVG = "{http://www.w3.org/2000/svg}"


def numbers_of(*, longest: int = 8, **settings: Any) -> dict[str, Any]:
    """Those of a random model, measured on 100 pairs of sentences of `longest` tokens."""
    relative = {"relative_keys": True, "relative_values": True, "clip_distance": 3}
    sentence = [*[5] * (longest - 1), EOS]
    model = make_model(**{"num_heads": 4, **(relative if "decoder_positions" not in settings else {}), **settings})
    numbers = measure(model, [(sentence, sentence)] * 100, max_distance=8, max_tokens_per_batch=1000, device="cpu")
    return numbers


def drawn(numbers: dict[str, Any], title: str = "A run") -> tuple[str, str]:
    """The SVG and all its text; matplotlib warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = plots.rendered(position_figure(numbers, title, "k = 3 | step 5")).decode()
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return text, " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))


NORMS, ABSOLUTE = "Norm of each vector of the relative", "Norm of each vector of the learned absolute"


@pytest.mark.parametrize("changes, counts", [
    ({"num_heads": 2, "clip_distance": 1},
     {NORMS: 1, "encoder layer 1": 2, "decoder layer 2": 2, ABSOLUTE: 0}),
    ({"num_heads": 2, "clip_distance": 0, "num_layers": 1}, {NORMS: 1, "encoder layer 1": 2}),
    ({"num_heads": 1, "clip_distance": 1, "tables": "shared_by_heads_and_layers"},
     {"encoder layers 1 to 2, shared": 1, "encoder layer 1": 1}),
    ({**NO_TABLES, "num_heads": 2, "num_layers": 7, "absolute": "learned"},
     {NORMS: 0, "encoder layer 1": 1, "decoder layer 7": 1, ABSOLUTE: 1, "source positions": 1}),
], ids=["tables", "k_0", "shared", "absolute"])  # fmt: skip
def test_panels_of_a_figure(changes, counts):
    """Of norms and attention per layer; many layers wrap, so that the width is bounded."""
    text, words = drawn(numbers_of(**changes), title="a $x$ <b> & c")
    assert words.count("Mean attention by signed") == 1
    assert {part: words.count(part) for part in counts} == counts
    assert "a $x$ <b> & c" in words and "k = 3 | step 5" in words
    joined = re.sub(r"\s+", " ", words)
    assert "over all pairs that exist and may be seen" in joined and "Of 100 validation sentences" in joined
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', text)
    assert float(width[1]) / 72 < 16


@pytest.mark.parametrize("layers, named", [
    ([2], "layer 2"), ([1, 2, 3], "layers 1 to 3, shared"), ([1, 3], "layers 1, 3, shared"),
])  # fmt: skip
def test_layers_between_those_that_share_a_table_are_not_named(layers, named):
    assert label({"stack": "decoder", "layers": layers}) == f"decoder {named}"


@pytest.mark.parametrize("settings, filled", [
    ({"absolute": "learned"}, ("tables", "absolute")), (KINDS["t5"], ("biases",)),
])  # fmt: skip
def test_every_number_is_defined(settings, filled):
    numbers = numbers_of(**settings)
    assert all(numbers[name] for name in (*filled, "stacks", "attention"))
    lists = ("stacks", "tables", "absolute", "biases", "attention")
    assert numbers.keys() == {"num_sentences", "max_distance", *lists}
    entries = [entry for name in lists for entry in numbers[name]]
    entries += [table for entry in numbers["tables"] for table in (entry["keys"], entry["values"])]
    about = {"stack", "layers", "longest", "keys", "values"}
    assert {key for entry in entries for key in entry} - about <= set(DEFINITIONS)
