"""Properties of corpora: Unicode lines, plain or gzipped, are read pair by pair as written, up to the documented
normalisation; other bytes are read or refused with file and line; any sentence is decoded from its pieces; the pieces
of a document are those of its text.
"""

import gzip
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example
from hypothesis import strategies as st

from rpr.config.train import TextConfig
from rpr.data import corpora
from rpr.data.corpora import Documents, line_pairs, normalise
from rpr.data.vocabulary import BOS, EOS, PAD, UNK, TextVocabulary, count_text_words
from rpr.errors import DataError
from tests.property.sizes import UNICODE, sized

# Characters that readers may treat as line ends, spaces, control characters and combining marks.
ODD = (
    "\r\x01\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85\xa0\u1680"
    "\u2000\u2028\u2029\u3000\u200b\ufeff\ufffe\ufffd\u0301\u0344\u212b\u2581"
)
CHARACTERS = st.one_of(
    st.sampled_from(ODD + " \tab"), UNICODE.filter(lambda one: one not in "\n\0"), st.sampled_from("漢é😀ﬁ½")
)
LINES = st.text(CHARACTERS, max_size=12)
NOT_TEXT = re.compile(rb"\A(\x1f\x8b|\xff\xfe|\xfe\xff)")  # the shortest of the bytes that tell
BOTH = st.tuples(st.booleans(), st.booleans())


def clean(line: str) -> str:
    """The documented normalisation: control characters and U+2581 are spaces, no byte order mark, one space, NFC."""
    kept = (c for c in line if c != "\ufeff")
    spaced = "".join(" " if unicodedata.category(c) == "Cc" or c.isspace() or c == "\u2581" else c for c in kept)
    return unicodedata.normalize("NFC", " ".join(word for word in spaced.split(" ") if word))


def write_files(folder: Path, contents: list[bytes], gzipped: tuple[bool, bool]) -> list[Path]:
    paths = [folder / f"{name}{'.gz' * gz}" for name, gz in zip(("a.en", "a.de"), gzipped, strict=True)]
    for path, content, gz in zip(paths, contents, gzipped, strict=True):
        path.write_bytes(gzip.compress(content) if gz else content)
    return paths


@sized(25, st.lists(st.tuples(LINES, LINES), max_size=5), BOTH, BOTH, st.integers(0, 6))
def test_any_lines_are_read_pair_by_pair(tmp_path, pairs, gzipped, newline, first):
    contents = []
    for side in (0, 1):
        # Without a line end, an empty last line would not exist, and a carriage return in the only one would be one.
        end = "\n" if pairs and (newline[side] or not pairs[-1][side] or len(pairs) == 1) else ""
        contents.append(("\n".join(pair[side] for pair in pairs) + end).encode())
    read = line_pairs(*write_files(tmp_path, contents, gzipped))
    expected = [(clean(source), clean(target)) for source, target in pairs]
    assert len(read) == len(pairs) and list(read) == expected
    assert list(read.part(min(first, len(pairs)), len(pairs))) == expected[first:]
    assert all(normalise(text) == text for pair in expected for text in pair)


def text_of(line: bytes) -> str | None:
    try:
        return clean(line.decode())
    except UnicodeDecodeError:
        return None


CONTENT = st.binary(max_size=30) | st.lists(
    st.sampled_from([b"\n", b"a", b"\xff", "ä".encode(), b"\xed\xa0\x80", b"\xc3", b"\x00", b"\r"]), max_size=8
).map(b"".join)


@sized(40, st.tuples(CONTENT, CONTENT), BOTH)
@example((b"a\n\xff\n", b"a\nb\n"), (True, False))
@example((b"a\nb\n", b"a\n\xed\xa0\x80\n"), (False, False))
def test_any_bytes_are_read_or_refused_with_file_and_line(tmp_path, contents, gzipped):
    lines = [[text_of(line) for line in content.removesuffix(b"\n").split(b"\n") if content] for content in contents]
    sides = write_files(tmp_path, [*contents], gzipped)
    read, message = None, None
    try:
        read = list(line_pairs(*sides))
    except DataError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
    if message is None:
        assert read == list(zip(*lines, strict=True)) and not any(map(NOT_TEXT.search, contents))
    elif "carriage returns alone" in message:
        assert any(re.search(rb"\r+[^\r]", content) and b"\n" not in content for content in contents)
    elif "UTF-8 text" in message:
        side = next(side for side in (0, 1) if str(sides[side]) in message)
        assert NOT_TEXT.search(contents[side]) or contents[side].count(b"\0") > len(contents[side]) / 4
    elif len(lines[0]) != len(lines[1]):
        assert f"{sides[0]} has {len(lines[0])} lines and {sides[1]} has {len(lines[1])}" in message
    else:
        number = next(number for number, row in enumerate(zip(*lines, strict=True)) if None in row)
        side = next(side for side in (0, 1) if lines[side][number] is None)
        assert f"line {number + 1} of {sides[side]} is not UTF-8" in message


@sized(100, st.text(CHARACTERS | st.sampled_from("abäst▁<>/"), max_size=20))
@example("\u2585 \u2047 <unk><s></s><0x41>")
def test_any_sentence_is_decoded_from_its_pieces(byte_fallback, raw):
    text = normalise(raw)
    pieces = byte_fallback.encode(text, eos=True)
    assert not {PAD, UNK, BOS} & {*pieces} and pieces.index(EOS) == len(pieces) - 1
    assert byte_fallback.decode(pieces) == text


FORMATS = {
    "txt": lambda text: text.encode(),
    "txt.gz": lambda text: gzip.compress(text.encode()),
    "jsonl": lambda text: json.dumps({"text": text}).encode(),
    "jsonl.gz": lambda text: gzip.compress(json.dumps({"text": text}).encode()),
    "parquet": lambda text: _parquet({"text": [text]}),
}


def _parquet(columns: dict[str, list[str]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue())


TEXTS = st.lists(st.sampled_from([*"ab \n\t\r", "the dog", "é", "漢", "\u2581", "\u2585"]), max_size=20).map("".join)


@sized(25, TEXTS, st.integers(1, 12))
@example("the dog", 5)  # within a word
@example("é漢", 1)  # within a character
@example("x" * 25_000 + "the dog", 10)
def test_pieces_of_a_file_are_those_of_its_text_whatever_the_format_and_the_size_of_blocks(tmp_path, text, size):
    vocabulary = TextVocabulary.learn_text(count_text_words("the dog and the god\n" * 9), 278)
    config = TextConfig(python_library=False, column="text", rows="documents", windows="stream")
    for suffix, content in FORMATS.items():
        file = tmp_path / f"a.{suffix}"
        file.write_bytes(content(text))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corpora, "BLOCK", size)
            blocks = [*Documents({"a": [file]}, config).blocks()]
        assert b"".join(block.text for block in blocks) == text.encode()
        assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
        pieces = np.concatenate(vocabulary.encode_texts([block.text for block in blocks]))
        assert pieces.tolist() == vocabulary.encode(text), suffix
        words = sum((count_text_words(block.text.decode()) for block in blocks), Counter())
        assert words == count_text_words(text), suffix
