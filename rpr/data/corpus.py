"""The files of a corpus, split by split: at data.path, of the Hugging Face hub, or of Python's standard library; which
of its splits are missing; and a digest of its content.
"""

import hashlib
import json
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from rpr.config.data import DataConfig
from rpr.data.files import TABLES, TEXT, kind_of, reading, stem_of
from rpr.data.generated import synthetic
from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters
from rpr.io.locks import exclusive
from rpr.paths import user_path

SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval")}
SPLIT_WORDS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
HELD_OUT = ("test", "validation")
OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a split: it becomes part of file names
SHARD = re.compile(r"[-._](?!(?:19|20)\d\d$)\d{1,5}(?:-of-(\d+).*)?$")  # train-00000-of-00001, test_1, not test_2016
# Suffixes of what lies beside a corpus. All other files may be data: people keep splits in .zip, .sgm, .xlsx, .zst ...
_BESIDE = "md rst html pdf py ipynb sh pl yaml yml toml log png svg md5 sha256 bak pt ckpt model vocab"
BESIDE_DATA = {f".{suffix}" for suffix in _BESIDE.split()}
ARCHIVES = {".zip", ".zst", ".xz", ".bz2", ".tar", ".tgz", ".7z", ".rar", ".arrow"}
NOT_OF_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LFS_POINTER = b"version https://git-lfs"
REVISIONS_NAME = "hub_revisions.json"


@dataclass(frozen=True)
class Listing:
    """The files that are read.

    root: the folder. splits: the files of each split, train first, in the order in which they are read; of line files
    (`lines`) the source and the target. left_over: what is beside them, looks like data and is not read.
    """

    root: Path
    splits: Mapping[str, Sequence[Path]]
    left_over: Sequence[Path] = ()
    lines: bool = False

    @property
    def not_read(self) -> str:
        """A remark that names the first of what is left over; empty if there is nothing."""
        names = ", ".join(escape_control_characters(file.name) for file in self.left_over[:5])
        return f"not read: {names}{' ...' * (len(self.left_over) > 5)}" if names else ""


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()


def corpus_files(data: DataConfig) -> Listing:
    """The files of a corpus. Raises DataError if there are none that can be used: nothing is there, only some names
    look like splits, or files of a split do not belong together, or are missing.
    """
    if data.on_hub:
        return Listing(cache_root(data), hub_files(data))
    if data.text is not None and data.text.python_library:
        root = Path(sysconfig.get_paths()["stdlib"])
        inside = (file.relative_to(root) for file in root.rglob("*.py"))
        names = sorted(name for name in inside if not NOT_OF_THE_LIBRARY & set(name.parts))
        return Listing(root, {"train": [root / name for name in names]})
    path = user_path(str(data.path)).absolute()
    if data.text is not None and cache_root(data).is_relative_to(path):
        raise DataError(f"data.path: data.cache_dir is in {path}, of which all is read; keep it outside")
    listing = list_files(path, () if data.text is not None else (data.source_language, data.target_language))
    if not listing.splits:
        texts = f"train.{data.source_language} and train.{data.target_language}" if data.text is None else f"*{TEXT}"
        raise DataError(
            f"data.path: no usable files in {path}; looked for {texts} (or .gz), train*{', train*'.join(TABLES)}, "
            f"also in {path / 'data'}; {listing.not_read}".removesuffix("; ")
        )
    return listing


def missing_splits(data: DataConfig, listing: Listing) -> tuple[str, ...]:
    """Those of test and validation that have to be held out of train; test sets of other names are enough instead of
    test. Raises DataError if there is no train, or a file that is not read speaks of a missing split.
    """
    splits = sorted(listing.splits)
    if "train" not in splits:
        prefix = f"; for one pair of files as train give data.path={listing.root / splits[0]}" if listing.lines else ""
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split (available: {', '.join(splits)}){prefix}"
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


# Names


def split_word(name: str) -> str | None:
    """The standard split that a word of a name stands for: test of `en-de.test` and `test_2016`; or None."""
    return next((SPLIT_WORDS[word] for word in re.split(r"[-._ \d]+", name.lower()) if word in SPLIT_WORDS), None)


