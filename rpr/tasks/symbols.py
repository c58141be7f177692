"""Rows of many symbols to copy, reverse or sort, as Kazemnejad et al. 2023 make them. A symbol is its number, a word;
in their data, a piece of T5's vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field

from rpr.tasks.task import Draw, LongTask, Pair, register


class Symbols(LongTask):
    UNIT: ClassVar[str] = "symbols of the input"

    symbols: int = Field(ge=2)

    def num_inputs(self, length: int) -> int:
        return int(self.symbols**length)

    def example(self, length: int, draw: Draw) -> Pair:
        row = self.row(length, draw)
        return " ".join(map(str, row)), " ".join(map(str, self.answer(row)))

    def row(self, length: int, draw: Draw) -> list[int]:
        """The symbols of an input."""
        return [int(draw() * self.symbols) for _ in range(length)]

    @abstractmethod
    def answer(self, row: list[int]) -> list[int]:
        """The symbols of the output."""


@register
class SymbolsCopy(Symbols):
    kind: Literal["symbols_copy"]

    def answer(self, row: list[int]) -> list[int]:
        return row


@register
class SymbolsRepeat(Symbols):
    """Copies a row of one symbol."""

    kind: Literal["symbols_repeat"]

    def num_inputs(self, length: int) -> int:
        return self.symbols

    def row(self, length: int, draw: Draw) -> list[int]:
        return super().row(1, draw) * length

    def answer(self, row: list[int]) -> list[int]:
        return row


@register
class SymbolsReverse(Symbols):
    kind: Literal["symbols_reverse"]

    def answer(self, row: list[int]) -> list[int]:
        return row[::-1]


@register
class SymbolsSort(Symbols):
    """In the order of their numbers; a symbol may occur more than once."""

    kind: Literal["symbols_sort"]

    def answer(self, row: list[int]) -> list[int]:
        return sorted(row)
