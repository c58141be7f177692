"""Columns of text from parquet, Arrow, JSON, CSV and TSV files, read as a stream: rows are held a batch at a time,
except those of a JSON array.

A column is named by its path: ("en",), or ("translation", "en") for a field of a column of structs or objects.
"""

import csv
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpr.data.content import open_file, reading, text_lines
from rpr.data.files import kind_of
from rpr.errors import DataError, did_you_mean

TABLES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # the last five also packed
ARROW_TYPES = dict.fromkeys(("string", "large_string", "string_view"), "text") | {"null": "only nulls"}
JSON_TYPES = {str: "text", type(None): "only nulls", bool: "truth values", list: "lists", dict: "objects"}
ColumnPath = tuple[str, ...]
Cell = str | bytes | None


class Shape(NamedTuple):
    """The rows of a file, and the types of its columns and their fields: "text", or in words."""

    rows: int
    types: dict[ColumnPath, str]

    def check_text(self, path: ColumnPath, setting: str, place: str) -> None:
        """Raises DataError about `setting` if `place` has no such column, or one that is not text."""
        if path not in self.types:
            names = [other[-1] for other in self.types if other[:-1] == path[:-1]]
            raise DataError(f"{setting}: no {path[-1]!r} in {place}{did_you_mean(path[-1], names)}")
        if (held := self.types[path]) != "text":
            raise DataError(
                f"{setting}: {path[-1]!r} in {place} holds {held[:100]}, not text; store it as strings, or choose "
                "another column"
            )


def describe(file: Path, separator: str | None = None) -> Shape:
    """The shape of a file. A CSV or JSON file is read and checked whole. Raises DataError for a damaged file."""
    if (kind := kind_of(file)) in (".csv", ".tsv"):
        rows = _csv_rows(file, separator)
        header = next(rows)
        return Shape(sum(1 for _ in rows), {(name,): "text" for name in header})
    if kind in (".parquet", ".arrow"):
        with reading(file):
            if kind == ".parquet":
                import pyarrow.parquet

                with pyarrow.parquet.ParquetFile(file) as parquet:
                    return Shape(parquet.metadata.num_rows, _arrow_types(parquet.schema_arrow))
            schema, batches = _arrow_file(file)
            return Shape(sum(batch.num_rows for batch in batches), _arrow_types(schema))
    number, held = 0, defaultdict[ColumnPath, set[str]](set)
    for row in _json_rows(file):
        number += 1
        for name, value in row.items():
            held[name,].add(JSON_TYPES.get(type(value), "numbers"))
            for key, field in value.items() if isinstance(value, dict) else ():
                held[name, key].add(JSON_TYPES.get(type(field), "numbers"))
    for types in held.values():
        if len(types) > 1:
            types.discard("only nulls")
    summary = {path: types.pop() if len(types) == 1 else "values of several types" for path, types in held.items()}
    return Shape(number, summary)


def read_columns(
    file: Path, columns: Sequence[ColumnPath], size: int, separator: str | None = None
) -> Iterator[list[Sequence[Cell]]]:
    """At most `size` rows at a time: the cells of each column, a missing one as None. Bytes are still to be decoded."""
    if (kind := kind_of(file)) in (".parquet", ".arrow"):
        with reading(file):
            for batch in _arrow_batches(file, kind, {path[0] for path in columns}, size):
                yield [_arrow_cells(batch, path) for path in columns]
        return
    rows: Iterator[Any]
    cells: Iterator[list[Cell]]
    if kind in (".csv", ".tsv"):
        rows = _csv_rows(file, separator)
        header = next(rows)
        places = [header.index(path[0]) for path in columns]
        cells = ([row[place] for place in places] for row in rows)
    else:
        cells = ([_json_cell(row, path) for path in columns] for row in _json_rows(file))
    while chunk := list(itertools.islice(cells, size)):
        yield [*zip(*chunk, strict=True)]


# Parquet and Arrow