def _standard(groups: Mapping[str, Sequence[Path]]) -> dict[str, Sequence[Path]]:
    """The standard splits, train first: the first of validation, valid, val and dev is validation."""
    firsts = {split: next((name for name in same if name in groups), None) for split, same in SPLIT_NAMES.items()}
    return {split: groups[name] for split, name in firsts.items() if name is not None}


def _with_own(groups: Mapping[str, Sequence[Path]]) -> dict[str, Sequence[Path]]:
    """And the user's own splits, which are none of the standard ones in other capitals, and no other train."""
    splits = _standard(groups)
    taken = {files[0] for files in splits.values()}
    for name, files in sorted(groups.items()):
        own = OWN_NAME.fullmatch(name) and (name in SPLIT_WORDS or name.lower() not in SPLIT_WORDS)
        if own and files[0] not in taken and split_word(name) != "train":
            splits[name] = files
    return splits


# Folders


def list_files(path: Path, languages: Sequence[str]) -> Listing:
    """The files at `path` of sentence pairs in two languages, or, without languages, of documents. One file, or the
    beginning of the names of two line files, is train.

    Pairs: a folder, or its folder data, has line files `SPLIT.LANGUAGE` (and two of any other name, which are a test
    set), else tables `SPLIT.SUFFIX`, numbered ones, or folders SPLIT of tables. Documents: also in sub-folders; if a
    top-level folder or file is called train, the splits are those called so, and nothing beside them is read; else all
    are train.
    """
    # 1. No folder.
    readable = TABLES if languages else (TEXT, *TABLES)
    if path.is_file() and (not languages or kind_of(path) in readable):
        return Listing(path.parent, {"train": [path]})
    if not path.is_dir():
        beside = [file for file in _visible(path.parent) if file.name.startswith(f"{path.name}.")]
        if languages and (sides := _line_files(beside, languages).get(path.name)):
            return Listing(path.parent, {"train": sides}, lines=True)
        problem = f"is no table ({', '.join(TABLES)})" if path.exists() else "does not exist"
        wanted = "a table, or the path of two line files without .{} and .{}" if languages else "a file of documents"
        raise DataError(f"data.path: {path} {problem}; give a folder, {wanted.format(*languages)}")
    # 2. What there is.
    top = [file for folder in (path, path / "data") for file in _visible(folder)]
    within = [file for folder in top if folder.name in SPLIT_WORDS for file in _visible(folder)]
    files = top if languages else [*_walk(path)]
    usable = [file for file in (files + within if languages else files) if kind_of(file) in readable and file.is_file()]
    # 3. Its splits: of line files, else of tables and texts.
    splits = _with_own(_line_files(top, languages)) if languages else {}
    if not (lines := bool(splits)):
        groups: dict[str, list[Path]] = {}
        for file in usable:
            first, *more = file.relative_to(path / "data" if (path / "data") in file.parents else path).parts
            groups.setdefault(first if more else SHARD.sub("", stem_of(file)), []).append(file)
        if languages:
            splits = _with_own({name: of_name for name, of_name in groups.items() if split_word(name)})
        elif "train" in groups:
            splits = _standard(groups)
        elif usable:
            words = {split_word(name): of_name[0] for name, of_name in groups.items()}
            if (apart := words.get("test") or words.get("validation")) and ("train" in words or _standard(groups)):
                raise DataError(
                    f"data.path: {apart} looks like a split, and would be trained on with the others in {path}; "
                    "call the files or folders of the splits train, validation and test"
                )
            splits = {"train": usable}
        _check(splits, (lambda file: (file.parent, kind_of(file), _shards(file))) if languages else kind_of)
    used = {part for of_split in splits.values() for file in of_split for part in (file, file.parent)}
    left = [file for file in files if file not in used and _may_be_data(file, languages)]
    return Listing(path, splits, left, lines)


def _visible(folder: Path) -> list[Path]:
    """Sorted, files and folders; those of Spark and of systems begin with _ or a dot."""
    return sorted(file for file in folder.iterdir() if file.name[0] not in "._") if folder.is_dir() else []


