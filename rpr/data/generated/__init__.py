"""Corpora that are made, not read: the default one (synthetic.py), and tasks on which positions decide everything,
trained on short examples and tested on short and longer ones. Each task is a class in a module of this package,
discovered automatically, and has one file of conf/data/; no other module but the report's published figures names one.

An example's length is counted in the task's `UNIT`. No input of validation, test or long is in train or in another of
them; train may have an input twice, since there are only ten rows of one digit.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar, get_args

from pydantic import Field, PositiveInt

from rpr.data.generated.synthetic import SyntheticConfig as SyntheticConfig
from rpr.validation import StrictModel, one_of

Pair = tuple[str, str]
Draw = Callable[[], float]  # Random.random: its sequence is the only one that Python promises never to change
# Of the inputs of one length, at most a twentieth is held out for each of test and validation: train keeps most rows of
# one or two digits.
HELD_OUT_SHARE = 20
# The version of the first five tasks, by which caches and committed records name their corpora: the sha256 of the file
# that then held them all.
FIRST_VERSION = "b2eacadb9e3b9b465bacfd58c4169ff857c09786ddb7e83a19d52d94d8fb54e2"

Kind = TypeVar("Kind", bound="GeneratedTask")
REGISTERED: dict[str, type[GeneratedTask]] = {}


def register(task: type[Kind]) -> type[Kind]:
    """Register a task under the values of its `kind` field."""
    REGISTERED.update(dict.fromkeys(get_args(task.model_fields["kind"].annotation), task))
    return task


class GeneratedTask(StrictModel):
    """A task whose pairs are made by a rule and a seed: a subclass in a module of this package with
    `@register`, and a file in conf/data/ for each `kind`. It defines `kind` (a Literal), `UNIT` and `pairs`; a subclass
    of `Task` defines `example` and `num_inputs` instead of `pairs`.

    Train, validation and test have lengths up to `max_train_length`, long has longer ones, up to `max_long_length`.
    """

    UNIT: ClassVar[str]  # of lengths, in the plural
    # Part of the key of caches and records. Raise it with every change to what `pairs` returns for some settings;
    # tests/golden/generators.json then needs the new digest. Other changes to the code keep all keys.
    VERSION: ClassVar[str] = "1"

    kind: str
    seed: int = Field(ge=0)
    max_train_length: PositiveInt
    max_long_length: PositiveInt
    padded_digits: PositiveInt | None  # of tasks with numbers
    num_train: PositiveInt | None
    num_validation: PositiveInt
    num_test: PositiveInt
    num_long: PositiveInt | None

    def problems(self) -> Iterator[str]:
        if self.max_long_length <= self.max_train_length:
            yield f"max_long_length: {self.max_long_length} leaves no length beyond max_train_length; raise it"

    @property
    def longest_train_side(self) -> int:
        """Words of the longer side of the longest training pair."""
        return self.max_train_length

    def length(self, source: str, target: str) -> int:
        """The length of an example, in `UNIT`."""
        return len(source.split())

    @abstractmethod
    def pairs(self) -> dict[str, list[Pair]]:
        """Pairs for "train", "validation", "test" and "long"; the same ones for the same settings on every machine.
        Raises ValueError if there are fewer distinct examples than asked for.
        """

    def draw(self, split: str) -> Draw:
        """A sequence of the split's own; a text seeds by SHA-512, the same in every process."""
        return random.Random(f"{self.kind} {self.seed} {split}").random


class Task(GeneratedTask):
    """A task whose pairs are drawn at random, with uniformly distributed lengths unless `lengths` says otherwise; those
    of train, validation and test start at `min_length`, if it has one.
    """

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.shortest > self.max_train_length:
            yield f"min_length: {self.shortest} is above max_train_length = {self.max_train_length}; lower it"

    @property
    def shortest(self) -> int:
        """The least length."""
        return int(getattr(self, "min_length", 1))

    @abstractmethod
    def num_inputs(self, length: int) -> int:
        """How many inputs of this length there are."""

    @abstractmethod
    def example(self, length: int, draw: Draw) -> Pair:
        """A pair of this length, drawn at random."""

    def lengths(self, first: int, last: int) -> Sequence[int]:
        """The lengths from `first` to `last`, each as often as it is drawn in relation to the others."""
        return range(max(first, self.shortest), last + 1)

    def pairs(self) -> dict[str, list[Pair]]:
        short = self.lengths(1, self.max_train_length)
        long = self.lengths(self.max_train_length + 1, self.max_long_length)
        held_out: set[str] = set()
        numbers = {"test": self.num_test, "validation": self.num_validation, "long": self.num_long or 0}
        lengths = {"test": short, "validation": short, "long": long}
        splits = {split: self._distinct(split, number, lengths[split], held_out) for split, number in numbers.items()}
        draw, train = self.draw("train"), list[Pair]()
        while len(train) < (self.num_train or 0):
            pair = self.example(_pick(draw, short), draw)
            if pair[0] not in held_out:
                train.append(pair)
        return {"train": train, **splits}

    def _distinct(self, split: str, number: int, lengths: Sequence[int], taken: set[str]) -> list[Pair]:
        """`number` pairs whose sources are not in `taken`, which they join; of each length at most its share."""
        left = {length: self.num_inputs(length) // HELD_OUT_SHARE for length in lengths}
        if sum(left.values()) < number:
            raise ValueError(
                f"num_{split}: {number} is more than the {sum(left.values())} inputs that can be held out of lengths "
                f"{lengths[0]} to {lengths[-1]}; choose fewer, or longer examples"
            )
        draw, pairs = self.draw(split), list[Pair]()
        while len(pairs) < number:
            length = _pick(draw, [length for length in lengths if left[length]])
            pair = self.example(length, draw)
            if pair[0] not in taken:
                taken.add(pair[0])
                left[length] -= 1
                pairs.append(pair)
        return pairs


def _pick(draw: Draw, lengths: Sequence[int]) -> int:
    return lengths[int(draw() * len(lengths))]


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"rpr.data.generated.{_module.name}")

TASKS = dict(sorted(REGISTERED.items()))

if TYPE_CHECKING:
    AnyTask = GeneratedTask
else:
    AnyTask = one_of("kind", TASKS, f"no such task; choose one of {', '.join(TASKS)}")
