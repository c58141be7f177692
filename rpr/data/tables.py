"""Columns of text from parquet, JSON lines, CSV and TSV files, and the Arrow streams that datasets keeps of the hub,
read as a stream: rows are held a batch at a time.

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

from rpr.data.files import kind_of, reading, text_lines
from rpr.errors import DataError, did_you_mean

ARROW = (".parquet", ".arrow")
ARROW_TYPES = dict.fromkeys(("string", "large_string", "string_view"), "text") | {"null": "only nulls"}
JSON_TYPES = {str: "text", type(None): "only nulls", bool: "truth values", list: "lists", dict: "objects"}
ColumnPath = tuple[str, ...]
Cell = str | bytes | None


class Shape(NamedTuple):
    """The rows of a file, and the types of its columns and their fields: "text", or in words."""

    rows: int
    types: dict[ColumnPath, str]

    def check_text(self, path: ColumnPath, setting: str, place: str) -> None:
        """Raises DataError about `setting` if `place` has no such column, or one that is not text; a file without rows,
        as Spark writes them, needs none.
        """
        if self.rows and path not in self.types:
            names = [other[-1] for other in self.types if other[:-1] == path[:-1]]
            raise DataError(f"{setting}: no {path[-1]!r} in {place}{did_you_mean(path[-1], names)}")
        if self.rows and (held := self.types[path]) != "text":
            raise DataError(
                f"{setting}: {path[-1]!r} in {place} holds {held[:100]}, not text; store it as strings, or choose "
                "another column"
            )


def describe(file: Path) -> Shape:
    """The shape of a file. A CSV or JSON file is read and checked whole. Raises DataError for a damaged file."""
    if (kind := kind_of(file)) in (".csv", ".tsv"):
        rows = _separated_rows(file)
        header = next(rows, [])
        return Shape(sum(1 for _ in rows), {(name,): "text" for name in header})
    if kind in ARROW:
        with reading(file), _arrow(file) as source:
            if kind == ".parquet":
                return Shape(source.metadata.num_rows, _arrow_types(source.schema_arrow))
            return Shape(sum(batch.num_rows for batch in source), _arrow_types(source.schema))
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


def read_columns(file: Path, columns: Sequence[ColumnPath], size: int) -> Iterator[list[Sequence[Cell]]]:
    """At most `size` rows at a time: the cells of each column, a missing one as None. Bytes are still to be decoded."""
    if (kind := kind_of(file)) in ARROW:
        with reading(file), _arrow(file) as source:
            batches = source
            if kind == ".parquet":
                batches = source.iter_batches(size, columns=sorted({path[0] for path in columns}), use_threads=False)
            for batch in batches:
                for start in range(0, batch.num_rows, size):
                    yield [_arrow_cells(batch.slice(start, size), path) for path in columns]
        return
    cells: Iterator[list[Cell]]
    if kind in (".csv", ".tsv"):
        rows = _separated_rows(file)
        header = next(rows, None)
        places = [header.index(path[0]) for path in columns] if header else []
        cells = ([row[place] for place in places] for row in rows)
    else:
        cells = ([_json_cell(row, path) for path in columns] for row in _json_rows(file))
    while chunk := list(itertools.islice(cells, size)):
        yield [*zip(*chunk, strict=True)]


def _arrow(file: Path) -> Any:
    """A parquet file, or a stream of batches as datasets writes them; to be closed."""
    import pyarrow.parquet

    if kind_of(file) == ".arrow":
        return pyarrow.ipc.open_stream(pyarrow.OSFile(str(file)))
    # Buffered and not fetched ahead, a column of a row group is read page by page.
    return pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)


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


def _json_rows(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in text_lines(file):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"data.path: line {number} of {file} is not JSON ({error}); give an object per line"
                ) from None
            if not isinstance(row, dict):
                raise DataError(
                    f"data.path: line {number} of {file} is not an object; give one with the columns as keys"
                )
            yield row


def _json_cell(row: Any, path: ColumnPath) -> Cell:
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row.encode("utf-8", "surrogatepass") if isinstance(row, str) else None


def _separated_rows(file: Path) -> Iterator[list[str]]:
    """Header and rows as plain text: `NA` stays a word, and `007` keeps its zeros. TSV has no quotes, as corpora of
    this field are written. Raises DataError for a row with other than the header's number of fields, and in CSV a cell
    with a line break, and a quote within or after a quoted cell.
    """
    csv.field_size_limit(sys.maxsize)  # Python's own limit is shorter than a long document
    header: list[str] | None = None
    for number, line in text_lines(file):
        try:
            if kind_of(file) == ".tsv":
                row = line.rstrip("\r\n").split("\t") if line.strip("\r\n") else []
            else:
                row = next(csv.reader([line], strict=True))  # an open quote does not read on
        except csv.Error as error:
            raise _row_error(file, number, f"cannot be read ({error})") from None
        if not row:
            continue
        header = header or row
        if len(set(header)) < len(header):
            raise _row_error(file, number, "names a column twice")
        if len(row) != len(header):
            raise _row_error(file, number, f"has {len(row)} fields, and the header has {len(header)}")
        yield row


def _row_error(file: Path, line: int, problem: str) -> DataError:
    rule = "a row is a line, and a tab separates its cells, which have no quotes"
    if kind_of(file) == ".csv":
        rule = "quote a cell that holds a comma, double the quotes within a quoted one, and keep each row on one line"
    return DataError(f"data.path: line {line} of {file} {problem}; {rule}")
