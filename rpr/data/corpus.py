"""Where sentence pairs come from: generated, a local folder or pair of line files, or the Hugging Face hub. Read as
they are needed, never held whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rpr.config import DataConfig
from rpr.data.hub import dataset_files, dataset_splits, hub_revision
from rpr.data.line_files import LinePairs, file_digests, find_line_files
from rpr.data.pairs import Block, Pair, Pairs, TextBlock, cache_root
from rpr.errors import DataError

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, a twentieth) of train


class ListPairs(Pairs):
    """Pairs in memory: the generated corpus."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        for begin in range(start, stop, size):
            sources, targets = zip(*self._pairs[begin : min(begin + size, stop)], strict=True)
            yield TextBlock(sources, targets)


class Part(Pairs):
    """The pairs start, ..., stop - 1 of another split."""

    def __init__(self, whole: Pairs, start: int, stop: int) -> None:
        assert 0 <= start <= stop <= len(whole)
        self._whole, self._start, self._stop = whole, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        return self._whole.blocks(self._start + start, min(self._start + stop, self._stop), size)

    def where(self, index: int) -> str:
        return self._whole.where(self._start + index)


@dataclass(frozen=True)
class Corpus:
    """All splits of one corpus. `split_names` says what validation and test are (newstest2013); `notes` what a
    reader of scores must know.
    """

    name: str
    source_language: str
    target_language: str
    synthetic: bool
    splits: Mapping[str, Pairs]
    held_out: frozenset[str]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]

    def refuse_empty(self, split: str, index: int, side: str) -> None:
        """Raise DataError for an empty side of a pair, but in train and in what was held out of it, where such pairs
        are left out.
        """
        if split != "train" and split not in self.held_out:
            raise DataError(
                f"data {self.name}: the {side} of {self.splits[split].where(index)} of {split} is empty; "
                "a split that is scored must be whole: mend or remove the pair"
            )


def load_corpus(data: DataConfig) -> Corpus:
    """Open the corpus: the generated one, else data.path, else data.hub. Missing validation and test are held out of
    train, as its last pairs.

    Raises DataError: nothing at data.path, files of unequal length, not UTF-8, a language or hub config that is not
    there, an empty split, a hub out of reach.
    """
    held_out: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    if data.synthetic is not None:
        splits = _generated(data)
    else:
        files = find_line_files(data) if data.path is not None else {}
        found: dict[str, Pairs] = (
            {split: LinePairs(*sides) for split, sides in files.items()} if files else dataset_splits(data)
        )
        for split, pairs in found.items():
            if not len(pairs):
                raise DataError(
                    f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs at least one pair"
                )
        splits, notes = _hold_out(data, found)
        held_out = frozenset(splits) - frozenset(found)
    if data.train_limit is not None and data.train_limit < len(splits["train"]):
        notes += (f"train: the first {data.train_limit} of {len(splits['train'])} pairs",)
        splits["train"] = Part(splits["train"], 0, data.train_limit)
    named = {split: split for split in splits if split != "train"}
    named |= {"validation": data.validation_name, "test": data.test_name} | {
        split: f"held-out-{split}" for split in held_out
    }
    return Corpus(
        data.name,
        data.source_language,
        data.target_language,
        data.synthetic is not None,
        splits,
        held_out,
        named,
        notes,
    )


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, found without reading it where possible.

    Generated: the parameters and the generator's source files. Local: the files' content (digests are remembered by
    path, size and time of change in cache_dir). Hub: the commit, which is pinned in cache_dir/hub_revisions.json at
    first use; delete its line there to take a newer one.
    """
    parts: list[str]
    if data.synthetic is not None:
        generator = sorted(Path(__file__).parent.glob("synthetic*.py"))
        parts = [
            data.synthetic.model_dump_json(),
            *(hashlib.sha256(file.read_bytes()).hexdigest() for file in generator),
        ]
    elif data.path is not None:
        if lines := find_line_files(data):
            files = [
                (f"{split} {side}", file) for split, sides in sorted(lines.items()) for side, file in enumerate(sides)
            ]
        else:
            root, names = dataset_files(data)
            files = [(str(name), root / name) for name in names]
        digests = file_digests([file for _, file in files], cache_root(data) / "digests.json")
        parts = [f"{label} {digest}" for (label, _), digest in zip(files, digests, strict=True)]
        parts.append("" if lines else str(data.hub_config))
    else:
        assert data.hub is not None
        parts = [data.hub, str(data.hub_config), hub_revision(data)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _generated(data: DataConfig) -> dict[str, Pairs]:
    from rpr.data import synthetic

    assert data.synthetic is not None
    try:
        generated = synthetic.generate(**data.synthetic.model_dump())
    except ValueError as error:
        raise DataError(f"data.synthetic: {error}") from None
    return {split: ListPairs([(pair.source, pair.target) for pair in pairs]) for split, pairs in generated.items()}


def _hold_out(data: DataConfig, found: Mapping[str, Pairs]) -> tuple[dict[str, Pairs], tuple[str, ...]]:
    """Give a missing test, then a missing validation split, the last pairs of train."""
    if "train" not in found:
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split "
            f"(available: {', '.join(sorted(found))}); it needs one"
        )
    splits, notes = dict(found), []
    train = found["train"]
    number = min(HELD_OUT_PAIRS, max(1, len(train) // HELD_OUT_SHARE))
    end = len(train)
    for split in ("test", "validation"):
        if split not in found:
            splits[split] = Part(train, max(0, end - number), end)
            end -= number
            notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        raise DataError(
            f"data {data.name}: {len(train)} train pairs are too few to hold out "
            f"{' and '.join(sorted(set(splits) - set(found)))}; add pairs or files"
        )
    if end < len(train):
        splits["train"] = Part(train, 0, end)
    return splits, tuple(notes)
