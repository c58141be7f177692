"""The files of a corpus as they are read: their bytes, lines and rows, as a stream."""

import csv
import gzip
import itertools
import json
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rpr.errors import DataError, did_you_mean

TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
TEXT, ARROW = ".txt", (".parquet", ".arrow")  # a document each; read by pyarrow
# What the first bytes of a file say that it is, whatever its name.
PACKED = re.compile(rb"\x1f\x8b|\xfd7zXZ\x00|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd|PK\x03\x04")
BYTE_ORDER = re.compile(rb"\xff\xfe|\xfe\xff|\x00\x00\xfe\xff")
START = 1 << 20  # bytes of a file by which its content is checked
TEXT_TYPE = re.compile(r"(dictionary<values=)?(large_)?string(_view)?\b.*")  # of pyarrow
Cell = bytes | None  # to be decoded


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read: `.jsonl` of x.jsonl, of X.JSONL and of x.jsonl.gz."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def stem_of(file: Path) -> str:
    """The name without that suffix and .gz."""
    return re.sub(r"(\.[^.]*)?(\.gz)?$", "", file.name, flags=re.IGNORECASE)


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
    if PACKED.match(start):
        raise DataError(f"{place} is not UTF-8 text but packed; unpack it")
    # Latin letters of UTF-16 have a NUL each.
    if utf8 and (BYTE_ORDER.match(start) or start.count(b"\0") > max(1, len(start) // 4)):
        raise DataError(f"{place} is not UTF-8 text but UTF-16; convert it, for example with iconv")
    if lines and b"\r" in start.rstrip(b"\r") and b"\n" not in start:
        raise DataError(
            f"{place}: its lines end with carriage returns alone and would be read as one; convert it: tr '\\r' '\\n'"
        )


def not_utf8(error: UnicodeDecodeError, place: str, remedy: str = "") -> DataError:
    """The error for a part of a file, which `place` names."""
    raw, at = error.object, error.start
    what = f"byte 0x{raw[at]:02x} after {raw[max(0, at - 20) : at].decode(errors='replace')!r}"
    return DataError(f"data.path: {place} is not UTF-8 ({what}); convert it, for example with iconv{remedy}")


# Rows


class Table:
    """The rows of a table, or of an Arrow stream as datasets keeps it of the hub.

    rows: how many. columns: those to read, by the settings that name them; `en` may be a field of structs, which the
    column `translation` holds. A CSV or JSON file is read and checked whole.

    Raises DataError for a damaged file, and about a setting whose column is not there, or is not text; a file without
    rows, as Spark writes them, needs none.
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
            with reading(self.file):
                for batch in _arrow(self.file, self._columns, size)[2]:
                    yield [_cells(_flat(batch).column(name)) for name in self._columns]
            return
        rows = ([row.get(name) for name in self._columns] for row in _rows(self.file))
        cells = ([text.encode("utf-8", "surrogatepass") if text is not None else None for text in row] for row in rows)
        while chunk := list(itertools.islice(cells, size)):
            yield [*zip(*chunk, strict=True)]


def _described(file: Path) -> tuple[int, dict[str, str]]:
    """The number of rows, and what each column holds: "text", or in words."""
    if kind_of(file) in ARROW:
        with reading(file):
            schema, rows, _ = _arrow(file)
            if len({*schema.names}) < len(schema.names):
                raise ValueError("it names a column twice")
            held = {field.name: str(field.type) for field in _flat(schema.empty_table()).schema}
            return rows, {name: "text" if TEXT_TYPE.fullmatch(of) else of for name, of in held.items()}
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


def _flat(part: Any) -> Any:
    """With a column `translation.en` for a field of structs."""
    import pyarrow

    return (pyarrow.Table.from_batches([part]) if isinstance(part, pyarrow.RecordBatch) else part).flatten()


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
            try:
                line = raw.decode().removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
                if not (line.strip(" \t") if kind == ".jsonl" else line):
                    continue
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
                raise DataError(
                    f"data.path: line {number} of {file} cannot be read ({error}); each line has to be a row of {kind}"
                ) from None
