"""Generated corpora against independent implementations of their rules (SCAN: published numbers). The sentences of the
toy grammar are frozen by tests/golden/generators.json.
"""

import itertools
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rpr.compose.composition import compose_train
from rpr.config.train import DataConfig
from rpr.data.cache import prepare
from rpr.data.corpora import load_corpus
from rpr.data.generated import Pair, Task, scan
from rpr.data.generated.recall import by_pairs_and_distance, recalled
from rpr.data.vocabulary import UNK
from rpr.errors import DataError

KINDS = (
    "copy", "reverse", "duplicate", "addition",
    "symbols_copy", "symbols_repeat", "symbols_reverse", "symbols_sort", "uneven_addition", "recall",
)  # fmt: skip
SMALL = {"num_train": 1000, "num_validation": 30, "num_test": 30, "num_long": 30}


@cache
def data(name: str) -> DataConfig:
    fewer = ["data.task.symbols=100", "data.vocabulary_size=104"] if name == "symbols_repeat" else []
    return compose_train([f"data={name}", *fewer]).data


def task(name: str, **changes: Any) -> Task:
    found = data(name).task
    return type(found).model_validate(found.model_dump() | changes)


def small(name: str) -> Task:
    return task(name, **SMALL)


@cache
def generated(name: str) -> dict[str, list[Pair]]:
    return small(name).pairs()


def test_scan_length_splits():
    """Against the numbers of longer pairs in Csordas et al. (2021)."""
    lengths = [len(actions.split()) for _, actions in scan.commands()]
    assert len(lengths) == 20_910 and max(lengths) == 48
    beyond = {22: 3920, 24: 3584, 25: 3136, 26: 2624, 27: 2176, 28: 1728, 30: 1152, 32: 704, 33: 448, 36: 384, 40: 128}
    assert {cut_off: sum(length > cut_off for length in lengths) for cut_off in beyond} == beyond
    splits = task("scan_length", max_train_length=26).pairs()
    assert [len(splits[name]) for name in ("train", "validation", "test", "long")] == [17_286, 500, 500, 2624]
    for name, pairs in splits.items():
        assert all((len(actions.split()) > 26) == (name == "long") for _, actions in pairs)
    assert len({command for pairs in splits.values() for command, _ in pairs}) == 20_910


