"""The figure of one run's positions, and its JSON document, from made-up numbers."""

import math
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import pytest

from rpr.analysis.positions import DEFINITIONS
from rpr.report import plot_style
from rpr.report.position_figure import often, position_figure

SVG = "{http://www.w3.org/2000/svg}"
STACKS = ("encoder", "decoder")


def table(k: int, heads: int) -> dict[str, Any]:
    norms = [[1 + 2 / (1 + abs(offset + 1)) + head / 10 for offset in range(-k, k + 1)] for head in range(heads)]
    cosines = [[None if row == 0 else math.cos(row + head) for row in range(2 * k)] for head in range(heads)]
    return {"norms": norms, "cosines": cosines, "expected_initial_norm": 0.9}


def made_up(
    *, layers: int = 2, heads: int = 4, k: int | None = 3, shared: bool = False,
    absolute: bool = False, longest: int = 8, documents: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """100 sentences of `longest` tokens; each head attends to another place."""
    losses = [
        {"stack": "decoder", "trained": 4, "num_windows": 3, "num_bytes": 2000, "first": [1, 2, 3, 5],
         "last": [1, 2, 4, 1024], "bits_per_byte": [5.0, 4.0, 3.5, 3.25]}
    ] * documents  # fmt: skip
    window = range(-8, 9)
    pairs = {
        "encoder": [100 * max(0, longest - abs(d)) for d in window],
        "decoder": [100 * max(0, longest + d) if d <= 0 else 0 for d in window],
    }
    tables = []
    if k is not None:
        groups = [[*range(1, layers + 1)]] if shared else [[number] for number in range(1, layers + 1)]
        both = {"keys": table(k, heads), "values": table(k, heads)}
        tables = [{"stack": s, "layers": group, **both} for s in STACKS for group in groups]
    weights = {
        stack: [
            [0.9 / (1 + abs(d + head)) if n else None for d, n in zip(window, pairs[stack], strict=True)]
            for head in range(heads)
        ]
        for stack in STACKS
    }
    return {
        "num_sentences": 100,
        "max_distance": 8,
        "tables": tables,
        "absolute": [
            {"stack": s, "absolute": [1 + p / 50 for p in range(30)], "longest": 9} for s in STACKS * absolute
        ],
        "attention": [
            {"stack": s, "layers": [number], "attention": weights[s]} for s in STACKS for number in range(1, layers + 1)
        ],
        "stacks": [
            {"stack": s, "pairs": pairs[s], "even_attention": [1 / longest if n else None for n in pairs[s]]}
            for s in STACKS
        ],
        "biases": [],
        "losses": losses,
    }


def drawn(numbers: dict[str, Any], title: str = "A run") -> tuple[str, str]:
    """The SVG and all its text; matplotlib warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = plot_style.rendered(position_figure(numbers, title, "k = 3 | step 5")).decode()
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return text, " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))


NORMS, COSINES = "Norm of each vector of the relative", "Cosine similarity of the vectors of neighbouring"
ABSOLUTE, LOSSES = "Norm of each vector of the learned absolute", "Loss by position in the window"


@pytest.mark.parametrize("changes, counts", [
    ({"heads": 2, "k": 1}, {NORMS: 1, COSINES: 1, "encoder layer 1": 4, "decoder layer 2": 4, ABSOLUTE: 0, LOSSES: 0}),
    ({"heads": 2, "k": 0, "layers": 1}, {NORMS: 1, COSINES: 0, "encoder layer 1": 3}),
    ({"heads": 1, "k": 1, "shared": True}, {"encoder layers 1 to 2, shared": 2, "encoder layer 1": 2}),
    ({"heads": 2, "k": None, "layers": 7, "absolute": True},
     {NORMS: 0, COSINES: 0, "encoder layer 1": 2, "decoder layer 7": 2, ABSOLUTE: 1, "source positions": 1, LOSSES: 0}),
    ({"layers": 1, "documents": True}, {ABSOLUTE: 0, LOSSES: 1, "windows of 1,024 tokens": 1, "1,024": 2}),
], ids=["tables", "k_0", "shared", "absolute", "documents"])  # fmt: skip
def test_panels_of_a_figure(changes, counts):
    """Of norms, cosines and attention per layer; many layers wrap, so that the width is bounded."""
    text, words = drawn(made_up(**changes), title="a $x$ <b> & c")
    assert words.count("Mean attention by signed") == words.count("Mean attention of each head") == 1
    assert {part: words.count(part) for part in counts} == counts
    assert "a $x$ <b> & c" in words and "k = 3 | step 5" in words
    joined = re.sub(r"\s+", " ", words)
    assert "a query i of it for which the key i + d exists" in joined and "Of 100 validation sentences" in joined
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', text)
    assert float(width[1]) / 72 < 16


def test_rare_distances_are_left_out():
    """Sentences of 4 pieces in a window of 8: the axis ends at 3. A distance needs 1% of the queries."""
    assert often((0, 9, 10, 1000, 10, 9, 0)) == slice(2, 5)
    figure = position_figure(made_up(k=None, longest=4), "A run", "")
    limits = [axes.get_xlim() for axes in figure.axes if axes.images]
    assert limits == [(-3.5, 3.5)] * 2 + [(-3.5, 0.5)] * 2


def test_every_number_is_defined():
    numbers = made_up(absolute=True, documents=True)
    assert numbers.keys() - {"num_sentences", "max_distance", "tables", "stacks", "biases"} <= set(DEFINITIONS)
    entries = [numbers["tables"][0]["keys"], numbers["absolute"][0], numbers["attention"][0], *numbers["stacks"]]
    assert {key for entry in entries for key in entry} - {"stack", "layers", "longest"} <= set(DEFINITIONS)