def _arrow_types(fields: Any, within: ColumnPath = ()) -> dict[ColumnPath, str]:
    from pyarrow.types import is_dictionary, is_struct

    types: dict[ColumnPath, str] = {}
    for field in fields:
        path, held = (*within, field.name), field.type.value_type if is_dictionary(field.type) else field.type
        known = ARROW_TYPES.get(str(held), str(field.type))
        types[path] = "several columns" if path in types else known
        if not within and is_struct(held):
            types |= _arrow_types(held, path)
    return types


def _arrow_file(file: Path) -> tuple[Any, Iterator[Any]]:
    """Schema and batches of an Arrow stream, as datasets writes them, or of an Arrow file."""
    import pyarrow

    source = pyarrow.OSFile(str(file))
    try:
        stream = pyarrow.ipc.open_stream(source)
        return stream.schema, iter(stream)
    except pyarrow.ArrowInvalid:
        table = pyarrow.ipc.open_file(source)
        return table.schema, map(table.get_batch, range(table.num_record_batches))


def _arrow_batches(file: Path, kind: str, names: set[str], size: int) -> Iterator[Any]:
    if kind == ".parquet":
        import pyarrow.parquet

        # Buffered and not fetched ahead, a column of a row group is read page by page.
        with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet:
            yield from parquet.iter_batches(size, columns=sorted(names), use_threads=False)
        return
    for batch in _arrow_file(file)[1]:
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _arrow_cells(batch: Any, path: ColumnPath) -> list[Cell]:
    """As bytes, so that text that is not UTF-8 can be reported with its row."""
    import pyarrow.compute

    column = batch.column(path[0])
    for name in path[1:]:
        column = pyarrow.compute.struct_field(column, name)
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    cells: list[Cell] = column.cast(pyarrow.large_binary()).to_pylist()
    return cells


# JSON


def _json_rows(file: Path) -> Iterator[dict[str, Any]]:
    for place, row in _json_values(file):
        if not isinstance(row, dict):
            raise DataError(f"data.path: {place} of {file} is not an object; give one with the languages as its keys")
        yield row


def _json_values(file: Path) -> Iterator[tuple[str, Any]]:
    """The values of JSON lines, or of one array, with their places."""
    for number, line in text_lines(file):
        if number == 1 and line.lstrip().startswith("["):
            with open_file(file) as handle:
                yield from ((f"entry {place}", row) for place, row in enumerate(json.loads(handle.read()), 1))
            return
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"data.path: line {number} of {file} is not JSON ({error}); give an object per line, or one array"
                ) from None
            yield f"line {number}", row


def _json_cell(row: Any, path: ColumnPath) -> Cell:
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row.encode("utf-8", "surrogatepass") if isinstance(row, str) else None


# CSV


def _csv_rows(file: Path, separator: str | None) -> Iterator[list[str]]:
    """Header and rows as plain text: `NA` stays a word, and `007` keeps its zeros. Raises DataError for a row with
    other than the header's number of fields, a cell with a line break, and a quote within or after a quoted cell.
    """
    separator = separator or ("\t" if kind_of(file) == ".tsv" else ",")
    csv.field_size_limit(sys.maxsize)  # Python's own limit is shorter than a long document
    header: list[str] | None = None
    for number, line in text_lines(file):
        try:
            row = next(csv.reader([line], delimiter=separator, strict=True))  # an open quote does not read on
        except csv.Error as error:
            raise _csv_error(file, number, f"cannot be read ({error})") from None
        if not row:
            continue
        header = header or row
        if len(set(header)) < len(header):
            raise _csv_error(file, number, "names a column twice")
        if len(row) != len(header):
            raise _csv_error(file, number, f"has {len(row)} fields, and the header has {len(header)}")
        yield row
    if header is None:
        raise _csv_error(file, 1, "is missing: no header with the names of the columns")


def _csv_error(file: Path, line: int, problem: str) -> DataError:
    return DataError(
        f"data.path: line {line} of {file} {problem}; quote a cell that holds a separator, double the quotes within a "
        "quoted one, and keep each row on one line"
    )
