"""The content of the files of a corpus: their bytes, unpacked, and their lines as text."""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rpr.errors import DataError, RunError

UNPACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
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


def is_packed(file: Path) -> bool:
    return file.suffix.lower() in UNPACKED


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Errors while a file is read become one line. Raises DataError if there is no such file, or its content is
    damaged; RunError if it cannot be read now: what was prepared from it so far is kept.
    """
    try:
        yield
    except (OSError, EOFError, ValueError, RecursionError, NotImplementedError, zlib.error, lzma.LZMAError) as error:
        passing = isinstance(error, OSError) and error.errno and not isinstance(error, FileNotFoundError)
        raise (RunError if passing else DataError)(
            f"data.path: {file} cannot be read ({' '.join(str(error).split())[:200]}); "
            "make it readable or download it again"
        ) from None


@contextmanager
def open_file(file: Path, *, packed: bool = False) -> Iterator[IO[bytes]]:
    """The file opened for reading bytes, unpacked if it ends in .gz, .xz or .bz2, unless `packed`; errors as of
    `reading`.
    """
    with reading(file), (open if packed else UNPACKED.get(file.suffix.lower(), open))(file, "rb") as handle:
        yield handle


def kind_of_content(block: bytes) -> str | None:
    """What a file that begins with these bytes is, if it says so itself."""
    return next((kind for start, kind in CONTENT.items() if re.match(start, block)), None)


def check_text(place: str, block: bytes, line: int, *, any_bytes: bool = False) -> None:
    """Check a block of bytes, of which the first is in line `line` (from 0) of a text file; `place` names the file.
    Raises DataError for packed files by another name and, unless `any_bytes` are read, UTF-16, UTF-32 and NUL bytes.
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
