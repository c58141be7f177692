"""The files of a corpus: which are read, split by split; their bytes, lines and rows, as a stream; their digests."""

import csv
import gzip
import hashlib
import itertools
import json
import os
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from rpr.config.data import DataConfig
from rpr.errors import DataError, did_you_mean
from rpr.io.atomic import replace_file
from rpr.io.locks import exclusive
from rpr.paths import user_path

SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval")}
SPLIT_WORDS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
TEXT, ARROW = ".txt", (".parquet", ".arrow")  # a document each; read by pyarrow
OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a split: it becomes part of file names
SHARD = re.compile(r"[-._](?!(?:19|20)\d\d$)\d{1,5}(?:-of-(\d+).*)?$")  # train-00000-of-00001, test_1, not test_2016
# Suffixes of what lies beside a corpus. All other files may be data: people keep splits in .zip, .sgm, .xlsx, .zst ...
_BESIDE = "md rst html pdf py ipynb sh pl yaml yml toml log png svg md5 sha256 bak pt ckpt model vocab"
BESIDE_DATA = {f".{suffix}" for suffix in _BESIDE.split()}
ARCHIVES = {".zip", ".zst", ".xz", ".bz2", ".tar", ".tgz", ".7z", ".rar", ".arrow"}
# What the first bytes of a file say that it is, whatever its name.
CONTENT = {
    rb"\x1f\x8b|\xfd7zXZ\x00|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd|PK\x03\x04": "packed",
    rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff": "UTF-32",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}
LFS_POINTER = b"version https://git-lfs"
START = 1 << 20  # bytes of a file by which its content is checked
TEXT_TYPE = re.compile(r"(dictionary<values=)?(large_)?string(_view)?\b.*|null")  # of pyarrow
Cell = bytes | None  # to be decoded
RULES = {
    ".jsonl": "give an object with the columns as keys on each line",
    ".tsv": "a row is a line, and a tab separates its cells, which have no quotes",
    ".csv": "quote a cell that holds a comma, double the quotes within a quoted one, and keep each row on one line",
}


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
        labels = {file: file.relative_to(self.root).as_posix() for files in self.splits.values() for file in files}
        if self.lines:
            labels = {file: f"{split} {side}" for split in self.splits for side, file in enumerate(self.splits[split])}
        files = sorted(labels, key=labels.__getitem__ if self.lines else None)
        return [f"{labels[file]} {digest}" for file, digest in zip(files, file_digests(files, store), strict=True)]


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()


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
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return name.removesuffix(Path(name).suffix)


def _grouped(files: Iterable[Path], root: Path) -> dict[str, list[Path]]:
    """By `train` of train.csv, data/train.csv, train-00000-of-00001.csv, and all files of a folder train."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        first, *more = file.relative_to(root / "data" if (root / "data") in file.parents else root).parts
        groups.setdefault(first if more else SHARD.sub("", _stem(file)), []).append(file)
    return groups


# Folders


def list_pairs(path: Path, languages: tuple[str, str]) -> Listing:
    """The files of sentence pairs at `path`: a folder, one table, or the beginning of the names of two line files; the
    last two are train.

    A folder, or its folder data, has line files `SPLIT.LANGUAGE`, else tables `SPLIT.SUFFIX`, numbered ones, or folders
    SPLIT of tables. Other test sets (two line files of any name, tables called like test_2016) are splits of their own
    names. Raises DataError: nothing there; files of a split that do not belong together, or are missing.
    """
    # 1. One table, or two line files.
    if path.is_file() and kind_of(path) in TABLES:
        return Listing(path.parent, {"train": (path,)})
    if not path.is_dir():
        sides = _line_files(_visible(path.parent), languages).get(path.name)
        if sides is None:
            problem = f"is no table ({', '.join(TABLES)})" if path.exists() else "does not exist"
            raise DataError(
                f"data.path: {path} {problem}; give a folder, a table, or the path of two line files without "
                f".{languages[0]} and .{languages[1]}"
            )
        return Listing(path.parent, {"train": _both(path, sides, languages)}, lines=True)
    # 2. A folder of line files.
    beside = [file for folder in (path, path / "data") for file in _visible(folder)]
    stems = _line_files(beside, languages)
    usual = standard_splits(stems)
    splits: dict[str, tuple[Path, ...]] = {
        usual.get(stem, stem): _both(path / stem, sides, languages)
        for stem, sides in stems.items()
        if stem in usual or (_may_be_own(stem) and (len(sides) == 2 or split_word(stem)))
    }
    # 3. Or of tables.
    if not (lines := bool(splits)):
        within = [file for folder in beside if folder.name in SPLIT_WORDS for file in _visible(folder)]
        groups = _grouped((file for file in (*beside, *within) if kind_of(file) in TABLES and file.is_file()), path)
        usual = standard_splits(groups)
        for name, group in groups.items():
            if name in usual or (_may_be_own(name) and split_word(name)):
                _check_files(name, group, lambda file: (file.parent, kind_of(file), _shards(file)))
                splits[usual.get(name, name)] = (*group,)
    used = {part for files in splits.values() for file in files for part in (file, file.parent)}
    left = tuple(file for file in beside if file not in used and _may_be_data(file, languages))
    return Listing(path, splits, left, lines)


def list_documents(path: Path) -> Listing:
    """The files of documents at `path`, also in sub-folders: one file is train. If a top-level folder or file is called
    train, the splits are those called so, and nothing beside them is read; else all are train. Raises DataError: only
    some names look like splits, a file is there in two forms, or one is missing.
    """
    if path.is_file():
        return Listing(path.parent, {"train": (path,)})
    files = [*_walk(path)]
    documents = [file for file in files if kind_of(file) in (TEXT, *TABLES)]
    groups = _grouped(documents, path)
    usual, words = standard_splits(groups), {name: split_word(name) for name in groups}
    if "train" in usual:
        splits = {split: (*groups[name],) for name, split in usual.items()}
    else:
        splits = {"train": (*documents,)} if documents else {}
        apart = [name for name, word in words.items() if word in ("validation", "test")]
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


def _both(prefix: Path, sides: dict[str, Path], languages: tuple[str, str]) -> tuple[Path, Path]:
    if missing := [language for language in languages if language not in sides]:
        there = next(iter(sides.values()))
        raise DataError(f"data.path: {there} has no counterpart {prefix}.{missing[0]}; a split needs both languages")
    return sides[languages[0]], sides[languages[1]]


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


def _may_be_data(file: Path, languages: Collection[str], known: Collection[Path] = ()) -> bool:
    """Whether something that is not read may be data, as its name speaks of a split or a language, or an archive."""
    suffixes = [suffix.lower() for suffix in ["", *file.suffixes]]
    speaks = split_word(file.name) or any(f".{language}".lower() in suffixes for language in languages)
    return file in known or suffixes[-1] in ARCHIVES or (suffixes[-1] not in BESIDE_DATA and bool(speaks))


# Bytes and lines


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
def open_file(file: Path, *, lines: bool = True, utf8: bool = True) -> Iterator[IO[bytes]]:
    """A text file opened for reading bytes, unpacked if it ends in .gz; errors as of `reading` and `check_text`."""
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    with reading(file), opened(file, "rb") as handle:
        check_text(f"data.path: {file}", handle.read(START), lines=lines, utf8=utf8)
        handle.seek(0)
        yield handle


def check_text(place: str, start: bytes, *, lines: bool = True, utf8: bool = True) -> None:
    """Check the first bytes of a text file, which `place` names. Raises DataError for packed files by another name;
    for UTF-16 and UTF-32, if it has to be `utf8`; and for `lines` that end with a carriage return alone.
    """
    kind = next((kind for magic, kind in CONTENT.items() if re.match(magic, start)), None)
    if kind is None and start.count(b"\0") > max(1, len(start) // 4):
        kind = "UTF-16"  # whose Latin letters have one each
    if kind is not None and (utf8 or "UTF" not in kind):
        remedy = "convert it, for example with iconv" if "UTF" in kind else "unpack it"
        raise DataError(f"{place} is not UTF-8 text but {kind}; {remedy}")
    if lines and b"\r" in start.rstrip(b"\r") and b"\n" not in start:
        raise DataError(
            f"{place}: its lines end with carriage returns alone and would be read as one; convert it: tr '\\r' '\\n'"
        )


def text_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines with their newlines, counted from 1; a byte order mark is left out. Raises DataError as `open_file`, and
    for a line that is not UTF-8.
    """
    with open_file(file) as handle:
        for number, raw in enumerate(handle, 1):
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


# Rows of tables, and of the Arrow streams that datasets keeps of the hub. `translation.en` is a field of structs.


class Shape(NamedTuple):
    """The rows of a file, and the types of its columns: "text", or in words."""

    rows: int
    types: dict[str, str]

    def check_text(self, column: str, setting: str, place: str) -> None:
        """Raises DataError about `setting` if `place` has no such column, or one that is not text; a file without rows,
        as Spark writes them, needs none.
        """
        if self.rows and column not in self.types:
            raise DataError(f"{setting}: no {column!r} in {place}{did_you_mean(column, [*self.types])}")
        if self.rows and (held := self.types[column]) != "text":
            raise DataError(f"{setting}: {column!r} in {place} holds {held[:100]}, not text; choose another column")


def describe(file: Path) -> Shape:
    """The shape of a file. A CSV or JSON file is read and checked whole. Raises DataError for a damaged file."""
    if kind_of(file) in ARROW:
        with reading(file), _arrow(file) as source:
            parquet = kind_of(file) == ".parquet"
            schema = source.schema_arrow if parquet else source.schema
            held = {field.name: str(field.type) for field in schema.empty_table().flatten().schema}
            types = {name: "text" if TEXT_TYPE.fullmatch(of_column) else of_column for name, of_column in held.items()}
            return Shape(source.metadata.num_rows if parquet else sum(batch.num_rows for batch in source), types)
    number, found = 0, defaultdict[str, set[str]](set)
    for row in _rows(file):
        number += 1
        for name, value in row.items():
            found[name].add(type(value).__name__)
            for key, field in value.items() if isinstance(value, dict) else ():
                found[f"{name}.{key}"].add(type(field).__name__)
    text = {"str", "NoneType"}
    return Shape(number, {name: "text" if of <= text else " and ".join(sorted(of)) for name, of in found.items()})


def read_columns(file: Path, columns: Sequence[str], size: int) -> Iterator[list[Sequence[Cell]]]:
    """At most `size` rows at a time: the cells of each column, a missing one as None."""
    if kind_of(file) in ARROW:
        import pyarrow

        with reading(file), _arrow(file) as source:
            parquet = kind_of(file) == ".parquet"
            for batch in source.iter_batches(size, columns=[*columns], use_threads=False) if parquet else source:
                table = pyarrow.Table.from_batches([batch]).flatten()
                for start in range(0, batch.num_rows, size):
                    yield [_cells(table.column(name).slice(start, size)) for name in columns]
        return
    cells = ([_cell(row, name) for name in columns] for row in _rows(file))
    while chunk := list(itertools.islice(cells, size)):
        yield [*zip(*chunk, strict=True)]


def _arrow(file: Path) -> Any:
    """A parquet file, or a stream of batches as datasets writes them; to be closed."""
    import pyarrow.parquet

    if kind_of(file) == ".arrow":
        return pyarrow.ipc.open_stream(pyarrow.OSFile(str(file)))
    # Buffered and not fetched ahead, a column of a row group is read page by page.
    return pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)


