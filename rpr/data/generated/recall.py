"""Associative recall (Arora et al. 2024, arXiv 2312.04927): pairs of a key and a value among fillers, then keys whose
values are the answer: `k4 v1 f2 k7 v3 f0 ? k7` to `v3`. No filler is a key or a value, no key is in a row twice, and
each is asked for once. Theirs asks within the text, and feeds no answer in; with one query nor does this.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from rpr.data.generated import Draw, Pair, Task, register


@register
class Recall(Task):
    UNIT: ClassVar[str] = "pairs of a key and a value"

    kind: Literal["recall"]
    min_length: PositiveInt
    keys: PositiveInt
    values: PositiveInt
    fillers: PositiveInt
    max_fillers: NonNegativeInt
    queries: PositiveInt

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.keys < self.max_long_length:
            yield f"keys: {self.keys} are fewer than the pairs of max_long_length = {self.max_long_length}; raise it"

    @property
    def longest_train_side(self) -> int:
        return 2 * self.max_train_length + self.max_fillers + 1 + min(self.queries, self.max_train_length)

    def length(self, source: str, target: str) -> int:
        return len(recalled(source)[0])

    def num_inputs(self, length: int) -> int:
        return int(math.perm(self.keys, length) * self.values**length)

    def example(self, length: int, draw: Draw) -> Pair:
        """Fillers, up to `max_fillers`, stand before, between or after the pairs."""
        keys = _drawn(length, self.keys, draw)
        pairs = [f"k{key} v{int(draw() * self.values)}" for key in keys]
        words = [*pairs]
        for _ in range(int(draw() * (self.max_fillers + 1))):
            words.insert(int(draw() * (len(words) + 1)), f"f{int(draw() * self.fillers)}")
        asked = [pairs[place].split() for place in _drawn(min(self.queries, length), length, draw)]
        return " ".join([*words, "?", *(key for key, _ in asked)]), " ".join(value for _, value in asked)


def recalled(source: str) -> tuple[list[str], list[int]]:
    """The keys of a row, and for each query its distance to its key in tokens."""
    text, queries = (part.split() for part in source.split(" ? "))
    keys = [word for word in text if word.startswith("k")]
    return keys, [len(text) + 1 + at - text.index(key) for at, key in enumerate(queries)]


def by_pairs_and_distance(
    sources: Iterable[str], references: Iterable[str], hypotheses: Iterable[str]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Right answers and queries, by the number of pairs and the distance from the query to its key."""
    cells: dict[tuple[int, int], tuple[int, int]] = {}
    for source, reference, hypothesis in zip(sources, references, hypotheses, strict=True):
        keys, distances = recalled(source)
        for distance, value, answer in zip_longest(distances, reference.split(), hypothesis.split()[: len(distances)]):
            right, asked = cells.get((len(keys), distance), (0, 0))
            cells[len(keys), distance] = right + (value == answer), asked + 1
    return cells


def _drawn(number: int, below: int, draw: Draw) -> list[int]:
    left = [*range(below)]
    return [left.pop(int(draw() * len(left))) for _ in range(number)]
