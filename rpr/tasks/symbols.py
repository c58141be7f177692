"""Rows of many symbols to copy, reverse or sort, as Kazemnejad et al. 2023 make them. A symbol is its number, a word;
in their data, a piece of T5's vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rpr.tasks.digits import Copy, Digits, Reverse
from rpr.tasks.task import Draw, LongTask, register


class Symbols(LongTask, Digits):
    VERSION: ClassVar[str] = "1"

    symbols: int = Field(ge=2)

    def num_inputs(self, length: int) -> int:
        return int(self.symbols**length)

    def row(self, length: int, draw: Draw) -> list[str]:
        return [str(int(draw() * self.symbols)) for _ in range(length)]


@register
class SymbolsCopy(Symbols, Copy):
    kind: Literal["symbols_copy"]  # type: ignore[assignment]


@register
class SymbolsReverse(Symbols, Reverse):
    kind: Literal["symbols_reverse"]  # type: ignore[assignment]


@register
class SymbolsRepeat(Symbols, Copy):
    """Copies a row of one symbol."""

    kind: Literal["symbols_repeat"]  # type: ignore[assignment]

    def num_inputs(self, length: int) -> int:
        return self.symbols

    def row(self, length: int, draw: Draw) -> list[str]:
        return super().row(1, draw) * length


@register
class SymbolsSort(Symbols):
    """In the order of their numbers; a symbol may occur more than once."""

    kind: Literal["symbols_sort"]

    def answer(self, row: list[str]) -> list[str]:
        return sorted(row, key=int)
