"""SCAN (Lake and Baroni 2018), cut by output length (Csordas et al. 2021): all 20,910 commands of a grammar, `jump left
twice`, to actions, `I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP`; the longest has 48.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from rpr.data.generated import FIRST_VERSION, Draw, GeneratedTask, Pair, register

LONGEST_COMMAND = 9  # words: `jump around left thrice and run around left thrice`


@register
class Scan(GeneratedTask):
    UNIT: ClassVar[str] = "actions of the output"
    VERSION: ClassVar[str] = FIRST_VERSION

    kind: Literal["scan"]

    @property
    def longest_train_side(self) -> int:
        return max(LONGEST_COMMAND, self.max_train_length)

    def length(self, source: str, target: str) -> int:
        return len(target.split())

    def pairs(self) -> dict[str, list[Pair]]:
        pairs = [(pair, self.length(*pair)) for pair in commands()]
        short = [pair for pair, length in pairs if length <= self.max_train_length]
        long = [pair for pair, length in pairs if self.max_train_length < length <= self.max_long_length]
        _shuffle(short, self.draw("short"))
        _shuffle(long, self.draw("long"))
        held_out = self.num_test + self.num_validation
        num_train = len(short) - held_out if self.num_train is None else self.num_train
        num_long = len(long) if self.num_long is None else self.num_long
        if num_train < 1 or held_out + num_train > len(short) or not 0 < num_long <= len(long):
            raise ValueError(
                f"max_train_length: of SCAN's pairs {len(short)} have at most {self.max_train_length} actions and "
                f"{len(long)} more, up to {self.max_long_length}: choose other numbers of pairs"
            )
        train, validation = short[held_out : held_out + num_train], short[self.num_test : held_out]
        return {"train": train, "validation": validation, "test": short[: self.num_test], "long": long[:num_long]}


def commands() -> Iterator[Pair]:
    """Every command of SCAN's grammar with its actions, always in the same order."""
    once = dict(_phrases())
    repeated = {
        f"{command}{adverb}": actions * times
        for command, actions in once.items()
        for adverb, times in (("", 1), (" twice", 2), (" thrice", 3))
    }
    for command, actions in repeated.items():
        yield command, " ".join(actions)
    for first, before in repeated.items():
        for second, after in repeated.items():
            yield f"{first} and {second}", " ".join(before + after)
            yield f"{first} after {second}", " ".join(after + before)


def _phrases() -> Iterator[tuple[str, list[str]]]:
    """Commands without `and`, `after`, `twice` and `thrice`; `turn` is an action of turns alone."""
    verbs = {verb: [f"I_{verb.upper()}"] for verb in ("walk", "look", "run", "jump")}
    yield from verbs.items()
    for verb, action in [*verbs.items(), ("turn", list[str]())]:
        for direction in ("left", "right"):
            turn = [f"I_TURN_{direction.upper()}"]
            yield f"{verb} {direction}", turn + action
            yield f"{verb} opposite {direction}", turn * 2 + action
            yield f"{verb} around {direction}", (turn + action) * 4


def _shuffle(pairs: list[Pair], draw: Draw) -> None:
    for last in range(len(pairs) - 1, 0, -1):
        other = int(draw() * (last + 1))
        pairs[last], pairs[other] = pairs[other], pairs[last]
