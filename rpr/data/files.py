"""The files of a corpus as they are read: their bytes, lines and rows, as a stream."""

import csv
import gzip
import itertools
import json
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from rpr.errors import DataError, did_you_mean

TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
TEXT, ARROW = ".txt", (".parquet", ".arrow")  # a document each; read by pyarrow
# What the first bytes of a file say that it is, whatever its name.
CONTENT = {
    rb"\x1f\x8b|\xfd7zXZ\x00|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd|PK\x03\x04": "packed",
    rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff": "UTF-32",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}
START = 1 << 20  # bytes of a file by which its content is checked
TEXT_TYPE = re.compile(r"(dictionary<values=)?(large_)?string(_view)?\b.*")  # of pyarrow
Cell = bytes | None  # to be decoded
RULES = {
    ".jsonl": "give an object with the columns as keys on each line",
    ".tsv": "a row is a line, and a tab separates its cells, which have no quotes",
    ".csv": "quote a cell that holds a comma, double the quotes within a quoted one, and keep each row on one line",
}


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read: `.jsonl` of x.jsonl, of X.JSONL and of x.jsonl.gz."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def stem_of(file: Path) -> str:
    """The name without that suffix and .gz."""
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return name.removesuffix(Path(name).suffix)


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
            if len({*schema.names}) < len(schema.names):
                raise ValueError("it names a column twice")
            types = {name: "text" if TEXT_TYPE.fullmatch(of_column) else of_column for name, of_column in held.items()}
            return Shape(source.metadata.num_rows if parquet else sum(batch.num_rows for batch in source), types)
    number, found = 0, defaultdict[str, set[str]](set)
    for number, row in enumerate(_rows(file), 1):  # noqa: B007 (the number of the last one)
        for name, value in row.items():
            found[name].add(type(value).__name__)
    text = ({"str"}, {"str", "NoneType"})
    return Shape(number, {name: "text" if of in text else " and ".join(sorted(of)) for name, of in found.items()})


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
    values = ([row.get(name) for name in columns] for row in _rows(file))
    cells = (
        [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else None for text in row] for row in values
    )
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
            line = decoded(raw, file, number).removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
            if not (line.strip(" \t") if kind == ".jsonl" else line):
                continue
            try:
                if kind == ".jsonl":
                    row = {**json.loads(line)}
                    within = ((name, value) for name, value in row.items() if isinstance(value, dict))
                    yield row | {f"{name}.{key}": field for name, value in within for key, field in value.items()}
                    continue
                # An open quote does not read on.
                row = line.split("\t") if kind == ".tsv" else next(csv.reader([line], strict=True))
                if header and len(row) != len(header):
                    raise ValueError(f"it has {len(row)} fields, and the header has {len(header)}")
                if header:
                    yield dict(zip(header, row, strict=True))
                elif len(set(header := row)) < len(header):
                    raise ValueError("it names a column twice")
            except (ValueError, TypeError, RecursionError, csv.Error) as error:
                raise DataError(f"data.path: line {number} of {file} cannot be read ({error}); {RULES[kind]}") from None