def _cells(column: Any) -> list[Cell]:
    """As bytes, so that text that is not UTF-8 can be reported with its row."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    cells: list[Cell] = column.cast(pyarrow.large_binary()).to_pylist()
    return cells


def _cell(row: dict[str, Any], name: str) -> Cell:
    column, _, field = name.partition(".")
    value = row.get(name)
    if isinstance(within := row.get(column), dict):
        value = within.get(field)
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Of a CSV, TSV or JSON file, by column. Text stays as it is: `NA` a word, and `007` with its zeros. TSV has no
    quotes, as corpora of this field are written. Raises DataError for a row that is no object, or with another number
    of fields than the header; and in CSV for a cell with a line break, and a quote within or after a quoted cell.
    """
    csv.field_size_limit(sys.maxsize)  # Python's own limit is shorter than a long document
    kind, header = kind_of(file), list[str]()
    row: Any
    for number, line in text_lines(file):
        if not line.strip(" \t\r\n" if kind == ".jsonl" else "\r\n"):
            continue
        try:
            if kind == ".jsonl":
                row = json.loads(line)
            elif kind == ".tsv":
                row = line.rstrip("\r\n").split("\t")
            else:
                row = next(csv.reader([line], strict=True))  # an open quote does not read on
            if header and len(row) != len(header):
                raise ValueError(f"it has {len(row)} fields, and the header has {len(header)}")
            if kind == ".jsonl":
                yield {**row}
            elif header:
                yield dict(zip(header, row, strict=True))
            elif len(set(header := row)) < len(header):
                raise ValueError("it names a column twice")
        except (ValueError, TypeError, RecursionError, csv.Error) as error:
            raise DataError(f"data.path: line {number} of {file} cannot be read ({error}); {RULES[kind]}") from None


# Digests


def file_digests(files: Iterable[Path], store: Path) -> list[str]:
    """sha256 of each file's content, cached in `store` by path, size, inode, and times of modification and of change:
    who restores a modification time, or puts another file of the same size and time in place, changes one of the last.
    Raises DataError for a pointer of Git LFS in place of a file.
    """
    known, new, digests = read_json(store), dict[str, Any](), list[str]()
    for file in files:
        with reading(file), file.open("rb") as handle:
            if handle.read(len(LFS_POINTER)) == LFS_POINTER:
                raise DataError(f"data.path: {file} is a pointer of Git LFS, not the file; run git lfs pull there")
            handle.seek(0)
            status = os.fstat(handle.fileno())
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = known.get(str(file))
            if not isinstance(entry, list) or entry[:-1] != stamp:
                entry = new[str(file)] = [*stamp, hashlib.file_digest(handle, "sha256").hexdigest()]
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
