"""The files of a corpus: which there are, split by split, at data.path, of the Hugging Face hub or of Python's standard
library; which splits are missing; a digest of their content; and their bytes, lines and rows as streams.
"""

import csv
import gzip
import hashlib
import json
import os
import re
import sys
import sysconfig
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from rpr.config.train import DataConfig
from rpr.errors import DataError, did_you_mean
from rpr.io.atomic import exclusive, replace_file
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path

TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
TEXT, ARROW = ".txt", (".parquet", ".arrow")  # a document each; read by pyarrow
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval")}
SPLIT_WORDS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
HELD_OUT = ("test", "validation")
OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a split: it becomes part of file names
SHARD = re.compile(r"[-._](?!(?:19|20)\d\d$)\d{1,5}(?:-of-(\d+).*)?$")  # train-00000-of-00001, test_1, not test_2016
# Suffixes of what lies beside a corpus. All other files may be data: people keep splits in .zip, .sgm, .xlsx, .zst ...
_BESIDE = "md rst html pdf py ipynb sh pl yaml yml toml log png svg md5 sha256 bak pt ckpt model vocab"
BESIDE_DATA = _BESIDE.split()
ARCHIVES = ("zip", "zst", "xz", "bz2", "tar", "tgz", "7z", "rar", "arrow")
NOT_OF_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LFS_POINTER = b"version https://git-lfs"
REVISIONS_NAME = "hub_revisions.json"
# First bytes of packed files, UTF-16 and UTF-32, whatever their names.
NOT_TEXT = re.compile(
    rb"\x1f\x8b|\xfd7zXZ\x00|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd|PK\x03\x04|\xff\xfe|\xfe\xff|\x00\x00\xfe\xff"
)
START = 1 << 20  # bytes of a file by which its content is checked
TEXT_TYPES = "string", "large_string"  # of pyarrow
Cell = bytes | None  # to be decoded


@dataclass(frozen=True)
class Listing:
    """The files that are read.

    root: the folder. splits: the files of each split, train first, in the order in which they are read; of line files
    (`lines`) the source and the target. left_over: what is beside them, looks like data and is not read. missing: those
    of test and validation that have to be held out of train; a test set of another name is enough instead of test.
    """

    root: Path
    splits: Mapping[str, Sequence[Path]]
    left_over: Sequence[Path] = ()
    lines: bool = False
    missing: tuple[str, ...] = ()

    @property
    def not_read(self) -> str:
        """A remark that names the first of what is left over; empty if there is nothing."""
        names = ", ".join(escape_control_characters(file.name) for file in self.left_over[:5])
        return f"not read: {names}{' ...' * (len(self.left_over) > 5)}" if names else ""


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()


def corpus_files(data: DataConfig) -> Listing:
    """The files of a corpus. Raises DataError if there are none that can be used: nothing is there, or no train, files
    of a split do not belong together, are missing, or are not read.
    """
    listing = _listed(data)
    # 1. What there has to be.
    if not listing.splits:
        texts = f"train.{data.source_language} and train.{data.target_language}" if data.text is None else f"*{TEXT}"
        raise DataError(
            f"data.path: no usable files in {listing.root}; looked for {texts} (or .gz), "
            f"train*{', train*'.join(TABLES)}, also in {listing.root / 'data'}; {listing.not_read}".removesuffix("; ")
        )
    splits = sorted(listing.splits)
    if "train" not in splits:
        prefix = f"; for one pair of files as train give data.path={listing.root / splits[0]}" if listing.lines else ""
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split (available: {', '.join(splits)}){prefix}"
        )
    # 2. What is missing.
    own_test = any(word in split for split in set(splits) - set(SPLIT_NAMES) for word in ("test", "tst"))
    missing = tuple(split for split in HELD_OUT if split not in splits and not (split == "test" and own_test))
    for file in listing.left_over:
        speaks_of = set(map(split_word, file.relative_to(listing.root).parts))
        if split := next((split for split in missing if split in speaks_of), None):
            raise DataError(
                f"data.path: {file} is not read, and {split} would be held out of train instead; store it as {split} "
                "in the format of the other files (or .gz), or move it away"
            )
    return replace(listing, missing=missing)


