"""Sentence pairs in line files, plain or gzipped, and cached digests of files."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rpr.config.train import DataConfig
from rpr.data.pairs import SPLIT_NAMES, Chunk, Pairs, local_path
from rpr.errors import DataError, RunError
from rpr.io.atomic import replace_file
from rpr.io.locks import exclusive


class LinePairs(Pairs):
    """Line i of one file translates line i of the other. Raises DataError if their line counts differ."""

    def __init__(self, source: Path, target: Path) -> None:
        self._files = (source, target)
        num_source, num_target = _count_lines(source), _count_lines(target)
        if num_source != num_target:
            raise DataError(
                f"data.path: {source} has {num_source} lines and {target} has {num_target}; "
                "line i of one must translate line i of the other: fix or realign the files"
            )
        self._len = num_source

    def __len__(self) -> int:
        return self._len

    def where(self, index: int) -> str:
        return f"line {index + 1} of {self._files[0]} and {self._files[1].name}"

    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        sides = (_read_lines(file, start, stop, size) for file in self._files)
        for first, (source, target) in zip(range(start, stop, size), zip(*sides, strict=True), strict=True):
            yield Chunk(source, target, self._files, range(first, first + len(source)))


def find_line_files(data: DataConfig) -> dict[str, tuple[Path, Path]]:
    """The (source, target) files of each split, .gz included; empty if data.path is a folder without any. Raises
    DataError if one side is missing.
    """
    path, languages = local_path(data), (data.source_language, data.target_language)
    stems: list[tuple[str, Path]] = [("train", path)]
    if path.is_dir():
        stems = [(split, path / name) for split, names in SPLIT_NAMES.items() for name in names]
        more = {
            file.name.removesuffix(".gz").removesuffix(f".{language}")
            for language in languages
            for file in path.glob(f"test?*.{language}*")
        }
        stems += [(name, path / name) for name in sorted(more)]
    files: dict[str, tuple[Path, Path]] = {}
    for split, stem in stems:
        sides = [
            next((file for end in ("", ".gz") if (file := Path(f"{stem}.{language}{end}")).is_file()), None)
            for language in languages
        ]
        if sides[0] and sides[1]:
            files.setdefault(split, (sides[0], sides[1]))
        elif sides[0] or sides[1]:
            missing = languages[0] if sides[1] else languages[1]
            raise DataError(
                f"data.path: {sides[0] or sides[1]} has no counterpart {stem}.{missing}; a split needs both languages"
            )
    if not files and not path.is_dir():
        expected = f"a folder, or {path.name}.{languages[0]} and {path.name}.{languages[1]} in {path.parent}"
        if path.is_file():
            raise DataError(
                f"data.path: {path} is a file; "
                f"give its folder, or for line files the path without .{languages[0]} (looked for {expected})"
            )
        raise DataError(
            f"data.path: {path} does not exist (looked for {expected}); "
            "check data.path, source_language and target_language"
        )
    return files


@contextmanager
def _reading(file: Path, *, packed: bool = False) -> Iterator[IO[bytes]]:
    """The file opened for reading bytes, decompressed if it ends in .gz, unless `packed`.

    Raises:
        DataError: there is no such file, or its content is damaged.
        RunError: it cannot be read now; what was prepared from it so far is kept.
    """
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" and not packed else file.open("rb") as handle:
            yield handle  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        damaged = not isinstance(error, OSError) or isinstance(error, (gzip.BadGzipFile, FileNotFoundError))
        raise (DataError if damaged else RunError)(
            f"data.path: {file} cannot be read ({' '.join(str(error).split())}); make it readable or download it again"
        ) from None


def _count_lines(file: Path) -> int:
    lines, last = 0, b"\n"
    with _reading(file) as handle:
        while chunk := handle.read(1 << 22):
            lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


def _read_lines(file: Path, start: int, stop: int, size: int) -> Iterator[list[bytes]]:
    """The lines start, ..., stop - 1, at most `size` at a time."""
    with _reading(file) as handle:
        lines = itertools.islice(handle, start, stop)
        while chunk := list(itertools.islice(lines, size)):
            yield chunk


# Digests


def file_digests(files: Sequence[Path], store: Path) -> list[str]:
    """sha256 of each file's content, cached in `store` by path, size and modification time."""
    known = read_json(store)
    digests = []
    for file in files:
        status = file.stat()
        entry = known.get(str(file))
        if not isinstance(entry, list) or len(entry) != 3 or entry[:2] != [status.st_size, status.st_mtime_ns]:
            with _reading(file, packed=True) as handle:
                entry = [status.st_size, status.st_mtime_ns, hashlib.file_digest(handle, "sha256").hexdigest()]  # type: ignore[arg-type]
            # A file younger than that may change again without a new modification time.
            if time.time_ns() - status.st_mtime_ns > 2_000_000_000:
                update_json(store, str(file), entry)
        digests.append(str(entry[2]))
    return digests


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def update_json(path: Path, key: str, value: object) -> None:
    """Set one key of a small JSON file. Write errors are ignored: only the next start is slower."""
    with suppress(OSError), exclusive(path.parent, path.name, quiet=True):
        replace_file(path, json.dumps(read_json(path) | {key: value}, indent=1))
