"""Where a corpus comes from: generated, the files of a folder, or the Hugging Face hub; its sentence pairs by split, of
which missing ones are held out of train. Documents: rpr/data/documents.py.
"""

import hashlib
import sysconfig
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.files import SPLIT_NAMES, TABLES, TEXT, Listing, kind_of, list_documents, list_pairs, split_word
from rpr.data.generated import synthetic
from rpr.data.hub import hub_files, hub_revision
from rpr.data.pairs import Pair, Pairs, cache_root, line_pairs, listed_pairs, table_pairs
from rpr.errors import DataError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, 1/20 of train) pairs
HELD_OUT = ("test", "validation")
NOT_OF_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """All splits of one corpus. `split_names` are the test sets' names (newstest2013); `notes` are caveats for readers
    of scores; `repeated` is the number of train pairs dropped because they equal a held-out one.
    """

    splits: Mapping[str, Pairs]
    held_out: frozenset[str]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]
    repeated: int


def load_corpus(data: DataConfig) -> Corpus:
    """Open the corpus: generated, else from data.path, else from data.hub. A missing validation or test split is held
    out from the end of train; train pairs equal to a held-out one are dropped, which requires reading train once.

    Raises DataError: nothing at data.path, files of unequal length, invalid UTF-8, a missing language or hub config, a
    column without text, an empty split, a train split with nothing but repeats of held-out pairs, an unreachable hub.
    """
    # 1. The splits that there are.
    if data.generated:
        read, missing = _generated(data), tuple[str, ...]()
    else:
        listing = corpus_files(data)
        missing = missing_splits(data, listing)
        read = {
            split: line_pairs(*files) if listing.lines else table_pairs(files, data, split)
            for split, files in listing.splits.items()
        }
    for split, pairs in read.items():
        if not len(pairs):
            raise DataError(
                f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs at least one pair"
            )
    # 2. Missing ones: the last pairs of train are test, those before them validation.
    splits, notes, end = dict(read), list[str](), len(read["train"])
    number = min(HELD_OUT_PAIRS, max(1, end // HELD_OUT_SHARE))
    for split in missing:
        splits[split] = read["train"].part(max(0, end - number), end)
        end -= number
        notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        raise DataError(
            f"data {data.name}: {len(read['train'])} train pairs are too few to hold out "
            f"{' and '.join(sorted(missing))}; add pairs or files"
        )
    own = sorted(set(read) - set(SPLIT_NAMES))
    if own and not set(SPLIT_NAMES) <= set(read):
        notes.append(f"further splits, scored where evaluation.test_splits names them: {', '.join(own)}")
    # 3. The first pairs of train, without those that are held out.
    limit = min(data.train_limit or end, end)
    if limit < end:
        notes.append(f"train: the first {limit} of {end} pairs")
    splits["train"], repeated = read["train"].part(0, limit) if missing or limit < end else read["train"], 0
    if missing:
        # One range for both splits: reading the end of line files scans everything before it.
        kept = _without_repeats(data, splits["train"], read["train"].part(end, len(read["train"])))
        repeated = limit - len(kept)
        splits["train"] = kept
    if repeated:
        notes.append(f"train: {repeated} pairs left out, each equal to a held-out one")
    names = {"validation": data.validation_name, "test": data.test_name}
    names |= {split: f"held-out-{split}" for split in missing}
    named = {split: names.get(split, split) for split in splits if split != "train"}
    return Corpus(splits, frozenset(missing), named, tuple(notes), repeated)


def _generated(data: DataConfig) -> dict[str, Pairs]:
    generated: Mapping[str, Sequence[Pair]]
    try:
        if data.task is not None:
            generated = data.task.pairs()
        else:
            assert data.synthetic is not None
            generated = synthetic.generate(**data.synthetic.model_dump())
    except ValueError as error:
        raise DataError(f"data.{'synthetic' if data.task is None else 'task'}: {error}") from None
    return {split: listed_pairs(pairs) for split, pairs in generated.items()}


def _without_repeats(data: DataConfig, train: Pairs, held_out: Iterable[Pair]) -> Pairs:
    """Train without the pairs equal to a held-out one after normalisation. Pairs with an empty side are kept here; they
    are dropped and counted as empty later. Memory: the held-out pairs and 8 bytes per repeat.
    """
    held = {pair for pair in held_out if pair[0] and pair[1]}
    repeats, first = array("q"), 0
    for chunk in train.chunks():
        repeats.extend(first + index for index, pair in enumerate(chunk.pairs()) if pair in held)
        first += len(chunk)
    if len(repeats) == len(train):
        raise DataError(
            f"data {data.name}: each of the {len(train)} train pairs equals a held-out pair, which leaves nothing to "
            "train on; add other pairs, or files for validation and test"
        )
    return train.part(0, len(train), np.asarray(repeats, np.int64)) if repeats else train


# Files


def corpus_files(data: DataConfig) -> Listing:
    """The files at data.path, of the hub, or of Python's standard library. Raises DataError if there are none that can
    be used, as `list_pairs` and `list_documents`.
    """
    if data.on_hub:
        files = hub_files(data)
        standard = {split: files[split] for split in SPLIT_NAMES if split in files}
        return Listing(cache_root(data), files if data.text is None else standard)
    if data.text is not None and data.text.python_library:
        root = Path(sysconfig.get_paths()["stdlib"])
        inside = (file.relative_to(root) for file in root.rglob("*.py"))
        names = sorted(name for name in inside if not NOT_OF_THE_LIBRARY & set(name.parts))
        return Listing(root, {"train": tuple(root / name for name in names)} if names else {})
    assert data.path is not None
    path, languages = user_path(data.path).absolute(), (data.source_language, data.target_language)
    looked_for = f"train.{languages[0]} and train.{languages[1]} (or .gz)"
    if data.text is None:
        listing = list_pairs(path, languages)
    elif not path.exists():
        raise DataError(f"data.path: {path} does not exist; give a folder or a file of documents")
    elif cache_root(data).is_relative_to(path):
        raise DataError(f"data.path: data.cache_dir is in {path}, of which all is read; keep it outside")
    else:
        listing, looked_for = list_documents(path), f"*{TEXT} (or .gz)"
    if not listing.splits:
        raise DataError(
            f"data.path: no usable files in {path}; looked for {looked_for}, train*{', train*'.join(TABLES)}, "
            f"also in {path / 'data'}; {not_read(listing)}".removesuffix("; ")
        )
    return listing


def not_read(listing: Listing) -> str:
    names = ", ".join(escape_control_characters(file.name) for file in listing.left_over[:5])
    return f"not read: {names}{' ...' * (len(listing.left_over) > 5)}" if names else ""


def missing_splits(data: DataConfig, listing: Listing) -> tuple[str, ...]:
    """Those of test and validation that have to be held out of train; test sets of other names are enough instead of
    test. Raises DataError if there is no train, or a file that is not read speaks of a missing split.
    """
    splits = sorted(listing.splits)
    if "train" not in splits:
        prefix = f"; for one pair of files as train give data.path={listing.root / splits[0]}" if listing.lines else ""
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split (available: {', '.join(splits)}); it needs "
            f"one{prefix}; {not_read(listing)}".removesuffix("; ")
        )
    own_test = any(word in split for split in set(splits) - set(SPLIT_NAMES) for word in ("test", "tst"))
    missing = tuple(split for split in HELD_OUT if split not in splits and not (split == "test" and own_test))
    for file in listing.left_over:
        speaks_of = set(map(split_word, file.relative_to(listing.root).parts))
        if split := next((split for split in missing if split in speaks_of), None):
            raise DataError(
                f"data.path: {file} is not read, and {split} would be held out of train instead; store it as {split} "
                "in the format of the other files (or .gz), or move it away"
            )
    return missing


def splits_of_files(data: DataConfig) -> list[str]:
    """The splits of a corpus of files, by their names. Raises DataError as `corpus_files`, `missing_splits`."""
    listing = corpus_files(data)
    return [*listing.splits, *missing_splits(data, listing)]


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, computed without reading it where possible.

    Generated: the parameters and the generator's version. Local: the content of the files that are read. Hub: the
    commit, pinned in cache_dir/hub_revisions.json at first use; delete its line there to update.
    """
    parts: list[str]
    if data.task is not None:
        parts = [data.task.model_dump_json(), data.task.VERSION]
    elif data.synthetic is not None:
        parts = [data.synthetic.model_dump_json(), synthetic.VERSION]
    elif not data.on_hub:
        listing = corpus_files(data)
        missing = missing_splits(data, listing)  # raises, also where there is a cache from before such a file
        parts = listing.fingerprint(cache_root(data) / "digests.json")
        parts.append("" if listing.lines else str(data.hub_config))
        # Parts that invalidate caches of earlier versions, which read such corpora in another way.
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        kinds = {kind_of(file) for files in listing.splits.values() for file in files}
        parts += [f"{kind} row by row" for kind in (".csv", ".tsv") if kind in kinds]
        if data.text is None and missing:
            parts.append("held-out pairs up to max_length")
        if data.text is not None and data.hub is not None and missing:
            parts.append("held-out by name")
    else:
        parts = [str(data.hub), str(data.hub_config), hub_revision(data)]
        if data.text is not None:  # as above
            parts.append("rows counted over the files of a split")
    if data.text is not None and data.tokenizer == "bpe" and data.train_limit is not None:
        parts.append("vocabulary of the first documents")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