def _listed(data: DataConfig) -> Listing:
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
    return list_files(path, () if data.text is not None else (data.source_language, data.target_language))


# Names


def split_word(name: str) -> str | None:
    """The standard split that a word of a name stands for: test of `en-de.test` and `test_2016`; or None."""
    return next((SPLIT_WORDS[word] for word in re.split(r"[-._ \d]+", name.lower()) if word in SPLIT_WORDS), None)


def _splits(groups: Mapping[str, Sequence[Path]], *, own: bool = False) -> dict[str, Sequence[Path]]:
    """The standard splits, train first: the first of validation, valid, val and dev is validation. And the user's `own`
    ones, which are none of these in other capitals, and no other train.
    """
    splits = dict[str, Sequence[Path]]()
    for split, same in SPLIT_NAMES.items():
        if name := next(filter(groups.__contains__, same), None):
            splits[split] = groups[name]
    taken = {files[0] for files in splits.values()}
    for name, files in sorted(groups.items()) if own else ():
        usable = OWN_NAME.fullmatch(name) and (name in SPLIT_WORDS or name.lower() not in SPLIT_WORDS)
        if usable and files[0] not in taken and split_word(name) != "train":
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
    splits = _splits(_line_files(top, languages), own=True) if languages else {}
    if not (lines := bool(splits)):
        groups: dict[str, list[Path]] = {}
        for file in usable:
            first, *more = file.relative_to(path / "data" if (path / "data") in file.parents else path).parts
            groups.setdefault(first if more else SHARD.sub("", stem_of(file)), []).append(file)
        if languages:
            splits = _splits({name: of_name for name, of_name in groups.items() if split_word(name)}, own=True)
        elif "train" in groups:
            splits = _splits(groups)
        elif usable:
            words = {split_word(name): of_name[0] for name, of_name in groups.items()}
            if (apart := words.get("test") or words.get("validation")) and ("train" in words or _splits(groups)):
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
    return sorted(file for file in folder.iterdir() if file.name[0] not in "._") if folder.is_dir() else []


