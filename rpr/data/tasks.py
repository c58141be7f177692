"""Tasks made by a rule and a seed on which positions decide everything: trained on short examples, tested on short and
on longer ones.

- copy, reverse, duplicate (Ontanon et al. 2022; Kazemnejad et al. 2023): a row of digits comes back as it is, backwards
  or twice.
- addition (Ontanon et al. 2022): two numbers, `1 2 + 7`, to their sum, `1 9`; where `padded_digits` is set, all three
  have zeros before them up to so many digits, so that digits of one value stand at one position.
- scan (Lake and Baroni 2018; cut by output length: Csordas et al. 2021): all 20,910 commands of a grammar, `jump left
  twice`, to actions, `I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP`; the longest has 48.

An example's length is the number of symbols of the row, of digits of the longer number, or of actions. Lengths are
drawn uniformly. No input of validation, test or long is in train or in another of them; train may have an input twice,
since there are only ten rows of one digit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from rpr.config.train import TaskConfig
from rpr.data.pairs import Pair

# Of the inputs of one length, at most a twentieth is held out for each of test and validation: train keeps most rows of
# one or two digits.
HELD_OUT_SHARE = 20
Draw = Callable[[], float]  # Random.random: its sequence is the only one that Python promises never to change


def generate(task: TaskConfig) -> dict[str, list[Pair]]:
    """Pairs for "train", "validation", "test" and "long"; the same ones for the same settings on every machine.

    Raises:
        ValueError: there are fewer distinct examples than asked for.
    """
    return _scan_splits(task) if task.kind == "scan" else _drawn_splits(task)


def _drawn_splits(task: TaskConfig) -> dict[str, list[Pair]]:
    short, long = range(1, task.max_train_length + 1), range(task.max_train_length + 1, task.max_long_length + 1)
    held_out: set[str] = set()
    splits = {
        "test": _distinct(task, "test", task.num_test, short, held_out),
        "validation": _distinct(task, "validation", task.num_validation, short, held_out),
        "long": _distinct(task, "long", task.num_long or 0, long, held_out),
    }
    draw, train = _draw(task, "train"), list[Pair]()
    while len(train) < (task.num_train or 0):
        pair = _example(task, _pick(draw, short), draw)
        if pair[0] not in held_out:
            train.append(pair)
    return {"train": train, **splits}


def _distinct(task: TaskConfig, split: str, number: int, lengths: Sequence[int], taken: set[str]) -> list[Pair]:
    """`number` pairs whose sources are not in `taken`, which they join; of each length at most its share."""
    left = {length: _num_inputs(task, length) // HELD_OUT_SHARE for length in lengths}
    if sum(left.values()) < number:
        raise ValueError(
            f"num_{split}: {number} is more than the {sum(left.values())} inputs that can be held out of lengths "
            f"{lengths[0]} to {lengths[-1]}; choose fewer, or longer examples"
        )
    draw, pairs = _draw(task, split), list[Pair]()
    while len(pairs) < number:
        length = _pick(draw, [length for length in lengths if left[length]])
        pair = _example(task, length, draw)
        if pair[0] not in taken:
            taken.add(pair[0])
            left[length] -= 1
            pairs.append(pair)
    return pairs


def _num_inputs(task: TaskConfig, length: int) -> int:
    """How many inputs of this length there are."""
    if task.kind != "addition":
        return int(10**length)
    shorter = 0 if length == 1 else 100 ** (length - 1)
    return int(100**length - shorter)


def _example(task: TaskConfig, length: int, draw: Draw) -> Pair:
    if task.kind == "addition":
        return _sum(length, task.padded_digits or 0, draw)
    row = [str(int(draw() * 10)) for _ in range(length)]
    target = {"copy": row, "reverse": row[::-1], "duplicate": row + row}[task.kind]
    return " ".join(row), " ".join(target)


def _sum(length: int, padded_digits: int, draw: Draw) -> Pair:
    """One number of `length` digits and one of at most as many, in either order."""
    numbers = [_number(length, draw), _number(1 + int(draw() * length), draw)]
    if draw() < 0.5:
        numbers.reverse()
    first, second, total = (" ".join(str(one).zfill(padded_digits)) for one in (*numbers, sum(numbers)))
    return f"{first} + {second}", total


def _number(digits: int, draw: Draw) -> int:
    """Without zeros before it; 0 has one digit."""
    first = int(draw() * 10) if digits == 1 else 1 + int(draw() * 9)
    return int("".join([str(first), *(str(int(draw() * 10)) for _ in range(digits - 1))]))


def _scan_splits(task: TaskConfig) -> dict[str, list[Pair]]:
    pairs = list(scan())
    lengths = [len(actions.split()) for _, actions in pairs]
    short = [pair for pair, length in zip(pairs, lengths, strict=True) if length <= task.max_train_length]
    long = [
        pair
        for pair, length in zip(pairs, lengths, strict=True)
        if task.max_train_length < length <= task.max_long_length
    ]
    _shuffle(short, _draw(task, "short"))
    _shuffle(long, _draw(task, "long"))
    held_out = task.num_test + task.num_validation
    num_train = len(short) - held_out if task.num_train is None else task.num_train
    num_long = len(long) if task.num_long is None else task.num_long
    if num_train < 1 or held_out + num_train > len(short) or not 0 < num_long <= len(long):
        raise ValueError(
            f"max_train_length: of SCAN's pairs {len(short)} have at most {task.max_train_length} actions and "
            f"{len(long)} more, up to {task.max_long_length}; for train, validation and test {num_train}, "
            f"{task.num_validation} and {task.num_test} are asked for, for long {num_long}: choose other numbers"
        )
    return {
        "train": short[held_out : held_out + num_train],
        "validation": short[task.num_test : held_out],
        "test": short[: task.num_test],
        "long": long[:num_long],
    }


def scan() -> Iterator[Pair]:
    """Every command of SCAN's grammar with its actions, always in the same order."""
    once = dict(_scan_phrases())
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


def _scan_phrases() -> Iterator[tuple[str, list[str]]]:
    """Commands without `and`, `after`, `twice` and `thrice`; `turn` is an action of turns alone."""
    verbs = {verb: [f"I_{verb.upper()}"] for verb in ("walk", "look", "run", "jump")}
    yield from verbs.items()
    for verb, action in [*verbs.items(), ("turn", list[str]())]:
        for direction in ("left", "right"):
            turn = [f"I_TURN_{direction.upper()}"]
            yield f"{verb} {direction}", turn + action
            yield f"{verb} opposite {direction}", turn * 2 + action
            yield f"{verb} around {direction}", (turn + action) * 4


def _draw(task: TaskConfig, split: str) -> Draw:
    """A sequence of the split's own; a text seeds by SHA-512, the same in every process."""
    return random.Random(f"{task.kind} {task.seed} {split}").random


def _pick(draw: Draw, lengths: Sequence[int]) -> int:
    return lengths[int(draw() * len(lengths))]


def _shuffle(pairs: list[Pair], draw: Draw) -> None:
    for last in range(len(pairs) - 1, 0, -1):
        other = int(draw() * (last + 1))
        pairs[last], pairs[other] = pairs[other], pairs[last]
