"""A row of digits comes back as it is, backwards or twice (Ontanon et al. 2022; Kazemnejad et al. 2023); and rows of
many symbols are copied, reversed or sorted, as Kazemnejad et al. 2023 make them. A symbol is its number, a word; in
their data, a piece of T5's vocabulary.
"""

from typing import ClassVar, Literal

from pydantic import Field

from rpr.data.generated.task import FIRST_VERSION, Draw, LongTask, Pair, Task, register


@register
class Digits(Task):
    UNIT: ClassVar[str] = "symbols of the input"
    VERSION: ClassVar[str] = FIRST_VERSION

    kind: Literal["copy", "reverse", "duplicate"]

    @property
    def longest_train_side(self) -> int:
        return self.max_train_length * (2 if self.kind == "duplicate" else 1)

    @property
    def base(self) -> int:
        """How many symbols there are."""
        return 10

    def num_inputs(self, length: int) -> int:
        return int(self.base**length)

    def example(self, length: int, draw: Draw) -> Pair:
        row = [int(draw() * self.base) for _ in range(length)]
        return " ".join(map(str, row)), " ".join(map(str, self.answer(row)))

    def answer(self, row: list[int]) -> list[int]:
        """The digits of the output."""
        return row[::-1] if self.kind == "reverse" else row * (2 if self.kind == "duplicate" else 1)


@register
class Symbols(LongTask, Digits):
    """A row that is sorted may have a symbol more than once; one that is repeated has a single one."""

    VERSION: ClassVar[str] = "1"

    kind: Literal["symbols_copy", "symbols_reverse", "symbols_repeat", "symbols_sort"]  # type: ignore[assignment]
    symbols: int = Field(ge=2)

    @property
    def base(self) -> int:
        return self.symbols

    def num_inputs(self, length: int) -> int:
        return super().num_inputs(1 if self.kind == "symbols_repeat" else length)

    def example(self, length: int, draw: Draw) -> Pair:
        if self.kind == "symbols_repeat":
            row = " ".join([str(int(draw() * self.symbols))] * length)
            return row, row
        return super().example(length, draw)

    def answer(self, row: list[int]) -> list[int]:
        return sorted(row) if self.kind == "symbols_sort" else row[::-1] if self.kind == "symbols_reverse" else row
