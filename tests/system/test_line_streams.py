"""rpr.commands.line_streams: batching and reading ahead of pipes and files, and output files without partial lines."""

import os
import threading

import pytest

from rpr.commands.line_streams import Output, batches, count_lines
from rpr.errors import DataError


@pytest.fixture
def pipe():
    """The reading end of a pipe, and functions to write to and close the other end."""
    reading, writing = os.pipe()
    open_ends = {reading, writing}

    def write(content):
        os.write(writing, content)

    def close():
        open_ends.discard(writing)
        os.close(writing)

    yield reading, write, close
    for end in open_ends:
        os.close(end)


def test_reader_yields_available_lines_without_waiting(pipe):
    reading, write, close = pipe
    lines = batches(reading, 4)
    write(b"one\n")
    assert next(lines) == [b"one"]
    write(b"two\nthree\nfo")
    assert next(lines) == [b"two", b"three"]
    write(b"ur\n" + b"more\n" * 5)
    assert next(lines) == [b"four", b"more", b"more", b"more"]
    assert next(lines) == [b"more", b"more"]
    write(b"la")
    later = threading.Timer(0.1, lambda: (write(b"st"), close()))
    later.start()
    assert list(lines) == [[b"last"]]
    later.join()


def test_batches_of_file_are_full(tmp_path):
    lines = [b"line " * 20, b"", b"long " * 30_000, *(b"%d" % number * 50 for number in range(2498))]  # several chunks
    for content in (b"\n".join(lines), b"".join(line + b"\n" for line in lines)):
        (tmp_path / "in").write_bytes(content)
        with (tmp_path / "in").open("rb") as file:
            read = list(batches(file.fileno(), 600))
        assert [len(batch) for batch in read] == [600, 600, 600, 600, 101]
        assert [line for batch in read for line in batch] == lines


def test_count_lines_starts_at_file_position(tmp_path, pipe):
    (tmp_path / "in").write_bytes(b"a\nb\x0b\x85\r\nc")
    with (tmp_path / "in").open("rb", buffering=0) as file:
        assert file.readline() == b"a\n"
        assert count_lines(file.fileno()) == 2 and file.read() == b"b\x0b\x85\r\nc"
    assert count_lines(pipe[0]) is None


def test_output_file_appears_when_finished(tmp_path):
    path = tmp_path / "out"
    path.write_text("earlier")
    (tmp_path / "out.part").write_text("of an earlier one, and longer than what comes now")
    output = Output(path)
    assert (tmp_path / "out.part").read_text().startswith("of an earlier one")
    output.write(b"one\n")
    output.write(b"two\n")
    assert (path.read_text(), (tmp_path / "out.part").read_text()) == ("earlier", "one\ntwo\n")
    output.finish()
    assert path.read_text() == "one\ntwo\n" and os.listdir(tmp_path) == ["out"]
    Output(path).finish()  # without any lines
    assert path.read_text() == ""


def test_second_writer_of_same_file_is_refused(tmp_path):
    first = Output(tmp_path / "out")
    first.write(b"one\n")
    with pytest.raises(DataError, match=r"^output: another process is writing .*out\.part; wait for it"):
        Output(tmp_path / "out")
    first.finish()
    assert (tmp_path / "out").read_bytes() == b"one\n" and not (tmp_path / "out.part").exists()


def test_abandoned_output_ends_with_whole_line(tmp_path, monkeypatch):
    output = Output(tmp_path / "out")
    output.write(b"one\ntwo\n")
    real = os.write

    def full(descriptor, content):
        if len(content) < 8:
            raise OSError(28, "No space left on device")
        return real(descriptor, content[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out\.part'$"):
        output.write(b"three\nfour\n")
    monkeypatch.undo()
    assert (tmp_path / "out.part").read_bytes() == b"one\ntwo\nthree"
    assert output.give_up() == f" in {tmp_path / 'out.part'}; {tmp_path / 'out'} was not written"
    assert (tmp_path / "out.part").read_bytes() == b"one\ntwo\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("earlier", [None, "lines of an earlier process\n"])
def test_output_abandoned_before_first_line_changes_nothing(tmp_path, earlier):
    part = tmp_path / "out.part"
    if earlier is not None:
        part.write_text(earlier)
    assert Output(tmp_path / "out").give_up() == ""
    assert (part.read_text() if part.exists() else None) == earlier