def is_right(kind: str, source: str, target: str, padded: int | None) -> bool:
    """Whether the target follows from the source by the rule of the task."""
    if kind.endswith("addition"):
        first, second = source.split(" + ")
        numbers = [text.replace(" ", "") for text in (first, second, target)]
        assert padded is None or {len(number) for number in numbers} == {padded}
        return int(numbers[0]) + int(numbers[1]) == int(numbers[2])
    symbols, answer = source.split(" "), target.split(" ")
    if kind == "recall":
        asked = symbols.index("?")
        text, queries = symbols[:asked], symbols[asked + 1 :]
        keys = [word for word in text if word.startswith("k")]
        assert len({*keys}) == len(keys) == len([word for word in text if word.startswith("v")])
        assert len({*queries}) == len(queries)
        return answer == [text[text.index(key) + 1] for key in queries]
    if kind.endswith("reverse"):
        return answer == symbols[::-1]
    if kind == "symbols_sort":
        return Counter(answer) == Counter(symbols) and all(int(a) <= int(b) for a, b in itertools.pairwise(answer))
    if kind == "symbols_repeat" and len({*symbols}) > 1:
        return False
    return answer == symbols * (2 if kind == "duplicate" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_follow_the_rule_and_lengths_of_their_split(kind):
    """Lengths by hand: tests/scoring/test_lengths.py."""
    settings, splits = small(kind), generated(kind)
    assert {f"num_{name}": len(pairs) for name, pairs in splits.items()} == SMALL
    first, cut_off, longest = settings.shortest, settings.max_train_length, settings.max_long_length
    for name, pairs in splits.items():
        assert all(is_right(kind, *pair, settings.padded_digits) for pair in pairs)
        lengths = Counter(settings.length(*pair) for pair in pairs)
        assert set(lengths) <= ({*range(cut_off + 1, longest + 1)} if name == "long" else {*range(first, cut_off + 1)})
        if name == "train":  # uniform: within five standard deviations
            if kind == "uneven_addition":  # over the digits of both numbers
                lengths = Counter(tuple(len(part.split()) for part in source.split(" + ")) for source, _ in pairs)
            bins = [*itertools.product(range(first, cut_off + 1), repeat=1 + (kind == "uneven_addition"))]
            expected = SMALL["num_train"] / len(bins)
            keys = [one if len(one) > 1 else one[0] for one in bins]
            assert {*keys} == {*lengths} and all(abs(lengths[key] - expected) < 5 * expected**0.5 for key in keys)


def test_recall_asks_for_each_key_once_and_counts_queries_and_rows():
    """The row of docs/your-data.md; every 10th query wrong, of four a row: .9 of queries and .6 of rows."""
    source, target = "k4 v1 f2 k7 v3 f0 ? k7", "v3"
    assert source in Path(__file__).parents[2].joinpath("docs", "your-data.md").read_text(encoding="utf-8")
    assert is_right("recall", source, target, None) and recalled(source) == (["k4", "k7"], [4])
    pairs = task("recall", **SMALL | {"queries": 4, "min_length": 4}).pairs()["train"][:500]
    assert all(is_right("recall", *pair, None) and len(pair[1].split()) == 4 for pair in pairs)
    answers = [[*target.split()] for _, target in pairs]
    for number in range(0, 2000, 10):
        answers[number // 4][number % 4] = "v999"
    cells = by_pairs_and_distance(*zip(*pairs, strict=True), map(" ".join, answers))
    assert [sum(cell[part] for cell in cells.values()) for part in (0, 1)] == [1800, 2000]
    assert sum(" ".join(answer) == target for answer, (_, target) in zip(answers, pairs, strict=True)) == 300
    assert {number for number, _ in cells} == {*range(4, 9)} and min(distance for _, distance in cells) >= 2


@pytest.mark.parametrize("name, changes, message", [
    ("copy", {"max_train_length": 2, "num_test": 6}, r"^data\.task: num_test: 6 is more than the 5 inputs"),
    ("scan_length", {"num_test": 17_000}, r"^data\.task: max_train_length: of SCAN's pairs 16990 have at most 22"),
    ("scan_length", {"max_train_length": 48, "max_long_length": 60}, r"^data\.task: .* and 0 more, up to 60"),
])  # fmt: skip
def test_more_pairs_than_there_are_is_an_error(name, changes, message):
    with pytest.raises(DataError, match=message):
        load_corpus(data(name).model_copy(update={"task": task(name, **changes)}))


@pytest.mark.parametrize("name", ["copy", "addition", "recall", "scan_length"])
def test_each_symbol_is_one_piece_and_no_input_is_in_two_splits(name, tmp_path):
    config = data(name).model_copy(update={"task": small(name), "cache_dir": str(tmp_path)})
    prepared = prepare(config)
    assert len(prepared.vocabulary) == config.vocabulary_size
    inputs = {split: {source for source, _ in pairs} for split, pairs in generated(name).items()}
    assert not any({*inputs[one]} & {*inputs[other]} for one, other in itertools.combinations(inputs, 2))
    for split in ("validation", "test", "long"):
        texts = prepared.text(split)
        assert len(inputs[split]) == len(texts[0]), "unique"
        assert list(zip(*texts, strict=True)) == generated(name)[split]
        for text in itertools.chain(*texts):
            pieces = prepared.vocabulary.encode(text)
            assert len(pieces) == len(text.split(" ")) and UNK not in pieces
            assert prepared.vocabulary.decode(pieces) == text
