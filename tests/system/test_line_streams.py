"""Lines of stdin and of files: batching and reading ahead of pipes and files, and which lines an input has."""

import os
import threading

import pytest

from rpr.commands.translate import batches


def test_reader_yields_available_lines_without_waiting():
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb", buffering=0) as end:
        lines = batches(reading, 4)
        end.write(b"two\nthree\nfo")
        assert next(lines) == [b"two", b"three"]
        end.write(b"ur\n" + b"more\n" * 5)
        assert [next(lines), next(lines)] == [[b"four", *[b"more"] * 3], [b"more"] * 2]
        end.write(b"la")
        later = threading.Timer(0.05, lambda: (end.write(b"st"), end.close()))
        later.start()
        assert list(lines) == [[b"last"]]
        later.join()


LONG = [b"line " * 20, b"", b"long " * 30_000, *(b"%d" % number * 50 for number in range(2498))]  # several chunks


@pytest.mark.parametrize(("content", "expected"), [
    (b"\n".join(LONG), LONG), (b"".join(line + b"\n" for line in LONG), LONG),
    (b"a\rb\r", [b"a", b"b"]), (b"a\r\rb", [b"a", b"", b"b"]), (b"a\rb\n", [b"a\rb"]), (b"\r", [b""]), (b"", []),
], ids=range(7))  # fmt: skip
def test_batches_of_a_file_are_full_and_carriage_returns_end_lines_where_no_newline_does(tmp_path, content, expected):
    (tmp_path / "in").write_bytes(content)
    with (tmp_path / "in").open("rb") as file:
        read = list(batches(file.fileno(), 600))
    assert [line for batch in read for line in batch] == expected
    assert all(len(batch) == 600 for batch in read[:-1])
