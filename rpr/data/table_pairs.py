"""Sentence pairs in tables: one `translation` column of structs, or one column per language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rpr.config.data import DataConfig
from rpr.data.pairs import Chunk, Pairs
from rpr.data.tables import describe, read_columns
from rpr.errors import DataError, did_you_mean


class TablePairs(Pairs):
    """The rows of these files, one file after the other. Raises DataError if a language has no column in one of them,
    or one that is not text.
    """

    def __init__(self, files: Sequence[Path], data: DataConfig, split: str, separator: str | None = None) -> None:
        self._files, self._separator = files, separator
        self._rows: list[int] = []  # of each file
        self._columns: list[list[tuple[str, ...]]] = []  # of the source and of the target, in each file
        for file in files:
            rows, types = describe(file, separator)
            within = ("translation",) if ("translation",) in types else ()
            place = f"in the {'translation column' if within else 'columns'} of {split} in {data.path or data.hub}"
            if len(files) > 1:
                place += f" ({file.name})"
            columns = []
            for key in ("source", "target"):
                language = getattr(data, f"{key}_language")
                columns.append((*within, language))
                if columns[-1] not in types:
                    names = [path[-1] for path in types if path[:-1] == within]
                    raise DataError(f"data.{key}_language: no {language!r} {place}{did_you_mean(language, names)}")
                if (held := types[columns[-1]]) != "text":
                    raise DataError(
                        f"data.{key}_language: {language!r} {place} holds {held[:100]}, not text; "
                        "store its sentences as strings, or choose another column"
                    )
            self._rows.append(rows)
            self._columns.append(columns)

    def __len__(self) -> int:
        return sum(self._rows)

    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        for file, rows, columns in zip(self._files, self._rows, self._columns, strict=True):
            if start < rows and stop > 0:
                first = 0
                for source, target in read_columns(file, columns, size, self._separator):
                    begin, end = max(0, start - first), min(len(source), stop - first)
                    if begin < end:
                        numbers = range(first + begin, first + end)
                        yield Chunk(source[begin:end], target[begin:end], (file, file), numbers, "row")
                    first += len(source)
                    if first >= stop:
                        return
            start, stop = start - rows, stop - rows
