"""Checked here: every pair of every task by an independent reading of its rule (SCAN by an interpreter of commands),
SCAN's published numbers, lengths, splits without a common input, the same pairs in another process, refusals; and the
vocabulary of whole words, from which text comes back.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.config.train import DataConfig, TaskConfig, TrainConfig
from rpr.data import tasks
from rpr.data.cache import cache_key, prepare
from rpr.data.corpus import load_corpus
from rpr.data.vocabulary import UNK, Vocabulary
from rpr.errors import ConfigError, DataError
from rpr.validation import validate

KINDS = ("copy", "reverse", "duplicate", "addition")
SMALL = {"num_train": 3000, "num_validation": 60, "num_test": 60, "num_long": 60}
SYNTHETIC = "seed:1,num_train:1,num_validation:1,num_test:1,num_long:1"
SMALL_SCAN = {"num_validation": 50, "num_test": 50}


def data(name: str, *overrides: str) -> DataConfig:
    return validate(TrainConfig, app.compose("train", [f"data={name}", *overrides])).data


def task(name: str, **changes: Any) -> TaskConfig:
    found = data(name).task
    assert found is not None
    return TaskConfig.model_validate(found.model_dump() | changes)


def small(name: str) -> TaskConfig:
    return task(name, **(SMALL_SCAN if name == "scan_length" else SMALL))


# SCAN, the other way round: commands are made by brute force, and read from left to right.

WORDS = ("walk", "look", "run", "jump", "turn", "left", "right", "opposite", "around")


def interpreted(command: str) -> list[str] | None:
    """The actions of a command, None for what is none."""
    for conjunction, order in (("and", 1), ("after", -1)):
        if f" {conjunction} " in command:
            parts = [interpreted(part) for part in command.split(f" {conjunction} ")]
            if (
                len(parts) != 2
                or None in parts
                or any(word in ("and", "after") for word in command.split(f" {conjunction} ")[0].split())
            ):
                return None
            return [action for part in parts[::order] for action in part or []]
    words = command.split()
    times = {"twice": 2, "thrice": 3}.get(words[-1])
    if times is not None:
        once = interpreted(" ".join(words[:-1])) if len(words) > 1 and words[-2] not in ("twice", "thrice") else None
        return None if once is None else once * times
    verb, rest = words[0], words[1:]
    if verb not in WORDS[:5]:
        return None
    own = [] if verb == "turn" else [f"I_{verb.upper()}"]
    if not rest:
        return own or None
    if rest[-1] not in ("left", "right") or len(rest) > 2 or (len(rest) == 2 and rest[0] not in ("opposite", "around")):
        return None
    turn = [f"I_TURN_{rest[-1].upper()}"]
    return {"opposite": turn + turn + own, "around": 4 * (turn + own)}.get(rest[0], turn + own)


def test_scan_is_what_an_interpreter_makes_of_all_commands() -> None:
    phrases = [
        " ".join(words)
        for number in (1, 2, 3)
        for words in itertools.product(WORDS, repeat=number)
        if interpreted(" ".join(words)) is not None
    ]
    assert len(phrases) == 34
    sentences = [f"{phrase}{adverb}" for phrase in phrases for adverb in ("", " twice", " thrice")]
    commands = [
        *sentences,
        *(f"{one} {word} {other}" for one in sentences for other in sentences for word in ("and", "after")),
    ]
    expected = {command: " ".join(interpreted(command) or []) for command in commands}
    found = list(tasks.scan())
    assert len(found) == 20_910 and dict(found) == expected
    assert max(len(actions.split()) for _, actions in found) == 48


# As printed in Lake and Baroni's published examples.
@pytest.mark.parametrize(
    "command, actions",
    [
        ("jump", "I_JUMP"),
        ("jump left", "I_TURN_LEFT I_JUMP"),
        ("turn opposite right", "I_TURN_RIGHT I_TURN_RIGHT"),
        ("jump around right", " ".join(["I_TURN_RIGHT", "I_JUMP"] * 4)),
        ("walk twice", "I_WALK I_WALK"),
        ("turn left twice", "I_TURN_LEFT I_TURN_LEFT"),
        ("jump thrice after walk", "I_WALK I_JUMP I_JUMP I_JUMP"),
        ("run opposite left and walk", "I_TURN_LEFT I_TURN_LEFT I_RUN I_WALK"),
    ],
)
def test_scan_by_hand(command: str, actions: str) -> None:
    assert dict(tasks.scan())[command] == actions


@pytest.mark.parametrize(
    "cut_off, short, long",
    [
        *[(22, 16_990, 3_920), (24, 17_326, 3_584), (25, 17_774, 3_136), (26, 18_286, 2_624), (27, 18_734, 2_176)],
        *[(28, 19_182, 1_728), (30, 19_758, 1_152), (32, 20_206, 704), (33, 20_462, 448), (36, 20_526, 384)],
        (40, 20_782, 128),
    ],
)
def test_scan_cut_by_output_length(cut_off: int, short: int, long: int) -> None:
    splits = tasks.generate(task("scan_length", max_train_length=cut_off))
    lengths = {name: [len(actions.split()) for _, actions in pairs] for name, pairs in splits.items()}
    sizes = {name: len(pairs) for name, pairs in splits.items()}
    assert sizes == {"train": short - 1000, "validation": 500, "test": 500, "long": long}
    assert max(lengths["train"] + lengths["validation"] + lengths["test"]) <= cut_off < min(lengths["long"])
    assert len({command for pairs in splits.values() for command, _ in pairs}) == 20_910


def is_right(kind: str, source: str, target: str, padded: int | None) -> bool:
    """By the rule, read off the text."""
    if kind == "addition":
        first, second = source.split(" + ")
        numbers = [text.replace(" ", "") for text in (first, second, target)]
        assert padded is None or {len(number) for number in numbers} == {padded}
        return int(numbers[0]) + int(numbers[1]) == int(numbers[2])
    symbols, answer = source.split(" "), target.split(" ")
    if kind == "reverse":
        return len(symbols) == len(answer) and all(one == answer[-place] for place, one in enumerate(symbols, start=1))
    times = {"copy": 1, "duplicate": 2}[kind]
    return len(answer) == times * len(symbols) and all(
        one == symbols[place % len(symbols)] for place, one in enumerate(answer)
    )


def length_of(kind: str, source: str) -> int:
    if kind == "addition":
        return max(len(str(int(number.replace(" ", "")))) for number in source.split(" + "))
    return len(source.split(" "))


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_is_right_and_of_its_splits_lengths(kind: str) -> None:
    settings = small(kind)
    splits = tasks.generate(settings)
    assert {name: len(pairs) for name, pairs in splits.items()} == {
        "train": 3000,
        "validation": 60,
        "test": 60,
        "long": 60,
    }
    cut_off, longest = settings.max_train_length, settings.max_long_length
    for name, pairs in splits.items():
        assert all(is_right(kind, *pair, settings.padded_digits) for pair in pairs)
        lengths = Counter(length_of(kind, source) for source, _ in pairs)
        assert set(lengths) <= ({*range(cut_off + 1, longest + 1)} if name == "long" else {*range(1, cut_off + 1)})
        if name == "train":  # uniform: within five standard deviations of a binomial count
            expected = 3000 / cut_off
            assert all(abs(lengths[length] - expected) < 5 * expected**0.5 for length in range(1, cut_off + 1))


def test_addition_without_padding() -> None:
    pairs = tasks.generate(task("addition", padded_digits=None, **SMALL))["train"]
    assert all(is_right("addition", *pair, None) for pair in pairs)
    assert not any(number.startswith("0 ") for pair in pairs for number in (*pair[0].split(" + "), pair[1]))
    assert {len(pair[0].split(" + ")[0].split()) for pair in pairs} == {*range(1, 9)}


@pytest.mark.parametrize("name", [*KINDS, "scan_length"])
def test_no_input_is_in_two_splits_or_twice_in_a_test(name: str) -> None:
    splits = tasks.generate(small(name))
    inputs = {split: [source for source, _ in pairs] for split, pairs in splits.items()}
    for one, other in itertools.combinations(inputs, 2):
        assert not {*inputs[one]} & {*inputs[other]}, (one, other)
    for split in ("validation", "test", "long"):
        assert len({*inputs[split]}) == len(inputs[split])


def test_train_keeps_most_of_the_short_inputs() -> None:
    splits = tasks.generate(task("copy", **(SMALL | {"num_train": 20_000, "num_test": 500, "num_validation": 500})))
    short = [sum(len(source.split()) == 2 for source, _ in splits[split]) for split in ("validation", "test")]
    assert max(short) <= 5 and {str(digit) for digit in range(10)} <= {source for source, _ in splits["train"]}


def digest(name: str, **changes: Any) -> str:
    settings = TaskConfig.model_validate(small(name).model_dump() | changes)
    return hashlib.sha256(json.dumps(tasks.generate(settings)).encode()).hexdigest()


@pytest.mark.parametrize("name", ["reverse", "addition", "scan_length"])
def test_the_same_pairs_for_the_same_seed_in_another_process(name: str) -> None:
    code = (
        "import hashlib, json, sys; from rpr.config.train import TaskConfig; from rpr.data import tasks\n"
        "settings = TaskConfig.model_validate(json.loads(sys.argv[1]))\n"
        "print(hashlib.sha256(json.dumps(tasks.generate(settings)).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, small(name).model_dump_json()]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert found == digest(name) != digest(name, seed=2)


def test_fewer_training_pairs_are_the_first_of_more_and_change_no_other_split() -> None:
    more, fewer = tasks.generate(small("reverse")), tasks.generate(task("reverse", **(SMALL | {"num_train": 10})))
    assert fewer.pop("train") == more.pop("train")[:10] and fewer == more


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data=copy", "data.task.max_long_length=20"], r"^data\.task\.max_long_length: 20 leaves no length beyond"),
        (["data=copy", "data.task.padded_digits=12"], r"^data\.task\.padded_digits: copy has no numbers to pad"),
        (["data=addition", "data.task.padded_digits=10"], r"^data\.task\.padded_digits: 10 cannot hold a sum"),
        (["data=reverse", "data.task.num_train=null"], r"^data\.task\.num_train: null \(all pairs\) is possible"),
        (["data=reverse", "data.path=/x"], r"^data\.path: the reverse corpus is generated, not read"),
        (["data=reverse", f"data.synthetic={{{SYNTHETIC}}}"], r"^data\.task: the corpus is already generated by data"),
    ],
)  # fmt: skip
def test_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(TrainConfig, app.compose("train", overrides))


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("copy", {"max_train_length": 2, "num_test": 6}, r"^data\.task: num_test: 6 is more than the 5 inputs"),
        ("scan_length", {"num_test": 17_000}, r"^data\.task: max_train_length: of SCAN's pairs 16990 have at most 22"),
        ("scan_length", {"max_train_length": 48, "max_long_length": 60}, r"^data\.task: .* and 0 more, up to 60"),
    ],
)
def test_too_many_are_asked_for(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_corpus(data(name).model_copy(update={"task": task(name, **changes)}))


# The vocabulary of words, and the whole way into the token cache


@pytest.mark.parametrize("name", [*KINDS, "scan_length"])
def test_every_symbol_is_one_piece_and_text_comes_back(name: str, tmp_path: Path) -> None:
    config = data(name).model_copy(update={"task": small(name), "cache_dir": str(tmp_path)})
    prepared = prepare(config)
    assert len(prepared.vocabulary) == config.vocabulary_size and prepared.meta.synthetic
    splits = tasks.generate(small(name))
    for split in ("validation", "test", "long"):
        sources, references = prepared.text(split)
        assert list(zip(sources, references, strict=True)) == splits[split]
        for text in (*sources, *references):
            pieces = prepared.vocabulary.encode(text)
            assert len(pieces) == len(text.split(" ")) and UNK not in pieces
            assert prepared.vocabulary.decode(pieces) == text
        assert prepared.split(split).source(0).tolist() == prepared.vocabulary.encode(sources[0], eos=True)


def test_words_that_are_not_in_the_vocabulary_are_unknown(tmp_path: Path) -> None:
    words = {"b": 5, "long": 4, "aa": 3, "aab": 1}
    vocabulary = Vocabulary.learn(words, 7, tmp_path / "words.model", "word")
    assert [vocabulary.piece(index) for index in range(4, 7)] == ["▁b", "▁long", "▁aa"]
    assert vocabulary.encode("aa long aab b aab bb") == [6, 5, UNK, 4, UNK]
    again = Vocabulary.load(tmp_path / "words.model")
    assert again.digest == vocabulary.digest and again.decode([6, 5, 4]) == "aa long b"
    with pytest.raises(DataError, match=r"^data\.vocabulary_size: 9 is more than this corpus supports.*size=8 or less"):
        Vocabulary.learn(words, 9, tmp_path / "words.model", "word")


def test_a_word_is_no_bytes_in_a_large_vocabulary(tmp_path: Path) -> None:
    words = {f"w{number}": 1 for number in range(1200)}
    vocabulary = Vocabulary.learn(words, 1204, tmp_path / "words.model", "word")
    assert vocabulary.encode("other") == [UNK] and len(vocabulary.encode("w1 w1199")) == 2
    with pytest.raises(DataError, match="at most 1204 pieces"):
        Vocabulary.learn(words, 1300, tmp_path / "words.model", "word")


def test_the_tokenizer_is_part_of_the_cache_and_caches_of_before_stay() -> None:
    plain = data("synthetic")
    assert cache_key(plain) != cache_key(plain.model_copy(update={"tokenizer": "word"}))
