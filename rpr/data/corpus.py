"""Sources of sentence pairs: generated, a local folder or pair of line files, or the Hugging Face hub."""

import hashlib
import re
import sysconfig
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rpr.config.data import DataConfig
from rpr.data import synthetic
from rpr.data.content import is_packed
from rpr.data.files import (
    SHARD,
    SPLIT_NAMES,
    SPLIT_WORDS,
    Listing,
    check_alike,
    group_of,
    kind_of,
    list_files,
    split_word,
)
from rpr.data.hub import hub_files, hub_revision
from rpr.data.line_files import list_line_files
from rpr.data.pairs import Pair, Pairs, cache_root, line_pairs, listed_pairs, table_pairs
from rpr.data.tables import TABLES
from rpr.errors import DataError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, 1/20 of train) pairs
HELD_OUT = ("test", "validation")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")  # of test_2016_flickr
TEXT = ".txt"  # a document each
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
    read, left_over = _read(data)
    for split, pairs in read.items():
        if not len(pairs):
            raise DataError(
                f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs at least one pair"
            )
    splits, notes = _hold_out(data, read, left_over)
    held_out = frozenset(splits) - frozenset(read)
    first_held_out, repeated = len(splits["train"]), 0
    if data.train_limit is not None and data.train_limit < len(splits["train"]):
        notes += (f"train: the first {data.train_limit} of {len(splits['train'])} pairs",)
        splits["train"] = splits["train"].part(0, data.train_limit)
    if held_out:
        # One range for both splits: reading the end of line files scans everything before it.
        all_held_out = read["train"].part(first_held_out, len(read["train"]))
        kept = _without_repeats(data, splits["train"], all_held_out)
        repeated = len(splits["train"]) - len(kept)
        if repeated:
            notes += (f"train: {repeated} pairs left out, each equal to a held-out one",)
            splits["train"] = kept
    own = {"validation": data.validation_name, "test": data.test_name}
    own |= {split: f"held-out-{split}" for split in held_out}
    named = {split: own.get(split, split) for split in splits if split != "train"}
    return Corpus(splits, held_out, named, notes, repeated)


def corpus_files(data: DataConfig) -> Listing:
    """The files at data.path, of the hub, or of Python's standard library. Raises DataError if there are none that can
    be used, as `list_files` and `list_line_files`, or if files that rpr wrote are among them.
    """
    if data.on_hub:
        return Listing(cache_root(data), hub_files(data))
    if data.text is not None and data.text.python_library:
        return _python_library()
    assert data.path is not None
    path, languages = user_path(data.path).absolute(), (data.source_language, data.target_language)
    if data.text is None:
        listing = list_line_files(path, languages)
        if listing.splits:
            return listing
        listing = list_files(path, TABLES, data.hub_config)
        _check_names(data, listing)
    elif not path.exists():
        raise DataError(f"data.path: {path} does not exist; give a folder or a file of documents")
    else:
        listing = _in_train_unless_split(list_files(path, (TEXT, *TABLES), data.hub_config))
    files = [file for split in listing.splits.values() for file in split]
    own = [cache_root(data)] if cache_root(data).is_relative_to(path) else []
    if own := own + [file for file in (*files, *listing.left_over) if file.name == "record.json"]:
        raise DataError(
            f"data.path: {own[0]} is not of the corpus, but all files in {path} are read; "
            "keep data.cache_dir and runs_dir outside of it"
        )
    if not files:
        lines, column = " and ".join(f"train.{language}" for language in languages), "a translation column"
        if data.text is not None:
            lines, column = f"*{TEXT}", f"a column {data.text.column!r}"
        raise DataError(
            f"data.path: no usable files in {path}; looked for {lines} (or packed: .gz, .xz, .bz2), "
            f"and for *{', *'.join(TABLES)} with {column}; {not_read(listing.left_over)}".removesuffix("; ")
        )
    return listing


def check_config(data: DataConfig, listing: Listing) -> None:
    """Raises DataError if data.hub_config, which only a corpus of the hub has from conf/, selects none of the files."""
    config = data.hub_config if data.hub is None else None
    if config is None or listing.configured or (not listing.lines and (listing.root / config).is_dir()):
        return
    raise DataError(
        f"data.hub_config: {data.path} has no folder {config} and no README with such a configuration; correct it, or "
        "leave it out to read all files there"
    )