def _walk(root: Path) -> Iterator[Path]:
    """The visible files, also behind links, folder by folder. DataError: a folder is there twice, or is a run."""
    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        if (other := seen.setdefault(os.path.realpath(folder), folder)) != folder:
            raise DataError(f"data.path: {folder} and {other} are one folder, read twice; remove the link")
        if "record.json" in names:
            raise DataError(f"data.path: {folder} is a run, not of the corpus; keep runs_dir outside of {root}")
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        yield from (Path(folder, name) for name in sorted(names) if name[0] not in "._")


def _line_files(files: Iterable[Path], languages: Sequence[str]) -> dict[str, list[Path]]:
    """The source and the target of each name before `.LANGUAGE`; other files may have one of them."""
    named = re.compile(rf"(.+)\.({'|'.join(map(re.escape, languages))})(\.gz)?")
    stems: dict[str, dict[str, Path]] = {}
    for file in files:
        match = named.fullmatch(file.name) if file.is_file() else None
        if match and (other := stems.setdefault(match[1], {}).setdefault(match[2], file)) != file:
            raise DataError(f"data.path: {other} and {file} are the same side of one split; keep one of them")
    for stem, sides in stems.items():
        if len(sides) == 1 and (stem == "train" or split_word(stem) in HELD_OUT):
            raise DataError(f"data.path: {sides.popitem()[1]} has no counterpart; a split needs both languages")
    return {stem: [sides[language] for language in languages] for stem, sides in stems.items() if len(sides) == 2}


def _shards(file: Path) -> int | bool:
    """How many there are by the name of one, or whether it has a number."""
    match = SHARD.search(stem_of(file))
    return int(match[1]) if match and match[1] else bool(match)


def _check(splits: Mapping[str, Sequence[Path]], layout: Callable[[Path], object]) -> None:
    """Raises DataError if two files of a split differ in layout, or by packing alone, or if a shard is missing."""
    for split, files in splits.items():
        first: dict[str, Path] = {}
        for file in files:
            other = first.setdefault(str(file).lower().removesuffix(".gz"), file)
            if other != file or layout(file) != layout(other := files[0]):
                raise DataError(
                    f"data.path: {other} and {file} are both of split {split}, and would be read one after the other; "
                    "keep one of them, or store all files of a split in one format, numbered or in a folder of its name"
                )
        shards = Counter((file.parent, SHARD.sub("", stem_of(file)), _shards(file)) for file in files)
        for (folder, stem, number), count in shards.items():
            if number > 1 and count != number:
                raise DataError(
                    f"data.path: {count} of the {number} files {stem}-*-of-{number:05} are in {folder}; get the others"
                )


def _may_be_data(file: Path, languages: Sequence[str]) -> bool:
    """Whether something that is not read may be data: an archive, or its name speaks of a split or a language."""
    suffixes = [suffix.lower() for suffix in ["", *file.suffixes]]
    speaks = split_word(file.name) or any(f".{language}".lower() in suffixes for language in languages)
    readable = not languages and kind_of(file) in (TEXT, *TABLES)
    return readable or suffixes[-1] in ARCHIVES or (suffixes[-1] not in BESIDE_DATA and bool(speaks))


# The hub, read with the datasets library at a pinned commit. The functions import it themselves: that takes a second.


