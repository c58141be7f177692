"""A row of digits comes back as it is, backwards or twice (Ontanon et al. 2022; Kazemnejad et al. 2023); and rows of
many symbols are copied, reversed or sorted, as Kazemnejad et al. 2023 make them. A symbol is its number, a word; in
their data, a piece of T5's vocabulary.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field

from rpr.data.generated.task import FIRST_VERSION, Draw, LongTask, Pair, Task, register


class Digits(Task):
    UNIT: ClassVar[str] = "symbols of the input"
    VERSION: ClassVar[str] = FIRST_VERSION

    def num_inputs(self, length: int) -> int:
        return int(10**length)

    def example(self, length: int, draw: Draw) -> Pair:
        row = self.row(length, draw)
        return " ".join(row), " ".join(self.answer(row))

    def row(self, length: int, draw: Draw) -> list[str]:
        """The digits of the input."""
        return [str(int(draw() * 10)) for _ in range(length)]

    @abstractmethod
    def answer(self, row: list[str]) -> list[str]:
        """The digits of the output."""


@register
class Copy(Digits):
    kind: Literal["copy"]

    def answer(self, row: list[str]) -> list[str]:
        return row


@register
class Reverse(Digits):
    kind: Literal["reverse"]

    def answer(self, row: list[str]) -> list[str]:
        return row[::-1]


@register
class Duplicate(Digits):
    kind: Literal["duplicate"]

    @property
    def longest_train_side(self) -> int:
        return 2 * self.max_train_length

    def answer(self, row: list[str]) -> list[str]:
        return row + row


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