def splits_of_files(data: DataConfig) -> list[str]:
    """The splits of a corpus of files, by their names. Raises DataError as `corpus_files`, `missing_splits`."""
    listing = corpus_files(data)
    read = [split for split in listing.splits if data.text is None or split in SPLIT_NAMES]
    return [*read, *missing_splits(data, read, listing.left_over)]


def _check_names(data: DataConfig, listing: Listing) -> None:
    """Raises DataError for a file called as another split than the one that its folder speaks of, which would decide,
    for two versions of train, as train.csv and train_tok.csv, and for a test set of another year than the one that the
    corpus is known for; where a README decides, files may have any name.
    """
    if listing.configured:
        return
    for split, file in ((split, file) for split, files in listing.splits.items() for file in files):
        called = SPLIT_WORDS.get(SHARD.sub("", file.name.lower().partition(".")[0]))
        if called not in (None, split_word(split)):
            raise DataError(
                f"data.path: {file} is called {called}, and would be read as {split}, which its folder speaks of; "
                "rename the folder or the file"
            )
        known = {"validation": data.validation_name, "test": data.test_name}.get(split, "")
        years, of_name = _YEAR.findall(known), _YEAR.findall(file.relative_to(listing.root).as_posix())
        if years and of_name and not {*years} & {*of_name}:
            raise DataError(
                f"data.path: {file} would be reported as {known}; rename it if it is that, or give its name as "
                f"data.{split}_name=..."
            )
    train = listing.splits.get("train", ())
    versions = {group_of(file.relative_to(listing.root).as_posix(), kind_of(file)): file for file in train}
    if len(versions) > 1:
        first, second, *_ = versions.values()
        raise DataError(
            f"data.path: {first} and {second} are both of split train, and would be read one after the other; keep "
            "one of them, or put all that belong together into a folder train"
        )


def _python_library() -> Listing:
    root = Path(sysconfig.get_paths()["stdlib"])
    inside = (file.relative_to(root) for file in root.rglob("*.py"))
    names = sorted(name for name in inside if not NOT_OF_THE_LIBRARY & set(name.parts))
    if not names:
        raise DataError(f"data: {root} has no modules of the standard library; choose data=text with data.path")
    return Listing(root, {"train": tuple(root / name for name in names)})


def _in_train_unless_split(listing: Listing) -> Listing:
    """Documents whose names happen to have a word like test are split only if some are train and all have such a word,
    or are called so (test.txt, test/a.txt), beside which others are not read. Raises DataError: only some have such a
    word, and are called so or speak of train too.
    """
    unread = [file for file in listing.left_over if kind_of(file) in (TEXT, *TABLES)]
    split = [file for files in listing.splits.values() for file in files]
    called = [re.split("[/.]", file.relative_to(listing.root).as_posix().lower())[0] in SPLIT_WORDS for file in split]
    if listing.configured or ("train" in listing.splits and (all(called) or not unread)):
        return listing
    apart = sorted(listing.splits.keys() - {"train"})
    if unread and apart and ("train" in listing.splits or any(called)):
        raise DataError(
            f"data.path: {listing.splits[apart[0]][0]} looks like a split, and {unread[0]} like none; name the split "
            "of every file, or put the files of each split, or all of them, into a folder train, validation or test"
        )
    files = sorted([*unread, *split])
    check_alike("train", files)
    left_over = tuple(file for file in listing.left_over if kind_of(file) not in (TEXT, *TABLES))
    return replace(listing, splits={"train": tuple(files)} if files else {}, left_over=left_over)


def not_read(files: Sequence[Path]) -> str:
    names = ", ".join(escape_control_characters(file.name) for file in files[:5]) + " ..." * (len(files) > 5)
    return f"not read: {names}" if files else ""


