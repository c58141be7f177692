"""Two numbers, `1 2 + 7`, to their sum, `1 9` (Ontanon et al. 2022); where `padded_digits` is set, all three have zeros
before them up to so many digits, so that digits of one value stand at one position.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rpr.tasks.task import FIRST_VERSION, Draw, Pair, Task, register


@register
class Addition(Task):
    UNIT: ClassVar[str] = "digits of the longer number"
    VERSION: ClassVar[str] = FIRST_VERSION

    kind: Literal["addition"]

    def problem(self) -> str | None:
        if self.padded_digits is not None and self.padded_digits <= self.max_long_length:
            return (
                f"padded_digits: {self.padded_digits} cannot hold a sum of two numbers of max_long_length = "
                f"{self.max_long_length} digits; choose {self.max_long_length + 1} or more"
            )
        return None

    @property
    def longest_train_side(self) -> int:
        return 2 * (self.padded_digits or self.max_train_length) + 1

    def length(self, source: str, target: str) -> int:
        return max(len(str(int(number.replace(" ", "")))) for number in source.split(" + "))

    def num_inputs(self, length: int) -> int:
        shorter = 0 if length == 1 else 100 ** (length - 1)
        return int(100**length - shorter)

    def example(self, length: int, draw: Draw) -> Pair:
        """One number of `length` digits and one of at most as many, in either order."""
        numbers = [_number(length, draw), _number(1 + int(draw() * length), draw)]
        if draw() < 0.5:
            numbers.reverse()
        digits = self.padded_digits or 0
        first, second, total = (" ".join(str(number).zfill(digits)) for number in (*numbers, sum(numbers)))
        return f"{first} + {second}", total


def _number(digits: int, draw: Draw) -> int:
    """Without zeros before it; 0 has one digit."""
    first = int(draw() * 10) if digits == 1 else 1 + int(draw() * 9)
    return int("".join([str(first), *(str(int(draw() * 10)) for _ in range(digits - 1))]))
