"""The files of a corpus, split by split: at data.path, of the Hugging Face hub, or of Python's standard library; which
of its splits are missing; and a digest of its content.
"""

import hashlib
import json
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    splits: Mapping[str, tuple[Path, ...]]
    left_over: tuple[Path, ...] = ()
    lines: bool = False

    def __post_init__(self) -> None:
        order = sorted(self.splits, key=lambda split: [*SPLIT_NAMES, split].index(split))
        object.__setattr__(self, "splits", {split: self.splits[split] for split in order})

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
        files = hub_files(data)
        standard = {split: files[split] for split in SPLIT_NAMES if split in files}
        return Listing(cache_root(data), files if data.text is None else standard)
    if data.text is not None and data.text.python_library:
        root = Path(sysconfig.get_paths()["stdlib"])
        inside = (file.relative_to(root) for file in root.rglob("*.py"))
        names = sorted(name for name in inside if not NOT_OF_THE_LIBRARY & set(name.parts))
        return Listing(root, {"train": tuple(root / name for name in names)})
    assert data.path is not None
    path, languages = user_path(data.path).absolute(), (data.source_language, data.target_language)
    looked_for = f"*{TEXT} (or .gz)"
    if data.text is None:
        listing, looked_for = list_pairs(path, languages), "train.{} and train.{} (or .gz)".format(*languages)
    elif not path.exists():
        raise DataError(f"data.path: {path} does not exist; give a folder or a file of documents")
    elif cache_root(data).is_relative_to(path):
        raise DataError(f"data.path: data.cache_dir is in {path}, of which all is read; keep it outside")
    else:
        listing = list_documents(path)
    if not listing.splits:
        raise DataError(
            f"data.path: no usable files in {path}; looked for {looked_for}, train*{', train*'.join(TABLES)}, "
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


def standard_splits(names: Collection[str]) -> dict[str, str]:
    """Which of the names are standard splits: the first of validation, valid, val and dev is validation."""
    firsts = ((next((name for name in same if name in names), None), split) for split, same in SPLIT_NAMES.items())
    return {name: split for name, split in firsts if name is not None}


def _splits(names: Collection[str], is_own: Callable[[str], object]) -> dict[str, str]:
    """The split of each name that is one: a standard one, or the user's own, which is none of the standard ones in
    other capitals, and no other train.
    """
    usual = standard_splits(names)
    own = (name for name in names if OWN_NAME.fullmatch(name) and split_word(name) != "train" and is_own(name))
    return {name: name for name in own if name in SPLIT_WORDS or name.lower() not in SPLIT_WORDS} | usual


def _grouped(files: Iterable[Path], root: Path) -> dict[str, list[Path]]:
    """By `train` of train.csv, data/train.csv, train-00000-of-00001.csv, and all files of a folder train."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        first, *more = file.relative_to(root / "data" if (root / "data") in file.parents else root).parts
        groups.setdefault(first if more else SHARD.sub("", stem_of(file)), []).append(file)
    return groups


# Folders


def list_pairs(path: Path, languages: tuple[str, str]) -> Listing:
    """The files of sentence pairs at `path`: a folder, one table, or the beginning of the names of two line files; the
    last two are train.

    A folder, or its folder data, has line files `SPLIT.LANGUAGE`, else tables `SPLIT.SUFFIX`, numbered ones, or folders
    SPLIT of tables. Other test sets (two line files of any name, tables called like test_2016) are splits of their own
    names.
    """
    # 1. One table, or two line files.
    if path.is_file() and kind_of(path) in TABLES:
        return Listing(path.parent, {"train": (path,)})
    if not path.is_dir():
        if (sides := _line_files(_visible(path.parent), languages).get(path.name)) is None:
            problem = f"is no table ({', '.join(TABLES)})" if path.exists() else "does not exist"
            prefix = "two line files without .{} and .{}".format(*languages)
            raise DataError(f"data.path: {path} {problem}; give a folder, a table, or the path of {prefix}")
        return Listing(path.parent, {"train": _both(path, sides, languages)}, lines=True)
    # 2. A folder of line files.
    beside = [file for folder in (path, path / "data") for file in _visible(folder)]
    stems = _line_files(beside, languages)
    names = _splits(stems, lambda stem: len(stems[stem]) == 2 or split_word(stem))
    splits = {split: _both(path / stem, stems[stem], languages) for stem, split in names.items()}
    # 3. Or of tables.
    if not (lines := bool(splits)):
        within = [file for folder in beside if folder.name in SPLIT_WORDS for file in _visible(folder)]
        groups = _grouped((file for file in (*beside, *within) if kind_of(file) in TABLES and file.is_file()), path)
        for name, split in _splits(groups, split_word).items():
            _check_files(name, groups[name], lambda file: (file.parent, kind_of(file), _shards(file)))
            splits[split] = (*groups[name],)
    used = {part for files in splits.values() for file in files for part in (file, file.parent)}
    left = tuple(file for file in beside if file not in used and _may_be_data(file, languages))
    return Listing(path, splits, left, lines)


def list_documents(path: Path) -> Listing:
    """The files of documents at `path`, also in sub-folders: one file is train. If a top-level folder or file is called
    train, the splits are those called so, and nothing beside them is read; else all are train.
    """
    if path.is_file():
        return Listing(path.parent, {"train": (path,)})
    files = [*_walk(path)]
    documents = [file for file in files if kind_of(file) in (TEXT, *TABLES)]
    groups = _grouped(documents, path)
    usual, words = standard_splits(groups), {name: split_word(name) for name in groups}
    splits = {split: (*groups[name],) for name, split in usual.items()}
    if "train" not in usual:
        splits = {"train": (*documents,)} if documents else {}
        apart = [name for name, word in words.items() if word in HELD_OUT]
        if apart and (usual or "train" in words.values()):
            raise DataError(
                f"data.path: {groups[apart[0]][0]} looks like a split, and would be trained on with the others in "
                f"{path}; call the files or folders of the splits train, validation and test"
            )
    for split, of_split in splits.items():
        _check_files(split, of_split, kind_of)
    unread = set(files).difference(*splits.values())
    return Listing(path, splits, tuple(file for file in files if file in unread and _may_be_data(file, (), documents)))


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


def _line_files(files: Iterable[Path], languages: tuple[str, str]) -> dict[str, dict[str, Path]]:
    """The line files by what is before `.LANGUAGE`, and by language."""
    named = re.compile(rf"(.+)\.({'|'.join(map(re.escape, languages))})(\.gz)?")
    stems: dict[str, dict[str, Path]] = {}
    for file in files:
        match = named.fullmatch(file.name) if file.is_file() else None
        if match and (other := stems.setdefault(match[1], {}).setdefault(match[2], file)) != file:
            raise DataError(f"data.path: {other} and {file} are the same side of one split; keep one of them")
    return stems


def _both(prefix: Path, sides: dict[str, Path], languages: tuple[str, str]) -> tuple[Path, ...]:
    if missing := [language for language in languages if language not in sides]:
        there = next(iter(sides.values()))
        raise DataError(f"data.path: {there} has no counterpart {prefix}.{missing[0]}; a split needs both languages")
    return sides[languages[0]], sides[languages[1]]


def _shards(file: Path) -> int | bool:
    """How many there are by the name of one, or whether it has a number."""
    match = SHARD.search(stem_of(file))
    return int(match[1]) if match and match[1] else bool(match)


def _check_files(split: str, files: Sequence[Path], layout: Callable[[Path], object]) -> None:
    """Raises DataError if two files differ in layout, or by their packing alone, or if a shard is missing."""
    first: dict[str, Path] = {}
    for file in files:
        other = first.setdefault(str(file).lower().removesuffix(".gz"), file)
        if other != file or layout(file) != layout(other := files[0]):
            raise DataError(
                f"data.path: {other} and {file} are both of split {split}, and would be read one after the other; "
                "keep one of them, or store all files of a split in one format, numbered or in a folder of its name"
            )
    shards = Counter((file.parent, SHARD.sub("", stem_of(file)), _shards(file)) for file in files if _shards(file) > 1)
    for (folder, stem, number), count in shards.items():
        if count != number:
            raise DataError(
                f"data.path: {count} of the {number} files {stem}-*-of-{number:05} are in {folder}; get the others"
            )


def _may_be_data(file: Path, languages: Collection[str], known: Collection[Path] = ()) -> bool:
    """Whether something that is not read may be data, as its name speaks of a split or a language, or an archive."""
    suffixes = [suffix.lower() for suffix in ["", *file.suffixes]]
    speaks = split_word(file.name) or any(f".{language}".lower() in suffixes for language in languages)
    return file in known or suffixes[-1] in ARCHIVES or (suffixes[-1] not in BESIDE_DATA and bool(speaks))


# The hub, read with the datasets library at a pinned commit. The functions import it themselves: that takes a second.


def hub_files(data: DataConfig) -> dict[str, tuple[Path, ...]]:
    """The Arrow files of each split, by its standard name, as the library has downloaded and converted them."""
    import datasets

    revision, pins = hub_revision(data), cache_root(data) / REVISIONS_NAME
    # Without the hub the library takes the newest commit that it has stored, whatever was asked for.
    if (there := str(_call(data, datasets.load_dataset_builder, revision=revision).hash)) != revision:
        raise DataError(
            f"data.hub: {data.hub} is pinned to commit {revision[:12]} in {pins}, but only {there[:12]} can be read "
            "here; connect to the hub (unset HF_HUB_OFFLINE), or delete its line there for another commit"
        )
    splits = _call(data, datasets.load_dataset, revision=revision, keep_in_memory=False)
    usual = standard_splits([*map(str, splits)])
    files = {str(name): tuple(Path(file["filename"]) for file in rows.cache_files) for name, rows in splits.items()}
    return {usual.get(name, name): of_split for name, of_split in files.items()}


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to. Raises DataError if there is none."""
    if (revision := pinned_revision(data)) is None:
        import datasets

        revision = str(_call(data, datasets.load_dataset_builder).hash)
        if re.fullmatch("[0-9a-f]{40}", revision) is None:
            raise DataError(
                f"data.hub: {data.hub} is read from a folder of this name, which has no commit; give it as "
                "data.path=..., or work in another directory"
            )
        _update_json(cache_root(data) / REVISIONS_NAME, {str(data.hub): revision})
    return revision


def pinned_revision(data: DataConfig) -> str | None:
    """The same if it is pinned already; never asks the hub. Raises DataError if the file of pins is damaged."""
    path = cache_root(data) / REVISIONS_NAME
    pins = _read_json(path)
    if not pins and path.exists():
        raise DataError(f"data.cache_dir: {path} is no JSON object with the commits of its corpora; mend or delete it")
    revision = pins.get(str(data.hub))
    return revision if isinstance(revision, str) else None


def _call(data: DataConfig, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call the library; every error becomes a one-line DataError."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below, in one line
    try:
        return function(data.hub, data.hub_config, **arguments)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(
            f"data.hub: {data.hub} ({data.hub_config or 'its only configuration'}) cannot be read ({reason}); check "
            "data.hub, data.hub_config and the connection, or give a local copy as data.path=..."
        ) from None


# Digests


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, computed without reading it where possible.

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
        parts = _digests(listing, cache_root(data) / "digests.json")
        parts.append("" if listing.lines else str(data.hub_config))
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        if data.text is None and missing:
            parts.append("held-out pairs up to max_length")
        if data.text is not None and data.hub is not None and missing:
            parts.append("held-out by name")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def _digests(listing: Listing, store: Path) -> list[str]:
    """A label and the sha256 of each file, cached in `store` by path, size, inode, and times of modification and of
    change: who restores a modification time, or puts another file of the same size and time in place, changes one of
    the last. Raises DataError for a pointer of Git LFS in place of a file.
    """
    labels = [(file.relative_to(listing.root).as_posix(), file) for file in sorted(chain(*listing.splits.values()))]
    if listing.lines:
        sides = listing.splits.items()
        labels = sorted((f"{split} {side}", file) for split, files in sides for side, file in enumerate(files))
    known, new, digests = _read_json(store), dict[str, Any](), list[str]()
    for label, file in labels:
        with reading(file), file.open("rb") as handle:
            if handle.read(len(LFS_POINTER)) == LFS_POINTER:
                raise DataError(f"data.path: {file} is a pointer of Git LFS, not the file; run git lfs pull there")
            handle.seek(0)
            status = os.fstat(handle.fileno())
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = known.get(str(file))
            if not isinstance(entry, list) or entry[:-1] != stamp:
                entry = new[str(file)] = [*stamp, hashlib.file_digest(handle, "sha256").hexdigest()]
        digests.append(f"{label} {entry[-1]}")
    if new:
        _update_json(store, new)
    return digests


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _update_json(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys of a JSON file. Write errors are ignored: only the next start is slower."""
    with suppress(OSError), exclusive(path.parent, path.name, quiet=True):
        replace_file(path, json.dumps({**_read_json(path), **values}, indent=1))