def _read(data: DataConfig) -> tuple[Mapping[str, Pairs], Sequence[Path]]:
    """The splits that there are, and the files that are not read."""
    if data.generated:
        generated: Mapping[str, Sequence[Pair]]
        try:
            if data.task is not None:
                generated = data.task.pairs()
            else:
                assert data.synthetic is not None
                generated = synthetic.generate(**data.synthetic.model_dump())
        except ValueError as error:
            raise DataError(f"data.{'synthetic' if data.task is None else 'task'}: {error}") from None
        return {split: listed_pairs(pairs) for split, pairs in generated.items()}, ()
    listing = corpus_files(data)
    check_config(data, listing)
    splits: dict[str, Pairs] = {
        split: line_pairs(*files) if listing.lines else table_pairs(files, data, split, listing.separator)
        for split, files in listing.splits.items()
    }
    return splits, listing.left_over


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, computed without reading it where possible.

    Generated: the parameters and the generator's version. Local: the content of the files that are read, and of
    the README that chooses them. Hub: the commit, pinned in cache_dir/hub_revisions.json at first use; delete its line
    there to update.
    """
    parts: list[str]
    if data.task is not None:
        parts = [data.task.model_dump_json(), data.task.VERSION]
    elif data.synthetic is not None:
        parts = [data.synthetic.model_dump_json(), synthetic.VERSION]
    elif not data.on_hub:
        listing = corpus_files(data)
        read = listing.splits if data.text is None else listing.splits.keys() & set(SPLIT_NAMES)
        # Raises, also where there is a cache from before such a file.
        missing = missing_splits(data, read, listing.left_over)
        parts = listing.fingerprint(cache_root(data) / "digests.json")
        parts.append("" if listing.lines else str(data.hub_config))
        # Parts that invalidate caches of earlier versions, which read such corpora in another way.
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        if any(kind_of(file) == ".csv" and not is_packed(file) for files in listing.splits.values() for file in files):
            parts.append("CSV row by row")
        if listing.configured:
            parts.append("the files of the README")
        if data.text is not None and data.hub is not None and missing:
            parts.append("held-out by name")
    else:
        parts = [str(data.hub), str(data.hub_config), hub_revision(data)]
        if data.text is not None:  # as above
            parts.append("rows counted over the files of a split")
    if data.text is not None and data.tokenizer == "bpe" and data.train_limit is not None:
        parts.append("vocabulary of the first documents")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def missing_splits(data: DataConfig, splits: Collection[str], left_over: Sequence[Path]) -> tuple[str, ...]:
    """Those of test and validation that have to be held out of train; test sets of other names are enough instead of
    test. Raises DataError if there is no train, or a file that is not read speaks of a missing split.
    """
    if "train" not in splits:
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split "
            f"(available: {', '.join(sorted(splits))}); it needs one; {not_read(left_over)}".removesuffix("; ")
        )
    own_test = any(word in split for split in set(splits) - set(SPLIT_NAMES) for word in ("test", "tst"))
    missing = tuple(split for split in HELD_OUT if split not in splits and not (split == "test" and own_test))
    for file in left_over:
        if (split := split_word(file.name)) in missing:
            raise DataError(
                f"data.path: {file} is not read, and {split} would be held out of train instead; store it as {split} "
                f"in the format of the other files (or packed: .gz, .xz, .bz2), or move it away"
            )
    return missing


def _hold_out(
    data: DataConfig, read: Mapping[str, Pairs], left_over: Sequence[Path]
) -> tuple[dict[str, Pairs], tuple[str, ...]]:
    """Fill a missing test, then a missing validation split, with the last pairs of train."""
    missing, train = missing_splits(data, read, left_over), read["train"]
    splits, notes = dict(read), []
    number = min(HELD_OUT_PAIRS, max(1, len(train) // HELD_OUT_SHARE))
    end = len(train)
    for split in missing:
        splits[split] = train.part(max(0, end - number), end)
        end -= number
        notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        raise DataError(
            f"data {data.name}: {len(train)} train pairs are too few to hold out {' and '.join(sorted(missing))}; "
            "add pairs or files"
        )
    if missing:
        splits["train"] = train.part(0, end)
    own = sorted(set(read) - set(SPLIT_NAMES))
    if own and not set(SPLIT_NAMES) <= set(read):
        notes.append(f"further splits, scored where evaluation.test_splits names them: {', '.join(own)}")
    if left_over:
        notes.append(not_read(left_over))
    return splits, tuple(notes)


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