def hub_files(data: DataConfig) -> Mapping[str, Sequence[Path]]:
    """The Arrow files of each split, as the library has downloaded and converted them; of pairs also of others."""
    revision, pins = hub_revision(data), cache_root(data) / REVISIONS_NAME
    # Without the hub the library takes the newest commit that it has stored, whatever was asked for.
    if (there := str(_call(data, "load_dataset_builder", revision=revision).hash)) != revision:
        raise DataError(
            f"data.hub: {data.hub} is pinned to commit {revision[:12]} in {pins}, but only {there[:12]} can be read "
            "here; connect to the hub (unset HF_HUB_OFFLINE), or delete its line there for another commit"
        )
    splits = _call(data, "load_dataset", revision=revision, keep_in_memory=False)
    files = {str(name): [Path(file["filename"]) for file in rows.cache_files] for name, rows in splits.items()}
    standard = _standard(files)
    taken = [*standard.values()]
    others = {} if data.text is not None else {name: of for name, of in files.items() if of not in taken}
    return standard | others


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to. Raises DataError if there is none."""
    if (revision := pinned_revision(data)) is None:
        revision = str(_call(data, "load_dataset_builder").hash)
        if re.fullmatch("[0-9a-f]{40}", revision) is None:
            raise DataError(
                f"data.hub: {data.hub} is read from a folder of this name, which has no commit; give it as "
                "data.path=..., or work in another directory"
            )
        root = cache_root(data)
        with suppress(OSError), exclusive(root, REVISIONS_NAME, quiet=True):
            replace_file(root / REVISIONS_NAME, json.dumps({**_pins(data), str(data.hub): revision}, indent=1))
    return revision


def pinned_revision(data: DataConfig) -> str | None:
    """The same if it is pinned already; never asks the hub. Raises DataError if the file of pins is damaged."""
    return _pins(data).get(str(data.hub))


def _pins(data: DataConfig) -> dict[str, str]:
    path = cache_root(data) / REVISIONS_NAME
    try:
        return {**json.loads(path.read_text())} if path.exists() else {}
    except (OSError, ValueError, TypeError):
        raise DataError(
            f"data.cache_dir: {path} is no JSON object with the commits of its corpora; mend or delete it"
        ) from None


def _call(data: DataConfig, function: str, **arguments: Any) -> Any:
    """Call the library; every error becomes a one-line DataError."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below, in one line
    try:
        return getattr(datasets, function)(data.hub, data.hub_config, **arguments)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(
            f"data.hub: {data.hub} ({data.hub_config or 'its only configuration'}) cannot be read ({reason}); check "
            "data.hub, data.hub_config and the connection, or give a local copy as data.path=..."
        ) from None


# Digests


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus.

    Generated: the parameters and the generator's version. Local: the content of the files that are read. Hub: the
    commit, pinned in cache_dir/hub_revisions.json at first use; delete its line there to update.
    """
    # Parts in words tell caches apart from those of earlier versions, which read such corpora in another way.
    if data.task is not None:
        parts = [data.task.model_dump_json(), data.task.VERSION]
    elif data.synthetic is not None:
        parts = [data.synthetic.model_dump_json(), synthetic.VERSION]
    elif data.on_hub:
        parts = [str(data.hub), str(data.hub_config), hub_revision(data)]
        parts += ["rows counted over the files of a split"] if data.text is not None else []
    else:
        listing = corpus_files(data)
        missing = missing_splits(data, listing)  # raises, also where there is a cache from before such a file
        parts = [f"{label} {_digest(file)}" for label, file in _labels(listing)]
        parts.append("" if listing.lines else str(data.hub_config))
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        if data.text is None and missing:
            parts.append("held-out pairs up to max_length")
        if data.text is not None and data.hub is not None and missing:
            parts.append("held-out by name")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def _labels(listing: Listing) -> list[tuple[str, Path]]:
    """The files by what tells them apart, wherever the corpus is: of line files, split and side."""
    if not listing.lines:
        files = sorted(chain(*listing.splits.values()))
        return [(file.relative_to(listing.root).as_posix(), file) for file in files]
    sides = listing.splits.items()
    return sorted((f"{split} {side}", file) for split, files in sides for side, file in enumerate(files))


def _digest(file: Path) -> str:
    """sha256 of a file. Raises DataError for a pointer of Git LFS in place of it."""
    with reading(file):
        status = file.stat()
        return _digest_of(file, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache  # of a process; who restores a time of modification changes another of the stamps
def _digest_of(file: Path, *_stamps: int) -> str:
    with file.open("rb") as handle:
        if handle.read(len(LFS_POINTER)) == LFS_POINTER:
            raise DataError(f"data.path: {file} is a pointer of Git LFS, not the file; run git lfs pull there")
        handle.seek(0)
        return hashlib.file_digest(handle, "sha256").hexdigest()
