"""Data classes for the analysis of a trained model's positions: norms and neighbour similarities of its tables, and the
attention of its heads by distance. Measured by rpr.analysis.positions, drawn by rpr.report.position_figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Stack = Literal["encoder", "decoder"]
DEFINITIONS = {
    "norms": "Euclidean norm of each vector of w^K (keys) and of w^V (values): of each table, by offset j - i from -k "
    "to k; the outermost vectors also serve every distance beyond. A table serves one head, or all where there is one",
    "expected_initial_norm": "root mean square norm of a vector before training",
    "cosines": "cosine similarity of the vectors of offsets r and r + 1, by r from -k to k - 1; null where one is zero",
    "attention": "by head and by distance d = j - i from -max_distance to max_distance: the mean of P_ij (softmaxed "
    "attention of query i to key j) over all pairs of a measured sentence and a query i of it for which the key "
    "i + d exists and may be seen; padding is neither query nor key; the encoder's positions include EOS, "
    "the decoder's start with BOS; null where there is no such pair",
    "even_attention": "the same mean if each query attended evenly to every key that it may see",
    "pairs": "how many (sentence, query) pairs each mean is over",
    "bias": "by head and by distance d = j - i from -max_distance to max_distance: the number that the scheme adds to "
    "a score, after the scale; null where no key is seen",
    "absolute_norms": "Euclidean norm of each vector of the learned absolute table, by position from 0",
}


@dataclass(frozen=True)
class TableNumbers:
    """w^K or w^V of a layer: one row per head, or a single row if the heads share the table.

    `norms` are ordered by offset from -k to k; `cosines` are between neighbours, one fewer, None for a zero vector.
    """

    norms: tuple[tuple[float, ...], ...]
    cosines: tuple[tuple[float | None, ...], ...]
    expected_initial_norm: float

    @property
    def clip_distance(self) -> int:
        return (len(self.norms[0]) - 1) // 2


@dataclass(frozen=True)
class LayerGroup:
    """One layer, or several layers of a stack that share their positions."""

    stack: Stack
    layers: tuple[int, ...]  # from 1

    @property
    def label(self) -> str:
        if len(self.layers) == 1:
            return f"{self.stack} layer {self.layers[0]}"
        return f"{self.stack} layers {self.layers[0]} to {self.layers[-1]}, shared"


@dataclass(frozen=True)
class LayerTables(LayerGroup):
    """The relative tables; None for a table that the model does not have."""

    keys: TableNumbers | None
    values: TableNumbers | None


@dataclass(frozen=True)
class LayerAttention:
    """Mean attention of one layer's heads: attention[head][distance + max_distance], None if no pair has it."""

    stack: Stack
    layer: int  # from 1
    attention: tuple[tuple[float | None, ...], ...]

    @property
    def label(self) -> str:
        return f"{self.stack} layer {self.layer}"


@dataclass(frozen=True)
class StackPairs:
    """Numbers shared by all layers of a stack: by distance, the pairs counted and their mean uniform attention."""

    stack: Stack
    pairs: tuple[int, ...]
    even_attention: tuple[float | None, ...]

    @property
    def often(self) -> slice:
        """A slice of the distances that at least 1% of the queries have; means over fewer pairs are too noisy.

        Pairs decrease with distance, so these are contiguous and include 0.
        """
        queries = self.pairs[len(self.pairs) // 2]
        places = [place for place, count in enumerate(self.pairs) if 100 * count >= queries]
        return slice(places[0], places[-1] + 1)


@dataclass(frozen=True)
class AbsoluteTable:
    """The norms of the learned absolute positions of one side; `longest` is its longest measured sentence."""

    stack: Stack
    norms: tuple[float, ...]
    longest: int

    @property
    def label(self) -> str:
        return "source positions" if self.stack == "encoder" else "target positions"


@dataclass(frozen=True)
class LayerBias(LayerGroup):
    """The bias added to scores: bias[head][distance + max_distance], None if no key is visible at that distance."""

    bias: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class PositionNumbers:
    """All numbers of a report. `tables`, `absolute` and `biases` are empty if the model has none; layers in order."""

    num_sentences: int
    max_distance: int
    tables: tuple[LayerTables, ...]
    absolute: tuple[AbsoluteTable, ...]
    attention: tuple[LayerAttention, ...]
    stacks: tuple[StackPairs, ...]
    biases: tuple[LayerBias, ...] = ()

    def stack(self, name: Stack) -> StackPairs:
        return next(stack for stack in self.stacks if stack.stack == name)


def as_document(run: Mapping[str, Any], numbers: PositionNumbers) -> dict[str, Any]:
    """One JSON document: the run, the definition of each number, and the numbers with six digits."""
    return {"run": dict(run), "definitions": DEFINITIONS, **_rounded(asdict(numbers))}


def as_text(document: Mapping[str, Any]) -> str:
    """The document as JSON with one line per key and list member, to be readable and diffable."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            members = ",\n  ".join(json.dumps(member, ensure_ascii=False, allow_nan=False) for member in value)
            text = f"[\n  {members}\n ]"
        else:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def summary(numbers: PositionNumbers) -> list[str]:
    """Lines for a terminal: the tables' norms at -k, 0 and k, and each head's distance of highest mean attention among
    those that at least 1% of the queries have.
    """
    lines = []
    for tables in numbers.tables:
        kinds = [(name, table) for name, table in (("w^K", tables.keys), ("w^V", tables.values)) if table is not None]
        for name, table in kinds:
            mean = mean_over_heads(table.norms)
            k = table.clip_distance
            offsets = sorted({-k, 0, k})
            norms = ", ".join(f"{_signed(offset)}: {mean[offset + k]:.2f}" for offset in offsets)
            lines.append(f"  {tables.label:<18} norm of {name} at {norms}")
    for layer in numbers.attention:
        often = numbers.stack(layer.stack).often
        distances = range(-numbers.max_distance, numbers.max_distance + 1)[often]
        most = [strongest(distances, head[often]) for head in layer.attention]
        heads = "  ".join(f"{_signed(distance)} ({value:.2f})" for distance, value in most)
        lines.append(f"  {layer.label:<18} heads attend most at {heads}")
    return lines


def _signed(distance: int) -> str:
    return f"{distance:+d}" if distance else "0"


def mean_over_heads(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """The mean of each column without None; NaN if there is nothing else."""
    means = []
    for column in zip(*rows, strict=True):
        present = [value for value in column if value is not None]
        means.append(sum(present) / len(present) if present else math.nan)
    return means


def strongest(distances: Sequence[int], attention: Sequence[float | None]) -> tuple[int, float]:
    """The distance with the highest mean attention (the nearest, if tied), and that mean."""
    present = [(value, distance) for value, distance in zip(attention, distances, strict=True) if value is not None]
    value, distance = max(present, key=lambda item: (item[0], -abs(item[1])))
    return distance, value