def _walk(root: Path) -> Iterator[Path]:
    """The visible files, also behind links, folder by folder. DataError: a folder is there twice."""
    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        if (other := seen.setdefault(os.path.realpath(folder), folder)) != folder:
            raise DataError(f"data.path: {folder} and {other} are one folder, read twice; remove the link")
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
    suffixes = file.name.lower().split(".")[1:] or [""]
    speaks = split_word(file.name) or any(language.lower() in suffixes for language in languages)
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
    return _splits(files, own=data.text is None)


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to. Raises DataError if there is none."""
    if (revision := hub_pins(data).get(str(data.hub))) is None:
        revision = str(_call(data, "load_dataset_builder").hash)
        if re.fullmatch("[0-9a-f]{40}", revision) is None:
            raise DataError(
                f"data.hub: {data.hub} is read from a folder of this name, which has no commit; give it as "
                "data.path=..., or work in another directory"
            )
        root = cache_root(data)
        with suppress(OSError), exclusive(root, REVISIONS_NAME):
            replace_file(root / REVISIONS_NAME, json.dumps({**hub_pins(data), str(data.hub): revision}, indent=1))
    return revision


def hub_pins(data: DataConfig) -> dict[str, str]:
    """The commits that this cache_dir is pinned to. Raises DataError if their file is damaged."""
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
    """sha256 of the content of the corpus: of the parameters and the version of a generator, of the files read, or of
    the commit of the hub, pinned in cache_dir/hub_revisions.json at first use (delete its line to update).
    """
    # Parts in words tell caches apart from those of earlier versions, which read such corpora in another way.
    if (generator := data.task or data.synthetic) is not None:
        parts = [generator.model_dump_json(), generator.VERSION]
    elif data.on_hub:
        parts = [str(data.hub), str(data.hub_config), hub_revision(data)]
        parts += ["rows counted over the files of a split"] if data.text is not None else []
    else:
        listing = corpus_files(data)  # raises, also where there is a cache from before a file that is not read
        # By what tells the files apart, wherever the corpus is: of line files, split and side.
        files, sides = sorted(chain(*listing.splits.values())), sorted(listing.splits.items())
        labels = [(file.relative_to(listing.root).as_posix(), file) for file in files]
        if listing.lines:
            labels = [(f"{split} {side}", file) for split, both in sides for side, file in enumerate(both)]
        parts = [f"{label} {_digest(file)}" for label, file in labels]
        parts.append("" if listing.lines else str(data.hub_config))
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        if listing.missing and data.text is None:
            parts.append("held-out pairs up to max_length")
        elif listing.missing and data.hub is not None:
            parts.append("held-out by name")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def _digest(file: Path) -> str:
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


# Reading


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read: `.jsonl` of x.jsonl, of X.JSONL and of x.jsonl.gz."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def stem_of(file: Path) -> str:
    """The name without that suffix and .gz."""
    return re.sub(r"(\.[^.]*)?(\.gz)?$", "", file.name, flags=re.IGNORECASE)


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
    """A file opened for reading bytes, unpacked if it ends in .gz; errors as of `reading`, of UTF-8 `check_text`, and
    for `lines` that end with a carriage return alone.
    """
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    with reading(file), opened(file, "rb") as handle:
        start = handle.read(START)
        if utf8:
            check_text(f"data.path: {file}", start)
        if lines and b"\r" in start.rstrip(b"\r") and b"\n" not in start:
            raise DataError(f"data.path: {file}: its lines end with carriage returns alone; convert it: tr '\\r' '\\n'")
        handle.seek(0)
        yield handle


def check_text(place: str, start: bytes) -> None:
    """Raises DataError if the first bytes of a text, which `place` names, are of a packed file, UTF-16 or UTF-32."""
    if NOT_TEXT.match(start) or start.count(b"\0") > max(1, len(start) // 4):  # Latin letters of UTF-16 have a NUL each
        raise DataError(f"{place} is not UTF-8 text but packed, or UTF-16; unpack it, or convert it with iconv")


def not_utf8(error: UnicodeDecodeError, place: str, remedy: str = "") -> DataError:
    """The error for a part of a file, which `place` names."""
    raw, at = error.object, error.start
    what = f"byte 0x{raw[at]:02x} after {raw[max(0, at - 20) : at].decode(errors='replace')!r}"
    return DataError(f"data.path: {place} is not UTF-8 ({what}); convert it, for example with iconv{remedy}")


class Table:
    """The rows of a table, or of an Arrow stream as datasets keeps it of the hub.

    rows: how many. columns: those to read, by the settings that name them; `en` may be a field of structs, which the
    column `translation` holds. A CSV or JSON file is read and checked whole. Raises DataError for a damaged file, and
    about a setting whose column is not there, or is not text; a file without rows, as Spark writes them, needs none.
    """

    def __init__(self, file: Path, columns: Mapping[str, str]) -> None:
        self.file = file
        self.rows, types = _described(file)
        self._columns = [name if name in types else f"translation.{name}" for name in columns.values()]
        for setting, name, column in zip(columns, columns.values(), self._columns, strict=True):
            if self.rows and column not in types:
                raise DataError(f"{setting}: no {name!r} in the columns of {file}{did_you_mean(name, [*types])}")
            if self.rows and (held := types[column]) != "text":
                raise DataError(f"{setting}: {name!r} of {file} holds {held[:100]}, not text; choose another column")

    def chunks(self, size: int) -> Iterator[list[Sequence[Cell]]]:
        """At most `size` rows at a time: the cells of each column, a missing one as None."""
        if kind_of(self.file) in ARROW:
            import pyarrow

            with reading(self.file):
                for batch in _arrow(self.file, self._columns, size)[2]:
                    rows = pyarrow.Table.from_batches([batch]).flatten()
                    # As bytes, so that text that is not UTF-8 can be reported with its row.
                    yield [rows.column(name).cast(pyarrow.large_binary()).to_pylist() for name in self._columns]
            return
        cells = ([row.get(name) for name in self._columns] for row in _rows(self.file))
        while chunk := list(islice(cells, size)):
            columns = zip(*chunk, strict=True)
            yield [[text if text is None else text.encode("utf-8", "surrogatepass") for text in of] for of in columns]


def _described(file: Path) -> tuple[int, dict[str, str]]:
    """The number of rows, and what each column holds: "text", or in words."""
    if kind_of(file) in ARROW:
        with reading(file):
            schema, rows, _ = _arrow(file)
            if len({*schema.names}) < len(schema.names):
                raise ValueError("it names a column twice")
            # A field of structs becomes a column `translation.en`.
            held = {field.name: str(field.type) for field in schema.empty_table().flatten().schema}
            return rows, {name: "text" if of in TEXT_TYPES else of for name, of in held.items()}
    number, found = 0, defaultdict[str, set[str]](set)
    for number, row in enumerate(_rows(file), 1):  # noqa: B007 (the number of the last one)
        for name, value in row.items():
            found[name].add(type(value).__name__)
    text = ({"str"}, {"str", "NoneType"})
    return number, {name: "text" if of in text else " and ".join(sorted(of)) for name, of in found.items()}


def _arrow(file: Path, columns: Sequence[str] | None = None, size: int = 1) -> tuple[Any, int, Iterable[Any]]:
    """The schema, the rows and the batches of a parquet file, or of a stream as datasets writes them."""
    import pyarrow.parquet

    if kind_of(file) == ".arrow":
        stream = pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all()
        return stream.schema, stream.num_rows, stream.to_batches(size) if columns else ()
    # Buffered and not fetched ahead, a column of a row group is read page by page.
    parquet = pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    batches = parquet.iter_batches(size, columns=columns, use_threads=False)
    return parquet.schema_arrow, parquet.metadata.num_rows, batches


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Of a CSV, TSV or JSON file, by column. Text stays as it is: `NA` a word, and `007` with its zeros. TSV has no
    quotes, as corpora of this field are written. Raises DataError for a row that is no object, or with another number
    of fields than the header; and in CSV for a cell with a line break, and a quote within or after a quoted cell.
    """
    csv.field_size_limit(sys.maxsize)  # Python's own limit is shorter than a long document
    kind, header = kind_of(file), list[str]()
    row: Any
    with open_file(file) as handle:
        for number, raw in enumerate(handle, 1):
            try:
                line = raw.decode().removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
                if kind == ".jsonl" and line.strip(" \t"):
                    row = {**json.loads(line)}
                    within = ((name, value) for name, value in row.items() if isinstance(value, dict))
                    yield row | {f"{name}.{key}": field for name, value in within for key, field in value.items()}
                elif kind != ".jsonl" and line:
                    # An open quote does not read on.
                    row = line.split("\t") if kind == ".tsv" else next(csv.reader([line], strict=True))
                    if header and len(row) != len(header):
                        raise ValueError(f"it has {len(row)} fields, and the header has {len(header)}")
                    if header:
                        yield dict(zip(header, row, strict=True))
                    elif len(set(header := row)) < len(header):
                        raise ValueError("it names a column twice")
            except (ValueError, TypeError, RecursionError, csv.Error) as error:
                raise DataError(
                    f"data.path: line {number} of {file} cannot be read ({error}); each line has to be a row of {kind}"
                ) from None
