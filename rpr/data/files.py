"""The files of a corpus: which are read, split by split, and their content as bytes and lines of text.

listing = list_pairs(path, ("en", "de"))    # or list_documents(path)
listing.splits                              # {"train": (files...), "test": (files...), ...}
listing.fingerprint(store)                  # labels and sha256 of exactly these files
open_file(file), text_lines(file)           # their bytes and lines, unpacked; columns: rpr/data/tables.py
"""

import gzip
import hashlib
import json
import os
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.io.locks import exclusive

SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval")}
SPLIT_WORDS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
TEXT = ".txt"  # a document each
OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a split: it becomes part of file names
SHARD = re.compile(r"[-._](?!(?:19|20)\d\d$)\d{1,5}(?:-of-(\d+).*)?$")  # train-00000-of-00001, test_1, not test_2016
# Suffixes of what lies beside a corpus. All other files may be data: people keep splits in .zip, .sgm, .xlsx, .zst ...
BESIDE_DATA = {
    *(".md", ".rst", ".html", ".pdf", ".py", ".ipynb", ".sh", ".pl", ".yaml", ".yml", ".toml", ".log", ".png", ".svg"),
    *(".md5", ".sha256", ".bak", ".pt", ".ckpt", ".model", ".vocab"),
}
ARCHIVES = {".zip", ".zst", ".xz", ".bz2", ".tar", ".tgz", ".7z", ".rar", ".arrow"}
# What the first bytes of a file say that it is, whatever its name.
CONTENT = {
    rb"\x1f\x8b": "packed with gzip",
    rb"\xfd7zXZ\x00": "packed with xz",
    rb"BZh[1-9]1AY&SY": "packed with bzip2",
    rb"\x28\xb5\x2f\xfd": "packed with zstd",
    rb"PK\x03\x04": "a zip archive",
    rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff": "UTF-32",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}
LFS_POINTER = b"version https://git-lfs"
SETTLED_NS = 2_000_000_000  # a file that changed within that time may change again without a new time


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

    def fingerprint(self, store: Path) -> list[str]:
        """A label and the sha256 of each file, sorted; the digests are cached in `store`."""
        files = sorted(file for files in self.splits.values() for file in files)
        labels = {file: file.relative_to(self.root).as_posix() for file in files}
        if self.lines:
            labels = {file: f"{split} {side}" for split in self.splits for side, file in enumerate(self.splits[split])}
            files = sorted(files, key=labels.__getitem__)
        return [f"{labels[file]} {digest}" for file, digest in zip(files, file_digests(files, store), strict=True)]


# Names


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read: `.jsonl` of x.jsonl, of X.JSONL and of x.jsonl.gz."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def split_word(name: str) -> str | None:
    """The standard split that a word of a name stands for: test of `en-de.test` and `test_2016`; or None."""
    return next((SPLIT_WORDS[word] for word in re.split(r"[-._ \d]+", name.lower()) if word in SPLIT_WORDS), None)


def standard_splits(names: Collection[str]) -> dict[str, str]:
    """Which of the names are standard splits: the first of validation, valid, val and dev is validation."""
    firsts = ((next((name for name in same if name in names), None), split) for split, same in SPLIT_NAMES.items())
    return {name: split for name, split in firsts if name is not None}


def _may_be_own(name: str) -> bool:
    """Whether a split may have this name, which is none of the standard ones in other capitals, and no other train."""
    other_case = name not in SPLIT_WORDS and name.lower() in SPLIT_WORDS
    return OWN_NAME.fullmatch(name) is not None and split_word(name) != "train" and not other_case


def _stem(file: Path) -> str:
    """Without the suffixes."""
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return name.removesuffix(Path(name).suffix)


def _label(file: Path, root: Path) -> str:
    """`train` of train.csv, data/train.csv and train-00000-of-00001.csv, and `train/` of all files of folder train."""
    first, *more = file.relative_to(root / "data" if (root / "data") in file.parents else root).parts
    return f"{first}/" if more else SHARD.sub("", _stem(file))


# Folders


def list_pairs(path: Path, languages: tuple[str, str]) -> Listing:
    """The files of sentence pairs at `path`: a folder, one table, or the beginning of the names of two line files; the
    last two are train.

    A folder, or its folder data, has line files `SPLIT.LANGUAGE`, else tables `SPLIT.SUFFIX`, numbered ones, or folders
    SPLIT of tables. Other test sets (two line files of any name, tables called like test_2016) are splits of their own
    names. Raises DataError: nothing there; files of a split that do not belong together, or are missing.
    """
    if path.is_file() and kind_of(path) in TABLES:
        return Listing(path.parent, {"train": (path,)})
    if not path.is_dir():
        sides = _line_files(_visible(path.parent), languages).get(path.name)
        if sides is None:
            raise _absent(path, languages)
        return Listing(path.parent, {"train": _both(path, sides, languages)}, lines=True)
    beside = [file for folder in (path, path / "data") for file in _visible(folder)]
    splits: dict[str, tuple[Path, ...]] = {}
    stems = _line_files(beside, languages)
    usual = standard_splits(stems)
    for stem, sides in stems.items():
        if stem in usual or (_may_be_own(stem) and (len(sides) == 2 or split_word(stem))):
            splits[usual.get(stem, stem)] = _both(path / stem, sides, languages)
    if not (lines := bool(splits)):
        within = [file for folder in beside if folder.name in SPLIT_WORDS for file in _visible(folder)]
        splits = _splits_of_tables([file for file in (*beside, *within) if kind_of(file) in TABLES], path)
    used = {part for files in splits.values() for file in files for part in (file, file.parent)}
    return Listing(
        path, splits, tuple(file for file in beside if file not in used and _may_be_data(file, languages)), lines
    )


def list_documents(path: Path) -> Listing:
    """The files of documents at `path`, also in sub-folders: one file is train. If a top-level folder or file is called
    train, the splits are those called so, and nothing beside them is read; else all are train. Raises DataError: only
    some names look like splits, a file is there in two forms, or one is missing.
    """
    if path.is_file():
        return Listing(path.parent, {"train": (path,)})
    everything = [*_walk(path)]
    documents = [file for file in everything if kind_of(file) in (TEXT, *TABLES)]
    groups: dict[str, list[Path]] = {}
    for file in documents:
        groups.setdefault(_label(file, path), []).append(file)
    names = {label: label.rstrip("/") for label in groups}
    usual, splits = standard_splits(names.values()), dict[str, list[Path]]()
    if "train" in usual:
        for label, files in groups.items():
            if names[label] in usual:
                splits.setdefault(usual[names[label]], []).extend(files)
    elif groups:
        speaks_of = {label: split_word(name) for label, name in names.items()}
        apart = [label for label, split in speaks_of.items() if split in ("validation", "test")]
        if apart and (usual or "train" in speaks_of.values()):
            raise DataError(
                f"data.path: {groups[apart[0]][0]} looks like a split, and would be trained on with the others in "
                f"{path}; call the files or folders of the splits train, validation and test"
            )
        splits["train"] = [file for file in everything if kind_of(file) in (TEXT, *TABLES)]
    for split, files in splits.items():
        _check_files(split, files, lambda file: kind_of(file))
    used = {file for files in splits.values() for file in files}
    left = [
        file for file in everything if file not in used and (kind_of(file) in (TEXT, *TABLES) or _may_be_data(file))
    ]
    return Listing(path, {split: tuple(files) for split, files in splits.items()}, tuple(left))


def _visible(folder: Path) -> list[Path]:
    """Sorted, files and folders; those of Spark and of systems begin with _ or a dot."""
    return sorted(file for file in folder.iterdir() if file.name[0] not in "._") if folder.is_dir() else []


def _walk(root: Path) -> Iterator[Path]:
    """The visible files, also behind links, folder by folder. DataError: a folder is there twice, or is a run."""
    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            raise DataError(
                f"data.path: {folder} and {seen[real]} are one folder, whose files would be read twice; remove the link"
            )
        seen[real] = folder
        if "record.json" in names:
            raise DataError(f"data.path: {folder} is a run, not of the corpus; keep runs_dir outside of {root}")
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        yield from (Path(folder, name) for name in sorted(names) if name[0] not in "._")


def _line_files(files: Iterable[Path], languages: tuple[str, str]) -> dict[str, dict[str, Path]]:
    """The line files by what is before `.LANGUAGE`, and by language."""
    named = re.compile(rf"(.+)\.({'|'.join(map(re.escape, languages))})(\.gz)?")
    stems: dict[str, dict[str, Path]] = {}
    for file in files:
        if (match := named.fullmatch(file.name)) is None or not file.is_file():
            continue
        if (other := stems.setdefault(match[1], {}).setdefault(match[2], file)) != file:
            raise DataError(f"data.path: {other} and {file} are the same side of one split; keep one of them")
    return stems


def _both(prefix: Path, sides: dict[str, Path], languages: tuple[str, str]) -> tuple[Path, Path]:
    for language in languages:
        if language not in sides:
            raise DataError(
                f"data.path: {next(iter(sides.values()))} has no counterpart {prefix}.{language}; "
                "a split needs both languages"
            )
    return sides[languages[0]], sides[languages[1]]


def _splits_of_tables(files: Iterable[Path], root: Path) -> dict[str, tuple[Path, ...]]:
    groups: dict[str, list[Path]] = {}
    for file in files:
        if file.is_file():
            groups.setdefault(_label(file, root).rstrip("/"), []).append(file)
    usual, splits = standard_splits(groups), dict[str, tuple[Path, ...]]()
    for name, group in groups.items():
        if name in usual or (_may_be_own(name) and split_word(name)):
            splits[usual.get(name, name)] = tuple(group)
    for split, chosen in splits.items():
        _check_files(split, chosen, lambda file: (file.parent, kind_of(file), _shards(file)))
    return splits


def _shards(file: Path) -> int | bool:
    """How many there are by the name of one, or whether it has a number."""
    match = SHARD.search(_stem(file))
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
    shards = Counter((file.parent, SHARD.sub("", _stem(file)), _shards(file)) for file in files if _shards(file) > 1)
    for (folder, stem, number), count in shards.items():
        if count != number:
            raise DataError(
                f"data.path: {count} of the {number} files {stem}-*-of-{number:05} are in {folder}; get the others"
            )


def _may_be_data(file: Path, languages: Collection[str] = ()) -> bool:
    """Whether something that is not read may be data, as its name speaks of a split or a language, or an archive."""
    suffixes = [suffix.lower() for suffix in ["", *file.suffixes]]
    speaks = split_word(file.name) or any(f".{language}".lower() in suffixes for language in languages)
    return suffixes[-1] in ARCHIVES or (suffixes[-1] not in BESIDE_DATA and bool(speaks))


def _absent(path: Path, languages: tuple[str, str]) -> DataError:
    expected = f"a folder, or {path.name}.{languages[0]} and {path.name}.{languages[1]} in {path.parent}"
    if path.is_file():
        return DataError(
            f"data.path: {path} is no table ({', '.join(TABLES)}); give its folder, or for line files the path "
            f"without .{languages[0]} (looked for {expected})"
        )
    return DataError(
        f"data.path: {path} does not exist (looked for {expected}); "
        "check data.path, source_language and target_language"
    )


# Content


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Errors while a file is read become one line. Raises DataError if it cannot be read or its content is damaged."""
    try:
        yield
    except (OSError, EOFError, ValueError, RecursionError, NotImplementedError, zlib.error) as error:
        raise DataError(
            f"data.path: {file} cannot be read ({' '.join(str(error).split())[:200]}); "
            "make it readable or download it again"
        ) from None


@contextmanager
def open_file(file: Path) -> Iterator[IO[bytes]]:
    """The file opened for reading bytes, unpacked if it ends in .gz; errors as of `reading`."""
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    with reading(file), opened(file, "rb") as handle:
        yield handle


def kind_of_content(block: bytes) -> str | None:
    """What a file that begins with these bytes is, if it says so itself."""
    return next((kind for start, kind in CONTENT.items() if re.match(start, block)), None)


def check_text(place: str, block: bytes, line: int, *, any_bytes: bool = False) -> None:
    """Check a block of bytes, of which the first is in line `line` (from 0) of a text file; `place` names the file.
    Raises DataError for packed files by another name and, unless `any_bytes` are read, UTF-16, UTF-32, NUL bytes and
    lines that end with a carriage return alone, which would be one line.
    """
    kind = kind_of_content(block) if line == 0 else None
    if any_bytes:
        kind = None if kind is None or "UTF" in kind else kind
    elif kind is None and b"\0" in block:
        kind = "UTF-16 or binary (it has NUL bytes)"
        line += block[: block.index(b"\0")].count(b"\n")
    if kind is not None:
        remedy = "convert it, for example with iconv" if "UTF" in kind else "unpack it"
        raise DataError(f"{place}: line {line + 1} is not UTF-8 text but {kind}; {remedy}")
    if line == 0 and not any_bytes and b"\r" in block.rstrip(b"\r") and b"\n" not in block:
        raise DataError(
            f"{place}: its lines end with carriage returns alone and would be read as one; convert it: tr '\\r' '\\n'"
        )


def text_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines with their newlines, counted from 1; a byte order mark is left out. Raises DataError as `check_text`, and
    for a line that is not UTF-8.
    """
    with open_file(file) as handle:
        for number, raw in enumerate(handle, 1):
            check_text(f"data.path: {file}", raw, number - 1)
            yield number, decoded(raw, file, number).removeprefix("\ufeff" if number == 1 else "")


def decoded(raw: bytes, file: Path, number: int, unit: str = "line") -> str:
    """The text of a line or row of a file. Raises DataError if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"data.path: {unit} {number} of {file} is not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start}); "
            "convert the file, for example with iconv"
        ) from None


# Digests


def file_digests(files: Iterable[Path], store: Path) -> list[str]:
    """sha256 of each file's content, cached in `store` by path, size, inode, and times of modification and of change:
    who restores a modification time, or puts another file of the same size and time in place, changes one of the last.
    Raises DataError for a pointer of Git LFS in place of a file.
    """
    known, new, now = read_json(store), dict[str, Any](), time.time_ns()  # before a file is read, which may take long
    digests = []
    for file in files:
        with reading(file), file.open("rb") as handle:
            if handle.read(len(LFS_POINTER)) == LFS_POINTER:
                raise DataError(f"data.path: {file} is a pointer of Git LFS, not the file; run git lfs pull there")
            handle.seek(0)
            status = os.fstat(handle.fileno())
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = known.get(str(file))
            if not isinstance(entry, list) or entry[:-1] != stamp:
                entry = [*stamp, hashlib.file_digest(handle, "sha256").hexdigest()]
                if now - max(stamp[1:3]) > SETTLED_NS:
                    new[str(file)] = entry
        digests.append(str(entry[-1]))
    if new:
        update_json(store, new)
    return digests


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def update_json(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys of a JSON file. Write errors are ignored: only the next start is slower."""
    with suppress(OSError), exclusive(path.parent, path.name, quiet=True):
        replace_file(path, json.dumps({**read_json(path), **values}, indent=1))
