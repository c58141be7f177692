"""A row of digits comes back as it is, backwards or twice (Ontanon et al. 2022; Kazemnejad et al. 2023)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from rpr.tasks.task import FIRST_VERSION, Draw, Pair, Task, register


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
