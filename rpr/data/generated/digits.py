"""Rows of digits come back as they are, backwards or twice (Ontanon et al. 2022; Kazemnejad et al. 2023), and rows of
many symbols are copied, reversed or sorted, as Kazemnejad et al. 2023 make them: a symbol is its number, a word; in
their data, a piece of T5's vocabulary. And two numbers, `1 2 + 7`, to their sum, `1 9`; where `padded_digits` is set,
all three have zeros before them up to so many digits, so that digits of one value stand at one position.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from rpr.data.generated import FIRST_VERSION, Draw, Pair, Task, register


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
        return int(getattr(self, "symbols", 10))

    def num_inputs(self, length: int) -> int:
        return int(self.base ** self._drawn(length))

    def example(self, length: int, draw: Draw) -> Pair:
        row = [int(draw() * self.base) for _ in range(self._drawn(length))]
        row *= length // len(row)
        answer = sorted(row) if self.kind.endswith("sort") else row[:: -1 if self.kind.endswith("reverse") else 1]
        answer *= 2 if self.kind == "duplicate" else 1
        return " ".join(map(str, row)), " ".join(map(str, answer))

    def _drawn(self, length: int) -> int:
        return 1 if self.kind.endswith("repeat") else length


@register
class Symbols(Digits):
    VERSION: ClassVar[str] = "1"

    kind: Literal["symbols_copy", "symbols_reverse", "symbols_repeat", "symbols_sort"]  # type: ignore[assignment]
    min_length: PositiveInt
    symbols: int = Field(ge=2)


@register
class Addition(Task):
    UNIT: ClassVar[str] = "digits of the longer number"
    VERSION: ClassVar[str] = FIRST_VERSION

    kind: Literal["addition"]

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.padded_digits is not None and self.padded_digits <= self.max_long_length:
            yield f"padded_digits: {self.padded_digits} cannot hold a sum of two of max_long_length digits; raise it"

    @property
    def longest_train_side(self) -> int:
        return 2 * (self.padded_digits or self.max_train_length) + 1

    def length(self, source: str, target: str) -> int:
        return max(len(str(int(number.replace(" ", "")))) for number in source.split(" + "))

    def num_inputs(self, length: int) -> int:
        return int(100**length - (0 if length == 1 else 100 ** (length - 1)))

    def example(self, length: int, draw: Draw) -> Pair:
        numbers, digits = self.numbers(length, draw), self.padded_digits or 0
        first, second, total = (" ".join(str(number).zfill(digits)) for number in (*numbers, sum(numbers)))
        return f"{first} + {second}", total

    def numbers(self, length: int, draw: Draw) -> list[int]:
        """One number of `length` digits and one of at most as many, in either order."""
        numbers = [_number(length, draw), _number(1 + int(draw() * length), draw)]
        return numbers[::-1] if draw() < 0.5 else numbers


@register
class UnevenAddition(Addition):
    """Kazemnejad et al. 2023: every pair of two numbers of digits from `min_length` on is equally frequent."""

    VERSION: ClassVar[str] = "1"

    kind: Literal["uneven_addition"]  # type: ignore[assignment]
    min_length: PositiveInt

    def lengths(self, first: int, last: int) -> Sequence[int]:
        return [length for length in super().lengths(first, last) for _ in range(2 * (length - self.shortest) + 1)]

    def num_inputs(self, length: int) -> int:
        # How many numbers have fewer digits than the shortest one, fewer than `length`, and at most `length`.
        none, fewer, every = (10**digits if digits else 0 for digits in (self.shortest - 1, length - 1, length))
        return int((every - none) ** 2 - (fewer - none) ** 2)

    def numbers(self, length: int, draw: Draw) -> list[int]:
        """Of the pairs of lengths of which the longer one is `length`, each is equally frequent."""
        more = length - self.shortest
        place = int(draw() * (2 * more + 1))
        digits = (length, self.shortest + place) if place <= more else (length - (place - more), length)
        return [_number(number, draw) for number in digits]


def _number(digits: int, draw: Draw) -> int:
    first = int(draw() * 10) if digits == 1 else 1 + int(draw() * 9)
    return int("".join([str(first), *(str(int(draw() * 10)) for _ in range(digits - 1))]))
